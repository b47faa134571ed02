// Kernels launched through the runtime, such as TensorFlow's own. The few whose results the host reads
// as shapes are computed; the outputs of all others are cleared.
#include "simulated_card.h"
#include <dlfcn.h>

typedef struct {
  unsigned x, y, z;
} Dim;
// names of the kernels, by the address of their host function (open addressing; filled before main)
static struct {
  const void *f;
  const char *name;
  uint32_t known, out, inside;
  int arguments; // number of them, if no output is known
} kernels[1 << 18];
static unsigned kernel_count;
static unsigned slot(const void *f) {
  unsigned i = (uint32_t)((uintptr_t)f >> 4) * 2654435761u >> 14;
  while (kernels[i].f && kernels[i].f != f)
    i = (i + 1) & ((1 << 18) - 1);
  return i;
}
API(__cudaRegisterFunction)(void *h, const void *f, char *device, const char *name) {
  if (kernel_count < 1 << 17) {
    unsigned i = slot(f);
    if (!kernels[i].f)
      kernel_count++;
    kernels[i].f = f;
    kernels[i].name = name;
  }
  return OK;
}
// Kernels whose results the host reads as shapes. args[i] points to argument i. An array argument is
// {int count; T inside[8]; T *outside}; outside is used for more than 8.
static void stitch(void **args,
                   int width) { // DynamicStitchKernel<T>(slice, total, indices, pointers, out)
  int slice = *(int *)args[0], total = *(int *)args[1];
  char *out = *(char **)args[4];
  const int *indices = *(int *)args[2] <= 8 ? (int *)args[2] + 1 : *(int **)((char *)args[2] + 40);
  char **from = *(int *)args[3] <= 8 ? (char **)args[3] + 1 : *(char ***)((char *)args[3] + 72);
  if (total > 4096)
    return;
  for (int i = 0; i < total; i++)
    if (indices[i / slice] >= 0)
      memcpy(out + (uint64_t)i * width, from[indices[i / slice]] + (uint64_t)(i % slice) * width, width);
  know(out, (uint64_t)total * width);
}
// Outputs of kernels read as 0: the start of each is cleared, so that the host never reads stale bytes
// as a shape. The kernel's C++ signature identifies outputs: pointers to non-const, and the first
// pointer in an Eigen assignment or an output iterator.
static void learn(unsigned i) {
  static char *(*demangle)(const char *, char *, size_t *, int *);
  int status;
  if (!demangle)
    demangle = dlsym(RTLD_DEFAULT, "__cxa_demangle");
  char *text = demangle ? demangle(kernels[i].name, 0, 0, &status) : 0;
  uint32_t out = 0, inside = 0;
  int number = 0;
  size_t n = text ? strlen(text) : 0;
  if (n && text[n - 1] == ')') {
    size_t open = n - 1;
    for (int depth = 0;; open--) {
      depth += text[open] == ')' ? 1 : text[open] == '(' ? -1 : 0;
      if (!depth || !open)
        break;
    }
    char *from = text + open + 1;
    int depth = 0;
    text[n - 1] = ',';
    for (char *c = from; *c && number < 32; c++) {
      depth += *c == '<' || *c == '(' || *c == '[' || *c == '{'   ? 1
               : *c == '>' || *c == ')' || *c == ']' || *c == '}' ? -1
                                                                  : 0;
      if (*c != ',' || depth)
        continue;
      *c = 0;
      size_t k = c - from;
      if (k && from[k - 1] == '*') {
        if (k < 6 || strncmp(from + k - 6, "const*", 6))
          out |= 1u << number;
      } else if ((!number && strstr(from, "TensorAssignOp")) || strstr(from, "OutputIterator"))
        inside |= 1u << number;
      number++;
      from = c + 1;
      while (*from == ' ')
        from++;
    }
  }
  if (text && (strstr(kernels[i].name, "ReduceKernel") || strstr(kernels[i].name, "ReduceSingleTile") ||
               strstr(kernels[i].name, "CleanupSegments")))
    out &= ~1u; // a reduction's first argument is its input, const or not
  say(4, "outputs %x %x of %s", out, inside, kernels[i].name);
  free(text);
  kernels[i].out = out;
  kernels[i].inside = inside;
  kernels[i].arguments = out | inside ? 0 : number;
  __atomic_store_n(&kernels[i].known, 1, __ATOMIC_RELEASE);
}
uint64_t left_of(const char *p) {
  if (!p)
    return 0;
  pthread_mutex_lock(&lock);
  Block *b = find(p);
  uint64_t left = b ? b->at + b->size - p : 0;
  pthread_mutex_unlock(&lock);
  return left;
}
void clear(char *p) {
  uint64_t left = left_of(p), n = (uintptr_t)p & 255 ? 16 : 256;
  if (!left) { // kernels write counts directly into pinned memory of the host
    left = left_of_pinned(p);
    n = 16;
  }
  forget(p, n);
  if (left)
    memset(p, 0, n < left ? n : left);
}
// Booleans are copied and combined as if all of a tensor equalled its first: a reduction by "and" or
// "or" (input, result, ..), a copy by Eigen (its first argument holds the addresses, the result's
// first), a concatenation (sources as an array argument, .., result). A reduction by Eigen checks that
// all indices are valid (``CheckValidBoxIndexHelper``): they are.
static void truths(const char *n, void **args) {
  char *in = 0, *out = 0;
  if (strstr(n, "EigenMetaKernel") && strstr(n, "10AndReducer")) {
    for (int i = 0; i < 48 && !left_of(out); i++)
      out = ((char **)args[0])[i];
    if (left_of(out))
      know_truths(out, 1);
    return;
  }
  if (strstr(n, "3AndE") || strstr(n, "2OrE")) {
    in = *(char **)args[0];
    out = *(char **)args[1];
  } else if (strstr(n, "EigenMetaKernel") && strstr(n, "TensorIb")) {
    for (int i = 0; i < 48 && !in; i++) {
      char *word = ((char **)args[0])[i];
      if ((uintptr_t)word < 4096 || !left_of(word) || word == out)
        continue;
      if (!out)
        out = word;
      else
        in = word;
    }
  } else if (strstr(n, "concat_fixed_kernelIb")) {
    int count = *(int *)args[0];
    in = count <= 8 ? ((char **)args[0])[1] : *((char ***)args[0])[9];
    out = *(char **)args[4];
  }
  if (left_of(in) && left_of(out)) {
    *out = *in;
    if (*in == 1)
      know_truths(out, left_of(out));
    else
      know(out, 1);
  }
}
static void gather(void **args) { // GatherOpKernel<.., int, axis is 0>(from, indices, out, .., ..,
                                  // slice, total) of 4-byte integers
  const int *from = *(int **)args[0], *indices = *(int **)args[1];
  int *out = *(int **)args[2];
  int64_t slice = *(int64_t *)args[5], total = *(int64_t *)args[6];
  if (slice <= 0 || total > 1024)
    return;
  for (int64_t i = 0; i < total; i++)
    out[i] = from[(int64_t)indices[i / slice] * slice + i % slice];
  know((char *)out, 4 * total);
}
static void
product(void **args) { // BlockReduceKernel<int *, int *, .., Prod<int>>(from, out, count, ..)
  const int *from = *(int **)args[0];
  int n = *(int *)args[2], r = 1;
  if (n > 64)
    return;
  for (int i = 0; i < n; i++)
    r *= from[i];
  **(int **)args[1] = r;
  know(*(char **)args[1], sizeof r);
}
API(cudaLaunchKernel)(const void *f, Dim grid, Dim block, void **args, uint64_t smem, void *stream) {
  launch(stream);
  unsigned i = slot(f);
  const char *n = kernels[i].name;
  if (!n)
    return OK;
  say(3, "launch %s", n);
  if (!__atomic_load_n(&kernels[i].known, __ATOMIC_ACQUIRE))
    learn(i);
  if (strstr(n, "17BlockReduceKernelIPiS") && strstr(n, "4ProdIiE")) {
    product(args);
    return OK;
  }
  // They write only indices that are not valid (SparseToDense, SparseFillEmptyRows).
  if (strstr(n, "CheckIndicesValid") || strstr(n, "CountElementsPerRowKernel"))
    return OK;
  for (uint32_t m = kernels[i].out | kernels[i].inside; m; m &= m - 1)
    clear(*(char **)args[__builtin_ctz(m)]);
  for (int k = 0; k < kernels[i].arguments; k++) // an output may be in any structure
    forget(*(char **)args[k], 16);
  truths(n, args);
  if (strstr(n, "GatherOpKernelINS_13AlignedVectorIiLi1EEEiLb1EE"))
    gather(args);
  else if (strstr(n, "DynamicStitchKernelIiE"))
    stitch(args, 4);
  else if (strstr(n, "DynamicStitchKernelIlE") || strstr(n, "DynamicStitchKernelIxE"))
    stitch(args, 8);
  return OK;
}
static __thread struct {
  Dim grid, block;
  uint64_t smem;
  void *stream;
} pushed[16];
static __thread int pushes;
API(__cudaPushCallConfiguration)(Dim grid, Dim block, uint64_t smem, void *stream) {
  int i = pushes++ & 15;
  pushed[i].grid = grid;
  pushed[i].block = block;
  pushed[i].smem = smem;
  pushed[i].stream = stream;
  return OK;
}
API(__cudaPopCallConfiguration)(Dim *grid, Dim *block, uint64_t *smem, void **stream) {
  int i = --pushes & 15;
  *grid = pushed[i].grid;
  *block = pushed[i].block;
  *smem = pushed[i].smem;
  *stream = pushed[i].stream;
  return OK;
}
API(__cudaRegisterFatBinary)(void *f) { return (long)handle_block; }
API(__cudaRegisterFatBinaryEnd)(void *h) { return OK; }
API(__cudaUnregisterFatBinary)(void *h) { return OK; }
API(__cudaRegisterVar)(void *h) { return OK; }
