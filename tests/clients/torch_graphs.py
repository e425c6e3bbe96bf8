#!/usr/bin/env python3
"""Collectives in CUDA graphs of PyTorch: captured, replayed on new inputs, mixed with direct calls.

    torchrun --nproc_per_node 2 torch_graphs.py [--device-id]
"""
import torch
import torch.distributed as dist

from client import main
from torch_job import VERSION, Job, cpu_operators

JOB = Job(__doc__)
RANK, SIZE, REPORT = JOB.rank, JOB.size, JOB.report
COUNT = 5000
REPLAYS = 4


def numbers(turn, rank=RANK):
    return [float((rank + 1) * (turn + 1) + at % 7) for at in range(COUNT)]


def total(turn):
    return [float(sum((rank + 1) * (turn + 1) for rank in range(SIZE)) + SIZE * (at % 7)) for at in range(COUNT)]


def refill(tensor, turn):
    tensor.copy_(torch.tensor(numbers(turn)))


def captured(work, **settings):
    """A graph of what a function enqueues."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **settings):
        work()
    return graph


def one_call():
    x = JOB.tensor(numbers(0))
    dist.all_reduce(x)  # connects
    graph = captured(lambda: dist.all_reduce(x))
    for turn in range(REPLAYS):
        refill(x, turn)
        graph.replay()
        JOB.check(f"all_reduce, replay {turn}", x, total(turn))
    return graph


def several_calls():
    x = JOB.tensor(numbers(0))
    gathered, part, swapped = JOB.empty(SIZE, COUNT), JOB.empty(COUNT), JOB.empty(SIZE, COUNT)

    def work():
        dist.all_gather_into_tensor(gathered.view(-1), x)
        dist.reduce_scatter_tensor(part, gathered.view(-1))
        dist.all_to_all_single(swapped, gathered)
        dist.broadcast(x, SIZE - 1)

    graph = captured(work)
    for turn in range(REPLAYS):
        refill(x, turn)
        graph.replay()
        everybody = [numbers(turn, rank) for rank in range(SIZE)]
        JOB.check(f"all_gather in a graph of four, replay {turn}", gathered, everybody)
        JOB.check(f"reduce_scatter after it, replay {turn}", part, [SIZE * v for v in everybody[RANK]])
        JOB.check(f"all_to_all after it, replay {turn}", swapped, [everybody[RANK]] * SIZE)
        JOB.check(f"broadcast after it, replay {turn}", x, everybody[SIZE - 1])


def asynchronous():
    """async_op=True: the call runs on the group's own stream, which the capture forks to and joins."""
    x, y = JOB.tensor(numbers(0)), JOB.tensor(numbers(0))

    def work():
        first = dist.all_reduce(x, async_op=True)
        second = dist.all_reduce(y, op=dist.ReduceOp.MAX, async_op=True)
        first.wait()
        second.wait()

    graph = captured(work)
    for turn in range(REPLAYS):
        refill(x, turn)
        refill(y, turn)
        graph.replay()
        JOB.check(f"async all_reduce, replay {turn}", x, total(turn))
        JOB.check(f"async all_reduce max, replay {turn}", y, numbers(turn, SIZE - 1))


def mixed():
    """Direct calls between replays, and replays that nobody waits for in between."""
    x, y = JOB.tensor(numbers(0)), JOB.tensor(numbers(0))
    graph = captured(lambda: dist.all_reduce(x))
    for turn in range(REPLAYS):
        refill(x, turn)
        refill(y, turn + 1)
        graph.replay()
        dist.all_reduce(y)
        graph.replay()
        JOB.check(f"a direct call between replays, {turn}", y, total(turn + 1))
        JOB.check(f"two replays around a direct call, {turn}", x, [SIZE * v for v in total(turn)])


def messages():
    x, y = JOB.tensor(numbers(0)), JOB.empty(COUNT)

    def work():
        ops = [dist.P2POp(dist.isend, x, (RANK + 1) % SIZE), dist.P2POp(dist.irecv, y, (RANK - 1) % SIZE)]
        for handle in dist.batch_isend_irecv(ops):
            handle.wait()

    work()
    graph = captured(work)
    for turn in range(REPLAYS):
        refill(x, turn)
        graph.replay()
        JOB.check(f"messages around a ring, replay {turn}", y, numbers(turn, (RANK - 1) % SIZE))


def two_graphs():
    """Two graphs of one memory pool, replayed in an order other than that of their capture."""
    x, y = JOB.tensor(numbers(0)), JOB.tensor(numbers(0))
    first = captured(lambda: dist.all_reduce(x))
    second = captured(lambda: dist.all_reduce(y), pool=first.pool())
    for turn in range(REPLAYS):
        refill(x, turn)
        refill(y, turn + 2)
        second.replay()
        first.replay()
        JOB.check(f"the graph captured first, replay {turn}", x, total(turn))
        JOB.check(f"the graph captured second, replay {turn}", y, total(turn + 2))
    del first, second
    x = JOB.tensor(numbers(0))
    dist.all_reduce(x)
    JOB.check("a direct call after graphs are gone", x, total(0))


def graphs():
    if VERSION < (2, 15):  # the begin of a capture fills a tensor
        cpu_operators()
    JOB.start()
    for step in [one_call, several_calls, asynchronous, mixed, messages, two_graphs]:
        REPORT.step(step.__name__, step)
    dist.barrier()
    dist.destroy_process_group()
    REPORT.check("destroy_process_group", dist.is_initialized(), False)


main(REPORT, graphs)
