#!/usr/bin/env python3
"""The first failures of a PyTorch user: the library says in one line what was wrong, where PyTorch shows it ("Last
error:") and in its log at WARN.

    python torch_errors.py [CASE...]

Starts the ranks itself, as torch_timeout.py does.
"""
import os
import re
import signal
import sys
import time

from client import Report
from torch_ranks import CAUGHT, OLD, dispatch, run, show, start

AWAY_S = 60
# A rank calls so often at most; the second call should meet the error.
CALLS = 100
REPORT = Report()
# The log at WARN, and stragglers named after a second.
LOG = {"NCCL_DEBUG": "WARN", "OXCCL_LATE_WARN": "1"}


# --- in a rank ------------------------------------------------------------------------------------------


def attempt(function):
    """Ends the process after the first exception, which it shows. What the device meets comes to PyTorch by the next
    call, or by a thread that ends the process.
    """
    import torch

    try:
        for _ in range(CALLS):
            function()
            torch.cuda.synchronize()
        print("no error", flush=True)
    except Exception as error:
        print(f"error: {type(error).__name__}: {error}", flush=True)
    sys.stdout.flush()
    os._exit(CAUGHT)


def one_device(folder, rank, size):
    attempt(lambda: start(folder, rank, size, device=0))


def sizes(folder, rank, size):
    torch, dist, x = start(folder, rank, size)
    y = torch.empty(10 + rank, device="cuda")
    attempt(lambda: dist.all_reduce(y))


def collectives(folder, rank, size):
    _, dist, x = start(folder, rank, size)
    attempt(lambda: dist.broadcast(x, 0) if rank else dist.all_reduce(x))


def death(folder, rank, size):
    _, dist, x = start(folder, rank, size, timeout=30)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    attempt(lambda: dist.all_reduce(x))


def absence(folder, rank, size):
    _, dist, x = start(folder, rank, size)
    if rank == 1:
        time.sleep(AWAY_S)
        os._exit(0)
    attempt(lambda: dist.all_reduce(x))


# --- the judge ------------------------------------------------------------------------------------------


def judge(name, ranks, text, shown=True):
    """Rank 0 must have ended by itself, and the text be in a line of its log and, if `shown`, in what PyTorch shows of
    it."""
    failed = REPORT.failed
    REPORT.check(f"{name}: rank 0 ends by itself ({ranks[0].code})", ranks[0].code != "deadline", True)
    REPORT.check(f"{name}: the log says so", bool(re.search(rf"NCCL WARN .*{text}", ranks[0].text)), True)
    if shown:
        # The backend of PyTorch 2.15 does not show it where a communicator is not made.
        REPORT.check(f"{name}: PyTorch shows it", bool(re.search(rf"Last [Ee]rror:\s+{text}", ranks[0].text)), True)
    if REPORT.failed > failed:
        show(ranks)


LEGACY = ", legacy"
BACKENDS = {"": {}, LEGACY: OLD}
REDUCE = "AllReduce of 1 ncclFloat32, ncclSum"
MISMATCH = "collective 1 of the communicator does not match"


def judge_both(name, case, text, shown=tuple(BACKENDS), **how):
    """Judges a case with both backends, of which those in `shown` show the text."""
    for suffix, env in BACKENDS.items():
        judge(f"{name}{suffix}", run(case, 2, **how, **LOG, **env), text, shown=suffix in shown)


def case_one_device():
    text = "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 10000 of "
    judge_both("two ranks on one device", "one_device", text, shown=[LEGACY])


def case_sizes():
    calls = [f"rank {rank} called AllReduce of {10 + rank} ncclFloat32, ncclSum" for rank in range(2)]
    text = f"{MISMATCH}: {'; '.join(calls)}"
    judge_both("sizes", "sizes", text)


def case_collectives():
    text = f"{MISMATCH}: rank 0 called {REDUCE}; rank 1 called Broadcast of 1 ncclFloat32, root 0"
    judge_both("collectives", "collectives", text)


def case_death():
    text = f"rank 1 is gone: its process has ended, and rank 0 waits for it in collective 1, {REDUCE}"
    judge_both("a killed rank", "death", text)


def case_absence():
    """PyTorch's own time limit ends the process; it does not ask the library then."""
    text = (
        f"rank 0 has been in collective 1, {REDUCE}, for . s: rank 1 has not called it; its last one was collective 0"
    )
    judge_both("a rank that stays away", "absence", text, shown=[], until_first=True)


CASES = {name.removeprefix("case_"): function for name, function in list(globals().items()) if name.startswith("case_")}

dispatch(globals(), CASES, REPORT)
