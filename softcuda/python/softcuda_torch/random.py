"""Random numbers: the device's generators decide, the CPU's make the numbers.

Each call takes a fresh CPU generator, whose seed comes from the device generator's seed and offset, and moves the
offset on. So torch.manual_seed, torch.cuda.get_rng_state and forked generators work as on a GPU, and the same seed
gives the same numbers, if not those that a GPU would give.
"""
import contextlib
import threading

import torch

# What a call moves a device generator's offset by; offsets are multiples of 4.
STEP = 4
# Guards the CPU's default generator while it is lent.
LENT = threading.Lock()


def mixed(seed, offset):
    """A seed from two numbers, by SplitMix64's finisher."""
    mask = (1 << 64) - 1
    z = (seed + (offset + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return (z ^ (z >> 31)) >> 1


def generator_for(given, device):
    """A CPU generator for one call on a device; `given` is the caller's generator, or None for the device's default."""
    if given is not None and given.device.type == "cpu":
        raise RuntimeError(f"Expected a 'cuda' device type for generator but found 'cpu' (operator on {device})")
    source = given if given is not None else torch.cuda.default_generators[device.index]
    offset = source.get_offset()
    source.set_offset(offset + STEP)
    return torch.Generator().manual_seed(mixed(source.initial_seed(), offset))


@contextlib.contextmanager
def lent_default(device):
    """The CPU's default generator takes part for operators that cannot be told another; it is put back afterwards."""
    with LENT:
        before = torch.random.get_rng_state()
        torch.random.set_rng_state(generator_for(None, device).get_state())
        try:
            yield
        finally:
            torch.random.set_rng_state(before)
