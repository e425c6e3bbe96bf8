//! `perf predict`: what calls would take on a machine that is described, not measured (`nccl::plan::timing`).
//!
//! For each size: what the cost model chooses there, what the simulation says that takes, and beside it what NCCL's own
//! model expects of NCCL's ring on the same machine. With `--ways`, every way that there is.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use lexopt::prelude::*;
use nccl::plan::algorithm::Algo;
use nccl::plan::call::Func;
use nccl::plan::layout::Proto;
use nccl::plan::timing::{self, KernelModel, MachineModel, TimedCall};
use nccl::topology::Graph;
use nccl::tuning::{
    Agreed, CallShape, Choice, Filters, MachineConstants, Tuning, preferred_message_channels, preferred_slot_bytes,
};

use crate::args;
use crate::flags;
use crate::subject::Subject;

/// Text of `perf predict -h`.
const HELP: &str = "\
perf predict: what calls would take on a machine that is described, not measured

  perf predict all_reduce [options]

  --machine NAME  8xH100 (default), 4xA100-pcie, 2xRTX-nop2p, a file with `key = value` lines, or
                  `here`: the software device on this host, whose flags and memory are measured first
  -n RANKS        how many ranks (default: as the machine says)
  --kernel KIND   current (default), serial: as kernels were before they overlapped waits with data,
                  or nccl: as NCCL describes its own
  -b, -e BYTES    smallest and largest size (default 64 to 1G)
  -f FACTOR       from size to size (default 4)
  --ways          every algorithm and protocol instead of what is chosen
  --zero-copy     beside each way what the same call takes with the peers' registered buffers in
                  place of slots, and whether ranks would ask each other for them
";

/// Channels that are compared for each way.
const CHANNELS: [u32; 6] = [1, 2, 4, 8, 16, 32];
/// The most ranks.
const MAX_RANKS: u64 = 4096;
/// Bytes that are copied to see how fast memory is here, and how often.
const COPIED: usize = 256 << 10;
const ROUNDS: usize = 101;

struct Predict {
    subject: Subject,
    func: Func,
    machine: MachineModel,
    kernel: KernelModel,
    /// From the smallest to the largest.
    sizes: Vec<u64>,
    ways: bool,
    zero_copy: bool,
}

/// Runs `perf predict` with the arguments behind the word.
pub fn main(arguments: impl Iterator<Item = std::ffi::OsString>) -> ExitCode {
    match parse(arguments) {
        Ok(None) => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        Ok(Some(predict)) => match predict.print() {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => fail(&why),
        },
        Err(why) => fail(&why),
    }
}

fn fail(why: &str) -> ExitCode {
    eprintln!("perf predict: {why}\n`perf predict -h` shows how it is used");
    ExitCode::from(crate::USAGE)
}

fn parse(arguments: impl Iterator<Item = std::ffi::OsString>) -> Result<Option<Predict>, String> {
    let mut parser = lexopt::Parser::from_args(arguments);
    let text = |error: lexopt::Error| error.to_string();
    let mut predict = Predict {
        subject: Subject::AllReduce,
        func: Func::AllReduce,
        machine: MachineModel::eight_h100(),
        kernel: KernelModel::CURRENT,
        sizes: Vec::new(),
        ways: false,
        zero_copy: false,
    };
    let (mut least, mut most, mut factor, mut ranks, mut machine) = (64, 1 << 30, 4, None, None);
    while let Some(arg) = parser.next().map_err(text)? {
        let name = match arg {
            Short('h') | Long("help") => return Ok(None),
            Long("ways") => {
                predict.ways = true;
                continue;
            }
            Long("zero-copy") => {
                predict.zero_copy = true;
                continue;
            }
            Value(word) => {
                (predict.subject, predict.func) = called_by(&word.string().map_err(text)?)?;
                continue;
            }
            Short(letter) => letter.to_string(),
            Long(word) => word.to_string(),
        };
        let value = parser.value().and_then(|value| value.string()).map_err(text)?;
        let count = |least: u64| value.parse::<u64>().ok().filter(|n| *n >= least).ok_or(format!("-{name} {value}"));
        match name.as_str() {
            "b" => least = args::bytes(&value)?.max(1),
            "e" => most = args::bytes(&value)?,
            "f" => factor = count(2)?,
            "n" => ranks = Some(count(2)?.min(MAX_RANKS) as u32),
            "machine" => machine = Some(value),
            "kernel" => predict.kernel = kernel_of(&value)?,
            _ => return Err(format!("there is no option {name}")),
        }
    }
    if let Some(name) = machine {
        predict.machine = machine_of(&name, ranks.unwrap_or(2))?;
    }
    predict.machine.ranks = ranks.unwrap_or(predict.machine.ranks);
    predict.sizes =
        std::iter::successors(Some(least), |size| size.checked_mul(factor)).take_while(|n| *n <= most).collect();
    Ok(Some(predict))
}

fn called_by(word: &str) -> Result<(Subject, Func), String> {
    let subject = Subject::of(word).ok_or_else(|| format!("`{word}` is no collective"))?;
    let func =
        Func::COLLECTIVES.into_iter().find(|func| Subject::of(&func.name().to_ascii_lowercase()) == Some(subject));
    func.map(|func| (subject, func)).ok_or_else(|| format!("`{word}` is no collective"))
}

fn kernel_of(word: &str) -> Result<KernelModel, String> {
    match word {
        "current" => Ok(KernelModel::CURRENT),
        "serial" => Ok(KernelModel::SERIAL),
        "nccl" => Ok(KernelModel::NCCL),
        _ => Err(format!("--kernel {word}: current, serial or nccl is wanted")),
    }
}

fn machine_of(name: &str, ranks: u32) -> Result<MachineModel, String> {
    if name == "here" {
        return here(ranks);
    }
    if let Some(machine) = MachineModel::named(name) {
        return Ok(machine);
    }
    let text = std::fs::read_to_string(name).map_err(|error| format!("--machine {name}: {error}"))?;
    MachineModel::parse(&text).map_err(|error| format!("{name}: {error}"))
}

/// This host's software devices.
fn here(ranks: u32) -> Result<MachineModel, String> {
    let flag = flags::exchange_ns().ok_or("--machine here: the machine is too busy to measure")?;
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    println!("# flag exchange between two processes: {}", flags::show(Some(flag)));
    Ok(MachineModel::software(ranks, processors, flag / 1e3, copy_rate()))
}

/// Bytes that a processor reads and writes in a microsecond where another one has just written what it reads, and read
/// what it writes, as slots go to and fro between two ranks: two threads copy a buffer to another one and back.
fn copy_rate() -> f64 {
    let buffers = [vec![1u8; COPIED], vec![0u8; COPIED]].map(std::sync::Mutex::new);
    let turn = AtomicUsize::new(0);
    let side = |me: usize| {
        let copy = |round: usize| {
            while turn.load(Ordering::Acquire) != 2 * round + me {
                std::hint::spin_loop();
            }
            let (from, mut to) = (buffers[me].lock().expect("no panic"), buffers[1 - me].lock().expect("no panic"));
            let start = Instant::now();
            to.copy_from_slice(&from);
            let time = start.elapsed().as_secs_f64() * 1e6;
            drop((from, to));
            turn.store(2 * round + me + 1, Ordering::Release);
            time
        };
        (0..ROUNDS).map(copy).collect::<Vec<f64>>()
    };
    let mut times = std::thread::scope(|scope| {
        let other = scope.spawn(|| side(1));
        let own = side(0);
        [own, other.join().unwrap_or_default()].concat()
    });
    times.sort_by(f64::total_cmp);
    2.0 * COPIED as f64 / times[times.len() / 2]
}

impl Predict {
    fn print(&self) -> Result<(), String> {
        let MachineModel { name, ranks, .. } = &self.machine;
        println!("# {} of {ranks} ranks on {name}, predicted; no machine has confirmed it", self.func.name());
        print!("# {:>10}  {:>16} {:>8} {:>8} {:>10} {:>8}", "bytes", "way", "channels", "slot", "us", "busbw");
        if self.zero_copy {
            print!("  {:>9} {:>6} {:>5}", "zero-copy", "ratio", "asked");
        }
        println!("  {:>9} {:>6}", "NCCL ring", "ratio");
        let tuning = self.tuning();
        for &bytes in &self.sizes {
            let shape = tuning.shape(self.func, bytes, None).map_err(|error| error.to_string())?;
            let choice = tuning.choose(&shape).map_err(|error| error.to_string())?;
            if !self.ways {
                self.line(&tuning, &shape, choice)?;
                continue;
            }
            for (algorithm, protocol, _) in shape.costs().entries() {
                let time =
                    |channels: &u32| self.time(&tuning, bytes, algorithm, protocol, *channels).unwrap_or(f64::MAX);
                let best = CHANNELS.into_iter().min_by(|a, b| time(a).total_cmp(&time(b))).unwrap_or(1);
                self.line(&tuning, &shape, Choice { algorithm, protocol, channels: best })?;
            }
        }
        Ok(())
    }

    /// How calls are carried out on the machine if nobody asks for anything.
    fn tuning(&self) -> Tuning {
        let software = self.machine.block.threads == 0;
        let (filters, _) = Filters::ALL.usable(false, 90, software);
        let mut agreed = Agreed {
            channels: if software { 1 } else { self.machine.channels },
            slot_bytes: preferred_slot_bytes(0),
            message_channels: preferred_message_channels(software, self.machine.ranks),
            halvings: 0,
            filters,
            oversubscription: self.machine.ranks.div_ceil(self.machine.processors.max(1)),
            maps_buffers: self.zero_copy,
        };
        if !self.machine.whole_lines {
            // Nobody has asked for LL128 alone.
            let _ = agreed.without_whole_lines();
        }
        let machine = match software {
            true => MachineConstants::software(agreed.oversubscription),
            false => MachineConstants::Gpus(self.machine.clone(), self.kernel),
        };
        Tuning::new(machine, Arc::new(Graph::of_host(self.machine.ranks)), agreed)
    }

    fn time(
        &self,
        tuning: &Tuning,
        bytes: u64,
        algorithm: Algo,
        protocol: Proto,
        channels: u32,
    ) -> Result<f64, String> {
        let slot_bytes = tuning.slot_bytes(algorithm, protocol);
        let call = TimedCall { func: self.func, algorithm, protocol, bytes, channels, slot_bytes };
        timing::predict(&self.machine, &self.kernel, &call).map_err(|error| error.to_string())
    }

    fn line(&self, tuning: &Tuning, shape: &CallShape<'_>, choice: Choice) -> Result<(), String> {
        let (bytes, Choice { algorithm, protocol, channels }) = (shape.bytes, choice);
        let us = self.time(tuning, bytes, algorithm, protocol, channels)?;
        let slot = tuning.slot_bytes(algorithm, protocol);
        let way = format!("{}/{}", algorithm.name(), protocol.name());
        let busbw = bytes as f64 / us / 1e3 * self.subject.bus_factor(self.machine.ranks as usize);
        print!("  {bytes:>10}  {way:>16} {channels:>8} {slot:>8} {us:>10.1} {busbw:>8.2}");
        if self.zero_copy {
            let asked = if tuning.offers_buffers_for(shape, &choice) { "yes" } else { "no" };
            match timing::predict_zero_copy(&self.machine, &self.kernel, self.func, bytes, channels) {
                Ok(direct) => print!("  {direct:>9.1} {:>6.2} {asked:>5}", us / direct),
                // There is no such way for so many ranks.
                Err(_) => print!("  {:>9} {:>6} {:>5}", "-", "-", "no"),
            }
        }
        let nccl = timing::nccl_ring(&self.machine, self.func, bytes).filter(|_| self.machine.block.threads > 0);
        println!("{}", nccl.map_or_else(String::new, |nccl| format!("  {nccl:>9.1} {:>6.2}", nccl / us)));
        Ok(())
    }
}
