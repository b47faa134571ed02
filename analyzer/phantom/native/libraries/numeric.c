// cuFFT, cuSOLVER and cuSPARSE: all reported sizes are 0 or small (assumed).
#include "../runtime/phantom.h"

API(cufftCreate)(int *p) {
  *p = 1;
  return OK;
}
API(cufftMakePlan1d)(int p, int n, int t, int b, uint64_t *w) {
  *w = 0;
  return OK;
}
API(cufftMakePlan2d)(int p, int n, int m, int t, uint64_t *w) {
  *w = 0;
  return OK;
}
API(cufftMakePlan3d)(int p, int n, int m, int l, int t, uint64_t *w) {
  *w = 0;
  return OK;
}
API(cufftMakePlanMany)(int p, int rank, int *n, int *ie, int is, int id, int *oe, int os, int od,
                       int type, int batch, uint64_t *w) {
  *w = 0;
  return OK;
}
API(cufftGetSize)(int p, uint64_t *w) {
  *w = 0;
  return OK;
}
API(cufftGetVersion)(int *v) {
  *v = 11203;
  return OK;
}
API(cufftGetProperty)(int p, int *v) {
  *v = p == 0 ? 11 : p == 1 ? 2 : 3;
  return OK;
}
API(cusolverGetVersion)(int *v) {
  *v = 11603;
  return OK;
}
API(cusolverGetProperty)(int p, int *v) {
  *v = p == 0 ? 11 : p == 1 ? 6 : 3;
  return OK;
}
API(cusparseGetVersion)(void *h, int *v) {
  *v = 12501;
  return OK;
}
API(cusparseGetErrorString)(int e) { return (long)"phantom cuSPARSE"; }
API(cusparseGetErrorName)(int e) { return (long)"CUSPARSE_STATUS"; }
