//! What goes over a connection whose ends have met: sealed records, each with its length in front.

use snow::TransportState;

/// Bytes that a seal adds to a record: its length, and the tag.
const LENGTH: usize = 2;
pub(super) const TAG: usize = 16;
/// The most bytes of a record with its seal.
pub const SEAL_MAX: usize = LENGTH + 65535;
/// The most bytes of what is sealed in one record.
pub const RECORD_MAX: usize = 65535 - TAG;

/// What comes was not sealed by the other side, or not in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenSeal;

/// The keys of a connection, and how many records have gone each way: a record that is left out, comes twice or comes
/// early does not open.
pub struct Session(pub(super) TransportState);

impl Session {
    /// Seals at most [`RECORD_MAX`] bytes into a place with room for a whole record; how many bytes of it are used.
    ///
    /// # Errors
    /// After 2^64 records, or where there is no room: nothing may go over the connection any more.
    pub fn seal(&mut self, plain: &[u8], record: &mut [u8]) -> Result<usize, BrokenSeal> {
        let (length, rest) = record.split_first_chunk_mut::<LENGTH>().ok_or(BrokenSeal)?;
        let sealed = self.0.write_message(plain, rest).map_err(|_| BrokenSeal)?;
        *length = u16::try_from(sealed).map_err(|_| BrokenSeal)?.to_le_bytes();
        Ok(LENGTH + sealed)
    }

    /// Seals any bytes into as many records as they need.
    ///
    /// # Errors
    /// As [`Session::seal`].
    pub fn seal_all(&mut self, plain: &[u8], records: &mut Vec<u8>) -> Result<(), BrokenSeal> {
        for part in plain.chunks(RECORD_MAX) {
            let begin = records.len();
            records.resize(begin + LENGTH + part.len() + TAG, 0);
            self.seal(part, &mut records[begin..])?;
        }
        Ok(())
    }

    /// The bytes of the first record of what has come, with its length; none where it is not there yet.
    pub fn record(bytes: &[u8]) -> Option<usize> {
        let (length, rest) = bytes.split_first_chunk::<LENGTH>()?;
        let length = usize::from(u16::from_le_bytes(*length));
        (rest.len() >= length).then_some(LENGTH + length)
    }

    /// How many bytes a whole record has when it is open.
    pub fn opened(record: &[u8]) -> usize {
        record.len().saturating_sub(LENGTH + TAG)
    }

    /// Opens a whole record into a place; how many bytes that are. A place that has [`SEAL_MAX`] bytes, or no fewer
    /// than the record, is filled without a copy more; what is behind those bytes is overwritten there.
    ///
    /// # Errors
    /// It was not sealed by the other side as the next one.
    pub fn open(&mut self, record: &[u8], place: &mut [u8]) -> Result<usize, BrokenSeal> {
        let sealed = record.get(LENGTH..).filter(|sealed| sealed.len() >= TAG).ok_or(BrokenSeal)?;
        self.0.read_message(sealed, place).map_err(|_| BrokenSeal)
    }

    /// Opens all whole records of what has come, which are taken away.
    ///
    /// # Errors
    /// As [`Session::open`]; what was before it is open.
    pub fn open_all(&mut self, bytes: &mut Vec<u8>, plain: &mut Vec<u8>) -> Result<(), BrokenSeal> {
        let mut taken = 0;
        while let Some(length) = Session::record(&bytes[taken..]) {
            let (record, begin) = (&bytes[taken..taken + length], plain.len());
            plain.resize(begin + record.len(), 0);
            let opened = self.open(record, &mut plain[begin..]);
            plain.truncate(begin + opened.unwrap_or(0));
            opened?;
            taken += length;
        }
        bytes.drain(..taken);
        Ok(())
    }
}
