#!/bin/sh
# Installs NVIDIA's compiler and disassembler from its Python wheels into a folder, without root and without a GPU.
# Usage: install-nvcc.sh FOLDER. Prints the value for CUDA_HOME, and nothing else, on standard output:
#   export CUDA_HOME=$(scripts/install-nvcc.sh .tools/cuda)
# A folder that has a working nvcc already is left as it is.
set -eu
. "$(dirname "$0")/lib.sh"

[ $# -eq 1 ] || usage FOLDER
dir=$(folder "$1")

# The wheels put everything below nvidia/cu<major>/.
cuda_home() {
  for nvcc in "$dir"/nvidia/cu*/bin/nvcc; do
    if [ -f "$nvcc" ]; then
      dirname "$(dirname "$nvcc")"
      return
    fi
  done
  return 1
}

works() {
  home=$(cuda_home) || return 1
  probe=$(mktemp -d)
  echo '__global__ void probe() {}' >"$probe/probe.cu"
  rc=0
  "$home/bin/nvcc" -fatbin -o "$probe/probe.fatbin" "$probe/probe.cu" >&2 || rc=1
  rm -rf "$probe"
  return $rc
}

# All at once: with --target pip replaces the folder that the wheels share.
if ! works || [ ! -f "$(cuda_home)/bin/nvdisasm" ]; then
  pip_install "$python" --upgrade --target "$dir" \
    nvidia-cuda-nvcc nvidia-cuda-crt nvidia-cuda-runtime nvidia-cuda-cccl nvidia-nvvm nvidia-cuda-nvdisasm
  # Wheels do not always keep the permission to execute.
  home=$(cuda_home) || fail "the wheels have no nvcc below $dir/nvidia"
  chmod +x "$home"/bin/* "$home"/nvvm/bin/* 2>/dev/null || true
  works || fail "$home/bin/nvcc does not compile"
fi
home=$(cuda_home)
echo "$home"
