/* SPDX-License-Identifier: Apache-2.0 */
/* The row tables themselves, against the tables of docs/api.md sections 6 and 9: ids, displays, aliases, classes,
 * places, sources (D8, D15, D28, M15). */
#include "common/cm.h"

#include "core/backend.h"

#include <stdio.h>
#include <string.h>

#define R RAPT_CLASS_REFERENCE
#define FU RAPT_CLASS_FUSED
#define FL (RAPT_CLASS_FUSED | RAPT_CLASS_FLASH)
#define H RAPT_CLASS_HOST
#define A (RAPT_CLASS_FUSED | RAPT_CLASS_APPROX)

/* Section 6, row by row. Own levels whose kernels are not written yet have no row: LATER of them stand in front. */
enum { LATER = 3 };
static const struct { const char *id, *display; uint32_t classes; } rows[] = {
  {"cpu.avx512bf16", "cpu", FU}, {"cpu.neon", "cpu", FU}, {"cpu.neon_bf16", "cpu", FU},
  {"cpu.scalar", "cpu", FU}, {"cpu.avx2", "cpu", FU}, {"cpu.avx512", "cpu", FU}, {"ref", "ref", R},
  {"torch.sdpa", "torch_sdpa", H}, {"torch.math", "torch_sdpa_math", H},
  {"torch.efficient", "torch_sdpa_efficient", H | FU}, {"torch.flash_cpu", "torch_sdpa_flash_cpu", H | FU},
  {"torch.flash", "torch_sdpa_flash", H | FL}, {"torch.cudnn", "torch_sdpa_cudnn", H | FL},
  {"torch.varlen", "torch_varlen", FL}, {"torch.flash_slot", "torch_flash_slot", FL},
  {"fa2", "flash_attention_2", FL}, {"fa2.varlen", "flash_attention_2", FL},
  {"fa2.rocm_ck", "flash_attention_2", FL}, {"fa2.rocm_triton", "flash_attention_2", FL},
  {"fa3", "flash_attention_3", FL}, {"fa3.varlen", "flash_attention_3", FL},
  {"fa4", "flash_attention_4", FL}, {"hub.fa4", "flash_attention_4_hub", FL},
  {"hub.fa2.cuda", "flash_attention_2_hub", FL}, {"hub.fa2.xpu", "flash_attention_2_hub", FL},
  {"hub.fa2.cpu", "flash_attention_2_hub", 0}, {"hub.fa2.varlen", "flash_attention_2_hub", FL},
  {"hub.fa3", "flash_attention_3_hub", FL}, {"hub.fa3.varlen", "flash_attention_3_hub", FL},
  {"aiter.ck", "aiter", FL}, {"aiter.asm_v3", "aiter", FL}, {"aiter.opus", "aiter", FL},
  {"hub.aiter_ck", "aiter_hub", FL}, {"hub.aiter_triton", "aiter_hub", FL},
  {"sage.auto", "sage", A}, {"hub.sage", "sage_hub", A}, {"sage.varlen", "sage_varlen", A},
  {"sage.fp16_cuda", "sage_fp16_cuda", A}, {"sage.triton", "sage_triton", A}, {"sage.fp8_cuda", "sage_fp8_cuda", A},
  {"sage.fp8_sm90", "sage_fp8_sm90", A}, {"sage3", "sage3", A},
  {"mslk.auto", "xformers", FU}, {"mslk.cutlass", "xformers_cutlass", FU}, {"mslk.fa2", "xformers_fa2", FL},
  {"mslk.fa3", "xformers_fa3", FL}, {"mslk.blackwell", "xformers_blackwell", FU},
  {"mslk.splitk", "xformers_splitk", FU}, {"mslk.ck", "xformers_ck", FU},
  {"flex", "flex_attention", 0}, {"npu", "npu", FU}, {"xla", "xla", FU},
  {"jax.xla", "jax_xla", H}, {"jax.cudnn", "jax_cudnn", H | FL},
  {"onednn_graph.cpu", "onednn_graph", 0},
  {"cudnn.half", "cudnn", FL}, {"cudnn.fp8", "cudnn", FL | RAPT_CLASS_APPROX}, {"cudnn.unified", "cudnn", FL},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

/* Section 6, aliases, those in italics first: the 26 names of diffusers. all: the rows that the name means. */
#define DIFFUSERS 26
static const struct { const char *name, *all; } names[] = {
  {"native", "torch.sdpa"}, {"_native_math", "torch.math"}, {"_native_flash", "torch.flash"},
  {"_native_efficient", "torch.efficient"}, {"_native_cudnn", "torch.cudnn"}, {"_native_npu", "npu"},
  {"_native_xla", "xla"}, {"flex", "flex"}, {"flash", "fa2 fa2.rocm_ck fa2.rocm_triton fa2.varlen"},
  {"flash_varlen", "fa2.varlen"}, {"flash_hub", "hub.fa2.cpu hub.fa2.cuda hub.fa2.varlen hub.fa2.xpu"},
  {"flash_varlen_hub", "hub.fa2.varlen"}, {"_flash_3", "fa3 fa3.varlen"}, {"_flash_varlen_3", "fa3.varlen"},
  {"_flash_3_hub", "hub.fa3 hub.fa3.varlen"}, {"_flash_3_varlen_hub", "hub.fa3.varlen"},
  {"flash_4_hub", "hub.fa4"}, {"aiter_fa2_hub", "hub.aiter_ck"},
  {"sage", "sage.auto sage.fp16_cuda sage.fp8_cuda sage.fp8_sm90 sage.triton sage.varlen"}, {"sage_hub", "hub.sage"},
  {"sage_varlen", "sage.varlen"}, {"_sage_qk_int8_pv_fp16_cuda", "sage.fp16_cuda"},
  {"_sage_qk_int8_pv_fp16_triton", "sage.triton"}, {"_sage_qk_int8_pv_fp8_cuda", "sage.fp8_cuda"},
  {"_sage_qk_int8_pv_fp8_cuda_sm90", "sage.fp8_sm90"},
  {"xformers", "mslk.auto mslk.blackwell mslk.ck mslk.cutlass mslk.fa2 mslk.fa3 mslk.splitk"},
  {"reference", "ref"}, {"sdpa", "torch.sdpa"}, {"varlen_attn", "torch.varlen"},
  {"flash2", "fa2 fa2.rocm_ck fa2.rocm_triton fa2.varlen"}, {"flash3", "fa3 fa3.varlen"}, {"flash4", "fa4"}, {"sage_blackwell_hub", "sage3"},
  {"flash_attention_2", "fa2 fa2.rocm_ck fa2.rocm_triton fa2.varlen"}, {"aiter_hub", "hub.aiter_ck hub.aiter_triton"},
  {"torch_sdpa", "torch.sdpa"},
};
enum { NAMES = sizeof names / sizeof names[0] };

static rapt_ctx *ctx;

static int open_ctx(void **state) {
  (void)state;
  rapt_ctx_opts opts = RAPT_CTX_OPTS_INIT;
  opts.facts = "cpu";
  opts.flags = RAPT_CTX_NO_ENV;
  opts.max_threads = 1;
  return rapt_ctx_create(&opts, &ctx, NULL) == RAPT_OK ? 0 : -1;
}

static int close_ctx(void **state) {
  (void)state;
  rapt_ctx_destroy(ctx);
  return 0;
}

static void D8_every_row_of_section_6_exists_once(void **state) {
  (void)state;
  uint32_t n = rapt_row_count(ctx), total = 0;
  for (int i = 0; i < ROWS; i++) {
    int found = 0;
    for (uint32_t j = 0; j < n; j++) {
      rapt_row_info info = RAPT_ROW_INFO_INIT;
      assert_int_equal(rapt_row_get(ctx, j, &info), RAPT_OK);
      if (strcmp(info.id, rows[i].id) != 0) continue;
      found++;
      assert_string_equal(info.display, rows[i].display);
      if (info.classes != rows[i].classes) printf("%s: classes %u, not %u\n", info.id, info.classes, rows[i].classes);
      assert_int_equal(info.classes, rows[i].classes);
    }
    if (found != 1 && i >= LATER) printf("%s: %d rows\n", rows[i].id, found);
    assert_in_range(found, i < LATER ? 0 : 1, 1);
    total += (uint32_t)found;
  }
  assert_int_equal(n, total);
}

typedef const rapt_backend *(*getter)(void);
static const getter backends[] = {
#define RAPTI_BACKEND(name) rapti_backend_##name,
#include "core/backends.def"
#undef RAPTI_BACKEND
};

static void each_external(void (*check)(const rapt_row *row)) {
  unsigned seen = 0;
  for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
    const rapt_backend *b = backends[i]();
    for (uint32_t j = 0; j < b->n_rows; j++) {
      if (b->rows[j].place == RAPT_PLACE_OWN) continue;
      check(&b->rows[j]);
      seen++;
    }
  }
  assert_int_equal(seen, ROWS - 7);
}

/* Sources name the page; rows of others ran on their makers' hardware, so require alone does not gate them (D15);
 * nobody documents isolation (M15); accuracy approx is what the class says, but where the call refuses the dtypes (S2). */
static void check_external(const rapt_row *row) {
  if (!row->source || strncmp(row->source, "docs/backends.md ", 17) != 0) fail_msg("%s: no source", row->id);
  if (!row->ran_on_hardware) fail_msg("%s: not marked as run", row->id);
  if (row->can & RAPT_CAN_ISOLATE) fail_msg("%s: isolates", row->id);
  if (row->can & RAPT_CAN_X1_PATTERN) fail_msg("%s: draws the pattern of X1", row->id);
  if (row->can & row->unknown) fail_msg("%s: both known and unknown", row->id);
  if (!(row->can & (RAPT_CAN_DENSE | RAPT_CAN_PACKED))) fail_msg("%s: neither dense nor packed", row->id);
  if ((row->can & RAPT_CAN_DROPOUT) && !row->rng) fail_msg("%s: drops by an unnamed generator", row->id);
  if (!row->package) fail_msg("%s: no package", row->id);
  bool host = row->classes & RAPT_CLASS_HOST, approx = row->classes & RAPT_CLASS_APPROX;
  if (host != (row->place == RAPT_PLACE_HOST)) fail_msg("%s: class host and place host differ (D28)", row->id);
  bool fp8 = row->dtypes && !(row->dtypes & ~(RAPT_DT(RAPT_FP8E4M3) | RAPT_DT(RAPT_FP8E5M2)));
  if (!fp8 && approx != (row->accuracy == RAPT_APPROX)) fail_msg("%s: accuracy and class differ", row->id);
}

static void M15_D15_D28_rows_say_where_they_come_from(void **state) {
  (void)state;
  each_external(check_external);
}

/* The rows that require=name leaves in, sorted by id, one space between. */
static void rows_of(const char *name, char *buf, size_t size) {
  rapt_problem p = RAPT_PROBLEM_INIT;
  rapt_report *report = NULL;
  const char *ids[ROWS];
  int n = 0;
  p.q.dtype = p.k.dtype = p.v.dtype = RAPT_FP16;
  p.B = p.Hq = p.Hkv = p.Sq = p.Skv = 1;
  p.D = p.Dv = 64;
  p.require = name;
  rapt_status st = rapt_explain(ctx, &p, &report);
  snprintf(buf, size, "%s", rapt_status_name((int32_t)st));
  for (uint32_t i = 0; report && st != RAPT_ARG && i < rapt_report_count(report); i++) {
    rapt_verdict v = RAPT_VERDICT_INIT;
    assert_int_equal(rapt_report_verdict(report, i, &v), RAPT_OK);
    bool out = false;
    for (uint32_t j = 0; j < v.n_reasons; j++) {
      rapt_reason why = RAPT_REASON_INIT;
      assert_int_equal(rapt_report_reason(report, i, j, &why), RAPT_OK);
      out = out || why.code == RAPT_CODE_NOT_REQUIRED;
    }
    if (out || n == ROWS) continue;
    int at = n++;
    for (; at > 0 && strcmp(ids[at - 1], v.row) > 0; at--) ids[at] = ids[at - 1];
    ids[at] = v.row;
  }
  size_t len = 0;
  for (int i = 0; i < n && len < size; i++) len += (size_t)snprintf(buf + len, size - len, "%s%s", i ? " " : "", ids[i]);
  rapt_report_destroy(report);
}

static void D8_aliases_and_the_26_names_of_diffusers(void **state) {
  (void)state;
  char all[512];
  assert_true(NAMES > DIFFUSERS && strcmp(names[DIFFUSERS - 1].name, "xformers") == 0);
  for (int i = 0; i < NAMES; i++) {
    rows_of(names[i].name, all, sizeof all);
    if (strcmp(all, names[i].all) != 0) printf("%s: %s\n", names[i].name, all);
    assert_string_equal(all, names[i].all);
  }
  rows_of("no_such_name", all, sizeof all);
  assert_string_equal(all, "ARG");
}

static bool listed(const char *list, const char *name) {
  size_t n = strlen(name);
  for (const char *s = list; s && *s; s += strcspn(s, ","), s += *s == ',')
    if (strncmp(s, name, n) == 0 && (s[n] == ',' || s[n] == '\0')) return true;
  return false;
}

/* A string is an alias of the rows that show it, or their display, or an id's prefix. Where it is more than one of
 * them the first that counts (section 6) includes the rows of the others, so that nobody can mean a row and miss it. */
static void D8_each_string_has_one_meaning(void **state) {
  (void)state;
  char by_name[512];
  for (int i = LATER; i < ROWS; i++) {
    rows_of(rows[i].display, by_name, sizeof by_name);
    if (!strstr(by_name, rows[i].id)) printf("%s: display %s means %s\n", rows[i].id, rows[i].display, by_name);
    assert_non_null(strstr(by_name, rows[i].id));
  }
  for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++)
    for (uint32_t j = 0; j < backends[i]()->n_rows; j++) {
      const rapt_row *row = &backends[i]()->rows[j];
      for (int k = 0; k < NAMES; k++) {
        if (!listed(row->aliases, names[k].name)) continue;
        rows_of(names[k].name, by_name, sizeof by_name);
        assert_non_null(strstr(by_name, row->id));
      }
      /* Every alias that a row shows is in the table above. */
      for (const char *s = row->aliases; s && *s; s += strcspn(s, ","), s += *s == ',') {
        bool known = false;
        for (int k = 0; k < NAMES; k++) {
          size_t n = strlen(names[k].name);
          known = known || (strcspn(s, ",") == n && strncmp(s, names[k].name, n) == 0);
        }
        if (!known) printf("%s: alias %s\n", row->id, s);
        assert_true(known);
      }
    }
}

/* ---- Picks (section 6, last paragraph; D28) ---- */

typedef struct asked { rapt_status status; char row[48], codes[160], level[24], text[1024]; } asked;

/* A what-if: what is chosen, and the codes of one row. */
static asked what_if(const char *facts, const char *problem, const char *row) {
  asked a = {0};
  rapt_ctx_opts opts = RAPT_CTX_OPTS_INIT;
  rapt_problem p = RAPT_PROBLEM_INIT;
  rapt_ctx *c = NULL;
  rapt_report *report = NULL;
  rapt_decision d = RAPT_DECISION_INIT;
  char storage[512];
  opts.facts = facts;
  opts.flags = RAPT_CTX_NO_ENV;
  opts.max_threads = 1;
  assert_int_equal(rapt_ctx_create(&opts, &c, NULL), RAPT_OK);
  assert_int_equal(rapt_problem_parse(problem, strlen(problem), &p, storage, sizeof storage, NULL), RAPT_OK);
  a.status = rapt_explain(c, &p, &report);
  assert_non_null(report);
  if (rapt_report_decision(report, &d) == RAPT_OK && d.row) snprintf(a.row, sizeof a.row, "%s", d.row);
  if (d.level) snprintf(a.level, sizeof a.level, "%s", d.level);
  for (uint32_t i = 0; i < rapt_report_count(report); i++) {
    rapt_verdict v = RAPT_VERDICT_INIT;
    assert_int_equal(rapt_report_verdict(report, i, &v), RAPT_OK);
    if (strcmp(v.row, row) != 0) continue;
    size_t len = 0;
    for (uint32_t j = 0; j < v.n_reasons; j++) {
      rapt_reason why = RAPT_REASON_INIT;
      assert_int_equal(rapt_report_reason(report, i, j, &why), RAPT_OK);
      len += (size_t)snprintf(a.codes + len, sizeof a.codes - len, "%s%s%s", j ? "," : "", rapt_code_name(why.code),
                              why.state == RAPT_NOT_EVALUATED ? "?" : "");
    }
    if (v.n_reasons == 0) snprintf(a.codes, sizeof a.codes, "ok");
  }
  rapt_report_destroy(report);
  rapt_ctx_destroy(c);
  return a;
}

#define CUDA "cuda cc=9.0 torch=2.13.0 cuda=12.8 cudnn="
static void expect(const char *facts, const char *problem, const char *row, const char *codes) {
  asked a = what_if(facts, problem, row);
  if (strcmp(a.codes, codes) != 0) printf("%s | %s: %s %s\n", facts, problem, row, a.codes);
  assert_string_equal(a.codes, codes);
}

static void D28_torch_sdpa_has_the_limits_and_bans_of_its_member(void **state) {
  (void)state;
  const char *half = "bf16 b1 h8 q512 k512 d128 assume_finite dev=cuda";
  expect(CUDA "9.12.0", half, "torch.sdpa", "ok");
  /* The member of a ban tells the member: flash up to cuDNN 9.15.0, cudnn above. */
  expect(CUDA "9.15.0", "bf16 b1 h8 q512 k512 d128 assume_finite dev=cuda forbid=torch.flash", "torch.sdpa", "FORBIDDEN");
  expect(CUDA "9.15.0", "bf16 b1 h8 q512 k512 d128 assume_finite dev=cuda forbid=torch.cudnn", "torch.sdpa", "ok");
  expect(CUDA "9.16.0", "bf16 b1 h8 q512 k512 d128 assume_finite dev=cuda forbid=torch.cudnn", "torch.sdpa", "FORBIDDEN");
  expect(CUDA "9.16.0", "bf16 b1 h8 q512 k512 d128 assume_finite dev=cuda forbid=torch.flash", "torch.sdpa", "ok");
  expect(CUDA "9.12.0", "fp32 b1 h8 q512 k512 d128 assume_finite dev=cuda forbid=torch.efficient", "torch.sdpa", "FORBIDDEN");
  expect(CUDA "9.12.0", "fp64 b1 h8 q512 k512 d128 assume_finite dev=cuda forbid=torch.math", "torch.sdpa", "FORBIDDEN");
  expect("cpu torch=2.13.0", "fp32 b1 h8 q512 k512 d64 assume_finite forbid=torch.flash_cpu", "torch.sdpa", "FORBIDDEN");
  expect("cpu torch=2.13.0", "fp32 b1 h8 q512 k512 d64/32 assume_finite forbid=torch.flash_cpu", "torch.sdpa", "ok");
  /* H13: the public call has no lse; its member has. */
  expect("cpu torch=2.13.0", "fp32 b1 h8 q512 k512 d64 lse assume_finite", "torch.sdpa", "LSE");
  expect("cpu torch=2.13.0", "fp32 b1 h8 q512 k512 d64 lse assume_finite", "torch.flash_cpu", "ok");
  /* The host's choice does not look at the scale: what it would run is wrong there, and said so. */
  expect("cpu torch=2.13.0", "fp32 b1 h8 q512 k512 d64 causal scale=-1 assume_finite", "torch.sdpa", "SCALE");
  expect(CUDA "9.12.0", "bf16 b1 h8 q512 k512 d128 scale=-1 assume_finite dev=cuda", "torch.sdpa", "SCALE");
  /* Without the version that orders cudnn and flash nothing is known; nor on devices without a table. */
  expect("cuda cc=9.0 torch=2.13.0 cuda=12.8", half, "torch.sdpa", "AVAIL?");
  expect("xpu torch=2.13.0", "bf16 b1 h8 q512 k512 d128 assume_finite dev=xpu", "torch.sdpa", "UNKNOWN_SUPPORT");
}

#define MSLK "cuda cc=8.0 torch=2.13.0 cuda=12.8 xformers=0.0.35 mslk=1.0.0 flash-attn=2.8.3 flash-attn.cc=8.0 "
#define STD "bf16 b1 h8 q512 k512 d128 assume_finite prefer=xformers dev=cuda "
static void D28_mslk_auto_follows_the_order_of_the_rules(void **state) {
  (void)state;
  const char *fa3 = MSLK "flash-attn-3=3.0.0 flash-attn-3.cc=8.0", *none = MSLK "flash-attn-3=none";
  expect(fa3, STD "forbid=mslk.fa3", "mslk.auto", "FORBIDDEN");
  expect(none, STD "forbid=mslk.fa3", "mslk.auto", "ok");
  expect(none, STD "forbid=mslk.fa2", "mslk.auto", "FORBIDDEN");
  expect(none, STD "bias=bf16:1x8x512x512 forbid=mslk.fa2", "mslk.auto", "ok");
  expect(none, STD "bias=bf16:1x8x512x512 forbid=mslk.cutlass", "mslk.auto", "FORBIDDEN");
  expect(MSLK, STD, "mslk.auto", "AVAIL?");
  expect(none, "bf16 b1 h8 q8 k4096 d128 k.st=524288,0,128,1 v.st=524288,0,128,1 assume_finite prefer=xformers "
         "forbid=mslk.splitk dev=cuda", "mslk.auto", "FORBIDDEN");
}

static void D28_sage_auto_goes_by_the_generation(void **state) {
  (void)state;
  static const struct { const char *cc, *member; } table[] = {
    {"8.0", "sage.fp16_cuda"}, {"8.6", "sage.triton"}, {"8.9", "sage.fp8_cuda"}, {"12.0", "sage.fp8_cuda"},
    {"9.0", "sage.fp8_sm90"}};
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
    char facts[160], problem[160];
    snprintf(facts, sizeof facts, "cuda cc=%s torch=2.13.0 cuda=12.8 triton=3.5.0 sageattention=2.1.1", table[i].cc);
    snprintf(problem, sizeof problem, "bf16 b1 h8 q512 k512 d128 assume_finite allow=approx prefer=sage forbid=%s dev=cuda",
             table[i].member);
    expect(facts, problem, "sage.auto", "FORBIDDEN");
  }
  expect("cuda torch=2.13.0 cuda=12.8 triton=3.5.0 sageattention=2.1.1",
         "bf16 b1 h8 q512 k512 d128 assume_finite allow=approx prefer=sage dev=cuda", "sage.auto", "DEVICE?");
}

/* ---- The worked example of docs/api.md section 10 ---- */

#define PACKAGES " torch=2.13.0 cuda=12.8 cudnn=9.12.0 flash-attn=2.8.3 flash-attn.cc=8.0,9.0"
#define FACTS "cuda cc=9.0" PACKAGES

static void R5_worked_example_explain(void **state) {
  (void)state;
  const char *problem = "fp32/fp32/bf16 b1 h24 q512 k512 d128 autocast=bf16 dev=cuda assume_finite prefer=fa2";
  asked a = what_if(FACTS, problem, "fa2");
  assert_int_equal(a.status, RAPT_OK);
  assert_string_equal(a.row, "fa2");
  assert_string_equal(a.level, "call");
  assert_string_equal(a.codes, "ok");
  assert_string_equal(what_if(FACTS, problem, "torch.sdpa").codes, "ok");
  assert_string_equal(what_if(FACTS, problem, "cpu.avx2").codes, "DEVICE");
  assert_string_equal(what_if(FACTS, problem, "ref").codes, "DEVICE");
}

static void R5_worked_example_table(void **state) {
  (void)state;
  static const struct { const char *dtype, *chosen, *fa2, *sdpa, *ref; const char *dev; } table[] = {
    {"fp16", "fa2", "ok", "ok", "DEVICE,NOT_REQUIRED", "cuda"},
    {"bf16", "fa2", "ok", "ok", "DEVICE,NOT_REQUIRED", "cuda"},
    {"fp32", "torch.sdpa", "DTYPE", "ok", "DEVICE,NOT_REQUIRED", "cuda"},
    {"fp16", "torch.sdpa", "DEVICE", "ok", "NOT_REQUIRED", "cpu"},
    {"fp32", "torch.sdpa", "DEVICE,DTYPE", "ok", "NOT_REQUIRED", "cpu"}};
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
    char problem[200];
    bool cpu = strcmp(table[i].dev, "cpu") == 0;
    snprintf(problem, sizeof problem, "%s b1 h24 q512 k512 d128 assume_finite dev=%s require=fa2,torch.sdpa prefer=fa2",
             table[i].dtype, table[i].dev);
    const char *facts = cpu ? "cpu" PACKAGES : FACTS;
    assert_string_equal(what_if(facts, problem, "fa2").row, table[i].chosen);
    expect(facts, problem, "fa2", table[i].fa2);
    expect(facts, problem, "torch.sdpa", table[i].sdpa);
    expect(facts, problem, "ref", table[i].ref);
  }
}

static void R4_R5_worked_example_line(void **state) {
  (void)state;
  static const struct { const char *family, *line; } lines[] = {
    {"fp32 b1 h24 q512 k512 d128 assume_finite require=fa2,torch.sdpa prefer=fa2",
     "flash_attention_2 (CUDA fp16/bf16 only; torch_sdpa otherwise)"},
    {"fp32 b1 h24 q512 k512 d128 autocast=bf16 assume_finite require=fa2,torch.sdpa prefer=fa2",
     "flash_attention_2 (CUDA only; torch_sdpa otherwise)"},
    {"fp32 b1 h24 q512 k512 d128 assume_finite require=torch.sdpa", "torch_sdpa"}};
  rapt_ctx_opts opts = RAPT_CTX_OPTS_INIT;
  rapt_ctx *c = NULL;
  opts.facts = FACTS;
  opts.flags = RAPT_CTX_NO_ENV;
  opts.max_threads = 1;
  assert_int_equal(rapt_ctx_create(&opts, &c, NULL), RAPT_OK);
  for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
    rapt_problem p = RAPT_PROBLEM_INIT;
    char storage[256], line[256];
    size_t len = 0;
    int undecided = 1;
    assert_int_equal(rapt_problem_parse(lines[i].family, strlen(lines[i].family), &p, storage, sizeof storage, NULL), RAPT_OK);
    assert_int_equal(rapt_line_format(c, &p, NULL, NULL, line, sizeof line, &len, &undecided, NULL), RAPT_OK);
    assert_string_equal(line, lines[i].line);
    assert_int_equal(undecided, 0);
  }
  rapt_ctx_destroy(c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(D8_every_row_of_section_6_exists_once),
    cmocka_unit_test(M15_D15_D28_rows_say_where_they_come_from),
    cmocka_unit_test(D8_aliases_and_the_26_names_of_diffusers),
    cmocka_unit_test(D8_each_string_has_one_meaning),
    cmocka_unit_test(D28_torch_sdpa_has_the_limits_and_bans_of_its_member),
    cmocka_unit_test(D28_mslk_auto_follows_the_order_of_the_rules),
    cmocka_unit_test(D28_sage_auto_goes_by_the_generation),
    cmocka_unit_test(R5_worked_example_explain),
    cmocka_unit_test(R5_worked_example_table),
    cmocka_unit_test(R4_R5_worked_example_line),
  };
  return cmocka_run_group_tests(tests, open_ctx, close_ctx);
}
