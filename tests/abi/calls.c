/* Calls with arguments that are wrong, on a machine without CUDA, and the codes that NCCL's interface gives
 * for them. The same program runs on this library and, where it is at hand, on NVIDIA's: it compiles against
 * either header. Prints each call whose code is not the expected one, then "done"; the exit status is the
 * number of those calls.
 *
 *   calls        all checks (this library)
 *   calls common only what holds for NVIDIA's library too
 */
#include <nccl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The device API's host functions, which stand in another header. */
typedef struct {
  int nRanks, rank, stride;
} Team;
typedef struct {
  void *next;
  size_t bufferSize, bufferAlign;
  uint32_t *outBufferHandle;
  int signals, counters;
  uint32_t *outSignal, *outCounter;
} Requirement;
ncclResult_t ncclCommQueryProperties(ncclComm_t, void *);
ncclResult_t ncclDevCommCreate(ncclComm_t, const void *, void *);
ncclResult_t ncclDevCommDestroy(ncclComm_t, const void *);
ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t, size_t, int, void **);
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t, size_t, int, void **);
ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t, size_t, void **);
ncclResult_t ncclGetMultimemDevicePointer(ncclWindow_t, size_t, void *, void **);
ncclResult_t ncclGetMultimemDeviceLeInfo(ncclWindow_t, size_t, uint32_t *, size_t *);
ncclResult_t ncclGetPeerDeviceLeInfo(ncclWindow_t, size_t, int, uint32_t *, size_t *);
ncclResult_t ncclLsaBarrierCreateRequirement(Team, int, uint32_t *, Requirement *);
ncclResult_t ncclLLA2ACreateRequirement(int, int, uint32_t *, Requirement *);
int ncclLLA2ACalcSlots(int, int);
Team ncclTeamWorld(ncclComm_t);
Team ncclTeamCft(ncclComm_t, int);
int ncclTeamRankToWorld(ncclComm_t, Team, int);

static int failures, only_common;

static void check(const char *call, long expected, long found) {
  if (expected == found) return;
  printf("%s: expected %ld, found %ld (last error: %s)\n", call, expected, found, ncclGetLastError(NULL));
  failures++;
}

/* CODE holds for both libraries, OURS for this one. */
#define CODE(expected, call) check(#call, expected, (long)(call))
#define OURS(expected, call) \
  do { \
    if (!only_common) check(#call, expected, (long)(call)); \
  } while (0)
#define SAYS(text) OURS(1, strstr(ncclGetLastError(NULL), text) != NULL)

static char buffer[64];

static void library(void) {
  int version = 0;
  CODE(0, strcmp(ncclGetLastError(NULL), ""));
  CODE(4, ncclGetVersion(NULL));
  CODE(0, ncclGetVersion(&version));
  CODE(23203, version);
  CODE(0, strcmp(ncclGetErrorString(ncclInvalidUsage), "invalid usage (run with NCCL_DEBUG=WARN for details)"));
  CODE(0, strcmp(ncclGetErrorString(ncclTimeout), "timeout"));
  CODE(0, strcmp(ncclGetErrorString(ncclNumResults), "unknown result code"));
  CODE(1, ncclGetLastError(NULL) == ncclGetLastError((ncclComm_t)buffer));
  CODE(1, ncclMemAlloc(NULL, 16));
  CODE(1, ncclMemFree(buffer));
}

/* What a call in a group returns, and what the end of the group returns then. */
static long in_group(ncclResult_t call) { return call * 10 + ncclGroupEnd(); }
#define IN_GROUP(expected, call) check("in a group: " #call, expected, (ncclGroupStart(), in_group(call)))

/* Which errors a group remembers: those of calls that it would have deferred, once they are past the first look
 * at their arguments. */
static void remembered(void) {
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER, wrong;
  ncclComm_t comm;
  ncclUniqueId id;
  int n;
  memset(&id, 0, sizeof id);
  wrong = config;
  wrong.magic = 0;
  IN_GROUP(44, ncclAllReduceConfig(buffer, buffer, 1, ncclFloat, ncclSum, NULL, 0, &config));
  IN_GROUP(40, ncclAllReduceConfig(buffer, buffer, 1, ncclFloat, ncclSum, NULL, 0, &wrong));
  IN_GROUP(44, ncclSend(buffer, 1, ncclFloat, 0, NULL, 0));
  IN_GROUP(44, ncclSignal(0, 0, 0, 0, NULL, 0));
  IN_GROUP(40, ncclCommCount(NULL, &n));
  IN_GROUP(10, ncclCommInitRank(&comm, 1, id, 0));
  IN_GROUP(10, ncclCommInitAll(NULL, -1, NULL));
  IN_GROUP(40, ncclGetUniqueId(NULL));
  IN_GROUP(10, ncclMemFree(buffer));
  IN_GROUP(40, ncclCommSuspend(NULL, 1));
  IN_GROUP(40, ncclCommGrow(NULL, 0, NULL, 0, &comm, NULL));
  IN_GROUP(40, ncclCommWindowRegister(NULL, buffer, 8, (ncclWindow_t *)buffer, 0));
  IN_GROUP(40, ncclRedOpDestroy(ncclSum, NULL));
}

static void groups(void) {
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  CODE(5, ncclGroupEnd());
  CODE(0, strcmp(ncclGetLastError(NULL), "ncclGroupEnd: not in a group call."));
  CODE(0, ncclGroupStart());
  CODE(0, ncclGroupEnd());
  /* An error is returned by the call and by the outermost end, and then forgotten. */
  CODE(0, ncclGroupStart());
  CODE(0, ncclGroupStart());
  CODE(4, ncclAllReduce(buffer, buffer, 1, ncclFloat, ncclSum, NULL, 0));
  CODE(0, strcmp(ncclGetLastError(NULL), "AllReduce : comm argument is NULL"));
  CODE(0, ncclGroupEnd());
  CODE(4, ncclGroupEnd());
  CODE(5, ncclGroupEnd());
  CODE(5, ncclGroupSimulateEnd(NULL));
  CODE(5, ncclGroupSimulateEnd(&info));
  CODE(0, ncclGroupStart());
  CODE(0, ncclGroupSimulateEnd(NULL));
  info.magic = 1;
  CODE(0, ncclGroupStart());
  CODE(4, ncclGroupSimulateEnd(&info));
  CODE(5, ncclGroupEnd());
}

static void creation(void) {
  ncclComm_t comm = (ncclComm_t)buffer;
  ncclUniqueId id;
  int excluded[1] = {0};
  memset(&id, 0, sizeof id);
  /* That there is no CUDA is told first. */
  CODE(1, ncclCommInitRank(&comm, 1, id, 0));
  CODE(1, ncclCommInitRank(NULL, 0, id, 7));
  CODE(1, ncclCommInitRankConfig(&comm, 1, id, 0, NULL));
  CODE(4, ncclGetUniqueId(NULL));
  OURS(4, ncclCommSplit(NULL, 0, 0, &comm, NULL));
  OURS(4, ncclCommShrink(NULL, excluded, 1, &comm, NULL, NCCL_SHRINK_DEFAULT));
  CODE(4, ncclCommGetUniqueId(NULL, &id));
  CODE(4, ncclCommGrow(NULL, 2, &id, 1, NULL, NULL));
  CODE(4, ncclCommGrow(NULL, 0, &id, 0, &comm, NULL));
  CODE(4, ncclCommGrow(NULL, 2, &id, -1, &comm, NULL));
  CODE(4, ncclCommGrow(NULL, 2, &id, 2, &comm, NULL));
  CODE(4, ncclCommGrow(NULL, 2, NULL, 1, &comm, NULL));
  CODE(0, ncclCommFinalize(NULL));
  CODE(0, ncclCommDestroy(NULL));
  CODE(0, ncclCommAbort(NULL));
  CODE(0, ncclCommRevoke(NULL, 0));
  CODE(0, ncclCommRevoke(NULL, 77));
  CODE(4, ncclCommSuspend(NULL, NCCL_SUSPEND_MEM));
  CODE(4, ncclCommResume(NULL));
}

static void queries(void) {
  int n = -7;
  uint64_t value;
  ncclResult_t state;
  void *handle = buffer;
  ncclRedOp_t op;
  CODE(4, ncclCommCount(NULL, &n));
  CODE(0, strcmp(ncclGetLastError(NULL), "CommCount : comm argument is NULL"));
  CODE(4, ncclCommCuDevice(NULL, &n));
  CODE(4, ncclCommUserRank(NULL, &n));
  CODE(4, ncclCommGetAsyncError(NULL, &state));
  CODE(0, strcmp(ncclGetLastError(NULL), "ncclGetAsyncError : comm argument is NULL"));
  CODE(4, ncclCommMemStats(NULL, ncclStatGpuMemTotal, &value));
  CODE(4, ncclCommRegister(NULL, buffer, 64, &handle));
  CODE(4, ncclCommDeregister(NULL, NULL));
  CODE(4, ncclRedOpCreatePreMulSum(&op, buffer, ncclFloat, ncclScalarHostImmediate, NULL));
  CODE(4, ncclRedOpDestroy(ncclSum, NULL));
  CODE(4, ncclRedOpDestroy((ncclRedOp_t)-1, NULL));
  CODE(4, ncclRedOpDestroy((ncclRedOp_t)7, NULL));
  CODE(-7, n);
}

static void collectives(void) {
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER, wrong;
  CODE(4, ncclAllReduce(buffer, buffer, 0, (ncclDataType_t)99, (ncclRedOp_t)-3, NULL, 0));
  CODE(4, ncclReduce(buffer, buffer, 1, ncclFloat, ncclSum, 0, NULL, 0));
  CODE(4, ncclBcast(buffer, 1, ncclFloat, 0, NULL, 0));
  CODE(0, strcmp(ncclGetLastError(NULL), "Broadcast : comm argument is NULL"));
  CODE(4, ncclBroadcast(buffer, buffer, 1, ncclFloat, 0, NULL, 0));
  CODE(4, ncclReduceScatter(buffer, buffer, 1, ncclFloat, ncclSum, NULL, 0));
  CODE(4, ncclAllGather(buffer, buffer, 1, ncclFloat, NULL, 0));
  CODE(4, ncclAlltoAll(buffer, buffer, 1, ncclFloat, NULL, 0));
  CODE(0, strcmp(ncclGetLastError(NULL), "AlltoAll : comm argument is NULL"));
  CODE(4, ncclGather(buffer, buffer, 1, ncclFloat, 0, NULL, 0));
  CODE(4, ncclScatter(buffer, buffer, 1, ncclFloat, 0, NULL, 0));
  CODE(4, ncclSend(buffer, 1, ncclFloat, 0, NULL, 0));
  CODE(4, ncclRecv(buffer, 1, ncclFloat, 0, NULL, 0));
  CODE(4, ncclPutSignal(buffer, 1, ncclFloat, 0, NULL, 0, 0, 0, 0, NULL, 0));
  CODE(4, ncclSignal(0, 0, 0, 0, NULL, 0));
  CODE(4, ncclWaitSignal(0, NULL, NULL, 0));
  CODE(4, ncclReduceConfig(buffer, buffer, 1, ncclFloat, ncclSum, 0, NULL, 0, &config));
  CODE(4, ncclBroadcastConfig(buffer, buffer, 1, ncclFloat, 0, NULL, 0, NULL));
  CODE(4, ncclAllGatherConfig(buffer, buffer, 1, ncclFloat, NULL, 0, &config));
  CODE(4, ncclReduceScatterConfig(buffer, buffer, 1, ncclFloat, ncclSum, NULL, 0, &config));
  CODE(4, ncclAlltoAllConfig(buffer, buffer, 1, ncclFloat, NULL, 0, &config));
  CODE(4, ncclGatherConfig(buffer, buffer, 1, ncclFloat, 0, NULL, 0, &config));
  CODE(4, ncclScatterConfig(buffer, buffer, 1, ncclFloat, 0, NULL, 0, &config));

  /* A wrong configuration is told before a wrong communicator, and no group remembers it. */
  wrong = config;
  wrong.magic = 0;
  CODE(0, ncclGroupStart());
  CODE(4, ncclAllReduceConfig(buffer, buffer, 1, ncclFloat, ncclSum, NULL, 0, &wrong));
  CODE(0, ncclGroupEnd());
  SAYS("ncclCollConfig_t");
  CODE(0, ncclGroupStart());
  CODE(4, ncclAllReduceConfig(buffer, buffer, 1, ncclFloat, ncclSum, NULL, 0, &config));
  if (only_common) ncclGroupEnd();
  OURS(4, ncclGroupEnd());
  SAYS("AllReduce : comm argument is NULL");
  wrong = config;
  wrong.size = 0;
  CODE(4, ncclAllReduceConfig(buffer, buffer, 1, ncclFloat, ncclSum, NULL, 0, &wrong));
  SAYS("got magic 0x0");
  wrong = config;
  wrong.forceAlgSelection = NCCL_CONFIG_UNDEF_INT;
  wrong.CTAPolicy = 4;
  CODE(4, ncclAllReduceConfig(buffer, buffer, 1, ncclFloat, ncclSum, NULL, 0, &wrong));
  SAYS("forceAlgSelection");
  wrong.size = 48; /* the wrong field lies beyond, the other one too */
  CODE(4, ncclAllReduceConfig(buffer, buffer, 1, ncclFloat, ncclSum, NULL, 0, &wrong));
  SAYS("AllReduce : comm argument is NULL");
  wrong.size = 4096;
  wrong.forceAlgSelection = 0;
  CODE(4, ncclAllReduceConfig(buffer, buffer, 1, ncclFloat, ncclSum, NULL, 0, &wrong));
  SAYS("CTAPolicy");
}

/* Handles that are none. NVIDIA's library would follow them. */
static void garbage(void) {
  static char zeroes[4096];
  ncclComm_t handles[] = {(ncclComm_t)zeroes, (ncclComm_t)1, (ncclComm_t)0x7fffffffffffffc0, (ncclComm_t)-64};
  size_t i;
  if (only_common) return;
  for (i = 0; i < sizeof handles / sizeof handles[0]; i++) {
    int n;
    ncclResult_t state;
    Team none = ncclTeamWorld(handles[i]);
    OURS(4, ncclCommCount(handles[i], &n));
    SAYS("corrupted comm object detected");
    OURS(4, ncclCommGetAsyncError(handles[i], &state));
    OURS(4, ncclAllReduce(buffer, buffer, 1, ncclFloat, ncclSum, handles[i], 0));
    OURS(4, ncclCommFinalize(handles[i]));
    OURS(4, ncclCommDestroy(handles[i]));
    OURS(4, ncclCommAbort(handles[i]));
    OURS(4, ncclCommRevoke(handles[i], 0));
    OURS(4, ncclCommQueryProperties(handles[i], zeroes));
    OURS(0, none.nRanks + none.rank + none.stride);
    OURS(-1, ncclTeamRankToWorld(handles[i], none, 0));
    OURS(0, ncclTeamCft(handles[i], 0).nRanks);
  }
}

static void windows(void) {
  ncclWindow_t window = (ncclWindow_t)buffer;
  void *out;
  uint32_t id;
  size_t offset;
  CODE(4, ncclCommWindowRegister(NULL, buffer, 64, &window, NCCL_WIN_COLL_SYMMETRIC));
  CODE(4, ncclCommWindowDeregister(NULL, NULL));
  CODE(4, ncclWinGetUserPtr(NULL, window, &out));
  CODE(4, ncclGetLsaDevicePointer(NULL, 0, 0, &out));
  CODE(4, ncclGetPeerDevicePointer((ncclWindow_t)buffer, 0, 0, NULL));
  CODE(4, ncclGetPeerDevicePointer((ncclWindow_t)buffer, 0, 0, &out));
  CODE(4, ncclGetLsaMultimemDevicePointer((ncclWindow_t)buffer, 0, &out));
  CODE(4, ncclGetMultimemDevicePointer((ncclWindow_t)buffer, 0, NULL, &out));
  CODE(4, ncclGetMultimemDeviceLeInfo((ncclWindow_t)buffer, 0, &id, NULL));
  CODE(4, ncclGetPeerDeviceLeInfo((ncclWindow_t)buffer, 0, 0, &id, &offset));
  CODE(4, ncclCommQueryProperties(NULL, buffer));
  CODE(4, ncclDevCommCreate(NULL, buffer, buffer));
  CODE(4, ncclDevCommDestroy(NULL, buffer));
}

static void requirements(void) {
  uint32_t handle[2] = {0, 0};
  Team team = {8, 3, 1};
  Requirement r;
  memset(&r, 0x55, sizeof r);
  CODE(0, ncclLsaBarrierCreateRequirement(team, 3, handle, &r));
  CODE((3 * 3 + 3 * 8) * 4, r.bufferSize);
  CODE(4, r.bufferAlign);
  CODE(3, handle[1]);
  CODE(1, r.outBufferHandle == handle && r.next == NULL && r.signals == 0 && r.outCounter == NULL);
  memset(&r, 0x55, sizeof r);
  CODE(0, ncclLLA2ACreateRequirement(5, 7, handle, &r));
  CODE(5 * (1 + 2 * 7) * 16, r.bufferSize);
  CODE(16, r.bufferAlign);
  CODE(7, handle[1]);
  CODE(20, ncclLLA2ACalcSlots(10, 9));
  CODE(10, ncclLLA2ACalcSlots(10, 8));
}

static void encryption(void) {
  ncclEncryptionConfig_t config = NCCL_ENCRYPTION_CONFIG_INITIALIZER, wrong;
  CODE(0, ncclSetEncryption(NULL));
  CODE(0, ncclSetEncryption(&config));
  wrong = config;
  wrong.magic = 1;
  CODE(0, ncclGroupStart());
  CODE(4, ncclSetEncryption(&wrong));
  CODE(0, ncclGroupEnd());
  config.mode = NCCL_ENCRYPTION_MODE_PSK;
  CODE(4, ncclSetEncryption(&config));
  config.psk = "short";
  CODE(4, ncclSetEncryption(&config));
  SAYS("at least 32 bytes");
  config.psk = "0123456789abcdef0123456789abcdef";
  CODE(0, ncclSetEncryption(&config));
  config.version = 99999;
  CODE(0, ncclSetEncryption(&config));
  config.size = 24; /* the key is beyond */
  CODE(4, ncclSetEncryption(&config));
  config.size = 16; /* the mode too */
  CODE(0, ncclSetEncryption(&config));
  config.size = 64;
  config.mode = 2;
  CODE(4, ncclSetEncryption(&config));
  CODE(0, ncclSetEncryption(NULL));
}

static void parameters(void) {
  ncclParamHandle_t h = NULL;
  const char *text = buffer, **keys = NULL;
  uint64_t u64 = 0;
  uint32_t u32 = 0;
  int32_t i32;
  int n = -7;
  unsigned char raw[16];
  CODE(4, ncclParamBind(&h, "NCCL_BUFFSIZE"));
  CODE(1, h == NULL);
  CODE(4, ncclParamBind(NULL, "NCCL_DEBUG"));
  CODE(4, ncclParamBind(&h, NULL));
  CODE(0, ncclParamBind(&h, "NCCL_DEBUG_SUBSYS"));
  CODE(0, ncclParamGetU64(h, &u64));
  CODE(0x1081, (long)u64);
  CODE(4, ncclParamGetU32(h, &u32));
  CODE(4, ncclParamGetI32(h, &i32));
  CODE(4, ncclParamGetStr(h, &text));
  CODE(4, ncclParamGet(h, raw, 4, &n));
  CODE(0, ncclParamGet(h, raw, 8, &n));
  CODE(8, n);
  CODE(0, ncclParamBind(&h, "NCCL_DEBUG_TIMESTAMP_LEVELS"));
  CODE(0, ncclParamGetU32(h, &u32));
  CODE(68, u32);
  CODE(0, ncclParamBind(&h, "NCCL_DEBUG_FILE"));
  CODE(0, ncclParamGetStr(h, &text));
  CODE(0, strcmp(text, ""));
  CODE(0, ncclParamBind(&h, "NCCL_DEBUG"));
  CODE(0, ncclParamGet(h, raw, 4, &n));
  CODE(4, n);
  CODE(0, ncclParamGetParameter("NCCL_DEBUG_SUBSYS", &text, &n));
  CODE(0, strcmp(text, "INIT,ENV,BOOTSTRAP"));
  CODE(18, n);
  CODE(4, ncclParamGetParameter("NCCL_BUFFSIZE", &text, &n));
  CODE(1, text == NULL && n == 0);
  CODE(0, ncclParamGetAllParameterKeys(&keys, &n));
  CODE(7, n);
  OURS(4, ncclParamGetU64((ncclParamHandle_t)raw, &u64));
}

int main(int argc, char **argv) {
  only_common = argc > 1 && strcmp(argv[1], "common") == 0;
  library();
  remembered();
  groups();
  creation();
  queries();
  collectives();
  garbage();
  windows();
  requirements();
  encryption();
  parameters();
  printf("done\n");
  return failures;
}
