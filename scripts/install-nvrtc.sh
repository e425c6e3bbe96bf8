#!/bin/sh
# Installs NVIDIA's run-time compilers of CUDA 13 and of CUDA 12 from their Python wheels into a folder, without root
# and without a GPU. Usage: install-nvrtc.sh FOLDER. Prints the folder, and nothing else, on standard output:
#   export OXCCL_NVRTC_HOME=$(scripts/install-nvrtc.sh .tools/nvrtc)
# Compilers that are there already are left as they are.
set -eu
. "$(dirname "$0")/lib.sh"

[ $# -eq 1 ] || usage FOLDER
dir=$(folder "$1")

# install WHEEL MAJOR
install() {
  [ -n "$(find "$dir/$2" -name "libnvrtc.so.$2" 2>/dev/null)" ] && return
  pip_install "$python" --upgrade --no-deps --target "$dir/$2" "$1"
  [ -n "$(find "$dir/$2" -name "libnvrtc.so.$2")" ] || fail "$1 has no libnvrtc.so.$2"
}
install nvidia-cuda-nvrtc 13
install nvidia-cuda-nvrtc-cu12 12
echo "$dir"
