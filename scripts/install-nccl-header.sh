#!/bin/sh
# Fetches what tests/abi compares this library with: the headers of NVIDIA's NCCL 2.32.3 and the list of names
# that its library exports, from the wheel on PyPI. Nothing of it goes into this repository.
#
#   scripts/install-nccl-header.sh DIR [--library]
#
# DIR gets include/ and symbols.txt, with --library also lib/libnccl.so.2 (300 MB), on which the tests then run
# the same calls. Then: export OXCCL_NCCL_HOME=DIR
set -eu

version=2.32.3
dir=${1:?usage: $0 DIR [--library]}
keep=${2:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

python=$(command -v python3 || command -v python)
"$python" -m pip download --quiet --no-deps --only-binary :all: --dest "$work" "nvidia-nccl-cu13==$version"

mkdir -p "$dir"
"$python" - "$work" "$dir" "$keep" <<'PYTHON'
import glob, os, shutil, sys, zipfile
work, out, keep = sys.argv[1:]
(wheel,) = glob.glob(os.path.join(work, "*.whl"))
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        head, found, tail = name.partition("nvidia/nccl/")
        if not found or name.endswith("/"):
            continue
        library = tail == "lib/libnccl.so.2"
        if not (tail.startswith("include/") or library):
            continue
        to = os.path.join(out if keep or not library else work, tail)
        os.makedirs(os.path.dirname(to), exist_ok=True)
        with archive.open(name) as source, open(to, "wb") as target:
            shutil.copyfileobj(source, target)
PYTHON

library=$dir/lib/libnccl.so.2
[ -n "$keep" ] || library=$work/lib/libnccl.so.2
nm -D --defined-only "$library" | awk '{ print $2, $3 }' | LC_ALL=C sort -k 2 > "$dir/symbols.txt"
echo "$(wc -l < "$dir/symbols.txt") names, $(find "$dir/include" -type f | wc -l) headers in $dir"
