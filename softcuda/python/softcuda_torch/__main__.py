"""Runs a program as it is, with CPU kernels for its operators on `cuda` tensors: python -m softcuda_torch PROGRAM
[ARGUMENT...]"""
import runpy
import sys

import softcuda_torch

if len(sys.argv) < 2:
    sys.exit(__doc__)
softcuda_torch.install()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
