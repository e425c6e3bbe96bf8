#!/bin/sh
# Says which glibc a program or library needs, and fails where that is newer than VERSION.
#   scripts/check-glibc.sh VERSION FILE
set -eu
newest=$(readelf -V "$2" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
echo "$2 needs ${newest:-no glibc}"
[ "$(printf '%s\n' "GLIBC_$1" "$newest" | sort -V | tail -n 1)" = "GLIBC_$1" ] || {
  echo "that is newer than glibc $1" >&2
  exit 1
}
