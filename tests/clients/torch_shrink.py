#!/usr/bin/env python3
"""A process group goes on without its last rank (torch.distributed.shrink_group).

    torchrun --nproc_per_node 3 torch_shrink.py [--device-id] [--abort]

With --abort the others have a call under way that the last rank never joins.
"""
import torch.distributed as dist

from client import main
from torch_job import Job

JOB = Job(__doc__, abort={"action": "store_true", "help": "while a call waits for the rank that leaves"})
RANK, SIZE, REPORT = JOB.rank, JOB.size, JOB.report


def shrink():
    JOB.start()
    x = JOB.tensor([RANK + 1.0])
    dist.all_reduce(x)
    JOB.check("all_reduce", x, [SIZE * (SIZE + 1) / 2])
    if RANK == SIZE - 1:
        for rank in range(RANK):
            JOB.store.get(f"shrunk/{rank}")
        dist.distributed_c10d._abort_process_group()
        return
    if JOB.options.abort:
        dist.all_reduce(JOB.tensor([1.0]), async_op=True)
    group = dist.shrink_group([SIZE - 1], shrink_flags=dist.distributed_c10d.SHRINK_ABORT if JOB.options.abort else 0)
    REPORT.check("size and rank", (dist.get_world_size(group), dist.get_rank(group)), (SIZE - 1, RANK))
    for turn in range(3):
        x = JOB.tensor([RANK + 1.0 + turn])
        dist.all_reduce(x, group=group)
        JOB.check(f"all_reduce without it, {turn}", x, [(SIZE - 1) * (SIZE / 2 + turn)])
    JOB.store.set(f"shrunk/{RANK}", "")
    dist.destroy_process_group()


main(REPORT, shrink)
