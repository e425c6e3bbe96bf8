// Picks the build of the host image that fits this CPU. Compiled for the plainest CPU of the target.
#include "image.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

extern "C" const softcudaImage oxccl_image_baseline;

#if defined(OXCCL_IMAGE_V3)
extern "C" const softcudaImage oxccl_image_v3;

// All that -march=x86-64-v3 lets the compiler use. The first test also asks the system whether it saves
// the wide registers.
static bool runsV3() {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi") ||
      !__builtin_cpu_supports("bmi2"))
    return false;
  unsigned a, b, c, d, c81;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !__get_cpuid(0x80000001, &a, &b, &c81, &d)) return false;
  const unsigned movbe = 1u << 22, f16c = 1u << 29, lzcnt = 1u << 5;
  return (c & movbe) && (c & f16c) && (c81 & lzcnt);
}
#endif

extern "C" const softcudaImage* oxccl_host_image_at(uint32_t index) {
  if (index == 0) return &oxccl_image_baseline;
#if defined(OXCCL_IMAGE_V3)
  if (index == 1 && runsV3()) return &oxccl_image_v3;
#endif
  return nullptr;
}

extern "C" const softcudaImage* oxccl_host_image(void) {
  const softcudaImage* wide = oxccl_host_image_at(1);
  return wide ? wide : &oxccl_image_baseline;
}
