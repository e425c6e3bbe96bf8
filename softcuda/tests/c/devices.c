/* Devices of the driver API: how many, what they are called, what they say about themselves. */
#include <cuda.h>

#include <strings.h>

#include "check.h"

static void errors_before_init(void) {
  int count;
  EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&count));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuInit(7));
  OK(cuInit(0));
  OK(cuInit(0));
}

static void identities(int count) {
  CUuuid uuids[64];
  char bus[64][32], name[100], cut[4];
  for (int i = 0; i < count; i++) {
    CUdevice device, again;
    int domain, id, slot;
    char expected[32];
    OK(cuDeviceGet(&device, i));
    OK(cuDeviceGetName(name, sizeof name, device));
    CHECK(strlen(name) > 3);
    OK(cuDeviceGetName(cut, sizeof cut, device));
    CHECK(strlen(cut) == 3 && strncmp(cut, name, 3) == 0);
    OK(cuDeviceGetUuid(&uuids[i], device));
    OK(cuDeviceGetPCIBusId(bus[i], sizeof bus[i], device));
    OK(cuDeviceGetByPCIBusId(&again, bus[i]));
    CHECK(again == device);
    OK(cuDeviceGetAttribute(&domain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, device));
    OK(cuDeviceGetAttribute(&id, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device));
    OK(cuDeviceGetAttribute(&slot, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, device));
    snprintf(expected, sizeof expected, "%04x:%02x:%02x.0", domain, id, slot);
    CHECK(strcasecmp(expected, bus[i]) == 0);
    for (int j = 0; j < i; j++) {
      CHECK(memcmp(&uuids[i], &uuids[j], sizeof uuids[i]) != 0);
      CHECK(strcmp(bus[i], bus[j]) != 0);
    }
  }
}

static void attributes(int count) {
  for (CUdevice device = 0; device < count; device++) {
    size_t total;
    int value, major, minor;
    OK(cuDeviceTotalMem(&total, device));
    CHECK(total >= 1u << 30);
    OK(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
    OK(cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device));
    CHECK(major >= 7 && minor >= 0);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
    CHECK(value > 0);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, device));
    CHECK(value == 32);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, device));
    CHECK(value == 1);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, device));
    CHECK(value == 1024);
  }
}

static void bad_input(int count) {
  CUdevice device;
  int value;
  char bus[32];
  EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&device, count));
  EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&device, -1));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGet(NULL, 0));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetCount(NULL));
  EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, count));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute(&value, (CUdevice_attribute)100000, 0));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetByPCIBusId(&device, "not a bus id"));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetByPCIBusId(&device, NULL));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetPCIBusId(bus, 3, 0));
  EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetPCIBusId(bus, sizeof bus, count));
}

static void entry_points(void) {
  void *function = NULL;
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
  int version = 0;
  const char *text = NULL;
  OK(cuDriverGetVersion(&version));
  CHECK(version >= 13000);
  OK(cuGetProcAddress("cuMemAlloc", &function, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &found));
  CHECK(function != NULL && found == CU_GET_PROC_ADDRESS_SUCCESS);
  cuGetProcAddress("cuNoSuchCall", &function, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &found);
  CHECK(function == NULL && found == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
  CHECK(strcmp(text, "CUDA_ERROR_OUT_OF_MEMORY") == 0);
  OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
  CHECK(strstr(text, "memory") != NULL);
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuGetErrorName((CUresult)12345, &text));
}

/* Another process sees the same devices. `self` prints what it sees when it has an argument. */
static void same_elsewhere(const char *self, int count) {
  char command[4096], line[64];
  snprintf(command, sizeof command, "'%s' print", self);
  FILE *other = popen(command, "r");
  CHECK(other != NULL);
  for (CUdevice device = 0; device < count; device++) {
    CUuuid uuid;
    char mine[64];
    OK(cuDeviceGetUuid(&uuid, device));
    for (int i = 0; i < 16; i++) sprintf(mine + 2 * i, "%02x", (unsigned char)uuid.bytes[i]);
    CHECK(fgets(line, sizeof line, other) != NULL);
    CHECK(strncmp(line, mine, 32) == 0);
  }
  OK(pclose(other));
}

int main(int argc, char **argv) {
  int count;
  if (argc > 1) {
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    for (CUdevice device = 0; device < count; device++) {
      CUuuid uuid;
      OK(cuDeviceGetUuid(&uuid, device));
      for (int i = 0; i < 16; i++) printf("%02x", (unsigned char)uuid.bytes[i]);
      printf("\n");
    }
    return 0;
  }
  errors_before_init();
  OK(cuDeviceGetCount(&count));
  CHECK(count == atoi(getenv("SOFTCUDA_DEVICES")) && count <= 64);
  identities(count);
  attributes(count);
  bad_input(count);
  entry_points();
  same_elsewhere(argv[0], count);
  return 0;
}
