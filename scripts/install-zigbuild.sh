#!/bin/sh
# Installs cargo-zigbuild and zig from PyPI into a folder, without root: a linker for an older glibc than this machine's.
# Usage: install-zigbuild.sh FOLDER. Prints the folder to put in front of PATH, and nothing else, on standard output:
#   PATH=$(scripts/install-zigbuild.sh .tools/zig):$PATH
# A folder that has a working one already is left as it is.
set -eu

if [ $# -ne 1 ]; then
  echo "usage: $0 FOLDER" >&2
  exit 2
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)
python=${PYTHON:-python3}

works() {
  "$folder/bin/cargo-zigbuild" --version >/dev/null 2>&1 && "$folder/bin/python" -m ziglang version >/dev/null 2>&1
}

if ! works; then
  "$python" -m venv "$folder" >&2
  PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 "$folder/bin/python" -m pip install --quiet cargo-zigbuild ziglang >&2
  works || { echo "$0: $folder/bin/cargo-zigbuild does not work" >&2; exit 1; }
fi
echo "$folder/bin"
