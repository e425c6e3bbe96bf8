#!/bin/sh
# Fetches the headers of several NCCL versions from NVIDIA's wheels on PyPI, for tests of clients that were compiled
# against them: DIR/VERSION/include/nccl.h for each. Nothing of it goes into this repository. Prints what
# OXCCL_CLIENT_HEADERS should be; does nothing where all are there.
#   OXCCL_CLIENT_HEADERS=$(scripts/install-client-headers.sh target/tools/client-headers)
set -eu
versions="2.18.3 2.27.7 2.32.3"
dir=${1:?usage: install-client-headers.sh DIR}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
for version in $versions; do
  [ ! -e "$dir/$version/include/nccl.h" ] || continue
  "$(dirname "$0")/retry.sh" python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --dest "$work/$version" "nvidia-nccl-cu12==$version" >&2
  mkdir -p "$dir/$version/include"
  python3 -c '
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    open(sys.argv[2], "wb").write(wheel.read("nvidia/nccl/include/nccl.h"))
' "$work/$version"/*.whl "$dir/$version/include/.nccl.h"
  mv "$dir/$version/include/.nccl.h" "$dir/$version/include/nccl.h"
  rm -rf "${work:?}/$version"
done
echo "$dir"
