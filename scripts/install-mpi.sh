#!/bin/sh
# Installs an MPI (mpicc, mpiexec) from PyPI into DIR, and prints DIR. Does nothing where it is installed already.
#   scripts/install-mpi.sh PACKAGE==VERSION DIR
set -eu
package=${1:?usage: install-mpi.sh PACKAGE==VERSION DIR}
dir=${2:?usage: install-mpi.sh PACKAGE==VERSION DIR}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
if [ ! -x "$dir/bin/mpiexec" ] || ! "$dir/bin/mpiexec" --version >/dev/null 2>&1; then
  python3 -m venv --clear "$dir" >&2
  "$(dirname "$0")/retry.sh" "$dir/bin/pip" install --quiet --disable-pip-version-check "$package" >&2
fi
echo "$dir"
