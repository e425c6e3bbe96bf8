#!/bin/sh
# Fetches what tests/abi compares this library with: the headers of NVIDIA's NCCL 2.32.3 and the list of names
# that its library exports, from the wheel on PyPI. Nothing of it goes into this repository.
#
#   scripts/install-nccl-header.sh DIR [--library]
#
# DIR gets include/ and symbols.txt, with --library also lib/libnccl.so.2 (300 MB), on which the tests then run
# the same calls. Then: export OXCCL_NCCL_HOME=DIR
set -eu
. "$(dirname "$0")/lib.sh"
version=2.32.3

[ $# -ge 1 ] || usage "DIR [--library]"
mkdir -p "$1"
dir=$1
work_folder
pip_download "$work" "nvidia-nccl-cu13==$version"
unpack "$work"/*.whl nvidia/nccl/ include/ "$dir"
home=$work
[ -z "${2:-}" ] || home=$dir
unpack "$work"/*.whl nvidia/nccl/ lib/libnccl.so.2 "$home"

nm -D --defined-only "$home/lib/libnccl.so.2" | awk '{ print $2, $3 }' | LC_ALL=C sort -k 2 > "$dir/symbols.txt"
echo "$(wc -l < "$dir/symbols.txt") names, $(find "$dir/include" -type f | wc -l) headers in $dir"
