#!/usr/bin/env python3
"""nccl4py, NVIDIA's own Python binding, which looks up every name that NCCL has; with cuda.core's devices and streams.

    python nccl4py.py       with scripts/install-python-clients.sh's Python

cuda.core's Device.sync does not work on the software device: it has NVIDIA's runtime linked in. Its streams do.
"""
import numpy

from client import job
from cuda_array import Array

RANKS = 2


def inputs(rank):
    return numpy.arange(rank + 1, rank + 6, dtype=numpy.float32)


def work(rank, size, check, unique_id):
    import nccl.core as nccl
    from cuda.core import Device

    device = Device(rank)
    device.set_current()
    comm = nccl.Communicator.init(size, rank, nccl.UniqueId.from_bytes(unique_id), nccl.NCCLConfig(blocking=True))
    check(
        "rank, nranks, device", (comm.rank, comm.nranks, comm.device.device_id, comm.cuda_dev), (rank, size, rank, rank)
    )
    properties = comm.properties
    check("properties", (properties.rank, properties.n_ranks, properties.cuda_dev), (rank, size, rank))
    check("team_world", (comm.team_world.n_ranks, comm.team_world.rank), (size, rank))
    everybody = [inputs(one).tolist() for one in range(size)]
    total = sum(inputs(one) for one in range(size)).tolist()

    stream = device.create_stream()
    for name, on in {"the default stream": 0, "a stream of cuda.core": stream}.items():
        x, out = Array(inputs(rank)), Array(numpy.zeros(5))
        comm.allreduce(x, out, nccl.SUM, stream=on)
        stream.sync()
        check(f"allreduce on {name}", out.tolist(), total)
    x, out = Array(inputs(rank)), Array(numpy.zeros(5))
    comm.allreduce(x, out, comm.create_pre_mul_sum(numpy.array([2], numpy.float32)))
    check("allreduce by a premultiplied sum", out.tolist(), [2 * v for v in total])
    gathered = Array(numpy.zeros((size, 5)))
    comm.allgather(x, gathered)
    check("allgather", gathered.tolist(), everybody)
    comm.reduce_scatter(gathered, out, nccl.MAX)
    check("reduce_scatter", out.tolist(), everybody[rank])
    comm.broadcast(x, out, root=1)
    check("broadcast", out.tolist(), everybody[1])
    comm.reduce(x, out if rank == 0 else None, nccl.SUM, root=0)
    check("reduce", out.tolist(), total if rank == 0 else everybody[1])
    swapped = Array(numpy.zeros((size, 5)))
    comm.alltoall(gathered, swapped)
    check("alltoall", swapped.tolist(), [everybody[rank]] * size)
    rooted(nccl, comm, check, everybody)
    life(nccl, comm, check)


def rooted(nccl, comm, check, everybody):
    rank, size = comm.rank, comm.nranks
    x, out, gathered = Array(inputs(rank)), Array(numpy.zeros(5)), Array(numpy.zeros((size, 5)))
    comm.gather(x, gathered if rank == 0 else None, root=0)
    comm.scatter(gathered if rank == 0 else None, out, root=0)
    check("gather and scatter", out.tolist(), everybody[rank])
    with nccl.group():
        comm.send(x, (rank + 1) % size)
        comm.recv(out, (rank - 1) % size)
    check("send and recv", out.tolist(), everybody[(rank - 1) % size])


def life(nccl, comm, check):
    memory = nccl.mem_alloc(1 << 20)
    handle = comm.register_buffer(memory)
    check("mem_alloc", memory.size >= 1 << 20, True)
    handle.close()
    memory.close()
    child = comm.split(color=0, key=-comm.rank)
    check("split", (child.nranks, child.rank), (comm.nranks, comm.nranks - 1 - comm.rank))
    child.destroy()
    check("get_async_error", int(comm.get_async_error()), 0)
    comm.finalize()
    comm.destroy()
    check("is_valid", comm.is_valid, False)


def begin(report):
    import nccl.core as nccl

    library = nccl.get_version().libnccl
    report.check("version", (str(library.version), str(library.cuda_variant)), ("2.32.3", "13.0"))
    return bytes(nccl.get_unique_id())


job(RANKS, begin, work)
