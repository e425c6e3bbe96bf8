#!/bin/sh
# Makes from a PyTorch that scripts/install-torch-cpu.sh has installed in TORCH one with NVIDIA's libraries where
# `pip install torch` puts them, in DIR, and prints what OXCCL_TORCH_STOCK should be. PyTorch's files are shared (hard
# links). Of NVIDIA's wheels it takes those that LD_PRELOAD has to win against, NCCL and the CUDA runtime (220 MB to
# load, 300 MB in all), of the versions that PyTorch asks for; the placeholders stay for the others. With --full it
# takes all of them: 2.5 GB to load, 5.4 GB in all. Does nothing where that is installed already.
#   OXCCL_TORCH_STOCK=$(scripts/install-torch-stock.sh target/tools/torch-stock target/tools/torch)
set -eu
. "$(dirname "$0")/lib.sh"
full=
if [ "${1:-}" = --full ]; then
  full=-full
  shift
fi
[ $# -eq 2 ] || usage "[--full] DIR TORCH"
torch=$(cd "$2" && pwd)
dir=$(folder "$1")
installed=$(ls "$torch"/.complete-* | sed 's/.*-//')
if is_complete "$dir" "$installed-full" || { [ -z "$full" ] && is_complete "$dir" "$installed"; }; then
  echo "$dir"
  exit 0
fi
venv "$dir" --clear --without-pip
cp -al "$torch"/lib/python3*/site-packages/. "$dir"/lib/python3*/site-packages/
cp -al "$torch/stubs" "$dir/stubs"

if [ -n "$full" ]; then
  pip_install "$dir/bin/python" "torch==$installed"
else
  metadata=$(echo "$dir"/lib/python3*/site-packages/"torch-$installed.dist-info/METADATA")
  needs=$(sed -n 's/^Requires-Dist: \([^; ]*\).*/\1/p' "$metadata")
  pip_install "$dir/bin/python" --no-deps $(echo "$needs" | grep '^nvidia-nccl-')
  pip_install "$dir/bin/python" $(echo "$needs" | sed -n 's/^cuda-toolkit\[.*\]/cuda-toolkit[cudart]/p')
fi
mark_complete "$dir" "$installed$full"
echo "$dir"
