#!/bin/sh
# Installs PyTorch from PyPI into DIR, as a client and for its Gloo in benches/collectives.py, and prints DIR: what
# OXCCL_TORCH_HOME should be, or for 2.8.0, the last version for CUDA 12 that is tested, OXCCL_TORCH12_HOME. The wheel
# wants CUDA libraries of gigabytes that are never called here: placeholders with the right names stand in for them
# (DIR/stubs, made by softcuda-stubs), and softcuda for the driver and the runtime. Needs Python 3.10 to 3.13, cargo,
# a C compiler, binutils, and 1.3 GB (2.8.0: 1.7 GB). Does nothing where that version is installed already.
#   OXCCL_TORCH_HOME=$(scripts/install-torch-cpu.sh target/tools/torch)
#   OXCCL_TORCH12_HOME=$(scripts/install-torch-cpu.sh target/tools/torch12 2.8.0)
set -eu
. "$(dirname "$0")/lib.sh"

[ $# -ge 1 ] || usage "DIR [VERSION]"
dir=$(folder "$1")
version=${2:-2.15.0}
if is_complete "$dir" "$version"; then
  echo "$dir"
  exit 0
fi
venv "$dir" --clear
pip_install "$dir/bin/python" --no-deps "torch==$version"
pip_install "$dir/bin/python" sympy networkx jinja2 fsspec filelock typing-extensions numpy

# One line for each library that is missing: its name, the version that its symbols have, the symbols.
lib=$(echo "$dir"/lib/python3*/site-packages/torch/lib)
needed=$(for file in "$lib"/*.so; do readelf -d "$file" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p'; done | sort -u)
undefined=$(for file in "$lib"/*.so; do readelf -W --dyn-syms "$file" | awk '$7 == "UND" { print $8 }'; done | sort -u)
mkdir -p "$dir/stubs"
for name in $needed; do
  case $name in
    libcuda.so* | libcudart.so* | libnccl.so*) continue ;; # softcuda and oxccl have these
    libcu* | libnv*) ;;
    *) continue ;;
  esac
  # Versions are mostly named after the library; else its symbols begin as it is called.
  symbols=$(echo "$undefined" | grep -E "@$name\$" || true)
  if [ -z "$symbols" ]; then
    stem=$(echo "$name" | sed 's/^lib//; s/_host//; s/\.so.*//; s/^cufile$/cuFile/')
    symbols=$(echo "$undefined" | grep -E "^$stem" || true)
  fi
  node=$(echo "$symbols" | sed -n 's/.*@//p' | head -n 1)
  echo "$name ${node:--}" $(echo "$symbols" | sed 's/@.*//')
done > "$dir/stubs/list"
(cd "$scripts/.." &&
  cargo run --quiet --locked -p softcuda --bin softcuda-stubs -- "$dir/stubs" < "$dir/stubs/list" >&2)
mark_complete "$dir" "$version"
echo "$dir"
