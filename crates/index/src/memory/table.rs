//! All rows, in hash tables that never outgrow a limit in bytes.
//!
//! There is one small table for each value of a fingerprint's first twelve bits. So a table that
//! grows needs room for two copies of a few thousandths of the rows only, and rows come out in the
//! order of their fingerprints by sorting one table at a time.

use hashbrown::HashTable;

use crate::batch::Rows;
use crate::entry::{ENTRY_BYTES, Entry, hash};
use crate::{Fingerprint, Result, Row};

const SHARDS: usize = 1 << 12;

/// Bytes that hashbrown takes for a bucket: the row and one byte of control.
const BUCKET_BYTES: usize = ENTRY_BYTES + 1;

/// An upper bound of a table's memory besides the buckets.
const TABLE_BYTES: usize = 64;

/// The rows of an index.
pub(super) struct Table {
    shards: Vec<HashTable<Entry>>,
    limit_bytes: u64,
    allocated_bytes: u64,
    rows: u64,
}

impl Table {
    pub(super) fn new(limit_bytes: u64) -> Table {
        Table {
            shards: std::iter::repeat_with(HashTable::new)
                .take(SHARDS)
                .collect(),
            limit_bytes,
            allocated_bytes: 0,
            rows: 0,
        }
    }

    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    pub(super) fn row(&self, fingerprint: Fingerprint) -> Option<Row> {
        let shard = &self.shards[shard_of(fingerprint)];
        let found = shard.find(hash(&fingerprint), |entry| entry.fingerprint == fingerprint)?;
        found.row.row()
    }

    /// Adds a row, or replaces the one that its fingerprint has. The limit is ignored.
    pub(super) fn put(&mut self, fingerprint: Fingerprint, row: Row) {
        let shard = &mut self.shards[shard_of(fingerprint)];
        let entry = Entry::new(fingerprint, Some(row));
        let hash_of = hash(&fingerprint);
        match shard.find_mut(hash_of, |other| other.fingerprint == fingerprint) {
            Some(found) => *found = entry,
            None => {
                let before = shard.allocation_size();
                shard.insert_unique(hash_of, entry, |other| hash(&other.fingerprint));
                let after = shard.allocation_size();
                self.allocated_bytes = self.allocated_bytes - before as u64 + after as u64;
                self.rows += 1;
            }
        }
    }

    fn remove(&mut self, fingerprint: Fingerprint) {
        let shard = &mut self.shards[shard_of(fingerprint)];
        let same = |entry: &Entry| entry.fingerprint == fingerprint;
        if let Ok(found) = shard.find_entry(hash(&fingerprint), same) {
            found.remove();
            self.rows -= 1;
        }
    }

    /// Rows in the order of their fingerprints, from `from` on, at most `max`.
    pub(super) fn sorted(&self, from: Fingerprint, max: usize) -> Vec<(Fingerprint, Row)> {
        let mut sorted = Vec::new();
        for shard in &self.shards[shard_of(from)..] {
            let wanted = max - sorted.len();
            if wanted == 0 {
                break;
            }
            let entries = shard.iter().filter(|entry| entry.fingerprint >= from);
            let mut entries: Vec<&Entry> = entries.collect();
            if entries.len() > wanted {
                entries.select_nth_unstable_by_key(wanted, |entry| entry.fingerprint);
                entries.truncate(wanted);
            }
            entries.sort_unstable_by_key(|entry| entry.fingerprint);
            let rows = entries
                .into_iter()
                .filter_map(|entry| Some((entry, entry.row.row()?)));
            sorted.extend(rows.map(|(entry, row)| (entry.fingerprint, row)));
        }
        sorted
    }

    /// Every row as it is written out, in no order.
    pub(super) fn entries(&self) -> impl Iterator<Item = [u8; ENTRY_BYTES]> {
        self.shards.iter().flatten().map(|entry| entry.to_bytes())
    }

    /// Adds a row that was written out, and returns it. `None` if the bytes are no row, or if its
    /// fingerprint has one already.
    pub(super) fn take_entry(&mut self, bytes: &[u8; ENTRY_BYTES]) -> Option<Row> {
        let entry = Entry::from_bytes(bytes);
        let fingerprint = entry.fingerprint;
        let row = entry.row.row()?;
        if self.row(fingerprint).is_some() {
            return None;
        }
        self.put(fingerprint, row);
        Some(row)
    }
}

impl Rows for Table {
    fn get(&mut self, fingerprint: Fingerprint) -> Result<Option<Row>> {
        Ok(self.row(fingerprint))
    }

    fn set(&mut self, fingerprint: Fingerprint, row: Option<Row>) -> Result<()> {
        match row {
            Some(row) => self.put(fingerprint, row),
            None => self.remove(fingerprint),
        }
        Ok(())
    }

    fn has_room(&mut self, fingerprint: Fingerprint) -> bool {
        let shard = &self.shards[shard_of(fingerprint)];
        if shard.len() < shard.capacity() {
            return true;
        }
        // Both copies exist while a table grows.
        let buckets = (shard.num_buckets() * 2).max(4);
        let grown = buckets * BUCKET_BYTES + TABLE_BYTES;
        self.allocated_bytes + grown as u64 <= self.limit_bytes
    }
}

fn shard_of(fingerprint: Fingerprint) -> usize {
    let [first, second, ..] = fingerprint.0;
    let top = (usize::from(first) << 8) | usize::from(second);
    (top * SHARDS) >> 16
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_format::Pba;

    fn random_fingerprint(random: &mut fastrand::Rng) -> Fingerprint {
        Fingerprint(random.u128(..).to_le_bytes())
    }

    fn row(pba: u64) -> Row {
        Row {
            pba: Pba(pba),
            references: 1,
        }
    }

    #[test]
    fn shards_follow_the_order_of_fingerprints() {
        assert_eq!(shard_of(Fingerprint([0; 16])), 0);
        assert_eq!(shard_of(Fingerprint([255; 16])), SHARDS - 1);
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..10_000 {
            let (one, other) = (
                random_fingerprint(&mut random),
                random_fingerprint(&mut random),
            );
            if shard_of(one) != shard_of(other) {
                assert_eq!(shard_of(one) < shard_of(other), one < other);
            }
        }
    }

    #[test]
    fn the_limit_holds_and_is_used() {
        for limit in [0, 100, 10_000, 1_000_000, 20_000_000] {
            let mut random = fastrand::Rng::with_seed(limit);
            let mut table = Table::new(limit);
            let mut refused = 0;
            while refused < 2 * SHARDS {
                let fingerprint = random_fingerprint(&mut random);
                if table.has_room(fingerprint) {
                    table.put(fingerprint, row(1));
                } else {
                    refused += 1;
                }
                assert!(table.allocated_bytes <= limit);
            }
            let by_hand: usize = table.shards.iter().map(HashTable::allocation_size).sum();
            assert_eq!(table.allocated_bytes, by_hand as u64);
            // At worst every table has just doubled and is not half full.
            let least = limit / (3 * BUCKET_BYTES as u64 + TABLE_BYTES as u64);
            assert!(
                table.rows() >= least.saturating_sub(1),
                "{} {limit}",
                table.rows()
            );
        }
    }

    #[test]
    fn room_comes_back_with_removed_rows() {
        let mut random = fastrand::Rng::with_seed(9);
        let mut table = Table::new(300_000);
        let mut there = Vec::new();
        for _ in 0..200_000 {
            let fingerprint = random_fingerprint(&mut random);
            if table.has_room(fingerprint) {
                table.put(fingerprint, row(7));
                there.push(fingerprint);
            } else if !there.is_empty() {
                let at = random.usize(..there.len());
                table.remove(there.swap_remove(at));
            }
            assert!(table.allocated_bytes <= 300_000);
            assert_eq!(table.rows(), there.len() as u64);
        }
        assert!(
            there
                .iter()
                .all(|fingerprint| table.row(*fingerprint) == Some(row(7)))
        );
    }
}
