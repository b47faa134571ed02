// cuFFT, cuSOLVER and cuSPARSE: all reported sizes are 0 or small (assumed).
#include "../runtime/simulated_card.h"

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
// Factorizations: workspaces have 0 elements, because the real sizes are not published, and each status
// reads as 0. ``size`` and ``info`` are the pointers to them.
#define SIZE(name, ...) \
  API(name)(__VA_ARGS__) { \
    *size = 0; \
    return OK; \
  }
#define STATUS(name, ...) \
  API(name)(__VA_ARGS__) { \
    forget(info, 4); \
    return OK; \
  }
#define STATUSES(name, ...) \
  API(name)(__VA_ARGS__) { \
    forget(info, 4ull * batch); \
    return OK; \
  }
#define OF_REAL(WRITE, library, routine, ...) \
  WRITE(library##S##routine, __VA_ARGS__) WRITE(library##D##routine, __VA_ARGS__)
#define OF_COMPLEX(WRITE, library, routine, ...) \
  WRITE(library##C##routine, __VA_ARGS__) WRITE(library##Z##routine, __VA_ARGS__)
#define OF_ALL(WRITE, ...) OF_REAL(WRITE, __VA_ARGS__) OF_COMPLEX(WRITE, __VA_ARGS__)

OF_ALL(SIZE, cusolverDn, potrf_bufferSize, void *h, int uplo, int n, void *a, int lda, int *size)
OF_ALL(STATUS, cusolverDn, potrf, void *h, int uplo, int n, void *a, int lda, void *work, int
       length, void *info)
OF_ALL(STATUSES, cusolverDn, potrfBatched, void *h, int uplo, int n, void *a, int lda, void *info,
       int batch)
OF_ALL(SIZE, cusolverDn, getrf_bufferSize, void *h, int m, int n, void *a, int lda, int *size)
OF_ALL(STATUS, cusolverDn, getrf, void *h, int m, int n, void *a, int lda, void *work, void *pivots,
       void *info)
OF_ALL(STATUS, cusolverDn, getrs, void *h, int trans, int n, int columns, void *a, int lda, void
       *pivots, void *b, int ldb, void *info)
OF_ALL(STATUSES, cublas, getrfBatched, void *h, int n, void *a, int lda, void *pivots, void *info,
       int batch)
OF_ALL(STATUSES, cublas, getriBatched, void *h, int n, void *a, int lda, void *pivots, void *c, int
       ldc, void *info, int batch)
OF_ALL(STATUSES, cublas, matinvBatched, void *h, int n, void *a, int lda, void *inverse, int ldi,
       void *info, int batch)
OF_ALL(SIZE, cusolverDn, gesvd_bufferSize, void *h, int m, int n, int *size)
OF_ALL(STATUS, cusolverDn, gesvd, void *h, int left, int right, int m, int n, void *a, int lda, void
       *s, void *u, int ldu, void *v, int ldv, void *work, int length, void *more, void *info)
OF_ALL(SIZE, cusolverDn, gesvdjBatched_bufferSize, void *h, int vectors, int m, int n, void *a, int
       lda, void *s, void *u, int ldu, void *v, int ldv, int *size, void *options, int batch)
OF_ALL(STATUSES, cusolverDn, gesvdjBatched, void *h, int vectors, int m, int n, void *a, int lda,
       void *s, void *u, int ldu, void *v, int ldv, void *work, int length, void *info, void
       *options, int batch)
OF_REAL(SIZE, cusolverDn, syevd_bufferSize, void *h, int vectors, int uplo, int n, void *a, int lda,
        void *w, int *size)
OF_COMPLEX(SIZE, cusolverDn, heevd_bufferSize, void *h, int vectors, int uplo, int n, void *a, int
           lda, void *w, int *size)
OF_REAL(STATUS, cusolverDn, syevd, void *h, int vectors, int uplo, int n, void *a, int lda, void *w,
        void *work, int length, void *info)
OF_COMPLEX(STATUS, cusolverDn, heevd, void *h, int vectors, int uplo, int n, void *a, int lda, void
           *w, void *work, int length, void *info)

API(cusparseGetVersion)(void *h, int *v) {
  *v = 12501;
  return OK;
}
API(cusparseGetErrorString)(int e) { return (long)"simulated_card cuSPARSE"; }
API(cusparseGetErrorName)(int e) { return (long)"CUSPARSE_STATUS"; }
