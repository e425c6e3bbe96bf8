/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The part of cuda.h that is about green contexts, which includes it: a program includes cuda.h. */
#ifndef SOFTCUDA_CUDA_GREEN_H
#define SOFTCUDA_CUDA_GREEN_H

#include "cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUdevResourceDesc_st *CUdevResourceDesc;

typedef enum CUgreenCtxCreate_flags_enum { CU_GREEN_CTX_DEFAULT_STREAM = 1 } CUgreenCtxCreate_flags;
typedef enum CUdevSmResourceSplitByCount_flags_enum {
  CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING = 1, CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE = 2
} CUdevSmResourceSplitByCount_flags;
typedef enum CUdevResourceType_enum { CU_DEV_RESOURCE_TYPE_INVALID = 0, CU_DEV_RESOURCE_TYPE_SM = 1 } CUdevResourceType;

typedef struct CUdevSmResource_st {
  unsigned int smCount, minSmPartitionSize, smCoscheduledAlignment, flags, localityDomainId;
} CUdevSmResource;

typedef struct CUdevResource_st {
  CUdevResourceType type;
  unsigned char _internal_padding[92];
  __extension__ union { CUdevSmResource sm; unsigned char _oversize[40]; };
  struct CUdevResource_st *nextResource;
} CUdevResource;

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, CUdevResourceType type);
CUresult cuCtxGetDevResource(CUcontext ctx, CUdevResource *resource, CUdevResourceType type);
CUresult cuGreenCtxGetDevResource(CUgreenCtx ctx, CUdevResource *resource, CUdevResourceType type);
CUresult cuStreamGetDevResource(CUstream stream, CUdevResource *resource, CUdevResourceType type);
CUresult cuDevSmResourceSplitByCount(CUdevResource *result, unsigned int *nbGroups, const CUdevResource *input,
    CUdevResource *remainder, unsigned int flags, unsigned int minCount);
CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *desc, CUdevResource *resources, unsigned int nbResources);
CUresult cuGreenCtxCreate(CUgreenCtx *ctx, CUdevResourceDesc desc, CUdevice device, unsigned int flags);
CUresult cuGreenCtxDestroy(CUgreenCtx ctx);
CUresult cuGreenCtxGetId(CUgreenCtx ctx, unsigned long long *ctxId);
CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx ctx);
CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx ctx, unsigned int flags, int priority);
CUresult cuGreenCtxRecordEvent(CUgreenCtx ctx, CUevent event);
CUresult cuGreenCtxWaitEvent(CUgreenCtx ctx, CUevent event);
CUresult cuStreamGetGreenCtx(CUstream stream, CUgreenCtx *ctx);
CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext *context, CUgreenCtx *ctx);

#ifdef __cplusplus
}
#endif

#endif
