#!/bin/sh
# Installs MPICH from PyPI into DIR, for the MPI example and benches/vs_mpich.py, and prints what OXCCL_MPI_HOME should
# be. Does nothing where it is installed already.
#   OXCCL_MPI_HOME=$(scripts/install-mpich.sh target/tools/mpich)
exec "$(dirname "$0")/install-mpi.sh" mpich==5.0.2 "${1:?usage: install-mpich.sh DIR}"
