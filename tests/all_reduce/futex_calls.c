// To be preloaded: counts the futex calls on words that other processes may share, which among the libraries under
// test only waiting kernels make.
#include <dlfcn.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <sys/syscall.h>

static unsigned long calls;

unsigned long shared_futex_calls(void) { return __atomic_load_n(&calls, __ATOMIC_RELAXED); }

long syscall(long number, ...) {
  long (*next)(long, ...);
  *(void**)&next = dlsym(RTLD_NEXT, "syscall");
  va_list list;
  va_start(list, number);
  long given[6];
  for (int i = 0; i < 6; i++) given[i] = va_arg(list, long);
  va_end(list);
  if (number == SYS_futex && !(given[1] & FUTEX_PRIVATE_FLAG)) __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
  return next(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}
