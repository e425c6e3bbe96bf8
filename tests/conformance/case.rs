//! One call of a collective: how it is drawn, what its buffers hold before and afterwards, and how it is made.

use std::ffi::CStr;
use std::ptr::{from_ref, null};

use rand::RngExt;
use rand::rngs::SmallRng;

use crate::built;
use crate::common::collectives::{Call, CollConfig};
use crate::common::contract::{Content, Contract, Func, Operator, Source};
use crate::common::nccl::Failure;
use crate::common::oracle::{DataType, RedOp};
use crate::member::{Action, Item, Member, POISON, Part, Prepared, Region, STREAMS};

/// Which part, and at which byte of it.
type Spot = (usize, usize);

/// Most elements of a buffer that must stay untouched.
const UNTOUCHED: usize = 1000;

/// Which C function makes the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `ncclX`.
    Plain,
    /// `ncclXConfig` with NULL.
    NullConfig,
    /// `ncclXConfig` with what the initializer gives.
    Config,
    /// `ncclXConfig` with algorithms that are asked for, but not forced.
    Selection(&'static CStr),
}

/// Selections for all functions: what a function has not is another's, and then the library decides.
const SELECTIONS: [&CStr; 4] = [c"RING", c"tree", c"PAT, ring_simple", c"^RING"];

/// One call of a collective.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub func: Func,
    pub dtype: DataType,
    /// `None` where nothing is reduced.
    pub operator: Option<Operator>,
    pub count: usize,
    pub root: usize,
    pub in_place: bool,
    /// Elements by which the buffers are off a cache line.
    pub offsets: (usize, usize),
    /// Where in the pattern the inputs begin: data that is left over is not what is expected.
    pub phase: usize,
    pub form: Form,
    /// Called as so many elements of one byte.
    pub as_bytes: bool,
    /// NULL for buffers that a rank does not use; else one that must stay untouched.
    pub nulls: bool,
    pub stream: usize,
}

/// Function, type and operator.
pub type Kind = (Func, DataType, Option<Operator>);

/// Every function with every type and operator that there is by now.
pub fn kinds() -> Vec<Kind> {
    let mut list = Vec::new();
    for func in built::FUNCS {
        for dtype in DataType::all() {
            if func.reduces() {
                let there = |op: &Operator| built::PRE_MUL_SUM || matches!(op, Operator::Plain(_));
                list.extend(Operator::all().filter(there).map(|op| (*func, dtype, Some(op))));
            } else {
                list.push((*func, dtype, None));
            }
        }
    }
    list
}

/// Counts at which something changes; the large ones are drawn less often.
fn count(rng: &mut SmallRng, n: usize, slot: usize) -> usize {
    let small = [0, 1, 2, 3, 5, 7, 16, 63, 64, 65, 257, 1000, 1023, 1025];
    let n = n.max(1);
    let large = [slot - 1, slot, slot + 1, slot / n, slot / n + 1, 3 * slot + 7, n * slot - 1, 9 * slot + 5];
    match rng.random_range(0..16u32) {
        0 => large[rng.random_range(0..large.len())],
        1 | 2 => rng.random_range(0..5000),
        _ => small[rng.random_range(0..small.len())],
    }
}

impl Case {
    /// A call of a kind that is random but for that.
    pub fn random(rng: &mut SmallRng, (func, dtype, operator): Kind, n: usize) -> Case {
        let line = 64 / dtype.size();
        let slot = crate::setup::slot() / dtype.size();
        let off = |rng: &mut SmallRng| {
            if rng.random() { rng.random_range(0..line) } else { usize::from(rng.random::<bool>()) }
        };
        let offsets = (off(rng), off(rng));
        let selection = Form::Selection(SELECTIONS[rng.random_range(0..SELECTIONS.len())]);
        let form = [Form::Plain, Form::Plain, Form::NullConfig, Form::Config, selection][rng.random_range(0..5usize)];
        Case {
            func,
            dtype,
            operator,
            count: count(rng, n, slot),
            root: rng.random_range(0..n),
            in_place: func == Func::Bcast || func.has_in_place() && rng.random(),
            offsets,
            phase: rng.random_range(0..1021),
            form,
            as_bytes: false,
            nulls: rng.random(),
            stream: rng.random_range(0..STREAMS),
        }
    }

    /// A call out of place on the first stream, aligned, with root 0.
    pub fn plain(kind: Kind, count: usize) -> Case {
        let (func, dtype, operator) = kind;
        let in_place = func == Func::Bcast;
        let (offsets, phase) = ((0, 0), count % 1021);
        Case {
            func,
            dtype,
            operator,
            count,
            root: 0,
            in_place,
            offsets,
            phase,
            form: Form::Plain,
            as_bytes: false,
            nulls: false,
            stream: 0,
        }
    }

    /// A call of a function: a sum of 32-bit integers where it reduces.
    pub fn of(func: Func, count: usize) -> Case {
        Case::plain((func, DataType::Int32, func.reduces().then_some(Operator::Plain(RedOp::Sum))), count)
    }

    pub fn content(&self, nranks: usize) -> Content {
        Content { dtype: self.dtype, operator: self.operator, nranks }
    }

    pub fn contract(&self, member: &Member) -> Contract {
        Contract { func: self.func, nranks: member.nranks, root: self.root, rank: member.rank }
    }

    /// What this rank's send buffer holds.
    pub fn input(&self, member: &Member) -> Vec<u8> {
        let mut bytes = vec![0; self.contract(member).sends() * self.count * self.dtype.size()];
        member.tile(self.content(member.nranks), Source::Rank(member.rank)).fill(&mut bytes, self.phase);
        bytes
    }

    /// What the call must write.
    pub fn output(&self, member: &Member) -> Vec<u8> {
        let mut bytes = Vec::new();
        for block in self.contract(member).output() {
            let mut part = vec![0; self.count * self.dtype.size()];
            let tile = member.tile(self.content(member.nranks), block.source);
            tile.fill(&mut part, self.phase + block.block * self.count);
            bytes.append(&mut part);
        }
        bytes
    }

    /// Fills the buffers of one rank.
    pub fn prepare(&self, member: &mut Member) -> Prepared {
        let size = self.dtype.size();
        let (parts, places) = self.parts(member);
        let regions: Vec<Region> = parts.iter().map(|part| member.region(part)).collect();
        let address = |place: Option<Spot>| place.map_or(0, |(part, at)| regions[part].address() + at as u64);
        let mut call = Prepared {
            item: Item::Collective(*self),
            action: Action::Collective(*self),
            buffers: (address(places.0), address(places.1)),
            scalar: 0,
            operator: None,
            regions,
            stream: self.stream,
            title: format!("{self:?}"),
            size,
        };
        if self.operator == Some(Operator::PreMulSum { device: true }) {
            let bits = self.content(member.nranks).scalar(member.rank).to_le_bytes();
            call.scalar = member.scratch(&bits[..size]);
        }
        call
    }

    /// The buffers, and where send and receive buffer are in them; `None` for NULL.
    pub fn parts(&self, member: &Member) -> (Vec<Part>, (Option<Spot>, Option<Spot>)) {
        if self.in_place { self.one_part(member) } else { self.two_parts(member) }
    }

    /// One buffer for both, in which only the output changes.
    fn one_part(&self, member: &Member) -> (Vec<Part>, (Option<Spot>, Option<Spot>)) {
        let (input, output) = (self.input(member), self.output(member));
        let block = self.count * self.dtype.size();
        let (send_at, recv_at) = self.contract(member).in_place();
        let (send_at, recv_at) = (send_at * block, recv_at * block);
        let mut before = vec![POISON; (send_at + input.len()).max(recv_at + output.len())];
        before[send_at..send_at + input.len()].copy_from_slice(&input);
        let mut after = before.clone();
        after[recv_at..recv_at + output.len()].copy_from_slice(&output);
        let part = Part { name: "buffer", offset: self.offsets.1 * self.dtype.size(), before, after };
        // Of no use to this rank, whatever it is: NULL, or the same buffer.
        let spot = |used: bool, at| (used || !self.nulls || self.func == Func::Bcast).then_some((0, at));
        let contract = self.contract(member);
        (vec![part], (spot(contract.sends() > 0, send_at), spot(!contract.output().is_empty(), recv_at)))
    }

    fn two_parts(&self, member: &Member) -> (Vec<Part>, (Option<Spot>, Option<Spot>)) {
        let (input, output) = (self.input(member), self.output(member));
        let contract = self.contract(member);
        let size = self.dtype.size();
        let untouched = || vec![POISON; self.count.min(UNTOUCHED) * size];
        let (mut parts, mut spots) = (Vec::new(), (None, None));
        if contract.sends() > 0 || !self.nulls {
            let (name, bytes) = if contract.sends() > 0 { ("input", input) } else { ("unused input", untouched()) };
            spots.0 = Some((parts.len(), 0));
            parts.push(Part { name, offset: self.offsets.0 * size, before: bytes.clone(), after: bytes });
        }
        let written = !contract.output().is_empty();
        if written || !self.nulls {
            let (name, after) = if written { ("output", output) } else { ("unused output", untouched()) };
            spots.1 = Some((parts.len(), 0));
            parts.push(Part { name, offset: self.offsets.1 * size, before: vec![POISON; after.len()], after });
        }
        (parts, spots)
    }

    /// Makes the call. An operator of our own is made for it and, for every other phase, destroyed at once, as is
    /// allowed: calls that were made before keep it.
    pub fn issue(&self, call: &mut Prepared, member: &Member) -> Result<(), Failure> {
        let calls = &member.api.calls;
        let bits = self.content(member.nranks).scalar(member.rank);
        let op = match self.operator {
            None => 0,
            Some(Operator::Plain(op)) => op as i32,
            Some(Operator::PreMulSum { device: false }) => calls.pre_mul_host(bits, self.dtype, member.comm)?,
            Some(Operator::PreMulSum { device: true }) => {
                // SAFETY: the scalar lives until the call is checked.
                unsafe { calls.pre_mul_device(call.scalar, self.dtype, member.comm) }?
            }
        };
        let (count, dtype) = match self.as_bytes {
            true => (self.count * self.dtype.size(), DataType::Int8),
            false => (self.count, self.dtype),
        };
        let what = Call { func: self.func, count, dtype: dtype as i32, op, root: self.root as i32 };
        let (comm, stream) = (member.comm, member.streams[self.stream].0);
        let mut config = CollConfig::default();
        if let Form::Selection(words) = self.form {
            (config.selection, config.force) = (words.as_ptr(), 0);
        }
        // SAFETY: the buffers live until they are checked, after a wait; the configuration until the call is over.
        let result = unsafe {
            match self.form {
                Form::Plain => calls.call(what, call.buffers, comm, stream),
                Form::NullConfig => calls.call_with(what, call.buffers, comm, stream, null()),
                Form::Config | Form::Selection(_) => {
                    calls.call_with(what, call.buffers, comm, stream, from_ref(&config))
                }
            }
        };
        if matches!(self.operator, Some(Operator::PreMulSum { .. })) {
            if self.phase.is_multiple_of(2) {
                calls.destroy_op(op, comm)?;
            } else {
                call.operator = Some(op);
            }
        }
        result
    }
}
