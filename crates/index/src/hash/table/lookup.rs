//! Looking up the rows of a batch: first in memory, then many leaves at a time.

use onefold_engine::Blocking;

use super::{Buffers, Table};
use crate::batch::Rows;
use crate::entry::Entry;
use crate::hash::directory::CHANGE_BYTES;
use crate::hash::reads::read_leaves;
use crate::hash::segment::{self, LEAF_BYTES, Run};
use crate::row::PackedRow;
use crate::{Fingerprint, Result, Row};

/// The most leaves that are read at a time.
const READ_LEAVES_MAX: usize = 2048;

/// The fewest leaves that are read at a time, however little memory there is.
const READ_LEAVES_MIN: usize = 16;

impl Table {
    /// Finds rows in memory, and the leaves in which the rest would be. Returns the first
    /// fingerprint for which that takes data that is not loaded: it and those behind it are left.
    fn find_changes(&mut self, fingerprints: &[Fingerprint]) -> Option<usize> {
        let directory = self.shared.directory();
        let mut at = fingerprints
            .first()
            .map_or(0, |fingerprint| directory.at(*fingerprint));
        for (number, fingerprint) in fingerprints.iter().enumerate() {
            while directory.is_behind(at, *fingerprint) {
                at += 1;
            }
            let segment = &directory.segments()[at];
            let change = segment.change(*fingerprint);
            if change.is_none() {
                if !segment.is_loaded() {
                    return Some(number);
                }
                if let Some(leaf) = segment.leaf_of(*fingerprint) {
                    let by = self.buffers.found.len();
                    self.buffers.wanted.push(Wanted { by, at, leaf });
                }
            }
            self.buffers.found.push(Found {
                fingerprint: *fingerprint,
                row: change.unwrap_or(PackedRow::NONE),
                is_changed: false,
            });
        }
        None
    }

    /// Drops the leaves that cannot have the rows they are wanted for.
    fn leave_out_absent(&mut self) {
        let Buffers {
            wanted,
            found,
            may_have,
            ..
        } = &mut self.buffers;
        // Half of them have the row, so a branch on each would wait for its signatures. This way the processor fetches
        // the signatures of many leaves at once.
        let directory = self.shared.directory();
        let segments = directory.segments();
        may_have.clear();
        may_have.extend(
            wanted.iter().map(|wanted| {
                segments[wanted.at].may_have(wanted.leaf, found[wanted.by].fingerprint)
            }),
        );
        let mut may_have = may_have.iter();
        wanted.retain(|_| may_have.next().is_some_and(|may| *may));
    }

    /// Reads the leaves that are wanted, many at a time.
    fn read_wanted(&mut self) -> Result<()> {
        let at_once = (self.limit_bytes / 16 / LEAF_BYTES).clamp(READ_LEAVES_MIN, READ_LEAVES_MAX);
        let Buffers {
            leaves: buffer,
            wanted,
            found,
            ..
        } = &mut self.buffers;
        let mut groups = wanted
            .chunk_by(|one, other| (one.at, one.leaf) == (other.at, other.leaf))
            .peekable();
        while groups.peek().is_some() {
            let some: Vec<_> = {
                let directory = self.shared.directory();
                let run = |group: &[Wanted]| directory.segments()[group[0].at].run;
                let some = groups.by_ref().take(at_once);
                some.filter_map(|group| Some((run(group)?, group)))
                    .collect()
            };
            let number = |(run, group): &(Run, &[Wanted])| run.first_leaf() + group[0].leaf as u64;
            let leaves: Vec<u64> = some.iter().map(number).collect();
            buffer.resize(leaves.len() * LEAF_BYTES, 0);
            read_leaves(&*self.disk, &leaves, buffer)?;
            let read = leaves.iter().zip(buffer.chunks_exact(LEAF_BYTES));
            for ((run, group), (leaf, bytes)) in some.iter().zip(read) {
                let entries = segment::open_leaf(self.pool, *run, *leaf, bytes)?;
                for wanted in *group {
                    let found = &mut found[wanted.by];
                    found.row = segment::find(entries, found.fingerprint);
                }
            }
        }
        Ok(())
    }

    /// The memory for signatures: the rest after fences and the most changes that there may be.
    pub(super) fn signatures_max(&self) -> usize {
        let changes_max = self.changes_max();
        let directory = self.shared.directory();
        let changes = changes_max.max(directory.changes()) as usize * CHANGE_BYTES;
        let taken = directory.footprint().fences + changes;
        self.limit_bytes.saturating_sub(taken)
    }

    /// Sets the memory for signatures in the directory, for lookups.
    pub(super) fn allot_signatures(&self) {
        let max = self.signatures_max();
        self.shared.directory_mut().set_signatures_max(max);
    }
}

/// A leaf that has to be read, and the fingerprint that needs it.
pub(super) struct Wanted {
    by: usize,
    /// The segment.
    at: usize,
    /// The leaf's number, counted from the first of its run.
    leaf: usize,
}

/// The row of a fingerprint that a batch asks for.
pub(super) struct Found {
    fingerprint: Fingerprint,
    row: PackedRow,
    is_changed: bool,
}

/// The rows that a batch requests, and its changes to them.
pub(crate) struct Lookup<'a> {
    table: &'a mut Table,
    /// The position of the row that was requested last.
    at: usize,
}

impl Lookup<'_> {
    pub(super) fn new(table: &mut Table) -> Lookup<'_> {
        Lookup { table, at: 0 }
    }

    /// The changes, in the order of fingerprints.
    pub(super) fn into_changed(self) -> Vec<Entry> {
        let buffers = &mut self.table.buffers;
        let mut into = std::mem::take(&mut buffers.changed);
        into.clear();
        let changed = buffers.found.iter().filter(|found| found.is_changed);
        into.extend(changed.map(|found| Entry {
            fingerprint: found.fingerprint,
            row: found.row,
        }));
        into
    }

    /// The row of a fingerprint that was expected. They are asked for in their order.
    fn found(&mut self, fingerprint: Fingerprint) -> &mut Found {
        let found = &mut self.table.buffers.found;
        while found[self.at].fingerprint < fingerprint {
            self.at += 1;
        }
        debug_assert_eq!(found[self.at].fingerprint, fingerprint);
        &mut found[self.at]
    }
}

impl Rows for Lookup<'_> {
    fn expect(&mut self, fingerprints: &[Fingerprint]) -> Result<()> {
        self.at = 0;
        let table = &mut *self.table;
        table.allot_signatures();
        table.buffers.found.clear();
        table.buffers.wanted.clear();
        let mut rest = fingerprints;
        while let Some(unloaded) = table.find_changes(rest) {
            rest = &rest[unloaded..];
            table.shared.load(rest[0], Blocking::Yes)?;
        }
        table.leave_out_absent();
        table.read_wanted()
    }

    fn get(&mut self, fingerprint: Fingerprint) -> Result<Option<Row>> {
        Ok(self.found(fingerprint).row.row())
    }

    fn set(&mut self, fingerprint: Fingerprint, row: Option<Row>) -> Result<()> {
        let found = self.found(fingerprint);
        found.row = Entry::new(fingerprint, row).row;
        found.is_changed = true;
        Ok(())
    }

    fn has_room(&mut self, _fingerprint: Fingerprint) -> bool {
        true
    }
}
