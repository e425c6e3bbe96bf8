/* A net plug-in (version 9) over libfabric, whose provider does the work: tagged messages between endpoints that need
 * no connection, one for each process. A listener has a number, which begins the tags of all messages to it.
 *   OFI_PROVIDER   the provider (tcp) */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4, REMOTE_ERROR = 6 };
enum { LOG_WARN = 2, LOG_INFO = 3, SUBSYSTEM_INIT = 1, SUBSYSTEM_NET = 16, POINTER_HOST = 1 };
enum { ADDRESS_BYTES = 96, SEQUENCE_BITS = 24, UNDER_WAY = 64 };

typedef void (*logger_t)(int level, unsigned long flags, const char* file, int line, const char* format, ...);

typedef struct {
  char* name;
  char* pciPath;
  uint64_t guid;
  int ptrSupport, regIsGlobal, forceFlush, speed, port;
  float latency;
  int maxComms, maxRecvs, netDeviceType, netDeviceVersion;
  int virtualCount, virtualDevices[4];
  size_t maxP2pBytes, maxCollBytes;
} properties_t;

/* What the provider is told of a message: the first member is its own. */
struct request {
  struct fi_context2 context;
  struct request** held; /* where its connection has it; NULL once that is closed */
  int done;
  int error;
  size_t length;
};

/* A listener, or an end of a connection. */
struct comm {
  uint64_t id;
  fi_addr_t peer;
  uint32_t sequence;
  struct request* hello;
  struct request* under_way[UNDER_WAY];
};

struct handle {
  uint64_t id;
  uint32_t length;
  char address[ADDRESS_BYTES];
  struct comm* connecting; /* in the copy that connect is called with */
};
_Static_assert(sizeof(struct handle) <= 128, "a handle has 128 bytes");

static logger_t log_line;
static struct fi_info* info;
static struct fid_fabric* fabric;
static struct fid_domain* domain;
static struct fid_av* addresses;
static struct fid_cq* completions;
static struct fid_ep* endpoint;
static uint64_t next_id;
static char hello_byte = 1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define WARN(...) log_line(LOG_WARN, ~0ul, __FILE__, __LINE__, __VA_ARGS__)

static int failed(const char* what, long code) {
  WARN("OFI %s: %s", what, fi_strerror((int)-code));
  return SYSTEM_ERROR;
}

/* This host's address for others, as text; loopback where there is none. */
static void own_address(char text[INET_ADDRSTRLEN]) {
  struct ifaddrs* all;
  struct ifaddrs* at;
  strcpy(text, "127.0.0.1");
  if (getifaddrs(&all) != 0) return;
  for (at = all; at != NULL; at = at->ifa_next) {
    if (at->ifa_addr != NULL && at->ifa_addr->sa_family == AF_INET && (at->ifa_flags & IFF_LOOPBACK) == 0) {
      inet_ntop(AF_INET, &((struct sockaddr_in*)at->ifa_addr)->sin_addr, text, INET_ADDRSTRLEN);
      break;
    }
  }
  freeifaddrs(all);
}

static int find_provider(void) {
  struct fi_info* hints = fi_allocinfo();
  char address[INET_ADDRSTRLEN];
  int code;
  hints->caps = FI_TAGGED;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ENDPOINT | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->domain_attr->threading = FI_THREAD_SAFE;
  hints->fabric_attr->prov_name = strdup(getenv("OFI_PROVIDER") != NULL ? getenv("OFI_PROVIDER") : "tcp");
  own_address(address);
  code = fi_getinfo(FI_VERSION(1, 14), address, NULL, FI_SOURCE, hints, &info);
  fi_freeinfo(hints);
  return code;
}

static int plugin_init(logger_t logger) {
  struct fi_av_attr av = {.type = FI_AV_UNSPEC};
  struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_TAGGED};
  long code;
  log_line = logger;
  if ((code = find_provider()) != 0) {
    log_line(LOG_INFO, SUBSYSTEM_INIT | SUBSYSTEM_NET, __func__, __LINE__, "OFI: %s", fi_strerror((int)-code));
    info = NULL;
    return SUCCESS; /* without devices */
  }
  if ((code = fi_fabric(info->fabric_attr, &fabric, NULL)) != 0) return failed("fi_fabric", code);
  if ((code = fi_domain(fabric, info, &domain, NULL)) != 0) return failed("fi_domain", code);
  if ((code = fi_av_open(domain, &av, &addresses, NULL)) != 0) return failed("fi_av_open", code);
  if ((code = fi_cq_open(domain, &cq, &completions, NULL)) != 0) return failed("fi_cq_open", code);
  if ((code = fi_endpoint(domain, info, &endpoint, NULL)) != 0) return failed("fi_endpoint", code);
  if ((code = fi_ep_bind(endpoint, &addresses->fid, 0)) != 0) return failed("fi_ep_bind", code);
  if ((code = fi_ep_bind(endpoint, &completions->fid, FI_TRANSMIT | FI_RECV)) != 0) return failed("fi_ep_bind", code);
  if ((code = fi_enable(endpoint)) != 0) return failed("fi_enable", code);
  if (getrandom(&next_id, sizeof next_id, 0) != sizeof next_id) return SYSTEM_ERROR;
  next_id &= 0xffffffff;
  log_line(LOG_INFO, SUBSYSTEM_INIT | SUBSYSTEM_NET, __func__, __LINE__, "OFI provider %s, domain %s",
           info->fabric_attr->prov_name, info->domain_attr->name);
  return SUCCESS;
}

static int plugin_devices(int* devices) {
  *devices = info == NULL ? 0 : 1;
  return SUCCESS;
}

static int plugin_properties(int device, properties_t* properties) {
  const size_t most = (size_t)1 << 40;
  memset(properties, 0, sizeof *properties);
  properties->name = info->domain_attr->name;
  properties->guid = (uint64_t)device;
  properties->ptrSupport = POINTER_HOST;
  properties->speed = 10000;
  properties->port = 1;
  properties->maxComms = 1 << 16;
  properties->maxRecvs = 1;
  properties->virtualCount = 1;
  properties->maxP2pBytes = info->ep_attr->max_msg_size < most ? info->ep_attr->max_msg_size : most;
  properties->maxCollBytes = properties->maxP2pBytes;
  return SUCCESS;
}

/* --- requests ------------------------------------------------------------------------------------------------ */

/* The provider has done with a request. */
static void finished(struct request* request, int error, size_t length) {
  request->done = 1;
  request->error = error;
  request->length = length;
  if (request->held == NULL) free(request);
}

/* Lets the provider work, and notes what is done. */
static int progress(void) {
  struct fi_cq_tagged_entry entries[16];
  long count = fi_cq_read(completions, entries, 16);
  if (count == -FI_EAVAIL) {
    struct fi_cq_err_entry error = {0};
    if (fi_cq_readerr(completions, &error, 0) < 0) return INTERNAL_ERROR;
    struct request* request = error.op_context;
    if (request == NULL) return SUCCESS;
    finished(request, error.err, request->length);
    return SUCCESS;
  }
  if (count < 0) return count == -FI_EAGAIN ? SUCCESS : failed("fi_cq_read", count);
  for (long at = 0; at < count; at++) {
    struct request* request = entries[at].op_context;
    finished(request, 0, (entries[at].flags & FI_RECV) != 0 ? entries[at].len : request->length);
  }
  return SUCCESS;
}

/* Begins a message; *held stays NULL where the provider can take none now. */
static int begin(struct comm* comm, int sends, void* data, size_t length, uint64_t sequence, void* region,
                 struct request** held) {
  struct request* request = calloc(1, sizeof *request);
  void* described = region == NULL ? NULL : fi_mr_desc(region);
  uint64_t tag = comm->id << SEQUENCE_BITS | (sequence & ((1u << SEQUENCE_BITS) - 1));
  long code;
  request->held = held;
  request->length = length;
  *held = request;
  code = sends ? fi_tsend(endpoint, data, length, described, comm->peer, tag, request)
               : fi_trecv(endpoint, data, length, described, FI_ADDR_UNSPEC, tag, 0, request);
  if (code == 0) return SUCCESS;
  *held = NULL;
  free(request);
  if (code == -FI_EAGAIN) return progress();
  failed(sends ? "fi_tsend" : "fi_trecv", code);
  return REMOTE_ERROR;
}

/* 1 when a request is done, and freed; 0 for later; less for an error. */
static int is_done(struct request* request, int* length) {
  int error;
  if (progress() != SUCCESS) return -1;
  if (!request->done) return 0;
  if (length != NULL) *length = (int)request->length;
  error = request->error;
  *request->held = NULL;
  free(request);
  return error == 0 ? 1 : (failed("a message", -error), -1);
}

/* --- connections --------------------------------------------------------------------------------------------- */

static int plugin_listen(int device, void* to, void** comm) {
  struct handle handle = {0};
  size_t length = sizeof handle.address;
  struct comm* made = calloc(1, sizeof *made);
  long code = fi_getname(&endpoint->fid, handle.address, &length);
  int result;
  (void)device;
  if (code != 0) return failed("fi_getname", code);
  pthread_mutex_lock(&lock);
  /* Two processes may have the same number: the tags are those of this process's endpoint alone. */
  made->id = handle.id = next_id++;
  handle.length = (uint32_t)length;
  result = begin(made, 0, &hello_byte, 1, 0, NULL, &made->hello);
  pthread_mutex_unlock(&lock);
  memcpy(to, &handle, sizeof handle);
  *comm = made;
  return result;
}

static int plugin_connect(int device, void* with, void** comm, void** device_handle) {
  struct handle* handle = with;
  struct comm* made = handle->connecting;
  int code = SUCCESS;
  (void)device;
  *device_handle = NULL;
  *comm = NULL;
  if (handle->length == 0 || handle->length > ADDRESS_BYTES) return INVALID_ARGUMENT;
  pthread_mutex_lock(&lock);
  if (made == NULL) {
    made = handle->connecting = calloc(1, sizeof *made);
    made->id = handle->id;
    if (fi_av_insert(addresses, handle->address, 1, &made->peer, 0, NULL) != 1) code = SYSTEM_ERROR;
  }
  if (code == SUCCESS && made->hello == NULL) code = begin(made, 1, &hello_byte, 1, 0, NULL, &made->hello);
  if (code == SUCCESS && made->hello != NULL) {
    int done = is_done(made->hello, NULL);
    if (done < 0) code = REMOTE_ERROR;
    if (done > 0) *comm = made;
  }
  pthread_mutex_unlock(&lock);
  return code;
}

static int plugin_accept(void* listens, void** comm, void** device_handle) {
  struct comm* listener = listens;
  int code = SUCCESS;
  *device_handle = NULL;
  *comm = NULL;
  pthread_mutex_lock(&lock);
  if (listener->hello == NULL) {
    code = begin(listener, 0, &hello_byte, 1, 0, NULL, &listener->hello);
  } else {
    int done = is_done(listener->hello, NULL);
    if (done < 0) code = REMOTE_ERROR;
    if (done > 0) {
      struct comm* made = calloc(1, sizeof *made);
      made->id = listener->id;
      *comm = made;
    }
  }
  pthread_mutex_unlock(&lock);
  return code;
}

static int plugin_reg_mr(void* comm, void* data, size_t length, int type, void** region) {
  long code;
  (void)comm, (void)type;
  *region = NULL;
  if ((info->domain_attr->mr_mode & FI_MR_LOCAL) == 0) return SUCCESS;
  code = fi_mr_reg(domain, data, length, FI_SEND | FI_RECV, 0, 0, 0, (struct fid_mr**)region, NULL);
  return code == 0 ? SUCCESS : failed("fi_mr_reg", code);
}

static int plugin_dereg_mr(void* comm, void* region) {
  (void)comm;
  return region == NULL || fi_close(&((struct fid_mr*)region)->fid) == 0 ? SUCCESS : SYSTEM_ERROR;
}

/* Begins a message of a connection, whose number is the next one. */
static int begin_next(struct comm* comm, int sends, void* data, size_t length, void* region, void** to) {
  struct request** held = &comm->under_way[(comm->sequence + 1) % UNDER_WAY];
  int code = SUCCESS;
  pthread_mutex_lock(&lock);
  *to = NULL;
  if (*held == NULL) {
    code = begin(comm, sends, data, length, comm->sequence + 1, region, held);
    if (*held != NULL) comm->sequence++;
    *to = *held;
  }
  pthread_mutex_unlock(&lock);
  return code;
}

static int plugin_isend(void* comm, void* data, size_t length, int tag, void* region, void** request) {
  (void)tag;
  return begin_next(comm, 1, data, length, region, request);
}

static int plugin_irecv(void* comm, int n, void** data, size_t* lengths, int* tags, void** regions, void** request) {
  (void)tags;
  return n == 1 ? begin_next(comm, 0, data[0], lengths[0], regions[0], request) : INVALID_ARGUMENT;
}

static int plugin_iflush(void* comm, int n, void** data, int* lengths, void** regions, void** request) {
  (void)comm, (void)n, (void)data, (void)lengths, (void)regions;
  *request = NULL;
  return SUCCESS;
}

static int plugin_test(void* request, int* done, int* length) {
  int result;
  pthread_mutex_lock(&lock);
  result = is_done(request, length);
  pthread_mutex_unlock(&lock);
  *done = result > 0;
  return result < 0 ? REMOTE_ERROR : SUCCESS;
}

static void close_request(struct request* request) {
  if (request == NULL) return;
  if (request->done) {
    free(request);
  } else {
    request->held = NULL;
    fi_cancel(&endpoint->fid, request);
  }
}

static int close_comm(void* closed) {
  struct comm* comm = closed;
  pthread_mutex_lock(&lock);
  close_request(comm->hello);
  for (int slot = 0; slot < UNDER_WAY; slot++) close_request(comm->under_way[slot]);
  progress();
  free(comm);
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

__attribute__((visibility("default"))) const struct {
  const char* name;
  int (*init)(logger_t);
  int (*devices)(int*);
  int (*getProperties)(int, properties_t*);
  int (*listen)(int, void*, void**);
  int (*connect)(int, void*, void**, void**);
  int (*accept)(void*, void**, void**);
  int (*regMr)(void*, void*, size_t, int, void**);
  int (*regMrDmaBuf)(void*, void*, size_t, int, uint64_t, int, void**);
  int (*deregMr)(void*, void*);
  int (*isend)(void*, void*, size_t, int, void*, void**);
  int (*irecv)(void*, int, void**, size_t*, int*, void**, void**);
  int (*iflush)(void*, int, void**, int*, void**, void**);
  int (*test)(void*, int*, int*);
  int (*closeSend)(void*);
  int (*closeRecv)(void*);
  int (*closeListen)(void*);
  void* rest[3];
} ncclNetPlugin_v9 = {
    .name = "OFI",
    .init = plugin_init,
    .devices = plugin_devices,
    .getProperties = plugin_properties,
    .listen = plugin_listen,
    .connect = plugin_connect,
    .accept = plugin_accept,
    .regMr = plugin_reg_mr,
    .deregMr = plugin_dereg_mr,
    .isend = plugin_isend,
    .irecv = plugin_irecv,
    .iflush = plugin_iflush,
    .test = plugin_test,
    .closeSend = close_comm,
    .closeRecv = close_comm,
    .closeListen = close_comm,
};
