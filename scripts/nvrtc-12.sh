#!/bin/sh
# Prints the file of CUDA 12's run-time compiler, which it installs below a folder if need be: with it in NVRTC a build
# has code for GPUs that drivers of CUDA 12 and newer load. Usage: nvrtc-12.sh FOLDER
set -eu
. "$(dirname "$0")/lib.sh"

[ $# -eq 1 ] || usage FOLDER
dir=$("$scripts/install-nvrtc.sh" "$1")
library=$(find "$dir/12" -name libnvrtc.so.12)
[ -f "$library" ] || fail "no libnvrtc.so.12 below $dir/12"
echo "$library"
