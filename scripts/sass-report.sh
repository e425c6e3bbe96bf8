#!/bin/sh
# Reads the machine code of the kernels and prints, for each, how it loads and stores global memory: 16-byte loads,
# the most of them in one row with nothing between that waits (they are in flight together), narrower loads, 16-byte
# stores. Narrower loads are for what is not aligned, ends of buffers, counters and schedules. Fails where a kernel has
# fewer than 4 loads of 16 bytes in flight.
# Usage: sass-report.sh [ARCHITECTURE...], such as 80 90; default 90. nvcc is found as build.rs finds it, nvdisasm
# beside it or by PATH. Exit status 77: one of them is missing.
set -eu
. "$(dirname "$0")/lib.sh"
here=$(dirname "$scripts")
find_nvcc
nvdisasm=$(dirname "$nvcc")/nvdisasm
[ -x "$nvdisasm" ] || nvdisasm=$(command -v nvdisasm) || {
  echo "skipped: no nvdisasm (scripts/install-nvcc.sh installs one)"
  exit 77
}

work_folder
[ $# -gt 0 ] || set -- 90
printf '%-22s %-7s %9s %9s %9s %9s\n' kernel arch 'loads 16' 'in flight' narrower 'stores 16'
for arch in "$@"; do
  "$nvcc" -std=c++17 -fmad=false -cubin -arch="sm_$arch" -o "$work/kernels.cubin" "$here/kernels/entry.cu"
  "$nvdisasm" -c "$work/kernels.cubin" >"$work/sass"
  awk -v arch="$arch" '
    function line() {
      if (name == "") return
      bad = most < 4
      printf "%-22s %-7s %9d %9d %9d %9d%s\n", name, "sm_" arch, wide, most, narrow, stores, bad ? "  <-- too few" : ""
      n++; failed = failed || bad
    }
    /^[ \t]*\.section[ \t]+\.text\.oxccl_/ {
      line()
      name = $2; sub(/.*\.text\./, "", name); sub(/,.*/, "", name)
      wide = most = row = narrow = stores = 0
    }
    /^\.text\.oxccl_|^[/][/]/ { next }
    /LDG.*\.128/ { wide++; row++; if (row > most) most = row; next }
    /LDG/ { narrow++ }
    /STG.*\.128/ { stores++ }
    # A branch, a barrier, a store, or a label ends the row.
    /BRA|BAR|STG|WARPSYNC|BSYNC|^\.L/ { row = 0 }
    END { line(); exit failed || n == 0 }' "$work/sass" || failed=1
done
if [ "${failed:-0}" -ne 0 ]; then
  echo "a kernel keeps too few loads of 16 bytes in flight"
  exit 1
fi
