#!/bin/sh
# What a released libnccl.so.2 must be: its SONAME, no CUDA and no C++ library among what it needs, no symbol of a glibc
# newer than VERSION, and loadable where there is no CUDA.
#   scripts/check-library.sh FILE [VERSION]
set -eu
library=${1:?usage: check-library.sh FILE [GLIBC]}
needed=$(readelf -d "$library" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | tr '\n' ' ')
echo "$library: $(stat -L -c %s "$library") bytes, needs $needed"
if echo "$needed" | grep -qE 'cuda|stdc\+\+|nvidia'; then
  echo "it must not need these" >&2
  exit 1
fi
[ -z "${2:-}" ] || "$(dirname "$0")/check-glibc.sh" "$2" "$library"
readelf -d "$library" | grep -q 'SONAME.*\[libnccl.so.2\]' || { echo "it has another SONAME" >&2; exit 1; }
file=$(cd "$(dirname "$library")" && pwd)/$(basename "$library")
env -u LD_LIBRARY_PATH python3 -c "import ctypes; ctypes.CDLL('$file').ncclGetVersion"
