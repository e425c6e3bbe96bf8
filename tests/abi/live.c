/* Calls with arguments of every kind on a communicator of one rank, on the software CUDA device: the checks in
 * their order, the structs of older and newer callers, and the answers for what is not built. Prints each call
 * that answers otherwise than expected, then "done"; the exit status is the number of those calls. */
#include <limits.h>
#include <nccl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

typedef struct {
  int nRanks, rank, stride;
} Team;
ncclResult_t ncclCommQueryProperties(ncclComm_t, void *);
ncclResult_t ncclDevCommCreate(ncclComm_t, const void *, void *);
ncclResult_t ncclDevCommDestroy(ncclComm_t, const void *);
ncclResult_t ncclGinBarrierCreateRequirement(ncclComm_t, Team, int, uint32_t *, void *);
Team ncclTeamWorld(ncclComm_t);
Team ncclTeamLsa(ncclComm_t);
Team ncclTeamRail(ncclComm_t);
Team ncclTeamCft(ncclComm_t, int);
Team ncclTeamCftMultimem(ncclComm_t);
int ncclTeamRankToWorld(ncclComm_t, Team, int);
int ncclTeamRankToLsa(ncclComm_t, Team, int);

static int failures;

static void check(const char *call, long expected, long found, const char *text) {
  const char *last = ncclGetLastError(NULL);
  bool told = text == NULL || strstr(last, text) != NULL;
  if (expected == found && told) return;
  printf("%s: expected %ld%s%s, found %ld (last error: %s)\n", call, expected, told ? "" : " and ", told ? "" : text,
         found, last);
  failures++;
}

#define CODE(expected, call) check(#call, expected, (long)(call), NULL)
#define TELL(expected, text, call) check(#call, expected, (long)(call), text)
#define UNSUPPORTED(name, call) check(#call, 5, (long)(call), #name " is not supported by this version of oxccl")
/* What the call returns, and what the end of its group returns then. */
#define IN_GROUP(expected, call) check("in a group: " #call, expected, (ncclGroupStart(), in_group(call)), NULL)
static long in_group(ncclResult_t call) { return call * 10 + ncclGroupEnd(); }

static float *data;

static ncclResult_t make(ncclComm_t *comm, ncclConfig_t *config) {
  ncclUniqueId id;
  ncclResult_t result = ncclGetUniqueId(&id);
  return result != ncclSuccess ? result : ncclCommInitRankConfig(comm, 1, id, 0, config);
}

/* A configuration is accepted or refused; what was made is destroyed. */
static long try(ncclConfig_t config) {
  ncclComm_t comm = (ncclComm_t)&config;
  ncclResult_t result = make(&comm, &config);
  if (result == ncclSuccess) return ncclCommDestroy(comm);
  return comm == NULL ? (long)result : -1;
}

static void creation(void) {
  ncclUniqueId id;
  ncclComm_t comm = (ncclComm_t)data;
  CODE(0, ncclGetUniqueId(&id));
  TELL(4, "Invalid rank requested : 1/1", ncclCommInitRank(&comm, 1, id, 1));
  CODE(1, comm == NULL);
  TELL(4, "Invalid rank requested : 0/0", ncclCommInitRank(&comm, 0, id, 0));
  TELL(4, "Invalid rank requested : -1/2", ncclCommInitRank(&comm, 2, id, -1));
  TELL(4, "newcomm argument is NULL", ncclCommInitRank(NULL, 1, id, 0));
  TELL(4, "invalid nId 0", ncclCommInitRankScalable(&comm, 1, 0, 0, &id, NULL));
  TELL(4, "invalid nId 2", ncclCommInitRankScalable(&comm, 1, 0, 2, &id, NULL));
  TELL(4, "commIds argument is NULL", ncclCommInitRankScalable(&comm, 1, 0, 1, NULL, NULL));
  IN_GROUP(44, ncclCommInitRank(&comm, 1, id, 3));
  TELL(4, "comms argument is NULL", ncclCommInitAll(NULL, 1, NULL));
  TELL(4, "Invalid device count requested : -1", ncclCommInitAll(&comm, -1, NULL));
  /* A rank that is out of range has ended the rendezvous of this id for all. */
  CODE(0, ncclGetUniqueId(&id));
  CODE(0, ncclCommInitRankScalable(&comm, 1, 0, 1, &id, NULL));
  CODE(0, ncclCommDestroy(comm));
}

#define WITH(field, value) \
  (config = (ncclConfig_t)NCCL_CONFIG_INITIALIZER, config.field = value, config)

static void configurations(void) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  size_t sizes[] = {12, 16, 24, 40, 48, 72, 80, 88, 96, 112, 120, 4096}, i;
  unsigned int versions[] = {0, 21400, 21800, 22703, 22800, 22902, 23003, 23007, 23102, 23203, 99999};
  for (i = 0; i < sizeof sizes / sizeof sizes[0]; i++) CODE(0, try(WITH(size, sizes[i])));
  for (i = 0; i < sizeof versions / sizeof versions[0]; i++) CODE(0, try(WITH(version, versions[i])));
  TELL(4, "ncclConfig_t argument not initialized", try(WITH(magic, 0)));
  TELL(4, "its size 0 ends before that", try(WITH(size, 0)));
  TELL(4, "its size 11 ends before that", try(WITH(size, 11)));
  TELL(4, "blocking", try(WITH(blocking, 2)));
  TELL(4, "cgaClusterSize", try(WITH(cgaClusterSize, -1)));
  CODE(0, try(WITH(cgaClusterSize, 9)));
  TELL(4, "minCTAs", try(WITH(minCTAs, 0)));
  CODE(0, try(WITH(minCTAs, 1000)));
  TELL(4, "maxCTAs", try(WITH(maxCTAs, -3)));
  TELL(4, "splitShare", try(WITH(splitShare, 7)));
  CODE(0, try(WITH(trafficClass, -77)));
  TELL(4, "collnetEnable", try(WITH(collnetEnable, 2)));
  TELL(4, "CTAPolicy", try(WITH(CTAPolicy, 4)));
  CODE(0, try(WITH(CTAPolicy, 3)));
  TELL(4, "nvlsCTAs", try(WITH(nvlsCTAs, 0)));
  TELL(4, "nChannelsPerNetPeer", try(WITH(nChannelsPerNetPeer, 65)));
  TELL(4, "graphUsageMode", try(WITH(graphUsageMode, 3)));
  CODE(0, try(WITH(graphStreamOrdering, 0)));
  CODE(0, try(WITH(numRmaCtx, 0)));
  TELL(4, "maxP2pPeers", try(WITH(maxP2pPeers, 0)));
  TELL(4, "launchOrderImplicit", try(WITH(launchOrderImplicit, 2)));
  TELL(4, "numRmaSig", try(WITH(numRmaSig, -1)));
  TELL(4, "rmaEagerInit", try(WITH(rmaEagerInit, 2)));
  TELL(4, "hostCftMode", try(WITH(hostCftMode, 0)));
  CODE(0, try(WITH(nvlsHostMode, 0)));
  CODE(0, try(WITH(nvlsHostMode, INT_MAX)));
  TELL(4, "nvlsHostMode", try(WITH(nvlsHostMode, 4)));
  config = WITH(minCTAs, 8);
  config.maxCTAs = 4;
  TELL(4, "above maxCTAs", try(config));
  /* What lies in the padding of an older struct is not believed. */
  config = WITH(cgaClusterSize, -1);
  config.size = 24;
  config.version = 21400;
  CODE(0, try(config));
  config = WITH(graphStreamOrdering, 99);
  config.size = 96;
  config.version = 23004;
  CODE(0, try(config));
  config.version = 23007;
  TELL(4, "graphStreamOrdering", try(config));
  config = WITH(netName, (const char *)8); /* a pointer that must not be followed */
  config.version = 21400;
  CODE(0, try(config));
}

static void queries(ncclComm_t comm) {
  int n = -1;
  uint64_t value;
  ncclResult_t state = ncclInternalError;
  CODE(0, ncclCommCount(comm, &n));
  CODE(1, n);
  CODE(0, ncclCommUserRank(comm, &n));
  CODE(0, n);
  CODE(0, ncclCommCuDevice(comm, &n));
  CODE(0, n);
  TELL(4, "CommCount : count argument is NULL", ncclCommCount(comm, NULL));
  TELL(4, "CommUserRank : rank argument is NULL", ncclCommUserRank(comm, NULL));
  TELL(4, "CommCuDevice : device argument is NULL", ncclCommCuDevice(comm, NULL));
  CODE(0, ncclCommGetAsyncError(comm, &state));
  CODE(0, state);
  TELL(4, "asyncError argument is NULL", ncclCommGetAsyncError(comm, NULL));
  TELL(4, "value argument is NULL", ncclCommMemStats(comm, ncclStatGpuMemTotal, NULL));
  TELL(4, "invalid stat 9", ncclCommMemStats(comm, (ncclCommMemStat_t)9, &value));
  CODE(0, ncclCommMemStats(comm, ncclStatGpuMemTotal, &value));
}

static void collectives(ncclComm_t comm) {
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  CODE(0, ncclAllReduce(data, data, 4, ncclFloat, ncclSum, comm, NULL));
  CODE(0, ncclAllReduce(NULL, NULL, 0, ncclFloat, ncclSum, comm, NULL));
  TELL(4, "AllReduce : invalid type 12", ncclAllReduce(data, data, 0, ncclNumTypes, ncclSum, comm, NULL));
  TELL(4, "AllReduce : invalid type -1", ncclAllReduce(data, data, 4, (ncclDataType_t)-1, (ncclRedOp_t)-1, comm, NULL));
  TELL(4, "AllReduce : invalid reduction operation -1",
       ncclAllReduce(data, data, 0, ncclFloat, (ncclRedOp_t)-1, comm, NULL));
  TELL(4, "AllReduce : reduction operation 5 unknown to this communicator",
       ncclAllReduce(data, data, 4, ncclFloat, ncclNumOps, comm, NULL));
  TELL(4, "Reduce : invalid root 1 (root should be in the 0..1 range)",
       ncclReduce(data, data, 4, (ncclDataType_t)77, ncclSum, 1, comm, NULL));
  TELL(4, "Broadcast : invalid root -1", ncclBcast(data, 4, ncclFloat, -1, comm, NULL));
  TELL(4, "Send : invalid root 7", ncclSend(data, 4, ncclFloat, 7, comm, NULL));
  CODE(0, ncclReduce(data, data, 4, ncclFloat, ncclSum, 0, comm, NULL));
  CODE(0, ncclBcast(data, 4, ncclFloat, 0, comm, NULL));
  CODE(0, ncclBroadcast(data, data, 4, ncclFloat, 0, comm, NULL));
  CODE(0, ncclReduceScatter(data, data, 4, ncclFloat, ncclSum, comm, NULL));
  CODE(0, ncclAllGather(data, data, 4, ncclFloat, comm, NULL));
  CODE(0, ncclAlltoAll(data, data, 4, ncclFloat, comm, NULL));
  CODE(0, ncclGather(data, data, 4, ncclFloat, 0, comm, NULL));
  CODE(0, ncclScatter(data, data, 4, ncclFloat, 0, comm, NULL));
  TELL(5, "Trying to send to self without a matching recv", ncclSend(data, 0, ncclFloat, 0, comm, NULL));
  TELL(5, "Trying to recv to self without a matching send", ncclRecv(data, 0, ncclFloat, 0, comm, NULL));
  CODE(0, ncclAllGather(NULL, NULL, 0, ncclFloat, comm, NULL));
  IN_GROUP(0, ncclAllGather(data, data, 4, ncclFloat, comm, NULL));
  IN_GROUP(0, ncclAllReduce(data, data, 4, ncclFloat, ncclSum, comm, NULL));

  /* The selection is looked at after the count. */
  config.algSelection = "PAT";
  CODE(0, ncclAllReduceConfig(data, data, 0, ncclFloat, ncclSum, comm, NULL, &config));
  TELL(4, "config->algSelection \"PAT\" cannot be honored for AllReduce",
       ncclAllReduceConfig(data, data, 4, ncclFloat, ncclSum, comm, NULL, &config));
  IN_GROUP(44, ncclAllReduceConfig(data, data, 4, ncclFloat, ncclSum, comm, NULL, &config));
  config.forceAlgSelection = 0;
  CODE(0, ncclAllReduceConfig(data, data, 4, ncclFloat, ncclSum, comm, NULL, &config));
  config.forceAlgSelection = 1;
  config.algSelection = "RING";
  CODE(0, ncclAllReduceConfig(data, data, 4, ncclFloat, ncclSum, comm, NULL, &config));
  TELL(4, "AlltoAll", ncclAlltoAllConfig(data, data, 4, ncclFloat, comm, NULL, &config));
  config.algSelection = "TREE";
  TELL(4, "Broadcast", ncclBroadcastConfig(data, data, 4, ncclFloat, 0, comm, NULL, &config));
}

static void one_sided(ncclComm_t comm) {
  TELL(4, "Signal : invalid root 1", ncclSignal(1, 0, 0, 0, comm, NULL));
  TELL(4, "Signal : host RMA is not supported", ncclSignal(0, 0, 0, 0, comm, NULL));
  TELL(4, "host RMA is not supported", ncclWaitSignal(0, NULL, comm, NULL));
  TELL(4, "host RMA is not supported", ncclPutSignal(data, 4, ncclFloat, 0, NULL, 0, 0, 0, 0, comm, NULL));
}

static void memory(ncclComm_t comm) {
  int flags[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16, 32, 255};
  size_t i;
  void *handle = data, *pointer = data;
  for (i = 0; i < sizeof flags / sizeof flags[0]; i++) {
    ncclWindow_t window = (ncclWindow_t)data;
    bool refused = (flags[i] & 5) == 5;
    CODE(refused ? 4 : 0, ncclCommWindowRegister(comm, data, 4096, &window, flags[i]));
    CODE(1, window == NULL);
  }
  TELL(4, "win argument is NULL", ncclCommWindowRegister(comm, data, 4096, NULL, 0));
  TELL(4, "invalid buffer", ncclCommWindowRegister(comm, data, 0, (ncclWindow_t *)&pointer, 0));
  TELL(4, "invalid buffer", ncclCommWindowRegister(comm, NULL, 64, (ncclWindow_t *)&pointer, 0));
  CODE(0, ncclCommWindowDeregister(comm, NULL));
  CODE(4, ncclCommWindowDeregister(comm, (ncclWindow_t)data));
  CODE(0, ncclWinGetUserPtr(comm, NULL, &pointer));
  CODE(1, pointer == NULL);
  TELL(4, "outUserPtr argument is NULL", ncclWinGetUserPtr(comm, NULL, NULL));
  CODE(0, ncclCommRegister(comm, data, 4096, &handle));
  CODE(1, handle == NULL);
  CODE(0, ncclCommRegister(comm, data, 4096, NULL));
  CODE(0, ncclCommDeregister(comm, NULL));
  TELL(5, "Deregister: Could not find handle", ncclCommDeregister(comm, data));
}

static void operators(ncclComm_t comm, void *data) {
  ncclRedOp_t op = ncclSum;
  float scalar = 2;
  TELL(4, "invalid type 99", ncclRedOpCreatePreMulSum(&op, &scalar, (ncclDataType_t)99, ncclScalarHostImmediate, comm));
  TELL(4, "op argument is NULL", ncclRedOpCreatePreMulSum(NULL, &scalar, ncclFloat, ncclScalarHostImmediate, comm));
  TELL(4, "scalar argument is NULL", ncclRedOpCreatePreMulSum(&op, NULL, ncclFloat, ncclScalarHostImmediate, comm));
  CODE(0, ncclRedOpCreatePreMulSum(&op, &scalar, ncclFloat, ncclScalarHostImmediate, comm));
  CODE(0, ncclAllReduce(data, data, 4, ncclFloat, op, comm, NULL));
  TELL(4, "Data type supplied to user-created ncclRedOp_t does not match",
       ncclAllReduce(data, data, 4, ncclInt, op, comm, NULL));
  CODE(0, ncclRedOpDestroy(op, comm));
  TELL(4, "unknown to this communicator", ncclRedOpDestroy(op, comm));
  TELL(4, "unknown to this communicator", ncclAllReduce(data, data, 4, ncclFloat, op, comm, NULL));
  TELL(4, "unknown to this communicator", ncclRedOpDestroy((ncclRedOp_t)9, comm));
  TELL(4, "NCCL builtin", ncclRedOpDestroy(ncclAvg, comm));
}

static void derived(ncclComm_t comm) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t child = comm;
  ncclUniqueId id;
  int excluded[2] = {3, 0};
  config.magic = 3;
  CODE(0, ncclCommSplit(comm, 0, 0, &child, NULL));
  CODE(1, child != NULL && child != comm);
  CODE(0, ncclCommDestroy(child));
  CODE(0, ncclCommSplit(comm, NCCL_SPLIT_NOCOLOR, 0, &child, NULL));
  CODE(1, child == NULL);
  TELL(4, "newcomm argument is NULL", ncclCommSplit(comm, 0, 0, NULL, NULL));
  TELL(4, "ncclConfig_t", ncclCommSplit(comm, 0, 0, &child, &config));
  IN_GROUP(44, ncclCommSplit(comm, 0, 0, &child, &config));
  TELL(4, "excludeRanksList argument is NULL", ncclCommShrink(comm, NULL, 1, &child, NULL, 0));
  TELL(4, "excludeRanksCount 0", ncclCommShrink(comm, excluded, 0, &child, NULL, 0));
  TELL(4, "in its own excludeRanksList", ncclCommShrink(comm, excluded, 2, &child, NULL, 0));
  TELL(4, "names rank 3 ", ncclCommShrink(comm, excluded + 1, 1, &child, NULL, 0));
  TELL(4, "nRanks 1 is not above", ncclCommGrow(comm, 1, NULL, -1, &child, NULL));
  TELL(4, "it must be -1", ncclCommGrow(comm, 2, NULL, 0, &child, NULL));
  TELL(5, "must call ncclCommGetUniqueId", ncclCommGrow(comm, 2, NULL, -1, &child, NULL));
  TELL(4, "uniqueId argument is NULL", ncclCommGetUniqueId(comm, NULL));
  CODE(0, ncclCommGetUniqueId(comm, &id));
  TELL(4, "flags 0x1", ncclCommRevoke(comm, 1));
  CODE(0, make(&child, NULL));
  CODE(0, ncclCommRevoke(child, NCCL_REVOKE_DEFAULT));
  TELL(4, "revoked already", ncclCommRevoke(child, NCCL_REVOKE_DEFAULT));
  TELL(5, "was revoked", ncclAllReduce(data, data, 4, ncclFloat, ncclSum, child, NULL));
  TELL(4, "was revoked", ncclCommFinalize(child));
  CODE(0, ncclCommDestroy(child));
  CODE(0, ncclCommSuspend(comm, 0));
  TELL(5, "not suspended", ncclCommResume(comm));
  CODE(0, ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
  TELL(5, "suspended already", ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
  TELL(5, "is suspended", ncclAllReduce(data, data, 4, ncclFloat, ncclSum, comm, NULL));
  CODE(0, ncclCommResume(comm));
  CODE(0, ncclAllReduce(data, data, 4, ncclFloat, ncclSum, comm, NULL));
}

static void simulation(void) {
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  CODE(0, ncclGroupStart());
  CODE(0, ncclGroupSimulateEnd(&info));
  CODE(1, info.estimatedTime == -1);
  CODE(0, ncclGroupStart());
  info.magic = 3;
  TELL(4, "ncclSimInfo_t", ncclGroupSimulateEnd(&info));
  CODE(5, ncclGroupEnd());
}

/* Writes 0xee everywhere, asks as a caller of `version`, and returns the last byte that was written; -1 if one
 * of the bytes that the version leaves alone was written. */
static long written(ncclComm_t comm, unsigned int version) {
  union {
    struct {
      size_t size;
      unsigned int magic, version;
    } head;
    unsigned char bytes[256];
  } props;
  long i, last = 0;
  memset(&props, 0xee, sizeof props);
  props.head.size = 16; /* what the size says does not matter */
  props.head.magic = NCCL_API_MAGIC;
  props.head.version = version;
  if (ncclCommQueryProperties(comm, &props) != ncclSuccess) return -2;
  for (i = 16; i < 256; i++)
    if (props.bytes[i] != 0xee) last = i;
  if (props.bytes[52] != 0xee || props.bytes[35] != 0xee || props.bytes[45] != 0xee) return -1;
  if (version >= 22905 && props.bytes[34] != 0xee) return -1;
  return last;
}

static void device_api(ncclComm_t comm) {
  struct {
    size_t size;
    unsigned int magic, version;
    char rest[256];
  } head = {120, NCCL_API_MAGIC, 23203, {0}};
  unsigned int refused[] = {0, 22901, 22904, 23008, 23099, 23204, 99999};
  uint32_t handle[2];
  uint64_t requirement[7];
  Team world = ncclTeamWorld(comm), lsa = ncclTeamLsa(comm), rail = ncclTeamRail(comm), four = {4, 0, 1};
  size_t i;
  CODE(34, written(comm, 22902));
  CODE(51, written(comm, 22905));
  CODE(51, written(comm, 23007));
  CODE(143, written(comm, 23102));
  CODE(146, written(comm, 23203));
  for (i = 0; i < sizeof refused / sizeof refused[0]; i++) {
    head.version = refused[i];
    TELL(5, refused[i] > 23203 ? "too old" : "not backwards compatible", ncclCommQueryProperties(comm, &head));
    TELL(5, refused[i] > 23203 ? "too old" : "not backwards compatible", ncclDevCommCreate(comm, &head, &head));
  }
  head.version = 23203;
  TELL(5, "symmetric memory is not supported", ncclDevCommCreate(comm, &head, &head));
  head.magic = 7;
  TELL(5, "INITIALIZER", ncclCommQueryProperties(comm, &head));
  TELL(5, "INITIALIZER", ncclDevCommCreate(comm, &head, &head));
  TELL(4, "props argument is NULL", ncclCommQueryProperties(comm, NULL));
  TELL(4, "reqs argument is NULL", ncclDevCommCreate(comm, NULL, &head));
  CODE(4, ncclDevCommDestroy(comm, NULL));
  CODE(101, world.nRanks * 100 + world.rank * 10 + world.stride);
  CODE(101, lsa.nRanks * 100 + lsa.rank * 10 + lsa.stride);
  CODE(101, rail.nRanks * 100 + rail.rank * 10 + rail.stride);
  CODE(1, ncclTeamCft(comm, 2).nRanks);
  CODE(0, ncclTeamCft(comm, 3).nRanks);
  CODE(1, ncclTeamCftMultimem(comm).stride);
  CODE(3, ncclTeamRankToWorld(comm, four, 3));
  CODE(3, ncclTeamRankToLsa(comm, four, 3));
  CODE(0, ncclGinBarrierCreateRequirement(comm, four, 3, handle, requirement));
  CODE(12, *(int *)&requirement[4]);
  CODE(1, requirement[5] == (uint64_t)(uintptr_t)handle);
}

static void end(ncclComm_t comm) {
  ncclComm_t other;
  int n;
  ncclResult_t state;
  CODE(0, ncclCommFinalize(comm));
  CODE(4, ncclCommFinalize(comm));
  CODE(0, ncclCommDestroy(comm));
  TELL(4, "corrupted comm object detected", ncclCommDestroy(comm));
  CODE(4, ncclCommAbort(comm));
  CODE(4, ncclCommFinalize(comm));
  CODE(4, ncclCommCount(comm, &n));
  CODE(4, ncclCommGetAsyncError(comm, &state));
  CODE(4, ncclAllReduce(data, data, 4, ncclFloat, ncclSum, comm, NULL));
  CODE(0, make(&other, NULL));
  CODE(0, ncclCommAbort(other));
  CODE(4, ncclCommAbort(other));
}

int main(void) {
  ncclComm_t comm;
  CODE(0, ncclMemAlloc((void **)&data, 4096));
  CODE(0, ncclMemFree(NULL));
  creation();
  configurations();
  CODE(0, make(&comm, NULL));
  queries(comm);
  collectives(comm);
  one_sided(comm);
  memory(comm);
  operators(comm, data);
  derived(comm);
  simulation();
  device_api(comm);
  end(comm);
  CODE(0, ncclMemFree(data));
  printf("done\n");
  return failures;
}
