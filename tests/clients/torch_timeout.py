#!/usr/bin/env python3
"""What a program sees of a rank that does not come: the error reaches Python, or the process ends; nothing hangs.

    python torch_timeout.py [CASE...]

Starts the ranks itself (no torchrun, which would end the others at the first failure) and judges how they end.
"""
import os
import re
import signal
import sys
import time

from client import Report
from torch_ranks import ABORTED, CAUGHT, OLD, dispatch, run, show, start

# A rank that stays away is alive, but silent, until rank 0 has ended and the judge ends it, at most this long.
AWAY_S = 60
REPORT = Report()


# --- in a rank ------------------------------------------------------------------------------------------


def lonely(folder, rank, size):
    """Rank 0 calls, nobody else does; it waits, and says what it got."""
    torch, dist, x = start(folder, rank, size)
    if rank != 0:
        time.sleep(AWAY_S)
        os._exit(0)
    began = time.monotonic()
    try:
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        torch.cuda.synchronize()
        dist.all_reduce(x)  # an aborted group refuses
        torch.cuda.synchronize()
    except Exception as error:
        print(
            f"error after {time.monotonic() - began:.1f} s: {type(error).__name__}: {str(error).splitlines()[0]}",
            flush=True,
        )
    else:
        print("no error", flush=True)
    sys.stdout.flush()
    os._exit(CAUGHT)


def abort(folder, rank, size):
    """Rank 0 has a call under way that cannot end, and aborts the group."""
    torch, dist, x = start(folder, rank, size)
    if rank == 0:
        dist.all_reduce(x, async_op=True)
    else:
        time.sleep(1)  # rank 0's call is under way, whoever aborts first
    dist.distributed_c10d._abort_process_group()
    torch.cuda.synchronize()
    y = torch.tensor([2.0]).cuda()
    print("aborted", y.cpu().item(), dist.is_initialized(), flush=True)


def death(folder, rank, size):
    """A rank is killed while the others wait for it."""
    torch, dist, x = start(folder, rank, size)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(x)
        torch.cuda.synchronize()
    except Exception as error:
        print(f"error: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
    os._exit(CAUGHT)


# --- the judge ------------------------------------------------------------------------------------------


def judge(name, ranks, ends, *texts):
    """Rank 0 must have ended in one of these ways, having said one of these texts."""
    failed = REPORT.failed
    REPORT.check(f"{name}: rank 0 has taken part", "first 2.0" in ranks[0].text, True)
    REPORT.check(f"{name}: it ends by itself ({ranks[0].code})", ranks[0].code in ends or ranks[0].code, True)
    if texts:
        said = any(re.search(text, ranks[0].text) for text in texts)
        REPORT.check(f"{name}: it says why", said, True)
    if REPORT.failed > failed:
        show(ranks)


def case_timeout():
    judge(
        "timeout",
        run("lonely", 2, until_first=True),
        [ABORTED, CAUGHT],
        r"error after .*(timed out|timeout|aborted)",
        r"[Tt]imed? ?out",
    )


def case_timeout_old():
    judge(
        "timeout, legacy",
        run("lonely", 2, until_first=True, **OLD),
        [ABORTED, CAUGHT],
        r"Watchdog caught collective operation timeout",
    )


def case_timeout_old_blocking():
    ranks = run("lonely", 2, until_first=True, TORCH_NCCL_BLOCKING_WAIT="1", **OLD)
    judge(
        "timeout, legacy, blocking wait",
        ranks,
        [CAUGHT],
        r"error after .*DistBackendError|error after .*Watchdog caught",
    )


def case_timeout_old_nonblocking():
    ranks = run("lonely", 2, until_first=True, TORCH_NCCL_USE_COMM_NONBLOCKING="1", **OLD)
    judge("timeout, legacy, nonblocking", ranks, [ABORTED, CAUGHT], r"Watchdog caught collective operation timeout")


def case_abort():
    judge("abort", run("abort", 2), [0], r"aborted 2.0 False")


def case_abort_old():
    judge("abort, legacy", run("abort", 2, **OLD), [0], r"aborted 2.0 False")


def case_death():
    # The library finds it, or PyTorch's time limit has passed before.
    judge(
        "death",
        run("death", 2, NCCL_DEBUG="WARN"),
        [ABORTED, CAUGHT],
        r"NCCL WARN rank 1 is gone",
        r"[Tt]imed? ?out",
        r"[Ww]atchdog",
    )


CASES = {name.removeprefix("case_"): function for name, function in list(globals().items()) if name.startswith("case_")}

dispatch(globals(), CASES, REPORT)
