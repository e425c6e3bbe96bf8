#!/bin/sh
# Installs cargo-zigbuild and zig from PyPI into a folder, without root: a linker for an older glibc than this
# machine's. Usage: install-zigbuild.sh FOLDER. Prints the folder to put in front of PATH, and nothing else, on
# standard output:
#   PATH=$(scripts/install-zigbuild.sh .tools/zig):$PATH
# A folder that has a working one already is left as it is.
set -eu
. "$(dirname "$0")/lib.sh"

[ $# -eq 1 ] || usage FOLDER
dir=$(folder "$1")

works() {
  "$dir/bin/cargo-zigbuild" --version >/dev/null 2>&1 && "$dir/bin/python" -m ziglang version >/dev/null 2>&1
}

if ! works; then
  venv "$dir"
  pip_install "$dir/bin/python" cargo-zigbuild ziglang
  works || fail "$dir/bin/cargo-zigbuild does not work"
fi
echo "$dir/bin"
