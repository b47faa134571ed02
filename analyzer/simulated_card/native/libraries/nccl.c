// NCCL: communicators know their size and rank; collectives do nothing.
#include "../runtime/simulated_card.h"

typedef struct {
  int size, rank, device;
} Comm;
static Comm *comm(int size, int rank) {
  Comm *c = calloc(1, 4096);
  *c = (Comm){size, rank, current};
  return c;
}
API(ncclGetVersion)(int *v) {
  *v = 22505;
  return OK;
}
API(ncclGetErrorString)(int e) { return (long)"simulated_card NCCL"; }
API(ncclGetLastError)(void *c) { return (long)"simulated_card NCCL"; }
API(ncclGetUniqueId)(char *id) {
  memset(id, 7, 128);
  return OK;
}
typedef struct {
  char bytes[128];
} UniqueId;
API(ncclCommInitRank)(Comm **c, int n, UniqueId id, int rank) {
  *c = comm(n, rank);
  return OK;
}
API(ncclCommInitRankConfig)(Comm **c, int n, UniqueId id, int rank, void *config) {
  *c = comm(n, rank);
  return OK;
}
API(ncclCommInitAll)(Comm **c, int n, const int *list) {
  for (int i = 0; i < n; i++) {
    c[i] = comm(n, i);
    c[i]->device = list ? list[i] : i;
  }
  return OK;
}
API(ncclCommSplit)(Comm *c, int color, int key, Comm **out, void *config) {
  *out = comm(c->size, c->rank);
  return OK;
}
API(ncclCommCount)(Comm *c, int *n) {
  *n = c->size;
  return OK;
}
API(ncclCommUserRank)(Comm *c, int *n) {
  *n = c->rank;
  return OK;
}
API(ncclCommCuDevice)(Comm *c, int *n) {
  *n = c->device;
  return OK;
}
API(ncclCommGetAsyncError)(Comm *c, int *e) {
  *e = 0;
  return OK;
}
API(ncclCommDestroy)(Comm *c) {
  free(c);
  return OK;
}
API(ncclCommAbort)(Comm *c) {
  free(c);
  return OK;
}
