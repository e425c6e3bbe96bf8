#!/usr/bin/env python3
"""torch.cuda.nccl: one process, one thread, four devices (two or more; SOFTCUDA_DEVICES).

    python torch_single.py
"""
import torch
from torch.cuda import nccl
from torch.nn.parallel import comm

from client import Report, main
from torch_job import VERSION, plain

REPORT = Report()
DEVICES = min(4, torch.cuda.device_count())
ALL = range(DEVICES)
SIZES = [1, 1000, 300_001]


def inputs(rank, count):
    return [float(1 + (rank * 5 + at * 7) % 4) for at in range(count)]


def tensors(count, dtype=torch.float32):
    return [torch.tensor(inputs(rank, count), dtype=dtype).to(f"cuda:{rank}") for rank in ALL]


def total(count):
    return [float(sum(1 + (rank * 5 + at * 7) % 4 for rank in ALL)) for at in range(count)]


def values(outs):
    for rank in ALL:
        torch.cuda.synchronize(rank)
    return [plain(out) for out in outs]


def facts():
    REPORT.check("version", nccl.version()[0], 2)
    REPORT.check("unique_id", len(nccl.unique_id()), 128)
    REPORT.check("is_available", nccl.is_available(tensors(1)), True)


def all_reduce():
    for count in SIZES:
        xs = tensors(count)
        nccl.all_reduce(xs)
        REPORT.check(f"all_reduce of {count}", values(xs), [total(count)] * DEVICES)
        xs, outs = tensors(count), [torch.empty(count, device=f"cuda:{rank}") for rank in ALL]
        nccl.all_reduce(xs, outs)
        REPORT.check(f"all_reduce of {count}, out of place", values(outs), [total(count)] * DEVICES)
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.int8, torch.uint8):
        xs = tensors(9, dtype)
        nccl.all_reduce(xs)
        REPORT.check(f"all_reduce of {dtype}", values(xs), [total(9)] * DEVICES)


def others():
    for count in SIZES:
        xs, root = tensors(count), 1 if VERSION >= (2, 15) else 0  # the older one takes 0, whatever is asked for
        nccl.broadcast(xs, root)
        REPORT.check(f"broadcast of {count}", values(xs), [inputs(root, count)] * DEVICES)

        out = torch.empty(count, device="cuda:0")
        nccl.reduce(tensors(count), out, 0)
        REPORT.check(f"reduce of {count}", plain(out), total(count))

        outs = [torch.empty(DEVICES * count, device=f"cuda:{rank}") for rank in ALL]
        nccl.all_gather(tensors(count), outs)
        want = [v for rank in ALL for v in inputs(rank, count)]
        REPORT.check(f"all_gather of {count}", values(outs), [want] * DEVICES)

        outs = [torch.empty(count, device=f"cuda:{rank}") for rank in ALL]
        nccl.reduce_scatter(tensors(DEVICES * count), outs)
        whole = total(DEVICES * count)
        REPORT.check(
            f"reduce_scatter of {count}", values(outs), [whole[rank * count : (rank + 1) * count] for rank in ALL]
        )


def data_parallel():
    """What torch.nn.DataParallel moves parameters with."""
    outs = comm.broadcast(torch.tensor([5.0, 6.0]).cuda(0), list(ALL))
    REPORT.check("comm.broadcast", values(outs), [[5.0, 6.0]] * DEVICES)
    outs = comm.broadcast_coalesced([torch.tensor([1.0]).cuda(0), torch.tensor([2.0, 3.0]).cuda(0)], list(ALL), 1)
    REPORT.check(
        "comm.broadcast_coalesced", [values(out) for out in zip(*outs)], [[[1.0]] * DEVICES, [[2.0, 3.0]] * DEVICES]
    )


def single():
    for step in (facts, all_reduce, others, data_parallel):
        REPORT.step(step.__name__, step)


main(REPORT, single)
