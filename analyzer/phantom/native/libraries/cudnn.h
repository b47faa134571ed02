// Tensor descriptors of cudnn.c and rnn.c: they keep their shape.
#ifndef PHANTOM_CUDNN_H
#define PHANTOM_CUDNN_H
typedef struct {
  int type, rank, dims[12], strides[12], format;
} Tensor;
#endif
