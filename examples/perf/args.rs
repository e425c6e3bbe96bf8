//! The command line.

use std::time::Duration;

use lexopt::prelude::*;

use crate::common::oracle::{DataType, RedOp};
use crate::subject::Subject;

/// Text of `--help`.
pub const HELP: &str = "\
perf: checks and times collectives, in the manner of nccl-tests

  perf all_reduce [options]       all sizes from -b to -e: correctness and speed
                                  as well: all_gather reduce_scatter broadcast reduce alltoall gather
                                  scatter sendrecv
  perf all [options]              all of them in one table
  perf all_reduce --calls N       N calls of the smallest size, one synchronisation at the end
  perf init [options]             time until a communicator is ready
  perf predict all_reduce ...     what calls would take on a machine that is only described (perf predict -h)
  perf constants                  what that description is for the machine at hand (perf constants -h)
  perf network                    what sockets give between two network namespaces (perf network -h)

  -n RANKS        how many ranks (default 2); perf starts them itself, mpirun is not needed
  -g DEVICES      ranks of one process or thread, driven by one thread in groups (default 1)
  -t              threads of one process instead of processes
  --hosts N       processes on so many hosts of perf's own: network namespaces on a bridge (default 1)
  -b, -e BYTES    smallest and largest size, e.g. 8, 32K, 128M, 1G (default 8 to 32M)
  -f FACTOR       from size to size (default 2; 8 for `all`); or --step BYTES
  -d TYPE         int8 uint8 int32 uint32 int64 uint64 half float double bfloat16 fp8_e4m3 fp8_e5m2,
                  or all (default float)
  -o OP           sum prod max min avg, or all (default sum)
  -r RANK         the root, where there is one (default 0)
  -c 0|1          check every result against independently computed values (default 1)
  -w N            untimed calls before (default 5)
  -i N            timed calls (default: as many as fill 50 ms, 5 to 2000)
  -z 0|1          wait after each call, as a blocking library does, instead of after all (default 0)
  -R 0|1          1: buffers are of ncclMemAlloc, and registered (default 0)
  -a 0|1|2|3      time of rank 0, average, minimum or maximum over the ranks (default 1)
  --rounds N      init: how often (default 3)
  --device KIND   auto: a GPU where there is a driver, else the software device; soft; gpu
  --nccl FILE     another library than the one that this build made
  --timeout SEC   an order that takes longer is a hang: states are printed, ranks killed (default 120)
  --json          one JSON object on stdout instead of the table

Exit code: 0 all right, 1 wrong values, 2 bad usage, 3 a rank failed or hung.
";

/// What to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The table of sizes.
    Table,
    /// So many small calls in a row.
    Calls(u64),
    /// Time to a ready communicator.
    Init,
}

/// Which device to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A GPU where there is a driver with a device, else the software device.
    Auto,
    /// The software device.
    Soft,
    /// A GPU.
    Gpu,
}

/// How the next size follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Times this.
    Factor(u64),
    /// Plus this many bytes.
    Bytes(u64),
}

/// The command line, checked; [`HELP`] says what each part is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Args {
    pub mode: Mode,
    /// What is called; several only in a table.
    pub subjects: Vec<Subject>,
    pub nranks: usize,
    pub per_worker: usize,
    pub threads: bool,
    /// Hosts that processes are spread over, as many on each.
    pub hosts: usize,
    pub min_bytes: u64,
    pub max_bytes: u64,
    pub step: Step,
    pub dtypes: Vec<DataType>,
    pub ops: Vec<RedOp>,
    pub root: usize,
    pub check: bool,
    pub warmup: u64,
    pub iterations: Option<u64>,
    pub average: u8,
    pub blocking: bool,
    /// Buffers are registered.
    pub register: bool,
    pub rounds: usize,
    pub device: DeviceKind,
    pub nccl: Option<String>,
    pub timeout: Duration,
    pub json: bool,
}

impl Default for Args {
    fn default() -> Args {
        Args {
            mode: Mode::Table,
            subjects: vec![Subject::AllReduce],
            nranks: 2,
            per_worker: 1,
            threads: false,
            hosts: 1,
            min_bytes: 8,
            max_bytes: 32 << 20,
            step: Step::Factor(2),
            dtypes: vec![DataType::Float32],
            ops: vec![RedOp::Sum],
            root: 0,
            check: true,
            warmup: 5,
            iterations: None,
            average: 1,
            blocking: false,
            register: false,
            rounds: 3,
            device: DeviceKind::Auto,
            nccl: None,
            timeout: Duration::from_secs(120),
            json: false,
        }
    }
}

/// Reads the arguments (without the program's name); `None` when help is wanted.
///
/// # Errors
/// What is wrong, for the user.
pub fn parse<I>(args: I) -> Result<Option<Args>, String>
where
    I: IntoIterator,
    I::Item: Into<std::ffi::OsString>,
{
    let mut parser = lexopt::Parser::from_args(args);
    let mut args = Args::default();
    let mut measured = None;
    let mut stepped = false;
    while let Some(arg) = parser.next().map_err(text)? {
        let name = match arg {
            Short('h') | Long("help") => return Ok(None),
            Value(word) if measured.is_none() => {
                measured = Some(measured_by(&word.string().map_err(text)?)?);
                continue;
            }
            Value(_) => return Err(text(arg.unexpected())),
            Short(c) => format!("-{c}"),
            Long(word) => format!("--{word}"),
        };
        stepped |= ["-f", "--step"].contains(&name.as_str());
        option(&mut args, &mut parser, &name)?;
    }
    let subjects = measured.ok_or_else(|| format!("say what to measure: {}", words()))?;
    match (subjects.len(), &args.mode) {
        (1, _) => {}
        (_, Mode::Calls(_)) => return Err("--calls is for one collective".into()),
        (0, _) => args.mode = Mode::Init,
        _ if !stepped => args.step = MANY_STEP,
        _ => {}
    }
    args.subjects = subjects;
    check(args).map(Some)
}

/// The step where several collectives are measured: a screenful for each would be much.
const MANY_STEP: Step = Step::Factor(8);

fn words() -> String {
    let all: Vec<&str> = Subject::ALL.map(Subject::word).into();
    format!("{}, all or init", all.join(", "))
}

/// What a word stands for; nothing to call for `init`.
fn measured_by(word: &str) -> Result<Vec<Subject>, String> {
    match word {
        "init" => Ok(Vec::new()),
        "all" => Ok(Subject::ALL.to_vec()),
        _ => match Subject::of(word) {
            Some(subject) => Ok(vec![subject]),
            None => Err(format!("`{word}` is not something that perf measures: {}", words())),
        },
    }
}

fn option(args: &mut Args, parser: &mut lexopt::Parser, name: &str) -> Result<(), String> {
    match name {
        "-t" => args.threads = true,
        "--json" => args.json = true,
        _ => {
            let value = parser.value().map_err(text)?.string().map_err(text)?;
            set(args, name, &value).map_err(|why| format!("{name} {value}: {why}"))?;
        }
    }
    Ok(())
}

fn set(args: &mut Args, name: &str, value: &str) -> Result<(), String> {
    match name {
        "-n" => args.nranks = number(value, 1, 4096)? as usize,
        "-g" => args.per_worker = number(value, 1, 4096)? as usize,
        "--hosts" => args.hosts = number(value, 1, 64)? as usize,
        "-b" => args.min_bytes = bytes(value)?,
        "-e" => args.max_bytes = bytes(value)?,
        "-f" => args.step = Step::Factor(number(value, 2, 1 << 30)?),
        "--step" => args.step = Step::Bytes(bytes(value)?.max(1)),
        "-d" => args.dtypes = dtypes(value)?,
        "-o" => args.ops = ops(value)?,
        "-r" => args.root = number(value, 0, 4095)? as usize,
        "-c" => args.check = number(value, 0, 1_000_000)? > 0,
        "-w" => args.warmup = number(value, 0, 1_000_000)?,
        "-i" => args.iterations = Some(number(value, 1, 1_000_000_000)?),
        "-a" => args.average = number(value, 0, 3)? as u8,
        "-R" | "--register" => args.register = number(value, 0, 1)? == 1,
        "-z" => args.blocking = number(value, 0, 1)? == 1,
        "--calls" => args.mode = Mode::Calls(number(value, 1, 1_000_000_000)?),
        "--rounds" => args.rounds = number(value, 1, 1_000_000)? as usize,
        "--device" => args.device = device(value)?,
        "--nccl" => args.nccl = Some(value.to_string()),
        "--timeout" => args.timeout = Duration::from_secs(number(value, 1, 1_000_000)?),
        _ => return Err("there is no such option; -h lists them".into()),
    }
    Ok(())
}

fn check(args: Args) -> Result<Args, String> {
    if args.min_bytes > args.max_bytes {
        return Err(format!("-b {} is more than -e {}", args.min_bytes, args.max_bytes));
    }
    if !args.nranks.is_multiple_of(args.per_worker) {
        return Err(format!("-n {} is no multiple of -g {}", args.nranks, args.per_worker));
    }
    if args.hosts > 1 && (args.threads || !args.workers().is_multiple_of(args.hosts)) {
        return Err(format!("--hosts {} is for as many processes on each", args.hosts));
    }
    if args.root >= args.nranks {
        return Err(format!("-r {} is no rank of -n {}", args.root, args.nranks));
    }
    Ok(args)
}

fn text(error: lexopt::Error) -> String {
    error.to_string()
}

fn number(value: &str, min: u64, max: u64) -> Result<u64, String> {
    match value.parse() {
        Ok(n) if (min..=max).contains(&n) => Ok(n),
        _ => Err(format!("a number from {min} to {max} is wanted")),
    }
}

/// `8`, `32K`, `128M`, `1G`, with or without a `B` or `iB` at the end; units are powers of 1024.
pub fn bytes(value: &str) -> Result<u64, String> {
    let upper = value.to_ascii_uppercase();
    let upper = upper.strip_suffix("IB").or(upper.strip_suffix('B')).unwrap_or(&upper);
    let (digits, unit) = match upper.char_indices().last() {
        Some((at, c)) if c.is_ascii_alphabetic() => (&upper[..at], c),
        _ => (upper, ' '),
    };
    let shift = match unit {
        ' ' => 0,
        'K' => 10,
        'M' => 20,
        'G' => 30,
        'T' => 40,
        _ => return Err("the unit must be K, M, G or T".into()),
    };
    let n: u64 = digits.parse().map_err(|_| "a size such as 8, 32K or 128M is wanted".to_string())?;
    n.checked_mul(1 << shift).ok_or_else(|| "more bytes than 64 bits can count".into())
}

fn dtypes(value: &str) -> Result<Vec<DataType>, String> {
    let name = match value.to_ascii_lowercase().as_str() {
        "all" => return Ok(DataType::all().collect()),
        "char" => "int8".to_string(),
        "int" => "int32".into(),
        "float16" | "fp16" => "half".into(),
        "float32" | "fp32" => "float".into(),
        "float64" | "fp64" => "double".into(),
        "bf16" => "bfloat16".into(),
        "float8e4m3" | "f8e4m3" => "fp8_e4m3".into(),
        "float8e5m2" | "f8e5m2" => "fp8_e5m2".into(),
        other => other.to_string(),
    };
    let found = DataType::all().find(|dtype| dtype.name() == name);
    let names: Vec<&str> = DataType::all().map(DataType::name).collect();
    found.map(|dtype| vec![dtype]).ok_or_else(|| format!("the types are {}, all", names.join(", ")))
}

fn ops(value: &str) -> Result<Vec<RedOp>, String> {
    if value == "all" {
        return Ok(RedOp::ALL.to_vec());
    }
    let found = RedOp::ALL.into_iter().find(|op| op.name() == value);
    found.map(|op| vec![op]).ok_or_else(|| "the operators are sum, prod, max, min, avg, all".into())
}

/// The kind of device of a word.
///
/// # Errors
/// What is wrong, for the user.
pub fn device(value: &str) -> Result<DeviceKind, String> {
    match value {
        "auto" => Ok(DeviceKind::Auto),
        "soft" => Ok(DeviceKind::Soft),
        "gpu" => Ok(DeviceKind::Gpu),
        _ => Err("auto, soft or gpu is wanted".into()),
    }
}

impl Args {
    /// The sizes in bytes, from the smallest to the largest.
    pub fn sizes(&self) -> Vec<u64> {
        let next = |size: &u64| match self.step {
            // Zero would stay zero.
            Step::Factor(factor) => size.max(&1).checked_mul(factor),
            Step::Bytes(bytes) => size.checked_add(bytes),
        };
        let sizes = std::iter::successors(Some(self.min_bytes), next);
        sizes.take_while(|size| *size <= self.max_bytes).collect()
    }

    /// How many threads or processes drive the ranks.
    pub fn workers(&self) -> usize {
        self.nranks / self.per_worker
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes_wanted) in
            [("8", 8), ("32K", 32768), ("128M", 128 << 20), ("1g", 1 << 30), ("2KiB", 2048), ("3MB", 3 << 20)]
        {
            assert_eq!(bytes(text), Ok(bytes_wanted), "{text}");
        }
        for text in ["", "K", "8X", "-1", "1.5K", "99999999999G"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_issue_s_command_line_is_understood() {
        let line = "all_reduce -n 4 -b 8 -e 128M -f 2 -d float -o sum -c 1 -t -w 2 -i 9 --json";
        let args = parse(line.split(' ')).expect("valid").expect("no help");
        let sizes = args.sizes();
        assert_eq!((sizes[0], sizes[1], sizes.len()), (8, 16, 25));
        assert_eq!(sizes.last(), Some(&(128 << 20)));
        assert!(args.threads && args.check && args.json);
        assert_eq!((args.nranks, args.warmup, args.iterations), (4, 2, Some(9)));
    }

    #[test]
    fn bad_usage_names_what_is_wrong() {
        for (line, part) in [
            ("", "all or init"),
            ("all_grather", "`all_grather`"),
            ("broadcast -r 2", "-r 2"),
            ("all --calls 3", "--calls"),
            ("all_reduce -n 0", "-n 0"),
            ("all_reduce -n x", "from 1 to 4096"),
            ("all_reduce -y 3", "no such option"),
            ("all_reduce -z 3", "from 0 to 1"),
            ("all_reduce -d float3", "bfloat16"),
            ("all_reduce -o mean", "avg"),
            ("all_reduce -b 1M -e 1K", "more than"),
            ("all_reduce -n 4 -g 3", "no multiple"),
            ("all_reduce -f 1", "from 2"),
            ("all_reduce extra", "extra"),
            ("init --calls 3", "--calls"),
            ("all_reduce -n", "-n"),
        ] {
            let error = parse(line.split_whitespace()).expect_err(line);
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn collectives_are_named() {
        let parsed = |line: &str| parse(line.split(' ')).expect("valid").expect("no help");
        let args = parsed("broadcast -n 4 -r 3");
        assert_eq!((args.subjects, args.root, args.step), (vec![Subject::Broadcast], 3, Step::Factor(2)));
        let args = parsed("all -n 4");
        assert_eq!((args.subjects.len(), args.step, args.mode), (9, Step::Factor(8), Mode::Table));
        assert_eq!(parsed("all -f 2").step, Step::Factor(2));
        assert_eq!(parsed("init").mode, Mode::Init);
    }

    #[test]
    fn steps_go_from_smallest_to_largest() {
        let args = parse("all_reduce -b 100 -e 1000 --step 300".split(' ')).expect("valid").expect("no help");
        assert_eq!(args.sizes(), [100, 400, 700, 1000]);
        let args = parse("all_reduce -b 0 -e 8 -f 2".split(' ')).expect("valid").expect("no help");
        assert_eq!(args.sizes(), [0, 2, 4, 8]);
    }
}
