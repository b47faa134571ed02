// NVML: asked about links between cards; there are none.
#include "../runtime/phantom.h"

API(nvmlInit_v2)(void) { return OK; }
API(nvmlShutdown)(void) { return OK; }
API(nvmlErrorString)(int e) { return (long)"phantom NVML"; }
API(nvmlDeviceGetHandleByPciBusId_v2)(const char *id, void **h) { return some(h); }
API(nvmlDeviceGetHandleByIndex_v2)(unsigned i, void **h) { return some(h); }
API(nvmlDeviceGetCount_v2)(unsigned *n) {
  *n = card_count;
  return OK;
}
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
  return 3;
}
API(nvmlDeviceGetGpuFabricInfoV)(void *h, void *v) { return 3; }
API(nvmlSystemGetDriverVersion)(char *s, unsigned n) {
  snprintf(s, n, "575.0.0");
  return OK;
}
