//! Buffers with guards, cases, and the members of a communicator that run them.

use std::env;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::bind::Api;
use crate::common::abi::{IN_PROGRESS, SUCCESS};
use crate::common::cuda::Stream;
use crate::common::launch::Place;
use crate::common::nccl::{Comm, Failure};
use crate::common::oracle::{DataType, PERIOD, RedOp, Reduction};

/// Bytes around every buffer that must not change.
const GUARD: usize = 128;
const GUARD_BYTE: u8 = 0xa5;
/// Bytes of a slot, unless NCCL_BUFFSIZE says otherwise.
pub const SLOT: usize = 256 << 10;

/// Whether everything is to be run.
pub fn long() -> bool {
    env::var_os("OXCCL_LONG").is_some()
}

/// The random numbers of a test: every rank draws the same.
pub fn seeded_rng(of: &str) -> SmallRng {
    let seed = env::var("OXCCL_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1u64);
    let mixed = of.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    println!("seed {seed} ({of})");
    SmallRng::seed_from_u64(mixed)
}

/// One call.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub dtype: DataType,
    pub op: RedOp,
    pub count: usize,
    pub in_place: bool,
    /// Elements by which input and output are off a cache line.
    pub offset: (usize, usize),
    /// Where in the pattern the input begins: data that is left over is not what is expected.
    pub phase: usize,
}

impl Case {
    /// A call out of place, aligned.
    pub fn plain(dtype: DataType, op: RedOp, count: usize) -> Case {
        Case { dtype, op, count, in_place: false, offset: (0, 0), phase: count }
    }

    /// A call that is random but for type and operator.
    pub fn random(rng: &mut SmallRng, dtype: DataType, op: RedOp) -> Case {
        let slot = SLOT / dtype.size();
        let counts = [
            0,
            1,
            2,
            3,
            5,
            64,
            1000,
            1023,
            4096 + rng.random_range(0..64usize),
            slot - 1,
            slot,
            slot + 1,
            3 * slot + 7,
        ];
        // Large ones take their time: a few are enough.
        let limit = if rng.random_range(0..8u32) == 0 { counts.len() } else { 9 };
        let offset = |rng: &mut SmallRng| rng.random_range(0..64 / dtype.size());
        Case {
            dtype,
            op,
            count: counts[rng.random_range(0..limit)],
            in_place: rng.random(),
            offset: (offset(rng), offset(rng)),
            phase: rng.random_range(0..PERIOD),
        }
    }

    /// Calls of all types and operators, `rounds` of each.
    pub fn of_all(rng: &mut SmallRng, rounds: usize) -> Vec<Case> {
        let pairs = DataType::all().flat_map(|dtype| RedOp::ALL.map(|op| (dtype, op)));
        pairs.flat_map(|pair| [pair].repeat(rounds)).map(|(dtype, op)| Case::random(rng, dtype, op)).collect()
    }

    fn bytes(&self, bits: impl Fn(usize) -> u64) -> Vec<u8> {
        let element = |at| bits((at + self.phase) % PERIOD).to_le_bytes().into_iter().take(self.dtype.size());
        let first: Vec<u8> = (0..self.count.min(PERIOD)).flat_map(element).collect();
        first.iter().copied().cycle().take(self.count * self.dtype.size()).collect()
    }
}

/// Device memory with guards on both sides of what a call may touch.
struct Region {
    base: u64,
    start: usize,
    held: Vec<u8>,
}

impl Region {
    fn new(api: &Api, offset: usize, content: &[u8]) -> Region {
        let start = GUARD + offset;
        let mut held = vec![GUARD_BYTE; start + content.len() + GUARD];
        held[start..start + content.len()].copy_from_slice(content);
        let base = api.cuda.alloc(held.len()).expect("memory");
        api.cuda.copy_to_device(base, &held).expect("copy");
        Region { base, start, held }
    }

    fn address(&self) -> u64 {
        self.base + self.start as u64
    }

    fn now(&self, api: &Api) -> Vec<u8> {
        let mut bytes = vec![0; self.held.len()];
        api.cuda.copy_to_host(&mut bytes, self.base).expect("copy");
        bytes
    }
}

/// The buffers of a call.
pub struct Buffers {
    pub case: Case,
    what: Reduction,
    send: Region,
    recv: Option<Region>,
}

impl Buffers {
    /// Fills the buffers of one rank. The device's context must be current.
    pub fn new(member: &Member, case: Case) -> Buffers {
        let what = Reduction { dtype: case.dtype, op: case.op, nranks: member.nranks };
        let input = case.bytes(|element| what.input_bits(member.rank, element));
        let size = case.dtype.size();
        let send = Region::new(&member.api, case.offset.0 * size, &input);
        let poison = vec![0x5a; input.len()];
        let recv = (!case.in_place).then(|| Region::new(&member.api, case.offset.1 * size, &poison));
        Buffers { case, what, send, recv }
    }

    /// Addresses of input and output.
    pub fn addresses(&self) -> (u64, u64) {
        let send = self.send.address();
        (send, self.recv.as_ref().map_or(send, Region::address))
    }

    /// Calls AllReduce.
    pub fn call(&self, member: &Member, stream: Stream) -> Result<(), Failure> {
        let Case { dtype, op, count, .. } = self.case;
        // SAFETY: the buffers live until they are checked, after a wait.
        unsafe { member.api.nccl.all_reduce(self.addresses(), count, (dtype, op), member.comm, stream.0) }
    }

    /// What is wrong with the buffers after the call, in a word; then they are freed.
    pub fn check(self, member: &Member) -> Result<(), String> {
        let (api, case) = (&member.api, self.case);
        let expected = case.bytes(|element| self.what.expected_bits(element));
        let output = self.recv.as_ref().unwrap_or(&self.send);
        let mut wanted = output.held.clone();
        wanted[output.start..output.start + expected.len()].copy_from_slice(&expected);
        let found = output.now(api);
        if let Some(at) = (0..found.len()).find(|at| found[*at] != wanted[*at]) {
            let element = (at as isize - output.start as isize) / case.dtype.size() as isize;
            return Err(format!(
                "rank {} of {}: {case:?}: byte {at} (element {element}) is {:#x}, not {:#x}",
                member.rank, member.nranks, found[at], wanted[at]
            ));
        }
        if self.recv.is_some() && self.send.now(api) != self.send.held {
            return Err(format!("rank {}: {case:?}: the input has changed", member.rank));
        }
        for region in [Some(self.send), self.recv].into_iter().flatten() {
            // SAFETY: the caller has waited for the call.
            unsafe { api.cuda.free(region.base) }.map_err(|failure| failure.to_string())?;
        }
        Ok(())
    }
}

/// A rank of a communicator, and the stream that it uses.
#[derive(Clone, Copy)]
pub struct Member {
    pub api: Api,
    pub rank: usize,
    pub nranks: usize,
    pub comm: Comm,
    pub stream: Stream,
}

impl Member {
    /// The rank of this process, on the device of its number.
    pub fn of_process(api: &Api, me: &Place) -> Member {
        api.cuda.use_device(me.rank).expect("a device");
        let comm = api.init(me.nranks, api.meet(me, "id"), me.rank);
        Member::new(api, comm, me.rank, me.nranks)
    }

    /// A rank whose device is current.
    pub fn new(api: &Api, comm: Comm, rank: usize, nranks: usize) -> Member {
        Member { api: *api, rank, nranks, comm, stream: api.cuda.stream().expect("a stream") }
    }

    /// Runs calls one after another.
    pub fn run(&self, cases: &[Case]) {
        for case in cases {
            let buffers = Buffers::new(self, *case);
            match buffers.call(self, self.stream) {
                // The links are being connected; the call follows.
                Err(failure) if failure.code == IN_PROGRESS => self.settle(),
                result => result.unwrap_or_else(|failure| panic!("{case:?}: {failure}")),
            }
            self.api.cuda.wait(self.stream).expect("wait");
            buffers.check(self).unwrap_or_else(|wrong| panic!("{wrong}"));
        }
    }

    /// Polls a communicator that does not block until it is ready again.
    fn settle(&self) {
        assert_eq!(self.api.nccl.settle(self.comm), SUCCESS);
    }

    /// Destroys the communicator.
    pub fn end(self) {
        self.api.nccl.destroy(self.comm).expect("destroy");
        self.api.cuda.destroy_stream(self.stream).expect("destroy a stream");
    }
}
