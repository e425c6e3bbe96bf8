/* A call that softcuda does not have: exported, an error, named once. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "check.h"

int main(void) {
  int (*call)(void *, unsigned int);
  *(void **)&call = dlsym(RTLD_DEFAULT, "cudaMallocArray");
  CHECK(call != NULL);
  EXPECT(cudaErrorNotSupported, call(NULL, 0));
  EXPECT(cudaErrorNotSupported, call(NULL, 0));
  EXPECT(cudaErrorNotSupported, cudaGetLastError());
  OK(cudaGetLastError());
  return 0;
}
