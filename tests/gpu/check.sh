#!/bin/sh
# The GPU check, as it runs on the machine with the GPU: needs a shell, the NVIDIA driver (CUDA 12 or 13), and what lies
# beside it. With --soft it runs on the software device. Options for other places: --bin FOLDER of gpu_check and perf,
# --lib FOLDERS of libnccl.so.2, joined by ":", --results FOLDER to keep what was measured (default: results beside it;
# with --soft: none). Takes at most 9 minutes. It measures the constants of the timing model, too, and prints what they
# predict beside what calls take; no number of these fails it. Its last lines are a table; exit status 0: nothing
# failed.
set -u
here=$(cd "$(dirname "$0")" && pwd)
bin=$here lib=$here soft= kept=
while [ $# -gt 0 ]; do
  case "$1" in
    --soft) soft=1 ;;
    --bin) bin=$2; shift ;;
    --lib) lib=$2; shift ;;
    --results) kept=$2; shift ;;
    *) echo "usage: check.sh [--soft] [--bin FOLDER] [--lib FOLDERS] [--results FOLDER]" >&2; exit 2 ;;
  esac
  shift
done
export LD_LIBRARY_PATH="$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
# Ranks share the one device: each stream needs a hardware queue of its own.
export CUDA_DEVICE_MAX_CONNECTIONS=32 NCCL_MULTI_RANK_GPU_ENABLE=1
if [ -n "$soft" ]; then
  export SOFTCUDA_DEVICES=1
  device=soft protocols="Simple LL"
else
  device=gpu protocols="Simple LL LL128"
fi
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
results=$logs/results
: >"$results"
failed=0

# result NAME OUTCOME DETAIL: a line of the table
result() {
  printf '%-34s %-8s %s\n' "$1" "$2" "$3" >>"$results"
}

# step NAME SECONDS COMMAND...: runs a command under a limit; shows what it prints where it fails
step() {
  name=$1 limit=$2
  shift 2
  echo "== $name"
  begin=$(date +%s)
  timeout -k 5 "$limit" "$@" >"$logs/out" 2>&1
  rc=$?
  took="$(($(date +%s) - begin)) s"
  case $rc in
    0) result "$name" ok "$took${note:+, $note}" ;;
    124 | 137) result "$name" HANG "longer than $limit s" ;;
    *) result "$name" FAILED "exit status $rc after $took" ;;
  esac
  if [ $rc -ne 0 ]; then
    failed=1
    tail -n 40 "$logs/out"
  fi
  return $rc
}

# busbw FILE: "size time" of each row that perf printed as JSON
rows() {
  tr '{' '\n' <"$1" | awk '
    /"time_us"/ && !time { match($0, /"time_us":[0-9.]+/); time = substr($0, RSTART + 10, RLENGTH - 10); next }
    /"time_us"/ { match($0, /"time_us":[0-9.]+/); time = substr($0, RSTART + 10, RLENGTH - 10) }
    match($0, /"size":[0-9]+/) { print substr($0, RSTART + 7, RLENGTH - 7), time; time = "" }'
}

# --- 1 and 2: the kernels by themselves -------------------------------------------------------------------

note=
if step "kernels, blocks of one launch" 240 "$bin/gpu_check"; then
  grep -v '^blocks of' "$logs/out"
  tail -n 1 "$logs/out"
  result "  registers, at most" "" "$(awk '
    /^oxccl_/ { if ($2 > most) most = $2; if ($3 > stack) stack = $3 }
    END { print most + 0 ", stack " stack + 0 }' "$logs/out")"
  result "  cases" "" "$(tail -n 1 "$logs/out")"
fi
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if [ -n "$soft" ] || [ -z "$sanitizer" ]; then
  step "kernels, few cases" 60 "$bin/gpu_check" --quick
  result "  compute-sanitizer" skipped "not here"
else
  step "kernels under memcheck" 120 "$sanitizer" --tool memcheck --error-exitcode 9 "$bin/gpu_check" --quick
fi

# --- 3 and 4: ranks ------------------------------------------------------------------------------------------

# The library says which protocol it uses: it may have fallen back to another one.
export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING
for ranks in 2 4; do
  for proto in $protocols; do
    export NCCL_PROTO=$proto
    if step "$ranks ranks as threads, $proto" 60 \
      "$bin/perf" all_reduce -n $ranks -t -b 8 -e 1M -f 32 -i 10 -w 2 --timeout 20 --device $device &&
      ! grep -q "/$proto, " "$logs/out"; then
      result "  protocol" FAILED "was not $proto"
      failed=1
    fi
  done
done
unset NCCL_PROTO NCCL_DEBUG NCCL_DEBUG_SUBSYS
# Contexts of two processes take turns on a device: few operations.
step "2 processes, 20 operations" 60 "$bin/perf" all_reduce --calls 20 -w 0 -b 64K -n 2 --timeout 40 --device $device

# --- 5: beside NVIDIA's, one rank ------------------------------------------------------------------------------

theirs=
if [ -z "$soft" ] && command -v python3 >/dev/null; then
  theirs=$(timeout 60 python3 -c '
import glob, os, torch
lib = os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), "nvidia")
print((glob.glob(lib + "/nccl/lib/libnccl.so.2") + glob.glob(lib + "/*/lib/libnccl.so.2") + [""])[0])' 2>/dev/null)
fi
speed="all_reduce -n 1 -b 1M -e 64M -f 8 -i 20 --json --device $device"
if step "1 rank, this library" 60 "$bin/perf" $speed; then
  rows "$logs/out" >"$logs/ours"
  if [ -n "$theirs" ] && step "1 rank, PyTorch's NCCL" 60 "$bin/perf" $speed --nccl "$theirs"; then
    rows "$logs/out" >"$logs/theirs"
  else
    [ -n "$theirs" ] || result "1 rank, PyTorch's NCCL" skipped "no PyTorch with NCCL here"
    sed 's/ .*/ -/' "$logs/ours" >"$logs/theirs"
  fi
  paste -d' ' "$logs/ours" "$logs/theirs" | while read -r size ours _ other; do
    result "  $size bytes, us" "" "$ours (NCCL: $other)"
  done
fi

# --- 6: the timing model's constants, and what they predict -----------------------------------------------------

# show FILE: prints what a step has written, and keeps it
show() {
  cat "$1"
  [ -z "$kept" ] || cp "$1" "$kept/" || result "  ${1##*/}" "not kept" "$kept"
}

[ -n "$kept$soft" ] || kept=$here/results
[ -z "$kept" ] || mkdir -p "$kept"
largest=64M
[ -z "$soft" ] || largest=4M
if step "constants of the timing model" 120 \
  "$bin/perf" constants --device $device --timeout 40 --out "$logs/constants.txt"; then
  show "$logs/constants.txt"
  for call in all_reduce sendrecv; do
    if step "predicted and measured, $call" 60 "$bin/perf" predict $call --machine "$logs/constants.txt" --measured \
      -e $largest --device $device; then
      cp "$logs/out" "$logs/$call.txt"
      show "$logs/$call.txt"
      result "  predicted / measured" "" "$(awk '
        !/^#/ && NF { if (!n++ || $NF < least) least = $NF; if ($NF > most) most = $NF }
        END { print least " to " most " in " n " sizes" }' "$logs/$call.txt")"
    fi
  done
  [ -z "$kept" ] || result "  constants, predictions" "" "$kept"
fi

echo
device=$([ -n "$soft" ] && echo "the software device" ||
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1)
echo "== the GPU check on: $device"
cat "$results"
exit $failed
