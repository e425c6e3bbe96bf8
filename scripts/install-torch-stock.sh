#!/bin/sh
# Makes from a PyTorch that scripts/install-torch-cpu.sh has installed in TORCH one with NVIDIA's libraries where `pip install
# torch` puts them, in DIR, and prints what OXCCL_TORCH_STOCK should be. PyTorch's files are shared (hard links). Of NVIDIA's
# wheels it takes those that LD_PRELOAD has to win against, NCCL and the CUDA runtime (220 MB to load, 300 MB in all), of the
# versions that PyTorch asks for; the placeholders stay for the others. With --full it takes all of them: 2.5 GB to load, 5.4 GB
# in all. Does nothing where that is installed already.
#   OXCCL_TORCH_STOCK=$(scripts/install-torch-stock.sh target/tools/torch-stock target/tools/torch)
set -eu
full=
if [ "${1:-}" = --full ]; then
  full=-full
  shift
fi
usage="usage: install-torch-stock.sh [--full] DIR TORCH"
dir=${1:?$usage}
torch=$(cd "${2:?$usage}" && pwd)
scripts=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
installed=$(ls "$torch"/.complete-* | sed 's/.*-//')
if [ -e "$dir/.complete-$installed" ] && [ -z "$full" ] || [ -e "$dir/.complete-$installed-full" ]; then
  echo "$dir"
  exit 0
fi
python3 -m venv --clear --without-pip "$dir" >&2
cp -al "$torch"/lib/python3*/site-packages/. "$dir"/lib/python3*/site-packages/
cp -al "$torch/stubs" "$dir/stubs"

# install OPTION-OR-PACKAGE...
install() { "$scripts/retry.sh" "$dir/bin/python" -m pip install --quiet --disable-pip-version-check "$@" >&2; }
if [ -n "$full" ]; then
  install "torch==$installed"
else
  needs=$(sed -n 's/^Requires-Dist: \([^; ]*\).*/\1/p' "$dir"/lib/python3*/site-packages/"torch-$installed.dist-info/METADATA")
  install --no-deps $(echo "$needs" | grep '^nvidia-nccl-')
  install $(echo "$needs" | sed -n 's/^cuda-toolkit\[.*\]/cuda-toolkit[cudart]/p')
fi
: > "$dir/.complete-$installed$full"
echo "$dir"
