#!/bin/sh
# AddressSanitizer and UndefinedBehaviorSanitizer over the host image: ranks as threads, both protocols, 1 and 4
# threads a block, counts that end anywhere. Then the negative controls: memory that is not what the kernels are
# told. Usage: run.sh [FOLDER FOR BUILDS]. Exit status 0: as it should be; 1: not; 77: no sanitizers here.
set -u
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../tsan/common.sh"
sanitizers="-fsanitize=address,undefined -fno-sanitize-recover=undefined"
probe

# errors PROTOCOL RANKS THREADS BREAK COUNT...: runs, leaves the exit status in $rc
errors() {
  ASAN_OPTIONS=exitcode=66:detect_leaks=0 UBSAN_OPTIONS=exitcode=67:print_stacktrace=1 \
    timeout 120 $fixed "$work/checked" "$@" >"$work/checked.log" 2>&1
  rc=$?
}

build checked
for protocol in simple ll; do
  for ranks in 2 3; do
    for threads in 1 4; do
      errors $protocol $ranks $threads none 0 1 7 31 64 129 511 1000 9001
      echo "clean: $protocol, ranks $ranks, threads $threads: status $rc"
      if [ $rc -ne 0 ]; then
        head -n 60 "$work/checked.log"
        status=1
      fi
    done
  done
done

# control BREAK PATTERN: with this memory, the kernels must be caught at this
control() {
  for protocol in simple ll; do
    errors $protocol 2 1 "$1" 9001
    echo "control $1, $protocol: status $rc, $(grep -m 1 -o "$2" "$work/checked.log")"
    if [ $rc -eq 0 ] || ! grep -q "$2" "$work/checked.log" || ! grep -q 'kernels/\|oxccl::' "$work/checked.log"; then
      echo "$1: nothing was found, though the memory is wrong"
      head -n 20 "$work/checked.log"
      status=1
    fi
  done
}
control output 'AddressSanitizer: heap-buffer-overflow'
control slots 'AddressSanitizer: heap-buffer-overflow'
control links 'runtime error: .* misaligned address'
exit $status
