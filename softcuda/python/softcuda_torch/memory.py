"""Tensors of the software device seen from the CPU: the same bytes, under a CPU tensor's type."""
import ctypes

import torch


def alias(tensor):
    """A CPU tensor over the memory of a tensor on the device: same shape, strides, type. It must not outlive it."""
    if tensor.device.type != "cuda":
        return tensor
    if tensor.layout != torch.strided:
        raise NotImplementedError(
            f"softcuda_torch: tensors of layout {tensor.layout} have no memory that the CPU can take"
        )
    storage = tensor.untyped_storage()
    address, size = storage.data_ptr(), storage.nbytes()
    if address == 0 or size == 0:
        view = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    else:
        # An array of ctypes at an address is the one public way to a tensor over memory that is there already.
        raw = torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=torch.uint8)
        view = torch.empty(0, dtype=tensor.dtype)
        view.set_(raw.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
    # Lazy conjugation and negation are bits of the tensor, not of its memory.
    if tensor.is_conj():
        view = view.conj()
    return torch._neg_view(view) if tensor.is_neg() else view


def to_device(tensor, device):
    """A new tensor on a device with the values and the strides of one of the CPU."""
    tensor = tensor.resolve_conj().resolve_neg()
    if not dense(tensor):
        tensor = tensor.contiguous()
    new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    if tensor.numel() > 0:
        alias(new).copy_(tensor)
    return new


def dense(tensor):
    """Whether every byte from a tensor's first to its last is an element's, each of one element only."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size == 0:
            return True
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def same_layout(one, other):
    """Whether a plain copy of bytes makes one tensor equal to the other."""
    plain = not (one.is_conj() or other.is_conj() or one.is_neg() or other.is_neg())
    alike = one.dtype == other.dtype and one.shape == other.shape
    strides = one.stride() == other.stride() or (one.is_contiguous() and other.is_contiguous())
    return plain and alike and strides and dense(one)
