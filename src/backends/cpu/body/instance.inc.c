/* SPDX-License-Identifier: Apache-2.0 */
/* The tile functions for panels of RAPTI_NV vectors. */
#define RAPTI_PASTE(name, n) name##_##n
#define RAPTI_NAME(name, n) RAPTI_PASTE(name, n)

RAPTI_NOINLINE void RAPTI_NAME(scores, RAPTI_NV)(const float *K, const float *Q, int64_t D, float scale, int64_t tiles,
                                                 float *S, float *mx) {
  scores(RAPTI_NV, K, Q, D, scale, tiles, S, mx);
}
RAPTI_NOINLINE void RAPTI_NAME(limit, RAPTI_NV)(const limits *x, float *S, float *mx) { limit(RAPTI_NV, x, S, mx); }
RAPTI_NOINLINE void RAPTI_NAME(weigh, RAPTI_NV)(rapti_panel *panel, const float *mx, float *S, int64_t keys, float *O,
                                                int64_t columns) {
  weigh(RAPTI_NV, panel, mx, S, keys, O, columns);
}
RAPTI_NOINLINE void RAPTI_NAME(values, RAPTI_NV)(const float *V, int64_t step, const float *P, int64_t keys, float *O,
                                                 int64_t columns) {
  values(RAPTI_NV, V, step, P, keys, O, columns);
}
RAPTI_NOINLINE void RAPTI_NAME(values_isolated, RAPTI_NV)(const limits *x, const float *V, int64_t step, const float *P,
                                                          float *O, int64_t columns) {
  values_isolated(RAPTI_NV, x, V, step, P, O, columns);
}

static const panel_functions RAPTI_NAME(functions, RAPTI_NV) = {
  RAPTI_NAME(scores, RAPTI_NV), RAPTI_NAME(limit, RAPTI_NV), RAPTI_NAME(weigh, RAPTI_NV), RAPTI_NAME(values, RAPTI_NV),
  RAPTI_NAME(values_isolated, RAPTI_NV),
};
#undef RAPTI_NAME
#undef RAPTI_PASTE
#undef RAPTI_NV
