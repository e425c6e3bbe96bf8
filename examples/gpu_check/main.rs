//! The kernels on a device, without anything between them and the driver: what they need of it, and whether they
//! compute what they shall. All ranks are blocks of one launch, so one device does and nobody can be late.
//!
//! ```text
//! gpu_check            every type, operator and protocol, several sizes and numbers of ranks
//! gpu_check --quick    the same with few and small ones, for tools that make kernels slow
//! ```
//!
//! The last line says how many cases there were and how many were wrong. Exit code: 0 none, 1 some, 3 no device.

#[allow(dead_code)]
#[path = "../../tests/common/oracle.rs"]
mod oracle;
mod world;

use std::process::ExitCode;
use std::sync::Arc;

use nccl::device::{Context, Kernels};
use nccl::error::Error;
use nccl::plan::call::DataType;
use nccl::plan::layout::Proto;
use oracle::{RedOp, Reduction};
use world::{Case, Patterns, World};

fn main() -> ExitCode {
    let quick = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--quick") => true,
        Some(other) => {
            eprintln!("gpu_check: {other}: unknown; the only option is --quick");
            return ExitCode::from(2);
        }
    };
    match check(quick) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(error) => {
            eprintln!("gpu_check: {error}");
            ExitCode::from(3)
        }
    }
}

/// The number of a kernel in the list of names.
fn number(proto: Proto, datatype: DataType) -> usize {
    proto as usize * DataType::ALL.len() + datatype as usize
}

/// Both parts; the number of wrong cases.
fn check(quick: bool) -> Result<usize, Error> {
    let context = Context::retain(0)?;
    let protocols = Proto::of_device(context.driver().is_software());
    let names: Vec<String> =
        protocols.iter().flat_map(|proto| DataType::ALL.iter().map(|t| proto.kernel_name(*t))).collect();
    let kernels = Kernels::get(&context, &names)?;
    let facts = context.facts()?;
    let device = if context.driver().is_software() { "software device" } else { "GPU" };
    println!("{device}, compute capability {}, driver {}", facts.capability, context.driver().version());
    println!("{:<22} {:>9} {:>6} {:>6}", "kernel", "registers", "stack", "shared");
    for (index, name) in names.iter().enumerate() {
        let facts = kernels.facts(index)?;
        println!("{name:<22} {:>9} {:>6} {:>6}", facts.registers, facts.local_bytes, facts.shared_bytes);
    }
    let (mut cases, mut wrong) = (0, 0);
    for nranks in if quick { &[2][..] } else { &[2, 3, 6] } {
        for proto in protocols {
            let (of_world, bad) = check_world(&context, &kernels, *nranks, *proto, quick)?;
            cases += of_world;
            wrong += bad;
        }
    }
    println!("blocks of one launch: {cases} cases, {wrong} wrong");
    Ok(wrong)
}

/// All types and operators on one set of links; how many cases there were and how many were wrong.
fn check_world(
    context: &Arc<Context>,
    kernels: &Kernels,
    nranks: u32,
    proto: Proto,
    quick: bool,
) -> Result<(usize, usize), Error> {
    let world = World::new(context, nranks, proto)?;
    let counts: &[usize] = if quick { &[1, 3001] } else { &[1, 5, 1000, 4096, 50_003] };
    let (mut cases, mut wrong) = (0, 0);
    for (datatype, dtype) in DataType::ALL.into_iter().zip(oracle_types()) {
        for op in RedOp::ALL {
            let reduction = Reduction { dtype, op, nranks: nranks as usize };
            let patterns = Patterns::new(&reduction);
            for (turn, count) in counts.iter().enumerate() {
                // Every other case in place, and one of three not aligned.
                let case = Case { reduction, datatype, count: *count, in_place: turn % 2 == 1, offset: turn % 3 % 2 };
                cases += 1;
                if let Some(fault) = world.run(kernels, number(proto, datatype), &case, &patterns)? {
                    wrong += 1;
                    println!("WRONG: {}, {nranks} ranks, {case:?}: {fault}", proto.name());
                }
            }
        }
    }
    Ok((cases, wrong))
}

/// The oracle's names of the types, in the order of their numbers.
fn oracle_types() -> impl Iterator<Item = oracle::DataType> {
    oracle::DataType::all()
}
