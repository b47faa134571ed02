// Tensor descriptors of cudnn.c and rnn.c: they keep their shape.
#ifndef SIMULATED_CARD_CUDNN_H
#define SIMULATED_CARD_CUDNN_H
typedef struct {
  int type, rank, dims[12], strides[12], format;
} Tensor;
#endif
