// NVML: the cards, their memory use by process, and links between them (none).
//
// A card counts only this process' memory. SIMULATED_CARD_NEIGHBOURS lists other processes on the first card,
// as "pid:bytes,pid:bytes"; their bytes are part of the memory held besides the context.
#include "../runtime/simulated_card.h"
#include <unistd.h>

enum {
  NVML_INVALID = 2,
  NVML_NOT_SUPPORTED = 3,
  NVML_NOT_FOUND = 6,
  NVML_INSUFFICIENT_SIZE = 7,
  MOST_NEIGHBOURS = 16
};

typedef struct {
  unsigned pid;
  unsigned long long used;
  unsigned instance, compute_instance;
} Process;

API(nvmlInit_v2)(void) { return OK; }
API(nvmlInitWithFlags)(unsigned flags) { return OK; }
API(nvmlShutdown)(void) { return OK; }
API(nvmlErrorString)(int e) { return (long)"simulated_card NVML"; }

static long handle_of(unsigned i, void **h) {
  if (i >= (unsigned)card_count)
    return NVML_NOT_FOUND;
  *h = &cards[i];
  return OK;
}
static Card *card_of(void *h) {
  Card *c = h;
  return c >= cards && c < cards + card_count ? c : 0;
}
API(nvmlDeviceGetHandleByIndex_v2)(unsigned i, void **h) { return handle_of(i, h); }
API(nvmlDeviceGetHandleByPciBusId_v2)(const char *id, void **h) {
  const char *bus = strchr(id, ':'); // 0000:01:00.0, as cuDeviceGetPCIBusId says
  return bus ? handle_of((unsigned)strtoul(bus + 1, 0, 16) - 1, h) : NVML_INVALID;
}
API(nvmlDeviceGetCount_v2)(unsigned *n) {
  *n = card_count;
  return OK;
}
API(nvmlDeviceGetName)(void *h, char *s, unsigned n) {
  Card *c = card_of(h);
  if (!c)
    return NVML_INVALID;
  snprintf(s, n, "%s", c->name);
  return OK;
}
API(nvmlDeviceGetCudaComputeCapability)(void *h, int *major, int *minor) {
  Card *c = card_of(h);
  if (!c)
    return NVML_INVALID;
  *major = c->major;
  *minor = c->minor;
  return OK;
}
typedef struct {
  char old_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char id[32];
} PciInfo;
API(nvmlDeviceGetPciInfo_v3)(void *h, PciInfo *p) { // as cuDeviceGetPCIBusId says
  Card *c = card_of(h);
  if (!c)
    return NVML_INVALID;
  *p = (PciInfo){.bus = (unsigned)(c - cards) + 1};
  snprintf(p->old_id, sizeof p->old_id, "0000:%02X:00.0", p->bus);
  snprintf(p->id, sizeof p->id, "00000000:%02X:00.0", p->bus);
  return OK;
}
API(nvmlDeviceGetUUID)(void *h, char *s, unsigned n) {
  Card *c = card_of(h);
  if (!c)
    return NVML_INVALID;
  snprintf(s, n, "GPU-73696d75-6c61-7400-0000-%012lx", (unsigned long)(c - cards));
  return OK;
}

// ---- memory -----------------------------------------------------------------------------------
static unsigned neighbours(Card *c, Process *found, uint64_t *bytes) {
  const char *text = getenv("SIMULATED_CARD_NEIGHBOURS");
  unsigned n = 0;
  *bytes = 0;
  while (c == cards && text && *text && n < MOST_NEIGHBOURS) {
    char *rest;
    Process p = {(unsigned)strtoul(text, &rest, 10), 0, ~0u, ~0u};
    if (*rest != ':')
      break;
    p.used = strtoull(rest + 1, &rest, 10);
    *bytes += p.used;
    found[n++] = p;
    text = *rest == ',' ? rest + 1 : 0;
  }
  return n;
}
// Return the number of processes on the card: the others, and this one after its first request.
static unsigned processes(Card *c, Process *found, uint64_t *used) {
  uint64_t others;
  unsigned n = neighbours(c, found, &others);
  *used = others;
  pthread_mutex_lock(&lock);
  if (c->calls) {
    uint64_t own = c->used + (c->held > others ? c->held - others : 0);
    found[n++] = (Process){(unsigned)getpid(), own, ~0u, ~0u};
    *used += own;
  }
  pthread_mutex_unlock(&lock);
  return n;
}
API(nvmlDeviceGetMemoryInfo)(void *h, unsigned long long *m) { // total, free, used
  Card *c = card_of(h);
  Process all[MOST_NEIGHBOURS + 1];
  uint64_t used;
  if (!c)
    return NVML_INVALID;
  processes(c, all, &used);
  m[0] = c->room;
  m[1] = c->room - used;
  m[2] = used;
  return OK;
}
API(nvmlDeviceGetMemoryInfo_v2)(void *h, unsigned long long *m) { // version, total, reserved, free, used
  unsigned long long plain[3];
  long r = nvmlDeviceGetMemoryInfo(h, plain);
  if (r)
    return r;
  m[1] = plain[0];
  m[2] = 0;
  m[3] = plain[1];
  m[4] = plain[2];
  return OK;
}
API(nvmlDeviceGetComputeRunningProcesses_v3)(void *h, unsigned *count, Process *out) {
  Card *c = card_of(h);
  Process all[MOST_NEIGHBOURS + 1];
  uint64_t used;
  if (!c)
    return NVML_INVALID;
  unsigned n = processes(c, all, &used), room = *count;
  *count = n;
  if (n > room || (n && !out))
    return NVML_INSUFFICIENT_SIZE;
  memcpy(out, all, n * sizeof *all);
  return OK;
}
API(nvmlDeviceGetGraphicsRunningProcesses_v3)(void *h, unsigned *count, Process *out) {
  *count = 0;
  return OK;
}

API(nvmlDeviceGetUtilizationRates)(void *h, unsigned *rates) { // of no kernel that ran
  rates[0] = rates[1] = 0;
  return card_of(h) ? OK : NVML_INVALID;
}
API(nvmlDeviceGetIndex)(void *h, unsigned *i) {
  Card *c = card_of(h);
  *i = c ? (unsigned)(c - cards) : 0;
  return c ? OK : NVML_INVALID;
}
API(nvmlDeviceGetMinorNumber)(void *h, unsigned *i) { return nvmlDeviceGetIndex(h, i); }
API(nvmlDeviceGetTemperature)(void *h, int sensor, unsigned *v) { return NVML_NOT_SUPPORTED; }
API(nvmlDeviceGetTemperatureV)(void *h, void *v) { return NVML_NOT_SUPPORTED; }
API(nvmlDeviceGetPowerUsage)(void *h, unsigned *v) { return NVML_NOT_SUPPORTED; }
API(nvmlSystemGetNVMLVersion)(char *s, unsigned n) {
  snprintf(s, n, "12.575.0");
  return OK;
}

// ---- the rest -----------------------------------------------------------------------------------
API(nvmlDeviceGetComputeMode)(void *h, int *mode) {
  *mode = 0;
  return OK;
}
API(nvmlDeviceGetMigMode)(void *h, unsigned *now, unsigned *next) { return NVML_NOT_SUPPORTED; }
API(nvmlDeviceGetCurrPcieLinkGeneration)(void *h, unsigned *v) {
  *v = 3;
  return OK;
}
API(nvmlDeviceGetCurrPcieLinkWidth)(void *h, unsigned *v) {
  *v = 16;
  return OK;
}
API(nvmlDeviceGetNvLinkState)(void *h, unsigned link, int *v) {
  *v = 0;
  return NVML_NOT_SUPPORTED;
}
API(nvmlDeviceGetGpuFabricInfoV)(void *h, void *v) { return NVML_NOT_SUPPORTED; }
API(nvmlSystemGetDriverVersion)(char *s, unsigned n) {
  snprintf(s, n, "575.0.0");
  return OK;
}
API(nvmlSystemGetCudaDriverVersion_v2)(int *v) {
  *v = 12090;
  return OK;
}
API(nvmlSystemGetCudaDriverVersion)(int *v) { return nvmlSystemGetCudaDriverVersion_v2(v); }
