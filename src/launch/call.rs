//! A data call as the C interface gives it, and what can be wrong with it by itself.

use crate::comm::config::CollConfig;
use crate::error::Error;
use crate::health::Record;
use crate::plan::call::{DataType, Func};
use crate::plan::operator::Reduction;
use crate::plan::shape::{Shape, has_input, has_output, shape};

/// A data call, with its numbers checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Which function.
    pub func: Func,
    /// The device address of the input.
    pub send: u64,
    /// The device address of the output.
    pub recv: u64,
    /// The number of elements, as the function counts them.
    pub count: usize,
    /// The element type.
    pub datatype: DataType,
    /// The reduction; a sum where the function has none.
    pub reduction: Reduction,
    /// The root, or the peer of a message; 0 where the function has none.
    pub root: i32,
    /// The user's stream.
    pub stream: usize,
    /// The configuration of the call; tuning fields are hints.
    pub config: Option<CollConfig>,
}

impl Call {
    /// The peer of a send or receive.
    pub(super) fn peer(&self) -> u32 {
        self.root as u32
    }

    /// Bytes of `count` elements. [`Call::check_buffers`] has found that they are a number.
    pub(super) fn bytes(&self) -> u64 {
        self.count as u64 * self.datatype.size() as u64
    }

    /// The call in one number that ranks compare: what all of them must say alike. Never 0.
    pub(super) fn signature(&self) -> u32 {
        // FNV-1a, by words of 64 bits.
        let hash =
            self.record(0).agreed().iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, word| {
                (hash ^ word).wrapping_mul(0x100_0000_01b3).rotate_left(29)
            });
        ((hash >> 32) as u32 ^ hash as u32) | 1
    }

    /// The call as the flight recorder keeps it.
    pub(super) fn record(&self, serial: u64) -> Record {
        Record {
            serial,
            func: self.func as u8,
            datatype: self.datatype as u8,
            op: self.reduction.number(),
            root: self.root as u32,
            count: self.count as u64,
        }
    }

    /// Refuses buffers that no kernel could use: NULL, an end past the address space, an address that is not aligned
    /// to the element type. At the call, so that a group learns of it there. A buffer that the function does not use
    /// on this rank may be anything.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] names the buffer.
    pub fn check_buffers(&self, rank: i32, nranks: i32) -> Result<(), Error> {
        let (rank, nranks, root) = (rank as u32, nranks as u32, self.root as u32);
        let (input, output) = match shape(self.func, nranks) {
            Shape::Divided => (1, 1),
            Shape::Uniform { input, output } => (input, output),
        };
        let used = |used: bool, blocks: u32| if used { u64::from(blocks) } else { 0 };
        self.check_buffer("sendbuff", self.send, used(has_input(self.func, root, rank), input))?;
        self.check_buffer("recvbuff", self.recv, used(has_output(self.func, root, rank), output))
    }

    /// Checks a buffer of `blocks` times `count` elements.
    fn check_buffer(&self, name: &str, address: u64, blocks: u64) -> Result<(), Error> {
        let (size, function) = (self.datatype.size() as u64, self.func.name());
        if blocks == 0 || self.count == 0 {
            return Ok(());
        }
        let named = || format!("{function} : {name} {address:#x}");
        if address == 0 {
            return Err(Error::InvalidArgument(format!("{} is not a valid pointer", named())));
        }
        if !address.is_multiple_of(size) {
            let datatype = self.datatype.name();
            return Err(Error::InvalidArgument(format!(
                "{} is not aligned to the {size} bytes of {datatype}",
                named()
            )));
        }
        // No buffer has 2^63 bytes; how a call is split counts on that.
        let bytes = (self.count as u64).checked_mul(blocks).and_then(|count| count.checked_mul(size));
        let bytes = bytes.filter(|bytes| i64::try_from(*bytes).is_ok());
        if bytes.and_then(|bytes| address.checked_add(bytes)).is_none() {
            let count = self.count;
            return Err(Error::InvalidArgument(format!("{}: {count} elements end outside the address space", named())));
        }
        Ok(())
    }
}
