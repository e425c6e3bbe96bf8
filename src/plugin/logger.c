/* The function that plug-ins log by: it takes a format and more arguments, and no such function can be written in Rust.
 * What it makes of them goes to functions that Rust has given. It needs the C library alone. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* Whether a line would be shown, or is to be kept. */
typedef int (*wanted_fn)(int level, unsigned long flags);
/* Takes a finished line. */
typedef void (*line_fn)(int level, unsigned long flags, const char* file, int line, const char* text);

static wanted_fn wanted;
static line_fn taken;

/* Called once, before any plug-in is initialised. */
void oxccl_plugin_logger_set(wanted_fn is_wanted, line_fn take) {
  wanted = is_wanted;
  taken = take;
}

/* ncclDebugLogger_t */
void oxccl_plugin_logger(int level, unsigned long flags, const char* file, int line, const char* format, ...) {
  char buffer[1024];
  char* text = buffer;
  char* longer = NULL;
  va_list arguments;
  va_list again;
  int length;

  if (format == NULL || !wanted(level, flags)) return;
  va_start(arguments, format);
  va_copy(again, arguments);
  length = vsnprintf(buffer, sizeof buffer, format, arguments);
  if (length < 0) {
    text = "(a line that cannot be formatted)";
  } else if ((size_t)length >= sizeof buffer && (longer = malloc((size_t)length + 1)) != NULL) {
    vsnprintf(longer, (size_t)length + 1, format, again);
    text = longer;
  }
  va_end(again);
  va_end(arguments);
  taken(level, flags, file, line, text);
  free(longer);
}
