#!/bin/sh
# Installs cargo-c from crates.io into a folder, which takes some minutes: it has all of cargo in it.
# Usage: install-cargo-c.sh FOLDER. Prints the folder to put in front of PATH, and nothing else, on standard output:
#   PATH=$(scripts/install-cargo-c.sh target/tools/cargo-c):$PATH
# A folder that has it already is left as it is.
set -eu
version=0.10.24+cargo-0.98.0 # the last one for Rust 1.95

if [ $# -ne 1 ]; then
  echo "usage: $0 FOLDER" >&2
  exit 2
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)

works() { "$folder/bin/cargo-cinstall" cinstall --version >/dev/null 2>&1; }

if ! works; then
  # Outside of this workspace, whose settings are not for it. Without optimisation: it runs for a second.
  (cd "$folder" && CARGO_TARGET_DIR="$folder/build" cargo install cargo-c --version "$version" --locked --debug --root "$folder") >&2
  rm -rf "$folder/build"
  works || { echo "$0: $folder/bin/cargo-cinstall does not work" >&2; exit 1; }
fi
echo "$folder/bin"
