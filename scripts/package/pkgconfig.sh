#!/bin/sh
# Prints nccl.pc: pkgconfig.sh VERSION PREFIX LIBDIR (below the prefix).
set -eu
cat <<PC
prefix=$2
libdir=\${prefix}/$3
includedir=\${prefix}/include

Name: nccl
Description: Collective communication for GPUs (oxccl, with the interface of NCCL)
Version: $1
Libs: -L\${libdir} -lnccl
Cflags: -I\${includedir}
PC
