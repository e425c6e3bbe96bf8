"""A rank of a torchrun job: the process group as the script's options say, and what tests of it need."""
import argparse
import datetime
import os
import sys

import torch
import torch.distributed as dist

from client import Report

# PyTorch's version, as (2, 15).
VERSION = tuple(int(number) for number in torch.__version__.split(".")[:2])

class Job:
    """The world's process group over the backend `nccl`, with one device for each rank."""

    def __init__(self, description, **options):
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument(
            "--device-id", action="store_true", help="tell init_process_group the device: it connects at once"
        )
        parser.add_argument("--quick", action="store_true", help="a selection that takes half the time")
        for name, how in options.items():
            parser.add_argument(f"--{name}", **how)
        self.options = parser.parse_args()
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.legacy = VERSION < (2, 15) or os.environ.get("TORCH_DIST_USE_NCCL2") == "0"
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(self.device)
        # torchrun's own store, which outlives the process group.
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.store = dist.TCPStore(host, port, is_master=False, timeout=datetime.timedelta(seconds=60))
        self.report = Report(self.rank, self.size, dist.PrefixStore("clients", self.store))

    def start(self, **settings):
        """Initialises the world's process group."""
        if self.options.device_id:
            settings["device_id"] = self.device
        dist.init_process_group("nccl", **settings)

    def tensor(self, values, dtype=torch.float32):
        """A tensor on this rank's device, by a plain copy: no kernel runs."""
        return torch.tensor(values, dtype=dtype).to(self.device)

    def empty(self, *shape, dtype=torch.float32):
        return torch.empty(*shape, dtype=dtype, device=self.device)

    def check(self, name, tensors, want):
        """Compares a tensor, or a list of tensors, with plain Python values."""
        if isinstance(tensors, (list, tuple)):
            got = [plain(tensor) for tensor in tensors]
        else:
            got = plain(tensors)
        self.report.check(name, got, want)


def plain(tensor):
    """A tensor's values as Python's numbers; what Python has no type for, as floats."""
    tensor = tensor.detach().cpu()
    if tensor.dtype in (torch.float16, torch.bfloat16) or "float8" in str(tensor.dtype):
        tensor = tensor.to(torch.float32)
    return tensor.tolist()


def cpu_operators():
    """From here on PyTorch's operators run on the CPU over the device's memory."""
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../softcuda/python"))
    import softcuda_torch

    softcuda_torch.install()
