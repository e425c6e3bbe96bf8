/* Virtual memory management: memory by handle, addresses, access, and descriptors passed to another process. */
#include <cuda.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "check.h"

enum { DEVICES = 4 };
static const size_t GRAIN = 2 << 20;

static CUmemAllocationProp on_device(int device) {
  CUmemAllocationProp prop;
  memset(&prop, 0, sizeof prop);
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  return prop;
}

static CUmemAccessDesc access_of(CUmemLocationType type, int id, CUmemAccess_flags flags) {
  CUmemAccessDesc desc;
  memset(&desc, 0, sizeof desc);
  desc.location.type = type;
  desc.location.id = id;
  desc.flags = flags;
  return desc;
}

static void context_of_device(int device) {
  CUcontext context;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, device));
  OK(cuCtxSetCurrent(context));
}

static unsigned long long access_at(int device, CUdeviceptr at) {
  unsigned long long flags = 99;
  CUmemLocation location = access_of(CU_MEM_LOCATION_TYPE_DEVICE, device, 0).location;
  OK(cuMemGetAccess(&flags, &location, at));
  return flags;
}

static size_t free_memory(void) {
  size_t free, total;
  OK(cuMemGetInfo(&free, &total));
  return free;
}

static int attribute(CUdevice_attribute which) {
  int value = -1;
  OK(cuDeviceGetAttribute(&value, which, 0));
  return value;
}

static void what_devices_say(void) {
  CHECK(attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 1);
  CHECK(attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) == 1);
  CHECK(attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 1);
  CHECK(attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED) == 0);
  CHECK(attribute(CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED) == 0);
  CHECK(attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) == 0);
}

/* Multicast is refused, as the attribute says, whatever the arguments are. */
static void no_multicast(void) {
  const char *names[] = {"cuMulticastCreate", "cuMulticastAddDevice", "cuMulticastBindMem", "cuMulticastUnbind"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    void *function = NULL;
    CUdriverProcAddressQueryResult found;
    OK(cuGetProcAddress(names[i], &function, 12010, 0, &found));
    CUresult (*call)(size_t, size_t, size_t, size_t, size_t, size_t);
    memcpy(&call, &function, sizeof call);
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, call(0, 0, 0, 0, 0, 0));
  }
}

/* Memory with one mapping, from its creation to its end. */
static void one_life(void) {
  CUmemGenericAllocationHandle handle, again;
  CUmemAllocationProp prop = on_device(0), told;
  CUdeviceptr p, base;
  size_t grain = 0, size = 0, before = free_memory();
  unsigned char seen[4] = {0};
  int fds = open_fds();
  OK(cuMemGetAllocationGranularity(&grain, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CHECK(grain == GRAIN);
  OK(cuMemGetAllocationGranularity(&grain, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  CHECK(grain == GRAIN);
  OK(cuMemCreate(&handle, 2 * GRAIN, &prop, 0));
  CHECK(before - free_memory() == 2 * GRAIN);
  OK(cuMemAddressReserve(&p, 4 * GRAIN, 0, 0, 0));
  CHECK(p % GRAIN == 0);
  OK(cuMemMap(p, 2 * GRAIN, 0, handle, 0));
  /* nobody has access yet */
  CHECK(access_at(0, p) == CU_MEM_ACCESS_FLAGS_PROT_NONE);
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(p, 1, 1));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(seen, p, 1));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy((CUdeviceptr)(uintptr_t)seen, p, 1));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue32(0, p, 1, 0));
  CUmemAccessDesc desc = access_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  OK(cuMemSetAccess(p, 2 * GRAIN, &desc, 1));
  CHECK(access_at(0, p + GRAIN) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE && access_at(1, p) == 0);
  OK(cuMemsetD8(p, 0x5a, 2 * GRAIN));
  OK(cuMemcpyDtoH(seen, p + 2 * GRAIN - 4, 4));
  CHECK(seen[0] == 0x5a && seen[3] == 0x5a);
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(p + GRAIN, 0, GRAIN + 1)); /* past the mapping */
  OK(cuMemGetAddressRange(&base, &size, p + 12345));
  CHECK(base == p && size == 2 * GRAIN);
  OK(cuMemGetAllocationPropertiesFromHandle(&told, handle));
  CHECK(memcmp(&told, &prop, sizeof prop) == 0);
  /* the handle goes, the memory stays; a retained handle is the same one */
  OK(cuMemRelease(handle));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemRelease(handle));
  OK(cuMemcpyDtoH(seen, p, 4));
  OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(p + GRAIN)));
  CHECK(again == handle);
  CHECK(before - free_memory() == 2 * GRAIN);
  OK(cuMemUnmap(p, 2 * GRAIN));
  CHECK(before - free_memory() == 2 * GRAIN);
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(seen, p, 1));
  /* mapped again, it is what it was, and access starts from nothing */
  OK(cuMemMap(p + GRAIN, 2 * GRAIN, 0, again, 0));
  CHECK(access_at(0, p + GRAIN) == 0);
  OK(cuMemRelease(again));
  OK(cuMemSetAccess(p + GRAIN, 2 * GRAIN, &desc, 1));
  seen[0] = 0;
  OK(cuMemcpyDtoH(seen, p + GRAIN, 4));
  CHECK(seen[0] == 0x5a);
  OK(cuMemUnmap(p + GRAIN, 2 * GRAIN));
  CHECK(free_memory() == before);
  OK(cuMemAddressFree(p, 4 * GRAIN));
  CHECK(open_fds() == fds);
}

/* Several pieces side by side, as an allocator grows a segment. */
static void segments(void) {
  enum { N = 5 };
  CUmemAllocationProp prop = on_device(0);
  CUmemAccessDesc desc = access_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CUmemGenericAllocationHandle handle;
  CUdeviceptr p, plain;
  unsigned long long first, second;
  unsigned char *seen = malloc(N * GRAIN);
  OK(cuMemAddressReserve(&p, N * GRAIN, GRAIN, 0, 0));
  for (int i = 0; i < N; i++) {
    OK(cuMemCreate(&handle, GRAIN, &prop, 0));
    OK(cuMemMap(p + i * GRAIN, GRAIN, 0, handle, 0));
    OK(cuMemRelease(handle));
  }
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemSetAccess(p, N * GRAIN + GRAIN, &desc, 1));
  OK(cuMemSetAccess(p, (N - 1) * GRAIN, &desc, 1));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(p, 1, N * GRAIN)); /* the last one is not accessible */
  OK(cuMemSetAccess(p, N * GRAIN, &desc, 1));
  OK(cuMemsetD8(p + 100, 0x33, N * GRAIN - 100)); /* across all of them */
  OK(cuMemcpyDtoH(seen, p, N * GRAIN));
  CHECK(seen[100] == 0x33 && seen[3 * GRAIN] == 0x33 && seen[N * GRAIN - 1] == 0x33);
  OK(cuPointerGetAttribute(&first, CU_POINTER_ATTRIBUTE_BUFFER_ID, p));
  OK(cuPointerGetAttribute(&second, CU_POINTER_ATTRIBUTE_BUFFER_ID, p + GRAIN));
  CHECK(first != second);
  OK(cuMemUnmap(p + GRAIN, 2 * GRAIN)); /* two at once, from the midst */
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(p, 1, 2 * GRAIN));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(p, N * GRAIN)); /* has a hole */
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(p, N * GRAIN)); /* still in use */
  OK(cuMemUnmap(p, GRAIN));
  OK(cuMemUnmap(p + 3 * GRAIN, 2 * GRAIN));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(p, GRAIN));
  OK(cuMemAddressFree(p, N * GRAIN));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(p, N * GRAIN));
  OK(cuMemAlloc(&plain, GRAIN));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(plain, GRAIN));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemSetAccess(plain, GRAIN, &desc, 1));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)plain));
  OK(cuMemFree(plain));
  free(seen);
}

/* Each device has rights of its own; reading is not writing; two addresses of one memory. */
static void rights(void) {
  CUmemAllocationProp prop = on_device(1);
  CUmemGenericAllocationHandle handle;
  CUcontext zero, one;
  CUdeviceptr p, q;
  unsigned char byte = 7;
  OK(cuMemCreate(&handle, GRAIN, &prop, 0));
  OK(cuMemAddressReserve(&p, GRAIN, 0, 0, 0));
  OK(cuMemAddressReserve(&q, GRAIN, 0, 0, 0));
  OK(cuMemMap(p, GRAIN, 0, handle, 0));
  OK(cuMemMap(q, GRAIN, 0, handle, 0));
  CUmemAccessDesc owner = access_of(CU_MEM_LOCATION_TYPE_DEVICE, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CUmemAccessDesc reader = access_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_ACCESS_FLAGS_PROT_READ);
  OK(cuMemSetAccess(p, GRAIN, &owner, 1));
  OK(cuMemSetAccess(q, GRAIN, &reader, 1));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(p, &byte, 1)); /* device 0 is current */
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(q, &byte, 1)); /* may only read */
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(q, 1, 1));
  OK(cuCtxGetCurrent(&zero));
  OK(cuDevicePrimaryCtxRetain(&one, 1));
  OK(cuCtxPushCurrent(one));
  OK(cuMemcpyHtoD(p, &byte, 1));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(&byte, q, 1));
  OK(cuCtxPopCurrent(&one));
  byte = 0;
  OK(cuMemcpyDtoH(&byte, q, 1));
  CHECK(byte == 7);
  /* between contexts it goes by whichever device has access */
  CUdeviceptr here;
  OK(cuMemAlloc(&here, 1));
  OK(cuMemcpyPeer(here, zero, p, one, 1));
  OK(cuMemFree(here));
  owner.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  OK(cuMemSetAccess(p, GRAIN, &owner, 1));
  CHECK(access_at(1, p) == 0);
  CHECK(cuMemcpyPeer(p, zero, q, one, 1) == CUDA_ERROR_INVALID_VALUE);
  OK(cuMemUnmap(p, GRAIN));
  OK(cuMemUnmap(q, GRAIN));
  OK(cuMemRelease(handle));
  OK(cuMemAddressFree(p, GRAIN));
  OK(cuMemAddressFree(q, GRAIN));
  OK(cuDevicePrimaryCtxRelease(1));
}

static void pointers(void) {
  CUmemAllocationProp prop = on_device(2);
  CUmemAccessDesc desc = access_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CUmemGenericAllocationHandle handle;
  CUipcMemHandle ipc;
  CUdeviceptr p, start;
  unsigned type = 0, flags = 0;
  int ordinal = -9;
  unsigned char legacy = 9, managed = 9;
  unsigned long long types = 0;
  size_t size = 0;
  OK(cuMemCreate(&handle, GRAIN, &prop, 0));
  OK(cuMemAddressReserve(&p, GRAIN, 0, 0, 0));
  OK(cuMemMap(p, GRAIN, 0, handle, 0));
  OK(cuMemSetAccess(p, GRAIN, &desc, 1));
  OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p + 1));
  OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p + 1));
  OK(cuPointerGetAttribute(&legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p));
  OK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, p));
  OK(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, p));
  OK(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p + 5));
  OK(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, p + 5));
  OK(cuPointerGetAttribute(&flags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, p));
  CHECK(type == CU_MEMORYTYPE_DEVICE && ordinal == 2 && legacy == 0 && managed == 0);
  CHECK(types == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && start == p && size == GRAIN && flags == 3);
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&ipc, p));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree(p));
  OK(cuMemUnmap(p, GRAIN));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
  OK(cuMemAddressFree(p, GRAIN));
  OK(cuMemRelease(handle));
}

static void host_memory(CUmemLocationType type) {
  CUmemAllocationProp prop = on_device(0);
  CUmemGenericAllocationHandle handle;
  CUdeviceptr p;
  unsigned kind = 0;
  size_t before = free_memory();
  prop.location.type = type;
  if (type == CU_MEM_LOCATION_TYPE_HOST) {
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, GRAIN, &prop, 0)); /* no handle types for this */
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  }
  OK(cuMemCreate(&handle, GRAIN, &prop, 0));
  CHECK(free_memory() == before); /* not the device's */
  OK(cuMemAddressReserve(&p, GRAIN, 0, 0, 0));
  OK(cuMemMap(p, GRAIN, 0, handle, 0));
  OK(cuMemRelease(handle));
  CUmemAccessDesc both[2] = {access_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
                             access_of(type, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)};
  OK(cuMemSetAccess(p, GRAIN, both, 2));
  *(volatile int *)(uintptr_t)p = 41;
  OK(cuMemsetD8(p + 4, 1, 4));
  OK(cuCtxSynchronize());
  CHECK(((volatile int *)(uintptr_t)p)[0] == 41 && ((volatile int *)(uintptr_t)p)[1] == 0x01010101);
  OK(cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
  CHECK(kind == CU_MEMORYTYPE_HOST);
  OK(cuMemUnmap(p, GRAIN));
  OK(cuMemAddressFree(p, GRAIN));
}

static void bad_input(void) {
  CUmemAllocationProp prop = on_device(0), bad;
  CUmemGenericAllocationHandle handle, other;
  CUmemAccessDesc desc = access_of(CU_MEM_LOCATION_TYPE_HOST, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CUdeviceptr p, q;
  size_t grain;
  int fd = -1;
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, GRAIN + 4096, &prop, 0));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, 0, &prop, 0));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, GRAIN, &prop, 1));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, GRAIN, NULL, 0));
  EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&handle, (size_t)1 << 46, &prop, 0));
  bad = prop;
  bad.location.id = DEVICES;
  EXPECT(CUDA_ERROR_INVALID_DEVICE, cuMemCreate(&handle, GRAIN, &bad, 0));
  bad = prop;
  bad.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuMemCreate(&handle, GRAIN, &bad, 0));
  EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuMemGetAllocationGranularity(&grain, &bad, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  bad = prop;
  bad.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, GRAIN, &bad, 0));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&p, 100, 0, 0, 0));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&p, GRAIN, 3 << 20, 0, 0));
  OK(cuMemAddressReserve(&p, 2 * GRAIN, 16 * GRAIN, 0, 0));
  CHECK(p % (16 * GRAIN) == 0);
  OK(cuMemAddressReserve(&q, GRAIN, 0, p, 0)); /* a hint that cannot be followed */
  CHECK(q != p);
  OK(cuMemAddressFree(q, GRAIN));
  OK(cuMemCreate(&handle, GRAIN, &prop, 0));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMap(p, 2 * GRAIN, 0, handle, 0)); /* more than there is */
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMap(p, GRAIN, GRAIN, handle, 0));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMap(p + 2 * GRAIN, GRAIN, 0, handle, 0)); /* not reserved */
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMap(p, GRAIN, 0, handle + 16, 0));
  OK(cuMemMap(p, GRAIN, 0, handle, 0));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMap(p, GRAIN, 0, handle, 0)); /* taken */
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(p + 4096, GRAIN));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(p, 2 * GRAIN));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemSetAccess(p, GRAIN, &desc, 1)); /* the host, to device memory */
  desc = access_of(CU_MEM_LOCATION_TYPE_DEVICE, DEVICES, CU_MEM_ACCESS_FLAGS_PROT_READ);
  EXPECT(CUDA_ERROR_INVALID_DEVICE, cuMemSetAccess(p, GRAIN, &desc, 1));
  desc = access_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, (CUmemAccess_flags)2);
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemSetAccess(p, GRAIN, &desc, 1));
  EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0));
  EXPECT(CUDA_ERROR_INVALID_VALUE,
         cuMemExportToShareableHandle(&fd, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  OK(cuMemUnmap(p, GRAIN));
  OK(cuMemRelease(handle));
  bad = prop;
  bad.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  OK(cuMemCreate(&handle, GRAIN, &bad, 0));
  EXPECT(CUDA_ERROR_INVALID_VALUE,
         cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  OK(cuMemRelease(handle));
  /* descriptors of other things, and a file that looks like ours but could be cut off under a mapping */
  int files[] = {-1, 12345, 0, memfd_create("softcuda-vmm-00-d0-1-2097152", 0)};
  OK(ftruncate(files[3], (off_t)GRAIN));
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    void *shared = (void *)(uintptr_t)files[i];
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuMemImportFromShareableHandle(&other, shared, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  }
  close(files[3]);
  OK(cuMemAddressFree(p, 2 * GRAIN));
}

static void send_fd(int socket, int fd) {
  char byte = 'f', control[CMSG_SPACE(sizeof fd)];
  struct iovec io = {&byte, 1};
  struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  struct cmsghdr *head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(head), &fd, sizeof fd);
  CHECK(sendmsg(socket, &message, 0) == 1);
}

static int receive_fd(int socket) {
  char byte, control[CMSG_SPACE(sizeof(int))];
  struct iovec io = {&byte, 1};
  struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  int fd = -1;
  CHECK(recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == 1);
  struct cmsghdr *head = CMSG_FIRSTHDR(&message);
  CHECK(head != NULL && head->cmsg_type == SCM_RIGHTS);
  memcpy(&fd, CMSG_DATA(head), sizeof fd);
  return fd;
}

/* Imports the parent's memory of device 2, which may not be visible here. */
static int child(int socket) {
  CUmemGenericAllocationHandle handle;
  CUmemAllocationProp told;
  CUdeviceptr p;
  char byte = 'c';
  int count = 0, ordinal = -9;
  context_of_device(0);
  OK(cuDeviceGetCount(&count));
  size_t before = free_memory();
  int fd = receive_fd(socket);
  OK(cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(fd);
  OK(cuMemGetAllocationPropertiesFromHandle(&told, handle));
  if (count == DEVICES) {
    CHECK(told.location.type == CU_MEM_LOCATION_TYPE_DEVICE && told.location.id == 2);
  } else {
    CHECK((int)told.location.type == 5 && told.location.id == -2); /* invisible */
  }
  OK(cuMemAddressReserve(&p, 2 * GRAIN, 0, 0, 0));
  OK(cuMemMap(p, 2 * GRAIN, 0, handle, 0));
  OK(cuMemRelease(handle));
  CUmemAccessDesc desc = access_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  OK(cuMemSetAccess(p, 2 * GRAIN, &desc, 1));
  OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
  CHECK(ordinal == (count == DEVICES ? 2 : -2));
  unsigned char seen = 0;
  OK(cuMemcpyDtoH(&seen, p + GRAIN, 1));
  CHECK(seen == 0x77);
  OK(cuMemsetD8(p, 0x88, 1));
  OK(cuCtxSynchronize());
  CHECK(free_memory() == before); /* it is on the other's account */
  CHECK(write(socket, &byte, 1) == 1);
  CHECK(read(socket, &byte, 1) == 1); /* the parent has freed everything */
  OK(cuMemcpyDtoH(&seen, p + GRAIN, 1));
  CHECK(seen == 0x77);
  OK(cuMemUnmap(p, 2 * GRAIN));
  OK(cuMemAddressFree(p, 2 * GRAIN));
  return 0;
}

static void share(const char *self, const char *visible) {
  int ends[2], fd = -1, status;
  CUmemAllocationProp prop = on_device(2);
  CUmemAccessDesc desc = access_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CUmemGenericAllocationHandle handle, same;
  CUdeviceptr p;
  unsigned char seen = 0;
  char byte = 'p';
  OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    dup2(ends[1], 3);
    closefrom(4);
    if (visible != NULL) setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    execl(self, self, "child", (char *)NULL);
    _exit(127);
  }
  close(ends[1]);
  OK(cuMemCreate(&handle, 2 * GRAIN, &prop, 0));
  OK(cuMemAddressReserve(&p, 2 * GRAIN, 0, 0, 0));
  OK(cuMemMap(p, 2 * GRAIN, 0, handle, 0));
  OK(cuMemSetAccess(p, 2 * GRAIN, &desc, 1));
  OK(cuMemsetD8(p, 0x77, 2 * GRAIN));
  OK(cuCtxSynchronize());
  OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CHECK(ftruncate(fd, 0) != 0); /* sealed */
  send_fd(ends[0], fd);
  /* in the same process it is memory like any other */
  OK(cuMemImportFromShareableHandle(&same, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  OK(cuMemRelease(same));
  close(fd);
  CHECK(read(ends[0], &byte, 1) == 1);
  OK(cuMemcpyDtoH(&seen, p, 1));
  CHECK(seen == 0x88);
  OK(cuMemUnmap(p, 2 * GRAIN));
  OK(cuMemRelease(handle));
  OK(cuMemAddressFree(p, 2 * GRAIN));
  CHECK(write(ends[0], &byte, 1) == 1);
  CHECK(waitpid(pid, &status, 0) == pid);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  close(ends[0]);
}

int main(int argc, char **argv) {
  if (argc > 1) return child(3);
  signal(SIGPIPE, SIG_IGN);
  context_of_device(0);
  what_devices_say();
  no_multicast();
  one_life();
  segments();
  rights();
  pointers();
  host_memory(CU_MEM_LOCATION_TYPE_HOST);
  host_memory(CU_MEM_LOCATION_TYPE_HOST_NUMA);
  bad_input();
  share(argv[0], NULL);
  share(argv[0], "3,1");
  int before = open_fds();
  for (int i = 0; i < 3; i++) one_life();
  CHECK(open_fds() == before);
  return 0;
}
