// Copies and fills. Device memory is host memory; what nobody looks at is left out.
#include "phantom.h"

// zeros over zeros are not written: a page that nobody wrote takes no memory, and reading it none either
static int is_zero(const char *p, uint64_t n) { return !*p && !memcmp(p, p + 1, n - 1); }
static void move(char *to, const char *from, uint64_t n) {
  for (uint64_t at = 0, size; at < n; at += size) {
    size = n - at < 4096 ? n - at : 4096;
    if (n <= 4096 || !is_zero(from + at, size) || !is_zero(to + at, size))
      memcpy(to + at, from + at, size);
  }
}
// copies: device memory is host memory; long ones are left out (the bytes are never looked at)
static long copy(void *to, const void *from, uint64_t n, uint64_t limit) {
  if (n <= limit)
    move(to, from, n);
  return OK;
}
API(cuMemcpyHtoD_v2)(void *t, const void *f, uint64_t n) { return copy(t, f, n, copy_most); }
API(cuMemcpyHtoDAsync_v2)(void *t, const void *f, uint64_t n, void *s) {
  return copy(t, f, n, copy_most);
}
// one byte read back on a stream that runs compiled modules is the condition of an XLA loop: false, so
// that the loop ends
static long back(void *t, const void *f, uint64_t n, void *s) {
  if (n == 1 && runs_modules(s))
    *(char *)t = 0;
  else
    move(t, f, n);
  return OK;
}
API(cuMemcpyDtoH_v2)(void *t, const void *f, uint64_t n) { return back(t, f, n, 0); }
API(cuMemcpyDtoHAsync_v2)(void *t, const void *f, uint64_t n, void *s) { return back(t, f, n, s); }
API(cuMemcpyDtoD_v2)(void *t, const void *f, uint64_t n) { return copy(t, f, n, 65536); }
API(cuMemcpyDtoDAsync_v2)(void *t, const void *f, uint64_t n, void *s) { return copy(t, f, n, 65536); }
API(cuMemcpy)(void *t, const void *f, uint64_t n) { return copy(t, f, n, copy_most); }
API(cuMemcpyAsync)(void *t, const void *f, uint64_t n, void *s) { return copy(t, f, n, copy_most); }
API(cuMemcpyPeer)(void *t, void *tc, const void *f, void *fc, uint64_t n) {
  return copy(t, f, n, 65536);
}
API(cuMemcpyPeerAsync)(void *t, void *tc, const void *f, void *fc, uint64_t n, void *s) {
  return copy(t, f, n, 65536);
}
static uint64_t limit_of(int kind) { return kind == 3 ? 65536 : kind == 2 ? ~0ull : copy_most; }
API(cudaMemcpy)(void *t, const void *f, uint64_t n, int k) { return copy(t, f, n, limit_of(k)); }
API(cudaMemcpyAsync)(void *t, const void *f, uint64_t n, int k, void *s) {
  return copy(t, f, n, limit_of(k));
}
// symbols are registered kernels' globals: no storage
API(cudaMemcpyToSymbol)(const void *s, const void *f, uint64_t n, uint64_t o, int k) { return OK; }
static long fill(void *p, int v, uint64_t n) {
  if (n <= 65536)
    memset(p, v, n);
  return OK;
}
static long fill32(uint32_t *p, uint32_t v, uint64_t n) {
  if (n <= 16384)
    while (n--)
      *p++ = v;
  return OK;
}
API(cuMemsetD8_v2)(void *p, unsigned char v, uint64_t n) { return fill(p, v, n); }
API(cuMemsetD8Async)(void *p, unsigned char v, uint64_t n, void *s) { return fill(p, v, n); }
API(cuMemsetD32_v2)(void *p, unsigned v, uint64_t n) { return fill32(p, v, n); }
API(cuMemsetD32Async)(void *p, unsigned v, uint64_t n, void *s) { return fill32(p, v, n); }
API(cudaMemset)(void *p, int v, uint64_t n) { return fill(p, v, n); }
API(cudaMemsetAsync)(void *p, int v, uint64_t n, void *s) { return fill(p, v, n); }
