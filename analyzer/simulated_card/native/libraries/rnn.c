// cuDNN's recurrent layers. The size of the weight space is exact; the others follow measurements.
#include "../runtime/simulated_card.h"
#include "cudnn.h"

typedef struct {
  int cell, bias, directions, type, input, hidden, projected, layers;
} Rnn;
typedef struct {
  int type, time, batch, width;
} RnnData;
static int bytes_of(int type) { return type == 1 ? 8 : type == 2 || type == 9 ? 2 : 4; }
API(cudnnCreateRNNDescriptor)(Rnn **p) {
  *p = calloc(1, 4096);
  return OK;
}
API(cudnnDestroyRNNDescriptor)(Rnn *p) {
  free(p);
  return OK;
}
API(cudnnSetRNNDescriptor_v8)(Rnn *r, int algo, int cell, int bias, int direction, int mode, int type,
                              int precision, int math, int input, int hidden, int projected, int layers,
                              void *dropout, unsigned flags) {
  *r = (Rnn){cell, bias, direction ? 2 : 1, type, input, hidden, projected, layers};
  return OK;
}
static int gates(const Rnn *r) { return r->cell == 2 ? 4 : r->cell == 3 ? 3 : 1; }
static uint64_t side(const Rnn *r, int layer, int recurrent) {
  uint64_t out = r->projected ? r->projected : r->hidden;
  return recurrent ? out : layer ? out * r->directions : r->input;
}
static uint64_t biases(const Rnn *r) { return r->bias == 0 ? 0 : r->bias == 2 ? 2 : 1; }
static uint64_t rnn_weights(const Rnn *r) {
  uint64_t n = 0, g = gates(r), h = r->hidden;
  for (int l = 0; l < r->layers; l++)
    n += r->directions * (g * h * (side(r, l, 0) + side(r, l, 1) + biases(r)) +
                          (r->projected && r->projected != r->hidden ? r->projected * h : 0));
  return n * bytes_of(r->type);
}
API(cudnnGetRNNWeightSpaceSize)(void *h, Rnn *r, uint64_t *n) {
  *n = rnn_weights(r);
  return OK;
}
API(cudnnCreateRNNDataDescriptor)(RnnData **p) {
  *p = calloc(1, 4096);
  return OK;
}
API(cudnnDestroyRNNDataDescriptor)(RnnData *p) {
  free(p);
  return OK;
}
API(cudnnSetRNNDataDescriptor)(RnnData *d, int type, int layout, int time, int batch, int width,
                               const int *lengths, void *pad) {
  *d = (RnnData){type, time, batch, width};
  return OK;
}
// The forms of simulate/kernels/gpu_kernels.py, measured on an H200 with cuDNN 9.19.
API(cudnnGetRNNTempSpaceSizes)(void *h, Rnn *r, int mode, RnnData *x, uint64_t *work,
                               uint64_t *reserve_size) {
  uint64_t rows = (uint64_t)x->time * x->batch * bytes_of(r->type);
  uint64_t units = rows * r->hidden * r->directions * r->layers;
  uint64_t state = (uint64_t)x->batch * r->hidden * bytes_of(r->type);
  uint64_t kept = r->cell == 2 ? 5 : r->cell == 3 ? 6 : 2;
  if (work)
    *work = 3 * (rows * r->input + units) + rnn_weights(r) + (8 << 20) + state * (r->cell == 2 ? 11 : 5);
  if (reserve_size)
    *reserve_size = !mode ? 0 : units * (recurrent_reserve ? recurrent_reserve : kept) + 4 * x->batch;
  return OK;
}
// matrices of all pseudo layers, then their biases; an absent tensor has 0 dimensions
API(cudnnGetRNNWeightParams)(void *h, Rnn *r, int layer, uint64_t size, char *space, int id, Tensor *md,
                             char **m, Tensor *bd, char **b) {
  int g = gates(r);
  uint64_t at = 0, bias = 0, hidden = r->hidden, w = bytes_of(r->type);
  for (int l = 0; l < r->layers * r->directions; l++)
    bias += g * hidden * (side(r, l / r->directions, 0) + side(r, l / r->directions, 1));
  for (int l = 0; l < layer; l++) {
    at += g * hidden * (side(r, l / r->directions, 0) + side(r, l / r->directions, 1));
    bias += g * hidden * biases(r);
  }
  for (int i = 0; i < id; i++) {
    at += hidden * side(r, layer / r->directions, i >= g);
    bias += biases(r) == 2 ? hidden : biases(r) == 1 && i < g ? hidden : 0;
  }
  int matrix = id < 2 * g, biased = biases(r) == 2 ? id < 2 * g : biases(r) == 1 && id < g;
  if (md)
    *md = matrix ? (Tensor){r->type, 3, {1, hidden, side(r, layer / r->directions, id >= g)}}
                 : (Tensor){r->type};
  if (bd)
    *bd = biased ? (Tensor){r->type, 3, {1, hidden, 1}} : (Tensor){r->type};
  if (m)
    *m = matrix ? space + at * w : 0;
  if (b)
    *b = biased ? space + bias * w : 0;
  return OK;
}
