#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Fetches NVIDIA's CUDA 13 headers (5 MB of wheels from PyPI, no compiler) and prints the folder that holds include/.
#
#     export OXCCL_CUDA_HOME=$(scripts/install-cuda-headers.sh [DIR])
#
# DIR is target/cuda-headers unless given. Does nothing if the headers are there already.
set -eu
. "$(dirname "$0")/lib.sh"

dir=$(folder "${1:-"$scripts/../target/cuda-headers"}")
home=$dir/nvidia/cu13

if ! is_complete "$dir"; then
  # cuda-runtime: cuda.h and the runtime; crt: what they include; cccl: <nv/target> for cuda_fp16.h in C++.
  pip_download "$dir/wheels" 'nvidia-cuda-runtime>=13,<14' 'nvidia-cuda-crt>=13,<14' 'nvidia-cuda-cccl>=13,<14'
  for wheel in "$dir"/wheels/*.whl; do
    "$python" -m zipfile -e "$wheel" "$dir"
  done
  rm -r "$dir/wheels"
  for header in cuda.h cuda_runtime_api.h crt/host_defines.h; do
    [ -e "$home/include/$header" ] || fail "the wheels have no $home/include/$header"
  done
  mark_complete "$dir"
fi
echo "$home"
