//! Calls that may do without slots: which buffers a rank offers its peers.

use super::Call;
use crate::comm::{Comm, Parts};
use crate::plan::offer::{MISSING, UNUSED};
use crate::plan::shape::{Shape, shape};
use crate::plan::zero_copy::{self, Reach};

/// Input and output of a call as the peers find them. Before that, what they have registered meanwhile is mapped.
pub(super) fn words(comm: &Comm, parts: &Parts, call: &Call) -> [u64; 2] {
    let (rank, nranks) = (comm.rank() as u32, comm.nranks() as u32);
    let root = if call.func.has_root() { call.root as u32 } else { 0 };
    let Reach { input, output } = zero_copy::offers(call.func, root, rank);
    let blocks = match shape(call.func, nranks) {
        Shape::Divided => (1, 1),
        Shape::Uniform { input, output } => (input, output),
    };
    let words = match (&parts.registrations, &parts.recorder) {
        (Some(registrations), Some(recorder)) => {
            registrations.look(recorder, || comm.device_is_quiet());
            let offer = |used: bool, address: u64, blocks: u32| {
                if used { registrations.offer(recorder, address, call.bytes() * u64::from(blocks)) } else { UNUSED }
            };
            [offer(input, call.send, blocks.0), offer(output, call.recv, blocks.1)]
        }
        _ => [input, output].map(|used| if used { MISSING } else { UNUSED }),
    };
    log(call, words);
    words
}

fn log(call: &Call, words: [u64; 2]) {
    if !log::log_enabled!(target: "TUNING", log::Level::Info) {
        return;
    }
    let [input, output] = words.map(|word| match word {
        UNUSED => "not used",
        MISSING => "not registered",
        _ => "registered",
    });
    log::info!(target: "TUNING", "{} {} B: zero-copy offered, input {input}, output {output}", call.func.name(), call.bytes());
}
