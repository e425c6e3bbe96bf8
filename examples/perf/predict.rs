//! `perf predict`: what calls would take on a machine that is described, not measured (`nccl::plan::timing`).
//!
//! For each size: what the cost model chooses there, what the simulation says that takes, and beside it what NCCL's own
//! model expects of NCCL's ring on the same machine. With `--ways`, every way that there is; with `--measured`, what
//! the library does on the machine at hand.

use std::process::ExitCode;
use std::sync::Arc;

use lexopt::prelude::*;
use nccl::plan::LinkClass;
use nccl::plan::algorithm::Algo;
use nccl::plan::call::Func;
use nccl::plan::layout::Proto;
use nccl::plan::timing::{self, KernelModel, MachineModel, TimedCall};
use nccl::tuning::{self, Agreed, CallShape, Choice, Filters, MachineConstants, Tuning};

use crate::args::{self, Args};
use crate::here;
use crate::machine::Device;
use crate::measured::{self, Measured};
use crate::subject::Subject;
use crate::ways::Way;

/// Text of `perf predict -h`.
const HELP: &str = "\
perf predict: what calls would take on a machine that is described, not measured

  perf predict all_reduce [options]
                  other collectives, and sendrecv: each rank sends to the next

  --machine NAME  8xH100 (default), 4xA100-pcie, 2xRTX-nop2p, some of these joined by TCP over
                  Ethernet of so many Gbit/s, as 2x8xH100-tcp100, a file with `key = value` lines, or
                  `here`: the software device on this host, whose flags and memory are measured first
  -n RANKS        how many ranks (default: as the machine says)
  --kernel KIND   current (default), serial: as kernels were before they overlapped waits with data,
                  or nccl: as NCCL describes its own
  -b, -e BYTES    smallest and largest size (default 64 to 1G)
  -f FACTOR       from size to size (default 4)
  --ways          every algorithm and protocol instead of what is chosen
  --zero-copy     beside each way what the same call takes with the peers' registered buffers in
                  place of slots, and whether ranks would ask each other for them
  --measured      beside it, what the calls take on the machine at hand, with ranks that are threads of
                  one process; predicted for the ways that the library takes there. Sizes to 64M
  --device KIND   of --measured. auto: a GPU where there is a driver, else the software device; soft; gpu
";

/// Bytes of the largest message by LL: `NCCL_P2P_LL_THRESHOLD` by default.
const MESSAGE_LINE_BYTES: u64 = 16 << 10;
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
    /// What to measure with; the number of ranks is the machine's.
    measured: Option<Args>,
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
            Err(why) if predict.measured.is_some() => {
                eprintln!("perf predict: {why}");
                ExitCode::from(crate::FAILED)
            }
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
        measured: None,
    };
    let (mut least, mut most, mut factor, mut ranks, mut machine) = (64, None, 4, None, None);
    let mut device = args::DeviceKind::Auto;
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
            Long("measured") => {
                predict.measured = Some(Args::default());
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
            "e" => most = Some(args::bytes(&value)?),
            "f" => factor = count(2)?,
            "n" => ranks = Some(count(2)?.min(MAX_RANKS) as u32),
            "machine" => machine = Some(value),
            "device" => device = args::device(&value)?,
            "kernel" => predict.kernel = kernel_of(&value)?,
            _ => return Err(format!("there is no option {name}")),
        }
    }
    if let Some(name) = machine {
        predict.machine = machine_of(&name, ranks.unwrap_or(2))?;
        predict.here = name == "here";
    }
    predict.machine.ranks = ranks.unwrap_or(predict.machine.ranks);
    let most = most.unwrap_or(if predict.measured.is_some() { 64 << 20 } else { 1 << 30 });
    predict.measured = predict.measured.map(|args| Args { nranks: predict.machine.ranks as usize, device, ..args });
    predict.sizes =
        std::iter::successors(Some(least), |size| size.checked_mul(factor)).take_while(|n| *n <= most).collect();
    Ok(Some(predict))
}

fn called_by(word: &str) -> Result<(Subject, Func), String> {
    let subject = Subject::of(word).ok_or_else(|| format!("`{word}` is no collective"))?;
    let same = |func: &Func| Subject::of(&func.name().to_ascii_lowercase()) == Some(subject);
    let func = if subject == Subject::SendRecv { Some(Func::Send) } else { Func::COLLECTIVES.into_iter().find(same) };
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
        if let Some(args) = &self.measured {
            return self.print_measured(args);
        }
        let MachineModel { name, ranks, .. } = &self.machine;
        let called = if self.func == Func::Send { self.subject.word() } else { self.func.name() };
        println!("# {called} of {ranks} ranks on {name}, predicted; no machine has confirmed it");
        print!("# {:>10}  {:>16} {:>8} {:>8} {:>10} {:>8}", "bytes", "way", "channels", "slot", "us", "busbw");
        if self.zero_copy {
            print!("  {:>9} {:>6} {:>5}", "zero-copy", "ratio", "asked");
        }
        println!("  {:>9} {:>6}", "NCCL ring", "ratio");
        let tuning = self.tuning();
        for &bytes in &self.sizes {
            if self.func == Func::Send {
                let way = self.message(bytes);
                self.line(&self.machine_for(&tuning, bytes, way), &tuning, (bytes, way), None)?;
                continue;
            }
            let shape = tuning.shape(self.func, bytes, None).map_err(|error| error.to_string())?;
            let choice = tuning.choose(&shape).map_err(|error| error.to_string())?;
            let way = (choice.algorithm, choice.protocol, choice.channels);
            let machine = self.machine_for(&tuning, bytes, way);
            if !self.ways {
                self.line(&machine, &tuning, (bytes, way), Some(&shape))?;
                continue;
            }
            for (algorithm, protocol, _) in shape.costs().entries() {
                let time = |channels: &u32| {
                    let way = (algorithm, protocol, *channels);
                    self.time(&machine, &tuning, bytes, way).unwrap_or(f64::MAX)
                };
                let best = CHANNELS.into_iter().min_by(|a, b| time(a).total_cmp(&time(b))).unwrap_or(1);
                self.line(&machine, &tuning, (bytes, (algorithm, protocol, best)), Some(&shape))?;
            }
        }
        Ok(())
    }

    /// What was predicted beside what is measured.
    fn print_measured(&self, args: &Args) -> Result<(), String> {
        let device = Device::find(args)?;
        let MachineModel { name, ranks, .. } = &self.machine;
        println!("# {}", device.line);
        println!("# {} of {ranks} ranks, predicted for {name}, and measured here", self.subject.word());
        println!(
            "# {:>10}  {:>16} {:>8} {:>8} {:>12} {:>12} {:>6}",
            "bytes", "way", "channels", "slot", "predicted us", "measured us", "ratio"
        );
        let tuning = self.tuning();
        for Measured { bytes, way, us } in measured::run((self.subject, self.func), &self.sizes, args, &device)? {
            let way = way.unwrap_or_else(|| self.message(bytes));
            let predicted = self.time(&self.machine_for(&tuning, bytes, way), &tuning, bytes, way)?;
            let ratio = predicted / us;
            println!("  {} {predicted:>12.1} {us:>12.1} {ratio:>6.2}", self.described(&tuning, bytes, way));
        }
        Ok(())
    }

    /// What all ranks do alike if nobody asks for anything.
    fn agreed(&self) -> Agreed {
        let software = self.software();
        let (filters, _) = Filters::ALL.usable(false, 90, software);
        let mut agreed = Agreed {
            channels: if software { 1 } else { self.machine.channels },
            slot_bytes: tuning::preferred_slot_bytes(0),
            message_channels: tuning::preferred_message_channels(software, self.machine.ranks),
            message_line_bytes: MESSAGE_LINE_BYTES,
            halvings: 0,
            filters,
            oversubscription: self.machine.ranks.div_ceil(self.machine.sharing.processors.max(1)),
            maps_buffers: self.zero_copy,
        };
        if !self.machine.whole_lines || self.machine.hosts > 1 {
            // Nobody has asked for LL128 alone.
            let _ = agreed.without_whole_lines();
        }
        if self.machine.hosts > 1 {
            // Sockets carry no lines.
            let _ = agreed.without_lines();
        }
        agreed
    }

    fn software(&self) -> bool {
        self.machine.block.threads == 0
    }

    /// How calls are carried out on the machine.
    fn tuning(&self) -> Tuning {
        let agreed = self.agreed();
        let machine = match self.software() {
            true => MachineConstants::software(agreed.oversubscription),
            false => MachineConstants::Gpus(self.machine.clone(), self.kernel),
        };
        Tuning::new(machine, Arc::new(self.machine.graph()), agreed)
    }

    /// The machine; if it is this host, with memory as quick as it is for such a call.
    fn machine_for(&self, tuning: &Tuning, bytes: u64, way: Way) -> MachineModel {
        if !self.here {
            return self.machine.clone();
        }
        let chunks = if way.0 == Algo::Direct { 1 } else { u64::from(self.machine.ranks) };
        here::with_memory(&self.machine, bytes, u64::from(self.slot_bytes(tuning, way)).min(bytes / chunks))
    }

    /// How a message goes.
    fn message(&self, bytes: u64) -> Way {
        match self.agreed().message_protocol(bytes) {
            Proto::Simple => (Algo::Direct, Proto::Simple, tuning::channels(bytes, self.agreed().message_channels)),
            lines => (Algo::Direct, lines, 1),
        }
    }

    fn slot_bytes(&self, tuning: &Tuning, (algorithm, protocol, _): Way) -> u32 {
        match self.func {
            Func::Send => {
                self.agreed().slot_sizes(&self.machine.graph(), self.software()).of(LinkClass::Peer, protocol)
            }
            _ => tuning.slot_bytes(self.func, algorithm, protocol),
        }
    }

    fn time(&self, machine: &MachineModel, tuning: &Tuning, bytes: u64, way: Way) -> Result<f64, String> {
        let (slot_bytes, (algorithm, protocol, channels)) = (self.slot_bytes(tuning, way), way);
        let call = TimedCall { func: self.func, algorithm, protocol, bytes, channels, slot_bytes };
        timing::predict(machine, &self.kernel, &call).map_err(|error| error.to_string())
    }

    /// The columns that say what is called, and how.
    fn described(&self, tuning: &Tuning, bytes: u64, way: Way) -> String {
        let (slot, (algorithm, protocol, channels)) = (self.slot_bytes(tuning, way), way);
        let way = format!("{}/{}", algorithm.name(), protocol.name());
        format!("{bytes:>10}  {way:>16} {channels:>8} {slot:>8}")
    }

    fn line(
        &self,
        machine: &MachineModel,
        tuning: &Tuning,
        (bytes, way): (u64, Way),
        shape: Option<&CallShape<'_>>,
    ) -> Result<(), String> {
        let us = self.time(machine, tuning, bytes, way)?;
        let busbw = bytes as f64 / us / 1e3 * self.subject.bus_factor(self.machine.ranks as usize);
        print!("  {} {us:>10.1} {busbw:>8.2}", self.described(tuning, bytes, way));
        if self.zero_copy {
            let (algorithm, protocol, channels) = way;
            let choice = Choice { algorithm, protocol, channels };
            let asks = shape.is_some_and(|shape| tuning.offers_buffers_for(shape, &choice));
            match timing::predict_zero_copy(machine, &self.kernel, self.func, bytes, channels) {
                Ok(direct) => {
                    print!("  {direct:>9.1} {:>6.2} {:>5}", us / direct, if asks { "yes" } else { "no" });
                }
                // There is no such way of this function, or for so many ranks.
                Err(_) => print!("  {:>9} {:>6} {:>5}", "-", "-", "no"),
            }
        }
        let nccl = timing::nccl_ring(&self.machine, self.func, bytes).filter(|_| !self.software());
        println!("{}", nccl.map_or_else(String::new, |nccl| format!("  {nccl:>9.1} {:>6.2}", nccl / us)));
        Ok(())
    }
}
