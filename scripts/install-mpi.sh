#!/bin/sh
# Installs an MPI (mpicc, mpiexec) from PyPI into DIR, and prints DIR. Does nothing where it is installed already.
#   scripts/install-mpi.sh PACKAGE==VERSION DIR
set -eu
. "$(dirname "$0")/lib.sh"

[ $# -eq 2 ] || usage "PACKAGE==VERSION DIR"
dir=$(folder "$2")
if [ ! -x "$dir/bin/mpiexec" ] || ! "$dir/bin/mpiexec" --version >/dev/null 2>&1; then
  venv "$dir" --clear
  pip_install "$dir/bin/python" "$1"
fi
echo "$dir"
