#!/bin/sh
# A release build that needs no glibc newer than 2.28, in target/x86_64-unknown-linux-gnu/release.
#   scripts/zigbuild.sh CARGO-ARGUMENT...
set -eu
cd "$(dirname "$0")/.."
# zig links for the old glibc; the C++ of the kernels needs no library, so the machine's own compiler serves.
PATH=$(scripts/install-zigbuild.sh target/tools/zig):$PATH
export CC_x86_64_unknown_linux_gnu="${CC:-cc}" CXX_x86_64_unknown_linux_gnu="${CXX:-c++}"
export AR_x86_64_unknown_linux_gnu="${AR:-ar}"
exec cargo zigbuild --release --locked --target x86_64-unknown-linux-gnu.2.28 "$@"
