"""Times a collective of PyTorch's Gloo as perf times ours; started by collectives.py, once for each rank.

    python gloo_collectives.py RANK RANKS STORE COLLECTIVE BYTES...

STORE is a file that the ranks meet by. Rank 0 prints `bytes microseconds` for each size: untimed calls, then as many
timed ones as fill 50 ms (5 to 2000), mean over the ranks. BYTES is the larger buffer, as in perf's column `size`.
"""
import sys
import time

import torch
import torch.distributed as dist

WARMUP = 5
FILL_S = 0.05


def make(name, rank, ranks, size):
    """The call, and a check of what it gives."""
    whole = max(size // 4, 1)
    block = max(size // 4 // ranks, 1)
    mine = torch.full((whole,), float(rank + 1))
    small = torch.full((block,), float(rank + 1))
    blocks = [torch.zeros(block) for _ in range(ranks)]
    inputs = [torch.full((block,), float(rank + 1)) for _ in range(ranks)]
    total = ranks * (ranks + 1) / 2
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    wide = torch.zeros(block * ranks)
    if name == "all_reduce":
        # In place is all that Gloo has, so that values grow: only the time is looked at.
        return lambda: dist.all_reduce(mine), lambda: None
    if name == "all_gather":
        return lambda: dist.all_gather_into_tensor(wide, small), lambda: equal(wide[-1], ranks)
    if name == "reduce_scatter":
        spread = torch.full((block * ranks,), float(rank + 1))
        out = torch.zeros(block)
        return lambda: dist.reduce_scatter_tensor(out, spread), lambda: equal(out[-1], total)
    if name == "broadcast":
        return lambda: dist.broadcast(mine, 0), lambda: equal(mine[-1], 1)
    if name == "reduce":
        return lambda: dist.reduce(mine, 0), lambda: None
    if name == "alltoall":
        spread = torch.full((block * ranks,), float(rank + 1))
        return lambda: dist.all_to_all_single(wide, spread), lambda: equal(wide[-1], ranks)
    if name == "gather":
        return lambda: dist.gather(small, blocks if rank == 0 else None, 0), lambda: equal(
            blocks[-1][-1], ranks if rank == 0 else 0
        )
    if name == "scatter":
        out = torch.zeros(block)
        return lambda: dist.scatter(out, inputs if rank == 0 else None, 0), lambda: equal(out[-1], 1)
    if name == "sendrecv":
        incoming = torch.zeros(whole)

        def exchange():
            sending = dist.isend(mine, after)
            dist.recv(incoming, before)
            sending.wait()

        return exchange, lambda: equal(incoming[-1], before + 1)
    raise SystemExit(f"gloo_collectives.py: no collective {name}")


def equal(found, wanted):
    if float(found) != float(wanted):
        raise SystemExit(f"gloo_collectives.py: {float(found)} instead of {wanted}")


def run(call, calls):
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def over_ranks(value, op):
    tensor = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(tensor, op=op)
    return float(tensor)


def main():
    rank, ranks, store, name = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    for size in map(int, sys.argv[5:]):
        call, check = make(name, rank, ranks, size)
        slowest = over_ranks(run(call, WARMUP), dist.ReduceOp.MAX)
        calls = int(min(max(FILL_S / slowest, 5), 2000))
        mean = over_ranks(run(call, calls), dist.ReduceOp.SUM) / ranks
        check()
        if rank == 0:
            print(size, f"{mean * 1e6:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
