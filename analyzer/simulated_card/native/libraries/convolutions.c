// Algorithms of a convolution, listed by the Python function that the process registers
// (simulated_card/core_calls.py). Without one there are none.
#include "convolutions.h"
#include "../runtime/simulated_card.h"

static ListChoices list_choices;

API(simulated_card_register_convolutions)(ListChoices function) {
  list_choices = function;
  return OK;
}

int convolution_choices(const Convolution *c, int card, Choice *choices) {
  if (!list_choices || !c->pass)
    return 0;
  return list_choices(c, card, choices);
}
