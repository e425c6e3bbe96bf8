#!/bin/sh
# ThreadSanitizer over the host image: ranks as threads, 1 and 4 threads a block, 2 and 3 ranks. Then the
# negative controls: with a relaxed release, and without the block's barrier, it must find races.
# Usage: run.sh [FOLDER FOR BUILDS]. Exit status 0: as it should be; 1: not; 77: no ThreadSanitizer here.
set -u
here=$(cd "$(dirname "$0")" && pwd)
kernels=$here/../../kernels
work=${1:-$(mktemp -d)}
cxx=${CXX:-g++}
status=0

mkdir -p "$work" || exit 1
# Randomised addresses can lie where ThreadSanitizer keeps its shadow.
fixed=
setarch -R true 2>/dev/null && fixed="setarch -R"

printf 'int main() { return 0; }\n' > "$work/probe.cc"
if ! "$cxx" -fsanitize=thread -o "$work/probe" "$work/probe.cc" 2>"$work/probe.log" || ! $fixed "$work/probe" 2>>"$work/probe.log"; then
  echo "skipped: $cxx has no working ThreadSanitizer: $(tail -n 1 "$work/probe.log")"
  exit 77
fi

# build NAME DEFINES...
build() {
  name=$1
  shift
  "$cxx" -std=c++17 -O1 -g -Wno-psabi -ffp-contract=off -fno-exceptions -fno-rtti -fsanitize=thread \
    -I"$kernels" -I"$here" -DOXCCL_IMAGE=oxccl_image_baseline "$@" \
    -x c++ "$work/only_f32.cu" "$kernels/host_image.cc" "$here/driver.cc" -o "$work/$name" -lpthread || exit 1
}

# One type is enough: they differ in arithmetic only, and all twelve take minutes to instrument.
cat > "$work/only_f32.cu" <<'CODE'
#define OXCCL_TYPES(X) X(f32, F32)
#include "entry.cu"
CODE

# races NAME RANKS THREADS: runs, leaves the number of warnings in $warnings and the exit status in $rc
races() {
  TSAN_OPTIONS=exitcode=66 timeout 120 $fixed "$work/$1" "$2" "$3" 1 7 1000 9001 >"$work/$1.log" 2>&1
  rc=$?
  warnings=$(grep -c 'WARNING: ThreadSanitizer' "$work/$1.log")
}

build clean
for ranks in 2 3; do
  for threads in 1 4; do
    races clean $ranks $threads
    echo "clean: ranks $ranks, threads $threads: status $rc, warnings $warnings"
    if [ $rc -ne 0 ] || [ "$warnings" -ne 0 ]; then
      head -n 60 "$work/clean.log"
      status=1
    fi
  done
done

# control NAME THREADS DEFINE
control() {
  build "$1" "-D$3"
  races "$1" 2 "$2"
  echo "control $1: warnings $warnings"
  if [ "$warnings" -eq 0 ]; then
    echo "$1: ThreadSanitizer found nothing, though there is a race"
    status=1
  fi
}
control relaxed_release 1 OXCCL_BREAK_RELEASE
control no_barrier 4 OXCCL_BREAK_BARRIER
exit $status
