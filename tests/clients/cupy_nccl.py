#!/usr/bin/env python3
"""cupy.cuda.nccl: CuPy's own binding of NCCL, on memory of the CUDA runtime.

    python cupy_nccl.py       with scripts/install-python-clients.sh's Python

CuPy's arrays do not work on the software device: cupy.cuda.runtime has NVIDIA's runtime linked in.
"""
import numpy

from client import job
from cuda_array import Array, set_device

RANKS = 2
TYPES = {"INT8": "int8", "UINT8": "uint8", "INT32": "int32", "UINT32": "uint32", "INT64": "int64", "UINT64": "uint64",
         "FLOAT16": "float16", "FLOAT32": "float32", "FLOAT64": "float64"}  # fmt: skip


def inputs(rank, dtype="float32"):
    return numpy.arange(rank + 1, rank + 6, dtype=dtype)


def work(rank, size, check, unique_id):
    from cupy.cuda import nccl

    set_device(rank)
    comm = nccl.NcclCommunicator(size, unique_id, rank)
    check("size, rank, device", (comm.size(), comm.rank_id(), comm.device_id()), (size, rank, rank))
    everybody = [inputs(one).tolist() for one in range(size)]
    for name, dtype in TYPES.items():
        x = Array(inputs(rank, dtype), dtype)
        comm.allReduce(x.pointer.value, x.pointer.value, x.size, getattr(nccl, f"NCCL_{name}"), nccl.NCCL_SUM, 0)
        check(f"allReduce {name}", x.tolist(), sum(inputs(one, dtype) for one in range(size)).tolist())
    for name, fold in {"PROD": numpy.multiply, "MAX": numpy.maximum, "MIN": numpy.minimum}.items():
        x, out = Array(inputs(rank)), Array(numpy.zeros(5))
        comm.allReduce(x.pointer.value, out.pointer.value, 5, nccl.NCCL_FLOAT32, getattr(nccl, f"NCCL_{name}"), 0)
        check(f"allReduce {name}", out.tolist(), fold.reduce([inputs(one) for one in range(size)]).tolist())
    total = sum(inputs(one) for one in range(size)).tolist()

    x, out = Array(inputs(rank)), Array(numpy.zeros(5))
    comm.reduce(x.pointer.value, out.pointer.value, 5, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, 1, 0)
    check("reduce", out.tolist(), total if rank == 1 else [0.0] * 5)
    comm.broadcast(x.pointer.value, out.pointer.value, 5, nccl.NCCL_FLOAT32, 1, 0)
    check("broadcast", out.tolist(), everybody[1])
    comm.bcast(x.pointer.value, 5, nccl.NCCL_FLOAT32, 0, 0)
    check("bcast", x.tolist(), everybody[0])

    x, out = Array(inputs(rank)), Array(numpy.zeros((size, 5)))
    comm.allGather(x.pointer.value, out.pointer.value, 5, nccl.NCCL_FLOAT32, 0)
    check("allGather", out.tolist(), everybody)
    part = Array(numpy.zeros(5))
    comm.reduceScatter(out.pointer.value, part.pointer.value, 5, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, 0)
    check("reduceScatter", part.tolist(), [size * v for v in everybody[rank]])
    messages(comm, nccl, rank, size, check)
    half = comm.commSplit(rank % 2, -rank)
    check("commSplit", (half.size(), half.rank_id()), ((size + 1 - rank % 2) // 2, 0))
    half.destroy()
    comm.check_async_error()
    comm.destroy()


def messages(comm, nccl, rank, size, check):
    x, out = Array(inputs(rank)), Array(numpy.zeros(5))
    nccl.groupStart()
    comm.send(x.pointer.value, 5, nccl.NCCL_FLOAT32, (rank + 1) % size, 0)
    comm.recv(out.pointer.value, 5, nccl.NCCL_FLOAT32, (rank - 1) % size, 0)
    nccl.groupEnd()
    check("send and recv", out.tolist(), inputs((rank - 1) % size).tolist())


def begin(report):
    from cupy.cuda import nccl

    report.check("available", nccl.available, True)
    report.check("version", nccl.get_version(), 23203)
    return nccl.get_unique_id()


job(RANKS, begin, work)
