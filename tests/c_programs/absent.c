/* A library of the same name in which nothing works: what a program was linked with, before the file was replaced. */
#include "nccl.h"

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int ndev, const int *devices) {
  return (void)comms, (void)ndev, (void)devices, ncclSystemError;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId *id) { return (void)id, ncclSystemError; }
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank) {
  return (void)comm, (void)nranks, (void)id, (void)rank, ncclSystemError;
}
ncclResult_t ncclGroupStart(void) { return ncclSystemError; }
ncclResult_t ncclGroupEnd(void) { return ncclSystemError; }
ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return (void)in, (void)out, (void)count, (void)type, (void)op, (void)comm, (void)stream, ncclSystemError;
}
ncclResult_t ncclBcast(void *buff, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return (void)buff, (void)count, (void)type, (void)root, (void)comm, (void)stream, ncclSystemError;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) { return (void)comm, ncclSystemError; }
const char *ncclGetErrorString(ncclResult_t result) { return (void)result, "this library does nothing"; }
