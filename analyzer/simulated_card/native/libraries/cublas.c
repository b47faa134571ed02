// cuBLAS and cuBLASLt: descriptors keep their attributes; there is one algorithm, with the assumed
// workspace.
#include "../runtime/simulated_card.h"

API(cublasGetVersion_v2)(void *h, int *v) {
  *v = 120503;
  return OK;
}
API(cublasGetProperty)(int p, int *v) {
  *v = p == 0 ? 12 : p == 1 ? 5 : 3;
  return OK;
}
API(cublasLtGetVersion)(void) { return 120503; }
API(cublasLtGetCudartVersion)(void) { return 12050; }
API(cublasGetStatusName)(int e) { return (long)"CUBLAS_STATUS"; }
API(cublasGetStatusString)(int e) { return (long)"simulated_card cuBLAS"; }
API(cublasLtGetStatusName)(int e) { return (long)"CUBLAS_STATUS"; }
API(cublasLtGetStatusString)(int e) { return (long)"simulated_card cuBLAS"; }
typedef struct {
  int n;
  struct {
    int key, size;
    char value[64];
  } a[48];
} Bag; // a descriptor: its attributes
static void bag_put(Bag *b, int key, const void *v, uint64_t size) {
  int i = 0;
  while (i < b->n && b->a[i].key != key)
    i++;
  if (i >= 48 || size > 64)
    return;
  if (i == b->n)
    b->n++;
  b->a[i].key = key;
  b->a[i].size = size;
  memcpy(b->a[i].value, v, size);
}
static long bag_get(Bag *b, int key, void *v, uint64_t size, uint64_t *written) {
  if (v)
    memset(v, 0, size);
  for (int i = 0; i < b->n; i++)
    if (b->a[i].key == key) {
      if (v)
        memcpy(v, b->a[i].value, size < (uint64_t)b->a[i].size ? size : b->a[i].size);
      if (written)
        *written = b->a[i].size;
      return OK;
    }
  if (written)
    *written = size;
  return OK;
}
API(cublasLtMatrixLayoutCreate)(Bag **p, int type, uint64_t rows, uint64_t cols, int64_t ld) {
  Bag *b = *p = calloc(1, sizeof *b);
  int order = 0, batch = 1;
  int64_t stride = 0;
  bag_put(b, 0, &type, 4);
  bag_put(b, 1, &order, 4);
  bag_put(b, 2, &rows, 8);
  bag_put(b, 3, &cols, 8);
  bag_put(b, 4, &ld, 8);
  bag_put(b, 5, &batch, 4);
  bag_put(b, 6, &stride, 8);
  return OK;
}
API(cublasLtMatmulDescCreate)(Bag **p, int compute, int scale) {
  Bag *b = *p = calloc(1, sizeof *b);
  int epilogue = 1;
  bag_put(b, 0, &compute, 4);
  bag_put(b, 1, &scale, 4);
  bag_put(b, 7, &epilogue, 4);
  return OK;
}
API(cublasLtMatmulPreferenceCreate)(Bag **p) {
  *p = calloc(1, sizeof **p);
  return OK;
}
API(cublasLtMatrixLayoutDestroy)(Bag *b) {
  free(b);
  return OK;
}
API(cublasLtMatmulDescDestroy)(Bag *b) {
  free(b);
  return OK;
}
API(cublasLtMatmulPreferenceDestroy)(Bag *b) {
  free(b);
  return OK;
}
API(cublasLtMatrixLayoutSetAttribute)(Bag *b, int k, const void *v, uint64_t n) {
  bag_put(b, k, v, n);
  return OK;
}
API(cublasLtMatmulDescSetAttribute)(Bag *b, int k, const void *v, uint64_t n) {
  bag_put(b, k, v, n);
  return OK;
}
API(cublasLtMatmulPreferenceSetAttribute)(Bag *b, int k, const void *v, uint64_t n) {
  bag_put(b, k, v, n);
  return OK;
}
API(cublasLtMatrixLayoutGetAttribute)(Bag *b, int k, void *v, uint64_t n, uint64_t *w) {
  return bag_get(b, k, v, n, w);
}
API(cublasLtMatmulDescGetAttribute)(Bag *b, int k, void *v, uint64_t n, uint64_t *w) {
  return bag_get(b, k, v, n, w);
}
API(cublasLtMatmulPreferenceGetAttribute)(Bag *b, int k, void *v, uint64_t n, uint64_t *w) {
  return bag_get(b, k, v, n, w);
}
// one algorithm, with the assumed workspace
API(cublasLtMatmulAlgoGetHeuristic)(void *h, void *op, void *a, void *b, void *c, void *d, void *pref,
                                    int want, char *results, int *got) {
  if (want > 0) {
    memset(results, 0, 96);
    put(results, 64, &product_workspace, 8);
  }
  *got = want > 0;
  return OK;
}
API(cublasGetMathMode)(void *h, int *m) {
  *m = 0;
  return OK;
}
API(cublasGetPointerMode_v2)(void *h, int *m) {
  *m = 0;
  return OK;
}
API(cublasGetStream_v2)(void *h, void **s) {
  *s = 0;
  return OK;
}
