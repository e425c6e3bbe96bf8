#!/usr/bin/env bash
# Tries what scripts/package.sh has made, as people install it: the Debian package and the wheel unpacked where they
# belong, a program built by pkg-config, another that was linked with the library that the package replaces.
#
#   scripts/package/check.sh [OUT]     OUT: target/package. PROFILE: where softcuda/ is, target/release
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$(cd "${1:-target/package}" && pwd)
profile=$(cd "${PROFILE:-target/release}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# runs LIBRARY-FOLDER: whether a program that finds the library there uses it, and sums right
runs() {
  local at
  at=$(LD_LIBRARY_PATH=$profile/softcuda:$1 ldd "$work/program" | awk '/libnccl/ { print $3 }')
  [ "$at" = "$1/libnccl.so.2" ] || { echo "the program would use $at" >&2; return 1; }
  LD_LIBRARY_PATH=$profile/softcuda:$1 "$work/program"
}

# The Debian package: its files, and that they replace NVIDIA's.
dpkg-deb -x "$out"/oxccl_*_amd64.deb "$work/deb"
lib=$work/deb/usr/lib/x86_64-linux-gnu
[ "$(readlink "$lib/libnccl.so.2")" = "libnccl.so.2.32.3" ] && [ "$(readlink "$lib/libnccl.so")" = "libnccl.so.2" ]
[ "$(dpkg-deb -f "$out"/oxccl_*_amd64.deb Conflicts)" = "libnccl2, libnccl-dev" ]

# A program by pkg-config, from the tree that can be unpacked anywhere.
mkdir "$work/prefix"
tar -C "$work/prefix" -xzf "$out"/oxccl-*-x86_64.tar.gz
prefix=$(echo "$work/prefix"/oxccl-*)
if command -v pkg-config >/dev/null; then
  flags=$(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --cflags --libs nccl)
else
  flags="-I$prefix/include -L$prefix/lib -lnccl"
fi
c++ -Isoftcuda/include tests/by_hand/devices.cc -o "$work/program" $flags -L"$profile/softcuda" -l:libcudart.so.13 \
  -Wl,-rpath-link,"$profile/softcuda"
runs "$prefix/lib"
runs "$lib"

# The wheel: where nvidia-nccl-cu13 has its file.
python3 -m venv --without-pip "$work/venv"
site=$(echo "$work"/venv/lib/python3*/site-packages)
PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$site" "$out"/oxccl-*.whl
runs "$site/nvidia/nccl/lib"
echo "packages: OK"
