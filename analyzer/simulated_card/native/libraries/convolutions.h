// The convolution of a cuDNN descriptor, and the algorithms for it. simulated_card/core_calls.py
// repeats the structures.
#ifndef SIMULATED_CARD_CONVOLUTIONS_H
#define SIMULATED_CARD_CONVOLUTIONS_H
#include <stdint.h>

typedef struct {
  int pass;                               // 1 forward, 2 input gradient, 3 filter gradient; 0 none
  int type;                               // cudnnDataType_t of the input
  int rank;                               // axes of the tensors, with batch and channels
  int64_t image[5], kernel[5], result[5]; // N C axes; K C/groups axes; N K axes
  int64_t stride, dilation;               // the largest
  int channels_last;                      // whether the channels of the image are adjacent
} Convolution;

typedef struct {
  int64_t bytes;
  double microseconds;
} Choice;

enum { MOST_CHOICES = 32 };
typedef int (*ListChoices)(const Convolution *c, int card, Choice *choices); // returns their number
int convolution_choices(const Convolution *c, int card, Choice *choices);    // their number
#endif
