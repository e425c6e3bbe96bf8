#!/bin/sh
# Installs the Python packages that call NCCL without PyTorch into DIR, and prints what OXCCL_PYTHON_CLIENTS should be:
# CuPy (for cupy.cuda.nccl alone: no CUDA libraries) and nccl4py with the CUDA bindings that it needs. 400 MB.
# Does nothing where they are installed already.
#   OXCCL_PYTHON_CLIENTS=$(scripts/install-python-clients.sh target/tools/python-clients)
set -eu
. "$(dirname "$0")/lib.sh"
cupy=14.2.0
nccl4py=0.6.0

[ $# -eq 1 ] || usage DIR
dir=$(folder "$1")
if ! is_complete "$dir" "$cupy-$nccl4py"; then
  venv "$dir" --clear
  pip_install "$dir/bin/python" numpy packaging
  pip_install "$dir/bin/python" --no-deps "cupy-cuda13x==$cupy"
  pip_install "$dir/bin/python" --no-deps "nccl4py==$nccl4py" cuda-core==1.2.2 cuda-bindings==13.5.0 cuda-pathfinder
  mark_complete "$dir" "$cupy-$nccl4py"
fi
echo "$dir"
