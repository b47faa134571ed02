// Device memory: reserved address space with a byte counter. Capacity is charged in pages of 2 MiB, as
// by the driver. Pinned host memory is host memory. A virtual range is mapped when reserved and charged
// when its physical memory is created.
#include "simulated_card.h"
#include <sys/mman.h>

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Block *blocks;
Block *find(const void *p) {
  for (Block *b = blocks; b; b = b->next)
    if ((char *)p >= b->at && (char *)p < b->at + b->size)
      return b;
  return 0;
}

void *reserve(uint64_t size) {
  void *p = mmap(0, size ? size : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                 -1, 0);
  if (p == MAP_FAILED)
    return 0;
  madvise(p, size ? size : 1, MADV_NOHUGEPAGE); // a written byte costs a page of 4 KiB, not of 2 MiB
  return p;
}
static long take(int d, void **out, uint64_t size, int charge) {
  uint64_t charged = charge ? (size + 2 * MIB - 1) / (2 * MIB) * (2 * MIB) : 0;
  long r = OK;
  pthread_mutex_lock(&lock);
  Card *v = &cards[d];
  void *p = 0;
  if (v->held + v->used + charged > v->room || !(p = reserve(size)))
    r = NO_MEMORY;
  else {
    Block *b = calloc(1, sizeof *b);
    *b = (Block){p, size, charged, d, blocks};
    blocks = b;
    v->used += charged;
    v->calls++;
    if (v->used > v->peak)
      v->peak = v->used;
  }
  *out = r ? 0 : p;
  pthread_mutex_unlock(&lock);
  say(2, "allocate %llu on %d: %s %p", (unsigned long long)size, d, r ? "no memory" : "ok", *out);
  return r;
}
static long give(void *p) {
  if (!p)
    return OK;
  pthread_mutex_lock(&lock);
  long r = INVALID;
  for (Block **q = &blocks; *q; q = &(*q)->next)
    if ((*q)->at == p) {
      Block *b = *q;
      *q = b->next;
      cards[b->card].used -= b->charged;
      say(2, "free %llu on %d", (unsigned long long)b->size, b->card);
      munmap(b->at, b->size ? b->size : 1);
      free(b);
      r = OK;
      break;
    }
  pthread_mutex_unlock(&lock);
  return r;
}
static long info(uint64_t *f, uint64_t *t) {
  Card *d = &cards[current];
  uint64_t rest = d->room - d->held - d->used;
  if (f)
    *f = rest < pool_most ? rest : pool_most;
  if (t)
    *t = d->room;
  return OK;
}
API(cuMemGetInfo_v2)(uint64_t *f, uint64_t *t) { return info(f, t); }
API(cudaMemGetInfo)(uint64_t *f, uint64_t *t) { return info(f, t); }
API(cuMemAlloc_v2)(void **p, uint64_t n) { return take(current, p, n, 1); }
API(cuMemAllocManaged)(void **p, uint64_t n, unsigned f) { return take(current, p, n, 1); }
API(cuMemAllocAsync)(void **p, uint64_t n, void *s) { return take(current, p, n, 1); }
API(cuMemAllocFromPoolAsync)(void **p, uint64_t n, void *pool, void *s) {
  return take(current, p, n, 1);
}
API(cuMemFree_v2)(void *p) { return give(p); }
API(cuMemFreeAsync)(void *p, void *s) { return give(p); }
API(cudaMalloc)(void **p, uint64_t n) { return take(current, p, n, 1); }
API(cudaMallocAsync)(void **p, uint64_t n, void *s) { return take(current, p, n, 1); }
API(cudaMallocManaged)(void **p, uint64_t n, unsigned f) { return take(current, p, n, 1); }
API(cudaFree)(void *p) { return give(p); }
API(cudaFreeAsync)(void *p, void *s) { return give(p); }
API(ncclMemAlloc)(void **p, uint64_t n) { return take(current, p, n, 1); }
API(ncclMemFree)(void *p) { return give(p); }
API(cuMemGetAddressRange_v2)(void **base, uint64_t *n, void *p) {
  pthread_mutex_lock(&lock);
  Block *b = find(p);
  if (b) {
    if (base)
      *base = b->at;
    if (n)
      *n = b->size;
  }
  pthread_mutex_unlock(&lock);
  return b ? OK : INVALID;
}
// pinned host memory is host memory
static Block *pinned;
static long host(void **p, uint64_t n) {
  *p = reserve(n);
  if (!*p)
    return NO_MEMORY;
  Block *b = calloc(1, sizeof *b);
  pthread_mutex_lock(&lock);
  *b = (Block){*p, n, 0, 0, pinned};
  pinned = b;
  pthread_mutex_unlock(&lock);
  say(2, "host %llu", (unsigned long long)n);
  return OK;
}
static long unhost(void *p) {
  pthread_mutex_lock(&lock);
  for (Block **q = &pinned; *q; q = &(*q)->next)
    if ((*q)->at == p) {
      Block *b = *q;
      *q = b->next;
      munmap(b->at, b->size ? b->size : 1);
      free(b);
      break;
    }
  pthread_mutex_unlock(&lock);
  return OK;
}
uint64_t left_of_pinned(const char *p) {
  uint64_t left = 0;
  pthread_mutex_lock(&lock);
  for (Block *b = pinned; b && !left; b = b->next)
    if (p >= b->at && p < b->at + b->size)
      left = b->at + b->size - p;
  pthread_mutex_unlock(&lock);
  return left;
}
API(cuMemHostAlloc)(void **p, uint64_t n, unsigned f) { return host(p, n); }
API(cuMemAllocHost_v2)(void **p, uint64_t n) { return host(p, n); }
API(cuMemFreeHost)(void *p) { return unhost(p); }
API(cudaMallocHost)(void **p, uint64_t n) { return host(p, n); }
API(cudaHostAlloc)(void **p, uint64_t n, unsigned f) { return host(p, n); }
API(cudaFreeHost)(void *p) { return unhost(p); }
API(cuMemHostRegister_v2)(void *p, uint64_t n, unsigned f) { return OK; }
API(cuMemHostUnregister)(void *p) { return OK; }
API(cuMemHostGetDevicePointer_v2)(void **d, void *h, unsigned f) {
  *d = h;
  return OK;
}
API(cuMemHostGetFlags)(unsigned *f, void *p) {
  *f = 0;
  return find(p) ? INVALID : OK;
}
API(cudaHostGetFlags)(unsigned *f, void *p) {
  *f = 0;
  return find(p) ? INVALID : OK;
}
API(cudaHostGetDevicePointer)(void **d, void *h, unsigned f) {
  *d = h;
  return OK;
}
// virtual memory: mapped when reserved, charged by cuMemCreate
typedef struct {
  uint64_t size, charged;
  int device;
} Physical;
API(cuMemAddressReserve)(void **p, uint64_t n, uint64_t align, void *at, uint64_t f) {
  return take(current, p, n, 0);
}
API(cuMemAddressFree)(void *p, uint64_t n) { return give(p); }
API(cuMemGetAllocationGranularity)(uint64_t *g, const void *prop, int option) {
  *g = 2 * MIB;
  return OK;
}
API(cuMemCreate)(Physical **h, uint64_t n, const void *prop, uint64_t f) {
  int d = ((const int *)prop)[3];
  if (d < 0 || d >= card_count)
    d = current;
  pthread_mutex_lock(&lock);
  Card *v = &cards[d];
  long r = v->held + v->used + n > v->room ? NO_MEMORY : OK;
  if (!r) {
    *h = calloc(1, sizeof **h);
    **h = (Physical){n, n, d};
    v->used += n;
    v->calls++;
    if (v->used > v->peak)
      v->peak = v->used;
  }
  pthread_mutex_unlock(&lock);
  say(2, "create %llu on %d: %s", (unsigned long long)n, d, r ? "no memory" : "ok");
  return r;
}
API(cuMemRelease)(Physical *h) {
  pthread_mutex_lock(&lock);
  cards[h->device].used -= h->charged;
  h->charged = 0;
  pthread_mutex_unlock(&lock);
  return OK;
}
API(cuMemRetainAllocationHandle)(Physical **h, void *p) {
  static Physical none;
  *h = &none;
  return OK;
}
API(cuMemExportToShareableHandle)(void *out, void *h, int type, uint64_t f) { return NOT_SUPPORTED; }
API(cuDeviceGetDefaultMemPool)(void **p, int d) {
  *p = handle_block;
  return OK;
}
API(cuDeviceGetMemPool)(void **p, int d) {
  *p = handle_block;
  return OK;
}
API(cuMemPoolGetAttribute)(void *p, int a, uint64_t *v) {
  *v = 0;
  return OK;
}
// CUpointer_attribute: 1 context, 2 memory type, 3 device pointer, 4 host pointer, 8 managed, 9 device,
// 11 start, 12 size
static long pointer(void *out, int attribute, void *p) {
  pthread_mutex_lock(&lock);
  Block *b = find(p);
  Block v = b ? *b : (Block){0};
  pthread_mutex_unlock(&lock);
  switch (attribute) {
  case 1:
    if (!b)
      return INVALID;
    *(void **)out = &cards[v.card];
    return OK;
  case 2:
    *(int *)out = b ? 2 : 1;
    return b ? OK : INVALID;
  case 3:
    *(void **)out = p;
    return OK;
  case 4:
    *(void **)out = p;
    return b ? INVALID : OK;
  case 8:
    *(int *)out = 0;
    return OK;
  case 9:
    *(int *)out = v.card;
    return b ? OK : INVALID;
  case 11:
    *(void **)out = v.at;
    return b ? OK : INVALID;
  case 12:
    *(uint64_t *)out = v.size;
    return b ? OK : INVALID;
  }
  return INVALID;
}
API(cuPointerGetAttribute)(void *out, int a, void *p) { return pointer(out, a, p); }
API(cudaPointerGetAttributes)(int *a, void *p) { // type, device, device pointer, host pointer
  pthread_mutex_lock(&lock);
  Block *b = find(p);
  a[0] = b ? 2 : 0;
  a[1] = b ? b->card : -1;
  ((void **)a)[1] = b ? p : 0;
  ((void **)a)[2] = b ? 0 : p;
  pthread_mutex_unlock(&lock);
  return OK;
}
