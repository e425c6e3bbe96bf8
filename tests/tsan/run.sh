#!/bin/sh
# ThreadSanitizer over the host image: ranks as threads, both protocols, 1 and 4 threads a block, 2 and 3 ranks;
# results, being told to leave, and calls that do not match.
# Then the negative controls: with a relaxed release, without the block's barrier, and with lines that
# are written as plain memory, it must find races.
# Usage: run.sh [FOLDER FOR BUILDS]. Exit status 0: as it should be; 1: not; 77: no ThreadSanitizer here.
set -u
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common.sh"
sanitizers=-fsanitize=thread
probe

# races NAME PROTOCOL RANKS THREADS: runs, leaves the number of warnings in $warnings and the exit status in $rc
races() {
  TSAN_OPTIONS=exitcode=66 timeout 120 $fixed "$work/$1" "$2" "$3" "$4" none 1 7 1000 9001 >"$work/$1.log" 2>&1
  rc=$?
  warnings=$(grep -c 'WARNING: ThreadSanitizer' "$work/$1.log")
}

# clean NAME RANKS...: the image of this name must not race
clean() {
  image=$1
  shift
  for protocol in simple ll; do
    for ranks; do
      for threads in 1 4; do
        races "$image" $protocol $ranks $threads
        echo "$image: $protocol, ranks $ranks, threads $threads: status $rc, warnings $warnings"
        if [ $rc -ne 0 ] || [ "$warnings" -ne 0 ]; then
          head -n 60 "$work/$image.log"
          status=1
        fi
      done
    done
  done
}
build clean
clean clean 2 3
# What only GPUs do, as far as a host can.
build like_gpu -DOXCCL_LIKE_GPU
clean like_gpu 3

# control NAME PROTOCOL THREADS: the image of this name must race
control() {
  races "$1" "$2" 2 "$3"
  echo "control $1, $2: warnings $warnings"
  if [ "$warnings" -eq 0 ]; then
    echo "$1: ThreadSanitizer found nothing, though there is a race"
    status=1
  fi
}
build relaxed_release -DOXCCL_BREAK_RELEASE
control relaxed_release simple 1
build no_barrier -DOXCCL_BREAK_BARRIER
control no_barrier simple 4
build torn_lines -DOXCCL_BREAK_LINES
control torn_lines ll 1
exit $status
