//! The check of a shared pool: every block is exactly one of the pool's, free in one group, owned by one entry of one
//! group, or shared, with as many references as the index counts (P6).
//!
//! The pool is checked in windows. For each of them, the groups report their use of its blocks, all rows of the index
//! are read, and the pool's own blocks before and after. A group may take space extents in between: a block that the
//! pool had before is not missed, and one that it has afterwards is nobody else's.
//!
//! Nothing is repaired. The findings of a window are reported once all groups are known to have been paused.

use std::ops::Range;

use onefold_format::census_message::BlockRun;
use onefold_format::units::BLOCKS_PER_SPACE_EXTENT;
use onefold_format::{GroupId, Pba};
use onefold_index::{Fingerprint, IndexError, IndexReader, Row};
use onefold_metadata::{Result, StoreError, bits};

use super::SharedPool;
use super::census::Census;
use super::pool::CHECK_MEMORY_PART;
use crate::dedup::Window;
use crate::integrity::{CheckReport, Finding};

/// Rows of the index read together.
const ROWS_AT_ONCE: usize = 4096;

/// Memory for a block of the window: its references, its group, and six bits.
const BYTES_PER_BLOCK: u64 = 6;

/// The first block that a group can take; the label is before it.
const FIRST_BLOCK: u64 = BLOCKS_PER_SPACE_EXTENT;

impl SharedPool {
    /// Checks the pool, while it is in use. Each finding is passed to `report`. `progress` gets the number of blocks of the
    /// pool that were checked, and of all. `wait` is called when a group has not answered yet, and waits a moment.
    ///
    /// Jobs of all groups are paused until it has ended.
    ///
    /// # Errors
    ///
    /// `Busy` if a group or a shard of the index is not served by any host, if it cannot settle its open batch, or if it
    /// gets another owner during the check. Damage is a finding, not an error.
    pub fn check(
        &self,
        wait: &mut dyn FnMut(),
        report: &mut dyn FnMut(Finding),
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<CheckReport> {
        let pool_end = self.pool_end()?;
        let mut counts = CheckReport::default();
        let mut census = Census::begin(self, Pba(pool_end), wait)?;
        for blocks in self.windows(pool_end) {
            let end = blocks.end;
            let mut window = PoolWindow::new(blocks, pool_end, census.groups());
            window.check(self, &mut census)?;
            census.confirm()?;
            counts.findings += window.findings.len() as u64;
            counts.leaked_blocks += window.leaked_blocks;
            counts.passes += 1;
            for message in window.findings {
                report(Finding {
                    message,
                    repairable: false,
                });
            }
            progress(end, pool_end);
        }
        for totals in census.totals() {
            counts.mapped_blocks += totals.mapped_blocks;
            counts.pages_read += totals.pages_read;
        }
        Ok(counts)
    }

    /// The first block beyond the pool.
    pub(super) fn pool_end(&self) -> Result<u64> {
        let extents = self.cluster().extent_counts();
        let extents = extents.map_err(|error| StoreError::io("counting space extents", error))?;
        Ok(FIRST_BLOCK + extents.all * BLOCKS_PER_SPACE_EXTENT)
    }

    /// The ranges of blocks that there is memory to count at a time.
    pub(super) fn windows(&self, pool_end: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        let bytes = self.memory_bytes() / CHECK_MEMORY_PART / BYTES_PER_BLOCK;
        let step = bytes.next_multiple_of(BLOCKS_PER_SPACE_EXTENT);
        let starts = (0..pool_end).step_by(step as usize);
        starts.map(move |start| start..pool_end.min(start + step))
    }

    /// The blocks of this range that the pool has, as a bitmap.
    pub(super) fn given_blocks(&self, blocks: &Range<u64>) -> Result<Vec<u64>> {
        let given = self.cluster().given_blocks(blocks.clone());
        let given = given.map_err(|error| StoreError::io("checking the pool", error))?;
        let mut words = vec![0; (blocks.end - blocks.start) as usize / 64];
        for Range { start, end } in given {
            let (start, end) = (start.max(blocks.start), end.min(blocks.end));
            if start < end {
                let bits = (start - blocks.start) as usize..(end - blocks.start) as usize;
                bits::fill(&mut words, bits, true);
            }
        }
        Ok(words)
    }
}

/// Some blocks of the pool, and their use by all groups.
pub(super) struct PoolWindow {
    pool_end: u64,
    groups: Vec<GroupId>,
    /// Owned blocks, and references.
    uses: Window,
    /// A bitmap of the blocks that are free in a group.
    free: Vec<u64>,
    /// For each block that is free or owned, the place of its group in `groups`; for any other that has references, the place
    /// of the first group that has some.
    holder: Vec<u16>,
    pub(super) findings: Vec<String>,
    leaked_blocks: u64,
}

impl PoolWindow {
    pub(super) fn new(blocks: Range<u64>, pool_end: u64, groups: Vec<GroupId>) -> Self {
        let count = (blocks.end - blocks.start) as usize;
        Self {
            pool_end,
            groups,
            uses: Window::new(blocks),
            free: vec![0; count / 64],
            holder: vec![0; count],
            findings: Vec::new(),
            leaked_blocks: 0,
        }
    }

    fn check(&mut self, pool: &SharedPool, census: &mut Census<'_>) -> Result<()> {
        let blocks = self.uses.blocks.clone();
        let given_before = pool.given_blocks(&blocks)?;
        self.count(census)?;
        let has_row = self.compare_rows(pool, census)?;
        let given_after = pool.given_blocks(&blocks)?;
        self.compare_uses(&given_after);
        if let Some(has_row) = has_row {
            for run in self.leaked(&given_before, &has_row) {
                self.leaked_blocks += run.len() as u64;
                let message = format!(
                    "{}: leaked: no group has it, nor the pool",
                    self.place(&run)
                );
                self.findings.push(message);
            }
        }
        Ok(())
    }

    /// Counts the use of the blocks by all groups.
    pub(super) fn count(&mut self, census: &mut Census<'_>) -> Result<()> {
        let blocks = self.uses.blocks.clone();
        let range = (Pba(blocks.start), Pba(blocks.end));
        let groups = self.groups.clone();
        for group in &groups {
            census.prepare(*group, range)?;
        }
        for (place, group) in groups.iter().enumerate() {
            census.blocks_of(*group, range, &mut |run| self.add(place, run))?;
            census.findings_of(*group, &mut |text| {
                self.findings.push(format!("group {group}: {text}"));
            })?;
        }
        Ok(())
    }

    pub(super) fn blocks(&self) -> Range<u64> {
        self.uses.blocks.clone()
    }

    /// The number of references to a block.
    pub(super) fn references(&self, pba: Pba) -> u64 {
        self.uses.counted(pba)
    }

    /// The blocks with references that a group is the first to have.
    pub(super) fn first_of(&self, place: usize) -> impl Iterator<Item = Pba> + '_ {
        let shared = self.uses.referenced();
        shared.filter(move |pba| {
            let is_first = usize::from(self.holder[self.bit(*pba)]) == place;
            is_first && self.references(*pba) > 0
        })
    }

    /// Adds a group's use of blocks.
    fn add(&mut self, place: usize, run: &BlockRun) {
        let blocks = &self.uses.blocks;
        let start = run.first.0.max(blocks.start);
        let end = (run.first.0 + run.count).min(blocks.end);
        for pba in (start..end).map(Pba) {
            let usage = run.usage;
            if usage.is_free || usage.is_owned {
                self.hold(place, pba, usage.is_free);
            }
            if usage.is_owned {
                self.uses.own(pba);
            }
            if let Some(references) = usage.references {
                let bit = self.bit(pba);
                if !self.is_held(bit) && !self.is_referenced(bit) {
                    self.holder[bit] = place as u16;
                }
                self.uses.refer_many(pba, references);
            }
            if usage.is_free && (usage.is_owned || usage.references.is_some()) {
                let group = self.groups[place];
                self.findings.push(format!(
                    "PBA {pba}: counted as free in group {group}, but its entries refer to it"
                ));
            }
        }
    }

    /// Notes that a block is free or owned in a group, which must be the only one.
    fn hold(&mut self, place: usize, pba: Pba, is_free: bool) {
        let bit = self.bit(pba);
        if self.is_held(bit) {
            let (one, other) = (self.holder_of(bit), self.groups[place]);
            let one_has = self.custody(bit);
            let other_has = custody(is_free);
            self.findings.push(format!(
                "PBA {pba}: {one_has} group {one}, and {other_has} group {other}"
            ));
        }
        if is_free {
            bits::fill(&mut self.free, bit..bit + 1, true);
        }
        self.holder[bit] = place as u16;
    }

    fn bit(&self, pba: Pba) -> usize {
        (pba.0 - self.uses.blocks.start) as usize
    }

    fn is_held(&self, bit: usize) -> bool {
        let has = |words: &[u64]| bits::all(words, bit..bit + 1, true);
        has(&self.free) || has(self.uses.owned())
    }

    fn is_referenced(&self, bit: usize) -> bool {
        bits::all(self.uses.referenced_bits(), bit..bit + 1, true)
    }

    fn custody(&self, bit: usize) -> &'static str {
        custody(bits::all(&self.free, bit..bit + 1, true))
    }

    fn holder_of(&self, bit: usize) -> GroupId {
        self.groups[usize::from(self.holder[bit])]
    }

    /// Compares the rows of the index with the references of all groups. Returns the blocks that have rows, unless the
    /// index cannot be read.
    fn compare_rows(
        &mut self,
        pool: &SharedPool,
        census: &mut Census<'_>,
    ) -> Result<Option<Vec<u64>>> {
        let index = pool.index()?;
        let mut has_row = vec![0; self.free.len()];
        let mut from = Some(Fingerprint::default());
        while let Some(start) = from {
            let rows = match index.rows(start, ROWS_AT_ONCE) {
                Ok(rows) => rows,
                Err(error @ (IndexError::Io(_) | IndexError::Away { .. })) => {
                    return Err(error.into());
                }
                Err(error) => {
                    let message = format!("the fingerprint index cannot be read: {error}");
                    self.findings.push(message);
                    return Ok(None);
                }
            };
            census.keep()?;
            from = rows.last().and_then(|(last, _)| last.successor());
            for (_, row) in &rows {
                if self.uses.blocks.contains(&row.pba.0) {
                    self.compare_row(&mut has_row, row);
                } else if self.uses.blocks.start == 0 && row.pba.0 >= self.pool_end {
                    let pba = row.pba;
                    let message = format!("PBA {pba}: in the index, and beyond the pool's end");
                    self.findings.push(message);
                }
            }
        }
        let missing = self.uses.referenced();
        let missing =
            missing.filter(|pba| !bits::all(&has_row, self.bit(*pba)..self.bit(*pba) + 1, true));
        let missing: Vec<String> = missing
            .map(|pba| format!("PBA {pba}: shared by entries, but not in the index"))
            .collect();
        self.findings.extend(missing);
        Ok(Some(has_row))
    }

    fn compare_row(&mut self, has_row: &mut [u64], row: &Row) {
        let Row { pba, references } = *row;
        let bit = self.bit(pba);
        let counted = self.uses.counted(pba);
        if bits::all(has_row, bit..bit + 1, true) {
            self.findings.push(format!("PBA {pba}: twice in the index"));
        } else if counted != references {
            self.findings.push(format!(
                "PBA {pba}: the index counts {references} references, the maps of all groups make {counted}"
            ));
        }
        if self.is_held(bit) {
            let (has, group) = (self.custody(bit), self.holder_of(bit));
            self.findings
                .push(format!("PBA {pba}: in the index, and {has} group {group}"));
        }
        bits::fill(has_row, bit..bit + 1, true);
    }

    /// Finds blocks that are used in two ways, or are the pool's and a group's.
    fn compare_uses(&mut self, given: &[u64]) {
        let (owned, referenced) = (self.uses.owned(), self.uses.referenced_bits());
        let shared: Vec<u64> = (0..self.free.len())
            .map(|n| (self.free[n] | owned[n]) & referenced[n])
            .collect();
        let twice: Vec<u64> = (0..self.free.len())
            .map(|n| (self.free[n] | owned[n] | referenced[n]) & given[n])
            .collect();
        for bit in bits::ones(&shared, 0..shared.len() * 64) {
            let (has, group) = (self.custody(bit), self.holder_of(bit));
            let pba = self.uses.blocks.start + bit as u64;
            self.findings.push(format!(
                "PBA {pba}: {has} group {group}, but entries share it"
            ));
        }
        for run in bits::set_runs(&twice, 0) {
            let what = if self.is_held(run.start) {
                let has = self.custody(run.start);
                format!("{has} group {}", self.holder_of(run.start))
            } else {
                "shared by entries".to_owned()
            };
            let message = format!(
                "{}: the pool can lease {} to any group, but the first is {what}",
                self.place(&run),
                if run.len() == 1 {
                    "the block"
                } else {
                    "the blocks"
                },
            );
            self.findings.push(message);
        }
    }

    /// The blocks that nobody has: runs of places in the window.
    pub(super) fn leaked(&self, given: &[u64], has_row: &[u64]) -> Vec<Range<usize>> {
        let (owned, referenced) = (self.uses.owned(), self.uses.referenced_bits());
        let mut leaked: Vec<u64> = (0..self.free.len())
            .map(|n| !(self.free[n] | owned[n] | referenced[n] | given[n] | has_row[n]))
            .collect();
        if self.uses.blocks.start < FIRST_BLOCK {
            // Only in a pool that had one owner, groups have the blocks next to the label.
            let extent = (FIRST_BLOCK - self.uses.blocks.start) as usize;
            let is_unused = bits::all(&leaked, 0..extent, true);
            let label = if is_unused { extent } else { 1 };
            bits::fill(&mut leaked, 0..label, false);
        }
        bits::set_runs(&leaked, 0).collect()
    }

    /// The blocks of a run, for people.
    fn place(&self, run: &Range<usize>) -> String {
        let first = self.uses.blocks.start + run.start as u64;
        match run.len() as u64 {
            1 => format!("PBA {first}"),
            count => format!("PBA {first} to {}", first + count - 1),
        }
    }
}

fn custody(is_free: bool) -> &'static str {
    if is_free {
        "free in"
    } else {
        "owned by an entry of"
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use onefold_format::census_message::BlockUse;

    use super::*;

    #[test]
    fn blocks_next_to_the_label_leak_only_where_groups_have_some() {
        let end = 2 * FIRST_BLOCK;
        let none = vec![0; end as usize / 64];
        let mut window = PoolWindow::new(0..end, end, vec![GroupId(1)]);
        let extent = FIRST_BLOCK as usize;
        let first_of = |window: &PoolWindow| {
            let leaked = window.leaked(&none, &none);
            assert_eq!((leaked.len(), leaked[0].end), (1, 2 * extent));
            leaked[0].start
        };
        assert_eq!(first_of(&window), extent);
        let free = BlockUse {
            is_free: true,
            is_owned: false,
            references: None,
            is_publishing: false,
            is_releasing: false,
        };
        window.add(
            0,
            &BlockRun {
                first: Pba(1),
                count: 5,
                usage: free,
            },
        );
        assert_eq!(first_of(&window), 6);
    }
}
