"""PyTorch on softcuda without a GPU: operators on `cuda` tensors run on the CPU, over the same memory.

    import softcuda_torch
    softcuda_torch.install()

or, for a program as it is: `python -m softcuda_torch program.py ...`. See README.md beside this package.
"""
import ctypes

import torch

from . import composed, kernels

__all__ = ["install", "installed", "uninstall"]

# These handle memory and shapes, not elements, and work as they are. (So do those that return views.)
KEPT = {
    "_local_scalar_dense", "empty.memory_format", "empty_strided", "is_set_to", "record_stream", "resize_",
    "set_", "set_.source_Storage", "set_.source_Storage_storage_offset", "set_.source_Tensor",
}  # fmt: skip
# One kernel for all devices, which would choose one of a GPU's libraries.
CHOOSERS = ["convolution", "convolution_overrideable"]

# Libraries of GPUs that PyTorch would choose for convolutions, normalisation, recurrent layers and attention: how to
# ask whether they may be used, and how to tell it.
SWITCHES = {
    "cudnn": (lambda: torch.backends.cudnn.enabled, lambda on: setattr(torch.backends.cudnn, "enabled", on)),
    "cudnn attention": (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
    "flash attention": (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    "efficient attention": (
        torch.backends.cuda.mem_efficient_sdp_enabled,
        torch.backends.cuda.enable_mem_efficient_sdp,
    ),
}

# Operators whose CUDA kernels do more than the CPU's.
SPECIAL = {
    "_softmax": kernels.softmax,
    "_log_softmax": kernels.softmax,
    "_softmax_backward_data": kernels.softmax_backward,
    "_log_softmax_backward_data": kernels.softmax_backward,
}

_library = None
_before = {}


def installed():
    """Whether the operators are in place."""
    return _library is not None


def install():
    """Puts CPU kernels in place of PyTorch's for CUDA, in this process. Twice is once.

    Raises RuntimeError where the driver is not softcuda: a GPU's memory is not the CPU's.
    """
    global _library
    if installed():
        return
    if not is_softcuda():
        raise RuntimeError(
            "softcuda_torch: libcuda.so.1 in this process is not softcuda's; put its folder first in LD_LIBRARY_PATH"
        )
    library = torch.library.Library("aten", "IMPL")
    for op, kernel in table():
        library.impl(op, kernel, "CUDA")
    for name, make in (("copy_", kernels.copy), ("zero_", kernels.zero)):
        library.impl(name, make(native(name)), "CUDA", with_keyset=True)
    _library = library
    for holder, (ask, tell) in SWITCHES.items():
        _before[holder] = ask()
        tell(False)


def uninstall():
    """Puts PyTorch's own kernels back."""
    global _library
    if _library is not None:
        _library._destroy()
        _library = None
        for holder, (_, tell) in SWITCHES.items():
            tell(_before[holder])


def is_softcuda():
    try:
        return hasattr(ctypes.CDLL("libcuda.so.1"), "softcudaModuleLoadImage")
    except OSError:
        return False


def native(name):
    """PyTorch's own kernel for CUDA, or None in versions that do not give it away (before 2.10)."""
    get = getattr(torch.library, "get_kernel", None)
    return get(f"aten::{name}", "CUDA") if get else None


def table():
    """Every operator that gets another kernel, with it."""
    registered = torch._C._dispatch_get_registrations_for_dispatch_key("CUDA")
    for full in [name for name in registered if name.startswith("aten::")] + [f"aten::{name}" for name in CHOOSERS]:
        name = full.removeprefix("aten::")
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        if name in KEPT or name in ("copy_", "zero_") or gives_view(op):
            continue
        if name in SPECIAL:
            yield op, SPECIAL[name](op)
        elif name in composed.TABLE:
            yield op, torch.no_grad()(composed.TABLE[name])
        elif torch._C._dispatch_has_computed_kernel_for_dispatch_key(full, "CPU"):
            yield op, kernels.generic(op)
        else:
            yield op, kernels.unavailable(op)


def gives_view(op):
    return any(result.alias_info is not None and not result.alias_info.is_write for result in op._schema.returns)
