// Declarations shared by the parts of the simulated card. benchmarks/results/simulated-card.md names the
// source of each signature, number and offset.
#ifndef SIMULATED_CARD_H
#define SIMULATED_CARD_H
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A function that TensorFlow looks up by name. All return the API's status, 0 for success.
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

// ---- cards.c: the cards described by the process' environment variables --------------------------
typedef struct {
  char name[128];
  int major, minor;           // compute capability
  int sms;                    // multiprocessors
  int clock_khz, memory_khz;  // maximum clocks
  int bus_bits;               // width of the memory bus
  int l2_kib;                 // L2 cache
  int threads, blocks;        // maximum resident on one multiprocessor
  int shared_kib, optin_kib;  // shared memory of a multiprocessor, and the limit of one block
  uint64_t total;             // bytes of the device, by which XLA plans
  uint64_t room, held;        // bytes that a process may take, bytes of the context among them
  uint64_t used, peak, calls; // bytes allocated, their maximum so far, number of requests
} Card;
extern Card cards[MOST_CARDS];
extern int card_count;
extern uint64_t pool_most;  // free memory of a card that TensorFlow is told of
extern uint64_t copy_most;  // longest copy to a card that keeps its bytes
extern uint64_t kernel_ns;  // duration of a kernel on its stream
extern int fixed_workspace; // whether each convolution plan reports these bytes:
extern uint64_t convolution_workspace;
extern uint64_t product_workspace;  // bytes reported for each cuBLASLt product
extern uint64_t recurrent_reserve;  // numbers for each unit, step and row; 0 for the formula
extern uint64_t batch_norm_reserve; // bytes of each batch normalization
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
  int is_used; // the allocator has given out memory of it
} Block;
extern pthread_mutex_t lock; // guards the cards' counters and the blocks
Block *find(const void *p);  // the block around an address; needs the lock
void *reserve(uint64_t size);
uint64_t left_of_pinned(const char *p); // bytes from an address to the end of pinned host memory; or 0

// ---- copies.c: known bytes of the card's memory; all others read as 0
void know(const char *p, uint64_t n);          // bytes at p were copied or computed
void know_truths(char *p, uint64_t n);         // n booleans at p are all true
void forget(const char *p, uint64_t n);        // unknown bytes were written at p
void forget_tensor(const char *p, uint64_t n); // p is the memory of a new tensor

// ---- chunk_table.c: the allocator's table of chunks
void note_table(char *at, size_t bytes); // a new block of host memory
void share_table(uint64_t pool_bytes);   // the first chunk of a pool was allocated

// ---- kernels.c: outputs of kernels
uint64_t left_of(const char *p); // bytes from an address to its block's end; 0 outside device memory
void clear(char *p);             // lets a result read as 0

// ---- streams.c: all work is complete when enqueued, except callbacks to the host
void launch(void *stream);
void launch_for(void *stream, uint64_t ns); // work whose duration events report
void mark_modules(void *stream);            // the stream runs compiled modules (XLA)
int runs_modules(void *stream);

// ---- handles.c: one block serves as every opaque handle
extern char handle_block[4096];
long some(void **p);
void put(char *p, size_t at, const void *v, size_t n); // write into a structure at an offset

#endif
