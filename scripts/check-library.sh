#!/bin/sh
# What a released libnccl.so.2 must be: its SONAME, no CUDA and no C++ library among what it needs, no symbol of a glibc
# newer than VERSION, and loadable where there is no CUDA.
#   scripts/check-library.sh FILE [VERSION]
set -eu
library=${1:?usage: check-library.sh FILE [GLIBC]}
needed=$(readelf -d "$library" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | tr '\n' ' ')
newest=$(readelf -V "$library" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
echo "$library: $(stat -L -c %s "$library") bytes, needs $needed(${newest:-no glibc})"
if echo "$needed" | grep -qE 'cuda|stdc\+\+|nvidia'; then
  echo "it must not need these" >&2
  exit 1
fi
if [ -n "${2:-}" ] && [ "$(printf '%s\n' "GLIBC_$2" "$newest" | sort -V | tail -n 1)" != "GLIBC_$2" ]; then
  echo "that is newer than glibc $2" >&2
  exit 1
fi
readelf -d "$library" | grep -q 'SONAME.*\[libnccl.so.2\]' || { echo "it has another SONAME" >&2; exit 1; }
file=$(cd "$(dirname "$library")" && pwd)/$(basename "$library")
env -u LD_LIBRARY_PATH python3 -c "import ctypes; ctypes.CDLL('$file').ncclGetVersion"
