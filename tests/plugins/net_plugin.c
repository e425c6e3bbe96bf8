/* A net plug-in over TCP for tests. VERSION (6 to 12) says which table it exports.
 *
 * It counts every call and holds the library to the interface: what is closed twice, sent from memory that is not
 * registered, or left behind is counted as misuse. Environment, read at the first call:
 *   PLUGIN_FAULT  function:first[+more]:what, comma-separated: the call of that number (from 1), and so many after it,
 *                 gives a code (1 to 8), or "later" (no connection, no request, not done), or
 *                 for test "big" (more bytes than there is memory), for devices "none" and "cuda" (no host memory)
 *   PLUGIN_NAME   its name
 *   PLUGIN_STATS  a file: the counts are kept in it with the process id behind its name
 * A test in the same process calls plugin_fault() and plugin_count() instead. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#if VERSION < 6 || VERSION > 12
#error "VERSION is 6 to 12"
#endif

/* --- what the interface says -------------------------------------------------------------------------------------- */

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6 };
enum { LOG_WARN = 2, LOG_INFO = 3 };
enum { SUBSYSTEM_INIT = 1, SUBSYSTEM_NET = 16 };
enum { HANDLE_BYTES = 128, POINTER_HOST = 1, POINTER_CUDA = 2 };

typedef void (*logger_t)(int level, unsigned long flags, const char* file, int line, const char* format, ...);
typedef int (*profiler_t)(void** event, int type, void* parent, int64_t plugin, void* data);
typedef struct { int trafficClass; } config_t;

typedef struct {
  char* name;
  char* pciPath;
  uint64_t guid;
  int ptrSupport;
#if VERSION >= 8
  int regIsGlobal;
#endif
#if VERSION >= 9
  int forceFlush;
#endif
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
#if VERSION >= 7
  int netDeviceType;
  int netDeviceVersion;
#endif
#if VERSION >= 9
  int virtualCount;
#if VERSION >= 12
  int virtualDevices[8];
#else
  int virtualDevices[4];
#endif
  size_t maxP2pBytes;
  size_t maxCollBytes;
#endif
#if VERSION >= 11
  int maxMultiRequestSize;
#endif
#if VERSION >= 12
  int16_t railId;
  int16_t planeId;
#endif
} properties_t;

#if VERSION >= 9
typedef size_t length_t;
#else
typedef int length_t;
#endif
#if VERSION >= 8
typedef size_t region_length_t;
#else
typedef int region_length_t;
#endif

/* --- counts and faults -------------------------------------------------------------------------------------------- */

static const char* const names[] = {"init",      "devices",  "getProperties", "listen",      "connect",  "accept",
                                    "regMr",     "deregMr",  "isend",         "irecv",       "test",     "closeSend",
                                    "closeRecv", "closeListen", "finalize",   "connected",   "accepted", "sent",
                                    "received",  "misuse",   "live"};
enum {
  INIT, DEVICES, GET_PROPERTIES, LISTEN, CONNECT, ACCEPT, REG_MR, DEREG_MR, ISEND, IRECV, TEST, CLOSE_SEND, CLOSE_RECV,
  CLOSE_LISTEN, FINALIZE, CONNECTED, ACCEPTED, SENT, RECEIVED, MISUSE, LIVE, COUNTS
};

static long own_counts[COUNTS];
static long* counts = own_counts;
static char faults[512];
static char name[64] = "Test";
static logger_t log_line;

static void count(int what, long by) { __atomic_add_fetch(&counts[what], by, __ATOMIC_RELAXED); }

/* What a count is now; -1 for a name that is none. */
long plugin_count(const char* of) {
  int at;
  for (at = 0; at < COUNTS; at++) {
    if (strcmp(names[at], of) == 0) return __atomic_load_n(&counts[at], __ATOMIC_RELAXED);
  }
  return -1;
}

/* Replaces the faults. Calls are counted from 1 again. */
void plugin_fault(const char* list) {
  snprintf(faults, sizeof faults, "%s", list);
  for (int at = 0; at < COUNTS; at++) {
    if (at != LIVE && at != MISUSE) counts[at] = 0;
  }
}

__attribute__((constructor)) static void from_environment(void) {
  const char* stats = getenv("PLUGIN_STATS");
  if (getenv("PLUGIN_FAULT") != NULL) snprintf(faults, sizeof faults, "%s", getenv("PLUGIN_FAULT"));
  if (getenv("PLUGIN_NAME") != NULL) snprintf(name, sizeof name, "%s", getenv("PLUGIN_NAME"));
  if (stats != NULL) {
    char path[512];
    int file;
    void* map;
    snprintf(path, sizeof path, "%s.%d", stats, (int)getpid());
    file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof own_counts) != 0) return;
    map = mmap(NULL, sizeof own_counts, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map != MAP_FAILED) counts = map;
    close(file);
  }
}

/* What is to go wrong in a call that begins; "" for nothing. */
static void fault(int what, char result[16]) {
  long call = __atomic_add_fetch(&counts[what], 1, __ATOMIC_RELAXED);
  const char* at = faults;
  size_t length = strlen(names[what]);
  result[0] = 0;
  while (*at != 0) {
    if (strncmp(at, names[what], length) == 0 && at[length] == ':') {
      char* end;
      long first = strtol(at + length + 1, &end, 10);
      long more = *end == '+' ? strtol(end + 1, &end, 10) : 0;
      if (*end == ':' && call >= first && call <= first + more) {
        snprintf(result, 16, "%.*s", (int)strcspn(end + 1, ","), end + 1);
        return;
      }
    }
    at += strcspn(at, ",");
    if (*at == ',') at++;
  }
}

#define WARN(...) log_line(LOG_WARN, ~0ul, __FILE__, __LINE__, __VA_ARGS__)

static int misuse(const char* what) {
  count(MISUSE, 1);
  WARN("misuse: %s", what);
  return INTERNAL_ERROR;
}

/* At the beginning of a function: counts the call, and gives the code that was asked for. */
#define BEGIN(what)                                              \
  char now[16];                                                  \
  fault(what, now);                                              \
  if (now[0] >= '1' && now[0] <= '9') {                          \
    WARN("%s fails as it was told: %s", names[what], now);       \
    return atoi(now);                                            \
  }

#define LATER (strcmp(now, "later") == 0)

/* --- connections -------------------------------------------------------------------------------------------------- */

enum { HELLO = 0x6e63636c, REQUESTS = VERSION == 6 ? 8 : 32, LISTENS = 0x11, SENDS = 0x22, RECEIVES = 0x33 };

struct comm;

struct region {
  struct comm* of;
  char* data;
  size_t length;
  struct region* next;
};

struct request {
  struct comm* of;
  char* data;
  uint64_t length; /* of the message */
  uint64_t room;
  uint64_t moved;
  uint64_t header_moved;
  int used;
};

struct comm {
  int kind;
  int fd;
  struct region* regions;
  struct request requests[REQUESTS];
  unsigned first; /* not moved whole yet */
  unsigned next;  /* to be used next */
  unsigned hello_moved;
  uint32_t hello;
};

struct handle {
  uint32_t magic;
  struct sockaddr_in address;
  struct comm* connecting; /* in the copy that connect is called with */
};

static struct comm* make_comm(int kind, int fd) {
  struct comm* comm = calloc(1, sizeof *comm);
  comm->kind = kind;
  comm->fd = fd;
  count(LIVE, 1);
  return comm;
}

static int close_comm(struct comm* comm, int kind) {
  if (comm == NULL || comm->kind != kind) return misuse("what is closed is not open");
  if (comm->regions != NULL) misuse("memory is registered when its connection is closed");
  close(comm->fd);
  comm->kind = 0;
  free(comm);
  count(LIVE, -1);
  return SUCCESS;
}

/* An address that other hosts reach this one by, else loopback. */
static struct in_addr own_address(void) {
  struct in_addr found = {htonl(INADDR_LOOPBACK)};
  struct ifaddrs* all;
  struct ifaddrs* at;
  if (getifaddrs(&all) != 0) return found;
  for (at = all; at != NULL; at = at->ifa_next) {
    if (at->ifa_addr != NULL && at->ifa_addr->sa_family == AF_INET && (at->ifa_flags & IFF_LOOPBACK) == 0 &&
        (at->ifa_flags & IFF_UP) != 0) {
      found = ((struct sockaddr_in*)at->ifa_addr)->sin_addr;
      break;
    }
  }
  freeifaddrs(all);
  return found;
}

/* The connection is over. Who has closed it between messages has ended its communicator: nobody is warned of that. */
static int is_over(struct comm* comm, int between) {
  log_line(between && comm->kind == RECEIVES ? LOG_INFO : LOG_WARN, SUBSYSTEM_NET, __FILE__, __LINE__,
           "the connection is over: %s", errno == 0 ? "closed by the peer" : strerror(errno));
  return -1;
}

/* Moves bytes; 1 when all are moved, 0 for later, less for an error. */
static int move(struct comm* comm, int sends, void* data, uint64_t length, uint64_t* moved) {
  while (*moved < length) {
    char* at = (char*)data + *moved;
    ssize_t now = sends ? send(comm->fd, at, length - *moved, MSG_NOSIGNAL | MSG_DONTWAIT)
                        : recv(comm->fd, at, length - *moved, MSG_DONTWAIT);
    if (now > 0) {
      *moved += (uint64_t)now;
    } else if (now < 0 && errno == EINTR) {
      continue;
    } else if (now < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOTCONN)) {
      return 0;
    } else {
      if (now == 0) errno = 0;
      return is_over(comm, *moved == 0);
    }
  }
  return 1;
}

/* Moves what can be moved. */
static int progress(struct comm* comm) {
  while (comm->first != comm->next) {
    struct request* request = &comm->requests[comm->first % REQUESTS];
    int sends = comm->kind == SENDS;
    int now = move(comm, sends, &request->length, sizeof request->length, &request->header_moved);
    if (now == 1) {
      if (request->length > request->room) {
        WARN("a message of %llu bytes for memory of %llu", (unsigned long long)request->length,
             (unsigned long long)request->room);
        return INVALID_USAGE;
      }
      now = move(comm, sends, request->data, request->length, &request->moved);
    }
    if (now < 0) return REMOTE_ERROR;
    if (now == 0) return SUCCESS;
    count(sends ? SENT : RECEIVED, (long)request->length);
    comm->first++;
  }
  return SUCCESS;
}

/* A request for a message; NULL where as many are under way as may be. */
static struct request* begin_request(struct comm* comm, void* data, uint64_t room, uint64_t length) {
  struct request* request = &comm->requests[comm->next % REQUESTS];
  if (request->used) return NULL;
  *request = (struct request){comm, data, length, room, 0, 0, 1};
  comm->next++;
  return request;
}

static int is_registered(struct comm* comm, const char* data, size_t length, struct region* region) {
  struct region* at;
  for (at = comm->regions; at != NULL; at = at->next) {
    if (at == region) return data >= at->data && data + length <= at->data + at->length;
  }
  return 0;
}

/* --- functions of the table --------------------------------------------------------------------------------------- */

static int plugin_devices(int* devices) {
  BEGIN(DEVICES)
  *devices = strcmp(now, "none") == 0 ? 0 : 2;
  return SUCCESS;
}

static int plugin_properties(int device, properties_t* properties) {
  BEGIN(GET_PROPERTIES)
  memset(properties, 0, sizeof *properties);
  properties->name = device == 0 ? "test0" : "test1";
  properties->guid = 40 + (unsigned)device;
  properties->ptrSupport = strcmp(now, "cuda") == 0 ? POINTER_CUDA : POINTER_HOST;
  properties->speed = 25000;
  properties->port = 1 + device;
  properties->latency = 2.5f;
  properties->maxComms = 1000;
  properties->maxRecvs = 1;
#if VERSION >= 9
  properties->virtualCount = 1;
  properties->virtualDevices[0] = device;
  properties->maxP2pBytes = (size_t)1 << 31;
  properties->maxCollBytes = (size_t)1 << 31;
#endif
  return SUCCESS;
}

static void fill_table(void);

static int begin_init(logger_t logger) {
  char* text = malloc(5001);
  log_line = logger;
  memset(text, 'x', 5000);
  text[5000] = 0;
  log_line(LOG_INFO, SUBSYSTEM_INIT | SUBSYSTEM_NET, __func__, __LINE__, "a long line: %s %d", text, 7);
  free(text);
  fill_table();
  return SUCCESS;
}

#if VERSION >= 10
static int try_profiler(profiler_t profiler) {
  void* event = &event;
  if (profiler(&event, 0, NULL, 1, NULL) != SUCCESS || event != NULL) return misuse("a profiler that begins an event");
  if (profiler(NULL, 0, NULL, 1, NULL) != SUCCESS) return misuse("a profiler without a place for an event");
  return SUCCESS;
}
#endif

#if VERSION >= 11
struct context { uint64_t comm; config_t* config; int live; };

static int plugin_init(void** context, uint64_t comm, config_t* config, logger_t logger, profiler_t profiler) {
  struct context* made;
  begin_init(logger);
  BEGIN(INIT)
  made = calloc(1, sizeof *made);
  *made = (struct context){comm, config, 1};
  *context = made;
  count(LIVE, 1);
  return try_profiler(profiler);
}

static int plugin_finalize(void* context) {
  struct context* ended = context;
  BEGIN(FINALIZE)
  if (ended == NULL || !ended->live) return misuse("finalize of what was not initialised");
  if (ended->config->trafficClass < -1) misuse("a configuration that has gone");
  ended->live = 0;
  free(ended);
  count(LIVE, -1);
  return SUCCESS;
}
#define CONTEXT void* context,
#define CHECK_CONTEXT \
  if (context == NULL || !((struct context*)context)->live) return misuse("a context that is none");
#else
#if VERSION == 10
static int plugin_init(logger_t logger, profiler_t profiler) {
  begin_init(logger);
  BEGIN(INIT)
  return try_profiler(profiler);
}
#else
static int plugin_init(logger_t logger) {
  begin_init(logger);
  BEGIN(INIT)
  return SUCCESS;
}
#endif
#define CONTEXT
#define CHECK_CONTEXT
#endif

static int plugin_listen(CONTEXT int device, void* to, void** comm) {
  struct handle handle = {HELLO, {0}, NULL};
  socklen_t length = sizeof handle.address;
  int fd;
  BEGIN(LISTEN)
  CHECK_CONTEXT
  if (device < 0 || device > 1) return misuse("a device that is none");
  fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  handle.address.sin_family = AF_INET;
  handle.address.sin_addr = own_address();
  if (fd < 0 || bind(fd, (struct sockaddr*)&handle.address, sizeof handle.address) != 0 || listen(fd, 16) != 0 ||
      getsockname(fd, (struct sockaddr*)&handle.address, &length) != 0) {
    WARN("listen: %s", strerror(errno));
    return SYSTEM_ERROR;
  }
  memcpy(to, &handle, sizeof handle);
  *comm = make_comm(LISTENS, fd);
  return SUCCESS;
}

static int connect_step(struct handle* handle, void** to, int later) {
  struct comm* comm = handle->connecting;
  uint64_t moved;
  int now;
  *to = NULL;
  if (handle->magic != HELLO) {
    WARN("a handle that is none");
    return INVALID_ARGUMENT;
  }
  if (later) return SUCCESS;
  if (comm == NULL) {
    int on = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return SYSTEM_ERROR;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(fd, (struct sockaddr*)&handle->address, sizeof handle->address) != 0 && errno != EINPROGRESS) {
      WARN("connect: %s", strerror(errno));
      close(fd);
      return REMOTE_ERROR;
    }
    comm = handle->connecting = make_comm(SENDS, fd);
    comm->hello = HELLO;
  }
  moved = comm->hello_moved;
  now = move(comm, 1, &comm->hello, sizeof comm->hello, &moved);
  comm->hello_moved = (unsigned)moved;
  if (now < 0) {
    close_comm(comm, SENDS);
    handle->connecting = NULL;
    return REMOTE_ERROR;
  }
  if (now == 1) {
    *to = comm;
    handle->connecting = NULL;
    count(CONNECTED, 1);
  }
  return SUCCESS;
}

static int plugin_connect(CONTEXT int device,
#if VERSION == 10
                          config_t* config,
#endif
                          void* handle, void** comm
#if VERSION >= 7
                          ,
                          void** device_handle
#endif
) {
  BEGIN(CONNECT)
  CHECK_CONTEXT
  if (device < 0 || device > 1) return misuse("a device that is none");
#if VERSION == 10
  if (config == NULL || config->trafficClass < -1) return misuse("connect without a configuration");
#endif
#if VERSION >= 7
  *device_handle = NULL;
#endif
  return connect_step(handle, comm, LATER);
}

static int plugin_accept(void* listens, void** to
#if VERSION >= 7
                         ,
                         void** device_handle
#endif
) {
  struct comm* listener = listens;
  struct comm* half;
  uint64_t moved;
  int now_moved;
  BEGIN(ACCEPT)
  *to = NULL;
#if VERSION >= 7
  *device_handle = NULL;
#endif
  if (listener == NULL || listener->kind != LISTENS) return misuse("accept by what does not listen");
  if (LATER) return SUCCESS;
  half = (struct comm*)listener->regions; /* a listener has no memory: here is what it has accepted so far */
  if (half == NULL) {
    int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED ? SUCCESS : SYSTEM_ERROR;
    half = make_comm(RECEIVES, fd);
  }
  listener->regions = NULL;
  moved = half->hello_moved;
  now_moved = move(half, 0, &half->hello, sizeof half->hello, &moved);
  half->hello_moved = (unsigned)moved;
  if (now_moved < 0 || (now_moved == 1 && half->hello != HELLO)) {
    close_comm(half, RECEIVES); /* a stranger */
  } else if (now_moved == 1) {
    *to = half;
    count(ACCEPTED, 1);
  } else {
    listener->regions = (struct region*)half;
  }
  return SUCCESS;
}

static int plugin_reg_mr(void* of, void* data, region_length_t length, int type, void** to) {
  struct comm* comm = of;
  struct region* region;
  BEGIN(REG_MR)
  if (comm == NULL || (comm->kind != SENDS && comm->kind != RECEIVES)) return misuse("regMr without a connection");
  if (type != POINTER_HOST || data == NULL) return misuse("regMr of what is no memory of the host");
  region = calloc(1, sizeof *region);
  *region = (struct region){comm, data, (size_t)length, comm->regions};
  comm->regions = region;
  *to = region;
  count(LIVE, 1);
  return SUCCESS;
}

static int plugin_reg_dma_buf(void* of, void* data, size_t length, int type, uint64_t offset, int fd, void** to) {
  (void)of, (void)data, (void)length, (void)type, (void)offset, (void)fd, (void)to;
  return misuse("a DMA-BUF");
}

static int plugin_dereg_mr(void* of, void* ended) {
  struct comm* comm = of;
  struct region** at;
  BEGIN(DEREG_MR)
  for (at = &comm->regions; *at != NULL; at = &(*at)->next) {
    if (*at == ended) {
      struct region* region = *at;
      *at = region->next;
      free(region);
      count(LIVE, -1);
      return SUCCESS;
    }
  }
  return misuse("deregMr of what is not registered");
}

__attribute__((unused)) static int plugin_isend(void* of, void* data, length_t length, int tag, void* region,
#if VERSION >= 10
                        void* profile,
#endif
                        void** to) {
  struct comm* comm = of;
  BEGIN(ISEND)
  (void)tag;
#if VERSION >= 10
  if (profile != NULL) return misuse("an event of no profiler");
#endif
  *to = NULL;
  if (comm == NULL || comm->kind != SENDS) return misuse("isend without a connection");
  if (!is_registered(comm, data, (size_t)length, region)) return misuse("isend from memory that is not registered");
  if (LATER) return SUCCESS;
  *to = begin_request(comm, data, (uint64_t)length, (uint64_t)length);
  return *to == NULL ? misuse("isend of too many messages") : progress(comm);
}

static int plugin_irecv(void* of, int n, void** data, length_t* lengths, int* tags, void** regions,
#if VERSION >= 10
                        void** profiles,
#endif
                        void** to) {
  struct comm* comm = of;
  BEGIN(IRECV)
  (void)tags;
#if VERSION >= 10
  if (profiles == NULL || profiles[0] != NULL) return misuse("an event of no profiler");
#endif
  if (*to != NULL) return misuse("irecv that asks for more than a message");
  if (comm == NULL || comm->kind != RECEIVES || n != 1) return misuse("irecv without a connection");
  if (!is_registered(comm, data[0], (size_t)lengths[0], regions[0])) return misuse("irecv into strange memory");
  if (LATER) return SUCCESS;
  *to = begin_request(comm, data[0], (uint64_t)lengths[0], 0);
  return *to == NULL ? misuse("irecv of too many messages") : progress(comm);
}

static int plugin_iflush(void* of, int n, void** data, int* lengths, void** regions, void** to) {
  (void)of, (void)n, (void)data, (void)lengths, (void)regions, (void)to;
  return misuse("a flush of memory of the host");
}

static int plugin_test(void* tested, int* done, int* lengths) {
  struct request* request = tested;
  struct comm* comm = request->of;
  unsigned number;
  int code;
  BEGIN(TEST)
  *done = 0;
  if (!request->used) return misuse("test of what is done");
  if (LATER) return SUCCESS;
  code = progress(comm);
  if (code != SUCCESS) return code;
  for (number = comm->first; number != comm->next; number++) {
    if (&comm->requests[number % REQUESTS] == request) return SUCCESS;
  }
  *done = 1;
  request->used = 0;
  if (lengths != NULL) lengths[0] = strcmp(now, "big") == 0 ? (int)request->room + 1 : (int)request->length;
  return SUCCESS;
}

static int plugin_close_send(void* comm) {
  BEGIN(CLOSE_SEND)
  return close_comm(comm, SENDS);
}

static int plugin_close_recv(void* comm) {
  BEGIN(CLOSE_RECV)
  return close_comm(comm, RECEIVES);
}

static int plugin_close_listen(void* of) {
  struct comm* comm = of;
  BEGIN(CLOSE_LISTEN)
  if (comm->kind == LISTENS && comm->regions != NULL) {
    close_comm((struct comm*)comm->regions, RECEIVES);
    comm->regions = NULL;
  }
  return close_comm(comm, LISTENS);
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

struct table {
  const char* name;
#if VERSION >= 11
  int (*init)(void**, uint64_t, config_t*, logger_t, profiler_t);
#elif VERSION == 10
  int (*init)(logger_t, profiler_t);
#else
  int (*init)(logger_t);
#endif
  int (*devices)(int*);
  int (*getProperties)(int, properties_t*);
#if VERSION >= 11
  int (*listen)(void*, int, void*, void**);
  int (*connect)(void*, int, void*, void**, void**);
#else
  int (*listen)(int, void*, void**);
#if VERSION == 10
  int (*connect)(int, config_t*, void*, void**, void**);
#elif VERSION >= 7
  int (*connect)(int, void*, void**, void**);
#else
  int (*connect)(int, void*, void**);
#endif
#endif
#if VERSION >= 7
  int (*accept)(void*, void**, void**);
#else
  int (*accept)(void*, void**);
#endif
  int (*regMr)(void*, void*, region_length_t, int, void**);
  int (*regMrDmaBuf)(void*, void*, size_t, int, uint64_t, int, void**);
  int (*deregMr)(void*, void*);
#if VERSION >= 10
  int (*isend)(void*, void*, length_t, int, void*, void*, void**);
  int (*irecv)(void*, int, void**, length_t*, int*, void**, void**, void**);
#else
  int (*isend)(void*, void*, length_t, int, void*, void**);
  int (*irecv)(void*, int, void**, length_t*, int*, void**, void**);
#endif
  int (*iflush)(void*, int, void**, int*, void**, void**);
  int (*test)(void*, int*, int*);
  int (*closeSend)(void*);
  int (*closeRecv)(void*);
  int (*closeListen)(void*);
#if VERSION >= 7
  int (*getDeviceMr)(void*, void*, void**);
  int (*irecvConsumed)(void*, int, void*);
#endif
#if VERSION >= 9
  int (*makeVDevice)(int*, void*);
#endif
#if VERSION >= 11
  int (*finalize)(void*);
  int (*setNetAttr)(void*, void*);
#endif
};

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)

#ifndef OMIT_ISEND
#define ISEND_FUNCTION plugin_isend
#else
#define ISEND_FUNCTION NULL
#endif

static const struct table whole_table = {
    .name = name,
    .init = plugin_init,
    .devices = plugin_devices,
    .getProperties = plugin_properties,
    .listen = plugin_listen,
    .connect = plugin_connect,
    .accept = plugin_accept,
    .regMr = plugin_reg_mr,
    .regMrDmaBuf = plugin_reg_dma_buf,
    .deregMr = plugin_dereg_mr,
    .isend = ISEND_FUNCTION,
    .irecv = plugin_irecv,
    .iflush = plugin_iflush,
    .test = plugin_test,
    .closeSend = plugin_close_send,
    .closeRecv = plugin_close_recv,
    .closeListen = plugin_close_listen,
#if VERSION >= 11
    .finalize = plugin_finalize,
#endif
};

/* With FILLED_LATER it has nothing but a name and init at first, as plug-ins that choose between networks do. */
__attribute__((visibility("default"))) struct table JOIN(ncclNetPlugin_v, VERSION) = {"Unfilled", .init = plugin_init};

static void fill_table(void) { JOIN(ncclNetPlugin_v, VERSION) = whole_table; }

#ifndef FILLED_LATER
__attribute__((constructor)) static void fill_at_once(void) { fill_table(); }
#endif

#ifdef WITH_COLLNET
__attribute__((visibility("default"))) const char* const JOIN(ncclCollNetPlugin_v, VERSION)[20] = {name};
#endif
