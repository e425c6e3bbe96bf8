//! Calls that may do without slots: which buffers a rank offers its peers.

use super::Call;
use super::target::LaunchTarget;
use crate::plan::offer::{MISSING, UNUSED};
use crate::plan::shape::{Shape, shape};
use crate::plan::zero_copy::{self, Reach};

/// Input and output of a call as the peers find them. Before that, what they have registered meanwhile is mapped.
pub(super) fn words(target: &impl LaunchTarget, call: &Call) -> [u64; 2] {
    let (rank, nranks) = (target.rank() as u32, target.nranks() as u32);
    let root = if call.func.has_root() { call.root as u32 } else { 0 };
    let Reach { input, output } = zero_copy::offers(call.func, root, rank);
    let blocks = match shape(call.func, nranks) {
        Shape::Divided => (1, 1),
        Shape::Uniform { input, output } => (input, output),
    };
    let buffer = |used: bool, address: u64, blocks: u32| used.then(|| (address, call.bytes() * u64::from(blocks)));
    let words = target.offer([buffer(input, call.send, blocks.0), buffer(output, call.recv, blocks.1)]);
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
    let (name, bytes) = (call.func.name(), call.bytes());
    log::info!(target: "TUNING", "{name} {bytes} B: zero-copy offered, input {input}, output {output}");
}
