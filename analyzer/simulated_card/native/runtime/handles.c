// Opaque handles.
#include "simulated_card.h"

char handle_block[4096];

long some(void **p) {
  *p = handle_block;
  return OK;
}

void put(char *p, size_t at, const void *v, size_t n) { memcpy(p + at, v, n); }
