// What the parts of the phantom card share. See benchmarks/results/phantom.md for where each signature, number and
// offset was read.
#ifndef PHANTOM_H
#define PHANTOM_H
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// An entry that TensorFlow looks up by its name. All of them return the API's status, 0 for success.
#define API(name) __attribute__((visibility("default"))) long name
#define MIB (1024ull * 1024)
#define MOST_CARDS 16

enum {
  OK = 0,
  INVALID = 1,
  NO_MEMORY = 2,
  NO_DEVICE = 100,
  NO_SUCH_DEVICE = 101,
  NOT_FOUND = 500,
  NOT_READY = 600,
  NOT_SUPPORTED = 801
};

// ---- cards.c: the cards, as the environment of the process describes them --------------------------
typedef struct {
  char name[128];
  int major, minor;           // compute capability
  int sms;                    // multiprocessors
  int clock_khz, memory_khz;  // highest clocks
  int bus_bits;               // width of the memory bus
  int l2_kib;                 // L2 cache
  int threads, blocks;        // most that live on one multiprocessor at once
  int shared_kib, optin_kib;  // shared memory of a multiprocessor, and what one block may take
  uint64_t total, held;       // bytes that CUDA reports, bytes that a context keeps of them
  uint64_t used, peak, calls; // bytes handed out, the most so far, how many requests
} Card;
extern Card cards[MOST_CARDS];
extern int card_count;
extern uint64_t copy_most;             // longest copy to a card whose bytes are kept
extern uint64_t kernel_ns;             // time that a launch takes on its stream
extern uint64_t convolution_workspace; // bytes that each convolution plan states
extern uint64_t product_workspace;     // bytes that each cuBLASLt product states
extern uint64_t recurrent_reserve;     // numbers kept for each unit, step and row; 0 for the formula
extern uint64_t batch_norm_reserve;    // bytes that each batch normalization keeps
void say(int level, const char *format, ...);

// ---- devices.c: contexts ------------------------------------------------------------------------
extern __thread int current;   // card of the calling thread
extern __thread Card *context; // the driver's current context: a card, or none

// ---- memory.c: device memory is reserved address space with a counter ------------------------------
typedef struct Block {
  char *at;
  uint64_t size, charged;
  int card;
  struct Block *next;
} Block;
extern pthread_mutex_t lock; // of the cards' counters and the blocks
Block *find(const void *p);  // the block that holds an address, with the lock held
void *reserve(uint64_t size);

// ---- copies.c: what is known of the card's memory; all else reads as 0
void know(const char *p, uint64_t n);   // bytes were copied or computed there
void know_truths(char *p, uint64_t n);  // the same: truths, all of which hold
void forget(const char *p, uint64_t n); // something else was written there

// ---- kernels.c: what a kernel would have written
uint64_t left_of(const char *p); // bytes of device memory from an address on; 0 where it is none
void clear(char *p);             // a result reads as 0

// ---- streams.c: everything is done when it is enqueued, but for callbacks to the host
// -----------------
void launch(void *stream);
void mark_modules(void *stream); // the stream runs compiled modules, as XLA's do
int runs_modules(void *stream);

// ---- handles.c: one block stands for whatever the caller only hands back
// -------------------------------
extern char handle_block[4096];
long some(void **p);
void put(char *p, size_t at, const void *v, size_t n); // write into a structure at an offset

#endif
