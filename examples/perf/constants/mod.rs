//! `perf constants`: measures what the timing model takes for granted of a machine (`nccl::plan::timing`), on the
//! machine at hand, and writes it as a description that `perf predict --machine FILE` reads.
//!
//! Calls of the library say what a launch, a turn and a byte take, by differences between calls. On a GPU, small
//! kernels of its own (`probes.ptx`) say what loads, fences and looks at counters take.

mod calls;
mod description;
mod fit;
mod probes;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

use lexopt::prelude::*;
use nccl::plan::algorithm::Algo;
use nccl::plan::call::Func;
use nccl::plan::layout::{Proto, SLOTS};
use nccl::plan::timing::{self, BlockModel, KernelModel, MachineModel, TimedCall};

use crate::args::{self, Args};
use crate::common::cuda::Cuda;
use crate::flags;
use crate::here;
use crate::machine::Device;
use crate::subject::Subject;
pub use calls::{Calls, Timed};
use description::Description;
use probes::{Found, Probed};

/// Text of `perf constants -h`.
const HELP: &str = "\
perf constants: measures the constants of the timing model on the machine at hand

  perf constants [options]        writes lines of `key = value  # how it was measured`, as
                                  perf predict --machine FILE reads them

  -n RANKS        ranks, as threads of one process; several to a device where there are fewer (default 2)
  --base NAME     the known machine that has what is not measured (default 8xH100)
  --device KIND   auto: a GPU where there is a driver, else the software device; soft; gpu
  --out FILE      where to write (default: stdout)
  --timeout SEC   an order that takes longer is a hang (default 60)

Nothing else should run on the machine meanwhile. What cannot be measured is left out, and a comment says so.
";

/// Bytes of the slots that turns are timed with.
const SLOT_BYTES: [u32; 3] = [16 << 10, 64 << 10, 256 << 10];
/// Bytes of a large call, and of a larger one: by one block, and by all channels.
const BLOCK_BYTES: [usize; 2] = [8 << 20, 24 << 20];
const LINK_BYTES: [usize; 2] = [32 << 20, 96 << 20];
/// Bytes of a call that is all launch and wait.
const SMALL: usize = 8;
/// How often a block's rate and turn are fitted in turn, where each follows from the other.
const FITS: usize = 6;
/// Microseconds of a turn at most, and of a byte at least and at most.
const TURN: (f64, f64) = (0.0, 1000.0);
const BYTE: (f64, f64) = (1e-7, 0.1);

struct Constants {
    args: Args,
    base: String,
    out: Option<String>,
}

/// Runs `perf constants` with the arguments behind the word.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let constants = match parse(arguments) {
        Ok(Some(constants)) => constants,
        Ok(None) => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(why) => {
            eprintln!("perf constants: {why}\n`perf constants -h` shows how it is used");
            return ExitCode::from(crate::USAGE);
        }
    };
    match constants.measure().and_then(|description| constants.write(&description)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("perf constants: {why}");
            ExitCode::from(crate::FAILED)
        }
    }
}

fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Option<Constants>, String> {
    let mut parser = lexopt::Parser::from_args(arguments);
    let text = |error: lexopt::Error| error.to_string();
    let args = Args { timeout: Duration::from_secs(60), ..Args::default() };
    let mut constants = Constants { args, base: "8xH100".to_string(), out: None };
    while let Some(arg) = parser.next().map_err(text)? {
        let name = match arg {
            Short('h') | Long("help") => return Ok(None),
            Short(letter) => format!("-{letter}"),
            Long(word) => format!("--{word}"),
            Value(word) => return Err(format!("{} is not understood", word.to_string_lossy())),
        };
        let value = parser.value().and_then(|value| value.string()).map_err(text)?;
        let count = |least: u64, most: u64| match value.parse::<u64>() {
            Ok(n) if (least..=most).contains(&n) => Ok(n),
            _ => Err(format!("{name} {value}: a number from {least} to {most} is wanted")),
        };
        match name.as_str() {
            "-n" => constants.args.nranks = count(2, 64)? as usize,
            "--device" => constants.args.device = args::device(&value)?,
            "--timeout" => constants.args.timeout = Duration::from_secs(count(1, 1_000_000)?),
            "--out" => constants.out = Some(value),
            "--base" if MachineModel::named(&value).is_some() => constants.base = value,
            "--base" => return Err(format!("--base {value}: there is no such machine")),
            _ => return Err(format!("there is no option {name}")),
        }
    }
    Ok(Some(constants))
}

impl Constants {
    fn write(&self, description: &Description) -> Result<(), String> {
        match &self.out {
            Some(file) => std::fs::write(file, description.text()).map_err(|error| format!("{file}: {error}")),
            None => {
                print!("{}", description.text());
                Ok(())
            }
        }
    }

    fn measure(&self) -> Result<Description, String> {
        let device = Device::find(&self.args)?;
        let software = device.soft || Cuda::load("libcuda.so.1").is_ok_and(|cuda| cuda.is_software());
        let calls = |nranks| Calls::new(&device, nranks, &self.args);
        let measuring = Measuring { all: calls(self.args.nranks), alone: calls(1) };
        let mut d = Description::default();
        d.note("The constants of the timing model, as `perf constants` measured them on the machine at hand.");
        d.note(&device.line);
        d.note(&format!(
            "{} ranks, as threads of one process; times in microseconds, rates in GB/s.",
            self.args.nranks
        ));
        match software {
            true => self.software(&mut d)?,
            false => self.gpu(&mut d, &measuring)?,
        }
        measuring.turns(&mut d, software)?;
        measuring.launch(&mut d)?;
        Ok(d)
    }

    /// What only a software device has, and what does not count there.
    fn software(&self, d: &mut Description) -> Result<(), String> {
        let ranks = self.args.nranks as u32;
        let sharing =
            here::sharing(ranks).ok_or("the machine is too busy to measure how ranks share its processors")?;
        let model = MachineModel::software(ranks, sharing, 0.0, 1.0);
        let MachineModel { block, path, .. } = model;
        let given = "as the model of a software device has it";
        d.set("name", "software", "");
        d.set("ranks", self.args.nranks, "");
        d.set("threads", block.threads, "blocks are threads of the host");
        d.set("processors", sharing.processors, "of this host");
        d.number("spin", sharing.spin, "so many looks as a waiting kernel takes before it yields");
        d.number(
            "switch",
            sharing.switch,
            "two processes on one processor exchange a flag, each yielding: half of that",
        );
        d.set("channels", model.channels, given);
        d.set("whole_lines", u8::from(model.whole_lines), given);
        for (key, value) in [("load", block.load), ("receive_load", path.receive_load), ("fence", path.fence)] {
            d.set(key, value, given);
        }
        d.set("poll", block.poll, given);
        d.set("bandwidth", path.bandwidth, "the processors that copy are the limit");
        d.note("loads, fences and looks by kernels of their own are not measured here: this device has none but the library's");
        match flags::exchange_ns() {
            Some(ns) => d.number("latency", ns / 1e3, "two processes exchange a flag"),
            None => d.note("latency is not measured: the machine is too busy"),
        }
        Ok(())
    }

    /// What a GPU's own kernels say, and what its links carry.
    fn gpu(&self, d: &mut Description, measuring: &Measuring<'_>) -> Result<(), String> {
        let cuda = Cuda::load("libcuda.so.1")?;
        let named = |failure: crate::common::cuda::Failure| failure.to_string();
        let devices = cuda.device_count().map_err(named)?;
        d.set("base", &self.base, "what is not measured is as there");
        d.set("name", cuda.device_name(0).map_err(named)?.replace('#', ""), "");
        d.set("ranks", self.args.nranks, "");
        if devices < self.args.nranks {
            let plural = if devices == 1 { "device" } else { "devices" };
            d.note(&format!(
                "{} ranks share {devices} {plural}: latency, fence and bandwidth are those",
                self.args.nranks
            ));
            d.note(
                "within one. Links between devices (NVLink, PCIe) are NOT measured here: to predict for these, take",
            );
            d.note("these three lines out, and the numbers of `base` count.");
        }
        match probed(self.args.timeout) {
            Ok(found) => probe_lines(d, &found),
            Err(why) => d.note(&format!("load, receive_load, poll, latency, fence are not measured here: {why}")),
        }
        measuring.bandwidth(d)?;
        measuring.block_rate(d)
    }
}

/// Runs the probes, for so long at most.
fn probed(timeout: Duration) -> Result<Probed, String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || drop(sender.send(probes::run())));
    receiver.recv_timeout(timeout).map_err(|_| format!("a kernel did not end within {timeout:?}"))?
}

fn probe_lines(d: &mut Description, probed: &Probed) {
    match &probed.launch {
        Ok((queued, waited)) => d.note(&format!(
            "a kernel that does nothing: {queued:.2} us of many that are queued, {waited:.2} one that is waited for"
        )),
        Err(why) => d.note(&format!("a kernel that does nothing is not measured here: {why}")),
    }
    found(d, "load", &probed.load, "512 threads copy 256 MiB, one load in flight each: a sweep");
    found(d, "receive_load", &probed.near_load, "the same within 2 MiB, which the L2 cache answers");
    found(d, "poll", &probed.look, "one thread looks at a counter in a loop");
    let of_exchange = |exchange: f64| probed.look.clone().map(|look| (exchange - look / 2.0).max(0.0));
    let latency = probed.exchange.clone().and_then(of_exchange);
    let how = probed.exchange.as_ref().map(|us| format!("two kernels exchange a counter in {us:.4}; less half a look"));
    found(d, "latency", &latency, &how.unwrap_or_default());
    let fence = probed.fenced.clone().map(|[none, one, _]| (one - none).max(0.0));
    let how = probed.fenced.as_ref().map(|[none, one, two]| {
        format!("512 threads store, then one behind 0, 1, 2 fences: {none:.4}, {one:.4}, {two:.4}; the first of these")
    });
    found(d, "fence", &fence, &how.unwrap_or_default());
}

/// A line with what a probe found, or a comment that says why it found nothing.
fn found(d: &mut Description, key: &str, value: &Found<f64>, how: &str) {
    match value {
        Ok(value) => d.number(key, *value, how),
        Err(why) => d.note(&format!("{key} is not measured here: {why}")),
    }
}

/// Calls of all ranks, and of one that is alone.
struct Measuring<'a> {
    all: Calls<'a>,
    alone: Calls<'a>,
}

/// A variable's value.
fn var(name: &str, value: impl ToString) -> (&str, String) {
    (name, value.to_string())
}

/// So many calls as there are sizes, not waited for one by one.
fn queued(subject: Subject, sizes: [usize; 2]) -> [Timed; 2] {
    sizes.map(|bytes| Timed { subject, bytes, blocking: false })
}

/// What one more byte takes, in microseconds.
fn byte(calls: &Calls<'_>, variables: &[(&str, String)], of: [Timed; 2]) -> Result<Option<f64>, String> {
    let times = calls.times(variables, &of)?;
    Ok(fit::slope(of.map(|call| call.bytes as f64), [times[0], times[1]]))
}

/// Where more took no longer.
const BUSY: &str = "larger calls took no longer; is the machine busy?";

/// A Broadcast by the ring on one channel.
fn broadcast(slot_bytes: u32, bytes: usize) -> TimedCall {
    let bytes = bytes as u64;
    TimedCall { func: Func::Broadcast, algorithm: Algo::Ring, protocol: Proto::Simple, bytes, channels: 1, slot_bytes }
}

/// What one more slot takes by the clock.
fn slot_by_clock(machine: &MachineModel, slot_bytes: u32) -> Result<f64, String> {
    let time = |bytes| timing::predict(machine, &KernelModel::CURRENT, &broadcast(slot_bytes, bytes));
    let [small, large] = BLOCK_BYTES;
    let slots = (large - small) as f64 / f64::from(slot_bytes);
    match (time(small), time(large)) {
        (Ok(less), Ok(more)) => Ok((more - less) / slots),
        (Err(error), _) | (_, Err(error)) => Err(error.to_string()),
    }
}

fn with_block(machine: &MachineModel, block: BlockModel) -> MachineModel {
    MachineModel { block, ..machine.clone() }
}

impl Measuring<'_> {
    /// What all channels of a rank carry to the next.
    fn bandwidth(&self, d: &mut Description) -> Result<(), String> {
        let variables = [var("NCCL_ALGO", "ring"), var("NCCL_PROTO", "Simple")];
        match byte(&self.all, &variables, queued(Subject::Broadcast, LINK_BYTES))? {
            Some(us) => {
                d.number("bandwidth", 1e-3 / us, "Broadcast by the ring, 32 and 96 MiB, all channels: at least")
            }
            None => d.note(&format!("bandwidth is not measured: {BUSY}")),
        }
        Ok(())
    }

    /// What one block copies, which reads and writes.
    fn block_rate(&self, d: &mut Description) -> Result<(), String> {
        match byte(&self.alone, &[var("NCCL_MAX_NCHANNELS", 1)], queued(Subject::AllReduce, BLOCK_BYTES))? {
            Some(us) => {
                let how = "one rank alone copies 8 and 24 MiB on one channel: read and written, both";
                d.number("block_bandwidth", 2e-3 / us, how);
            }
            None => d.note(&format!("block_bandwidth is not measured: {BUSY}")),
        }
        Ok(())
    }

    /// Slots of some sizes, and from them a turn, and on a software device a block's rate.
    fn turns(&self, d: &mut Description, software: bool) -> Result<(), String> {
        let mut slots = Vec::new();
        for slot_bytes in SLOT_BYTES {
            slots.push((slot_bytes, self.slot(slot_bytes)?));
        }
        let [(small, Some(of_small)), _, (large, Some(of_large))] = slots[..] else {
            d.note(&format!("turn is not measured: {BUSY}"));
            return Ok(());
        };
        let mut machine = d.machine()?;
        for _ in 0..FITS {
            if software {
                let time = |byte| {
                    let block = BlockModel { rate: 1.0 / byte, ..machine.block };
                    slot_by_clock(&with_block(&machine, block), large)
                };
                machine.block.rate = 1.0 / fit::solve(BYTE, of_large, time)?;
            }
            let time = |turn| slot_by_clock(&with_block(&machine, BlockModel { turn, ..machine.block }), small);
            machine.block.turn = fit::solve(TURN, of_small, time)?;
        }
        if software {
            let how = "with this and `turn` the clock says what slots of 16 and 256 KiB take";
            d.number("block_bandwidth", machine.block.rate / 1e3, how);
        }
        let least = with_block(&machine, BlockModel { turn: TURN.0, ..machine.block });
        let how = match slot_by_clock(&least, small)? < of_small {
            true => "with this the clock says what a slot of 16 KiB takes",
            false => "a slot of 16 KiB takes less than the clock says without any",
        };
        d.number("turn", machine.block.turn, how);
        let machine = d.machine()?;
        for (slot_bytes, us) in slots {
            let us = us.map_or_else(|| "not measured".to_string(), |us| format!("{us:.3} us"));
            let clock = slot_by_clock(&machine, slot_bytes)?;
            d.note(&format!("a slot of {} KiB, 1 channel: {us}; by the clock {clock:.3}", slot_bytes >> 10));
        }
        Ok(())
    }

    /// What one more slot of a large call takes.
    fn slot(&self, slot_bytes: u32) -> Result<Option<f64>, String> {
        let variables = [
            var("NCCL_ALGO", "ring"),
            var("NCCL_PROTO", "Simple"),
            var("NCCL_MAX_NCHANNELS", 1),
            var("NCCL_BUFFSIZE", SLOTS as u64 * u64::from(slot_bytes)),
        ];
        Ok(byte(&self.all, &variables, queued(Subject::Broadcast, BLOCK_BYTES))?
            .map(|byte| byte * f64::from(slot_bytes)))
    }

    /// What is left of a small call when the clock has had its part.
    fn launch(&self, d: &mut Description) -> Result<(), String> {
        let of = [false, true].map(|blocking| Timed { subject: Subject::AllReduce, bytes: SMALL, blocking });
        let alone = self.alone.times(&[], &of)?;
        let all = self.all.times(&[var("NCCL_ALGO", "direct"), var("NCCL_PROTO", "LL")], &of)?;
        let n = self.all.args.nranks;
        d.note(&format!(
            "a call on 8 bytes, of many that are queued: {:.2} us alone, {:.2} of {n} ranks",
            alone[0], all[0]
        ));
        d.note(&format!("the same, each waited for: {:.2} us alone, {:.2} of {n} ranks", alone[1], all[1]));
        let machine = d.machine()?;
        let (bytes, slot_bytes) = (SMALL as u64, LINE_SLOT_BYTES);
        let (algorithm, protocol) = (Algo::Direct, Proto::Ll);
        let call = TimedCall { func: Func::AllReduce, algorithm, protocol, bytes, channels: 1, slot_bytes };
        let time = |launch| {
            let machine = MachineModel { launch, ..machine.clone() };
            timing::predict(&machine, &KernelModel::CURRENT, &call).map_err(|error| error.to_string())
        };
        let (rest, launch) = (time(0.0)?, fit::solve((0.0, all[0]), all[0], time)?);
        let how =
            format!("AllReduce of {n} ranks by direct/LL takes {:.2}; with no launch the clock says {rest:.2}", all[0]);
        d.number("launch", launch, &how);
        Ok(())
    }
}

/// Bytes of a slot that holds a small call, whatever there are.
const LINE_SLOT_BYTES: u32 = 64 << 10;
