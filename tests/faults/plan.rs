//! What a run does, all of it from its seed: hosts, ranks, calls, the fault, and how the library is set.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use crate::common::contract::{Content, Func, Operator};
use crate::common::oracle::{DataType, RedOp};

/// Most hosts of a run, without the gateway.
pub const MOST_HOSTS: usize = 4;
/// Most bytes of a block.
const MOST_BYTES: usize = 400_000;

/// When a fault comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// In the middle of this round; none: while the communicator is made.
    pub round: Option<usize>,
    /// So much later.
    pub delay: Duration,
}

/// What the gateway does, once, to a connection that goes through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// Nothing: it only holds up every piece of every connection for a random time.
    Delay,
    /// It carries nothing any more that way, and keeps the connection.
    Stall,
    /// Both ends are reset.
    Reset,
    /// Both ends are closed in order.
    Close,
    /// One direction ends, the other one goes on.
    HalfClose,
    /// It ends, and all connections with it; nobody listens there any more.
    Gone,
    /// A bit changes.
    Corrupt,
}

/// Where the gateway does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// To which connection, in the order in which they come.
    pub connection: usize,
    /// From who connects to who accepts, or the other way.
    pub forth: bool,
    /// After so many bytes.
    pub byte: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// A rank's process is killed.
    Kill {
        rank: usize,
        moment: Moment,
    },
    /// A rank's process is stopped; for good, as far as the others know, if there is no time.
    Stop {
        rank: usize,
        moment: Moment,
        pause: Option<Duration>,
    },
    /// A rank aborts its communicator.
    Abort {
        rank: usize,
        moment: Moment,
    },
    /// A host's cable is pulled; for good, if there is no time.
    Unplug {
        host: usize,
        moment: Moment,
        pause: Option<Duration>,
    },
    /// A gateway that all connections between hosts go through does something to them.
    Gateway {
        harm: Harm,
        place: Place,
    },
}

/// What must become of the ranks that are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// All results are right.
    Success,
    /// All results are right, or there is an error that nobody must wait for.
    EndsByItself,
    /// The same, but an abort may be what ends it.
    Ends,
}

/// A call of all ranks, or messages of some.
#[derive(Clone, Debug)]
pub enum Call {
    Collective {
        func: Func,
        count: usize,
        content: Content,
        root: usize,
    },
    /// Messages of so many bytes from rank to rank, in a group.
    Messages(Vec<(usize, usize, usize)>),
}

/// What is called at once: in one group, or one after the other.
#[derive(Clone, Debug)]
pub struct Round {
    pub calls: Vec<Call>,
    pub group: bool,
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    /// The host of each rank.
    pub places: Vec<usize>,
    pub rounds: Vec<Round>,
    pub fault: Fault,
    /// Calls return when they are done, and not before.
    pub blocking: bool,
    pub encrypted: bool,
    pub settings: Vec<(&'static str, &'static str)>,
}

/// What matters of it in a line.
impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Plan { seed, fault, places, rounds, settings, .. } = self;
        let calls = if self.blocking { "blocking" } else { "polled" };
        let form = if self.encrypted { "encrypted" } else { "plain" };
        write!(f, "seed {seed}: {fault:?}; ranks on {places:?}, {} rounds, {calls}, {form} {settings:?}", rounds.len())
    }
}

impl Plan {
    pub fn new(seed: u64) -> Plan {
        let rng = &mut SmallRng::seed_from_u64(seed);
        let hosts = rng.random_range(2..=MOST_HOSTS);
        let places: Vec<usize> = (0..hosts).flat_map(|host| vec![host; rng.random_range(1..=3)]).collect();
        let count = rng.random_range(20..40);
        let rounds: Vec<Round> = (0..count).map(|_| Round::random(rng, places.len())).collect();
        let encrypted = rng.random_bool(0.3);
        let (fault, blocking) = fault(rng, &places, count);
        let settings = settings(rng);
        Plan { seed, places, rounds, fault, blocking, encrypted, settings }
    }

    /// Other rounds, for the ranks that it has.
    pub fn redo_rounds(&mut self) {
        let rng = &mut SmallRng::seed_from_u64(self.seed);
        self.rounds = self.rounds.iter().map(|_| Round::random(rng, self.places.len())).collect();
    }

    pub fn hosts(&self) -> usize {
        self.places.last().map_or(0, |last| last + 1)
    }

    /// Whether a gateway stands between the hosts.
    pub fn has_gateway(&self) -> bool {
        matches!(self.fault, Fault::Gateway { .. })
    }

    pub fn expected(&self) -> Expected {
        match self.fault {
            Fault::None | Fault::Stop { pause: Some(_), .. } | Fault::Unplug { pause: Some(_), .. } => {
                Expected::Success
            }
            // Who has not come yet is waited for.
            Fault::Kill { moment, .. } | Fault::Abort { moment, .. } if moment.round.is_none() => Expected::Ends,
            Fault::Kill { .. } | Fault::Abort { .. } => Expected::EndsByItself,
            Fault::Stop { .. } | Fault::Unplug { .. } => Expected::Ends,
            Fault::Gateway { harm, .. } => match harm {
                Harm::Delay => Expected::Success,
                Harm::Reset | Harm::Close | Harm::Gone => Expected::EndsByItself,
                // Half of a connection may say nothing, and who waits for more bytes than will come hears nothing.
                Harm::Stall | Harm::HalfClose | Harm::Corrupt => Expected::Ends,
            },
        }
    }
}

/// A fault, and whether calls block. What may only be ended by an abort comes when there is a communicator to abort.
fn fault(rng: &mut SmallRng, places: &[usize], rounds: usize) -> (Fault, bool) {
    let mut blocking = rng.random_bool(0.5);
    let rank = rng.random_range(0..places.len());
    let early = rng.random_bool(0.2);
    let round = if early { None } else { Some(rng.random_range(0..rounds)) };
    let moment = Moment { round, delay: Duration::from_micros(rng.random_range(0..30_000)) };
    let pause = rng.random_bool(0.5).then(|| Duration::from_millis(rng.random_range(50..1500)));
    let fault = match rng.random_range(0..20u32) {
        0 => Fault::None,
        1..=4 => Fault::Kill { rank, moment },
        5..=7 => Fault::Stop { rank, moment, pause },
        8..=10 => Fault::Abort { rank, moment },
        11..=12 => Fault::Unplug { host: places[rank], moment, pause },
        _ => Fault::Gateway { harm: harm(rng), place: place(rng, places.len()) },
    };
    blocking &= match fault {
        Fault::Stop { pause: None, .. } | Fault::Unplug { pause: None, .. } => !early,
        Fault::Kill { .. } | Fault::Abort { .. } => !early,
        Fault::Gateway { harm, .. } => !matches!(harm, Harm::Stall | Harm::HalfClose | Harm::Corrupt),
        _ => true,
    };
    (fault, blocking)
}

fn harm(rng: &mut SmallRng) -> Harm {
    let all =
        [Harm::Delay, Harm::Stall, Harm::Reset, Harm::Close, Harm::HalfClose, Harm::Gone, Harm::Corrupt, Harm::Corrupt];
    all[rng.random_range(0..all.len())]
}

fn place(rng: &mut SmallRng, nranks: usize) -> Place {
    // Those of the bootstrap come first, then those for messages and data.
    let connection = if rng.random_bool(0.3) { rng.random_range(0..12) } else { rng.random_range(0..8 * nranks) };
    // Half of them hit handshakes.
    let byte = if rng.random_bool(0.5) { rng.random_range(0..400) } else { 1 << rng.random_range(6..20u32) };
    Place { connection, forth: rng.random_bool(0.5), byte: byte + rng.random_range(0..64) }
}

/// Variables that change which ways are taken.
fn settings(rng: &mut SmallRng) -> Vec<(&'static str, &'static str)> {
    let choices: [(&str, &[&str]); 6] = [
        ("NCCL_ALGO", &["allreduce:ring", "allreduce:tree"]),
        ("NCCL_MIN_NCHANNELS", &["2", "4"]),
        ("NCCL_BUFFSIZE", &["65536"]),
        ("NCCL_NSOCKS_PERTHREAD", &["2"]),
        ("NCCL_SOCKET_NTHREADS", &["2"]),
        ("OXCCL_BOOTSTRAP_ALGO", &["ring"]),
    ];
    let mut chosen = Vec::new();
    for (name, values) in choices {
        if rng.random_bool(0.25) {
            chosen.push((name, *values.choose(rng).expect("there is a value")));
        }
    }
    chosen
}

impl Round {
    fn random(rng: &mut SmallRng, nranks: usize) -> Round {
        let count = if rng.random_bool(0.7) { 1 } else { rng.random_range(2..5) };
        Round { calls: (0..count).map(|_| Call::random(rng, nranks)).collect(), group: rng.random_bool(0.5) }
    }
}

/// A size: small ones as often as large ones.
fn size(rng: &mut SmallRng, most: usize) -> usize {
    let top = most.ilog2();
    let base = 1usize << rng.random_range(0..=top);
    rng.random_range(base / 2..=base.min(most))
}

impl Call {
    fn random(rng: &mut SmallRng, nranks: usize) -> Call {
        if rng.random_bool(0.3) {
            let message =
                |rng: &mut SmallRng| (rng.random_range(0..nranks), rng.random_range(0..nranks), size(rng, MOST_BYTES));
            return Call::Messages((0..rng.random_range(1..2 * nranks)).map(|_| message(rng)).collect());
        }
        let func = Func::ALL[rng.random_range(0..Func::ALL.len())];
        let types = [DataType::Float32, DataType::Int32, DataType::Bfloat16, DataType::Uint8];
        let dtype = types[rng.random_range(0..types.len())];
        let operators = [RedOp::Sum, RedOp::Max];
        let operator = func.reduces().then(|| Operator::Plain(operators[rng.random_range(0..operators.len())]));
        let content = Content { dtype, operator, nranks };
        let count = size(rng, MOST_BYTES / dtype.size() / nranks);
        Call::Collective { func, count, content, root: rng.random_range(0..nranks) }
    }
}
