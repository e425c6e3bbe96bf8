/* The host side of the device API as far as the library has it, with the names and layouts of NVIDIA's header of this
 * name, which has the rest, too. facts.expected says that the two agree. */
#ifndef NCCL_DEVICE_H_
#define NCCL_DEVICE_H_

#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#else
#include <stdbool.h>
#endif

typedef struct ncclTeam {
  int nRanks, rank, stride;
} ncclTeam_t;

typedef enum { ncclCftTeamModeFirst = 0, ncclCftTeamModeLast = 2 } ncclCftTeamMode_t;

typedef struct ncclMultimemHandle {
  void *mcBasePtr;
} ncclMultimemHandle_t;

typedef struct ncclLsaBarrierHandle {
  uint32_t bufHandle;
  int nBarriers;
} ncclLsaBarrierHandle_t;

typedef struct ncclGinBarrierHandle {
  uint32_t signal0;
  uint32_t unused;
} ncclGinBarrierHandle_t;

typedef struct ncclLLA2AHandle {
  uint32_t bufHandle;
  uint32_t nSlots;
} ncclLLA2AHandle_t;

typedef struct ncclDevResourceRequirements {
  struct ncclDevResourceRequirements *next;
  size_t bufferSize, bufferAlign;
  uint32_t *outBufferHandle;
  int ginSignalCount, ginCounterCount;
  uint32_t *outGinSignalStart, *outGinCounterStart;
} ncclDevResourceRequirements_t;

typedef struct ncclCommProperties {
  size_t size;
  unsigned int magic, version;
  int rank, nRanks, cudaDev, nvmlDev;
  bool deviceApiSupport, multimemSupport;
  int ginType, nLsaTeams;
  bool hostRmaSupport;
  int railedGinType;
  uint64_t commHash;
  int ginMinStride, ginConnectionType;
  bool ginSupport[64];
  size_t devCommRuntimeVersionSize;
  bool cftSupport, cftMulticastSupport, cftCountedSupport;
} ncclCommProperties_t;

typedef struct ncclDevCommRequirements {
  size_t size;
  unsigned int magic, version;
  uint64_t rest[13];
} ncclDevCommRequirements_t;

typedef struct ncclDevComm {
  unsigned int magic, version;
  uint64_t rest[30];
} ncclDevComm_t;

ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t *props);
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t *reqs, ncclDevComm_t *outDevComm);
ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t *devComm);

ncclTeam_t ncclTeamWorld(ncclComm_t comm);
ncclTeam_t ncclTeamLsa(ncclComm_t comm);
ncclTeam_t ncclTeamRail(ncclComm_t comm);
ncclTeam_t ncclTeamCft(ncclComm_t comm, ncclCftTeamMode_t mode);
ncclTeam_t ncclTeamCftMultimem(ncclComm_t comm);
int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank);
int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank);

ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int lsaRank, void **outPtr);
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void **outPtr);
ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void **outPtr);
ncclResult_t ncclGetMultimemDevicePointer(ncclWindow_t window, size_t offset, ncclMultimemHandle_t multimem,
                                          void **outPtr);
ncclResult_t ncclGetMultimemDeviceLeInfo(ncclWindow_t window, size_t offset, uint32_t *leId, size_t *leOffset);
ncclResult_t ncclGetCftDeviceLeInfo(ncclWindow_t window, size_t offset, int peerCft, ncclTeam_t cftTeam, uint32_t *leId,
                                    size_t *leOffset);
ncclResult_t ncclGetPeerDeviceLeInfo(ncclWindow_t window, size_t offset, int peerWorld, uint32_t *leId,
                                     size_t *leOffset);

ncclResult_t ncclLsaBarrierCreateRequirement(ncclTeam_t team, int nBarriers, ncclLsaBarrierHandle_t *outHandle,
                                             ncclDevResourceRequirements_t *outReq);
ncclResult_t ncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam_t team, int nBarriers,
                                             ncclGinBarrierHandle_t *outHandle, ncclDevResourceRequirements_t *outReq);
int ncclLLA2ACalcSlots(int maxElts, int maxEltSize);
ncclResult_t ncclLLA2ACreateRequirement(int nBlocks, int nSlots, ncclLLA2AHandle_t *outHandle,
                                        ncclDevResourceRequirements_t *outReq);

#ifdef __cplusplus
}
#endif

#endif
