/* What every test program uses: checks that say where they failed, and a count of open descriptors. */
#ifndef CHECK_H
#define CHECK_H

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) {                                                         \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);   \
      exit(1);                                                                  \
    }                                                                           \
  } while (0)

/* The call answers with this code. */
#define EXPECT(code, call)                                                                          \
  do {                                                                                              \
    int got_ = (int)(call);                                                                         \
    if (got_ != (int)(code)) {                                                                      \
      fprintf(stderr, "%s:%d: %s is %d, not %d\n", __FILE__, __LINE__, #call, got_, (int)(code));   \
      exit(1);                                                                                      \
    }                                                                                               \
  } while (0)

/* The call succeeds. */
#define OK(call) EXPECT(0, call)

/* Open descriptors of this process. */
static inline int open_fds(void) {
  DIR *dir = opendir("/proc/self/fd");
  int count = -1; /* the directory's own */
  CHECK(dir != NULL);
  while (1) {
    struct dirent *entry = readdir(dir);
    if (entry == NULL) break;
    if (entry->d_name[0] != '.') count++;
  }
  closedir(dir);
  return count;
}

static inline void sleep_ms(long ms) {
  struct timespec time = {ms / 1000, (ms % 1000) * 1000000};
  nanosleep(&time, NULL);
}

#endif
