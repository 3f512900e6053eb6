/* A CUDA driver for tests: what is compiled in with -D goes wrong. */
#include <string.h>
#include <unistd.h>
#ifndef STATUS
#define STATUS 0
#endif
#ifndef COUNT
#define COUNT 1
#endif
#ifndef NO_INIT
int cuInit(unsigned flags) { (void)flags; return STATUS; }
#endif
int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
int cuDeviceGetCount(int *n) { *n = COUNT; return 0; }
int cuGetErrorName(int status, const char **text) { (void)status; *text = "CUDA_ERROR_TEST"; return 0; }
int cuGetErrorString(int status, const char **text) { (void)status; *text = "a text of the driver"; return 0; }
/* What a Python child asks before TensorRT does anything. */
int cuDeviceGet(int *d, int i) { *d = i; return 0; }
int cuDeviceGetName(char *b, int n, int d) { (void)d; strncpy(b, "Test GPU", n); return 0; }
int cuDeviceGetUuid(void *b, int d) { (void)d; memset(b, 1, 16); return 0; }
int cuDeviceGetAttribute(int *v, int what, int d) { (void)d; *v = what == 75 ? 9 : 0; return 0; }
int cuDeviceTotalMem_v2(size_t *n, int d) { (void)d; *n = (size_t)8 << 30; return 0; }
int cuDevicePrimaryCtxRetain(void **c, int d) { (void)d; *c = (void *)1; return 0; }
int cuCtxSetCurrent(void *c) { (void)c; return 0; }
int cuMemGetInfo_v2(size_t *available, size_t *total) { *total = (size_t)8 << 30; *available = (size_t)4 << 30; return 0; }
