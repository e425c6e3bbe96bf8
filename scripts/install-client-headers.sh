#!/bin/sh
# Fetches the headers of several NCCL versions from NVIDIA's wheels on PyPI, for tests of clients that were compiled
# against them: DIR/VERSION/include/nccl.h for each. Nothing of it goes into this repository. Prints what
# OXCCL_CLIENT_HEADERS should be; does nothing where all are there.
#   OXCCL_CLIENT_HEADERS=$(scripts/install-client-headers.sh target/tools/client-headers)
set -eu
. "$(dirname "$0")/lib.sh"
versions="2.18.3 2.27.7 2.32.3"

[ $# -eq 1 ] || usage DIR
dir=$(folder "$1")
work_folder
for version in $versions; do
  [ ! -e "$dir/$version/include/nccl.h" ] || continue
  pip_download "$work/$version" "nvidia-nccl-cu12==$version"
  unpack "$work/$version"/*.whl nvidia/nccl/ include/nccl.h "$work/$version"
  mkdir -p "$dir/$version/include"
  # The name is there when the whole file is.
  mv "$work/$version/include/nccl.h" "$dir/$version/include/.nccl.h"
  mv "$dir/$version/include/.nccl.h" "$dir/$version/include/nccl.h"
  rm -rf "${work:?}/$version"
done
echo "$dir"
