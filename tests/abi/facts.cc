// Prints what a header of the C interface declares: sizes, offsets, values, initializers, prototypes. The test
// compiles it against include/nccl.h and against NVIDIA's headers and compares; facts.expected is what NVIDIA's
// print. The host functions and structs of the device API are in nccl_device.h: NVIDIA's, or the tests' extract of it.
#include <nccl_device.h>
#include <cstddef>
#include <cstdio>
#include <type_traits>
#include <typeinfo>

// How a value is passed: what a caller and a callee in another language must agree on.
template <class T> void pass() {
  if (std::is_void<T>::value) printf("void");
  else if (std::is_pointer<T>::value) printf("ptr");
  else if (std::is_enum<T>::value)
    printf("i%d", (int)sizeof(typename std::conditional<std::is_void<T>::value, int, T>::type) * 8);
  else if (std::is_integral<T>::value)
    printf("%c%d", std::is_signed<T>::value ? 'i' : 'u',
           (int)sizeof(typename std::conditional<std::is_void<T>::value, int, T>::type) * 8);
  else printf("struct%d", (int)sizeof(typename std::conditional<std::is_void<T>::value, int, T>::type));
}

template <class R> void arguments(R (*)()) {}
template <class R, class A, class... B> void arguments(R (*)(A, B...)) {
  printf(" ");
  pass<A>();
  arguments((R(*)(B...)) nullptr);
}

template <class R, class... A> void function(const char *name, R (*f)(A...), const char *type) {
  printf("function %s ", name);
  pass<R>();
  printf(" <-");
  arguments(f);
  printf(" | %s\n", type);
}

// The null pointer stands for the function, which is not linked.
#define F(f) function(#f, (decltype(&f)) nullptr, typeid(decltype(f)).name())
#define BOTH(f) F(f), F(p##f)
#define SIZE(type) printf("size %s %d align %d\n", #type, (int)sizeof(type), (int)alignof(type))
#define FIELD(type, field) printf("field %s.%s at %d\n", #type, #field, (int)offsetof(type, field))
#define VALUE(name) printf("value %s %lld\n", #name, (long long)(name))
#define INITIAL(type, field) printf("initial %s.%s %lld\n", #type, #field, (long long)initial.field)

static void values() {
  VALUE(ncclSuccess);
  VALUE(ncclUnhandledCudaError);
  VALUE(ncclSystemError);
  VALUE(ncclInternalError);
  VALUE(ncclInvalidArgument);
  VALUE(ncclInvalidUsage);
  VALUE(ncclRemoteError);
  VALUE(ncclInProgress);
  VALUE(ncclTimeout);
  VALUE(ncclNumResults);
  VALUE(NCCL_MAJOR);
  VALUE(NCCL_MINOR);
  VALUE(NCCL_PATCH);
  VALUE(NCCL_VERSION_CODE);
  VALUE(NCCL_VERSION(2,8,4));
  VALUE(NCCL_VERSION(2,9,6));
  VALUE(NCCL_VERSION(2,32,3));
  VALUE(NCCL_UNIQUE_ID_BYTES);
  VALUE(NCCL_CONFIG_UNDEF_INT);
  VALUE(NCCL_SPLIT_NOCOLOR);
  VALUE(NCCL_API_MAGIC);
  VALUE(NCCL_WIN_DEFAULT);
  VALUE(NCCL_WIN_COLL_SYMMETRIC);
  VALUE(NCCL_WIN_STRICT_ORDERING);
  VALUE(NCCL_WIN_GIN_ONLY);
  VALUE(NCCL_WIN_CFT_COUNTED);
  VALUE(NCCL_WIN_REQUIRED_ALIGNMENT);
  VALUE(NCCL_CTA_POLICY_DEFAULT);
  VALUE(NCCL_CTA_POLICY_EFFICIENCY);
  VALUE(NCCL_CTA_POLICY_ZERO);
  VALUE(NCCL_SHRINK_DEFAULT);
  VALUE(NCCL_SHRINK_ABORT);
  VALUE(NCCL_REVOKE_DEFAULT);
  VALUE(NCCL_SUSPEND_MEM);
  VALUE(ncclHostCftDefault);
  VALUE(ncclHostCftEnable);
  VALUE(ncclHostCftDisable);
  VALUE(ncclHostCftFallback);
  VALUE(ncclNvlsHostModeDefault);
  VALUE(ncclNvlsHostModeEnable);
  VALUE(ncclNvlsHostModeDisableTransport);
  VALUE(ncclNvlsHostModeDisableSymmetricMultimem);
  VALUE(ncclNvlsHostModeDisable);
  VALUE(ncclStatGpuMemSuspend);
  VALUE(ncclStatGpuMemSuspended);
  VALUE(ncclStatGpuMemPersist);
  VALUE(ncclStatGpuMemTotal);
  VALUE(ncclSum);
  VALUE(ncclProd);
  VALUE(ncclMax);
  VALUE(ncclMin);
  VALUE(ncclAvg);
  VALUE(ncclNumOps);
  VALUE(ncclMaxRedOp);
  VALUE(ncclNumOps_dummy);
  VALUE(ncclInt8);
  VALUE(ncclChar);
  VALUE(ncclUint8);
  VALUE(ncclInt32);
  VALUE(ncclInt);
  VALUE(ncclUint32);
  VALUE(ncclInt64);
  VALUE(ncclUint64);
  VALUE(ncclFloat16);
  VALUE(ncclHalf);
  VALUE(ncclFloat32);
  VALUE(ncclFloat);
  VALUE(ncclFloat64);
  VALUE(ncclDouble);
  VALUE(ncclBfloat16);
  VALUE(ncclFloat8e4m3);
  VALUE(ncclFloat8e5m2);
  VALUE(ncclNumTypes);
  VALUE(ncclScalarDevice);
  VALUE(ncclScalarHostImmediate);
  VALUE(NCCL_ENCRYPTION_MODE_NONE);
  VALUE(NCCL_ENCRYPTION_MODE_PSK);
  printf("suffix \"%s\" undefined float %f\n", NCCL_SUFFIX, NCCL_UNDEF_FLOAT);
}

static void types() {
  SIZE(ncclComm_t);
  SIZE(ncclWindow_t);
  SIZE(ncclParamHandle_t);
  SIZE(ncclResult_t);
  SIZE(ncclHostCftMode_t);
  SIZE(ncclNvlsHostMode_t);
  SIZE(ncclCommMemStat_t);
  SIZE(ncclRedOp_t);
  SIZE(ncclRedOp_dummy_t);
  SIZE(ncclDataType_t);
  SIZE(ncclScalarResidence_t);
  SIZE(ncclEncryptionMode_t);
  SIZE(ncclUniqueId);
  FIELD(ncclUniqueId, internal);
  SIZE(ncclConfig_t);
  FIELD(ncclConfig_t, size);
  FIELD(ncclConfig_t, magic);
  FIELD(ncclConfig_t, version);
  FIELD(ncclConfig_t, blocking);
  FIELD(ncclConfig_t, cgaClusterSize);
  FIELD(ncclConfig_t, minCTAs);
  FIELD(ncclConfig_t, maxCTAs);
  FIELD(ncclConfig_t, netName);
  FIELD(ncclConfig_t, splitShare);
  FIELD(ncclConfig_t, trafficClass);
  FIELD(ncclConfig_t, commName);
  FIELD(ncclConfig_t, collnetEnable);
  FIELD(ncclConfig_t, CTAPolicy);
  FIELD(ncclConfig_t, shrinkShare);
  FIELD(ncclConfig_t, nvlsCTAs);
  FIELD(ncclConfig_t, nChannelsPerNetPeer);
  FIELD(ncclConfig_t, nvlinkCentricSched);
  FIELD(ncclConfig_t, graphUsageMode);
  FIELD(ncclConfig_t, numRmaCtx);
  FIELD(ncclConfig_t, maxP2pPeers);
  FIELD(ncclConfig_t, graphStreamOrdering);
  FIELD(ncclConfig_t, launchOrderImplicit);
  FIELD(ncclConfig_t, numRmaSig);
  FIELD(ncclConfig_t, rmaEagerInit);
  FIELD(ncclConfig_t, hostCftMode);
  FIELD(ncclConfig_t, nvlsHostMode);
  SIZE(ncclConfigExt_t);
  FIELD(ncclConfigExt_t, next);
  FIELD(ncclConfigExt_t, key.vendorId);
  FIELD(ncclConfigExt_t, key.optionId);
  FIELD(ncclConfigExt_t, val.i);
  FIELD(ncclConfigExt_t, val.s);
  FIELD(ncclConfigExt_t, val.raw);
  SIZE(ncclCollConfig_t);
  FIELD(ncclCollConfig_t, size);
  FIELD(ncclCollConfig_t, magic);
  FIELD(ncclCollConfig_t, version);
  FIELD(ncclCollConfig_t, ext);
  FIELD(ncclCollConfig_t, minCTAs);
  FIELD(ncclCollConfig_t, maxCTAs);
  FIELD(ncclCollConfig_t, nvlsCTAs);
  FIELD(ncclCollConfig_t, cgaClusterSize);
  FIELD(ncclCollConfig_t, algSelection);
  FIELD(ncclCollConfig_t, forceAlgSelection);
  FIELD(ncclCollConfig_t, CTAPolicy);
  FIELD(ncclCollConfig_t, userProfilerTag);
  FIELD(ncclCollConfig_t, launchCompletionEvent);
  SIZE(ncclSimInfo_t);
  FIELD(ncclSimInfo_t, size);
  FIELD(ncclSimInfo_t, magic);
  FIELD(ncclSimInfo_t, version);
  FIELD(ncclSimInfo_t, estimatedTime);
  SIZE(ncclWaitSignalDesc_t);
  FIELD(ncclWaitSignalDesc_t, opCnt);
  FIELD(ncclWaitSignalDesc_t, peer);
  FIELD(ncclWaitSignalDesc_t, sigIdx);
  FIELD(ncclWaitSignalDesc_t, ctx);
  SIZE(ncclEncryptionConfig_t);
  FIELD(ncclEncryptionConfig_t, size);
  FIELD(ncclEncryptionConfig_t, magic);
  FIELD(ncclEncryptionConfig_t, version);
  FIELD(ncclEncryptionConfig_t, mode);
  FIELD(ncclEncryptionConfig_t, psk);
}

static void initializers() {
  {
    ncclConfig_t initial = NCCL_CONFIG_INITIALIZER;
    INITIAL(ncclConfig_t, size);
    INITIAL(ncclConfig_t, magic);
    INITIAL(ncclConfig_t, version);
    INITIAL(ncclConfig_t, blocking);
    INITIAL(ncclConfig_t, cgaClusterSize);
    INITIAL(ncclConfig_t, minCTAs);
    INITIAL(ncclConfig_t, maxCTAs);
    INITIAL(ncclConfig_t, netName);
    INITIAL(ncclConfig_t, splitShare);
    INITIAL(ncclConfig_t, trafficClass);
    INITIAL(ncclConfig_t, commName);
    INITIAL(ncclConfig_t, collnetEnable);
    INITIAL(ncclConfig_t, CTAPolicy);
    INITIAL(ncclConfig_t, shrinkShare);
    INITIAL(ncclConfig_t, nvlsCTAs);
    INITIAL(ncclConfig_t, nChannelsPerNetPeer);
    INITIAL(ncclConfig_t, nvlinkCentricSched);
    INITIAL(ncclConfig_t, graphUsageMode);
    INITIAL(ncclConfig_t, numRmaCtx);
    INITIAL(ncclConfig_t, maxP2pPeers);
    INITIAL(ncclConfig_t, graphStreamOrdering);
    INITIAL(ncclConfig_t, launchOrderImplicit);
    INITIAL(ncclConfig_t, numRmaSig);
    INITIAL(ncclConfig_t, rmaEagerInit);
    INITIAL(ncclConfig_t, hostCftMode);
    INITIAL(ncclConfig_t, nvlsHostMode);
  }
  {
    ncclCollConfig_t initial = NCCL_COLLCONFIG_INITIALIZER;
    INITIAL(ncclCollConfig_t, size);
    INITIAL(ncclCollConfig_t, magic);
    INITIAL(ncclCollConfig_t, version);
    INITIAL(ncclCollConfig_t, ext);
    INITIAL(ncclCollConfig_t, minCTAs);
    INITIAL(ncclCollConfig_t, maxCTAs);
    INITIAL(ncclCollConfig_t, nvlsCTAs);
    INITIAL(ncclCollConfig_t, cgaClusterSize);
    INITIAL(ncclCollConfig_t, algSelection);
    INITIAL(ncclCollConfig_t, forceAlgSelection);
    INITIAL(ncclCollConfig_t, CTAPolicy);
    INITIAL(ncclCollConfig_t, userProfilerTag);
    INITIAL(ncclCollConfig_t, launchCompletionEvent);
  }
  {
    ncclSimInfo_t initial = NCCL_SIM_INFO_INITIALIZER;
    INITIAL(ncclSimInfo_t, size);
    INITIAL(ncclSimInfo_t, magic);
    INITIAL(ncclSimInfo_t, version);
    INITIAL(ncclSimInfo_t, estimatedTime);
  }
  {
    ncclEncryptionConfig_t initial = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
    INITIAL(ncclEncryptionConfig_t, size);
    INITIAL(ncclEncryptionConfig_t, magic);
    INITIAL(ncclEncryptionConfig_t, version);
    INITIAL(ncclEncryptionConfig_t, mode);
    INITIAL(ncclEncryptionConfig_t, psk);
  }
}

static void functions() {
  BOTH(ncclAllGather);
  BOTH(ncclAllGatherConfig);
  BOTH(ncclAllReduce);
  BOTH(ncclAllReduceConfig);
  BOTH(ncclAlltoAll);
  BOTH(ncclAlltoAllConfig);
  BOTH(ncclBcast);
  BOTH(ncclBroadcast);
  BOTH(ncclBroadcastConfig);
  BOTH(ncclCommAbort);
  BOTH(ncclCommCount);
  BOTH(ncclCommCuDevice);
  BOTH(ncclCommDeregister);
  BOTH(ncclCommDestroy);
  BOTH(ncclCommFinalize);
  BOTH(ncclCommGetAsyncError);
  BOTH(ncclCommGetUniqueId);
  BOTH(ncclCommGrow);
  BOTH(ncclCommInitAll);
  BOTH(ncclCommInitRank);
  BOTH(ncclCommInitRankConfig);
  BOTH(ncclCommInitRankScalable);
  BOTH(ncclCommMemStats);
  BOTH(ncclCommRegister);
  BOTH(ncclCommResume);
  BOTH(ncclCommRevoke);
  BOTH(ncclCommShrink);
  BOTH(ncclCommSplit);
  BOTH(ncclCommSuspend);
  BOTH(ncclCommUserRank);
  BOTH(ncclCommWindowDeregister);
  BOTH(ncclCommWindowRegister);
  BOTH(ncclGather);
  BOTH(ncclGatherConfig);
  BOTH(ncclGetErrorString);
  BOTH(ncclGetLastError);
  BOTH(ncclGetUniqueId);
  BOTH(ncclGetVersion);
  BOTH(ncclGroupEnd);
  BOTH(ncclGroupSimulateEnd);
  BOTH(ncclGroupStart);
  BOTH(ncclMemAlloc);
  BOTH(ncclMemFree);
  BOTH(ncclParamBind);
  BOTH(ncclParamDumpAll);
  BOTH(ncclParamGet);
  BOTH(ncclParamGetAllParameterKeys);
  BOTH(ncclParamGetI16);
  BOTH(ncclParamGetI32);
  BOTH(ncclParamGetI64);
  BOTH(ncclParamGetI8);
  BOTH(ncclParamGetParameter);
  BOTH(ncclParamGetStr);
  BOTH(ncclParamGetU16);
  BOTH(ncclParamGetU32);
  BOTH(ncclParamGetU64);
  BOTH(ncclParamGetU8);
  BOTH(ncclPutSignal);
  BOTH(ncclRecv);
  BOTH(ncclRedOpCreatePreMulSum);
  BOTH(ncclRedOpDestroy);
  BOTH(ncclReduce);
  BOTH(ncclReduceConfig);
  BOTH(ncclReduceScatter);
  BOTH(ncclReduceScatterConfig);
  BOTH(ncclResetDebugInit);
  BOTH(ncclScatter);
  BOTH(ncclScatterConfig);
  BOTH(ncclSend);
  BOTH(ncclSetEncryption);
  BOTH(ncclSignal);
  BOTH(ncclWaitSignal);
  BOTH(ncclWinGetUserPtr);
}

static void device() {
  F(ncclCommQueryProperties);
  F(ncclDevCommCreate);
  F(ncclDevCommDestroy);
  F(ncclGetCftDeviceLeInfo);
  F(ncclGetLsaDevicePointer);
  F(ncclGetLsaMultimemDevicePointer);
  F(ncclGetMultimemDeviceLeInfo);
  F(ncclGetMultimemDevicePointer);
  F(ncclGetPeerDeviceLeInfo);
  F(ncclGetPeerDevicePointer);
  F(ncclGinBarrierCreateRequirement);
  F(ncclLLA2ACalcSlots);
  F(ncclLLA2ACreateRequirement);
  F(ncclLsaBarrierCreateRequirement);
  F(ncclTeamCft);
  F(ncclTeamCftMultimem);
  F(ncclTeamLsa);
  F(ncclTeamRail);
  F(ncclTeamRankToLsa);
  F(ncclTeamRankToWorld);
  F(ncclTeamWorld);
  SIZE(ncclTeam_t);
  FIELD(ncclTeam_t, nRanks);
  FIELD(ncclTeam_t, rank);
  FIELD(ncclTeam_t, stride);
  SIZE(ncclDevResourceRequirements_t);
  FIELD(ncclDevResourceRequirements_t, next);
  FIELD(ncclDevResourceRequirements_t, bufferSize);
  FIELD(ncclDevResourceRequirements_t, bufferAlign);
  FIELD(ncclDevResourceRequirements_t, outBufferHandle);
  FIELD(ncclDevResourceRequirements_t, ginSignalCount);
  FIELD(ncclDevResourceRequirements_t, ginCounterCount);
  FIELD(ncclDevResourceRequirements_t, outGinSignalStart);
  FIELD(ncclDevResourceRequirements_t, outGinCounterStart);
  SIZE(ncclCommProperties_t);
  FIELD(ncclCommProperties_t, size);
  FIELD(ncclCommProperties_t, magic);
  FIELD(ncclCommProperties_t, version);
  FIELD(ncclCommProperties_t, rank);
  FIELD(ncclCommProperties_t, nRanks);
  FIELD(ncclCommProperties_t, cudaDev);
  FIELD(ncclCommProperties_t, nvmlDev);
  FIELD(ncclCommProperties_t, deviceApiSupport);
  FIELD(ncclCommProperties_t, multimemSupport);
  FIELD(ncclCommProperties_t, ginType);
  FIELD(ncclCommProperties_t, nLsaTeams);
  FIELD(ncclCommProperties_t, hostRmaSupport);
  FIELD(ncclCommProperties_t, railedGinType);
  FIELD(ncclCommProperties_t, commHash);
  FIELD(ncclCommProperties_t, ginMinStride);
  FIELD(ncclCommProperties_t, ginConnectionType);
  FIELD(ncclCommProperties_t, ginSupport);
  FIELD(ncclCommProperties_t, devCommRuntimeVersionSize);
  FIELD(ncclCommProperties_t, cftSupport);
  FIELD(ncclCommProperties_t, cftMulticastSupport);
  FIELD(ncclCommProperties_t, cftCountedSupport);
  SIZE(ncclDevCommRequirements_t);
  FIELD(ncclDevCommRequirements_t, size);
  FIELD(ncclDevCommRequirements_t, magic);
  FIELD(ncclDevCommRequirements_t, version);
  SIZE(ncclLsaBarrierHandle_t);
  FIELD(ncclLsaBarrierHandle_t, bufHandle);
  FIELD(ncclLsaBarrierHandle_t, nBarriers);
  SIZE(ncclGinBarrierHandle_t);
  FIELD(ncclGinBarrierHandle_t, signal0);
  SIZE(ncclLLA2AHandle_t);
  FIELD(ncclLLA2AHandle_t, bufHandle);
  FIELD(ncclLLA2AHandle_t, nSlots);
  SIZE(ncclDevComm_t);
  FIELD(ncclDevComm_t, magic);
}

int main() {
  values();
  types();
  initializers();
  functions();
  device();
  return 0;
}
