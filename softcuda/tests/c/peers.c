/* Several devices of one process: peer access, and copies from one to another. */
#include <cuda.h>

#include "check.h"

enum { N = 100000 };
static unsigned char seen[N];

int main(void) {
  CUcontext zero, one;
  CUdeviceptr a, b;
  CUstream stream;
  CUevent event;
  int can = -1;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&zero, 0));
  OK(cuDevicePrimaryCtxRetain(&one, 1));
  OK(cuDeviceCanAccessPeer(&can, 0, 1));
  CHECK(can == 1);
  OK(cuDeviceCanAccessPeer(&can, 0, 0));
  CHECK(can == 0); /* a device is not its own peer */
  EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceCanAccessPeer(&can, 0, 4711));
  OK(cuDeviceGetP2PAttribute(&can, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1));
  CHECK(can == 1);

  OK(cuCtxSetCurrent(zero));
  EXPECT(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(one));
  OK(cuCtxEnablePeerAccess(one, 0));
  EXPECT(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(one, 0));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxEnablePeerAccess(zero, 0)); /* the current one */
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuCtxEnablePeerAccess(one, 1));

  OK(cuMemAlloc(&a, N));
  OK(cuMemsetD8(a, 7, N));
  OK(cuCtxSetCurrent(one));
  OK(cuMemAlloc(&b, N));
  OK(cuMemsetD8(b, 9, N));
  OK(cuMemcpyPeer(b, one, a, zero, N));
  OK(cuMemcpyDtoH(seen, b, N));
  for (int i = 0; i < N; i++) CHECK(seen[i] == 7);

  /* an event of device 0 orders a stream of device 1 */
  OK(cuCtxSetCurrent(zero));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuMemsetD8Async(a, 8, N, stream));
  OK(cuEventRecord(event, stream));
  CUstream other;
  OK(cuCtxSetCurrent(one));
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  OK(cuStreamWaitEvent(other, event, 0));
  OK(cuMemcpyPeerAsync(b, one, a, zero, N, other));
  OK(cuStreamSynchronize(other));
  OK(cuMemcpyDtoH(seen, b, N));
  for (int i = 0; i < N; i++) CHECK(seen[i] == 8);
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(event, other)); /* its stream must be on its device */
  OK(cuStreamDestroy(other));
  OK(cuMemFree(b));
  OK(cuCtxSetCurrent(zero));
  OK(cuStreamDestroy(stream));
  OK(cuEventDestroy(event));
  OK(cuMemFree(a));
  OK(cuCtxDisablePeerAccess(one));
  return 0;
}
