//! Records of blocks that the stages of a backup hand to each other, sorted in temporary files.

use std::iter::Peekable;
use std::ops::Range;

use onefold_sorter::{Record, Sorted};

use crate::error::Result;

/// A block of one of the disks that are backed up together, ordered by disk and then by address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place(pub(crate) u64);

impl Place {
    const BLOCK_BITS: u32 = 46;

    /// Bits of a place; the rest of a word is free for a kind.
    const BITS: u32 = 62;

    /// The most disks in one backup run.
    pub(crate) const DISKS_MAX: usize = 1 << (Self::BITS - Self::BLOCK_BITS);

    /// The most blocks per disk.
    pub(crate) const BLOCKS_MAX: u64 = 1 << Self::BLOCK_BITS;

    pub(crate) fn new(disk: usize, block: u64) -> Self {
        Self(((disk as u64) << Self::BLOCK_BITS) + block)
    }

    pub(crate) fn disk(self) -> usize {
        (self.0 >> Self::BLOCK_BITS) as usize
    }

    pub(crate) fn block(self) -> u64 {
        self.0 & (Self::BLOCKS_MAX - 1)
    }

    /// The range of all places of a disk.
    pub(crate) fn all_of(disk: usize) -> Range<Self> {
        Self::new(disk, 0)..Self::new(disk + 1, 0)
    }
}

/// A fingerprint as two words, which compare faster than bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Fingerprint(u64, u64);

impl Fingerprint {
    pub(crate) fn new(bytes: [u8; 16]) -> Self {
        let bits = u128::from_le_bytes(bytes);
        Self(bits as u64, (bits >> 64) as u64)
    }

    pub(crate) fn bytes(self) -> [u8; 16] {
        (u128::from(self.1) << 64 | u128::from(self.0)).to_le_bytes()
    }

    /// A part of the fingerprint, which is as good as random.
    pub(crate) fn word(self) -> u64 {
        self.0
    }
}

/// A block that was read or that is stored. Rows with the same fingerprint sort as follows: popular blocks first, then,
/// disk by disk, the blocks stored by its source before the blocks read from the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Row {
    pub(crate) fingerprint: Fingerprint,
    word: u64,
}

/// The location of a row's block. For a stored block, its place among all numbers of its store's listed packs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    Popular { listed: u64 },
    Own { disk: usize, listed: u64 },
    Read(Place),
}

impl Row {
    const OF_DISK: u64 = 1 << 63;
    const READ: u64 = 1 << Place::BLOCK_BITS;

    pub(crate) fn new(fingerprint: Fingerprint, found: Found) -> Self {
        let of_disk = |disk: usize| Self::OF_DISK | (disk as u64) << (Place::BLOCK_BITS + 1);
        let word = match found {
            Found::Popular { listed } => listed,
            Found::Own { disk, listed } => of_disk(disk) | listed,
            Found::Read(place) => of_disk(place.disk()) | Self::READ | place.block(),
        };
        Self { fingerprint, word }
    }

    pub(crate) fn found(&self) -> Found {
        if self.word & Self::OF_DISK == 0 {
            return Found::Popular { listed: self.word };
        }
        let disk = (self.word & !Self::OF_DISK) >> (Place::BLOCK_BITS + 1);
        let low = self.word & (Self::READ - 1);
        match self.word & Self::READ {
            0 => Found::Own {
                disk: disk as usize,
                listed: low,
            },
            _ => Found::Read(Place::new(disk as usize, low)),
        }
    }
}

/// A block that will be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NewBlock {
    pub(crate) place: Place,
    pub(crate) fingerprint: Fingerprint,
}

/// The decision about a block with data that refers to another block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Decided {
    pub(crate) place: Place,
    word: u64,
}

/// The block that a block with data refers to, if it is not stored itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The source's stored block with this number.
    Own(u64),
    /// The popular block with this number.
    Popular(u64),
    /// The new block at this place, which has no number yet.
    SameAs(Place),
}

impl Decided {
    pub(crate) fn new(place: Place, decision: Decision) -> Self {
        let (kind, word) = match decision {
            Decision::Own(number) => (0, number),
            Decision::Popular(number) => (1, number),
            Decision::SameAs(first) => (2, first.0),
        };
        Self {
            place,
            word: word | kind << Place::BITS,
        }
    }

    pub(crate) fn decision(&self) -> Decision {
        let payload = self.word & ((1 << Place::BITS) - 1);
        match self.word >> Place::BITS {
            0 => Decision::Own(payload),
            1 => Decision::Popular(payload),
            _ => Decision::SameAs(Place(payload)),
        }
    }
}

fn put_words<const N: usize>(into: &mut Vec<u8>, words: [u64; N]) {
    into.extend_from_slice(words.map(u64::to_le_bytes).as_flattened());
}

/// Decodes `N` words.
fn get_words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

impl Record for Row {
    const BYTES: usize = 24;

    fn put(&self, into: &mut Vec<u8>) {
        put_words(into, [self.fingerprint.0, self.fingerprint.1, self.word]);
    }

    fn get(bytes: &[u8]) -> Self {
        let [first, second, word] = get_words(bytes);
        Self {
            fingerprint: Fingerprint(first, second),
            word,
        }
    }
}

impl Record for NewBlock {
    const BYTES: usize = 24;

    fn put(&self, into: &mut Vec<u8>) {
        put_words(into, [self.place.0, self.fingerprint.0, self.fingerprint.1]);
    }

    fn get(bytes: &[u8]) -> Self {
        let [place, first, second] = get_words(bytes);
        Self {
            place: Place(place),
            fingerprint: Fingerprint(first, second),
        }
    }
}

impl Record for Decided {
    const BYTES: usize = 16;

    fn put(&self, into: &mut Vec<u8>) {
        put_words(into, [self.place.0, self.word]);
    }

    fn get(bytes: &[u8]) -> Self {
        let [place, word] = get_words(bytes);
        Self {
            place: Place(place),
            word,
        }
    }
}

/// A record that belongs to a block's place.
pub(crate) trait Placed: Record {
    fn place(&self) -> Place;
}

impl Placed for NewBlock {
    fn place(&self) -> Place {
        self.place
    }
}

impl Placed for Decided {
    fn place(&self) -> Place {
        self.place
    }
}

/// Records in ascending order of places, taken one at a time.
pub(crate) struct ByPlace<R: Record>(Peekable<Sorted<R>>);

impl<R: Placed> ByPlace<R> {
    pub(crate) fn new(sorted: Sorted<R>) -> Self {
        Self(sorted.peekable())
    }

    /// Takes the next record in a range of places, and skips records before it.
    pub(crate) fn next_in(&mut self, places: &Range<Place>) -> Result<Option<R>> {
        loop {
            let is_before_end = |record: &std::io::Result<R>| match record {
                Ok(record) => record.place() < places.end,
                Err(_) => true,
            };
            match self.0.next_if(is_before_end).transpose()? {
                Some(record) if record.place() < places.start => {}
                record => return Ok(record),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Debug;

    fn comes_back<R: Record + Debug>(record: R) {
        let mut bytes = Vec::new();
        record.put(&mut bytes);
        assert_eq!(bytes.len(), R::BYTES);
        assert_eq!(R::get(&bytes), record);
    }

    #[test]
    fn records_come_back_and_rows_are_in_the_order_in_which_they_are_decided() {
        let (last_disk, last_block) = (Place::DISKS_MAX - 1, Place::BLOCKS_MAX - 1);
        let in_order = [
            Found::Popular { listed: 0 },
            Found::Popular { listed: last_block },
            Found::Own { disk: 0, listed: 0 },
            Found::Own {
                disk: 0,
                listed: last_block,
            },
            Found::Read(Place::new(0, 0)),
            Found::Read(Place::new(0, last_block)),
            Found::Own { disk: 1, listed: 0 },
            Found::Read(Place::new(1, 0)),
            Found::Own {
                disk: last_disk,
                listed: last_block,
            },
            Found::Read(Place::new(last_disk, last_block)),
        ];
        let bytes = std::array::from_fn(|n| n as u8);
        let fingerprint = Fingerprint::new(bytes);
        assert_eq!(fingerprint.bytes(), bytes);
        let rows = in_order.map(|found| Row::new(fingerprint, found));
        assert!(rows.is_sorted());
        for (row, found) in rows.iter().zip(in_order) {
            assert_eq!(row.found(), found);
            comes_back(*row);
        }
        let place = Place::new(last_disk, last_block);
        comes_back(NewBlock { place, fingerprint });
        for decision in [
            Decision::Own((1 << Place::BITS) - 1),
            Decision::Popular(7),
            Decision::SameAs(place),
        ] {
            let decided = Decided::new(place, decision);
            assert_eq!(decided.decision(), decision);
            comes_back(decided);
        }
    }
}
