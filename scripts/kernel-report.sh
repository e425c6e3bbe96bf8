#!/bin/sh
# Compiles the kernels for GPUs and prints, for each kernel and architecture, registers, stack, spills and
# shared memory as ptxas reports them. Fails on more than 128 registers, on any spill, and on any stack frame
# (local arrays).
# Usage: kernel-report.sh [ARCHITECTURE...], such as 80 90; default: all of a release. nvcc is found as
# build.rs finds it: NVCC, CUDA_HOME, PATH. Exit status 77: there is no nvcc.
set -eu
. "$(dirname "$0")/lib.sh"
limit=128
here=$(dirname "$scripts")
find_nvcc

known=$("$nvcc" --list-gpu-arch | sed -n 's/^compute_//p')
work_folder

for arch in "${@:-}"; do
  [ -n "$arch" ] || continue
  echo "$known" | grep -qx "$arch" || { echo "this nvcc does not know sm_$arch" >&2; exit 1; }
done
[ $# -gt 0 ] || set -- 75 80 86 89 90 100 120

printf '%-22s %-7s %9s %6s %7s %7s\n' kernel arch registers stack spills shared
for arch in "$@"; do
  echo "$known" | grep -qx "$arch" || { echo "sm_$arch: not known to this nvcc"; continue; }
  "$nvcc" -std=c++17 -fmad=false -cubin -arch="sm_$arch" -Xptxas -v -Werror all-warnings \
    -o "$work/kernels.cubin" "$here/kernels/entry.cu" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
  awk -v arch="sm_$arch" -v limit="$limit" '
    /Compiling entry function/ { split($0, part, "\047"); name = part[2] }
    /bytes stack frame/ { stack = $1; spills = $5 + $9 }
    /Used [0-9]+ registers/ {
      match($0, /Used [0-9]+/); registers = substr($0, RSTART + 5, RLENGTH - 5)
      shared = match($0, /[0-9]+ bytes smem/) ? substr($0, RSTART, RLENGTH - 11) : 0
      bad = registers + 0 > limit || stack + 0 > 0 || spills + 0 > 0
      printf "%-22s %-7s %9d %6d %7d %7d%s\n", name, arch, registers, stack, spills, shared, bad ? "  <-- too much" : ""
      n++; failed = failed || bad
    }
    END { exit failed || n == 0 }' "$work/log" || failed=1
done
if [ "${failed:-0}" -ne 0 ]; then
  echo "over the limits: $limit registers, no stack, no spills"
  exit 1
fi
