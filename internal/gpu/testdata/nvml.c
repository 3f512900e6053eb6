/* An NVML with one GPU for tests: what is compiled in with -D goes wrong. The
   padding makes a file of which something is missing when it is cut. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
const char padding[1 << 20] = {1};
typedef struct { unsigned long long total, free, used; } memory;
#ifndef NO_INIT
int nvmlInit_v2(void) {
#ifdef ABORTS
  abort();
#endif
#ifdef HANGS
  for (;;) pause();
#endif
  return padding[1];
}
#endif
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int status) { (void)status; return "a text of NVML"; }
int nvmlSystemGetDriverVersion(char *b, unsigned n) { strncpy(b, "580.1", n); return 0; }
int nvmlSystemGetCudaDriverVersion(int *v) { *v = 13000; return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = (void *)(size_t)(i + 1); return 0; }
int nvmlDeviceGetName(void *d, char *b, unsigned n) { (void)d; strncpy(b, "Test GPU", n); return 0; }
int nvmlDeviceGetUUID(void *d, char *b, unsigned n) { (void)d; strncpy(b, "GPU-1", n); return 0; }
int nvmlDeviceGetCudaComputeCapability(void *d, int *major, int *minor) { (void)d; *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetMemoryInfo(void *d, memory *m) { (void)d; m->total = 8ull << 30; m->used = m->free = 4ull << 30; return 0; }
