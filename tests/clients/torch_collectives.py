#!/usr/bin/env python3
"""Every collective of torch.distributed over the backend `nccl`; what comes out is compared with plain Python's
arithmetic.

    torchrun --nproc_per_node 2 torch_collectives.py [--device-id] [--quick]

Also with TORCH_DIST_USE_NCCL2=0 (the backend before PyTorch 2.15), and there with TORCH_NCCL_USE_COMM_NONBLOCKING=1;
and PyTorch 2.8, which has that backend only. Nothing here launches a kernel of PyTorch's own, but for the object
collectives, and before PyTorch 2.15 barriers, which come last and need softcuda_torch.
"""
import math
import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh

from client import main
from torch_job import VERSION, Job, cpu_operators, plain

JOB = Job(__doc__)
RANK, SIZE, REPORT = JOB.rank, JOB.size, JOB.report
OTHERS = range(SIZE)
QUICK = JOB.options.quick

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int32, torch.int64]
SMALL = [torch.float8_e4m3fn, torch.float8_e5m2]
# Elements of a call; the last one needs several chunks.
COUNTS = [1, 17, 1000] if QUICK else [1, 17, 1000, 300_001]


def short(dtype):
    return str(dtype).removeprefix("torch.")


def value(rank, at, dtype=torch.float32):
    """An input: small numbers, so that every operation on up to eight of them is exact in every type."""
    if dtype == torch.bool:
        return (rank + at) % 3 == 0
    return 1 + (rank + at) % 2 if dtype in SMALL else 1 + (rank * 5 + at * 7) % 3


def inputs(rank, count, dtype=torch.float32):
    return [value(rank, at, dtype) for at in range(count)]


def mean(numbers):
    whole = all(isinstance(number, int) for number in numbers)
    return sum(numbers) // len(numbers) if whole else sum(numbers) / len(numbers)


def reduced(operation, count, dtype=torch.float32, ranks=OTHERS):
    """What a reduction of all ranks' inputs must give."""
    kind = float if dtype.is_floating_point else bool if dtype == torch.bool else int
    period = min(count, 6)  # inputs repeat; so do results
    results = [kind(operation([kind(value(rank, at, dtype)) for rank in ranks])) for at in range(period)]
    return [results[at % period] for at in range(count)]


OPERATIONS = {
    "sum": (dist.ReduceOp.SUM, sum),
    "product": (dist.ReduceOp.PRODUCT, math.prod),
    "min": (dist.ReduceOp.MIN, min),
    "max": (dist.ReduceOp.MAX, max),
    "avg": (dist.ReduceOp.AVG, mean),
}


def all_reduce_types():
    for dtype in FLOATS + INTEGERS + SMALL + [torch.bool]:
        for name, (op, expect) in OPERATIONS.items():
            if dtype == torch.bool and name == "avg":
                continue  # refused, below
            if name == "avg" and SIZE & (SIZE - 1) and dtype.is_floating_point:
                continue  # not exact
            x = JOB.tensor(inputs(RANK, 17, dtype), dtype)
            dist.all_reduce(x, op=op)
            JOB.check(f"all_reduce {short(dtype)} {name}", x, reduced(expect, 17, dtype))


def all_reduce_sizes():
    for count in COUNTS:
        x = JOB.tensor(inputs(RANK, count))
        dist.all_reduce(x)
        JOB.check(f"all_reduce of {count}", x, reduced(sum, count))


def all_reduce_complex():
    x = JOB.tensor([complex(RANK, 1), complex(2, RANK)], torch.complex64)
    dist.all_reduce(x)
    JOB.check("all_reduce complex64 sum", x, [complex(sum(OTHERS), SIZE), complex(2 * SIZE, sum(OTHERS))])


def premul_sum():
    for dtype in FLOATS if VERSION >= (2, 15) else FLOATS[:3]:  # the older one refuses bfloat16
        x = JOB.tensor(inputs(RANK, 9, dtype), dtype)
        dist.all_reduce(x, op=dist._make_nccl_premul_sum(2.0))
        JOB.check(f"all_reduce {short(dtype)} premul_sum by a number", x, [2 * y for y in reduced(sum, 9, dtype)])
        x = JOB.tensor(inputs(RANK, 9, dtype), dtype)
        dist.all_reduce(x, op=dist._make_nccl_premul_sum(JOB.tensor([0.5], dtype)))
        JOB.check(f"all_reduce {short(dtype)} premul_sum by a tensor", x, [0.5 * y for y in reduced(sum, 9, dtype)])


def refusals():
    """What NCCL has no operation for is an error in Python, and the group goes on."""
    for name in ("BAND", "BOR", "BXOR"):
        op = getattr(dist.ReduceOp, name)
        REPORT.refused(f"all_reduce {name}", lambda: dist.all_reduce(JOB.tensor([1], torch.int32), op=op), Exception)
    REPORT.refused("broadcast of a column", lambda: dist.broadcast(JOB.empty(4, 4)[:, 1], 0), Exception)
    x = JOB.tensor([1.0])
    dist.all_reduce(x)
    JOB.check("all_reduce after refused calls", x, [float(SIZE)])


def asynchronous():
    xs = [JOB.tensor(inputs(RANK, count)) for count in COUNTS]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    for work in works:
        work.wait()
    for x, count in zip(xs, COUNTS):
        JOB.check(f"all_reduce async of {count}", x, reduced(sum, count))
    REPORT.check("all_reduce async is completed", all(work.is_completed() for work in works), True)
    x, y = JOB.tensor([RANK + 1.0]), JOB.empty(SIZE)
    first = dist.broadcast(x, 0, async_op=True)
    first.wait()
    dist.all_gather_into_tensor(y, x, async_op=True).wait()
    JOB.check("all_gather after an async broadcast", y, [1.0] * SIZE)


def side_streams():
    stream = torch.cuda.Stream()
    x = JOB.tensor(inputs(RANK, 1000))
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        dist.all_reduce(x)
        y = x.clone()
        dist.all_reduce(y, op=dist.ReduceOp.MAX)
    torch.cuda.current_stream().wait_stream(stream)
    JOB.check("all_reduce on a side stream", x, reduced(sum, 1000))
    JOB.check("all_reduce twice on a side stream", y, reduced(sum, 1000))


def broadcast():
    for dtype in FLOATS + INTEGERS + SMALL + [torch.bool]:
        root = SIZE - 1
        x = JOB.tensor(inputs(RANK, 33, dtype), dtype)
        dist.broadcast(x, root)
        JOB.check(f"broadcast {short(dtype)}", x, plain(torch.tensor(inputs(root, 33, dtype), dtype=dtype)))
    for root in OTHERS:
        x = JOB.tensor(inputs(RANK, COUNTS[-1]))
        dist.broadcast(x, root)
        JOB.check(f"broadcast from {root}", x, [float(v) for v in inputs(root, COUNTS[-1])])


def reduce():
    for name, (op, expect) in OPERATIONS.items():
        for root in OTHERS:
            x = JOB.tensor(inputs(RANK, 17, torch.int64), torch.int64)
            dist.reduce(x, root, op=op)
            if RANK == root:
                JOB.check(f"reduce {name} to {root}", x, reduced(expect, 17, torch.int64))


def pieces(count, ranks=OTHERS, dtype=torch.float32):
    kind = float if dtype.is_floating_point else bool if dtype == torch.bool else int
    return [[kind(v) for v in inputs(rank, count, dtype)] for rank in ranks]


def all_gather():
    for count in COUNTS:
        x = JOB.tensor(inputs(RANK, count))
        into = JOB.empty(SIZE * count)
        dist.all_gather_into_tensor(into, x)
        JOB.check(f"all_gather_into_tensor of {count}", into.view(SIZE, count), pieces(count))
        outs = [JOB.empty(count) for _ in OTHERS]
        dist.all_gather(outs, x)
        JOB.check(f"all_gather of {count}", outs, pieces(count))
    for dtype in FLOATS + INTEGERS + SMALL + [torch.bool]:
        into = JOB.empty(SIZE, 5, dtype=dtype)
        dist.all_gather_into_tensor(into, JOB.tensor(inputs(RANK, 5, dtype), dtype))
        JOB.check(f"all_gather_into_tensor {short(dtype)}", into, pieces(5, dtype=dtype))
    outs = [JOB.empty(3 + rank) for rank in OTHERS]
    dist.all_gather(outs, JOB.tensor(inputs(RANK, 3 + RANK)))
    JOB.check("all_gather of unequal sizes", outs, [[float(v) for v in inputs(rank, 3 + rank)] for rank in OTHERS])


def reduce_scatter():
    for count in COUNTS:
        x = [JOB.tensor(inputs(RANK + part, count)) for part in OTHERS]
        want = reduced(sum, count, ranks=[rank + RANK for rank in OTHERS])
        out = JOB.empty(count)
        dist.reduce_scatter(out, x)
        JOB.check(f"reduce_scatter of {count}", out, want)
        flat = JOB.tensor([v for part in OTHERS for v in inputs(RANK + part, count)])
        out = JOB.empty(count)
        dist.reduce_scatter_tensor(out, flat)
        JOB.check(f"reduce_scatter_tensor of {count}", out, want)
    for name, (op, expect) in OPERATIONS.items():
        flat = JOB.tensor([v for part in OTHERS for v in inputs(RANK + part, 6)], torch.int32)
        out = JOB.empty(6, dtype=torch.int32)
        dist.reduce_scatter_tensor(out, flat, op=op)
        want = reduced(expect, 6, torch.int32, [rank + RANK for rank in OTHERS])
        JOB.check(f"reduce_scatter_tensor {name}", out, want)
    out = JOB.empty(2 + RANK)
    dist.reduce_scatter(out, [JOB.tensor(inputs(RANK, 2 + part)) for part in OTHERS])
    JOB.check("reduce_scatter of unequal sizes", out, reduced(sum, 2 + RANK))


def message(source, target, count):
    return [float(source * 100 + target * 10 + at % 10) for at in range(count)]


def all_to_all():
    for count in COUNTS:
        x = JOB.tensor([message(RANK, to, count) for to in OTHERS])
        out = JOB.empty(SIZE, count)
        dist.all_to_all_single(out, x)
        JOB.check(f"all_to_all_single of {count}", out, [message(source, RANK, count) for source in OTHERS])

    # Uneven: from a to b go (a + 2 b) mod 4 elements, sometimes none.
    sizes = [[(a + 2 * b) % 4 for b in OTHERS] for a in OTHERS]
    sends, takes = sizes[RANK], [sizes[source][RANK] for source in OTHERS]
    out = JOB.empty(sum(takes))
    flat = [v for to in OTHERS for v in message(RANK, to, sends[to])]
    dist.all_to_all_single(out, JOB.tensor(flat), takes, sends)
    JOB.check("all_to_all_single uneven", out, [v for source in OTHERS for v in message(source, RANK, takes[source])])

    outs = [JOB.empty(1 + count) for count in takes]
    dist.all_to_all(outs, [JOB.tensor(message(RANK, to, 1 + sends[to])) for to in OTHERS])
    JOB.check("all_to_all", outs, [message(source, RANK, 1 + takes[source]) for source in OTHERS])


def gather_and_scatter():
    for root in OTHERS:
        outs = [JOB.empty(7) for _ in OTHERS] if RANK == root else None
        dist.gather(JOB.tensor(inputs(RANK, 7)), outs, root)
        if RANK == root:
            JOB.check(f"gather to {root}", outs, pieces(7))
        out = JOB.empty(7)
        dist.scatter(out, [JOB.tensor(message(root, to, 7)) for to in OTHERS] if RANK == root else None, root)
        JOB.check(f"scatter from {root}", out, message(root, RANK, 7))


def messages():
    to, source = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for count in COUNTS:
        if RANK % 2 == 0 and RANK + 1 < SIZE:
            dist.send(JOB.tensor(message(RANK, RANK + 1, count)), RANK + 1)
        elif RANK % 2 == 1:
            x = JOB.empty(count)
            dist.recv(x, RANK - 1)
            JOB.check(f"send and recv of {count}", x, message(RANK - 1, RANK, count))
        x = JOB.empty(count)
        sending = dist.P2POp(dist.isend, JOB.tensor(message(RANK, to, count)), to)
        for work in dist.batch_isend_irecv([sending, dist.P2POp(dist.irecv, x, source)]):
            work.wait()
        JOB.check(f"batch_isend_irecv around a ring of {count}", x, message(source, RANK, count))
    several()


def several():
    """Several messages of different sizes to each peer, in one batch: they keep their order."""
    peers = [rank for rank in OTHERS if rank != RANK]
    ops, outs = [], []
    for peer in peers:
        for count in (1, 40, 3):
            ops.append(dist.P2POp(dist.isend, JOB.tensor(message(RANK, peer, count)), peer))
            outs.append((peer, count, JOB.empty(count)))
            ops.append(dist.P2POp(dist.irecv, outs[-1][2], peer))
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    JOB.check(
        "batch_isend_irecv of several", [out for _, _, out in outs], [message(peer, RANK, n) for peer, n, _ in outs]
    )
    if RANK < 2:
        peer = 1 - RANK
        x = JOB.empty(5)
        if RANK == 0:
            works = [dist.isend(JOB.tensor(message(0, 1, 5)), 1)]
        else:
            works = [dist.irecv(x, 0)]
        for work in works:
            work.wait()
        if RANK == 1:
            JOB.check("isend and irecv", x, message(peer, RANK, 5))


def coalesced():
    xs = [JOB.tensor(inputs(RANK, count)) for count in (1, 17, 1000)]
    with dist._coalescing_manager(device=JOB.device):
        for x in xs:
            dist.all_reduce(x)
    JOB.check("coalesced all_reduce", xs, [reduced(sum, count) for count in (1, 17, 1000)])

    xs = [JOB.tensor(inputs(RANK, count)) for count in (3, 9)]
    with dist._coalescing_manager(device=JOB.device, async_ops=True) as manager:
        for x in xs:
            dist.all_reduce(x, op=dist.ReduceOp.MAX)
    manager.wait()
    JOB.check("coalesced all_reduce, async", xs, [reduced(max, count) for count in (3, 9)])

    outs = [JOB.empty(SIZE, count) for count in (2, 5)]
    with dist._coalescing_manager(device=JOB.device, async_ops=True) as manager:
        for out in outs:
            dist.all_gather_into_tensor(out.view(-1), JOB.tensor(inputs(RANK, out.shape[1])))
    manager.wait()
    JOB.check("coalesced all_gather_into_tensor", outs, [pieces(2), pieces(5)])

    outs = [JOB.empty(count) for count in (2, 5)]
    with dist._coalescing_manager(device=JOB.device, async_ops=True) as manager:
        for out in outs:
            dist.reduce_scatter_tensor(out, JOB.tensor(inputs(RANK, len(out)) * SIZE))
    manager.wait()
    JOB.check("coalesced reduce_scatter_tensor", outs, [reduced(sum, 2), reduced(sum, 5)])


def functional_collectives():
    warnings.simplefilter("ignore", FutureWarning)  # the names here are those that older versions have, too
    x = JOB.tensor(inputs(RANK, 8))
    group = dist.group.WORLD
    JOB.check("functional all_reduce", functional.all_reduce(x, "sum", group).wait(), reduced(sum, 8))
    gathered = functional.all_gather_tensor(x, 0, group).wait()
    JOB.check("functional all_gather_tensor", gathered.view(SIZE, 8), pieces(8))
    flat = JOB.tensor(inputs(RANK, 4) * SIZE)
    JOB.check(
        "functional reduce_scatter_tensor",
        functional.reduce_scatter_tensor(flat, "sum", 0, group).wait(),
        reduced(sum, 4),
    )
    out = functional.all_to_all_single(
        JOB.tensor([v for to in OTHERS for v in message(RANK, to, 2)]), None, None, group
    ).wait()
    JOB.check("functional all_to_all_single", out.view(SIZE, 2), [message(source, RANK, 2) for source in OTHERS])


def nothing():
    """Calls without elements."""
    dist.all_reduce(JOB.empty(0))
    out = JOB.empty(0)
    dist.all_gather_into_tensor(out, JOB.empty(0))
    dist.broadcast(out, 0)
    JOB.check("empty tensors", out, [])


def barriers():
    dist.barrier()
    dist.barrier(device_ids=[JOB.device.index])
    dist.barrier(async_op=True).wait()
    REPORT.check("barrier", True, True)


def all_reduce_in(group, name, ranks):
    """A sum among the ranks of a group; the others have no part in it."""
    if RANK in ranks:
        x = JOB.tensor(inputs(RANK, 12))
        dist.all_reduce(x, group=group)
        JOB.check(name, x, reduced(sum, 12, ranks=ranks))


def groups():
    subsets = [list(OTHERS), list(reversed(OTHERS)), [0], [SIZE - 1], list(range(0, SIZE, 2)), list(range(1, SIZE))]
    made = [dist.new_group(ranks) for ranks in subsets]
    for group, ranks in zip(made, subsets):
        all_reduce_in(group, f"new_group {ranks}", ranks)
    # Both at work at the same time.
    if SIZE > 2 and RANK:
        x, y = JOB.tensor([1.0]), JOB.tensor([2.0])
        works = [dist.all_reduce(x, group=made[0], async_op=True), dist.all_reduce(y, group=made[-1], async_op=True)]
        for work in works:
            work.wait()
        JOB.check("two groups at once", [x, y], [[float(SIZE)], [2.0 * (SIZE - 1)]])
    elif SIZE > 2:
        dist.all_reduce(JOB.tensor([1.0]), group=made[0])
    for group in made:
        if group != dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
    x = JOB.tensor([1.0])
    dist.all_reduce(x)
    JOB.check("the world after its groups were destroyed", x, [float(SIZE)])


def split_group():
    halves = [list(range(SIZE // 2)), list(range(SIZE // 2, SIZE))]
    mine = halves[RANK >= SIZE // 2]
    all_reduce_in(dist.split_group(split_ranks=halves), f"split_group {mine}", mine)


def mesh():
    whole = init_device_mesh("cuda", (SIZE,))
    all_reduce_in(whole.get_group(), "device mesh", list(OTHERS))


def mesh_of_two():
    grid = init_device_mesh("cuda", (SIZE // 2, 2), mesh_dim_names=("row", "column"))
    row, column = divmod(RANK, 2)
    all_reduce_in(grid.get_group("column"), "device mesh, along a row", [row * 2, row * 2 + 1])
    all_reduce_in(grid.get_group("row"), "device mesh, along a column", list(range(column, SIZE, 2)))


def memory_pool():
    """Memory by ncclMemAlloc, registered with the communicator: large calls take it without copies."""
    backend = dist.distributed_c10d._get_default_group()._get_backend(JOB.device)
    if JOB.legacy:  # it asks the device for multicast, which a software device has not
        REPORT.refused(
            "legacy memory pool",
            lambda: backend.mem_allocator,
            RuntimeError,
            text="NCCL mem allocator is not supported",
        )
        return
    pool = torch.cuda.MemPool(backend.mem_allocator)
    count = COUNTS[-1]
    with torch.cuda.use_mem_pool(pool):
        x = JOB.empty(count)
    backend.register_mem_pool(pool)
    for turn in range(3):
        x.copy_(torch.tensor(inputs(RANK, count), dtype=torch.float32))
        dist.all_reduce(x)
        JOB.check(f"all_reduce in registered memory, {turn}", x, reduced(sum, count))
    backend.deregister_mem_pool(pool)
    x.copy_(torch.tensor(inputs(RANK, count), dtype=torch.float32))
    dist.all_reduce(x)
    JOB.check("all_reduce in memory that is no longer registered", x, reduced(sum, count))


def objects():
    everybody = [{"rank": rank, "text": "x" * (rank + 1)} for rank in OTHERS]
    outs = [None] * SIZE
    dist.all_gather_object(outs, everybody[RANK])
    REPORT.check("all_gather_object", outs, everybody)
    outs = [{"a": (1, 2)}, "b"] if RANK == 0 else [None, None]
    dist.broadcast_object_list(outs, 0, device=JOB.device)
    REPORT.check("broadcast_object_list", outs, [{"a": (1, 2)}, "b"])
    outs = [None] * SIZE if RANK == 0 else None
    dist.gather_object(everybody[RANK], outs, 0)
    if RANK == 0:
        REPORT.check("gather_object", outs, everybody)
    outs = [None]
    dist.scatter_object_list(outs, everybody if RANK == 0 else None, 0)
    REPORT.check("scatter_object_list", outs, [everybody[RANK]])
    if RANK == 0:
        dist.send_object_list(["hello", 7], 1, device=JOB.device)
    elif RANK == 1:
        outs = [None, None]
        dist.recv_object_list(outs, 0, device=JOB.device)
        REPORT.check("send_object_list and recv_object_list", outs, ["hello", 7])


def again():
    """A second life of the process group in the same process."""
    dist.destroy_process_group()
    # The first group's keys are still in torchrun's store, so this one has a store of its own.
    JOB.start(store=dist.PrefixStore("again", JOB.store), rank=RANK, world_size=SIZE)
    x = JOB.tensor(inputs(RANK, 5))
    dist.all_reduce(x)
    JOB.check("all_reduce in a second process group", x, reduced(sum, 5))
    dist.destroy_process_group()
    REPORT.check("destroy_process_group", dist.is_initialized(), False)


def with_cpu_operators():
    """What launches kernels of PyTorch's own: object collectives, to find the longest object, and old barriers."""
    cpu_operators()
    if VERSION < (2, 15):  # its barrier fills a tensor
        barriers()
    objects()


def collectives():
    JOB.start()
    steps = [
        all_reduce_types, all_reduce_sizes, all_reduce_complex, premul_sum, refusals, asynchronous, side_streams,
        broadcast, reduce, all_gather, reduce_scatter, all_to_all, gather_and_scatter, messages, coalesced,
        functional_collectives, nothing, mesh, memory_pool,
    ]  # fmt: skip
    if VERSION >= (2, 15):
        steps.append(barriers)
    if JOB.options.device_id:
        steps.append(split_group)
    if SIZE % 2 == 0 and SIZE > 2:
        steps.append(mesh_of_two)
    for step in [*steps, groups, with_cpu_operators, again]:
        REPORT.step(step.__name__, step)


main(REPORT, collectives)
