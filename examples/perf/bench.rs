//! What is measured: the table of sizes, many small calls, and initialisation.

use std::io::{IsTerminal, Write};
use std::time::Instant;

use serde_json::{Value, json};

use crate::args::{Args, Mode, Step};
use crate::flags;
use crate::machine::Device;
use crate::orders::{Case, Order, Reply};
use crate::processes::Workers;
use crate::subject::Subject;
use crate::table::{self, Row, Timing};

/// Time to fill with timed calls where `-i` does not say how many, in seconds.
const FILL: f64 = 0.05;
/// Fewest and most timed calls where `-i` does not say how many.
const CALLS: (f64, f64) = (5.0, 2000.0);
/// How often the number of timed calls is mended.
const TRIES: usize = 3;

/// A line that is overwritten, on stderr, if that is a terminal.
struct Progress {
    shown: bool,
}

impl Progress {
    fn new() -> Progress {
        Progress { shown: std::io::stderr().is_terminal() }
    }

    fn show(&self, text: &str) {
        if self.shown {
            let mut stderr = std::io::stderr().lock();
            let _ = write!(stderr, "\r\x1b[K{text}");
            let _ = stderr.flush();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.show("");
    }
}

/// Measures what the arguments say. True if every value was right.
///
/// # Errors
/// What failed, for the user.
pub fn run(args: &Args, device: &Device) -> Result<bool, String> {
    say(args, &format!("# {}", device.line));
    match args.mode {
        Mode::Init => init(args, device),
        Mode::Table | Mode::Calls(_) => collectives(args, device),
    }
}

/// Prints a line, except under `--json`, where stdout is for the JSON object.
fn say(args: &Args, line: &str) {
    if !args.json {
        println!("{line}");
    }
}

fn collectives(args: &Args, device: &Device) -> Result<bool, String> {
    say(args, &settings(args));
    let flags_before = flags::exchange_ns();
    let start = Instant::now();
    let (mut workers, ready) = Workers::start(args, device)?;
    let inits = workers.init()?;
    let from_spawn = start.elapsed().as_secs_f64();
    let from_call = inits.into_iter().fold(0.0, f64::max);
    introduce(args, &ready);
    say(args, &format!("# init: {from_call:.3} s from the call, {from_spawn:.3} s from the start of the ranks"));
    say(args, &format!("# flag exchange between two processes: {}", flags::show(flags_before)));
    let mut report = json!({
        "nranks": args.nranks, "threads": args.threads, "per_worker": args.per_worker, "device": device.line,
        "version": version(&ready), "init_s": {"from_call": from_call, "from_spawn": from_spawn},
    });
    let wrong = match args.mode {
        Mode::Calls(calls) => many_calls(args, &mut workers, calls, &mut report)?,
        _ => sweep(args, &mut workers, &mut report)?,
    };
    workers.quit()?;
    let flags_after = flags::exchange_ns();
    say(args, &format!("# flag exchange afterwards           : {}", flags::show(flags_after)));
    report["flag_exchange_ns"] = json!({"before": flags_before, "after": flags_after});
    finish(args, &report);
    Ok(wrong == 0)
}

fn finish(args: &Args, report: &Value) {
    if args.json {
        println!("{report}");
    }
}

fn settings(args: &Args) -> String {
    let step = match args.step {
        Step::Factor(factor) => format!("{factor}(factor)"),
        Step::Bytes(bytes) => format!("{bytes}(bytes)"),
    };
    format!(
        "# nRanks {} ({}, {} per {}) minBytes {} maxBytes {} step: {step} warmup iters: {} iters: {} validation: {}",
        args.nranks,
        if args.threads { "threads of one process" } else { "processes" },
        args.per_worker,
        if args.threads { "thread" } else { "process" },
        args.min_bytes,
        args.max_bytes,
        args.warmup,
        args.iterations.map_or_else(|| "as fill 50 ms".into(), |n| n.to_string()),
        u8::from(args.check),
    )
}

fn version(ready: &[Reply]) -> i32 {
    match ready.first() {
        Some(Reply::Ready { version, .. }) => *version,
        _ => 0,
    }
}

/// Says which rank uses which device; one line where they are all alike.
fn introduce(args: &Args, ready: &[Reply]) {
    let devices = |reply: &Reply| match reply {
        Reply::Ready { devices, .. } => devices.clone(),
        _ => Vec::new(),
    };
    let names: Vec<String> = ready.iter().flat_map(devices).collect();
    say(args, &format!("# library version {}", version(ready)));
    match names.first() {
        Some(first) if names.len() > 1 && names.iter().all(|name| name == first) => {
            say(args, &format!("# ranks 0 to {}: device of the same number, {first}", names.len() - 1));
        }
        _ => names
            .iter()
            .enumerate()
            .for_each(|(rank, name)| say(args, &format!("# rank {rank}: device {rank}, {name}"))),
    }
}

/// The table. Returns how many elements were wrong.
fn sweep(args: &Args, workers: &mut Workers, report: &mut Value) -> Result<usize, String> {
    let sizes = args.sizes();
    let named = args.subjects.len() > 1;
    let largest = sizes.last().copied().unwrap_or(0);
    workers.all(&Order::Allocate(usize::try_from(largest).map_err(|error| error.to_string())?))?;
    say(args, &format!("#\n{}", table::header(named)));
    let progress = Progress::new();
    let mut rows = Vec::new();
    for case in cases(args, &sizes)? {
        progress.show(&format!(
            "{} of {} elements, {} {}",
            case.subject.word(),
            case.count,
            case.dtype().name(),
            case.op().name()
        ));
        let row = measure(args, workers, case, rows.len())?;
        progress.show("");
        say(args, &row.line(named));
        rows.push(row);
    }
    drop(progress);
    let (wrong, average) = (table::wrong(&rows), table::average_bus_bandwidth(&rows));
    if args.check {
        say(args, &format!("# Out of bounds values : {wrong} {}", if wrong == 0 { "OK" } else { "FAILED" }));
    }
    say(args, &format!("# Avg bus bandwidth    : {average:.5}\n#"));
    report["rows"] = rows.iter().map(Row::json).collect();
    report["avg_busbw"] = json!(average);
    report["wrong"] = json!(wrong);
    Ok(wrong)
}

/// The calls of the table, out of place.
fn cases(args: &Args, sizes: &[u64]) -> Result<Vec<Case>, String> {
    let mut list = Vec::new();
    for subject in &args.subjects {
        // Where nothing is reduced, one operator is as good as the others.
        let ops = if subject.reduces() { &args.ops[..] } else { &args.ops[..1] };
        for size in sizes {
            let bytes = usize::try_from(*size).map_err(|error| error.to_string())?;
            for (dtype, op) in args.dtypes.iter().flat_map(|dtype| ops.iter().map(move |op| (*dtype, *op))) {
                list.push(case(args, *subject, bytes, (dtype as usize, op as usize)));
            }
        }
    }
    Ok(list)
}

/// A call on so many bytes, out of place.
pub fn case(args: &Args, subject: Subject, bytes: usize, (dtype, op): (usize, usize)) -> Case {
    let case = Case { subject, count: 0, dtype, op, root: args.root, in_place: false };
    Case { count: subject.count(bytes, case.dtype().size(), args.nranks), ..case }
}

fn measure(args: &Args, workers: &mut Workers, case: Case, round: usize) -> Result<Row, String> {
    let out_of_place = time(args, workers, case, 2 * round)?;
    let in_place = match case.subject.has_in_place() {
        true => Some(time(args, workers, Case { in_place: true, ..case }, 2 * round + 1)?),
        false => None,
    };
    Ok(Row { case, nranks: args.nranks, out_of_place, in_place })
}

fn timed(args: &Args, case: Case, calls: u64) -> Order {
    Order::Run { case, calls, blocking: args.blocking }
}

/// The time of a call, over the ranks as the arguments say.
///
/// # Errors
/// What failed, for the user.
pub fn time(args: &Args, workers: &mut Workers, case: Case, round: usize) -> Result<Timing, String> {
    let warmup = args.warmup.max(1);
    let warm = workers.times(&timed(args, case, warmup))?;
    let mut slowest = warm.into_iter().fold(1e-9, f64::max) / warmup as f64;
    let mut seconds = 0.0;
    for _ in 0..TRIES {
        let calls = args.iterations.unwrap_or_else(|| (FILL / slowest).clamp(CALLS.0, CALLS.1) as u64);
        let times = workers.times(&timed(args, case, calls))?;
        seconds = table::over_ranks(args, &times) / calls as f64;
        slowest = times.into_iter().fold(1e-9, f64::max) / calls as f64;
        // The untimed calls can be far slower than the rest; then there were too few timed ones.
        if args.iterations.is_some() || calls as f64 >= CALLS.1 || slowest * calls as f64 > FILL / 2.0 {
            break;
        }
    }
    let wrong = if args.check { Some(check(workers, case, round)?) } else { None };
    Ok(Timing { seconds, wrong })
}

/// How many elements were wrong; the first of them is told on stderr.
fn check(workers: &mut Workers, case: Case, round: usize) -> Result<usize, String> {
    let mut total = 0;
    let mut example = None;
    for reply in workers.all(&Order::Check(case, round))? {
        if let Reply::Wrong(wrong, first) = reply {
            total += wrong;
            example = example.or(first);
        }
    }
    if let Some(example) = example {
        eprintln!("perf: wrong value: {example}");
    }
    Ok(total)
}

/// Many calls of the smallest size with one wait at the end. Returns how many elements were wrong.
fn many_calls(args: &Args, workers: &mut Workers, calls: u64, report: &mut Value) -> Result<usize, String> {
    let bytes = usize::try_from(args.min_bytes).map_err(|error| error.to_string())?;
    let case = case(args, args.subjects[0], bytes.max(1), (args.dtypes[0] as usize, args.ops[0] as usize));
    let bytes = case.count * case.dtype().size() * case.subject.blocks(args.nranks);
    workers.all(&Order::Allocate(bytes))?;
    workers.all(&timed(args, case, args.warmup))?;
    let seconds = table::over_ranks(&Args { average: 3, ..args.clone() }, &workers.times(&timed(args, case, calls))?);
    let wrong = if args.check { check(workers, case, 0)? } else { 0 };
    say(
        args,
        &format!(
            "{calls} calls of {}, {bytes} bytes, {} ranks: {seconds:.3} s, {:.2} us each, {wrong} wrong",
            case.subject.word(),
            args.nranks,
            seconds * 1e6 / calls as f64
        ),
    );
    report["calls"] = json!({"n": calls, "bytes": bytes, "seconds": seconds, "wrong": wrong});
    Ok(wrong)
}

/// Time to a ready communicator, in fresh processes each time.
fn init(args: &Args, device: &Device) -> Result<bool, String> {
    let flags_before = flags::exchange_ns();
    say(args, &format!("# flag exchange between two processes: {}", flags::show(flags_before)));
    say(args, "#   round   ranks   from spawn (s)   from call (s)      (the slowest rank)");
    let progress = Progress::new();
    let mut rounds = Vec::new();
    for round in 1..=args.rounds {
        progress.show(&format!("round {round} of {}", args.rounds));
        let start = Instant::now();
        let (mut workers, _) = Workers::start(args, device)?;
        let slowest = workers.init()?.into_iter().fold(0.0, f64::max);
        let from_spawn = start.elapsed().as_secs_f64();
        workers.quit()?;
        progress.show("");
        say(args, &format!("{round:>9} {:>7} {from_spawn:>16.3} {slowest:>15.3}", args.nranks));
        rounds.push((from_spawn, slowest));
    }
    drop(progress);
    let (spawn, call) = (median(rounds.iter().map(|r| r.0)), median(rounds.iter().map(|r| r.1)));
    say(args, &format!("#  median {:>7} {spawn:>16.3} {call:>15.3}", args.nranks));
    let flags_after = flags::exchange_ns();
    say(args, &format!("# flag exchange afterwards           : {}", flags::show(flags_after)));
    finish(
        args,
        &json!({
            "nranks": args.nranks, "threads": args.threads, "device": device.line,
            "from_spawn_s": spawn, "from_call_s": call, "rounds": rounds,
            "flag_exchange_ns": {"before": flags_before, "after": flags_after},
        }),
    );
    Ok(true)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
