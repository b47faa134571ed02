// Copies and fills. Device memory is host memory; bytes that nobody reads are not copied.
#include "simulated_card.h"

// zeros over zeros are not written: an untouched page takes no memory, even when it is read
static int is_zero(const char *p, uint64_t n) { return !*p && !memcmp(p, p + 1, n - 1); }
static void move(char *to, const char *from, uint64_t n) {
  for (uint64_t at = 0, size; at < n; at += size) {
    size = n - at < 4096 ? n - at : 4096;
    if (n <= 4096 || !is_zero(from + at, size) || !is_zero(to + at, size))
      memcpy(to + at, from + at, size);
  }
}
// Known bytes of the card's memory: short copies to it and computed results, by start address. A kernel
// that writes at an address invalidates the bytes of its result. All other bytes read as 0, so that the
// host never takes stale bytes for a count: only the start of a kernel's result is cleared, and the host
// reads the last of many segments at the end.
enum { LONGEST = 4096, STEP = 256, KNOWN = 1 << 16, TRIES = 8 };
static struct {
  char *at; // 0: an empty entry
  uint64_t size;
  uint64_t truths; // number of bytes from here that are all 1
  unsigned listed; // place in the list of entries
} known[KNOWN];
static unsigned list[KNOWN], listed; // entries in use, in any order
static pthread_mutex_t knowing = PTHREAD_MUTEX_INITIALIZER;
static unsigned place(const char *p) { return (uint32_t)((uintptr_t)p >> 2) * 2654435761u >> 16; }
static int found(const char *p) { // index of an address, or -1; needs the lock
  for (unsigned i = place(p), k = 0; p && k < TRIES; k++, i = (i + 1) & (KNOWN - 1))
    if (known[i].at == p)
      return i;
  return -1;
}
static void drop(int i) { // empty an entry in use; needs the lock
  unsigned last = list[--listed];
  list[known[i].listed] = last;
  known[last].listed = known[i].listed;
  known[i].at = 0;
}
static void end_at(const char *p) { // forget bytes from an address on; needs the lock
  int own = found(p);
  if (own >= 0)
    drop(own);
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
      drop(i);
  }
  pthread_mutex_unlock(&knowing);
}
// New memory has no known bytes: what an earlier tensor had there is no count of the new one.
void forget_tensor(const char *p, uint64_t n) {
  pthread_mutex_lock(&knowing);
  end_at(p);
  for (unsigned k = listed; k--;) {
    char *at = known[list[k]].at;
    if (at > p && at < p + n)
      drop(list[k]);
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
  if (known[i].at) { // full: drop the oldest
    i = first;
    drop(i);
  }
  known[i].listed = listed;
  list[listed++] = i;
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
// copies: device memory is host memory. Long copies move only the start: nobody reads the other bytes,
// and the first boolean of a tensor stands for all
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
// a single byte read on a stream with compiled modules is the condition of an XLA loop: return false to
// end the loop. A check of indices by a kernel is true.
static long back(void *t, const void *f, uint64_t n, void *s) {
  if (n == 1 && runs_modules(s)) {
    *(char *)t = are_truths(f, 1);
    forget(f, 1);                        // a later condition at this address ends its loop
  } else if (n > 16 && are_truths(f, n)) // longer than a count of 4 or 8 bytes
    memset(t, 1, n);
  else if (n > LONGEST && n > copy_most && left_of(f)) { // the other bytes there are stale
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
// symbols are globals of registered kernels, without storage
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
