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

# The Debian package, where NVIDIA's is installed: it takes its place. (A package database of its own, with stand-ins.)
root=$work/root
lib=$root/usr/lib/x86_64-linux-gnu
old=$work/old
mkdir -p "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates" "$old/DEBIAN" "$old/usr/lib/x86_64-linux-gnu"
stands_for() {
  printf '%s\n' "Package: $1" "Version: $2" 'Architecture: amd64' 'Maintainer: nobody <nobody@localhost>' \
    'Description: stand-in'
}
{ stands_for libc6 2.36; echo "Status: install ok installed"; } > "$root/var/lib/dpkg/status"
: > "$root/var/lib/dpkg/info/libc6.list"
stands_for libnccl2 2.20.0 > "$old/DEBIAN/control"
echo nothing > "$old/usr/lib/x86_64-linux-gnu/libnccl.so.2"
dpkg-deb --root-owner-group --build "$old" "$work/old.deb" >/dev/null
for package in "$work/old.deb" "$out"/oxccl_*_amd64.deb; do
  dpkg --root="$root" --force-not-root --force-script-chrootless --log=/dev/null -i "$package" \
    >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
done
[ "$(dpkg --root="$root" -l | awk '/^ii/ { printf "%s ", $2 }')" = "libc6 oxccl " ]
[ "$(readlink "$lib/libnccl.so.2")" = "libnccl.so.2.32.3" ] && [ "$(readlink "$lib/libnccl.so")" = "libnccl.so.2" ]

# A program by pkg-config, from the tree that can be unpacked anywhere.
mkdir "$work/prefix"
tar -C "$work/prefix" -xzf "$out"/oxccl-*-x86_64.tar.gz
prefix=$(echo "$work/prefix"/oxccl-*)
if command -v pkg-config >/dev/null; then
  flags=$(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --cflags --libs nccl)
else
  flags="-I$prefix/include -L$prefix/lib -lnccl"
fi
c++ -Isoftcuda/include tests/c_programs/devices.cc -o "$work/program" $flags -L"$profile/softcuda" -l:libcudart.so.13 \
  -Wl,-rpath-link,"$profile/softcuda"
runs "$prefix/lib"
runs "$lib"

# The wheel: where nvidia-nccl-cu13 has its file, which is there already.
python3 -m venv "$work/venv"
site=$(echo "$work"/venv/lib/python3*/site-packages)
python3 - "$work/nvidia_nccl_cu13-2.28.0-py3-none-any.whl" <<'PY'
import sys, zipfile
info = "nvidia_nccl_cu13-2.28.0.dist-info"
files = {
    "nvidia/nccl/lib/libnccl.so.2": "nothing",
    f"{info}/METADATA": "Metadata-Version: 2.1\nName: nvidia-nccl-cu13\nVersion: 2.28.0\n",
    f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: stand-in\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}
files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
with zipfile.ZipFile(sys.argv[1], "w") as wheel:
    for name, text in files.items():
        wheel.writestr(name, text)
PY
for wheel in "$work"/*.whl "$out"/oxccl-*.whl; do
  "$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-index "$wheel"
done
runs "$site/nvidia/nccl/lib"
echo "packages: OK"
