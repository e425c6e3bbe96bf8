#!/usr/bin/env bash
# Makes what people install: a folder tree (and a .tar.gz of it), a Debian package, a Python wheel. The library in them
# needs glibc 2.28 or newer and nothing else.
#
#   scripts/package.sh [OUT]      OUT: target/package
#
# Code for GPUs in it is made by CUDA 12's run-time compiler (NVRTC, else scripts/install-nvrtc.sh gets it), for all
# architectures unless OXCCL_GENCODE says which: drivers of CUDA 12 and 13 load it, whereas those of CUDA 12 refuse what
# nvcc of CUDA 13 makes.
set -euo pipefail
cd "$(dirname "$0")/.."
glibc=2.28
nccl=2.32.3 # whose ABI it has
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
out=${1:-target/package}
mkdir -p "$out"
out=$(cd "$out" && pwd)

NVRTC=${NVRTC:-$(scripts/nvrtc-12.sh target/tools/nvrtc)}
export NVRTC
scripts/zigbuild.sh --lib
library=target/x86_64-unknown-linux-gnu/release/libnccl.so.2
scripts/check-library.sh "$library" "$glibc"

# --- the tree, as `make install` would leave it below a prefix ---------------------------------------------
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/oxccl-$version
mkdir -p "$tree/lib/pkgconfig" "$tree/include" "$tree/share/doc/oxccl"
# Without what only a debugger reads.
strip --strip-debug -o "$tree/lib/libnccl.so.$nccl" "$library"
chmod 644 "$tree/lib/libnccl.so.$nccl"
ln -s "libnccl.so.$nccl" "$tree/lib/libnccl.so.2"
ln -s libnccl.so.2 "$tree/lib/libnccl.so"
cp include/nccl.h "$tree/include/"
cp README.md LICENSE-APACHE LICENSE-MIT "$tree/share/doc/oxccl/"
scripts/package/pkgconfig.sh "$nccl" '${pcfiledir}/../..' lib > "$tree/lib/pkgconfig/nccl.pc"
tar -C "$work" --owner=0 --group=0 -czf "$out/oxccl-$version-x86_64.tar.gz" "oxccl-$version"

# --- Debian: in place of libnccl2 and libnccl-dev ------------------------------------------------------------
deb=$work/deb
libdir=usr/lib/x86_64-linux-gnu
mkdir -p "$deb/DEBIAN" "$deb/$libdir/pkgconfig" "$deb/usr/include" "$deb/usr/share/doc/oxccl"
cp -a "$tree"/lib/libnccl.so* "$deb/$libdir/"
cp "$tree/include/nccl.h" "$deb/usr/include/"
cp "$tree"/share/doc/oxccl/* "$deb/usr/share/doc/oxccl/"
scripts/package/pkgconfig.sh "$nccl" /usr lib/x86_64-linux-gnu > "$deb/$libdir/pkgconfig/nccl.pc"
size=$(du -sk "$deb/usr" | cut -f1)
sed -e "s/@VERSION@/$version/; s/@NCCL@/$nccl/g; s/@SIZE@/$size/; s/@GLIBC@/$glibc/" \
  scripts/package/control > "$deb/DEBIAN/control"
printf 'activate-noawait ldconfig\n' > "$deb/DEBIAN/triggers"
dpkg-deb --root-owner-group --build "$deb" "$out/oxccl_${version}_amd64.deb" >/dev/null

# --- a wheel: the file where PyTorch's wheel looks for NVIDIA's ----------------------------------------------
python3 scripts/package/wheel.py "$version" "$glibc" "$tree" "$out"
ls -l "$out"
