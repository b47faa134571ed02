// cuDNN: descriptors of the graph API, sizes of the older API, tensor and filter descriptors.
#include "../runtime/simulated_card.h" // first: it asks for GNU's extensions

#include "convolutions.h"
#include "cudnn.h"

#include <dlfcn.h>
#include <execinfo.h>

API(cudnnGetVersion)(void) { return 90300; }
API(cudnnGetMaxDeviceVersion)(void) { return 90300; }
API(cudnnGetCudartVersion)(void) { return 12050; }
// TensorFlow refuses a minor version below that of its build: 3 in 2.21, 10 in the nightly of 2.23
API(cudnnGetProperty)(int p, int *v) {
  *v = p == 0 ? 9 : p == 1 ? 10 : 0;
  return OK;
}
API(cudnnGetErrorString)(int e) { return (long)"simulated_card cuDNN"; }
API(cudnnGetLastErrorString)(char *s, uint64_t n) {
  snprintf(s, n, "simulated_card cuDNN");
  return OK;
}
// TensorFlow has one handle for each card, sets its stream once and uses it from several threads
static void *dnn_streams[MOST_CARDS];
API(cudnnSetStream)(void *h, void *s) {
  dnn_streams[current] = s;
  return OK;
}
API(cudnnGetStream)(void *h, void **s) {
  *s = dnn_streams[current];
  return OK;
}
// the graph API: a descriptor keeps its attributes; engine configurations, plans and heuristics answer
// the others. There are at least two configurations, because XLA does not autotune with only one.
enum { CONFIGURATIONS = 2 };
enum { ENGINE = 2, ENGINECFG = 3, HEURISTIC = 4, PLAN = 5, FORWARD = 10, OPGRAPH = 15 };
enum { DESCRIPTOR = 15 }; // the type of an attribute that is a descriptor
static const unsigned char element[32] = {
    8, 4, 1, 8, 4, 8, 8, 4, 4, 4, 4, 4,  4, 4, 4,
    8, 4, 4, 4, 4, 4, 4, 4, 4, 1, 4, 16, 4, 4, 4}; // bytes of each attribute type (booleans: 1)
typedef struct Item {
  int key, type;
  int64_t n;
  void *data;
  struct Item *next;
} Item;
typedef struct {
  int type;
  Item *items;
  Convolution convolution; // that of an operation, passed on to the graph, engines and plans
  int64_t number;          // of an engine, passed on to configurations and plans
  Choice choice;           // of a plan
  int is_chosen;
} Desc;
static Item *item(Desc *d, int key) {
  Item *i = d->items;
  while (i && i->key != key)
    i = i->next;
  return i;
}
static void desc_put(Desc *d, int key, int type, int64_t n, const void *v) {
  Item *i = item(d, key);
  if (!i) {
    i = calloc(1, sizeof *i);
    i->key = key;
    i->next = d->items;
    d->items = i;
  }
  free(i->data);
  i->type = type;
  i->n = n;
  i->data = malloc(n * element[type & 31] + 1);
  if (v)
    memcpy(i->data, v, n * element[type & 31]);
}
API(cudnnBackendCreateDescriptor)(int type, Desc **d) {
  *d = calloc(1, sizeof **d);
  (*d)->type = type;
  return OK;
}
API(cudnnBackendDestroyDescriptor)(Desc *d) {
  for (Item *i = d->items, *n; i; i = n) {
    n = i->next;
    free(i->data);
    free(i);
  }
  free(d);
  return OK;
}
API(cudnnBackendFinalize)(Desc *d) { return OK; }
static void read_axes(int64_t *to, Desc *from, int key, Convolution *c) {
  Item *axes = item(from, key);
  if (!axes || axes->n > 5)
    return;
  c->rank = (int)axes->n;
  memcpy(to, axes->data, axes->n * 8);
}
static int64_t largest(Desc *d, int key) {
  Item *i = item(d, key);
  int64_t most = 1;
  for (int64_t k = 0; i && k < i->n; k++)
    if (((int64_t *)i->data)[k] > most)
      most = ((int64_t *)i->data)[k];
  return most;
}
// Whether XLA calls. No measurement of its choices is published, so it gets plans without workspace.
static int is_xla(void) {
  // Callers, doubled, plus 1 for those in XLA: finding a name in TensorFlow's libraries takes milliseconds.
  static _Atomic uintptr_t seen[4096];
  void *frames[64];
  Dl_info info;
  int count = backtrace(frames, 64);
  for (int i = 2; i < count; i++) {
    uintptr_t caller = (uintptr_t)frames[i], place = caller % 4093, known = seen[place];
    if (known >> 1 != caller) {
      int found = dladdr(frames[i], &info) && info.dli_sname && strstr(info.dli_sname, "3xla3gpu");
      seen[place] = known = caller << 1 | found;
    }
    if (known & 1)
      return 1;
  }
  return 0;
}
// an operand of a convolution; six attributes for each pass: alpha, beta, then these
static void read_operand(Desc *d, int key, Desc *operand) {
  static const int passes[] = {1, 3, 2}; // descriptors: forward, filter gradient, input gradient
  Convolution *c = &d->convolution;
  c->pass = is_xla() ? 0 : passes[d->type - FORWARD];
  switch ((key - 700) % 6) {
  case 2:
    c->dilation = largest(operand, 102);
    c->stride = largest(operand, 103);
    break;
  case 3:
    read_axes(c->kernel, operand, 902, c);
    break;
  case 4:
    read_axes(c->image, operand, 902, c);
    if (item(operand, 903) && item(operand, 903)->n > 1)
      c->channels_last = ((int64_t *)item(operand, 903)->data)[1] == 1;
    if (item(operand, 901))
      c->type = *(int *)item(operand, 901)->data;
    break;
  case 5:
    read_axes(c->result, operand, 902, c);
  }
}
static void pass_on(Desc *d, const Desc *from) {
  if (from->convolution.pass)
    d->convolution = from->convolution;
  if (from->type == ENGINE || from->type == ENGINECFG)
    d->number = from->number;
}
API(cudnnBackendSetAttribute)(Desc *d, int key, int type, int64_t n, const void *v) {
  desc_put(d, key, type, n, v);
  if (key == 1301 && v)
    d->number = *(const int64_t *)v;
  for (int64_t i = 0; type == DESCRIPTOR && v && i < n; i++) {
    Desc *other = ((Desc *const *)v)[i];
    if (d->type >= FORWARD && d->type < FORWARD + 3 && key >= 700 && key < 718)
      read_operand(d, key, other);
    else if (other)
      pass_on(d, other);
  }
  return OK;
}
static int list_choices(const Desc *d, Choice *choices) {
  int found = fixed_workspace ? 0 : convolution_choices(&d->convolution, current, choices);
  for (; found < CONFIGURATIONS; found++)
    choices[found] = (Choice){fixed_workspace ? (int64_t)convolution_workspace : 0, 1e6};
  return found;
}
static const Choice *choice_of(Desc *plan) {
  if (!plan->is_chosen) {
    Choice choices[MOST_CHOICES + CONFIGURATIONS];
    int found = list_choices(plan, choices);
    plan->choice = choices[plan->number >= 0 && plan->number < found ? plan->number : 0];
    plan->is_chosen = 1;
  }
  return &plan->choice;
}
API(cudnnBackendExecute)(void *h, Desc *plan, Desc *pack) {
  launch_for(dnn_streams[current], (uint64_t)(choice_of(plan)->microseconds * 1000));
  return OK;
}
API(cudnnBackendGetAttribute)(Desc *d, int key, int type, int64_t want, int64_t *got, void *out) {
  int64_t none;
  if (!got)
    got = &none;
  *got = 0;
  if (d->type == HEURISTIC && key == 202) { // engine configurations
    Choice choices[MOST_CHOICES + CONFIGURATIONS];
    int64_t count = list_choices(d, choices);
    *got = count;
    for (int64_t number = 0; out && number < want && number < count; number++) {
      Desc *config = ((Desc **)out)[number];
      if (!config)
        continue;
      Desc *engine;
      cudnnBackendCreateDescriptor(ENGINE, &engine);
      Item *g = item(d, 201);
      desc_put(engine, 1301, 3, 1, &number);
      if (g)
        desc_put(engine, 1300, DESCRIPTOR, 1, g->data);
      desc_put(config, 300, DESCRIPTOR, 1, &engine);
      engine->number = config->number = number;
      engine->convolution = config->convolution = d->convolution;
    }
    return OK;
  }
  // an engine of a configuration or a configuration of a plan: fill the caller's descriptor
  if ((d->type == ENGINECFG && key == 300) || (d->type == PLAN && key == 401)) {
    Item *i = item(d, key);
    *got = 1;
    if (!i || want < 1 || !out)
      return OK;
    Desc *to = *(Desc **)out, *from = *(Desc **)i->data;
    if (to && to != from) {
      for (Item *j = from->items; j; j = j->next)
        desc_put(to, j->key, j->type, j->n, j->data);
      to->convolution = from->convolution;
      to->number = from->number;
    } else
      *(Desc **)out = from;
    return OK;
  }
  Item *i = item(d, key);
  if (i) {
    int64_t n = i->n < want ? i->n : want;
    *got = i->n;
    if (out && n > 0)
      memcpy(out, i->data, n * element[i->type & 31]);
    return OK;
  }
  if ((d->type == PLAN && key == 402) || (d->type == ENGINECFG && key == 303)) {
    *got = 1;
    if (out)
      *(int64_t *)out = choice_of(d)->bytes;
    return OK;
  }
  if (d->type == PLAN && key == 405) {
    static const char json[] = "{}";
    *got = sizeof json;
    if (out)
      memcpy(out, json, want < (int64_t)sizeof json ? want : (int64_t)sizeof json);
    return OK;
  }
  if (d->type == OPGRAPH && key == 802) {
    *got = 1;
    if (out)
      *(int64_t *)out = 1;
    return OK;
  }
  return OK;
}
// the older API: sizes
API(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize)(void *h, int m, int o, void *x, void *z,
                                                              void *y, void *b, void *a, uint64_t *n) {
  *n = 0;
  return OK;
}
API(cudnnGetBatchNormalizationBackwardExWorkspaceSize)(void *h, int m, int o, void *x, void *y, void *dy,
                                                       void *dz, void *dx, void *b, void *a,
                                                       uint64_t *n) {
  *n = 0;
  return OK;
}
API(cudnnGetBatchNormalizationTrainingExReserveSpaceSize)(void *h, int m, int o, void *a, void *x,
                                                          uint64_t *n) {
  *n = batch_norm_reserve;
  return OK;
}
API(cudnnDropoutGetStatesSize)(void *h, uint64_t *n) {
  *n = 1 << 20;
  return OK;
}
API(cudnnDropoutGetReserveSpaceSize)(void *x, uint64_t *n) {
  *n = 0;
  return OK;
}
API(cudnnGetReductionWorkspaceSize)(void *h, void *r, void *a, void *c, uint64_t *n) {
  *n = 0;
  return OK;
}
API(cudnnGetReductionIndicesSize)(void *h, void *r, void *a, void *c, uint64_t *n) {
  *n = 0;
  return OK;
}
API(cudnnGetCTCLossWorkspaceSize)(void *h, void *p, void *g, const int *l, const int *ll, const int *il,
                                  int a, void *d, uint64_t *n) {
  *n = 0;
  return OK;
}
API(cudnnGetConvolutionForwardWorkspaceSize)(void *h, void *x, void *w, void *c, void *y, int a,
                                             uint64_t *n) {
  *n = 0;
  return OK;
}
API(cudnnGetConvolutionBackwardDataWorkspaceSize)(void *h, void *x, void *w, void *c, void *y, int a,
                                                  uint64_t *n) {
  *n = 0;
  return OK;
}
API(cudnnGetConvolutionBackwardFilterWorkspaceSize)(void *h, void *x, void *w, void *c, void *y, int a,
                                                    uint64_t *n) {
  *n = 0;
  return OK;
}
// tensor and filter descriptors keep their shape
static long tensor_set(Tensor *t, int type, int rank, const int *dims, const int *strides) {
  t->type = type;
  t->rank = rank;
  for (int i = 0; i < rank && i < 12; i++) {
    t->dims[i] = dims[i];
    t->strides[i] = strides ? strides[i] : 0;
  }
  return OK;
}
static long tensor_get(Tensor *t, int want, int *type, int *rank, int *dims, int *strides) {
  if (type)
    *type = t->type;
  if (rank)
    *rank = t->rank;
  for (int i = 0; i < want && i < 12; i++) {
    if (dims)
      dims[i] = t->dims[i];
    if (strides)
      strides[i] = t->strides[i];
  }
  return OK;
}
API(cudnnCreateTensorDescriptor)(Tensor **t) {
  *t = calloc(1, sizeof **t);
  return OK;
}
API(cudnnDestroyTensorDescriptor)(Tensor *t) {
  free(t);
  return OK;
}
API(cudnnSetTensorNdDescriptor)(Tensor *t, int type, int rank, const int *dims, const int *strides) {
  return tensor_set(t, type, rank, dims, strides);
}
API(cudnnSetTensorNdDescriptorEx)(Tensor *t, int format, int type, int rank, const int *dims) {
  return tensor_set(t, type, rank, dims, 0);
}
API(cudnnSetTensor4dDescriptor)(Tensor *t, int format, int type, int n, int c, int h, int w) {
  int d[] = {n, c, h, w};
  return tensor_set(t, type, 4, d, 0);
}
API(cudnnGetTensorNdDescriptor)(Tensor *t, int want, int *type, int *rank, int *dims, int *strides) {
  return tensor_get(t, want, type, rank, dims, strides);
}
API(cudnnCreateFilterDescriptor)(Tensor **t) {
  *t = calloc(1, sizeof **t);
  return OK;
}
API(cudnnDestroyFilterDescriptor)(Tensor *t) {
  free(t);
  return OK;
}
API(cudnnSetFilterNdDescriptor)(Tensor *t, int type, int format, int rank, const int *dims) {
  t->format = format;
  return tensor_set(t, type, rank, dims, 0);
}
API(cudnnGetFilterNdDescriptor)(Tensor *t, int want, int *type, int *format, int *rank, int *dims) {
  if (format)
    *format = t->format;
  return tensor_get(t, want, type, rank, dims, 0);
}
