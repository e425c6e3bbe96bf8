"""Kernels for operators of PyTorch on the software device: each waits for the stream, then runs the CPU's kernel.

What is queued in the current stream comes first, so the stream is synchronised; the operator then runs at once, on CPU
tensors over the same memory. Later work of any stream therefore sees its result, and it has no part in the stream's
queue.
"""
import contextlib

import torch

from .memory import alias, dense, same_layout, to_device
from .random import generator_for, lent_default

# Operators that take tensors of the CPU among those of a device, besides single numbers.
MIXED = ("index.", "index_put", "_index_put", "_unsafe_index", "_foreach_", "_unsafe_masked_index")


def refuse_capture(name):
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"softcuda_torch: {name} cannot be captured into a CUDA graph: it runs on the CPU, at once. Capture only "
            "collectives, copies without conversion, and zero_"
        )


def devices_of(name, tensors):
    """The device of an operator's tensors; None without any on a device. Refuses what a GPU refuses."""
    devices = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
    host = [tensor for tensor in tensors if tensor.device.type == "cpu" and tensor.dim() > 0]
    if host and devices and not name.startswith(MIXED):
        devices.add(host[0].device)
    if len(devices) > 1:
        listed = ", ".join(sorted(map(str, devices)))
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {listed} (aten::{name})"
        )
    return devices.pop() if devices else None


def tensors_in(values):
    """The tensors among arguments, also those in lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def mapped(value, change):
    """A value with its tensors changed, also those in lists and tuples."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)([mapped(one, change) for one in value])
    return value


def generic(op):
    """A kernel for any operator whose schema says what it writes."""
    schema = op._schema
    name = schema.name.removeprefix("aten::") + (f".{schema.overload_name}" if schema.overload_name else "")
    arguments = {argument.name: position for position, argument in enumerate(schema.arguments)}
    written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    outs = [a.name for a in schema.arguments if a.is_out]
    seeded = torch.Tag.nondeterministic_seeded in op.tags

    def kernel(*args, **kwargs):
        call = {a: args[at] for a, at in arguments.items() if at < len(args)} | kwargs
        device = devices_of(name, list(tensors_in(call.values()))) or wanted_device(call)
        refuse_capture(f"aten::{name}")
        torch.cuda.current_stream(device).synchronize()
        on_cpu = to_cpu(call, device, seeded and "generator" in arguments)
        fresh = {out: torch.empty(0, dtype=call[out].dtype) for out in outs if grows(call.get(out))}
        on_cpu |= fresh
        lent = lent_default(device) if seeded and "generator" not in arguments else contextlib.nullcontext()
        with lent:
            result = op(*[on_cpu.pop(a) for a in list(arguments)[: len(args)]], **on_cpu)
        for out, tensor in fresh.items():
            call[out].resize_(tensor.shape)
            alias(call[out]).copy_(tensor)
        if written:
            return returned(schema, call, written)
        return mapped(result, lambda tensor: to_device(tensor, device))

    return kernel


def wanted_device(call):
    device = call.get("device")
    if device is None or device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def grows(out):
    """Whether an output tensor has no memory yet: then the operator decides on its shape."""
    return isinstance(out, torch.Tensor) and out.numel() == 0


def to_cpu(call, device, generator):
    """The arguments of a call on a device, for a call on the CPU."""
    on_cpu = {name: mapped(value, alias) for name, value in call.items()}
    if "device" in on_cpu:
        on_cpu["device"] = torch.device("cpu")
    if on_cpu.get("pin_memory"):
        on_cpu["pin_memory"] = False
    if generator:
        on_cpu["generator"] = generator_for(call.get("generator"), device)
    return on_cpu


def returned(schema, call, written):
    """What an operator that writes its arguments returns: those that its schema names again, themselves."""
    again = [call[name] for name in written]
    if len(schema.returns) == 0:
        return None
    return again[0] if len(schema.returns) == 1 else tuple(again[: len(schema.returns)])


def copy(native):
    """aten::copy_: what is a plain copy of bytes stays the device's, in the stream's order; else the CPU converts."""

    def kernel(keys, target, source, non_blocking=False):
        if native is not None and (same_layout(target, source) or target.numel() == 0):
            return native.call_boxed(keys, target, source, non_blocking)
        refuse_capture("a copy between types or layouts (aten::copy_)")
        for tensor in (target, source):
            if tensor.device.type == "cuda":
                torch.cuda.current_stream(tensor.device).synchronize()
        alias(target).copy_(alias(source))
        return target

    return kernel


def zero(native):
    """aten::zero_: dense memory is filled by the device, in the stream's order."""

    def kernel(keys, target):
        if native is not None and dense(target):
            return native.call_boxed(keys, target)
        refuse_capture("aten::zero_ of a tensor with gaps")
        torch.cuda.current_stream(target.device).synchronize()
        alias(target).zero_()
        return target

    return kernel


def softmax(op):
    """_softmax and _log_softmax can convert half to float on the way, which the CPU's kernels leave to the caller."""
    inner = generic(op)

    def kernel(tensor, dim, half_to_float):
        return inner(tensor.float() if half_to_float else tensor, dim, False)

    return kernel


def softmax_backward(op):
    """Their gradients, which are converted back."""
    inner = generic(op)

    def kernel(grad_output, output, dim, input_dtype):
        return inner(grad_output, output, dim, grad_output.dtype).to(input_dtype)

    return kernel


def unavailable(op):
    """A kernel for an operator that only GPUs have."""

    def kernel(*_args, **_kwargs):
        raise NotImplementedError(
            f"softcuda_torch: {op._schema.name} exists for GPUs only; there is no CPU kernel to run in its place"
        )

    return kernel
