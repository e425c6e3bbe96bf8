//! Checks and times collectives, in the manner of nccl-tests, and starts its ranks itself:
//!
//! ```text
//! cargo run --release --example perf -- all_reduce -n 4
//! cargo run --release --example perf -- all_reduce -n 8 -b 8 -e 128M -f 2 -d all -o all
//! cargo run --release --example perf -- all -n 4
//! cargo run --release --example perf -- init -n 64
//! cargo run --release --example perf -- predict all_reduce --machine 8xH100
//! cargo run --release --example perf -- constants --out here.txt
//! cargo run --release --example perf -- predict all_reduce --machine here.txt --measured
//! cargo run --release --example perf -- network
//! ```
//!
//! Where there is no GPU driver, the ranks run on softcuda, with as many devices as ranks. Every result is
//! compared, bit for bit, with values that were computed independently (`tests/common/oracle.rs`).

#[path = "../../tests/common/mod.rs"]
mod common;

mod args;
mod bench;
mod constants;
mod contents;
mod flags;
mod here;
mod machine;
mod measured;
mod network;
mod orders;
mod predict;
mod processes;
mod subject;
mod table;
mod ways;
mod worker;

use std::process::ExitCode;

/// Exit codes, as [`args::HELP`] has them.
const WRONG: u8 = 1;
const USAGE: u8 = 2;
const FAILED: u8 = 3;

fn main() -> ExitCode {
    if let Some(code) = flags::main_if_peer().or_else(network::main_if_end).or_else(worker::main_if_worker) {
        return ExitCode::from(u8::try_from(code).unwrap_or(FAILED));
    }
    let mut arguments = std::env::args_os().skip(1).peekable();
    if arguments.next_if(|word| word == "predict").is_some() {
        return predict::main(arguments);
    }
    if arguments.next_if(|word| word == "constants").is_some() {
        return constants::main(arguments);
    }
    if arguments.next_if(|word| word == "network").is_some() {
        return network::main(arguments);
    }
    let args = match args::parse(arguments) {
        Ok(Some(args)) => args,
        Ok(None) => {
            print!("{}", args::HELP);
            return ExitCode::SUCCESS;
        }
        Err(why) => {
            eprintln!("perf: {why}\n`perf -h` shows how it is used");
            return ExitCode::from(USAGE);
        }
    };
    if let Some(hint) = machine::launcher_hint(args.nranks, |name| std::env::var(name).ok()) {
        eprintln!("perf: {hint}");
    }
    let result = machine::Device::find(&args).and_then(|device| bench::run(&args, &device));
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("perf: there were wrong values");
            ExitCode::from(WRONG)
        }
        Err(why) => {
            eprintln!("perf: {why}");
            ExitCode::from(FAILED)
        }
    }
}
