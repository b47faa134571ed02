// The cards and the settings, read once from the environment at the start of the process.
//
// SIMULATED_CARDS   cards separated by ';', each with figures separated by ',' in the order of the format
//                 below (card_environment.py writes it)
// SIMULATED_CARD_LOG     1 most memory of each card; 2 memory requests; 3 launches; 4 detected outputs
// SIMULATED_CARD_POOL_MOST, SIMULATED_CARD_COPY_MOST,
// SIMULATED_CARD_CONVOLUTION_WORKSPACE, SIMULATED_CARD_PRODUCT_WORKSPACE, SIMULATED_CARD_RECURRENT_RESERVE,
// SIMULATED_CARD_BATCH_NORM_RESERVE  see simulated_card.h SIMULATED_CARD_CONVOLUTIONS_<card>  see convolutions.c
#include "simulated_card.h"

#include <stdarg.h>

Card cards[MOST_CARDS];
int card_count;
uint64_t pool_most = UINT64_MAX, copy_most = 4096, kernel_ns, convolution_workspace;
int fixed_workspace;
uint64_t product_workspace, recurrent_reserve, batch_norm_reserve;
static int verbose;

void say(int level, const char *format, ...) {
  if (verbose < level)
    return;
  va_list arguments;
  va_start(arguments, format);
  flockfile(stderr);
  fputs("simulated_card: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  funlockfile(stderr);
  va_end(arguments);
}

static uint64_t number(const char *name, uint64_t otherwise) {
  const char *text = getenv(name);
  return text && *text ? strtoull(text, 0, 0) : otherwise;
}

static int read_card(const char *text, Card *c) {
  unsigned long long total, room, held;
  int found = sscanf(text, "%127[^,],%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%llu,%llu,%llu", c->name, &c->major,
                     &c->minor, &c->sms, &c->clock_khz, &c->memory_khz, &c->bus_bits, &c->l2_kib,
                     &c->threads, &c->blocks, &c->shared_kib, &c->optin_kib, &total, &room, &held);
  c->total = total;
  c->room = room;
  c->held = held;
  return found == 15;
}

__attribute__((constructor)) static void start(void) {
  verbose = (int)number("SIMULATED_CARD_LOG", 0);
  pool_most = number("SIMULATED_CARD_POOL_MOST", pool_most);
  copy_most = number("SIMULATED_CARD_COPY_MOST", copy_most);
  fixed_workspace = getenv("SIMULATED_CARD_CONVOLUTION_WORKSPACE") != 0;
  convolution_workspace = number("SIMULATED_CARD_CONVOLUTION_WORKSPACE", 0);
  product_workspace = number("SIMULATED_CARD_PRODUCT_WORKSPACE", 0);
  recurrent_reserve = number("SIMULATED_CARD_RECURRENT_RESERVE", 0);
  batch_norm_reserve = number("SIMULATED_CARD_BATCH_NORM_RESERVE", 0);
  const char *listed = getenv("SIMULATED_CARDS");
  char *list = strdup(listed ? listed : ""), *rest;
  for (char *text = strtok_r(list, ";", &rest); text && card_count < MOST_CARDS;
       text = strtok_r(0, ";", &rest))
    if (read_card(text, &cards[card_count]))
      card_count++;
    else
      fprintf(stderr, "simulated_card: a card that cannot be read: %s\n", text);
  free(list);
}

__attribute__((destructor)) static void stop(void) {
  for (int i = 0; i < card_count; i++)
    say(1, "%s: %llu requests of memory, at most %.1f MiB at once", cards[i].name,
        (unsigned long long)cards[i].calls, (double)cards[i].peak / MIB);
}
