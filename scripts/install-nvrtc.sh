#!/bin/sh
# Installs NVIDIA's run-time compilers of CUDA 13 and of CUDA 12 from their Python wheels into a folder, without root
# and without a GPU. Usage: install-nvrtc.sh FOLDER. Prints the folder, and nothing else, on standard output:
#   export OXCCL_NVRTC_HOME=$(scripts/install-nvrtc.sh .tools/nvrtc)
# Compilers that are there already are left as they are.
set -eu

if [ $# -ne 1 ]; then
  echo "usage: $0 FOLDER" >&2
  exit 2
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)
python=${PYTHON:-python3}

# install WHEEL MAJOR
install() {
  [ -n "$(find "$folder/$2" -name "libnvrtc.so.$2" 2>/dev/null)" ] && return
  PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 "$python" -m pip install --quiet --upgrade --no-deps \
    --target "$folder/$2" "$1" >&2
  [ -n "$(find "$folder/$2" -name "libnvrtc.so.$2")" ] || { echo "$0: $1 has no libnvrtc.so.$2" >&2; exit 1; }
}
install nvidia-cuda-nvrtc 13
install nvidia-cuda-nvrtc-cu12 12
echo "$folder"
