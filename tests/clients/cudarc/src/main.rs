//! cudarc's `nccl` module as Rust programs use it: one thread with several devices, a thread for each device, a
//! process for each device. Nothing here knows which library it runs on.
//!
//!     cudarc-client [devices|threads|processes [NUMBER OF DEVICES]]
//!
//! Without a word: all three; without a number: 2. Prints `OK name` for each checked value, or `FAILED name: why`, and
//! `N passed, N failed` last.

mod checks;
mod devices;
mod fails;
mod number;
mod rank;

use std::env;
use std::ffi::c_char;
use std::process::{Child, Command, ExitCode, Stdio};

use cudarc::driver::CudaContext;
use cudarc::nccl::safe::{Comm, Id};

use checks::Checks;
use fails::{Fails, nccl};
use rank::Rank;

/// Devices where the command line does not say how many.
const DEVICES: usize = 2;

/// A thread for each device; the id is a variable that all see.
fn threads(ranks: usize, checks: &Checks) -> Result<(), Fails> {
    let id = nccl(Id::new())?;
    std::thread::scope(|scope| {
        let running: Vec<_> =
            (0..ranks).map(|rank| scope.spawn(move || member(rank, ranks, id, checks, "threads"))).collect();
        running
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(Fails("a thread has panicked".into()))))
    })
}

/// A process for each device; the id is an argument of theirs.
fn processes(ranks: usize, checks: &Checks) -> Result<(), Fails> {
    let id = to_hex(&nccl(Id::new())?);
    let start = |rank: usize| -> Result<Child, Fails> {
        let mut command = Command::new(env::current_exe()?);
        Ok(command.args(["rank", &ranks.to_string(), &rank.to_string(), &id]).stdout(Stdio::piped()).spawn()?)
    };
    let running: Vec<Child> = (0..ranks).map(start).collect::<Result<_, _>>()?;
    for child in running {
        let output = child.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let mut lines: Vec<&str> = text.lines().collect();
        let last = lines.pop().unwrap_or("");
        lines.iter().for_each(|line| println!("{line}"));
        checks.add(last);
    }
    Ok(())
}

/// One rank on the device of its number.
fn member(rank: usize, ranks: usize, id: Id, checks: &Checks, label: &str) -> Result<(), Fails> {
    let stream = CudaContext::new(rank)?.new_stream()?;
    let comm = nccl(Comm::from_rank(stream, rank, ranks, id))?;
    Rank::new(&comm, checks, label).all()?;
    // Dropping the communicator aborts it: no rank may be in a call of the others still.
    comm.stream().synchronize()?;
    Ok(())
}

fn to_hex(id: &Id) -> String {
    id.internal().iter().map(|byte| format!("{:02x}", *byte as u8)).collect()
}

fn from_hex(text: &str) -> Option<Id> {
    let mut internal = [0; 128];
    for (i, byte) in internal.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()? as c_char;
    }
    Some(Id::uninit(internal))
}

fn run(arguments: &[String], checks: &Checks) -> Result<(), Fails> {
    let usage = || Fails("usage: cudarc-client [devices|threads|processes [NUMBER OF DEVICES]]".into());
    let number = |text: &str| text.parse::<usize>().map_err(|_| usage());
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [] => ["devices", "threads", "processes"].iter().try_for_each(|mode| run(&[mode.to_string()], checks)),
        [mode] => run(&[mode.to_string(), DEVICES.to_string()], checks),
        ["devices", ranks] => devices::all(number(ranks)?, checks),
        ["threads", ranks] => threads(number(ranks)?, checks),
        ["processes", ranks] => processes(number(ranks)?, checks),
        ["rank", ranks, rank, id] => {
            member(number(rank)?, number(ranks)?, from_hex(id).ok_or_else(usage)?, checks, "processes")
        }
        _ => Err(usage()),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let checks = Checks::default();
    if let Err(error) = run(&arguments, &checks) {
        eprintln!("cudarc-client: {error}");
        return ExitCode::FAILURE;
    }
    if checks.close() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
