/* A CUDA driver for tests: what is compiled in with -D goes wrong. */
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
