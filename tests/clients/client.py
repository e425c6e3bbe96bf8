"""What the scripts of this folder share: checks are counted, a hang ends, ranks of a job add up what they found.

A checked value prints `OK name`, or `FAILED name: why`. The last line of a script is `N passed, N failed`, over all its
processes, and it ends with 1 if anything failed.
"""
import faulthandler
import os
import signal
import subprocess
import sys
import traceback

# Python ignores SIGPIPE; a library that raises it ends programs in C and C++, and shall be seen to do so here.
signal.signal(signal.SIGPIPE, signal.SIG_DFL)

# A script that hangs shows where, and ends, after this many seconds (CLIENT_DEADLINE_S).
DEADLINE_S = 120


class Report:
    """Counts the checks of this process, one of `size`; `store` is where they add up (a torch.distributed store)."""

    def __init__(self, rank=0, size=1, store=None):
        self.rank, self.size, self.store = rank, size, store
        self.passed = self.failed = 0
        faulthandler.dump_traceback_later(float(os.environ.get("CLIENT_DEADLINE_S", DEADLINE_S)), exit=True)

    def say(self, text):
        # One write: lines of several processes on one pipe do not mix.
        os.write(1, f"{text}{f' (rank {self.rank})' if self.size > 1 else ''}\n".encode())

    def check(self, name, got, want):
        """Counts whether two plain Python values are equal."""
        if got == want:
            self.passed += 1
            self.say(f"OK {name}")
        else:
            self.fail(name, f"got {str(got)[:300]}, want {str(want)[:300]}")

    def fail(self, name, why):
        self.failed += 1
        self.say(f"FAILED {name}: {why}")

    def step(self, name, function, *args):
        """Runs a function; an exception is a failure, and the script goes on."""
        try:
            function(*args)
        except Exception as error:
            traceback.print_exc()
            self.fail(name, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:400])

    def refused(self, name, function, *errors, text=""):
        """The function must raise one of `errors`, with `text` in its message."""
        try:
            function()
        except errors as error:
            self.check(name, text in str(error) or str(error), True)
        else:
            self.fail(name, "it was accepted")

    def close(self):
        """Adds up what all ranks have found; rank 0 prints the last line. Returns the process's exit code."""
        if self.store is not None and self.rank != 0:
            self.store.set(f"report/{self.rank}", f"{self.passed} {self.failed}")
        elif self.store is not None:
            for rank in range(1, self.size):
                passed, failed = self.store.get(f"report/{rank}").decode().split()
                self.passed, self.failed = self.passed + int(passed), self.failed + int(failed)
        if self.rank == 0:
            os.write(1, f"{self.passed} passed, {self.failed} failed\n".encode())
        faulthandler.cancel_dump_traceback_later()
        return 1 if self.failed else 0


def job(size, begin, work):
    """A script whose ranks are processes of its own: begin(report) gives the bytes that all ranks get (an id), and
    work(rank, size, check, those) runs in each, where check counts whether two values are equal.
    """
    if sys.argv[1:2] == ["--rank"]:
        rank, size, given = int(sys.argv[2]), int(sys.argv[3]), bytes.fromhex(sys.argv[4])
        report = Report(rank, size)
        report.step(f"rank {rank}", work, rank, size, report.check, given)
        report.say(f"counted {report.passed} {report.failed}")
        sys.exit(0)
    os.environ.setdefault("SOFTCUDA_DEVICES", str(size))
    report = Report()
    main(report, _start, report, size, begin)


def _start(report, size, begin):
    given = begin(report).hex()
    commands = [[sys.executable, sys.argv[0], "--rank", str(rank), str(size), given] for rank in range(size)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    for rank, process in enumerate(processes):
        counted = None
        for line in process.stdout:
            if line.startswith("counted "):
                counted = [int(word) for word in line.split()[1:3]]
            else:
                os.write(1, line.encode())
        if process.wait() != 0 or counted is None:
            report.fail(f"rank {rank}", f"it ended with {process.returncode}")
        else:
            report.passed, report.failed = report.passed + counted[0], report.failed + counted[1]


def main(report, function, *args):
    """Runs a script's function and ends the process with the code that the report gives."""
    report.step(function.__name__, function, *args)
    sys.stdout.flush()
    sys.exit(report.close())
