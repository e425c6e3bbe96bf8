#!/usr/bin/env python3
"""Every collective beside MPICH's and beside PyTorch's Gloo, in one run, alternating; prints ratios of medians.

    cargo build --release --example perf
    OXCCL_MPI_HOME=$(scripts/install-mpich.sh target/tools/mpich) \\
    OXCCL_TORCH_HOME=$(scripts/install-torch-cpu.sh target/tools/torch) benches/collectives.py [-n RANKS...] [-r ROUNDS]

All time the same thing: calls in a row on unchanged buffers, each ended before the next begins, the mean over the
ranks. Ratios over 1: oxccl is faster. A library that is not there has no column, and a message says so. perf measures
the machine's flag-exchange time before and after each run: about 50 ns or 250 ns are the states of the machine that
everything else depends on. A goal that is missed is marked with `<`: 2 x MPICH for AllReduce with 2 ranks from 256 KiB
up and 1 x from 32 KiB up, 5 x Gloo for AllReduce, 8 bytes under 1.5 us with 2 ranks and under 20 us with 4.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

NAMES = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "alltoall",
    "gather",
    "scatter",
    "sendrecv",
]
SIZES = [8, 32 << 10, 256 << 10, 1 << 20, 16 << 20, 64 << 20]
TIMEOUT_S = 300
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Names of this build in which perf's libraries are.
PROFILE = os.path.join(ROOT, "target", "release")


def sizes_of(text):
    """Times by size, from lines of `bytes microseconds`."""
    lines = (line.split() for line in text.splitlines())
    return {int(words[0]): float(words[1]) for words in lines if len(words) == 2 and words[0].isdigit()}


class Mpich:
    title = "MPICH"

    def __init__(self, home, folder):
        self.mpiexec = os.path.join(home, "bin", "mpiexec")
        self.program = os.path.join(folder, "mpi_collectives")
        source = os.path.join(ROOT, "benches", "mpi_collectives.c")
        subprocess.run([os.path.join(home, "bin", "mpicc"), "-O2", source, "-o", self.program], check=True)

    def run(self, name, ranks, sizes):
        command = [self.mpiexec, "-n", str(ranks), self.program, name, *map(str, sizes)]
        return sizes_of(subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S).stdout)


class Gloo:
    title = "Gloo"

    def __init__(self, home, folder):
        self.python = os.path.join(home, "bin", "python")
        self.folder = folder
        self.count = 0
        libraries = [os.path.join(home, "stubs"), os.path.join(PROFILE, "softcuda"), PROFILE]
        self.env = {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries), "GLOO_SOCKET_IFNAME": "lo"}
        subprocess.run([self.python, "-c", "import torch.distributed"], check=True, env=self.env, capture_output=True)

    def place(self, rank, ranks):
        """What goes before a rank's command."""
        return []

    def run(self, name, ranks, sizes):
        self.count += 1
        store = os.path.join(self.folder, f"store{self.count}")
        script = os.path.join(ROOT, "benches", "gloo_collectives.py")

        def start(rank):
            command = [self.python, script, str(rank), str(ranks), store, name, *map(str, sizes)]
            command = [*self.place(rank, ranks), *command]
            return subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        running = [start(rank) for rank in range(ranks)]
        try:
            outputs = [process.communicate(timeout=TIMEOUT_S) for process in running]
        finally:
            for process in running:
                process.kill()
        for process, (_, errors) in zip(running, outputs):
            if process.returncode != 0:
                sys.exit(f"collectives.py: Gloo's {name} failed:\n{errors}")
        return sizes_of(outputs[0][0])


def run_perf(perf, name, ranks, sizes, more=()):
    """Times by size, and flag-exchange times. perf takes a range, so that each size is a run of its own."""
    times, flags = {}, []
    for size in sizes:
        bytes_of = ["-b", str(size), "-e", str(size)]
        command = [perf, name, "--json", "-z", "1", "-c", "0", "-n", str(ranks), *bytes_of, *more]
        result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
        if result.returncode != 0:
            reason = result.stderr.strip().splitlines()
            return None, reason[-1] if reason else f"exit code {result.returncode}"
        report = json.loads(result.stdout)
        times[size] = report["rows"][0]["out_of_place"]["time_us"]
        flags += [ns for ns in report["flag_exchange_ns"].values() if ns is not None]
    return times, flags


def others(folder):
    """The libraries that are there."""
    found = []
    for variable, kind, script in [
        ("OXCCL_MPI_HOME", Mpich, "install-mpich.sh"),
        ("OXCCL_TORCH_HOME", Gloo, "install-torch-cpu.sh"),
    ]:
        home = os.environ.get(variable)
        if not home:
            print(f"# no column for {kind.title}: {variable} is not set (scripts/{script} prints it)")
            continue
        try:
            found.append(kind(os.path.abspath(home), folder))
        except (OSError, subprocess.CalledProcessError) as error:
            detail = getattr(error, "stderr", None)
            print(f"# no column for {kind.title}: {error}" + (f"\n{detail.decode()[-500:]}" if detail else ""))
    return found


def missed(name, ranks, size, us, theirs):
    """Whether a goal of AllReduce is missed."""
    if name != "all_reduce":
        return False
    if size == 8 and us > {2: 1.5, 4: 20}.get(ranks, float("inf")):
        return True
    least = {"Gloo": 5}
    if ranks == 2 and size >= 32 << 10:
        least["MPICH"] = 2 if size >= 256 << 10 else 1
    return any(title in theirs and theirs[title] / us < factor for title, factor in least.items())


def compare(args, name, ranks, libraries):
    ours, theirs, flags = [], {library.title: [] for library in libraries}, []
    for _ in range(args.r):
        times, told = run_perf(args.perf, name, ranks, args.sizes)
        if times is None:
            print(f"{name:<15} {ranks:>5}   skipped: {told}", flush=True)
            return
        ours.append(times)
        flags += told
        for library in libraries:
            theirs[library.title].append(library.run(name, ranks, args.sizes))
    spread = [min(flags), statistics.median(flags), max(flags)] if flags else []
    shown = " ".join(f"{ns:.0f}" for ns in spread)
    for size in args.sizes:
        us = statistics.median(times[size] for times in ours)
        medians = {title: statistics.median(times[size] for times in runs) for title, runs in theirs.items()}
        cells = "".join(f" {value:>12.2f} {value / us:>7.2f}" for value in medians.values())
        mark = " <" if missed(name, ranks, size, us, medians) else "  "
        print(
            f"{name:<15} {ranks:>5} {size:>10} {us:>12.2f}{cells}{mark} {size / us / 1e3:>7.2f}   {shown}", flush=True
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, nargs="+", default=[2, 4], help="ranks")
    parser.add_argument("-r", type=int, default=5, help="rounds")
    parser.add_argument("-k", nargs="+", default=NAMES, choices=NAMES, metavar="COLLECTIVE", help=", ".join(NAMES))
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes")
    parser.add_argument("--perf", default=os.path.join(PROFILE, "examples", "perf"))
    args = parser.parse_args()
    if not os.path.exists(args.perf):
        sys.exit("collectives.py: needs target/release/examples/perf; see its first lines")
    with tempfile.TemporaryDirectory() as folder:
        libraries = others(folder)
        columns = "".join(f" {library.title + ' us':>12} {'ratio':>7}" for library in libraries)
        print(
            f"# float, sum, medians of {args.r} rounds; GB/s: size over oxccl's time; flag exchange: least, median, most"
        )
        print(
            f"# {'collective':<13} {'ranks':>5} {'bytes':>10} {'oxccl us':>12}{columns}   {'GB/s':>7}   flag exchange ns"
        )
        for ranks in args.n:
            for name in args.k:
                compare(args, name, ranks, libraries)


if __name__ == "__main__":
    main()
