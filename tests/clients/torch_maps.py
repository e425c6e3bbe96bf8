#!/usr/bin/env python3
"""Which libraries a PyTorch process really has: its own memory map says so, after a collective has run.

    python torch_maps.py FOLDER...      where libnccl.so.2, libcudart.so.13 and libcuda.so.1 should come from
"""
import ctypes
import os
import re
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
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p)]


def provider(library, function):
    """The file that a name is bound to, for who looks it up from a library on."""
    info = DlInfo()
    address = ctypes.cast(getattr(ctypes.CDLL(library), function), ctypes.c_void_p)
    ctypes.CDLL(None).dladdr(address, ctypes.byref(info))
    return os.path.realpath(info.file.decode())


def mapped():
    with open("/proc/self/maps") as maps:
        return {line.split(None, 5)[5].strip() for line in maps if "/" in line}


def maps():
    folders = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=0, world_size=1, device_id=torch.device("cuda:0"))
        x = torch.tensor([3.0]).to("cuda:0")
        dist.all_reduce(x)
        REPORT.check("all_reduce of one rank", x.cpu().tolist(), [3.0])
        dist.destroy_process_group()
    files = mapped()
    torch_cuda = next(file for file in files if file.endswith("libtorch_cuda.so"))
    for name, function in zip(NAMES, FUNCTIONS):
        places = [os.path.join(folder, name) for folder in folders if os.path.exists(os.path.join(folder, name))]
        wanted = os.path.realpath(places[0]) if places else f"a {name} in {folders}"
        REPORT.check(f"{name} is mapped", wanted in files, True)
        bound = provider(name if function == "cuInit" else torch_cuda, function)
        REPORT.check(f"{function} is bound to it", bound, wanted)
    kinds = re.compile(r"/(libnccl|libcudart|libcuda|libsoftcuda)[-.][^/]*$")
    foreign = sorted(file for file in files if kinds.search(file) and not any(under(file, folder) for folder in folders))
    REPORT.check("no other copy is mapped", foreign, [])


def under(file, folder):
    """Whether a file is what some name in a folder stands for."""
    return any(os.path.realpath(os.path.join(folder, name)) == file for name in os.listdir(folder))


main(REPORT, maps)
