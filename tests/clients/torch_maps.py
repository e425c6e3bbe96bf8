#!/usr/bin/env python3
"""Which libraries a PyTorch process really has, after a collective has run: its memory map says so, and where the
linker has bound the functions of NCCL and of the CUDA runtime that PyTorch calls.

    python torch_maps.py [--beside] FOLDER...    where libnccl.so.2, libcudart.so and libcuda.so.1 should come from

With --beside PyTorch loads other copies, too, from its NVIDIA wheels, to which nothing may be bound.
"""
import ctypes
import os
import re
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist

from client import Report, main

REPORT = Report()
NAMES = ["libnccl.so.2", f"libcudart.so.{torch.version.cuda.split('.')[0]}", "libcuda.so.1"]
# A function of each, to ask the loader whose it is.
FUNCTIONS = ["ncclAllReduce", "cudaMalloc", "cuInit"]


class DlInfo(ctypes.Structure):
    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


def provider(library, function):
    """The file that a name is bound to, for who looks it up from a library on."""
    info = DlInfo()
    address = ctypes.cast(getattr(ctypes.CDLL(library), function), ctypes.c_void_p)
    ctypes.CDLL(None).dladdr(address, ctypes.byref(info))
    return os.path.realpath(info.file.decode())


def mapped():
    with open("/proc/self/maps") as maps:
        return {line.split(None, 5)[5].strip() for line in maps if "/" in line}


def base(file):
    """Where a library is loaded."""
    with open("/proc/self/maps") as maps:
        return min(int(line.split("-")[0], 16) for line in maps if line.rstrip().endswith(f" {file}"))


def slots(file, kinds):
    """The functions of some names that a library calls, and the file that each is bound to; those that it has not
    called yet are bound to its own code, which asks the linker.
    """
    start, info, files = base(file), DlInfo(), {}
    for line in subprocess.run(
        ["readelf", "-rW", file], check=True, capture_output=True, text=True
    ).stdout.splitlines():
        fields = line.split()
        if len(fields) < 5 or fields[2] != "R_X86_64_JUMP_SLOT" or not kinds.match(fields[4]):
            continue
        address = ctypes.c_void_p.from_address(start + int(fields[0], 16))
        ctypes.CDLL(None).dladdr(address, ctypes.byref(info))
        files[fields[4].split("@")[0]] = os.path.realpath(info.file.decode())
    return files


def wanted(name, folders):
    places = [os.path.join(folder, name) for folder in folders if os.path.exists(os.path.join(folder, name))]
    return os.path.realpath(places[0]) if places else f"a {name} in {folders}"


def maps():
    folders = [folder for folder in sys.argv[1:] if folder != "--beside"]
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "nccl", init_method=f"file://{folder}/store", rank=0, world_size=1, device_id=torch.device("cuda:0")
        )
        x = torch.tensor([3.0]).to("cuda:0")
        dist.all_reduce(x)
        REPORT.check("all_reduce of one rank", x.cpu().tolist(), [3.0])
        dist.destroy_process_group()
    files = mapped()
    torch_cuda = next(file for file in files if file.endswith("libtorch_cuda.so"))
    for name, function in zip(NAMES, FUNCTIONS):
        ours = wanted(name, folders)
        REPORT.check(f"{name} is mapped", ours in files, True)
        REPORT.check(
            f"{function} is found in it", provider(name if function == "cuInit" else torch_cuda, function), ours
        )
    bound = slots(torch_cuda, re.compile("nccl|cuda"))
    for name, function in (NAMES[0], "nccl"), (NAMES[1], "cuda"):
        places = {place for called, place in bound.items() if called.startswith(function) and place != torch_cuda}
        REPORT.check(f"every {function} function that was called is bound to it", places, {wanted(name, folders)})
    REPORT.check("ncclAllReduce was called there", bound["ncclAllReduce"], wanted(NAMES[0], folders))
    kinds = re.compile(r"/(libnccl|libcudart|libcuda|libsoftcuda)[-.][^/]*$")
    foreign = sorted(
        file for file in files if kinds.search(file) and not any(under(file, folder) for folder in folders)
    )
    if "--beside" in sys.argv:
        REPORT.check("NVIDIA's are mapped beside", [os.path.basename(file) for file in foreign], [NAMES[1], NAMES[0]])
    else:
        REPORT.check("no other copy is mapped", foreign, [])


def under(file, folder):
    """Whether a file is what some name in a folder stands for."""
    return any(os.path.realpath(os.path.join(folder, name)) == file for name in os.listdir(folder))


main(REPORT, maps)
