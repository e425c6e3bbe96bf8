//! How a call of `count` elements is split: into chunks (the schedule's), each chunk over channels, each
//! channel's part into pieces that fit a slot. Pure arithmetic; every rank computes the same.

use super::call::DataType;
use super::layout::{Proto, Work};
use super::operator::Operator;
use crate::error::Error;

/// Chunks, parts and pieces begin at multiples of this many bytes, so that data in slots and in user
/// buffers is equally aligned and no two channels write to one cache line.
const LINE: u64 = 64;

/// What a split depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Elements of the call, or with `blocks` those of one block.
    pub count: u64,
    /// The element type.
    pub datatype: DataType,
    /// Chunks of the schedule, at least 1.
    pub nchunks: u32,
    /// The data are `nchunks` blocks of `count` elements, one for each chunk; else `count` elements are cut.
    pub blocks: bool,
    /// The most channels, at least 1.
    pub max_channels: u32,
    /// Bytes of a slot: a multiple of 64 for [`Proto::Simple`], of 128 for [`Proto::Ll`] and of 1024 for
    /// [`Proto::Ll128`], and not 0.
    pub slot_bytes: u64,
    /// How slots carry data.
    pub proto: Proto,
    /// Bytes of the call for which a channel is worth its while.
    pub min_channel_bytes: u64,
}

/// A split: which elements a channel moves, and how many at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Elements of the call.
    pub count: u64,
    /// Chunks.
    pub nchunks: u32,
    /// Channels that have something to do, at least 1.
    pub nchannels: u32,
    /// Elements of a chunk. The last chunks can be short or empty.
    pub block: u64,
    /// Elements of a channel's part of a chunk. The last part can be short.
    pub part: u64,
    /// Elements that travel in one slot.
    pub piece: u64,
    /// How slots carry data.
    pub proto: Proto,
}

impl Geometry {
    /// Splits a call.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the call has more bytes than memory can have (2^63 - 1);
    /// [`Error::Internal`] where the request is not as its fields say.
    pub fn new(r: &Request) -> Result<Geometry, Error> {
        let size = r.datatype.size() as u64;
        let slot_data = r.proto.slot_data(r.slot_bytes);
        if r.nchunks == 0 || r.max_channels == 0 || slot_data < LINE || !slot_data.is_multiple_of(LINE) {
            return Err(Error::Internal(format!("cannot split {r:?}")));
        }
        let total = r.count.checked_mul(if r.blocks { u64::from(r.nchunks) } else { 1 });
        let bytes = total.and_then(|total| total.checked_mul(size)).filter(|&b| i64::try_from(b).is_ok());
        let (Some(bytes), Some(total)) = (bytes, total) else {
            return Err(Error::InvalidArgument(format!(
                "count {} of {:?} is more than memory holds",
                r.count, r.datatype
            )));
        };
        let line = LINE / size;
        let block = match r.blocks {
            true => r.count.max(1),
            false => to_line(r.count.div_ceil(u64::from(r.nchunks)).max(1), line),
        };
        let wanted = bytes / r.min_channel_bytes.max(1);
        let channels = wanted.clamp(1, u64::from(r.max_channels));
        // A chunk of less than a line is not divided any further, and no line is.
        let part = if block < line { block } else { block.div_ceil(channels).next_multiple_of(line) };
        Ok(Geometry {
            count: total,
            nchunks: r.nchunks,
            nchannels: block.div_ceil(part) as u32,
            block,
            part,
            piece: (slot_data / size).min(part),
            proto: r.proto,
        })
    }

    /// A channel's part of every chunk: begin and end, in elements from the chunk's begin.
    pub fn range(&self, channel: u32) -> (u64, u64) {
        let lo = (u64::from(channel) * self.part).min(self.block);
        (lo, (lo + self.part).min(self.block))
    }

    /// The work item of a channel, complete but for its addresses, steps and links.
    pub fn work(&self, channel: u32, datatype: DataType, operator: &Operator) -> Work {
        let (lo, hi) = self.range(channel);
        Work {
            count: self.count,
            block: self.block,
            piece: self.piece,
            lo,
            hi,
            nchunks: self.nchunks,
            datatype: datatype as u8,
            op: operator.op as u8,
            proto: self.proto as u8,
            flags: operator.flags,
            pre: operator.pre,
            post: operator.post,
            ..Work::default()
        }
    }
}

/// Rounds up to whole lines, but for less than a line: there, spreading a few elements over the chunks is
/// worth more than alignment.
fn to_line(elements: u64, line: u64) -> u64 {
    if elements < line { elements } else { elements.next_multiple_of(line) }
}

#[cfg(test)]
mod tests;
