// Modules, functions, occupancy and launches through the driver API, which XLA uses.
#include "simulated_card.h"

typedef struct {
  char name[128];
} Function;

API(cuMemAddressReserve)(void **p, uint64_t n, uint64_t align, void *at, uint64_t f);

API(cuModuleLoadData)(void **m, const void *i) { return some(m); }
API(cuModuleLoadDataEx)(void **m, const void *i, unsigned n, void *o, void *v) { return some(m); }
API(cuModuleLoadFatBinary)(void **m, const void *i) { return some(m); }
API(cuModuleGetFunction)(void **f, void *m, const char *n) {
  say(3, "kernel %s", n);
  Function *made = calloc(1, 4096);
  snprintf(made->name, sizeof made->name, "%s", n);
  *f = made;
  return OK;
}
API(cuModuleGetGlobal_v2)(void **p, uint64_t *n, void *m, const char *name) {
  static char *zeros;
  if (!zeros)
    cuMemAddressReserve((void **)&zeros, 64 * MIB, 0, 0, 0); // device address without charge
  say(3, "global %s", name);
  if (p)
    *p = zeros;
  if (n)
    *n = 64 * MIB;
  return OK;
}
API(cuLibraryLoadData)(void **l, const void *c, void *a, void *b, unsigned n, void *o, void *v,
                       unsigned k) {
  return some(l);
}
API(cuLibraryGetKernel)(void **k, void *l, const char *n) { return some(k); }
API(cuLibraryGetModule)(void **m, void *l) { return some(m); }
API(cuKernelGetFunction)(void **f, void *k) { return some(f); }
API(cudaGetFuncBySymbol)(void **f, const void *s) { return some(f); }
API(cudaGetSymbolAddress)(void **p, const void *s) { return cuModuleGetGlobal_v2(p, 0, 0, "symbol"); }
static long function_attribute(int *v, int a) {
  *v = a == 0             ? 1024
       : a == 4           ? 32
       : a == 5 || a == 6 ? cards[current].major * 10 + cards[current].minor
                          : 0;
  return OK;
}
API(cuFuncGetAttribute)(int *v, int a, void *f) { return function_attribute(v, a); }
API(cuKernelGetAttribute)(int *v, int a, void *k, int d) { return function_attribute(v, a); }
API(cuFuncGetName)(const char **n, void *f) {
  *n = "simulated_card";
  return OK;
}
static long function_attributes(char *p) { // sizes, then threads, registers, PTX and binary version
  const Card *m = &cards[current];
  int version = m->major * 10 + m->minor, v[4] = {1024, 32, version, version};
  memset(p, 0, 144);
  put(p, 24, v, sizeof v);
  int smem = 49152;
  put(p, 44, &smem, 4);
  return OK;
}
API(cudaFuncGetAttributes)(char *p, const void *f) { return function_attributes(p); }
static long occupancy(int *n, int block) {
  int t = block > 0 ? cards[current].threads / block : 1;
  *n = t < 1 ? 1 : t > cards[current].blocks ? cards[current].blocks : t;
  return OK;
}
API(cuOccupancyMaxActiveBlocksPerMultiprocessor)(int *n, void *f, int block, uint64_t smem) {
  return occupancy(n, block);
}
API(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)(int *n, void *f, int block, uint64_t smem,
                                                          unsigned flags) {
  return occupancy(n, block);
}
API(cudaOccupancyMaxActiveBlocksPerMultiprocessor)(int *n, const void *f, int block, uint64_t smem) {
  return occupancy(n, block);
}
API(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)(int *n, const void *f, int block,
                                                            uint64_t smem, unsigned flags) {
  return occupancy(n, block);
}
static long potential(int *grid, int *block) {
  *block = 1024;
  *grid = cards[current].sms * (cards[current].threads / 1024);
  return OK;
}
API(cuOccupancyMaxPotentialBlockSize)(int *grid, int *block, void *f, void *g, uint64_t smem,
                                      int limit) {
  return potential(grid, block);
}
API(cuOccupancyMaxPotentialBlockSizeWithFlags)(int *grid, int *block, void *f, void *g, uint64_t smem,
                                               int limit, unsigned flags) {
  return potential(grid, block);
}
// Kernels that TensorFlow compiles at run time all have the name "main_kernel".
static int is_generated(const char *name) {
  return strstr(name, "_GPU_DT_") || !strcmp(name, "main_kernel");
}
// Bytes of such a kernel's result. The last type in its name is the result's. The axes and their
// strides follow the address; the last stride is 1.
static uint64_t result_size(const char *name, const uint64_t *axes, int n) {
  static const struct {
    const char *type;
    int width;
  } widths[] = {{"BOOL", 1},  {"HALF", 2},  {"BFLOAT16", 2}, {"INT32", 4},
              {"FLOAT", 4}, {"INT64", 8}, {"DOUBLE", 8},   {"COMPLEX64", 8}};
  const char *type = 0;
  for (const char *at = name; (at = strstr(at, "_DT_")); at += 4)
    type = at + 4;
  uint64_t width = 1; // of an unknown type: more would forget a neighbour's bytes
  for (unsigned i = 0; type && i < sizeof widths / sizeof *widths; i++)
    if (!strncmp(type, widths[i].type, strlen(widths[i].type)))
      width = widths[i].width;
  for (int rank = 1; 2 * rank <= n && rank <= 8; rank++) {
    uint64_t stride = 1;
    int at = rank - 1;
    while (at >= 0 && axes[at] && axes[at] < 1u << 30 && stride < 1ull << 40 &&
           axes[rank + at] == stride)
      stride *= axes[at--];
    if (at < 0)
      return stride * width;
  }
  return width;
}
// TensorFlow's generated element-wise kernels ("IsFinite_GPU_DT_FLOAT_DT_BOOL_kernel") take sizes and,
// for each tensor, its address twice, an offset and its axes; the last tensor is the result. Arguments
// are contiguous, 8 bytes each. A result reads as 0, as every kernel's does, except booleans: all values
// on a card count as finite, and logical and is computed. It is also computed for "main_kernel", or
// the loop over a layer's steps would end.
static void generated(const char *name, void **args) {
  uint64_t value[64];
  char *tensor[32];
  int n = 0, tensors = 0, last = 0;
  do
    memcpy(&value[n], args[n], 8);
  while (++n < 64 && (char *)args[n] == (char *)args[n - 1] + 8);
  for (int i = 0; i + 2 < n && tensors < 32; i++)
    if (value[i] == value[i + 1] && left_of((char *)value[i])) {
      tensor[tensors++] = (char *)value[i];
      last = i += 2;
    }
  if (!tensors)
    return;
  char *out = tensor[tensors - 1];
  char truth = 0;
  if (!strncmp(name, "IsFinite_", 9))
    truth = 1;
  else if (!strncmp(name, "LogicalAnd_", 11) && tensors == 3)
    truth = *tensor[0] && *tensor[1];
  else if (!strncmp(name, "LogicalOr_", 10) && tensors == 3)
    truth = *tensor[0] || *tensor[1];
  else if (!strcmp(name, "main_kernel") && tensors == 3) // two booleans, as in a loop's condition
    truth = *tensor[0] == 1 && *tensor[1] == 1;
  clear(out);
  uint64_t size = last + 1 < n ? result_size(name, value + last + 1, n - last - 1) : 1;
  forget(out, size);
  if (truth)
    know_truths(out, size);
}
API(cuLaunchKernel)(Function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                    unsigned bz, unsigned smem, void *s, void **args, void **extra) {
  launch(s);
  if ((char *)f != handle_block && args && is_generated(f->name))
    generated(f->name, args);
  else
    mark_modules(s);
  return OK;
}
API(cuLaunchKernelEx)(const char *config) {
  mark_modules(*(void **)(config + 32));
  launch(*(void **)(config + 32));
  return OK;
}
API(cuLaunchCooperativeKernel)(void *f) {
  launch(0);
  return OK;
}
API(cudaLaunchKernelExC)(const char *config) {
  launch(*(void **)(config + 32));
  return OK;
}
API(cudaLaunchCooperativeKernel)(const void *f) {
  launch(0);
  return OK;
}
