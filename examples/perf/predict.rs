//! `perf predict`: what calls would take on a machine that is described, not measured (`nccl::plan::timing`).
//!
//! For each size: what the cost model chooses there, what the simulation says that takes, and beside it what NCCL's own
//! model expects of NCCL's ring on the same machine. With `--ways`, every way that there is.

use std::process::ExitCode;
use std::sync::Arc;

use lexopt::prelude::*;
use nccl::plan::algorithm::Algo;
use nccl::plan::call::Func;
use nccl::plan::timing::{self, KernelModel, MachineModel, TimedCall};
use nccl::topology::Graph;
use nccl::tuning::{
    Agreed, CallShape, Choice, Filters, MachineConstants, Tuning, preferred_message_channels, preferred_slot_bytes,
};

use crate::args;
use crate::here;
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
struct Predict {
    subject: Subject,
    func: Func,
    machine: MachineModel,
    /// The machine is this host.
    here: bool,
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
        here: false,
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
        predict.here = name == "here";
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
        return here::machine(ranks);
    }
    if let Some(machine) = MachineModel::named(name) {
        return Ok(machine);
    }
    let text = std::fs::read_to_string(name).map_err(|error| format!("--machine {name}: {error}"))?;
    MachineModel::parse(&text).map_err(|error| format!("{name}: {error}"))
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
            let machine = self.machine_for(&tuning, bytes, choice);
            if !self.ways {
                self.line(&machine, &tuning, &shape, choice)?;
                continue;
            }
            for (algorithm, protocol, _) in shape.costs().entries() {
                let time = |channels: &u32| {
                    let choice = Choice { algorithm, protocol, channels: *channels };
                    self.time(&machine, &tuning, bytes, choice).unwrap_or(f64::MAX)
                };
                let best = CHANNELS.into_iter().min_by(|a, b| time(a).total_cmp(&time(b))).unwrap_or(1);
                self.line(&machine, &tuning, &shape, Choice { algorithm, protocol, channels: best })?;
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
            oversubscription: self.machine.ranks.div_ceil(self.machine.sharing.processors.max(1)),
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

    /// The machine; if it is this host, with memory as quick as it is for such a call.
    fn machine_for(&self, tuning: &Tuning, bytes: u64, choice: Choice) -> MachineModel {
        if !self.here {
            return self.machine.clone();
        }
        let chunks = if choice.algorithm == Algo::Direct { 1 } else { u64::from(self.machine.ranks) };
        let slot = u64::from(tuning.slot_bytes(choice.algorithm, choice.protocol));
        here::with_memory(&self.machine, bytes, slot.min(bytes / chunks))
    }

    fn time(&self, machine: &MachineModel, tuning: &Tuning, bytes: u64, choice: Choice) -> Result<f64, String> {
        let Choice { algorithm, protocol, channels } = choice;
        let slot_bytes = tuning.slot_bytes(algorithm, protocol);
        let call = TimedCall { func: self.func, algorithm, protocol, bytes, channels, slot_bytes };
        timing::predict(machine, &self.kernel, &call).map_err(|error| error.to_string())
    }

    fn line(
        &self,
        machine: &MachineModel,
        tuning: &Tuning,
        shape: &CallShape<'_>,
        choice: Choice,
    ) -> Result<(), String> {
        let (bytes, Choice { algorithm, protocol, channels }) = (shape.bytes, choice);
        let us = self.time(machine, tuning, bytes, choice)?;
        let slot = tuning.slot_bytes(algorithm, protocol);
        let way = format!("{}/{}", algorithm.name(), protocol.name());
        let busbw = bytes as f64 / us / 1e3 * self.subject.bus_factor(self.machine.ranks as usize);
        print!("  {bytes:>10}  {way:>16} {channels:>8} {slot:>8} {us:>10.1} {busbw:>8.2}");
        if self.zero_copy {
            let asked = if tuning.offers_buffers_for(shape, &choice) { "yes" } else { "no" };
            match timing::predict_zero_copy(machine, &self.kernel, self.func, bytes, channels) {
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
