#!/usr/bin/env python3
"""AllReduce of floats beside MPICH's, in one run, alternating; prints ratios of medians.

    cargo build --release --example perf
    OXCCL_MPI_HOME=$(scripts/install-mpich.sh target/tools/mpich) benches/vs_mpich.py [-n RANKS] [-r ROUNDS]

Both time the same thing: calls in a row on unchanged buffers, each ended before the next begins, the mean
over the ranks (see mpi_all_reduce.c and `perf -h`). perf measures the machine's flag-exchange time before and after
each run: a figure of about 50 ns or 250 ns is the state of the machine that everything else depends on.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

SIZES = [8, 32 << 10, 256 << 10, 1 << 20, 16 << 20]
TIMEOUT_S = 300
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def build_mpi_program(home, folder):
    program = os.path.join(folder, "mpi_all_reduce")
    source = os.path.join(ROOT, "benches", "mpi_all_reduce.c")
    subprocess.run([os.path.join(home, "bin", "mpicc"), "-O2", source, "-o", program], check=True)
    return program


def run_mpi(home, program, ranks, size):
    mpiexec = os.path.join(home, "bin", "mpiexec")
    command = [mpiexec, "-n", str(ranks), program, str(size)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S).stdout
    return float(output.split()[1])


def run_perf(perf, ranks, size):
    command = [perf, "all_reduce", "--json", "-z", "1", "-n", str(ranks), "-b", str(size), "-e", str(size)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S).stdout
    report = json.loads(output)
    flags = report["flag_exchange_ns"]
    return report["rows"][0]["out_of_place"]["time_us"], [flags["before"], flags["after"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=2, help="ranks")
    parser.add_argument("-r", type=int, default=5, help="rounds")
    parser.add_argument("--perf", default=os.path.join(ROOT, "target", "release", "examples", "perf"))
    args = parser.parse_args()
    home = os.environ.get("OXCCL_MPI_HOME")
    if not home or not os.path.exists(args.perf):
        sys.exit("vs_mpich.py: needs OXCCL_MPI_HOME and target/release/examples/perf; see its first lines")
    with tempfile.TemporaryDirectory() as folder:
        program = build_mpi_program(home, folder)
        print(f"# AllReduce, float, sum, {args.n} ranks, medians of {args.r} rounds; ratio over 1: oxccl is faster")
        print(
            f"# {'bytes':>10} {'oxccl us':>12} {'MPICH us':>12} {'ratio':>7}   flag exchange ns (least, median, most)"
        )
        for size in SIZES:
            ours, theirs, flags = [], [], []
            for _ in range(args.r):
                time, around = run_perf(args.perf, args.n, size)
                ours.append(time)
                flags += [ns for ns in around if ns is not None]
                theirs.append(run_mpi(home, program, args.n, size))
            us, mpi = statistics.median(ours), statistics.median(theirs)
            flags = [min(flags), statistics.median(flags), max(flags)] if flags else []
            shown = " ".join(f"{ns:.0f}" for ns in flags)
            print(f"{size:>12} {us:>12.2f} {mpi:>12.2f} {mpi / us:>7.2f}   {shown}", flush=True)


if __name__ == "__main__":
    main()
