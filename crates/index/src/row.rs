//! A row in ten bytes, and the counts over all rows.

use onefold_format::Pba;
use onefold_format::units::PBA_END;

/// The block that holds a content, and the number of entries that refer to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Row {
    /// The block: 1 to 2^40 - 1.
    pub pba: Pba,
    /// References: 1 to [`REFERENCES_MAX`].
    pub references: u64,
}

/// The most references that a row can have. More would need maps of more than seven terabytes;
/// still, one more is refused rather than lost.
pub const REFERENCES_MAX: u64 = (1 << 40) - 1;

/// Bytes of a [`PackedRow`].
pub(crate) const PACKED_ROW_BYTES: usize = 10;

/// A row as it is stored: five bytes of address and five of references, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PackedRow(pub(crate) [u8; PACKED_ROW_BYTES]);

impl PackedRow {
    /// The bytes of no row.
    pub(crate) const NONE: PackedRow = PackedRow([0; PACKED_ROW_BYTES]);

    /// Packs a row that [`is_block`] and [`REFERENCES_MAX`] allow.
    pub(crate) fn new(row: Row) -> PackedRow {
        debug_assert!(is_block(row.pba) && (1..=REFERENCES_MAX).contains(&row.references));
        let mut bytes = [0; PACKED_ROW_BYTES];
        let (pba, references) = bytes.split_at_mut(NUMBER_BYTES);
        pba.copy_from_slice(&row.pba.0.to_le_bytes()[..NUMBER_BYTES]);
        references.copy_from_slice(&row.references.to_le_bytes()[..NUMBER_BYTES]);
        PackedRow(bytes)
    }

    /// `None` for bytes that no row packs into.
    pub(crate) fn row(self) -> Option<Row> {
        let (pba, references) = self.0.split_at(NUMBER_BYTES);
        let row = Row {
            pba: Pba(number(pba)),
            references: number(references),
        };
        (is_block(row.pba) && row.references > 0).then_some(row)
    }
}

/// Bytes of an address, or of a number of references.
pub(crate) const NUMBER_BYTES: usize = 5;

/// The number in at most eight little-endian bytes.
pub(crate) fn number(bytes: &[u8]) -> u64 {
    let high_first = bytes.iter().rev();
    high_first.fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Whether a pool can have this block for data.
pub(crate) fn is_block(pba: Pba) -> bool {
    (1..PBA_END).contains(&pba.0)
}

/// How many rows and references an index has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IndexCounts {
    /// Rows with one reference.
    pub unique: u64,
    /// Rows with two or more.
    pub shared: u64,
    /// References of all rows together.
    pub references: u64,
}

impl IndexCounts {
    /// Rows.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.unique + self.shared
    }

    /// Notes that a row was replaced by another, or by none. The counts must have been right
    /// before.
    pub(crate) fn replace(&mut self, before: Option<Row>, after: Option<Row>) {
        if let Some(row) = before {
            *self.of_kind(row) -= 1;
            self.references -= row.references;
        }
        if let Some(row) = after {
            *self.of_kind(row) += 1;
            self.references += row.references;
        }
    }

    fn of_kind(&mut self, row: Row) -> &mut u64 {
        if row.references == 1 {
            &mut self.unique
        } else {
            &mut self.shared
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_survive_packing() {
        for pba in [1, 255, 256, PBA_END - 1] {
            for references in [1, 2, 1 << 32, REFERENCES_MAX] {
                let row = Row {
                    pba: Pba(pba),
                    references,
                };
                assert_eq!(PackedRow::new(row).row(), Some(row));
            }
        }
        assert_eq!(PackedRow([0; PACKED_ROW_BYTES]).row(), None);
        assert_eq!(PackedRow([0, 0, 0, 0, 0, 1, 0, 0, 0, 0]).row(), None);
        assert_eq!(PackedRow([1, 0, 0, 0, 0, 0, 0, 0, 0, 0]).row(), None);
        let packed = PackedRow([1, 2, 0, 0, 0, 3, 0, 0, 0, 1]);
        let row = packed.row().unwrap();
        assert_eq!((row.pba, row.references), (Pba(0x201), 0x1_0000_0003));
    }
}
