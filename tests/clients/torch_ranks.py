"""Ranks that a script starts itself, without torchrun, which would end the others at the first failure, to judge how
they end."""
import datetime
import os
import signal
import subprocess
import sys
import tempfile
import time

from client import main

# After this long every rank must have ended by itself.
DEADLINE_S = 60
# A process group gives up after this long, from its second call on.
TIMEOUT_S = 3
# How a rank ends that PyTorch has aborted, and one that got an error in Python.
ABORTED, CAUGHT = -signal.SIGABRT, 7
OLD = {"TORCH_DIST_USE_NCCL2": "0"}
# No flight record is written, else an ending process waits 15 s for it.
QUICK_END = {"TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC": "500", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "500"}


def start(folder, rank, size, device=None, timeout=TIMEOUT_S):
    """In a rank: a process group that has made one call, with a time limit for those to come. Returns torch,
    torch.distributed, and a tensor on the device.
    """
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", rank if device is None else device)
    torch.cuda.set_device(device)
    store, patience = f"file://{folder}/store", datetime.timedelta(seconds=DEADLINE_S)
    dist.init_process_group("nccl", init_method=store, rank=rank, world_size=size, timeout=patience, device_id=device)
    x = torch.tensor([1.0]).cuda()
    dist.all_reduce(x)
    print("first", x.cpu().item(), flush=True)
    # From here on: machines can be slow while ranks start.
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=timeout))
    return torch, dist, x


class Ended:
    def __init__(self, code, text, seconds):
        self.code, self.text, self.seconds = code, text, seconds


def run(case, size, until_first=False, **env):
    """Runs the function of a case in `size` ranks (see `function`), and waits for them, DEADLINE_S at most: how each
    ended, in order. With `until_first` the others are terminated when rank 0 has ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()

        def start_rank(rank):
            command = [sys.executable, os.path.abspath(sys.argv[0]), "--rank", case, folder, str(rank), str(size)]
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
        if until_first:
            for process, _ in started[1:]:
                process.terminate()
        return ended + [wait(*rank) for rank in started[1:]]


def show(ranks):
    for rank, ended in enumerate(ranks):
        print(f"--- rank {rank}: {ended.code} after {ended.seconds:.1f} s\n{ended.text}", flush=True)


def dispatch(functions, cases, report):
    """A script's two ways: `--rank FUNCTION FOLDER RANK SIZE` runs a function, in a rank; else the named cases run, or
    all."""
    if sys.argv[1:2] == ["--rank"]:
        case, folder, rank, size = sys.argv[2:]
        functions[case](folder, int(rank), int(size))
    else:
        main(report, run_cases, cases, report)


def run_cases(cases, report):
    for name in sys.argv[1:] or cases:
        began = time.monotonic()
        report.step(name, cases[name])
        print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
