#!/usr/bin/env bash
# The GPU check. Makes a bundle of programs and libraries that runs on a machine with one NVIDIA GPU, CUDA 12 or 13,
# glibc 2.28 or later and nothing of ours, and runs it here where there is a GPU.
#
#   tests/gpu/run.sh [FILE]         release build; nvcc is found as build.rs finds it, OXCCL_GENCODE says for which
#                                   GPUs. FILE is the bundle, default target/gpu-check.tar.gz, under 60 MB. On the
#                                   other machine: tar xzf gpu-check.tar.gz && gpu-check/check.sh
#   tests/gpu/run.sh --all [FILE]   the same for all architectures and PTX, by CUDA 12's run-time compiler, which it
#                                   installs below target/tools if need be: for drivers of CUDA 12, too
#   tests/gpu/run.sh --soft         the same checks on the software device, with the debug build; under a minute
#
# The check also measures the constants of the timing model (docs/decisions/timing-model.md), prints what calls take
# beside what they predict, and keeps both: in gpu-check/results, or in target/gpu-check-results where it runs here.
set -euo pipefail
cd "$(dirname "$0")/../.."
limit=$((60 * 1000 * 1000))

if [ "${1:-}" = --soft ]; then
  target=${OXCCL_PROFILE_DIR:-target/debug}
  [ -x "$target/examples/gpu_check" ] && [ -x "$target/examples/perf" ] || cargo build --quiet --locked --lib --examples
  exec tests/gpu/check.sh --soft --bin "$PWD/$target/examples" --lib "$PWD/$target/softcuda:$PWD/$target"
fi
if [ "${1:-}" = --all ]; then
  shift
  unset OXCCL_GENCODE
  NVRTC=${NVRTC:-$(scripts/nvrtc-12.sh target/tools/nvrtc)}
  export NVRTC
fi

scripts/zigbuild.sh --lib --example gpu_check --example perf
bundle=${1:-target/gpu-check.tar.gz}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/gpu-check"
cp tests/gpu/check.sh "$folder/gpu-check/"
for file in examples/gpu_check examples/perf libnccl.so.2; do
  # Without what only a debugger reads.
  strip --strip-debug -o "$folder/gpu-check/$(basename "$file")" "target/x86_64-unknown-linux-gnu/release/$file"
  scripts/check-glibc.sh 2.28 "$folder/gpu-check/$(basename "$file")"
done
tar -C "$folder" -czf "$bundle" gpu-check
ls -l "$folder/gpu-check"
size=$(stat -c %s "$bundle")
echo "$bundle: $size bytes"
if [ "$size" -gt "$limit" ]; then
  echo "that is more than $limit" >&2
  exit 1
fi
if [ -e /dev/nvidiactl ]; then
  "$folder/gpu-check/check.sh" --results "$PWD/target/gpu-check-results"
  exit
fi
echo "no GPU here: take the bundle to one"
