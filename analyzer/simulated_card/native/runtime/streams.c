// Streams, events and callbacks to the host.
//
// All work is complete when enqueued, except host callbacks: a worker for each stream calls them in
// order. A kernel takes ``kernel_ns`` on its stream; events complete after it.
#include "simulated_card.h"
#include <time.h>

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static void sleep_to(uint64_t t) {
  uint64_t n = now();
  if (t > n) {
    struct timespec d = {(t - n) / 1000000000, (t - n) % 1000000000};
    nanosleep(&d, 0);
  }
}
typedef struct Call {
  uint64_t ready;
  void (*f)(void *);
  void (*g)(void *, int, void *);
  void *data;
  struct Stream *stream;
  struct Call *next;
} Call;
typedef struct Stream {
  pthread_mutex_t lock;
  pthread_cond_t cond;
  Call *head, **tail;
  uint64_t queued, done, busy, clock; // clock: summed durations of the work so far
  int modules, worker, quit, device, flags, priority;
} Stream;
typedef struct {
  Stream *stream;
  uint64_t at, ready, clock;
} Event;
static Stream null_stream = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, &null_stream.head};
static Stream *real(void *s) { return (uintptr_t)s < 16 ? &null_stream : s; }
void mark_modules(void *stream) { real(stream)->modules = 1; }
int runs_modules(void *stream) { return real(stream)->modules; }
// Delays that vary the order of a step's ops, as threads and cards of other speeds would: a thread waits up
// to launch_most_ns before it launches a kernel, and each kernel takes kernel_ns. With tick_ns all threads
// launch at its multiples alone: branches that wait for values then go on side by side, as on a card that has
// the values at once. All waits of a step take about MOST_WAITS_NS, if it launches as many kernels as were
// launched between the calls before.
enum { MOST_WAITS_NS = 50000000 };
static uint64_t launch_most_ns, tick_ns, launched, launches_of_step;
API(simulated_card_delay)(uint64_t launch_ns, uint64_t kernel, uint64_t tick) {
  uint64_t recent = __atomic_exchange_n(&launched, 0, __ATOMIC_RELAXED);
  if (recent)
    launches_of_step = recent;
  uint64_t share = launches_of_step ? 2ull * MOST_WAITS_NS / launches_of_step : UINT64_MAX;
  launch_most_ns = launch_ns < share ? launch_ns : share;
  kernel_ns = kernel < share ? kernel : share;
  tick_ns = tick < share / 2 ? tick : share / 2;
  return OK;
}
static void delay_launch(void) {
  static __thread unsigned seed;
  if (!seed)
    seed = (unsigned)now() | 1;
  sleep_to(now() + rand_r(&seed) % launch_most_ns);
}
void launch(void *stream) {
  __atomic_add_fetch(&launched, 1, __ATOMIC_RELAXED);
  if (launch_most_ns)
    delay_launch();
  if (tick_ns)
    sleep_to((now() / tick_ns + 1) * tick_ns);
  if (!kernel_ns)
    return;
  Stream *s = real(stream);
  uint64_t n = now();
  pthread_mutex_lock(&s->lock);
  s->busy = (s->busy > n ? s->busy : n) + kernel_ns;
  pthread_mutex_unlock(&s->lock);
}
void launch_for(void *stream, uint64_t ns) {
  Stream *s = real(stream);
  pthread_mutex_lock(&s->lock);
  s->clock += ns;
  pthread_mutex_unlock(&s->lock);
  launch(stream);
}
static void *work(void *a) {
  Stream *s = a;
  pthread_mutex_lock(&s->lock);
  for (;;) {
    while (!s->head && !s->quit)
      pthread_cond_wait(&s->cond, &s->lock);
    if (!s->head)
      break;
    Call *c = s->head;
    if (!(s->head = c->next))
      s->tail = &s->head;
    pthread_mutex_unlock(&s->lock);
    current = s->device;
    context = &cards[s->device];
    sleep_to(c->ready);
    if (c->f)
      c->f(c->data);
    else
      c->g(c->stream, 0, c->data);
    free(c);
    pthread_mutex_lock(&s->lock);
    s->done++;
    pthread_cond_broadcast(&s->cond);
  }
  pthread_mutex_unlock(&s->lock);
  free(s);
  return 0;
}
static long later(void *p, void (*f)(void *), void (*g)(void *, int, void *), void *data) {
  Stream *s = real(p);
  Call *c = calloc(1, sizeof *c);
  *c = (Call){0, f, g, data, p, 0};
  pthread_mutex_lock(&s->lock);
  c->ready = s->busy;
  *s->tail = c;
  s->tail = &c->next;
  s->queued++;
  if (!s->worker) {
    pthread_t t;
    s->worker = !pthread_create(&t, 0, work, s);
    if (s->worker)
      pthread_detach(t);
  }
  pthread_cond_broadcast(&s->cond);
  pthread_mutex_unlock(&s->lock);
  return OK;
}
static long wait_for(Stream *s, uint64_t at) {
  pthread_mutex_lock(&s->lock);
  while (s->done < at)
    pthread_cond_wait(&s->cond, &s->lock);
  pthread_mutex_unlock(&s->lock);
  return OK;
}
static long settle(void *p) {
  Stream *s = real(p);
  pthread_mutex_lock(&s->lock);
  uint64_t at = s->queued, busy = s->busy;
  pthread_mutex_unlock(&s->lock);
  sleep_to(busy);
  return wait_for(s, at);
}
static long stream_new(void **p, int flags, int priority) {
  Stream *s = calloc(1, sizeof *s);
  pthread_mutex_init(&s->lock, 0);
  pthread_cond_init(&s->cond, 0);
  s->tail = &s->head;
  s->device = current;
  s->flags = flags;
  s->priority = priority;
  *p = s;
  return OK;
}
static long stream_end(void *p) {
  Stream *s = real(p);
  if (s == &null_stream)
    return OK;
  pthread_mutex_lock(&s->lock);
  int w = s->worker;
  s->quit = 1;
  pthread_cond_broadcast(&s->cond);
  pthread_mutex_unlock(&s->lock);
  if (!w)
    free(s);
  return OK;
}
API(cuStreamCreate)(void **s, unsigned f) { return stream_new(s, f, 0); }
API(cuStreamCreateWithPriority)(void **s, unsigned f, int p) { return stream_new(s, f, p); }
API(cudaStreamCreate)(void **s) { return stream_new(s, 0, 0); }
API(cudaStreamCreateWithFlags)(void **s, unsigned f) { return stream_new(s, f, 0); }
API(cudaStreamCreateWithPriority)(void **s, unsigned f, int p) { return stream_new(s, f, p); }
API(cuStreamDestroy_v2)(void *s) { return stream_end(s); }
API(cudaStreamDestroy)(void *s) { return stream_end(s); }
API(cuStreamSynchronize)(void *s) { return settle(s); }
API(cudaStreamSynchronize)(void *s) { return settle(s); }
API(cuStreamQuery)(void *p) {
  Stream *s = real(p);
  pthread_mutex_lock(&s->lock);
  int r = s->done < s->queued || (s->busy && s->busy > now());
  pthread_mutex_unlock(&s->lock);
  return r ? NOT_READY : OK;
}
API(cudaStreamQuery)(void *p) { return cuStreamQuery(p); }
API(cuStreamGetPriority)(void *s, int *p) {
  *p = real(s)->priority;
  return OK;
}
API(cuStreamGetFlags)(void *s, unsigned *f) {
  *f = real(s)->flags;
  return OK;
}
API(cuStreamGetCtx)(void *s, Card **c) {
  *c = &cards[real(s)->device];
  return OK;
}
API(cuStreamGetId)(void *s, uint64_t *i) {
  *i = (uint64_t)s;
  return OK;
}
API(cuStreamIsCapturing)(void *s, int *v) {
  *v = 0;
  return OK;
}
API(cudaStreamIsCapturing)(void *s, int *v) {
  *v = 0;
  return OK;
}
API(cuStreamGetCaptureInfo_v2)(void *s, int *v, uint64_t *id, void **g, void **d, uint64_t *n) {
  *v = 0;
  if (id)
    *id = 0;
  if (g)
    *g = 0;
  if (d)
    *d = 0;
  if (n)
    *n = 0;
  return OK;
}
API(cuLaunchHostFunc)(void *s, void (*f)(void *), void *data) { return later(s, f, 0, data); }
API(cudaLaunchHostFunc)(void *s, void (*f)(void *), void *data) { return later(s, f, 0, data); }
API(cuStreamAddCallback)(void *s, void (*g)(void *, int, void *), void *data, unsigned f) {
  return later(s, 0, g, data);
}
API(cudaStreamAddCallback)(void *s, void (*g)(void *, int, void *), void *data, unsigned f) {
  return later(s, 0, g, data);
}
static long event_new(void **e) {
  *e = calloc(1, sizeof(Event));
  return OK;
}
static long event_mark(Event *e, void *p) {
  Stream *s = real(p);
  pthread_mutex_lock(&s->lock);
  e->at = s->queued;
  e->ready = s->busy;
  e->clock = s->clock;
  e->stream = s;
  pthread_mutex_unlock(&s->lock);
  return OK;
}
static long event_done(Event *e) {
  Stream *s = e->stream;
  if (!s)
    return OK;
  pthread_mutex_lock(&s->lock);
  int r = s->done < e->at || (e->ready && e->ready > now());
  pthread_mutex_unlock(&s->lock);
  return r ? NOT_READY : OK;
}
static long event_wait(Event *e) {
  if (e->ready)
    sleep_to(e->ready);
  return e->stream ? wait_for(e->stream, e->at) : OK;
}
API(cuStreamWaitEvent)(void *p, Event *e, unsigned f) {
  Stream *s = real(p);
  pthread_mutex_lock(&s->lock);
  if (e->ready > s->busy)
    s->busy = e->ready;
  pthread_mutex_unlock(&s->lock);
  return OK;
}
API(cuEventCreate)(void **e, unsigned f) { return event_new(e); }
API(cudaEventCreate)(void **e) { return event_new(e); }
API(cudaEventCreateWithFlags)(void **e, unsigned f) { return event_new(e); }
API(cuEventDestroy_v2)(void *e) {
  free(e);
  return OK;
}
API(cudaEventDestroy)(void *e) {
  free(e);
  return OK;
}
API(cuEventRecord)(Event *e, void *s) { return event_mark(e, s); }
API(cuEventRecordWithFlags)(Event *e, void *s, unsigned f) { return event_mark(e, s); }
API(cudaEventRecord)(Event *e, void *s) { return event_mark(e, s); }
API(cuEventQuery)(Event *e) { return event_done(e); }
API(cudaEventQuery)(Event *e) { return event_done(e); }
API(cuEventSynchronize)(Event *e) { return event_wait(e); }
API(cudaEventSynchronize)(Event *e) { return event_wait(e); }
static long elapsed(float *ms, const Event *a, const Event *b) {
  *ms = 0.1f + (a && b ? (float)(b->clock - a->clock) / 1e6f : 0);
  return OK;
}
API(cuEventElapsedTime)(float *ms, Event *a, Event *b) { return elapsed(ms, a, b); }
API(cudaEventElapsedTime)(float *ms, Event *a, Event *b) { return elapsed(ms, a, b); }
