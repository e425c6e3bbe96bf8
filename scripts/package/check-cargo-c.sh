#!/usr/bin/env bash
# Tries `cargo cinstall` (cargo-c on PATH; scripts/install-cargo-c.sh gets it) into a folder of its own: the files,
# their names, and a program that is built by pkg-config and finds the library there.
#
#   scripts/package/check-cargo-c.sh     PROFILE: where softcuda/ is, target/release
set -euo pipefail
cd "$(dirname "$0")/../.."
profile=$(cd "${PROFILE:-target/release}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix

# The quick build: what is looked at here is the same in a release.
cargo cinstall --package oxccl --locked --debug --library-type cdylib --prefix "$prefix" --libdir lib 2>"$work/log" ||
  { cat "$work/log" >&2; exit 1; }
[ "$(cd "$prefix" && find . ! -type d | sort | tr '\n' ' ')" = \
  "./include/nccl.h ./lib/libnccl.so ./lib/libnccl.so.2 ./lib/libnccl.so.2.32.3 ./lib/pkgconfig/nccl.pc " ]
cmp include/nccl.h "$prefix/include/nccl.h"
for link in libnccl.so libnccl.so.2; do
  [ "$(readlink -f "$prefix/lib/$link")" = "$(readlink -f "$prefix/lib")/libnccl.so.2.32.3" ]
done
scripts/check-library.sh "$prefix/lib/libnccl.so.2.32.3"

export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
[ "$(pkg-config --modversion nccl)" = 2.32.3 ]
c++ -Isoftcuda/include tests/c_programs/devices.cc -o "$work/program" $(pkg-config --cflags --libs nccl) \
  -L"$profile/softcuda" -l:libcudart.so.13 -Wl,-rpath-link,"$profile/softcuda"
said=$(LD_LIBRARY_PATH=$profile/softcuda:$prefix/lib NCCL_DEBUG=VERSION "$work/program")
echo "$said"
grep -q "is loaded from $prefix/lib/libnccl.so.2\$" <<<"$said"
grep -q ' 0 sums are wrong$' <<<"$said"
echo "cargo-c: OK"
