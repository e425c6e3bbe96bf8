#!/usr/bin/env python3
"""What a program sees of a rank that does not come: the error reaches Python, or the process ends; nothing hangs.

    python torch_timeout.py [CASE...]

Starts the ranks itself (no torchrun, which would end the others at the first failure) and judges how they end.
"""
import datetime
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

from client import Report, main

# After this long a process group gives up.
TIMEOUT_S = 3
# After this long every rank must have ended by itself.
DEADLINE_S = 60
# A rank that stays away is alive, but silent, until rank 0 has ended and the judge ends it, at most this long.
AWAY_S = 60
OLD = {"TORCH_DIST_USE_NCCL2": "0"}
# No flight record is written, else an ending process waits 15 s for it.
QUICK_END = {"TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC": "500", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "500"}


# --- in a rank ------------------------------------------------------------------------------------------


def start(folder, rank, size):
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    device, store = torch.device("cuda", rank), f"file://{folder}/store"
    patience = datetime.timedelta(seconds=DEADLINE_S)
    dist.init_process_group("nccl", init_method=store, rank=rank, world_size=size, timeout=patience, device_id=device)
    x = torch.tensor([1.0]).cuda()
    dist.all_reduce(x)
    print("first", x.cpu().item(), flush=True)
    # From here on: machines can be slow while ranks start.
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=TIMEOUT_S))
    return torch, dist, x


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
        print(f"error after {time.monotonic() - began:.1f} s: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
    else:
        print("no error", flush=True)
    sys.stdout.flush()
    os._exit(7)


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
    os._exit(7)


# --- the judge ------------------------------------------------------------------------------------------


class Ended:
    def __init__(self, code, text, seconds):
        self.code, self.text, self.seconds = code, text, seconds


def run(case, size, **env):
    """Starts a case's ranks and waits for them, DEADLINE_S at most; how each ended, in order."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()

        def start_rank(rank):
            command = [sys.executable, os.path.abspath(__file__), "--rank", case, folder, str(rank), str(size)]
            log = open(os.path.join(folder, f"log{rank}"), "w+")
            return subprocess.Popen(command, env={**os.environ, **QUICK_END, **env}, stdout=log, stderr=log), log

        def wait(process, log):
            try:
                process.wait(max(0.1, DEADLINE_S - (time.monotonic() - began)))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                process.returncode = "deadline"
            with log:
                log.seek(0)
                return Ended(process.returncode, log.read(), time.monotonic() - began)

        started = [start_rank(rank) for rank in range(size)]
        ended = [wait(*started[0])]
        if case == "lonely":
            for process, _ in started[1:]:
                process.terminate()
        return ended + [wait(*rank) for rank in started[1:]]


def show(ranks):
    for rank, ended in enumerate(ranks):
        print(f"--- rank {rank}: {ended.code} after {ended.seconds:.1f} s\n{ended.text}", flush=True)


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


ABORTED = -signal.SIGABRT
CAUGHT = 7


def case_timeout():
    judge("timeout", run("lonely", 2), [ABORTED, CAUGHT], r"error after .*(timed out|timeout|aborted)", r"[Tt]imed? ?out")


def case_timeout_old():
    judge("timeout, legacy", run("lonely", 2, **OLD), [ABORTED, CAUGHT], r"Watchdog caught collective operation timeout")


def case_timeout_old_blocking():
    ranks = run("lonely", 2, TORCH_NCCL_BLOCKING_WAIT="1", **OLD)
    judge("timeout, legacy, blocking wait", ranks, [CAUGHT], r"error after .*DistBackendError|error after .*Watchdog caught")


def case_timeout_old_nonblocking():
    ranks = run("lonely", 2, TORCH_NCCL_USE_COMM_NONBLOCKING="1", **OLD)
    judge("timeout, legacy, nonblocking", ranks, [ABORTED, CAUGHT], r"Watchdog caught collective operation timeout")


def case_abort():
    judge("abort", run("abort", 2), [0], r"aborted 2.0 False")


def case_abort_old():
    judge("abort, legacy", run("abort", 2, **OLD), [0], r"aborted 2.0 False")


def case_death():
    judge("death", run("death", 2), [ABORTED, CAUGHT], r"error: ", r"[Tt]imed? ?out", r"[Ww]atchdog")


CASES = {name.removeprefix("case_"): function for name, function in list(globals().items()) if name.startswith("case_")}

if sys.argv[1:2] == ["--rank"]:
    case, folder, rank, size = sys.argv[2:]
    globals()[case](folder, int(rank), int(size))
else:
    REPORT = Report()

    def timeout():
        for name in sys.argv[1:] or CASES:
            began = time.monotonic()
            REPORT.step(name, CASES[name])
            print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)

    main(REPORT, timeout)
