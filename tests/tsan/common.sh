# Of the sanitizers' scripts, which set $here and $sanitizers: builds of tests/tsan/driver.cc with the host image.
root=$(cd "$here/../.." && pwd)
kernels=$root/kernels
driver=$root/tests/tsan
work=${1:-$(mktemp -d)}
cxx=${CXX:-g++}
status=0
mkdir -p "$work" || exit 1
# Randomised addresses can lie where a sanitizer keeps its shadow.
fixed=
setarch -R true 2>/dev/null && fixed="setarch -R"

# probe: ends the script with status 77 where the sanitizers do not work
probe() {
  printf 'int main() { return 0; }\n' > "$work/probe.cc"
  if ! "$cxx" $sanitizers -o "$work/probe" "$work/probe.cc" 2>"$work/probe.log" ||
    ! $fixed "$work/probe" 2>>"$work/probe.log"; then
    echo "skipped: $cxx has no working $sanitizers: $(tail -n 1 "$work/probe.log")"
    exit 77
  fi
}

# Two types are enough: they differ in arithmetic only, and all twelve take minutes to instrument.
cat > "$work/two_types.cu" <<'CODE'
#define OXCCL_TYPES(X) X(f32, F32) X(u8, U8)
#include "entry.cu"
CODE

# build NAME DEFINES...
build() {
  name=$1
  shift
  "$cxx" -std=c++17 -O1 -g -Wno-psabi -ffp-contract=off -fno-exceptions -fno-rtti $sanitizers \
    -I"$kernels" -I"$driver" -DOXCCL_IMAGE=oxccl_image_baseline "$@" \
    -x c++ "$work/two_types.cu" "$kernels/host_image.cc" "$driver/driver.cc" -o "$work/$name" -lpthread || exit 1
}
