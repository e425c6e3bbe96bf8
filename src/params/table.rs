//! The table: the variables that have an effect, and how an entry is made.

use super::table_accepted::ACCEPTED;

/// What the values of a variable look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// Any text.
    Text,
    /// A number, where only 0 or not 0 matters; TRUE, T, FALSE and F are understood too.
    Flag,
    /// A number; what lies outside is not a value, so that the default holds.
    Choice {
        /// Smallest value.
        low: i64,
        /// Largest value.
        high: i64,
    },
    /// A number; what lies outside becomes the nearest one inside.
    Int {
        /// Smallest value.
        low: i64,
        /// Largest value.
        high: i64,
    },
}

/// The value of a variable that is not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Preset {
    Number(i64),
    Text(&'static str),
}

/// Whether `ncclParam*` knows a variable, as it does ten of NCCL's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// It does not.
    Unknown,
    /// It lists it.
    Published,
    /// It answers when asked, and lists it only if NCCL_PARAM_DUMP_ALL is set.
    Private,
}

/// One variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its name.
    pub name: &'static str,
    /// What its values look like.
    pub kind: ValueKind,
    preset: Preset,
    /// What it does, in a line.
    pub doc: &'static str,
    /// It has an effect; otherwise it is NCCL's, and accepted without one.
    pub used: bool,
    /// It is read for each communicator, not once.
    pub fresh: bool,
    /// Whether `ncclParam*` knows it.
    pub api: Api,
}

impl Param {
    const fn new(name: &'static str, kind: ValueKind, preset: Preset, doc: &'static str) -> Param {
        Param { name, kind, preset, doc, used: true, fresh: false, api: Api::Unknown }
    }

    /// The default as a number; 0 for texts.
    pub const fn default_int(&self) -> i64 {
        match self.preset {
            Preset::Number(n) => n,
            Preset::Text(_) => 0,
        }
    }

    /// The default for people: a number, or words.
    pub fn default_text(&self) -> String {
        match self.preset {
            Preset::Number(n) => n.to_string(),
            Preset::Text(words) => words.to_string(),
        }
    }

    const fn fresh(self) -> Param {
        Param { fresh: true, ..self }
    }

    const fn published(self) -> Param {
        Param { api: Api::Published, ..self }
    }

    const fn private(self) -> Param {
        Param { api: Api::Private, ..self }
    }

    pub(super) const fn accepted(self) -> Param {
        Param { used: false, ..self }
    }
}

pub(super) const fn text(name: &'static str, default: &'static str, doc: &'static str) -> Param {
    Param::new(name, ValueKind::Text, Preset::Text(default), doc)
}

const fn flag(name: &'static str, default: bool, doc: &'static str) -> Param {
    Param::new(name, ValueKind::Flag, Preset::Number(default as i64), doc)
}

const fn choice(name: &'static str, default: i64, low: i64, high: i64, doc: &'static str) -> Param {
    Param::new(name, ValueKind::Choice { low, high }, Preset::Number(default), doc)
}

pub(super) const fn int(name: &'static str, default: i64, low: i64, high: i64, doc: &'static str) -> Param {
    Param::new(name, ValueKind::Int { low, high }, Preset::Number(default), doc)
}

/// A variable that overrides a field of `ncclConfig_t`: no default of its own.
const fn over(name: &'static str, low: i64, high: i64, doc: &'static str) -> Param {
    Param::new(name, ValueKind::Int { low, high }, Preset::Text("unset"), doc).fresh()
}

/// The same where only the values of the range count.
const fn over_choice(name: &'static str, high: i64, doc: &'static str) -> Param {
    Param::new(name, ValueKind::Choice { low: 0, high }, Preset::Text("unset"), doc).fresh()
}

const INT_MAX: i64 = i32::MAX as i64;

/// The variables with an effect, in the order of the documentation.
const USED: &[Param] = &[
    // Configuration and log.
    text("NCCL_CONF_FILE", "~/.nccl.conf", "configuration file, read before /etc/nccl.conf"),
    text("NCCL_DEBUG", "unset", "what the log shows: VERSION, WARN, ATTN, INFO, ABORT or TRACE").published(),
    text("NCCL_DEBUG_LEVELS", "NONE", "kinds of line that are shown besides, a comma-separated list").published(),
    text("NCCL_DEBUG_SUBSYS", "INIT,BOOTSTRAP,ENV", "subsystems of INFO and TRACE lines; ^ in front: all others")
        .published(),
    text("NCCL_DEBUG_FILE", "stdout", "log file; %h is the host's name, %p the process id").published(),
    text("NCCL_DEBUG_TIMESTAMP_FORMAT", "[%F %T] ", "timestamp for strftime; %1f to %9f: fraction of the second")
        .published(),
    text("NCCL_DEBUG_TIMESTAMP_LEVELS", "WARN,ATTN", "kinds of line that carry a timestamp").published(),
    flag("NCCL_WARN_ENABLE_DEBUG_INFO", false, "the first WARN line raises the level to INFO").private(),
    flag("NCCL_SET_THREAD_NAME", false, "helper threads get names").published(),
    text("NCCL_NO_CACHE", "unset", "variables, or ALL, that are read for each communicator instead of once").private(),
    flag("NCCL_PARAM_DUMP_ALL", false, "ncclParam* lists private variables too").private(),
    flag("NCCL_ENABLE_VERSION_CHECK", true, "wording of the refusal of device-API callers with a newer header"),
    // Rendezvous and sockets.
    text("NCCL_COMM_ID", "unset", "fixed address of the rendezvous, host:port, instead of a generated one").fresh(),
    text("NCCL_HOSTID", "automatic", "name of the host; ranks with different ones use the network, with the same one memory where they reach each other").fresh(),
    text("NCCL_SOCKET_IFNAME", "automatic", "network interfaces: prefixes, = exact names, ^ all but these").fresh(),
    text("NCCL_SOCKET_FAMILY", "any", "AF_INET or AF_INET6").fresh(),
    int("NCCL_SOCKET_NTHREADS", -2, -2, 16, "threads that move data over sockets (1; AWS 2, Google 4 by default)")
        .fresh(),
    int("NCCL_NSOCKS_PERTHREAD", -2, -2, 64, "sockets of a connection for each of these threads (1; AWS 8)").fresh(),
    int("NCCL_SOCKET_MIN_TASKSIZE", 65_536, 1024, 1 << 30, "least bytes of a message's piece for one socket").fresh(),
    int("NCCL_SOCKET_RCVBUF", -1, -1, 1 << 30, "SO_RCVBUF of sockets for data; -1: the system's choice").fresh(),
    int("NCCL_SOCKET_SNDBUF", -1, -1, 1 << 30, "SO_SNDBUF of sockets for data; -1: the system's choice").fresh(),
    text(
        "OXCCL_PORT_RANGE",
        "any",
        "first-last: the ports that listeners take, without that of NCCL_COMM_ID, which is to be another one; two for each \
         rank of a host and one for each communicator that is being made",
    )
    .fresh(),
    text(
        "OXCCL_ADVERTISE",
        "unset",
        "IP address (or ip%interface) that others are told in place of the one that this process listens at, as behind \
         NAT; the ports stay the same",
    )
    .fresh(),
    over("NCCL_SOCKET_MAGIC", 0, i64::MAX, "63-bit number by which the sockets of a job know each other"),
    int("NCCL_SOCKET_RETRY_CNT", 34, 0, 10_000, "retries of a refused or timed-out connect").fresh(),
    int(
        "NCCL_SOCKET_RETRY_SLEEP_MSEC",
        100,
        0,
        600_000,
        "milliseconds before the first retry; the k-th waits k times this",
    )
    .fresh(),
    int(
        "NCCL_UID_STAGGER_THRESHOLD",
        256,
        0,
        INT_MAX,
        "ranks of a root from which on they connect one after the other, if this or the rate is set",
    )
    .fresh(),
    int("NCCL_UID_STAGGER_RATE", 7_000, 1, INT_MAX, "connects per second then; unset: all at once").fresh(),
    text("OXCCL_BOOTSTRAP_ALGO", "tree", "how ranks meet and exchange: tree or ring; the same on all ranks").fresh(),
    int(
        "OXCCL_BOOTSTRAP_TIMEOUT",
        0,
        0,
        INT_MAX,
        "seconds until ranks that are missing at init are an error; 0 = never",
    )
    .fresh(),
    int("OXCCL_BOOTSTRAP_PROGRESS", 30, 0, INT_MAX, "seconds between log lines that name missing ranks; 0 = none")
        .fresh(),
    int(
        "OXCCL_LATE_WARN",
        30,
        0,
        INT_MAX,
        "seconds until ranks that others wait for in a collective are named; 0 = never",
    )
    .fresh(),
    int(
        "OXCCL_HEARTBEAT",
        30,
        0,
        INT_MAX,
        "seconds without an answer of its system until the host of a rank counts as gone; 0 = as long as TCP lasts",
    )
    .fresh(),
    text(
        "OXCCL_TRANSPORTS",
        "p2p,shm,socket",
        "transports that ranks may use, the preferred ones first: p2p, shm, socket, net",
    )
    .fresh(),
    text("OXCCL_SYSFS", "/sys", "where sysfs is mounted, from which distances between devices are read").fresh(),
    // The communicator's configuration.
    over_choice("NCCL_COMM_BLOCKING", 1, "overrides config.blocking"),
    over(
        "NCCL_CGA_CLUSTER_SIZE",
        0,
        8,
        "overrides config.cgaClusterSize, which has no effect: kernels use no clusters",
    ),
    over("NCCL_MIN_CTAS", 1, INT_MAX, "overrides config.minCTAs"),
    over("NCCL_MAX_CTAS", 1, INT_MAX, "overrides config.maxCTAs"),
    text("NCCL_NET", "automatic", "network by name: Socket, or a plug-in's; overrides config.netName").fresh(),
    text(
        "NCCL_NET_PLUGIN",
        "libnccl-net.so",
        "net plug-ins: a list of files, or of X for libnccl-net-X.so; STATIC_PLUGIN: the program itself; none",
    )
    .fresh(),
    over_choice("NCCL_COMM_SPLIT_SHARE_RESOURCES", 1, "overrides config.splitShare"),
    over_choice("NCCL_COMM_SHRINK_SHARE_RESOURCES", 1, "overrides config.shrinkShare"),
    over_choice("NCCL_COLLNET_ENABLE", 1, "overrides config.collnetEnable"),
    text("NCCL_CTA_POLICY", "unset", "DEFAULT, EFFICIENCY, ZERO, joined by |, or 0, 1, 2; overrides config.CTAPolicy")
        .fresh(),
    over("NCCL_NVLS_NCHANNELS", 1, INT_MAX, "overrides config.nvlsCTAs"),
    over("NCCL_NCHANNELS_PER_NET_PEER", 1, 64, "overrides config.nChannelsPerNetPeer"),
    over_choice("NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE", 1, "overrides config.nvlinkCentricSched"),
    over_choice("NCCL_GRAPH_MIXING_SUPPORT", 1, "overrides config.graphUsageMode: 1 is mode 2, 0 is mode 0"),
    over_choice(
        "NCCL_GRAPH_STREAM_ORDERING",
        1,
        "overrides config.graphStreamOrdering, which has no effect: captured kernels always lie on the captured stream",
    ),
    over("NCCL_NUM_RMA_CTX", 0, INT_MAX, "overrides config.numRmaCtx"),
    over("NCCL_P2P_MAX_PEERS", 1, INT_MAX, "overrides config.maxP2pPeers"),
    over_choice(
        "NCCL_LAUNCH_ORDER_IMPLICIT",
        1,
        "overrides config.launchOrderImplicit: launches of communicators of a device follow one another, in the program's order",
    ),
    over_choice("NCCL_RMA_EAGER_INIT", 1, "overrides config.rmaEagerInit"),
    flag("NCCL_MULTI_RANK_GPU_ENABLE", false, "several ranks may use one device").fresh(),
    // Transports and sizes.
    flag("NCCL_P2P_DISABLE", false, "devices do not read or write each other's memory").fresh(),
    text(
        "NCCL_P2P_LEVEL",
        "PXB",
        "as far as devices read and write each other's memory: LOC (never), NVL, PIX, PXB, PHB, SYS, or 0–4",
    )
    .fresh(),
    flag(
        "NCCL_P2P_DIRECT_DISABLE",
        false,
        "no plain pointers between ranks of one process: they use shared host memory",
    )
    .fresh(),
    flag(
        "NCCL_LOCAL_REGISTER",
        true,
        "registered memory is used in place of the library's own, where all ranks allow it",
    )
    .fresh(),
    flag("NCCL_SHM_DISABLE", false, "no shared host memory between ranks of one host").fresh(),
    choice(
        "NCCL_CUMEM_ENABLE",
        -2,
        -2,
        1,
        "0: memory for peers by cuMemAlloc and CUDA IPC; else by the driver's virtual memory API where it works",
    ),
    int(
        "NCCL_BUFFSIZE",
        -2,
        1024,
        1 << 30,
        "bytes of a ring link's slots, and the most of others'; -2 = 2 MiB up to 8 communicators of a process on a device, half of it for twice as many, and so on, at least 128 KiB",
    ),
    flag("NCCL_DISABLE_MEM_MANAGER", false, "no ncclCommSuspend, ncclCommResume, ncclCommMemStats").fresh(),
    int(
        "NCCL_NTHREADS",
        -2,
        i64::MIN,
        INT_MAX,
        "threads of a kernel's block on a GPU, a multiple of 32 from 64 to 512; -2 = the library decides",
    ),
    int("NCCL_MIN_NCHANNELS", -2, 1, 64, "fewest channels; -2 = the library decides"),
    int("NCCL_MAX_NCHANNELS", -2, 1, 64, "most channels; -2 = the library decides"),
    int("NCCL_NCHANNELS_PER_PEER", -2, 1, 32, "channels of messages between two ranks; -2 = the library decides"),
    int(
        "NCCL_P2P_LL_THRESHOLD",
        16_384,
        i64::MIN,
        INT_MAX,
        "bytes of the largest message between two ranks that goes by LL, where LL may be used",
    ),
    int("NCCL_MIN_NRINGS", -2, 1, 64, "old name of NCCL_MIN_NCHANNELS"),
    int("NCCL_MAX_NRINGS", -2, 1, 64, "old name of NCCL_MAX_NCHANNELS"),
    text(
        "NCCL_ALGO",
        "automatic",
        "algorithms: [function:]list, entries separated by ;, ^ in front of a list: all but these",
    )
    .fresh(),
    text("NCCL_PROTO", "automatic", "protocols LL, LL128, Simple; written as NCCL_ALGO").fresh(),
];

const LENGTH: usize = USED.len() + ACCEPTED.len();

/// Every variable; those with an effect come first.
pub static TABLE: [Param; LENGTH] = {
    let mut table = [USED[0]; LENGTH];
    let mut i = 0;
    while i < LENGTH {
        table[i] = if i < USED.len() { USED[i] } else { ACCEPTED[i - USED.len()] };
        i += 1;
    }
    table
};

/// A variable of the table that has an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(usize);

impl Key {
    /// Its place in the table.
    pub const fn index(self) -> usize {
        self.0
    }

    /// Its entry.
    pub fn param(self) -> &'static Param {
        &TABLE[self.0]
    }
}

/// The key of a name, looked up by the compiler: a name that is not in the table does not build.
const fn key(name: &str) -> Key {
    let mut i = 0;
    while i < USED.len() {
        if same(USED[i].name.as_bytes(), name.as_bytes()) {
            return Key(i);
        }
        i += 1;
    }
    panic!("not a variable with an effect")
}

const fn same(a: &[u8], b: &[u8]) -> bool {
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}

/// `NCCL_CONF_FILE`.
pub const CONF_FILE: Key = key("NCCL_CONF_FILE");
/// `NCCL_DEBUG`.
pub const DEBUG: Key = key("NCCL_DEBUG");
/// `NCCL_DEBUG_LEVELS`.
pub const DEBUG_LEVELS: Key = key("NCCL_DEBUG_LEVELS");
/// `NCCL_DEBUG_SUBSYS`.
pub const DEBUG_SUBSYS: Key = key("NCCL_DEBUG_SUBSYS");
/// `NCCL_DEBUG_FILE`.
pub const DEBUG_FILE: Key = key("NCCL_DEBUG_FILE");
/// `NCCL_DEBUG_TIMESTAMP_FORMAT`.
pub const DEBUG_TIMESTAMP_FORMAT: Key = key("NCCL_DEBUG_TIMESTAMP_FORMAT");
/// `NCCL_DEBUG_TIMESTAMP_LEVELS`.
pub const DEBUG_TIMESTAMP_LEVELS: Key = key("NCCL_DEBUG_TIMESTAMP_LEVELS");
/// `NCCL_WARN_ENABLE_DEBUG_INFO`.
pub const WARN_ENABLE_DEBUG_INFO: Key = key("NCCL_WARN_ENABLE_DEBUG_INFO");
/// `NCCL_SET_THREAD_NAME`.
pub const SET_THREAD_NAME: Key = key("NCCL_SET_THREAD_NAME");
/// `NCCL_NO_CACHE`.
pub const NO_CACHE: Key = key("NCCL_NO_CACHE");
/// `NCCL_PARAM_DUMP_ALL`.
pub const PARAM_DUMP_ALL: Key = key("NCCL_PARAM_DUMP_ALL");
/// `NCCL_ENABLE_VERSION_CHECK`.
pub const ENABLE_VERSION_CHECK: Key = key("NCCL_ENABLE_VERSION_CHECK");
/// `NCCL_COMM_ID`.
pub const COMM_ID: Key = key("NCCL_COMM_ID");
/// `NCCL_HOSTID`.
pub const HOSTID: Key = key("NCCL_HOSTID");
/// `NCCL_SOCKET_IFNAME`.
pub const SOCKET_IFNAME: Key = key("NCCL_SOCKET_IFNAME");
/// `NCCL_SOCKET_FAMILY`.
pub const SOCKET_FAMILY: Key = key("NCCL_SOCKET_FAMILY");
/// `NCCL_SOCKET_NTHREADS`.
pub const SOCKET_NTHREADS: Key = key("NCCL_SOCKET_NTHREADS");
/// `NCCL_NSOCKS_PERTHREAD`.
pub const NSOCKS_PERTHREAD: Key = key("NCCL_NSOCKS_PERTHREAD");
/// `NCCL_SOCKET_MIN_TASKSIZE`.
pub const SOCKET_MIN_TASKSIZE: Key = key("NCCL_SOCKET_MIN_TASKSIZE");
/// `NCCL_SOCKET_RCVBUF`.
pub const SOCKET_RCVBUF: Key = key("NCCL_SOCKET_RCVBUF");
/// `NCCL_SOCKET_SNDBUF`.
pub const SOCKET_SNDBUF: Key = key("NCCL_SOCKET_SNDBUF");
/// `OXCCL_PORT_RANGE`.
pub const PORT_RANGE: Key = key("OXCCL_PORT_RANGE");
/// `OXCCL_ADVERTISE`.
pub const ADVERTISE: Key = key("OXCCL_ADVERTISE");
/// `NCCL_SOCKET_MAGIC`.
pub const SOCKET_MAGIC: Key = key("NCCL_SOCKET_MAGIC");
/// `NCCL_SOCKET_RETRY_CNT`.
pub const SOCKET_RETRY_CNT: Key = key("NCCL_SOCKET_RETRY_CNT");
/// `NCCL_SOCKET_RETRY_SLEEP_MSEC`.
pub const SOCKET_RETRY_SLEEP_MSEC: Key = key("NCCL_SOCKET_RETRY_SLEEP_MSEC");
/// `NCCL_UID_STAGGER_THRESHOLD`.
pub const UID_STAGGER_THRESHOLD: Key = key("NCCL_UID_STAGGER_THRESHOLD");
/// `NCCL_UID_STAGGER_RATE`.
pub const UID_STAGGER_RATE: Key = key("NCCL_UID_STAGGER_RATE");
/// `OXCCL_BOOTSTRAP_ALGO`.
pub const BOOTSTRAP_ALGO: Key = key("OXCCL_BOOTSTRAP_ALGO");
/// `OXCCL_BOOTSTRAP_TIMEOUT`.
pub const BOOTSTRAP_TIMEOUT: Key = key("OXCCL_BOOTSTRAP_TIMEOUT");
/// `OXCCL_BOOTSTRAP_PROGRESS`.
pub const BOOTSTRAP_PROGRESS: Key = key("OXCCL_BOOTSTRAP_PROGRESS");
/// `OXCCL_LATE_WARN`.
pub const LATE_WARN: Key = key("OXCCL_LATE_WARN");
/// `OXCCL_HEARTBEAT`.
pub const HEARTBEAT: Key = key("OXCCL_HEARTBEAT");
/// `OXCCL_TRANSPORTS`.
pub const TRANSPORTS: Key = key("OXCCL_TRANSPORTS");
/// `OXCCL_SYSFS`.
pub const SYSFS: Key = key("OXCCL_SYSFS");
/// `NCCL_COMM_BLOCKING`.
pub const COMM_BLOCKING: Key = key("NCCL_COMM_BLOCKING");
/// `NCCL_CGA_CLUSTER_SIZE`.
pub const CGA_CLUSTER_SIZE: Key = key("NCCL_CGA_CLUSTER_SIZE");
/// `NCCL_MIN_CTAS`.
pub const MIN_CTAS: Key = key("NCCL_MIN_CTAS");
/// `NCCL_MAX_CTAS`.
pub const MAX_CTAS: Key = key("NCCL_MAX_CTAS");
/// `NCCL_NET`.
pub const NET: Key = key("NCCL_NET");
/// `NCCL_NET_PLUGIN`.
pub const NET_PLUGIN: Key = key("NCCL_NET_PLUGIN");
/// `NCCL_COMM_SPLIT_SHARE_RESOURCES`.
pub const COMM_SPLIT_SHARE_RESOURCES: Key = key("NCCL_COMM_SPLIT_SHARE_RESOURCES");
/// `NCCL_COMM_SHRINK_SHARE_RESOURCES`.
pub const COMM_SHRINK_SHARE_RESOURCES: Key = key("NCCL_COMM_SHRINK_SHARE_RESOURCES");
/// `NCCL_COLLNET_ENABLE`.
pub const COLLNET_ENABLE: Key = key("NCCL_COLLNET_ENABLE");
/// `NCCL_CTA_POLICY`.
pub const CTA_POLICY: Key = key("NCCL_CTA_POLICY");
/// `NCCL_NVLS_NCHANNELS`.
pub const NVLS_NCHANNELS: Key = key("NCCL_NVLS_NCHANNELS");
/// `NCCL_NCHANNELS_PER_NET_PEER`.
pub const NCHANNELS_PER_NET_PEER: Key = key("NCCL_NCHANNELS_PER_NET_PEER");
/// `NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE`.
pub const NVLINK_UTIL_CENTRIC_SCHED_ENABLE: Key = key("NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE");
/// `NCCL_GRAPH_MIXING_SUPPORT`.
pub const GRAPH_MIXING_SUPPORT: Key = key("NCCL_GRAPH_MIXING_SUPPORT");
/// `NCCL_GRAPH_STREAM_ORDERING`.
pub const GRAPH_STREAM_ORDERING: Key = key("NCCL_GRAPH_STREAM_ORDERING");
/// `NCCL_NUM_RMA_CTX`.
pub const NUM_RMA_CTX: Key = key("NCCL_NUM_RMA_CTX");
/// `NCCL_P2P_MAX_PEERS`.
pub const P2P_MAX_PEERS: Key = key("NCCL_P2P_MAX_PEERS");
/// `NCCL_LAUNCH_ORDER_IMPLICIT`.
pub const LAUNCH_ORDER_IMPLICIT: Key = key("NCCL_LAUNCH_ORDER_IMPLICIT");
/// `NCCL_RMA_EAGER_INIT`.
pub const RMA_EAGER_INIT: Key = key("NCCL_RMA_EAGER_INIT");
/// `NCCL_MULTI_RANK_GPU_ENABLE`.
pub const MULTI_RANK_GPU_ENABLE: Key = key("NCCL_MULTI_RANK_GPU_ENABLE");
/// `NCCL_P2P_DISABLE`.
pub const P2P_DISABLE: Key = key("NCCL_P2P_DISABLE");
/// `NCCL_P2P_LEVEL`.
pub const P2P_LEVEL: Key = key("NCCL_P2P_LEVEL");
/// `NCCL_P2P_DIRECT_DISABLE`.
pub const P2P_DIRECT_DISABLE: Key = key("NCCL_P2P_DIRECT_DISABLE");
/// `NCCL_LOCAL_REGISTER`.
pub const LOCAL_REGISTER: Key = key("NCCL_LOCAL_REGISTER");
/// `NCCL_SHM_DISABLE`.
pub const SHM_DISABLE: Key = key("NCCL_SHM_DISABLE");
/// `NCCL_CUMEM_ENABLE`.
pub const CUMEM_ENABLE: Key = key("NCCL_CUMEM_ENABLE");
/// `NCCL_BUFFSIZE`.
pub const BUFFSIZE: Key = key("NCCL_BUFFSIZE");
/// `NCCL_DISABLE_MEM_MANAGER`.
pub const DISABLE_MEM_MANAGER: Key = key("NCCL_DISABLE_MEM_MANAGER");
/// `NCCL_NTHREADS`.
pub const NTHREADS: Key = key("NCCL_NTHREADS");
/// `NCCL_MIN_NCHANNELS`.
pub const MIN_NCHANNELS: Key = key("NCCL_MIN_NCHANNELS");
/// `NCCL_NCHANNELS_PER_PEER`.
pub const NCHANNELS_PER_PEER: Key = key("NCCL_NCHANNELS_PER_PEER");
/// `NCCL_P2P_LL_THRESHOLD`.
pub const P2P_LL_THRESHOLD: Key = key("NCCL_P2P_LL_THRESHOLD");
/// `NCCL_MAX_NCHANNELS`.
pub const MAX_NCHANNELS: Key = key("NCCL_MAX_NCHANNELS");
/// `NCCL_MIN_NRINGS`.
pub const MIN_NRINGS: Key = key("NCCL_MIN_NRINGS");
/// `NCCL_MAX_NRINGS`.
pub const MAX_NRINGS: Key = key("NCCL_MAX_NRINGS");
/// `NCCL_ALGO`.
pub const ALGO: Key = key("NCCL_ALGO");
/// `NCCL_PROTO`.
pub const PROTO: Key = key("NCCL_PROTO");
