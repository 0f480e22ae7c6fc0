//! A row with its fingerprint, in the 26 bytes in which back ends keep it, in memory and on disk.

use crate::fingerprint::FINGERPRINT_BYTES;
use crate::row::{PACKED_ROW_BYTES, PackedRow};
use crate::{Fingerprint, Row};

/// Bytes of a row with its fingerprint.
pub(crate) const ENTRY_BYTES: usize = FINGERPRINT_BYTES + PACKED_ROW_BYTES;

/// An entry in its form on disk: runs of these are copied as they are.
pub(crate) type EntryBytes = [u8; ENTRY_BYTES];

/// The fingerprint of an entry.
pub(crate) fn fingerprint_of(bytes: &EntryBytes) -> Fingerprint {
    Entry::from_bytes(bytes).fingerprint
}

/// A row with its fingerprint. Made of bytes only, so that nothing is lost to alignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) row: PackedRow,
}

impl Entry {
    /// An entry for the row, or one for a removed row.
    pub(crate) fn new(fingerprint: Fingerprint, row: Option<Row>) -> Entry {
        Entry {
            fingerprint,
            row: row.map_or(PackedRow::NONE, PackedRow::new),
        }
    }

    pub(crate) fn to_bytes(self) -> EntryBytes {
        let mut bytes = [0; ENTRY_BYTES];
        let (fingerprint, row) = bytes.split_at_mut(FINGERPRINT_BYTES);
        fingerprint.copy_from_slice(&self.fingerprint.0);
        row.copy_from_slice(&self.row.0);
        bytes
    }

    /// The entry of these bytes, whose row may be none at all.
    pub(crate) fn from_bytes(bytes: &EntryBytes) -> Entry {
        let mut entry = Entry {
            fingerprint: Fingerprint::default(),
            row: PackedRow::NONE,
        };
        let (fingerprint, row) = bytes.split_at(FINGERPRINT_BYTES);
        entry.fingerprint.0.copy_from_slice(fingerprint);
        entry.row.0.copy_from_slice(row);
        entry
    }
}

/// Fingerprints are hashes already; these are bits that their order leaves alone.
pub(crate) fn hash(fingerprint: &Fingerprint) -> u64 {
    let [.., a, b, c, d, e, f, g, h] = fingerprint.0;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_format::Pba;

    #[test]
    fn an_entry_takes_no_more_than_its_bytes() {
        assert_eq!((size_of::<Entry>(), align_of::<Entry>()), (ENTRY_BYTES, 1));
    }

    #[test]
    fn entries_survive_encoding() {
        let row = Row {
            pba: Pba(77),
            references: 1 << 33,
        };
        for row in [Some(row), None] {
            let entry = Entry::new(Fingerprint([0xc3; 16]), row);
            assert_eq!(Entry::from_bytes(&entry.to_bytes()), entry);
            assert_eq!(entry.row.row(), row);
        }
    }
}
