/* SPDX-License-Identifier: Apache-2.0 */
/* The qualified line (R4, R5). */
#include "common/cm.h"

#include "common/synth.h"

#include <string.h>

static tc_synth s;
static rapt_row rows[5];
enum { CPU, REF, HOST, FA, XF };

static int setup(void **state) {
  (void)state;
  static const struct { const char *id, *display; int place; uint32_t kinds, dtypes; } given[5] = {
    {"cpu.avx2", "cpu", RAPT_PLACE_OWN, RAPT_KIND(RAPT_CPU), RAPT_DT(RAPT_FP16) | RAPT_DT(RAPT_FP32)},
    {"ref", NULL, RAPT_PLACE_OWN, RAPT_KIND(RAPT_CPU), RAPT_DT(RAPT_FP64) | RAPT_DT(RAPT_FP32)},
    {"torch.sdpa", "torch_sdpa", RAPT_PLACE_HOST, RAPT_KIND(RAPT_CPU) | RAPT_KIND(RAPT_CUDA),
     RAPT_DT(RAPT_FP16) | RAPT_DT(RAPT_BF16) | RAPT_DT(RAPT_FP32) | RAPT_DT(RAPT_FP64)},
    {"fa2", "flash_attention_2", RAPT_PLACE_OPT_IN, RAPT_KIND(RAPT_CUDA), RAPT_DT(RAPT_FP16) | RAPT_DT(RAPT_BF16)},
    {"mslk", "xformers", RAPT_PLACE_OPT_IN, RAPT_KIND(RAPT_CUDA),
     RAPT_DT(RAPT_FP16) | RAPT_DT(RAPT_BF16) | RAPT_DT(RAPT_FP32)},
  };
  for (int i = 0; i < 5; i++) {
    rows[i] = tc_synth_row(given[i].id);
    rows[i].display = given[i].display;
    rows[i].place = given[i].place;
    rows[i].kinds = given[i].kinds;
    rows[i].dtypes = given[i].dtypes;
  }
  rows[CPU].isa = "avx2";
  rows[REF].classes = RAPT_CLASS_REFERENCE;
  tc_synth_begin(&s, "cuda cc=9.0 torch=2.13.0");
  tc_synth_add(&s, rows, 5, 0);
  return 0;
}

static rapt_status make_line(const char *family, const char *dtypes, const char *devices, char *buf, size_t n, size_t *len,
                             int *undecided, rapt_reason *why) {
  rapt_problem p = {.struct_size = sizeof p};
  char names[200];
  rapti_settings levels[RAPTI_LEVELS] = {0};
  assert_int_equal(rapt_problem_parse(family, strlen(family), &p, names, sizeof names, why), RAPT_OK);
  return rapti_line(&s.g, levels, 2, s.g.facts.isa, &p, dtypes, devices, buf, n, len, undecided, why);
}

static const char *line_of(const char *family, const char *dtypes, const char *devices, int expect_undecided) {
  static char buf[256];
  size_t len = 0;
  int undecided = -1;
  rapt_reason why = {.struct_size = sizeof why};
  if (make_line(family, dtypes, devices, buf, sizeof buf, &len, &undecided, &why) != RAPT_OK)
    fail_msg("%s: %s %s", family, why.got, why.want);
  assert_int_equal(len, strlen(buf));
  assert_int_equal(undecided, expect_undecided);
  return buf;
}

#define SITE "fp32 b1 h24 q512 k512 d128 assume_finite "
#define is(family, dtypes, devices, text) assert_string_equal(line_of(SITE family, dtypes, devices, 0), text)

static void R5_check_lines(void **state) {
  (void)state;
  is("require=fa2,torch.sdpa prefer=fa2", NULL, NULL, "flash_attention_2 (CUDA fp16/bf16 only; torch_sdpa otherwise)");
  is("require=xformers,torch.sdpa prefer=xformers", NULL, NULL, "xformers (CUDA only; torch_sdpa otherwise)");
  is("require=torch.sdpa", NULL, NULL, "torch_sdpa");
}

static void R4_parts(void **state) {
  (void)state;
  is("require=fa2", NULL, NULL, "flash_attention_2 (CUDA fp16/bf16 only; refused otherwise)");
  is("require=fa2,torch.sdpa prefer=fa2", NULL, "cuda", "flash_attention_2 (fp16/bf16 only; torch_sdpa otherwise)");
  is("require=fa2,torch.sdpa prefer=fa2", "bf16,fp16", "cuda", "flash_attention_2");
  is("require=fa2,torch.sdpa prefer=fa2", "bf16,fp16", "hip,cuda", "flash_attention_2 (CUDA only; refused otherwise)");
  is("require=fa2,mslk,torch.sdpa prefer=fa2,mslk", NULL, "cuda,cpu",
     "flash_attention_2 (CUDA fp16/bf16 only; xformers or torch_sdpa otherwise)");
  is("require=fa2,mslk prefer=fa2,mslk", NULL, NULL,
     "flash_attention_2 (CUDA fp16/bf16 only; xformers or refused otherwise)");
  is("require=torch.sdpa", "fp16,fp16", "cpu,cpu", "torch_sdpa");
  is("require=fa2", "fp32", "cpu", "refused");
  /* All that may be sent becomes bf16: no dtype is left to name. */
  assert_string_equal(line_of(SITE "require=fa2,torch.sdpa prefer=fa2 autocast=bf16", NULL, NULL, 0),
                      "flash_attention_2 (CUDA only; torch_sdpa otherwise)");
}

/* Without prefer the head is what ranks first, in the order of the devices. */
static void R4_head_by_rank(void **state) {
  (void)state;
  tc_synth_begin(&s, "cpu isa=avx2 torch=2.13.0");
  tc_synth_add(&s, rows, 5, 0);
  is("", "fp64,fp16,fp32", "cpu", "cpu (fp16/fp32 only; torch_sdpa otherwise)");
  is("", "fp16,fp32", "cuda,cpu", "torch_sdpa (CUDA only; cpu otherwise)");
  is("", "fp16,fp32", "cpu,cuda", "cpu (CPU only; torch_sdpa otherwise)");
  is("", "fp16,bf16", "cpu,cuda", "cpu (CPU fp16 only; torch_sdpa otherwise)");
  is("forbid=torch.sdpa", "fp16,fp64", "cpu", "cpu (fp16 only; ref otherwise)");
  is("forbid=torch.sdpa,ref", "fp16,fp64", "cpu", "cpu (fp16 only; refused otherwise)");
  is("prefer=torch.sdpa", "fp16,fp32", "cpu,cuda", "torch_sdpa");
  is("forbid=cpu", "fp16,fp32", "cpu,cuda", "torch_sdpa");
  /* Devices with other dtypes stand apart. */
  rows[HOST].dtypes = RAPT_DT(RAPT_BF16);
  rows[HOST].display = "cpu";
  tc_synth_begin(&s, "cpu isa=avx2 torch=2.13.0");
  tc_synth_add(&s, rows, 5, 0);
  is("forbid=ref", "fp16,bf16,fp32", "cpu,cuda", "cpu (CPU, CUDA bf16 only; refused otherwise)");
  setup(NULL);
}

static void R4_undecided(void **state) {
  (void)state;
  rows[FA].cc = "8.0-9.0";
  tc_synth_begin(&s, "cpu isa=avx2 torch=2.13.0");
  tc_synth_add(&s, rows, 5, 0);
  assert_string_equal(line_of(SITE "require=fa2,cpu", "fp16,fp32", NULL, 1),
                      "cpu (CPU only; refused or undecided otherwise)");
  /* A preferred row that waits for a fact: the row that would run without it is no answer. */
  assert_string_equal(line_of(SITE "require=fa2,torch.sdpa prefer=fa2", NULL, NULL, 1),
                      "torch_sdpa (CPU, CUDA fp32 only; undecided otherwise)");
  setup(NULL);
  rows[FA].cc = NULL;
}

static void R4_faults(void **state) {
  (void)state;
  char buf[32];
  size_t len;
  int undecided;
  static const struct { const char *family, *dtypes, *devices; int code; } cases[] = {
    {SITE, "fp16,int8", NULL, RAPT_CODE_SYNTAX},
    {SITE, "", NULL, RAPT_CODE_SYNTAX},
    {SITE, NULL, "cuda,", RAPT_CODE_SYNTAX},
    {SITE, NULL, "gpu", RAPT_CODE_SYNTAX},
    {SITE "require=fa9", NULL, NULL, RAPT_CODE_UNKNOWN_NAME},
    {"fp32 b1 h3/2 q4 k4 d4", NULL, NULL, RAPT_CODE_HEADS},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    rapt_reason why = {.struct_size = sizeof why};
    assert_int_equal(make_line(cases[i].family, cases[i].dtypes, cases[i].devices, buf, sizeof buf, &len, &undecided, &why),
                     RAPT_ARG);
    assert_int_equal(why.code, cases[i].code);
  }
  /* E7: the full length, whatever fits. */
  rapt_reason why = {.struct_size = sizeof why};
  assert_int_equal(make_line(SITE "require=torch.sdpa", NULL, NULL, buf, 6, &len, &undecided, &why), RAPT_OK);
  assert_int_equal(len, strlen("torch_sdpa"));
  assert_string_equal(buf, "torch");
}

/* The worked example of docs/api.md section 10: the tables of the library, through the public call. */
#define FACTS "cuda cc=9.0 torch=2.13.0 cuda=12.8 cudnn=9.12.0 flash-attn=2.8.3 flash-attn.cc=8.0,9.0"

static void public_line(const char *facts, const char *family, const char *expect) {
  rapt_ctx *ctx = NULL;
  rapt_ctx_opts opts = {.struct_size = sizeof opts, .flags = RAPT_CTX_NO_ENV, .facts = facts};
  rapt_reason why = {.struct_size = sizeof why};
  rapt_problem p = {.struct_size = sizeof p};
  char names[200], buf[200];
  size_t len = 0;
  int undecided = -1;
  assert_int_equal(rapt_ctx_create(&opts, &ctx, &why), RAPT_OK);
  assert_int_equal(rapt_problem_parse(family, strlen(family), &p, names, sizeof names, &why), RAPT_OK);
  assert_int_equal(rapt_line_format(ctx, &p, NULL, NULL, buf, sizeof buf, &len, &undecided, &why), RAPT_OK);
  assert_string_equal(buf, expect);
  assert_int_equal(undecided, 0);
  assert_int_equal(rapt_line_format(NULL, &p, NULL, NULL, buf, sizeof buf, &len, &undecided, &why), RAPT_ARG);
  assert_int_equal(why.code, RAPT_CODE_NULL);
  p.struct_size = 8;
  assert_int_equal(rapt_line_format(ctx, &p, NULL, NULL, buf, sizeof buf, &len, &undecided, &why), RAPT_ABI);
  rapt_ctx_destroy(ctx);
}

static void R5_worked_example(void **state) {
  (void)state;
  public_line(FACTS, SITE "require=fa2,torch.sdpa prefer=fa2",
              "flash_attention_2 (CUDA fp16/bf16 only; torch_sdpa otherwise)");
  public_line(FACTS, SITE "require=fa2,torch.sdpa prefer=fa2 autocast=bf16",
              "flash_attention_2 (CUDA only; torch_sdpa otherwise)");
  public_line(FACTS " xformers=0.0.35 mslk=1.0.0 flash-attn-3=none",
              SITE "require=mslk.auto,torch.sdpa prefer=mslk.auto", "xformers (CUDA only; torch_sdpa otherwise)");
  public_line(FACTS, SITE "require=torch.sdpa", "torch_sdpa");
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(R5_check_lines), cmocka_unit_test(R4_parts), cmocka_unit_test(R4_head_by_rank),
    cmocka_unit_test(R4_undecided),   cmocka_unit_test(R4_faults),
    cmocka_unit_test(R5_worked_example),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
