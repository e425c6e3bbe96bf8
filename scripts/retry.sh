#!/bin/sh
# Runs a command, up to three times: registries have bad moments. Its code is the last one's.
#   scripts/retry.sh COMMAND [ARGUMENT...]
try=1
until "$@"; do
  code=$?
  echo "attempt $try failed: $*" >&2
  [ "$try" -lt 3 ] || exit "$code"
  sleep $((try * 5))
  try=$((try + 1))
done
