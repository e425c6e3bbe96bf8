#!/usr/bin/env python3
"""vLLM's way to NCCL: ctypes, 21 functions that are all looked up when the library is opened, no headers.

    python ctypes_vllm.py       any Python with numpy; VLLM_NCCL_SO_PATH names another file than libnccl.so.2

The binding is written anew; what vLLM declares is kept: enums as plain integers, the id as 128 bytes by value,
properties as a structure of 144 bytes, whose version it sets to the library's, at most 2.31.2.
"""
import ctypes
import os

import numpy

from client import job
from cuda_array import Array, Stream, set_device

RANKS = 2
INT8, UINT8, INT32, INT64, FLOAT16, FLOAT32, FLOAT64 = 0, 1, 2, 4, 6, 7, 8
TYPES = {
    "int8": INT8,
    "uint8": UINT8,
    "int32": INT32,
    "int64": INT64,
    "float16": FLOAT16,
    "float32": FLOAT32,
    "float64": FLOAT64,
}
SUM, PROD, MAX, MIN, AVG = range(5)
IN_PROGRESS = 7


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


class Properties(ctypes.Structure):
    """144 bytes, as of 2.31."""

    _fields_ = [
        ("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint), ("rank", ctypes.c_int),
        ("nRanks", ctypes.c_int), ("cudaDev", ctypes.c_int), ("nvmlDev", ctypes.c_int),
        ("deviceApiSupport", ctypes.c_bool), ("multimemSupport", ctypes.c_bool), ("ginType", ctypes.c_int),
        ("nLsaTeams", ctypes.c_int), ("hostRmaSupport", ctypes.c_bool), ("railedGinType", ctypes.c_int),
        ("commHash", ctypes.c_uint64), ("ginMinStride", ctypes.c_int), ("ginConnectionType", ctypes.c_int),
        ("ginSupport", ctypes.c_bool * 64), ("devCommRuntimeVersionSize", ctypes.c_size_t),
    ]  # fmt: skip


P, N, I = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
# Every function: what it takes. All but two return a result code.
FUNCTIONS = {
    "ncclGetErrorString": [I],
    "ncclGetLastError": [P],
    "ncclGetVersion": [ctypes.POINTER(I)],
    "ncclGetUniqueId": [ctypes.POINTER(UniqueId)],
    "ncclCommInitRank": [ctypes.POINTER(P), I, UniqueId, I],
    "ncclAllReduce": [P, P, N, I, I, P, P],
    "ncclReduce": [P, P, N, I, I, I, P, P],
    "ncclAllGather": [P, P, N, I, P, P],
    "ncclReduceScatter": [P, P, N, I, I, P, P],
    "ncclSend": [P, N, I, I, P, P],
    "ncclRecv": [P, N, I, I, P, P],
    "ncclBroadcast": [P, P, N, I, I, P, P],
    "ncclCommDestroy": [P],
    "ncclCommAbort": [P],
    "ncclCommSuspend": [P, I],
    "ncclCommResume": [P],
    "ncclGroupStart": [],
    "ncclGroupEnd": [],
    "ncclCommWindowRegister": [P, P, N, ctypes.POINTER(P), I],
    "ncclCommWindowDeregister": [P, P],
    "ncclCommQueryProperties": [P, ctypes.POINTER(Properties)],
}


class Nccl:
    def __init__(self):
        library = ctypes.CDLL(os.environ.get("VLLM_NCCL_SO_PATH") or "libnccl.so.2")
        self.functions = {}
        for name, arguments in FUNCTIONS.items():
            function = getattr(library, name)
            function.restype = ctypes.c_char_p if name in ("ncclGetErrorString", "ncclGetLastError") else I
            function.argtypes = arguments
            self.functions[name] = function

    def __call__(self, name, *arguments):
        code = self.functions[name](*arguments)
        if code != 0:
            said = self.functions["ncclGetLastError"](None)
            raise RuntimeError(f"{name}: {self.functions['ncclGetErrorString'](code).decode()}: {said.decode()}")

    def version(self):
        number = I()
        self("ncclGetVersion", ctypes.byref(number))
        return number.value


def inputs(rank, dtype="float32", count=5):
    return numpy.arange(rank + 1, rank + 1 + count, dtype=dtype)


def work(rank, size, check, unique_id):
    set_device(rank)
    nccl, comm, stream = Nccl(), P(), Stream()
    nccl("ncclCommInitRank", ctypes.byref(comm), size, UniqueId.from_buffer_copy(unique_id), rank)

    def call(name, *arguments):
        nccl(name, *arguments, comm, stream.handle)
        stream.synchronize()

    for dtype, number in TYPES.items():
        x, out = Array(inputs(rank, dtype), dtype), Array(numpy.zeros(5), dtype)
        call("ncclAllReduce", x.pointer, out.pointer, 5, number, SUM)
        check(f"AllReduce {dtype}", out.tolist(), sum(inputs(one, dtype) for one in range(size)).tolist())
    everybody = [inputs(one).tolist() for one in range(size)]
    total = sum(inputs(one) for one in range(size)).tolist()
    x, out, gathered = Array(inputs(rank)), Array(numpy.zeros(5)), Array(numpy.zeros((size, 5)))
    call("ncclReduce", x.pointer, out.pointer, 5, FLOAT32, SUM, 0)
    check("Reduce", out.tolist(), total if rank == 0 else [0.0] * 5)
    call("ncclAllGather", x.pointer, gathered.pointer, 5, FLOAT32)
    check("AllGather", gathered.tolist(), everybody)
    call("ncclReduceScatter", gathered.pointer, out.pointer, 5, FLOAT32, MAX)
    check("ReduceScatter", out.tolist(), everybody[rank])
    call("ncclBroadcast", x.pointer, out.pointer, 5, FLOAT32, 1)
    check("Broadcast", out.tolist(), everybody[1])
    nccl("ncclGroupStart")
    nccl("ncclSend", x.pointer, 5, FLOAT32, (rank + 1) % size, comm, stream.handle)
    nccl("ncclRecv", out.pointer, 5, FLOAT32, (rank - 1) % size, comm, stream.handle)
    nccl("ncclGroupEnd")
    stream.synchronize()
    check("Send and Recv", out.tolist(), everybody[(rank - 1) % size])
    properties(nccl, comm, rank, size, check)
    windows(nccl, comm, check)
    try:
        nccl("ncclAllReduce", x.pointer, out.pointer, 5, 99, SUM, comm, stream.handle)
    except RuntimeError as error:
        check("a wrong type is named", "99" in str(error) or str(error), True)
    nccl("ncclCommDestroy", comm)


def properties(nccl, comm, rank, size, check):
    guarded = (ctypes.c_ubyte * 160)(*[0xAB] * 160)
    asked = Properties.from_buffer(guarded)
    asked.size, asked.magic, asked.version = ctypes.sizeof(Properties), 0xCAFEBEEF, min(nccl.version(), 23102)
    nccl("ncclCommQueryProperties", comm, ctypes.byref(asked))
    check("size of the structure", ctypes.sizeof(Properties), 144)
    check("QueryProperties", (asked.rank, asked.nRanks, asked.cudaDev), (rank, size, rank))
    check("what is behind the structure is left alone", bytes(guarded[144:]), b"\xab" * 16)


def windows(nccl, comm, check):
    memory, window = Array(numpy.zeros(1 << 16)), P()
    nccl("ncclCommWindowRegister", comm, memory.pointer, memory.nbytes, ctypes.byref(window), 1)
    nccl("ncclCommWindowDeregister", comm, window)
    check("a window is registered and taken back", True, True)


def begin(report):
    nccl, unique_id = Nccl(), UniqueId()
    report.check("version", nccl.version(), 23203)
    report.check("functions", len(FUNCTIONS), 21)
    nccl("ncclGetUniqueId", ctypes.byref(unique_id))
    return bytes(unique_id)


job(RANKS, begin, work)
