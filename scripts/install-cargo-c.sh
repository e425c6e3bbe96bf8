#!/bin/sh
# Installs cargo-c from crates.io into a folder, which takes some minutes: it has all of cargo in it.
# Usage: install-cargo-c.sh FOLDER. Prints the folder to put in front of PATH, and nothing else, on standard output:
#   PATH=$(scripts/install-cargo-c.sh target/tools/cargo-c):$PATH
# A folder that has it already is left as it is.
set -eu
. "$(dirname "$0")/lib.sh"
version=0.10.24+cargo-0.98.0 # the last one for Rust 1.95

[ $# -eq 1 ] || usage FOLDER
dir=$(folder "$1")

works() { "$dir/bin/cargo-cinstall" cinstall --version >/dev/null 2>&1; }

if ! works; then
  # Outside of this workspace, whose settings are not for it. Without optimisation: it runs for a second.
  (cd "$dir" &&
    CARGO_TARGET_DIR="$dir/build" cargo install cargo-c --version "$version" --locked --debug --root "$dir") >&2
  rm -rf "$dir/build"
  works || fail "$dir/bin/cargo-cinstall does not work"
fi
echo "$dir/bin"
