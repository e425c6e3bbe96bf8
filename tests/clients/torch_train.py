#!/usr/bin/env python3
"""Training of a small model over the backend `nccl`, its operators by softcuda_torch, beside the same over Gloo on the
CPU.

    torchrun --nproc_per_node 2 torch_train.py [--device-id] [--quick]

DistributedDataParallel, FullyShardedDataParallel and fully_shard: the loss falls, all ranks end with the same
parameters, and these are the ones that DistributedDataParallel over Gloo comes to. With two ranks bit for bit: a sum of
two has one order, and the mean's divisor is a power of two. With more, libraries add in different orders: then within
BOUND of the largest parameter. SyncBatchNorm, and layers that DTensor cuts up: what one process computes.
"""
import functools
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from client import main
from torch_job import Job, cpu_operators

JOB = Job(__doc__)
RANK, SIZE, REPORT = JOB.rank, JOB.size, JOB.report
STEPS = 8 if JOB.options.quick else 20
# Sums of SIZE floats in another order differ by some units in the last place (6e-8), in each step once.
BOUND = STEPS * 1e-6
CPU = torch.device("cpu")


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.inner = torch.nn.Linear(width, 2 * width)
        self.outer = torch.nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.outer(torch.nn.functional.gelu(self.inner(self.norm(x))))


def model():
    """The same start in every process and on every device."""
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), Block(16), Block(16), torch.nn.Linear(16, 1))


def batch(step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(32, 8, generator=generator)
    return x, x.square().sum(1, keepdim=True).sqrt()


def train(wrapped, device, optimizer):
    """The losses of this rank's batches."""
    losses = []
    for step in range(STEPS):
        x, y = batch(step, RANK)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(wrapped(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9)


def flat(parameters):
    return torch.cat([p.detach().cpu().flatten() for p in parameters])


@functools.cache
def reference(optimizer):
    """Parameters after training over Gloo on the CPU, and the losses."""
    group = dist.new_group(backend="gloo")
    wrapped = DistributedDataParallel(model(), process_group=group)
    losses = train(wrapped, CPU, optimizer(wrapped.parameters()))
    parameters = flat(wrapped.parameters())
    dist.destroy_process_group(group)
    return parameters, losses


def judge(name, parameters, losses, optimizer):
    """Parameters of the whole model, as this rank has them at the end."""
    REPORT.check(f"{name}: the loss falls ({losses[0]:.3f} to {losses[-1]:.3f})", losses[-1] < 0.7 * losses[0], True)
    gathered = torch.empty(SIZE, len(parameters), device=JOB.device)
    dist.all_gather_into_tensor(gathered.view(-1), parameters.to(JOB.device))
    REPORT.check(
        f"{name}: all ranks have the same parameters",
        [torch.equal(row, parameters) for row in gathered.cpu()],
        [True] * SIZE,
    )
    wanted, _ = reference(optimizer)
    if SIZE == 2:
        REPORT.check(f"{name}: those of Gloo, bit for bit", torch.equal(parameters, wanted), True)
    difference = ((parameters - wanted).abs().max() / wanted.abs().max()).item()
    REPORT.check(f"{name}: those of Gloo, within {BOUND:.0e} ({difference:.0e})", difference <= BOUND, True)


def data_parallel(optimizer, **options):
    wrapped = DistributedDataParallel(model().to(JOB.device), device_ids=[JOB.device.index], **options)
    losses = train(wrapped, JOB.device, optimizer(wrapped.parameters()))
    return flat(wrapped.parameters()), losses


def fully_sharded(optimizer):
    policy = ModuleWrapPolicy({Block})
    wrapped = FullyShardedDataParallel(
        model().to(JOB.device), auto_wrap_policy=policy, device_id=JOB.device, use_orig_params=True
    )
    losses = train(wrapped, JOB.device, optimizer(wrapped.parameters()))
    with FullyShardedDataParallel.summon_full_params(wrapped):
        return flat(wrapped.parameters()), losses


def sharded(optimizer):
    wrapped = model().to(JOB.device)
    for part in wrapped:
        if isinstance(part, Block):
            fully_shard(part)
    fully_shard(wrapped)
    losses = train(wrapped, JOB.device, optimizer(wrapped.parameters()))
    return flat(p.full_tensor() for p in wrapped.parameters()), losses


def batch_norm():
    """SyncBatchNorm's ranks together do what BatchNorm does with their batches in one."""
    whole = [torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(rank)) for rank in range(SIZE)]
    alone = torch.nn.BatchNorm1d(3)
    together = torch.nn.SyncBatchNorm(3).to(JOB.device)
    x, y = torch.cat(whole).requires_grad_(), whole[RANK].to(JOB.device).requires_grad_()
    (alone(x) ** 3).sum().backward()
    (together(y) ** 3).sum().backward()
    mine = slice(4 * RANK, 4 * RANK + 4)
    for name, got, want in [
        ("gradient of the input", y.grad, x.grad[mine]),
        ("running mean", together.running_mean, alone.running_mean),
        ("running variance", together.running_var, alone.running_var),
    ]:
        REPORT.check(f"SyncBatchNorm: {name}", torch.allclose(got.cpu(), want, rtol=1e-4, atol=1e-4), True)


def tensor_parallel():
    """Layers cut into columns and rows (DTensor): what one process computes with the whole."""
    whole, x = model(), batch(0, 0)[0]
    parts = model().to(JOB.device)
    mesh = init_device_mesh("cuda", (SIZE,))
    for block in (parts[1], parts[2]):
        parallelize_module(block, mesh, {"inner": ColwiseParallel(), "outer": RowwiseParallel()})
    got, want = parts(x.to(JOB.device)), whole(x)
    got.square().sum().backward()
    want.square().sum().backward()
    REPORT.check("tensor parallel: the result", torch.allclose(got.cpu(), want, rtol=1e-4, atol=1e-5), True)
    grad = parts[2].inner.weight.grad.full_tensor().cpu()
    REPORT.check(
        "tensor parallel: a gradient", torch.allclose(grad, whole[2].inner.weight.grad, rtol=1e-4, atol=1e-5), True
    )


def training():
    cpu_operators()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    JOB.start()
    cases = {
        "ddp, sgd": (data_parallel, sgd, {}),
        "ddp, adamw, small buckets": (data_parallel, adam, {"bucket_cap_mb": 0.001, "gradient_as_bucket_view": True}),
        "fsdp, adamw": (fully_sharded, adam, {}),
        "fully_shard, adamw": (sharded, adam, {}),
    }
    for name, (trained, optimizer, options) in cases.items():
        REPORT.step(name, lambda: judge(name, *trained(optimizer, **options), optimizer))
    REPORT.step("SyncBatchNorm", batch_norm)
    REPORT.step("tensor parallel", tensor_parallel)
    dist.barrier()
    dist.destroy_process_group()


main(REPORT, training)
