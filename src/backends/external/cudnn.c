/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of cuDNN's attention graphs that go by version and generation (docs/backends.md section 9). */
#include "backends/external/ext.h"

static rapti_tri before(const rapti_ext *e, int major, int minor, int patch) {
  return rapti_ext_before(e->facts, "cudnn", RAPTI_VER(major, minor, patch));
}

static rapti_tri generation(const rapti_ext *e, int major) {
  return rapti_ext_cc_in(e->facts, RAPTI_CC(major, 0), RAPTI_CC(major, 255));
}

/* Bottom-right causal that is not top-left in disguise; one row sees all keys and is sent without a mask (D24). */
static bool real_bottom_right(const rapt_problem *p) {
  return rapti_ext_causal(p) && p->alignment == RAPT_BOTTOM_RIGHT && !rapti_ext_square(p) && (p->cu || p->Sq > 1);
}

/* ---- half: widths ---- */

static void half_forward_dims(rapti_ext *e) {
  const rapt_problem *p = e->p;
  int64_t wide = p->D > p->Dv ? p->D : p->Dv;
  int cc = rapti_ext_cc(e->facts), major = cc < 0 ? -1 : cc >> 8;
  if (wide <= 128) return;
  if (wide > 256 || major < 0) {
    rapti_tri over = wide > 256 ? RAPTI_YES : RAPTI_OPEN;
    rapti_ext_dims(e, p->D > 128 ? over : RAPTI_NO, p->Dv > 128 ? over : RAPTI_NO, "cc", "at most 256");
    return;
  }
  if (major == 9) return;
  rapti_tri old = major == 8 ? before(e, 9, 10, 0) : major == 10 ? before(e, 9, 9, 0) : RAPTI_NO;
  rapti_ext_dims(e, p->D > 128 ? old : RAPTI_NO, p->Dv > 128 ? old : RAPTI_NO, "cudnn", "at most 128");
  if (old == RAPTI_NO) rapti_ext_unknown(e, RAPT_FIELD_Q, "D above 128 on this generation");
}

static void half_backward_dims(rapti_ext *e) {
  const rapt_problem *p = e->p;
  if (p->D <= 128 && p->Dv <= 128) return;
  rapti_tri nine = rapti_tri_and(generation(e, 9), rapti_tri_of(p->D <= 256 && p->Dv <= 256));
  rapti_tri ten = rapti_tri_and(generation(e, 10), rapti_tri_not(before(e, 9, 11, 0)));
  rapti_tri mla = rapti_tri_and(ten, rapti_tri_of(p->D == 192));
  rapti_tri head = rapti_tri_or(rapti_tri_of(p->D <= 128), rapti_tri_or(nine, mla));
  rapti_tri value = rapti_tri_or(rapti_tri_of(p->Dv <= 128 && (p->D <= 128 || p->Dv == 128)), nine);
  rapti_ext_dims(e, rapti_tri_not(head), rapti_tri_not(value), "cc, cudnn",
                 "a backward: at most 128; 256 on cc 9; (192,128) on cc 10 from cuDNN 9.11");
}

/* ---- half: masks ---- */

static void half_bottom_right(rapti_ext *e) {
  const rapt_problem *p = e->p;
  if (!real_bottom_right(p)) return;
  bool padded = p->cu || p->kv_len;
  const char *with = p->bias.dtype || p->mask.dtype ? "br with bias"
                     : p->dropout > 0               ? "br with dropout"
                     : p->Sq > p->Skv && !padded    ? "br with Sq above Skv"
                                                    : NULL;
  if (with) rapti_ext_fail(e, RAPT_CODE_ALIGNMENT, RAPT_FIELD_ALIGN, with, "tl");
  rapti_ext_if(e, rapti_tri_and(rapti_tri_of(p->Sq % 64 || p->Skv % 64), before(e, 9, 6, 0)), "cudnn",
               RAPT_CODE_ALIGNMENT, RAPT_FIELD_ALIGN, "br with sizes that are no multiple of 64", "cudnn >=9.6");
}

static void half_window(rapti_ext *e) {
  const rapt_problem *p = e->p;
  if (!rapti_ext_window(p)) return;
  bool padded = p->cu || p->kv_len, causal = rapti_ext_causal(p) || p->window[1] == 0;
  if (p->Sq > p->Skv && !padded)
    rapti_ext_fail(e, RAPT_CODE_WINDOW, RAPT_FIELD_WINDOW, "used with Sq above Skv", "Sq up to Skv, or lengths");
  bool plain = causal && !p->bias.dtype && !p->mask.dtype && !(p->dropout > 0);
  rapti_ext_if(e, rapti_tri_and(rapti_tri_of(!plain), before(e, 9, 10, 2)), "cudnn", RAPT_CODE_WINDOW,
               RAPT_FIELD_WINDOW, "open to the right, or with bias or dropout", "cudnn >=9.10.2");
  rapti_ext_if(e, rapti_tri_and(rapti_tri_of(p->Sq != p->Skv), before(e, 9, 6, 0)), "cudnn", RAPT_CODE_WINDOW,
               RAPT_FIELD_WINDOW, "used with Sq and Skv that differ", "cudnn >=9.6");
  if (p->Sq == 1 && p->window[1] >= 0)
    rapti_ext_if(e, before(e, 9, 10, 0), "cudnn", RAPT_CODE_WINDOW, RAPT_FIELD_WINDOW, "one with a right bound, for one query row",
                 "cudnn >=9.10");
  rapti_tri bad = rapti_tri_and(rapti_tri_not(before(e, 9, 14, 0)), before(e, 9, 14, 1));
  rapti_ext_if(e, rapti_tri_and(rapti_tri_of(!causal && p->Skv > 1024), bad), "cudnn", RAPT_CODE_KNOWN_BAD,
               RAPT_FIELD_BACKEND, "cudnn 9.14.0", "a window that is not causal, over 1024 keys");
}

static void half_extras(rapti_ext *e) {
  const rapt_problem *p = e->p;
  if (p->bias.dtype && p->bias.size[3] == 1 && p->Skv > 1)
    rapti_ext_fail(e, RAPT_CODE_BROADCAST, RAPT_FIELD_BIAS, "a key axis of 1", "all keys");
  if (p->mask.dtype && p->mask.size[3] == 1 && p->Skv > 1)
    rapti_ext_fail(e, RAPT_CODE_BROADCAST, RAPT_FIELD_MASK, "a key axis of 1", "all keys");
  /* M19's values only below a top-left diagonal (H11). */
  bool corner = rapti_ext_causal(p) && (rapti_ext_square(p) || p->alignment == RAPT_TOP_LEFT);
  if (p->slopes.dtype && !corner)
    rapti_ext_fail(e, RAPT_CODE_ALIBI, RAPT_FIELD_SLOPES, "given with another mask than top-left causal", "causal=tl");
  if (p->sinks.dtype && p->Sq == 1 && !p->cu)
    rapti_ext_fail(e, RAPT_CODE_SINK, RAPT_FIELD_SINKS, "given for one query row", "more rows");
  if (p->dropout >= 1) rapti_ext_fail(e, RAPT_CODE_DROPOUT, RAPT_FIELD_DROPOUT, "1", "less than 1");
  if (p->cu)
    rapti_ext_if(e, rapti_tri_and(generation(e, 8), before(e, 9, 18, 1)), "cc, cudnn", RAPT_CODE_PACKED,
                 RAPT_FIELD_PACKED, "packed on cc 8", "cudnn >=9.18.1");
}

void rapti_ext_cudnn_half(rapti_ext *e) {
  const rapt_problem *p = e->p;
  half_forward_dims(e);
  half_bottom_right(e);
  half_window(e);
  half_extras(e);
  if (!rapti_ext_grads(p)) return;
  half_backward_dims(e);
  if (p->Sq == 1 && p->Skv == 1 && !p->cu)
    rapti_ext_fail_int(e, RAPT_CODE_SIZE, RAPT_FIELD_SQ, 1, "Sq or Skv above 1 for a backward");
  if (p->Skv % 128 && !p->cu && !p->kv_len)
    rapti_ext_if(e, before(e, 9, 15, 1), "cudnn", RAPT_CODE_KNOWN_BAD, RAPT_FIELD_BACKEND, "cudnn up to 9.15.0",
                 "a backward with Skv no multiple of 128 and no lengths");
}

/* ---- fp8 ---- */

void rapti_ext_cudnn_fp8(rapti_ext *e) {
  const rapt_problem *p = e->p;
  rapti_tri nine = generation(e, 9), ten = generation(e, 10);
  if (p->D > 128 || p->Dv > 128) {
    rapti_tri mla = rapti_tri_and(rapti_tri_of(p->D == 192 && p->Dv == 128),
                                  rapti_tri_and(ten, rapti_tri_not(before(e, 9, 19, 0))));
    rapti_tri wide = rapti_tri_and(nine, rapti_tri_of(p->D <= 256 && p->Dv <= 256 && !rapti_ext_grads(p)));
    rapti_tri good = rapti_tri_or(mla, wide);
    rapti_ext_dims(e, p->D > 128 ? rapti_tri_not(good) : RAPTI_NO, p->Dv > 128 ? rapti_tri_not(good) : RAPTI_NO,
                   "cc, cudnn", "at most 128; 256 on cc 9; (192,128) on cc 10 from cuDNN 9.19");
  } else if (rapti_ext_grads(p)) {
    rapti_ext_dims(e, rapti_tri_and(nine, rapti_tri_of(p->D != 128)), rapti_tri_and(nine, rapti_tri_of(p->Dv != 128)),
                   "cc", "128 for a backward on cc 9");
  }
  if (real_bottom_right(p))
    rapti_ext_if(e, rapti_tri_not(rapti_tri_and(ten, rapti_tri_not(before(e, 9, 7, 0)))), "cc, cudnn",
                 RAPT_CODE_ALIGNMENT, RAPT_FIELD_ALIGN, "br", "tl; br on cc 10 from cuDNN 9.7");
}

/* ---- unified ---- */

void rapti_ext_cudnn_unified(rapti_ext *e) {
  const rapt_problem *p = e->p;
  const rapti_tri old = before(e, 9, 21, 0);
  const char *want = "cudnn >=9.21";
  if (p->bias.dtype) rapti_ext_if(e, old, "cudnn", RAPT_CODE_BIAS, RAPT_FIELD_BIAS, "given to a cuDNN before 9.21", want);
  if (rapti_ext_causal(p)) rapti_ext_if(e, old, "cudnn", RAPT_CODE_ALIGNMENT, RAPT_FIELD_ALIGN, "given to a cuDNN before 9.21", want);
  if (rapti_ext_window(p)) rapti_ext_if(e, old, "cudnn", RAPT_CODE_WINDOW, RAPT_FIELD_WINDOW, "given to a cuDNN before 9.21", want);
  if (p->sinks.dtype) rapti_ext_if(e, old, "cudnn", RAPT_CODE_SINK, RAPT_FIELD_SINKS, "given to a cuDNN before 9.21", want);
  if (p->q_len || p->kv_len)
    rapti_ext_if(e, before(e, 9, 15, 0), "cudnn", RAPT_CODE_LENGTHS, p->kv_len ? RAPT_FIELD_KV_LEN : RAPT_FIELD_Q_LEN,
                 "given to a cuDNN before 9.15", "cudnn >=9.15");
  if (!(p->dropout > 0)) return;
  rapti_ext_if(e, before(e, 9, 22, 0), "cudnn", RAPT_CODE_DROPOUT, RAPT_FIELD_DROPOUT, "used with a cuDNN before 9.22",
               "cudnn >=9.22");
  if (p->flags & RAPT_WANT_LSE) rapti_ext_fail(e, RAPT_CODE_LSE, RAPT_FIELD_LSE, "asked for with dropout", "one of the two");
}
