//! Devices by their uuids, in ascending order: one string of bytes for those who read it, since every rank reads those
//! of all ranks.

use std::fmt;
use std::sync::Arc;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes of a uuid.
const UUID: usize = 16;

/// Some devices. A copy costs nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceSet(Arc<[[u8; UUID]]>);

impl DeviceSet {
    /// Whether a device is one of them.
    pub fn contains(&self, uuid: &[u8; UUID]) -> bool {
        self.0.binary_search(uuid).is_ok()
    }
}

impl From<Vec<[u8; UUID]>> for DeviceSet {
    fn from(mut uuids: Vec<[u8; UUID]>) -> DeviceSet {
        uuids.sort_unstable();
        uuids.dedup();
        DeviceSet(uuids.into())
    }
}

impl Serialize for DeviceSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0.as_flattened())
    }
}

impl<'de> Deserialize<'de> for DeviceSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<DeviceSet, D::Error> {
        deserializer.deserialize_bytes(Uuids)
    }
}

/// Reads them; what is not in order is put in order, as it comes from another process.
struct Uuids;

impl Visitor<'_> for Uuids {
    type Value = DeviceSet;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("uuids of 16 bytes each")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<DeviceSet, E> {
        let (uuids, rest) = bytes.as_chunks::<UUID>();
        match (rest.is_empty(), uuids.is_sorted_by(|a, b| a < b)) {
            (false, _) => Err(E::invalid_length(bytes.len(), &self)),
            (true, true) => Ok(DeviceSet(uuids.into())),
            (true, false) => Ok(DeviceSet::from(uuids.to_vec())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_come_back_in_order() {
        let set = DeviceSet::from(vec![[9; UUID], [2; UUID], [9; UUID]]);
        assert!(set.contains(&[2; UUID]) && set.contains(&[9; UUID]) && !set.contains(&[3; UUID]));
        let bytes = postcard::to_stdvec(&set).expect("it fits");
        assert_eq!(bytes.len(), 1 + 2 * UUID);
        assert_eq!(postcard::from_bytes::<DeviceSet>(&bytes), Ok(set));
        let mut unordered = vec![2 * UUID as u8];
        unordered.extend([[9; UUID], [2; UUID]].as_flattened());
        let read: DeviceSet = postcard::from_bytes(&unordered).expect("uuids");
        assert!(read.contains(&[2; UUID]) && read.contains(&[9; UUID]));
        assert!(postcard::from_bytes::<DeviceSet>(&[3, 1, 2, 3]).is_err());
    }
}
