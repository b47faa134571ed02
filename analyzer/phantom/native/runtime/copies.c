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
// What is known of the card's memory: short copies to it and what was computed there, by where they
// begin. A kernel that writes at an address ends what was known there, and as far as its result is told
// to go. All else reads as 0, lest the host takes what lay there before for a count: kernels' results
// are cleared at their start alone, and the last of many segments is read at the end.
enum { LONGEST = 4096, STEP = 256, KNOWN = 1 << 16, TRIES = 8 };
static struct {
  char *at;
  uint64_t size;
  uint64_t truths; // bytes from there on that are all 1, however many
} known[KNOWN];
static pthread_mutex_t knowing = PTHREAD_MUTEX_INITIALIZER;
static unsigned place(const char *p) { return (uint32_t)((uintptr_t)p >> 2) * 2654435761u >> 16; }
static int found(const char *p) { // where an address is noted; -1 for nowhere; with the lock held
  for (unsigned i = place(p), k = 0; k < TRIES; k++, i = (i + 1) & (KNOWN - 1))
    if (known[i].at == p)
      return i;
  return -1;
}
static void end_at(const char *p) { // nothing is known from an address on; with the lock held
  int own = found(p);
  if (own >= 0)
    known[own].at = 0;
  for (char *at = (char *)((uintptr_t)p & ~(uintptr_t)(STEP - 1)), *last = (char *)p - LONGEST;
       at > last; at -= STEP) {
    int i = at == p ? -1 : found(at);
    if (i >= 0 && known[i].size > (uint64_t)(p - at))
      known[i].size = p - at;
  }
}
void forget(const char *p, uint64_t n) {
  pthread_mutex_lock(&knowing);
  end_at(p);
  for (const char *at = p + STEP; at < p + (n < MIB ? n : MIB); at += STEP) {
    int i = found(at);
    if (i >= 0)
      known[i].at = 0;
  }
  pthread_mutex_unlock(&knowing);
}
void know(const char *p, uint64_t n) {
  if (n > LONGEST || !left_of(p)) {
    forget(p, n);
    return;
  }
  pthread_mutex_lock(&knowing);
  end_at(p);
  unsigned first = place(p), i = first;
  for (int k = 0; k < TRIES && known[i].at; k++)
    i = (i + 1) & (KNOWN - 1);
  if (known[i].at)
    i = first; // full there: the oldest goes
  known[i].at = (char *)p;
  known[i].size = n;
  known[i].truths = 0;
  pthread_mutex_unlock(&knowing);
}
void know_truths(char *p, uint64_t n) {
  *p = 1;
  know(p, 1);
  pthread_mutex_lock(&knowing);
  int i = found(p);
  if (i >= 0)
    known[i].truths = n;
  pthread_mutex_unlock(&knowing);
}
static int are_truths(const char *p, uint64_t n) {
  pthread_mutex_lock(&knowing);
  int i = found(p), yes = i >= 0 && n <= known[i].truths;
  pthread_mutex_unlock(&knowing);
  return yes;
}
static int is_known(const char *p, uint64_t n) {
  int yes = 0;
  pthread_mutex_lock(&knowing);
  int i = found(p);
  yes = i >= 0 && n <= known[i].size;
  for (char *at = (char *)((uintptr_t)p & ~(uintptr_t)(STEP - 1)), *last = (char *)p - LONGEST;
       !yes && at > last; at -= STEP) {
    i = found(at);
    yes = i >= 0 && (uint64_t)(p - at) + n <= known[i].size;
  }
  pthread_mutex_unlock(&knowing);
  return yes;
}
// copies: device memory is host memory; of long ones the beginning is moved (the other bytes are never
// looked at, but whether all of a tensor's truths hold is told by its first)
static long copy(void *to, const void *from, uint64_t n, uint64_t limit) {
  if (n > limit) {
    forget(to, n);
    if (!left_of(from) || is_known(from, STEP)) {
      move(to, from, STEP);
      know(to, STEP);
    }
    return OK;
  }
  int is_told = n <= LONGEST && (!left_of(from) || is_known(from, n));
  move(to, from, n);
  if (is_told)
    know(to, n);
  else
    forget(to, n);
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
  else if (n > 16 && are_truths(f, n)) // no count of 4 or 8 bytes that a library wrote there
    memset(t, 1, n);
  else if (n > LONGEST && n > copy_most && left_of(f)) { // what else lies there is older
    memset(t, 0, n);
    if (is_known(f, STEP))
      move(t, f, STEP);
  } else if (n <= LONGEST && left_of(f) && !is_known(f, n))
    memset(t, 0, n);
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
static uint64_t limit_of(int kind) { return kind == 3 ? 65536 : copy_most; }
API(cudaMemcpy)(void *t, const void *f, uint64_t n, int k) {
  return k == 2 ? back(t, f, n, 0) : copy(t, f, n, limit_of(k));
}
API(cudaMemcpyAsync)(void *t, const void *f, uint64_t n, int k, void *s) {
  return k == 2 ? back(t, f, n, s) : copy(t, f, n, limit_of(k));
}
// symbols are registered kernels' globals: no storage
API(cudaMemcpyToSymbol)(const void *s, const void *f, uint64_t n, uint64_t o, int k) { return OK; }
static long fill(void *p, int v, uint64_t n) {
  if (n <= 65536)
    memset(p, v, n);
  know(p, n);
  return OK;
}
static long fill32(uint32_t *p, uint32_t v, uint64_t n) {
  uint32_t *at = p;
  for (uint64_t left = n <= 16384 ? n : 0; left; left--)
    *at++ = v;
  know((char *)p, 4 * n);
  return OK;
}
API(cuMemsetD8_v2)(void *p, unsigned char v, uint64_t n) { return fill(p, v, n); }
API(cuMemsetD8Async)(void *p, unsigned char v, uint64_t n, void *s) { return fill(p, v, n); }
API(cuMemsetD32_v2)(void *p, unsigned v, uint64_t n) { return fill32(p, v, n); }
API(cuMemsetD32Async)(void *p, unsigned v, uint64_t n, void *s) { return fill32(p, v, n); }
API(cudaMemset)(void *p, int v, uint64_t n) { return fill(p, v, n); }
API(cudaMemsetAsync)(void *p, int v, uint64_t n, void *s) { return fill(p, v, n); }
