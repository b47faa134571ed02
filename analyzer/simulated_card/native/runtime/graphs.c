// CUDA graphs: XLA records a step's launches in a graph; a node is a counter. Also the driver's linker,
// which accepts any input.
#include "simulated_card.h"

typedef struct {
  int nodes;
} Graph;
static __thread Graph *captured;
static long graph_new(Graph **g) {
  *g = calloc(1, 64);
  return OK;
}
static long node(void **n, Graph *g) {
  g->nodes++;
  return some(n);
}
API(cuGraphCreate)(Graph **g, unsigned f) { return graph_new(g); }
API(cuGraphDestroy)(Graph *g) { return OK; } // parents may still point to it: not freed
API(cuGraphAddKernelNode_v2)(void **n, Graph *g) { return node(n, g); }
API(cuGraphAddMemcpyNode)(void **n, Graph *g) { return node(n, g); }
API(cuGraphAddMemsetNode)(void **n, Graph *g) { return node(n, g); }
API(cuGraphAddEmptyNode)(void **n, Graph *g) { return node(n, g); }
API(cuGraphAddChildGraphNode)(void **n, Graph *g) { return node(n, g); }
static long
node_of(void **n, Graph *g,
        char *p) { // a conditional node (type 13) owns an array of body graphs that the caller reads
  if (*(int *)p == 13) {
    unsigned count = *(unsigned *)(p + 28);
    Graph **bodies = calloc(count ? count : 1, sizeof *bodies);
    for (unsigned i = 0; i < count; i++)
      graph_new(&bodies[i]);
    *(Graph ***)(p + 32) = bodies;
  }
  return node(n, g);
}
API(cuGraphAddNode)(void **n, Graph *g, const void *d, uint64_t k, char *p) { return node_of(n, g, p); }
API(cuGraphAddNode_v2)(void **n, Graph *g, const void *d, const void *e, uint64_t k, char *p) {
  return node_of(n, g, p);
}
API(cuGraphConditionalHandleCreate)(uint64_t *h, Graph *g, void *c, unsigned v, unsigned f) {
  *h = 1;
  return OK;
}
API(cuStreamBeginCaptureToGraph)(void *s, Graph *g) {
  captured = g;
  return OK;
}
API(cuStreamBeginCapture_v2)(void *s, int mode) { return graph_new(&captured); }
API(cuStreamEndCapture)(void *s, Graph **g) {
  if (!captured)
    graph_new(&captured);
  captured->nodes++;
  *g = captured;
  captured = 0;
  return OK;
}
API(cuGraphGetNodes)(Graph *g, void **n, uint64_t *count) {
  if (n)
    for (uint64_t i = 0; i < *count; i++)
      n[i] = handle_block;
  *count = g->nodes;
  return OK;
}
API(cuGraphGetRootNodes)(Graph *g, void **n, uint64_t *count) {
  if (n)
    for (uint64_t i = 0; i < *count; i++)
      n[i] = handle_block;
  *count = g->nodes ? 1 : 0;
  return OK;
}
API(cuGraphInstantiate)(void **e, Graph *g) { return some(e); }
API(cuGraphInstantiateWithFlags)(void **e, Graph *g) { return some(e); }
API(cuGraphExecUpdate_v2)(void *e, Graph *g, int *result) {
  if (result)
    *result = 0;
  return OK;
}
API(cuGraphLaunch)(void *e, void *s) {
  mark_modules(s);
  launch(s);
  return OK;
}

// ---- the driver's compiler: any PTX becomes a module
API(cuLinkCreate_v2)(unsigned n, void *o, void *v, void **l) { return some(l); }
API(cuLinkComplete)(void *l, void **image, uint64_t *n) {
  *image = handle_block;
  *n = 64;
  return OK;
}
