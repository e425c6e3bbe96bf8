#!/bin/sh
# Installs MPICH (mpicc, mpiexec) from PyPI into DIR, for the MPI example and benches/vs_mpich.py, and
# prints what OXCCL_MPI_HOME should be. Does nothing where it is installed already.
#   OXCCL_MPI_HOME=$(scripts/install-mpich.sh target/tools/mpich)
set -eu
version=5.0.2
dir=${1:?usage: install-mpich.sh DIR}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
if [ ! -x "$dir/bin/mpiexec" ] || ! "$dir/bin/mpiexec" --version >/dev/null 2>&1; then
  python3 -m venv --clear "$dir" >&2
  try=1
  until "$dir/bin/pip" install --quiet --disable-pip-version-check "mpich==$version" >&2; do
    [ "$try" -lt 3 ] || { echo "install-mpich.sh: pip failed three times" >&2; exit 1; }
    try=$((try + 1))
    sleep 5
  done
fi
echo "$dir"
