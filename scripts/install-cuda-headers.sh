#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Fetches NVIDIA's CUDA 13 headers (5 MB of wheels from PyPI, no compiler) and prints the folder that holds include/.
#
#     export OXCCL_CUDA_HOME=$(scripts/install-cuda-headers.sh [DIR])
#
# DIR is target/cuda-headers unless given. Does nothing if the headers are there already.
set -eu

dir=${1:-"$(dirname "$0")/../target/cuda-headers"}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
home=$dir/nvidia/cu13

# The last file to be unpacked says that all is there.
if [ ! -e "$dir/.complete" ]; then
    # cuda-runtime: cuda.h and the runtime; crt: what they include; cccl: <nv/target> for cuda_fp16.h in C++.
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$dir/wheels" \
        'nvidia-cuda-runtime>=13,<14' 'nvidia-cuda-crt>=13,<14' 'nvidia-cuda-cccl>=13,<14' >&2
    for wheel in "$dir"/wheels/*.whl; do
        python3 -m zipfile -e "$wheel" "$dir"
    done
    rm -r "$dir/wheels"
    for header in cuda.h cuda_runtime_api.h crt/host_defines.h; do
        if [ ! -e "$home/include/$header" ]; then
            echo "install-cuda-headers: the wheels have no $home/include/$header" >&2
            exit 1
        fi
    done
    touch "$dir/.complete"
fi
echo "$home"
