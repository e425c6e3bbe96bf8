#!/bin/sh
# Installs the Python packages that call NCCL without PyTorch into DIR, and prints what OXCCL_PYTHON_CLIENTS should be:
# CuPy (for cupy.cuda.nccl alone: no CUDA libraries) and nccl4py with the CUDA bindings that it needs. 400 MB.
# Does nothing where they are installed already.
#   OXCCL_PYTHON_CLIENTS=$(scripts/install-python-clients.sh target/tools/python-clients)
set -eu
cupy=14.2.0
nccl4py=0.6.0
dir=${1:?usage: install-python-clients.sh DIR}
scripts=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
if [ -e "$dir/.complete-$cupy-$nccl4py" ]; then
  echo "$dir"
  exit 0
fi
python3 -m venv --clear "$dir" >&2

# install OPTION-OR-PACKAGE...
install() { "$scripts/retry.sh" "$dir/bin/pip" install --quiet --disable-pip-version-check "$@" >&2; }
install numpy packaging
install --no-deps "cupy-cuda13x==$cupy"
install --no-deps "nccl4py==$nccl4py" cuda-core==1.2.2 cuda-bindings==13.5.0 cuda-pathfinder
: > "$dir/.complete-$cupy-$nccl4py"
echo "$dir"
