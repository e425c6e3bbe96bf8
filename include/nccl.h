/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The C interface of oxccl: that of NCCL 2.32.3, with the same names, values and layouts.
 *
 * Every function exists twice. nccl<Name> is weak, so that a tool can define it and call the strong
 * pnccl<Name>, which is the library's. Unless stated otherwise a function returns ncclSuccess or one of
 * the error codes below; ncclGetLastError then has the reason in words.
 */
#ifndef NCCL_H_
#define NCCL_H_

#include <cuda_runtime.h>

#include <cuda_fp16.h>
#if CUDART_VERSION >= 11000
#include <cuda_bf16.h>
#endif
#if defined(__cplusplus) && CUDART_VERSION >= 11080
#include <cuda_fp8.h>
#endif

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#define NCCL_MAJOR 2
#define NCCL_MINOR 32
#define NCCL_PATCH 3
#define NCCL_SUFFIX ""

/* Up to 2.8 a version had four digits, since then it has five. */
#define NCCL_VERSION(X, Y, Z) \
  (((X) <= 2 && (Y) <= 8) ? (X) * 1000 + (Y) * 100 + (Z) : (X) * 10000 + (Y) * 100 + (Z))
#define NCCL_VERSION_CODE 23203

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Handles ------------------------------------------------------------------------------------------ */

/* One rank's end of a communicator. */
typedef struct ncclComm *ncclComm_t;
#define NCCL_COMM_NULL NULL

/* Memory that is registered with all ranks of a communicator. */
typedef struct ncclWindow_vidmem *ncclWindow_t;

/* The name of a communicator that is to be made: one process asks for it and gives all bytes to the others. */
#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

/* ---- Results ------------------------------------------------------------------------------------------ */

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1, /* a CUDA call failed */
  ncclSystemError = 2,        /* a system call failed, or a limit of the system was met */
  ncclInternalError = 3,      /* a bug in this library */
  ncclInvalidArgument = 4,    /* an argument is wrong by itself */
  ncclInvalidUsage = 5,       /* the call is not allowed now, or does not fit what other ranks do */
  ncclRemoteError = 6,        /* a peer failed, left or cannot be reached */
  ncclInProgress = 7,         /* no error: the operation goes on in the background */
  ncclTimeout = 8,            /* a time limit has passed */
  ncclNumResults = 9
} ncclResult_t;

/* ---- Constants ---------------------------------------------------------------------------------------- */

/* A field with one of these values is not set, and the library chooses. */
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_UNDEF_FLOAT -1.0f

/* The colour of ranks that are in none of the communicators that a split makes. */
#define NCCL_SPLIT_NOCOLOR -1

/* What the initializers below put into a struct, so that one without an initializer is found. */
#define NCCL_API_MAGIC 0xcafebeef

/* ncclCommWindowRegister: bits of winFlags, and the alignment of a window's address. */
#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01  /* collectives use it at the same offset on every rank */
#define NCCL_WIN_STRICT_ORDERING 0x02 /* network writes become visible in order */
#define NCCL_WIN_GIN_ONLY 0x04        /* only for device-initiated networking */
#define NCCL_WIN_CFT_COUNTED 0x08     /* for counted operations of the compute fabric */
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096

/* Bits of CTAPolicy: what thread blocks are spent on. */
#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01 /* few thread blocks */
#define NCCL_CTA_POLICY_ZERO 0x02       /* none where another engine can move the data */

/* ncclCommShrink: what happens to operations of the parent. */
#define NCCL_SHRINK_DEFAULT 0x00 /* there are none */
#define NCCL_SHRINK_ABORT 0x01   /* they are ended first */

/* ncclCommRevoke: no flag exists yet. */
#define NCCL_REVOKE_DEFAULT 0x00

/* ncclCommSuspend: what is given back. */
#define NCCL_SUSPEND_MEM 0x01

/* ---- Configuration of a communicator ------------------------------------------------------------------ */

/* Whether the host uses the compute fabric; all ranks say the same. */
typedef enum {
  ncclHostCftDefault = NCCL_CONFIG_UNDEF_INT,
  ncclHostCftEnable = 1,
  ncclHostCftDisable = 2,
  ncclHostCftFallback = 3
} ncclHostCftMode_t;

/* Which uses of NVLink multicast by the host are turned off; the values are bits. */
typedef enum {
  ncclNvlsHostModeDefault = NCCL_CONFIG_UNDEF_INT,
  ncclNvlsHostModeEnable = 0,
  ncclNvlsHostModeDisableTransport = 1,
  ncclNvlsHostModeDisableSymmetricMultimem = 2,
  ncclNvlsHostModeDisable = INT_MAX
} ncclNvlsHostMode_t;

/* Start from NCCL_CONFIG_INITIALIZER and set what matters. Environment variables win over these fields. */
typedef struct ncclConfig_v23100 {
  size_t size; /* set by the initializer, as the next two */
  unsigned int magic;
  unsigned int version;
  int blocking;            /* 0: calls return at once, ncclCommGetAsyncError has the result */
  int cgaClusterSize;      /* thread blocks of a cluster, 0 to 8 */
  int minCTAs;             /* fewest channels */
  int maxCTAs;             /* most channels */
  const char *netName;     /* network to use */
  int splitShare;          /* 1: what is split off shares resources with its parent */
  int trafficClass;        /* for network plug-ins */
  const char *commName;    /* for profilers and logs */
  int collnetEnable;       /* 1: reductions in the network may be used */
  int CTAPolicy;           /* NCCL_CTA_POLICY_* */
  int shrinkShare;         /* 1: what is shrunk shares resources with its parent */
  int nvlsCTAs;            /* channels of NVLink multicast */
  int nChannelsPerNetPeer; /* channels to a peer behind a network, 1 to 64 */
  int nvlinkCentricSched;  /* 1: scheduling favours the use of NVLink */
  int graphUsageMode;      /* CUDA graphs: 0 none, 1 one, 2 several and mixed with direct calls */
  int numRmaCtx;           /* contexts of one-sided operations */
  int maxP2pPeers;         /* peers that are sent to or received from */
  int graphStreamOrdering; /* 0: captured kernels are nodes of the capturing stream itself */
  int launchOrderImplicit; /* 1: launches of communicators keep the order of the program */
  int numRmaSig;           /* signals of a context */
  int rmaEagerInit;        /* 1: one-sided operations are set up at once */
  int hostCftMode;         /* ncclHostCftMode_t */
  int nvlsHostMode;        /* ncclNvlsHostMode_t */
} ncclConfig_t;

#define NCCL_CONFIG_INITIALIZER \
  { \
    sizeof(ncclConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, \
    NCCL_CONFIG_UNDEF_INT, /* blocking */ \
    NCCL_CONFIG_UNDEF_INT, /* cgaClusterSize */ \
    NCCL_CONFIG_UNDEF_INT, /* minCTAs */ \
    NCCL_CONFIG_UNDEF_INT, /* maxCTAs */ \
    NCCL_CONFIG_UNDEF_PTR, /* netName */ \
    NCCL_CONFIG_UNDEF_INT, /* splitShare */ \
    NCCL_CONFIG_UNDEF_INT, /* trafficClass */ \
    NCCL_CONFIG_UNDEF_PTR, /* commName */ \
    NCCL_CONFIG_UNDEF_INT, /* collnetEnable */ \
    NCCL_CONFIG_UNDEF_INT, /* CTAPolicy */ \
    NCCL_CONFIG_UNDEF_INT, /* shrinkShare */ \
    NCCL_CONFIG_UNDEF_INT, /* nvlsCTAs */ \
    NCCL_CONFIG_UNDEF_INT, /* nChannelsPerNetPeer */ \
    NCCL_CONFIG_UNDEF_INT, /* nvlinkCentricSched */ \
    NCCL_CONFIG_UNDEF_INT, /* graphUsageMode */ \
    NCCL_CONFIG_UNDEF_INT, /* numRmaCtx */ \
    NCCL_CONFIG_UNDEF_INT, /* maxP2pPeers */ \
    NCCL_CONFIG_UNDEF_INT, /* graphStreamOrdering */ \
    NCCL_CONFIG_UNDEF_INT, /* launchOrderImplicit */ \
    NCCL_CONFIG_UNDEF_INT, /* numRmaSig */ \
    NCCL_CONFIG_UNDEF_INT, /* rmaEagerInit */ \
    NCCL_CONFIG_UNDEF_INT, /* hostCftMode */ \
    NCCL_CONFIG_UNDEF_INT  /* nvlsHostMode */ \
  }

/* ---- Configuration of one call ------------------------------------------------------------------------ */

/* An option of a vendor; options form a list. */
typedef struct ncclConfigExt {
  struct ncclConfigExt *next; /* NULL ends the list */
  struct {
    int vendorId; /* not 0 */
    int optionId;
  } key;
  union {
    int i;
    const char *s;
    void *raw;
  } val;
} ncclConfigExt_t;

/* Start from NCCL_COLLCONFIG_INITIALIZER. All ranks give the same. */
typedef struct ncclCollConfig_v23200 {
  size_t size; /* set by the initializer, as the next two */
  unsigned int magic;
  unsigned int version;
  ncclConfigExt_t *ext;
  int minCTAs;                       /* fewest channels */
  int maxCTAs;                       /* most channels */
  int nvlsCTAs;                      /* channels of NVLink multicast */
  int cgaClusterSize;                /* thread blocks of a cluster */
  const char *algSelection;          /* algorithms that may be used, such as "RING,TREE"; NULL: any */
  int forceAlgSelection;             /* 1: a selection that cannot be honoured is an error */
  int CTAPolicy;                     /* NCCL_CTA_POLICY_*; not set: the communicator's */
  uint64_t userProfilerTag;          /* handed to profilers */
  cudaEvent_t launchCompletionEvent; /* recorded when the kernel has been launched; at most one a group */
} ncclCollConfig_t;

#define NCCL_COLLCONFIG_INITIALIZER \
  { \
    sizeof(ncclCollConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, \
    NCCL_CONFIG_UNDEF_PTR, /* ext */ \
    NCCL_CONFIG_UNDEF_INT, /* minCTAs */ \
    NCCL_CONFIG_UNDEF_INT, /* maxCTAs */ \
    NCCL_CONFIG_UNDEF_INT, /* nvlsCTAs */ \
    NCCL_CONFIG_UNDEF_INT, /* cgaClusterSize */ \
    NCCL_CONFIG_UNDEF_PTR, /* algSelection */ \
    1,                     /* forceAlgSelection */ \
    NCCL_CONFIG_UNDEF_INT, /* CTAPolicy */ \
    0,                     /* userProfilerTag */ \
    NCCL_CONFIG_UNDEF_PTR  /* launchCompletionEvent */ \
  }

/* ---- The library -------------------------------------------------------------------------------------- */

/* Writes NCCL_VERSION_CODE of the library. */
ncclResult_t ncclGetVersion(int *version);
ncclResult_t pncclGetVersion(int *version);

/* A few words about a code; never NULL. */
const char *ncclGetErrorString(ncclResult_t result);
const char *pncclGetErrorString(ncclResult_t result);

/* The reason of the last error or warning in this process, in words; never NULL. The argument does not
 * matter. */
const char *ncclGetLastError(ncclComm_t comm);
const char *pncclGetLastError(ncclComm_t comm);

/* Makes the log read its environment variables again. Not part of the interface, and deprecated. */
#ifdef NCCL_OS_LINUX
__attribute__((deprecated("ncclResetDebugInit is not part of the interface"))) void ncclResetDebugInit(void);
__attribute__((deprecated("pncclResetDebugInit is not part of the interface"))) void pncclResetDebugInit(void);
#else
#define ncclResetDebugInit()
#define pncclResetDebugInit()
#endif

/* Allocates memory on the current device that peers can map. Free it with ncclMemFree. */
ncclResult_t ncclMemAlloc(void **ptr, size_t size);
ncclResult_t pncclMemAlloc(void **ptr, size_t size);

/* Frees what ncclMemAlloc gave; NULL is nothing. */
ncclResult_t ncclMemFree(void *ptr);
ncclResult_t pncclMemFree(void *ptr);

/* ---- Making and ending communicators ------------------------------------------------------------------ */

/* Makes the id of a new communicator. The calling process must stay alive until all ranks have used it. */
ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId);
ncclResult_t pncclGetUniqueId(ncclUniqueId *uniqueId);

/* Makes rank `rank` of a communicator of `nranks` ranks on the current device. Returns when all are
 * there. */
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank);
ncclResult_t pncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank);

/* The same with a configuration; NULL stands for the defaults. */
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
    ncclConfig_t *config);
ncclResult_t pncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
    ncclConfig_t *config);

/* The same with nId ids that share the work of meeting: the same list on every rank. */
ncclResult_t ncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId,
    ncclUniqueId *commIds, ncclConfig_t *config);
ncclResult_t pncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId,
    ncclUniqueId *commIds, ncclConfig_t *config);

/* Makes all ranks in this process, rank i on device devlist[i]; NULL stands for devices 0 to ndev-1. */
ncclResult_t ncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist);
ncclResult_t pncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist);

/* Makes a communicator of the ranks that say the same colour, in the order of their keys. */
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config);
ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config);

/* Makes a communicator without the ranks of a list; only the others call. The list is sorted in place. */
ncclResult_t ncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount, ncclComm_t *newcomm,
    ncclConfig_t *config, int shrinkFlags);
ncclResult_t pncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount,
    ncclComm_t *newcomm, ncclConfig_t *config, int shrinkFlags);

/* Makes an id by which new ranks join a communicator; see ncclCommGrow. */
ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *uniqueId);
ncclResult_t pncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *uniqueId);

/* Makes a communicator of nRanks ranks out of a smaller one. Old ranks give comm and rank -1, new ones
 * a NULL comm, the id and their rank. */
ncclResult_t ncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank,
    ncclComm_t *newcomm, ncclConfig_t *config);
ncclResult_t pncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank,
    ncclComm_t *newcomm, ncclConfig_t *config);

/* Waits for what was issued; only queries, destroy and abort may follow. */
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t pncclCommFinalize(ncclComm_t comm);

/* Frees a communicator, after ncclCommFinalize if that was not called. */
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t pncclCommDestroy(ncclComm_t comm);

/* Ends what is going on and frees a communicator. */
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t pncclCommAbort(ncclComm_t comm);

/* Ends what is going on; the communicator can still be split, shrunk and destroyed. */
ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags);
ncclResult_t pncclCommRevoke(ncclComm_t comm, int revokeFlags);

/* Gives memory of an idle communicator back (NCCL_SUSPEND_MEM) until ncclCommResume. */
ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags);
ncclResult_t pncclCommSuspend(ncclComm_t comm, int flags);

/* Takes back what ncclCommSuspend gave. */
ncclResult_t ncclCommResume(ncclComm_t comm);
ncclResult_t pncclCommResume(ncclComm_t comm);

/* ---- Questions ---------------------------------------------------------------------------------------- */

/* The state of a communicator: ncclSuccess, ncclInProgress or its error. */
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError);
ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError);

/* The number of ranks. */
ncclResult_t ncclCommCount(const ncclComm_t comm, int *count);
ncclResult_t pncclCommCount(const ncclComm_t comm, int *count);

/* The CUDA device of this rank. */
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device);
ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int *device);

/* The number of this rank. */
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank);
ncclResult_t pncclCommUserRank(const ncclComm_t comm, int *rank);

/* What ncclCommMemStats can tell, in bytes; Suspended is 0 or 1. */
typedef enum {
  ncclStatGpuMemSuspend = 0,   /* can be given back */
  ncclStatGpuMemSuspended = 1, /* is given back now */
  ncclStatGpuMemPersist = 2,   /* cannot be given back */
  ncclStatGpuMemTotal = 3      /* all of it */
} ncclCommMemStat_t;

/* How much device memory a communicator uses. */
ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value);
ncclResult_t pncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value);

/* ---- Registered memory -------------------------------------------------------------------------------- */

/* Says that a buffer will be used often. A NULL handle is no error: the hint could not be used. */
ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle);
ncclResult_t pncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle);

/* Takes the hint back; NULL is nothing. */
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle);
ncclResult_t pncclCommDeregister(const ncclComm_t comm, void *handle);

/* Registers memory with all ranks. A NULL window is no error: there is no support. */
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags);
ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags);

/* Takes a registration back; NULL is nothing. */
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);
ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);

/* The address that a window was made for; NULL where there is no support. */
ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void **outUserPtr);
ncclResult_t pncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void **outUserPtr);

/* ---- Operators and types ------------------------------------------------------------------------------ */

/* Gives the size that ncclMaxRedOp must fit. */
typedef enum { ncclNumOps_dummy = 5 } ncclRedOp_dummy_t;

typedef enum {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
  ncclNumOps = 5, /* built-in operators; operators made by the user have higher numbers */
  ncclMaxRedOp = 0x7fffffff >> (32 - 8 * sizeof(ncclRedOp_dummy_t))
} ncclRedOp_t;

typedef enum {
  ncclInt8 = 0,
  ncclChar = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclHalf = 6,
  ncclFloat32 = 7,
  ncclFloat = 7,
  ncclFloat64 = 8,
  ncclDouble = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
  ncclNumTypes = 12
} ncclDataType_t;

/* Where the scalar of an operator is. */
typedef enum {
  ncclScalarDevice = 0,       /* in memory that the device reads when the collective runs */
  ncclScalarHostImmediate = 1 /* in host memory, read before the call returns */
} ncclScalarResidence_t;

/* Makes an operator that multiplies each input by a scalar of type `datatype` and adds. */
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
    ncclScalarResidence_t residence, ncclComm_t comm);
ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
    ncclScalarResidence_t residence, ncclComm_t comm);

/* Frees such an operator; calls that were made with it are not affected. */
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);
ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);

/* ---- Collectives --------------------------------------------------------------------------------------
 *
 * All ranks call with the same count, type, operator and root, in the same order. Counts are elements. The
 * work is done on the stream; the call returns before. In place means that both buffers overlap as said.
 */

/* The root gets the reduction of all send buffers. In place: sendbuff == recvbuff. */
ncclResult_t ncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream);

/* All ranks get the root's buffer. The older form of ncclBroadcast, always in place. */
ncclResult_t ncclBcast(void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
    cudaStream_t stream);
ncclResult_t pncclBcast(void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
    cudaStream_t stream);

/* All ranks get the root's send buffer. In place: sendbuff == recvbuff. */
ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    int root, ncclComm_t comm, cudaStream_t stream);

/* All ranks get the reduction of all send buffers. In place: sendbuff == recvbuff. */
ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);

/* Rank i gets block i, of recvcount elements, of the reduction. In place: recvbuff == sendbuff + rank *
 * recvcount. */
ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype,
    ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
    ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);

/* All ranks get the blocks of all, in the order of the ranks. In place: sendbuff == recvbuff + rank *
 * sendcount. */
ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
    ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
    ncclComm_t comm, cudaStream_t stream);

/* Rank i gets block i of every rank. There is no in-place form. */
ncclResult_t ncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    ncclComm_t comm, cudaStream_t stream);

/* The root gets the blocks of all. In place: sendbuff == recvbuff + root * count. */
ncclResult_t ncclGather(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
    ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclGather(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
    ncclComm_t comm, cudaStream_t stream);

/* Rank i gets block i of the root. In place: recvbuff == sendbuff + root * count. */
ncclResult_t ncclScatter(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
    ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclScatter(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    int root, ncclComm_t comm, cudaStream_t stream);

/* The same with a configuration of the call; NULL makes them the plain functions. */

/* ncclAllReduce with a configuration. */
ncclResult_t ncclAllReduceConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t pncclAllReduceConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);

/* ncclBroadcast with a configuration. */
ncclResult_t ncclBroadcastConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t pncclBroadcastConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);

/* ncclReduce with a configuration. */
ncclResult_t ncclReduceConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t pncclReduceConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);

/* ncclAllGather with a configuration. */
ncclResult_t ncclAllGatherConfig(const void *sendbuff, void *recvbuff, size_t sendcount,
    ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t pncclAllGatherConfig(const void *sendbuff, void *recvbuff, size_t sendcount,
    ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);

/* ncclReduceScatter with a configuration. */
ncclResult_t ncclReduceScatterConfig(const void *sendbuff, void *recvbuff, size_t recvcount,
    ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t pncclReduceScatterConfig(const void *sendbuff, void *recvbuff, size_t recvcount,
    ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);

/* ncclAlltoAll with a configuration. */
ncclResult_t ncclAlltoAllConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t pncclAlltoAllConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);

/* ncclGather with a configuration. */
ncclResult_t ncclGatherConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t pncclGatherConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);

/* ncclScatter with a configuration. */
ncclResult_t ncclScatterConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t pncclScatterConfig(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
    int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);

/* ---- Point to point and one-sided --------------------------------------------------------------------- */

/* Sends to `peer`, which receives the same count and type. Sends and receives that wait for each other
 * go into one group. */
ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
    cudaStream_t stream);
ncclResult_t pncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
    cudaStream_t stream);

/* Receives from `peer`. */
ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
    cudaStream_t stream);
ncclResult_t pncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
    cudaStream_t stream);

/* Writes to a peer's window, peerWinOffset bytes from its start, and then signals it. */
ncclResult_t ncclPutSignal(const void *localbuff, size_t count, ncclDataType_t datatype, int peer,
    ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
    cudaStream_t stream);
ncclResult_t pncclPutSignal(const void *localbuff, size_t count, ncclDataType_t datatype, int peer,
    ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
    cudaStream_t stream);

/* Signals a peer after all earlier writes to it. */
ncclResult_t ncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t stream);

/* Signals to wait for. */
typedef struct {
  int opCnt;  /* how many */
  int peer;   /* from whom */
  int sigIdx; /* which */
  int ctx;    /* in which context */
} ncclWaitSignalDesc_t;

/* Makes the stream wait for signals. */
ncclResult_t ncclWaitSignal(int nDesc, ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclWaitSignal(int nDesc, ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm, cudaStream_t stream);

/* ---- Groups -------------------------------------------------------------------------------------------
 *
 * Calls between start and end become one operation. An error of one of them is returned again by the end, and
 * nothing of the group is carried out. Groups nest; the outermost end counts.
 */

/* Opens a group. */
ncclResult_t ncclGroupStart(void);
ncclResult_t pncclGroupStart(void);

/* Closes a group. */
ncclResult_t ncclGroupEnd(void);
ncclResult_t pncclGroupEnd(void);

/* Start from NCCL_SIM_INFO_INITIALIZER. */
typedef struct ncclSimInfo_v22200 {
  size_t size; /* set by the initializer, as the next two */
  unsigned int magic;
  unsigned int version;
  float estimatedTime; /* microseconds */
} ncclSimInfo_t;

#define NCCL_SIM_INFO_INITIALIZER \
  { sizeof(ncclSimInfo_t), 0x74685283, NCCL_VERSION_CODE, NCCL_UNDEF_FLOAT }

/* Closes a group, carries nothing out and estimates how long it would take. */
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *simInfo);
ncclResult_t pncclGroupSimulateEnd(ncclSimInfo_t *simInfo);

/* ---- Encryption --------------------------------------------------------------------------------------- */

typedef enum {
  NCCL_ENCRYPTION_MODE_NONE = 0, /* plaintext */
  NCCL_ENCRYPTION_MODE_PSK = 1   /* a key that all ranks know */
} ncclEncryptionMode_t;

/* Start from NCCL_ENCRYPTION_CONFIG_INITIALIZER. */
typedef struct ncclEncryptionConfig_v23200 {
  size_t size; /* set by the initializer, as the next two */
  unsigned int magic;
  unsigned int version;
  int mode;        /* ncclEncryptionMode_t */
  const char *psk; /* the key, at least 32 bytes; copied */
} ncclEncryptionConfig_t;

#define NCCL_ENCRYPTION_CONFIG_INITIALIZER \
  { \
    sizeof(ncclEncryptionConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, NCCL_ENCRYPTION_MODE_NONE, \
    NCCL_CONFIG_UNDEF_PTR \
  }

/* How the sockets of this process are encrypted; NULL stands for plaintext. */
ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t *config);
ncclResult_t pncclSetEncryption(const ncclEncryptionConfig_t *config);

/* ---- Parameters ---------------------------------------------------------------------------------------
 *
 * The environment variables of the library that it publishes. Texts are valid until the thread's next call.
 */

typedef struct ncclParamHandle *ncclParamHandle_t;

/* The handle of a parameter; it need not be freed. */
ncclResult_t ncclParamBind(ncclParamHandle_t *out, const char *key);
ncclResult_t pncclParamBind(ncclParamHandle_t *out, const char *key);

/* The value of a parameter whose type is int8_t. */
ncclResult_t ncclParamGetI8(ncclParamHandle_t h, int8_t *out);
ncclResult_t pncclParamGetI8(ncclParamHandle_t h, int8_t *out);

/* The value of a parameter whose type is int16_t. */
ncclResult_t ncclParamGetI16(ncclParamHandle_t h, int16_t *out);
ncclResult_t pncclParamGetI16(ncclParamHandle_t h, int16_t *out);

/* The value of a parameter whose type is int32_t. */
ncclResult_t ncclParamGetI32(ncclParamHandle_t h, int32_t *out);
ncclResult_t pncclParamGetI32(ncclParamHandle_t h, int32_t *out);

/* The value of a parameter whose type is int64_t. */
ncclResult_t ncclParamGetI64(ncclParamHandle_t h, int64_t *out);
ncclResult_t pncclParamGetI64(ncclParamHandle_t h, int64_t *out);

/* The value of a parameter whose type is uint8_t. */
ncclResult_t ncclParamGetU8(ncclParamHandle_t h, uint8_t *out);
ncclResult_t pncclParamGetU8(ncclParamHandle_t h, uint8_t *out);

/* The value of a parameter whose type is uint16_t. */
ncclResult_t ncclParamGetU16(ncclParamHandle_t h, uint16_t *out);
ncclResult_t pncclParamGetU16(ncclParamHandle_t h, uint16_t *out);

/* The value of a parameter whose type is uint32_t. */
ncclResult_t ncclParamGetU32(ncclParamHandle_t h, uint32_t *out);
ncclResult_t pncclParamGetU32(ncclParamHandle_t h, uint32_t *out);

/* The value of a parameter whose type is uint64_t. */
ncclResult_t ncclParamGetU64(ncclParamHandle_t h, uint64_t *out);
ncclResult_t pncclParamGetU64(ncclParamHandle_t h, uint64_t *out);

/* The value of a parameter whose type is text; "" where it is not set. */
ncclResult_t ncclParamGetStr(ncclParamHandle_t h, const char **out);
ncclResult_t pncclParamGetStr(ncclParamHandle_t h, const char **out);

/* The bytes of a value; *len gets their number, also where maxLen is too small. */
ncclResult_t ncclParamGet(ncclParamHandle_t h, void *out, int maxLen, int *len);
ncclResult_t pncclParamGet(ncclParamHandle_t h, void *out, int maxLen, int *len);

/* The value of a parameter as text, by name. */
ncclResult_t ncclParamGetParameter(const char *key, const char **value, int *valueLen);
ncclResult_t pncclParamGetParameter(const char *key, const char **value, int *valueLen);

/* The names of all parameters. */
ncclResult_t ncclParamGetAllParameterKeys(const char ***table, int *tableLen);
ncclResult_t pncclParamGetAllParameterKeys(const char ***table, int *tableLen);

/* Prints all parameters to stdout. */
void ncclParamDumpAll(void);
void pncclParamDumpAll(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* NCCL_H_ */
