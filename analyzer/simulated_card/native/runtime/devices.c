// Cards, contexts, attributes and error texts of the driver and the runtime.
#include "simulated_card.h"

static long attribute(int *v, int a, int i) {
  if (i < 0 || i >= card_count)
    return INVALID;
  const Card *m = &cards[i];
  switch (a) {
  case 1:
  case 2:
  case 3:
    *v = 1024;
    break;
  case 4:
    *v = 64;
    break;
  case 5:
    *v = 2147483647;
    break;
  case 6:
  case 7:
    *v = 65535;
    break;
  case 8:
    *v = 49152;
    break;
  case 9:
    *v = 65536;
    break;
  case 10:
    *v = 32;
    break;
  case 11:
    *v = 2147483647;
    break;
  case 12:
  case 82:
    *v = 65536;
    break;
  case 13:
    *v = m->clock_khz;
    break;
  case 14:
    *v = 512;
    break;
  case 16:
    *v = m->sms;
    break;
  case 33:
    *v = i + 1;
    break;
  case 34:
    *v = 0;
    break;
  case 36:
    *v = m->memory_khz;
    break;
  case 37:
    *v = m->bus_bits;
    break;
  case 38:
    *v = m->l2_kib * 1024;
    break;
  case 39:
    *v = m->threads;
    break;
  case 40:
    *v = 3;
    break;
  case 75:
    *v = m->major;
    break;
  case 76:
    *v = m->minor;
    break;
  case 81:
    *v = m->shared_kib * 1024;
    break;
  case 87:
    *v = 32;
    break;
  case 97:
    *v = m->optin_kib * 1024;
    break;
  case 106:
    *v = m->blocks;
    break;
  case 111:
    *v = m->major >= 8 ? 1024 : 0;
    break;
  case 15:
  case 19:
  case 31:
  case 32:
  case 41:
  case 78:
  case 79:
  case 80:
  case 83:
  case 89:
  case 90:
  case 95:
  case 99:
  case 102:
  case 115:
    *v = 1;
    break;
  case 120:
    *v = m->major >= 9;
    break;
  default:
    *v = 0;
  }
  return OK;
}
__thread int current;
__thread Card *context;
API(cuGetExportTable)(const void **t, const void *id) {
  *t = 0;
  return NOT_FOUND;
}
API(cuInit)(unsigned f) {
  // Other allocators record no allocations. TensorFlow reads their name when it makes a device.
  unsetenv("TF_GPU_ALLOCATOR");
  return card_count ? OK : NO_DEVICE;
}
API(cuDriverGetVersion)(int *v) {
  *v = 12090;
  return OK;
}
API(cudaDriverGetVersion)(int *v) {
  *v = 12090;
  return OK;
}
API(cudaRuntimeGetVersion)(int *v) {
  *v = 12050;
  return OK;
}
API(cuDeviceGetCount)(int *n) {
  *n = card_count;
  return OK;
}
API(cudaGetDeviceCount)(int *n) {
  *n = card_count;
  return card_count ? OK : NO_DEVICE;
}
API(cuDeviceGet)(int *d, int i) {
  *d = i;
  return i >= 0 && i < card_count ? OK : 101;
}
API(cuDeviceGetName)(char *s, int n, int d) {
  snprintf(s, n, "%s", cards[d].name);
  return OK;
}
API(cuDeviceTotalMem_v2)(uint64_t *n, int d) {
  *n = cards[d].total;
  return OK;
}
API(cuDeviceGetAttribute)(int *v, int a, int d) { return attribute(v, a, d); }
API(cudaDeviceGetAttribute)(int *v, int a, int d) { return attribute(v, a, d); }
API(cuDeviceGetPCIBusId)(char *s, int n, int d) {
  snprintf(s, n, "0000:%02X:00.0", d + 1);
  return OK;
}
API(cudaDeviceGetPCIBusId)(char *s, int n, int d) {
  snprintf(s, n, "0000:%02X:00.0", d + 1);
  return OK;
}
API(cuDeviceGetUuid)(char *u, int d) {
  memset(u, 0, 16);
  memcpy(u, "simulat", 7); // as the text of nvmlDeviceGetUUID
  u[15] = d;
  return OK;
}
API(cuDeviceGetUuid_v2)(char *u, int d) { return cuDeviceGetUuid(u, d); }
API(cuDeviceComputeCapability)(int *a, int *b, int d) {
  *a = cards[d].major;
  *b = cards[d].minor;
  return OK;
}
API(cuDeviceCanAccessPeer)(int *v, int a, int b) {
  *v = a != b;
  return OK;
}
API(cudaDeviceCanAccessPeer)(int *v, int a, int b) {
  *v = a != b;
  return OK;
}
API(cuDeviceGetP2PAttribute)(int *v, int a, int s, int d) {
  *v = a == 1 || a == 2;
  return OK;
}
API(cuDevicePrimaryCtxRetain)(Card **c, int d) {
  *c = &cards[d];
  return OK;
}
API(cuDevicePrimaryCtxGetState)(int d, unsigned *f, int *on) {
  *f = 0;
  *on = 1;
  return OK;
}
API(cuCtxSetCurrent)(Card *c) {
  context = c;
  if (c)
    current = (int)(c - cards);
  return OK;
}
API(cuCtxGetCurrent)(Card **c) {
  *c = context;
  return OK;
}
static __thread Card *stack[64];
static __thread int depth;
API(cuCtxPushCurrent_v2)(Card *c) {
  if (depth < 64)
    stack[depth] = context;
  depth++;
  return cuCtxSetCurrent(c);
}
API(cuCtxPopCurrent_v2)(Card **c) {
  if (c)
    *c = context;
  if (depth > 0 && --depth < 64)
    cuCtxSetCurrent(stack[depth]);
  return OK;
}
API(cuCtxGetDevice)(int *d) {
  *d = current;
  return OK;
}
API(cuCtxGetApiVersion)(void *c, unsigned *v) {
  *v = 3020;
  return OK;
}
API(cuCtxGetStreamPriorityRange)(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return OK;
}
API(cuCtxGetLimit)(uint64_t *v, int l) {
  *v = 0;
  return OK;
}
API(cuCtxGetFlags)(unsigned *v) {
  *v = 0;
  return OK;
}
API(cudaDeviceGetStreamPriorityRange)(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return OK;
}
API(cudaGetDevice)(int *d) {
  *d = current;
  return OK;
}
API(cudaSetDevice)(int d) {
  if (d < 0 || d >= card_count)
    return 101;
  current = d;
  context = &cards[d];
  return OK;
}
API(cudaGetDeviceProperties_v2)(char *p, int d) { // byte offsets of the 12.x structure (1,032 bytes)
  if (d < 0 || d >= card_count)
    return 101;
  memset(p, 0, 1032);
  snprintf(p, 256, "%s", cards[d].name);
  cuDeviceGetUuid(p + 256, d);
  uint64_t big[][2] = {{288, cards[d].total},
                       {296, 49152},
                       {312, 2147483647},
                       {352, 65536},
                       {368, 512},
                       {640, cards[d].shared_kib * 1024ull},
                       {696, cards[d].optin_kib * 1024ull},
                       {720, cards[d].major >= 8 ? 1024 : 0}};
  for (size_t i = 0; i < sizeof big / sizeof *big; i++)
    put(p, big[i][0], &big[i][1], 8);
  static const int small[][2] = {
      {304, 12}, {308, 10}, {320, 1},  {324, 2},  {328, 3},  {332, 4},  {336, 5},   {340, 6},
      {344, 7},  {348, 13}, {360, 75}, {364, 76}, {388, 16}, {400, 19}, {576, 31},  {580, 32},
      {584, 33}, {588, 34}, {600, 40}, {604, 41}, {608, 36}, {612, 37}, {616, 38},  {624, 39},
      {628, 78}, {632, 79}, {636, 80}, {648, 82}, {652, 83}, {688, 95}, {712, 106}, {728, 99}};
  for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
    int v;
    attribute(&v, small[i][1], d);
    put(p, small[i][0], &v, 4);
  }
  return OK;
}
API(cuGetErrorName)(int e, const char **s) {
  *s = e == NO_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : e ? "CUDA_ERROR_SIMULATED_CARD" : "CUDA_SUCCESS";
  return OK;
}
API(cuGetErrorString)(int e, const char **s) {
  *s = e == NO_MEMORY ? "out of memory" : e ? "simulated_card error" : "no error";
  return OK;
}
API(cudaGetErrorName)(int e) {
  return (long)(e == NO_MEMORY ? "cudaErrorMemoryAllocation" : e ? "cudaErrorSimulatedCard" : "cudaSuccess");
}
API(cudaGetErrorString)(int e) {
  return (long)(e == NO_MEMORY ? "out of memory" : e ? "simulated_card error" : "no error");
}
API(cudaGetLastError)(void) { return OK; }
API(cudaPeekAtLastError)(void) { return OK; }
