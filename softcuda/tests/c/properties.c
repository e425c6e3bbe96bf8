/* cudaGetDeviceProperties agrees with the attributes, member by member. */
#include <cuda_runtime_api.h>

#include "check.h"

static struct cudaDeviceProp p;

static void same(int device, enum cudaDeviceAttr attribute, long long member, int line) {
  int value = -1;
  OK(cudaDeviceGetAttribute(&value, attribute, device));
  if (value != member) {
    fprintf(stderr, "line %d: attribute %d is %d, the member %lld\n", line, (int)attribute, value, member);
    exit(1);
  }
}

#define SAME(attribute, member) same(device, cudaDevAttr##attribute, (long long)p.member, __LINE__)

static void members(int device) {
  SAME(MaxSharedMemoryPerBlock, sharedMemPerBlock);
  SAME(MaxRegistersPerBlock, regsPerBlock);
  SAME(WarpSize, warpSize);
  SAME(MaxPitch, memPitch);
  SAME(MaxThreadsPerBlock, maxThreadsPerBlock);
  SAME(MaxBlockDimX, maxThreadsDim[0]);
  SAME(MaxBlockDimZ, maxThreadsDim[2]);
  SAME(MaxGridDimX, maxGridSize[0]);
  SAME(MaxGridDimZ, maxGridSize[2]);
  SAME(TotalConstantMemory, totalConstMem);
  SAME(ComputeCapabilityMajor, major);
  SAME(ComputeCapabilityMinor, minor);
  SAME(TextureAlignment, textureAlignment);
  SAME(TexturePitchAlignment, texturePitchAlignment);
  SAME(MultiProcessorCount, multiProcessorCount);
  SAME(Integrated, integrated);
  SAME(CanMapHostMemory, canMapHostMemory);
  SAME(MaxTexture1DWidth, maxTexture1D);
  SAME(MaxTexture3DDepthAlt, maxTexture3DAlt[2]);
  SAME(MaxTextureCubemapLayeredLayers, maxTextureCubemapLayered[1]);
  SAME(MaxSurface1DWidth, maxSurface1D);
  SAME(MaxSurfaceCubemapLayeredLayers, maxSurfaceCubemapLayered[1]);
  SAME(SurfaceAlignment, surfaceAlignment);
  SAME(ConcurrentKernels, concurrentKernels);
  SAME(EccEnabled, ECCEnabled);
  SAME(PciBusId, pciBusID);
  SAME(PciDeviceId, pciDeviceID);
  SAME(PciDomainId, pciDomainID);
  SAME(AsyncEngineCount, asyncEngineCount);
  SAME(UnifiedAddressing, unifiedAddressing);
  SAME(GlobalMemoryBusWidth, memoryBusWidth);
  SAME(L2CacheSize, l2CacheSize);
  SAME(MaxThreadsPerMultiProcessor, maxThreadsPerMultiProcessor);
  SAME(StreamPrioritiesSupported, streamPrioritiesSupported);
  SAME(MaxSharedMemoryPerMultiprocessor, sharedMemPerMultiprocessor);
  SAME(MaxRegistersPerMultiprocessor, regsPerMultiprocessor);
  SAME(ManagedMemory, managedMemory);
  SAME(HostNativeAtomicSupported, hostNativeAtomicSupported);
  SAME(PageableMemoryAccess, pageableMemoryAccess);
  SAME(ConcurrentManagedAccess, concurrentManagedAccess);
  SAME(CanUseHostPointerForRegisteredMem, canUseHostPointerForRegisteredMem);
  SAME(CooperativeLaunch, cooperativeLaunch);
  SAME(MaxSharedMemoryPerBlockOptin, sharedMemPerBlockOptin);
  SAME(MaxBlocksPerMultiprocessor, maxBlocksPerMultiProcessor);
  SAME(ReservedSharedMemoryPerBlock, reservedSharedMemPerBlock);
  SAME(HostRegisterSupported, hostRegisterSupported);
  SAME(MemoryPoolsSupported, memoryPoolsSupported);
  SAME(GPUDirectRDMASupported, gpuDirectRDMASupported);
  SAME(IpcEventSupport, ipcEventSupported);
  SAME(ClusterLaunch, clusterLaunch);
  SAME(NumaId, deviceNumaId);
  SAME(HostNumaId, hostNumaId);
}

int main(void) {
  int count = 0, before = -1, after = -1;
  char bus[32], expected[32];
  OK(cudaGetDeviceCount(&count));
  CHECK(count == atoi(getenv("SOFTCUDA_DEVICES")));
  OK(cudaGetDevice(&before));
  for (int device = 0; device < count; device++) {
    int again = -1, zeros = 0;
    memset(&p, 0x5c, sizeof p);
    OK(cudaGetDeviceProperties(&p, device));
    CHECK(memchr(p.name, 0, sizeof p.name) != NULL && p.name[0] != 0);
    CHECK(p.totalGlobalMem >= 1u << 30 && p.warpSize == 32 && p.maxThreadsPerBlock == 1024);
    for (int i = 0; i < 16; i++) zeros += p.uuid.bytes[i] == 0;
    CHECK(zeros < 16);
    for (size_t i = 0; i < sizeof p.reserved / sizeof p.reserved[0]; i++) CHECK(p.reserved[i] == 0);
    members(device);
    snprintf(expected, sizeof expected, "%04x:%02x:%02x.0", p.pciDomainID, p.pciBusID, p.pciDeviceID);
    OK(cudaDeviceGetPCIBusId(bus, sizeof bus, device));
    for (char *c = bus; *c; c++) *c = (char)(*c >= 'A' && *c <= 'F' ? *c + 32 : *c);
    CHECK(strcmp(bus, expected) == 0);
    OK(cudaDeviceGetByPCIBusId(&again, bus));
    CHECK(again == device);
  }
  OK(cudaGetDevice(&after));
  CHECK(before == after);
  EXPECT(cudaErrorInvalidDevice, cudaGetDeviceProperties(&p, count));
  EXPECT(cudaErrorInvalidDevice, cudaGetDeviceProperties(&p, -1));
  EXPECT(cudaErrorInvalidValue, cudaGetDeviceProperties(NULL, 0));
  return 0;
}
