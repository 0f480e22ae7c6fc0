//! Rebuilds the index of a shared pool from the maps of all groups, after a loss of any of its shards.
//!
//! 1. all groups pause their jobs; guests continue
//! 2. this host takes all shards, and empties them
//! 3. the groups report their use of blocks. All reports together decide the batches that were open at the lost index
//!    (`batches/decided.rs`), and each group settles its own, durably
//! 4. the groups count their references, and read the fingerprints of the blocks: each block is read by the first group that
//!    refers to it. The rows are added to the shards
//! 5. blocks that nobody has are given to the pool: the lost index had aliased an item to such a block, the answer is lost,
//!    and all other references were released
//! 6. the shards begin to answer, with the number of each group's last batch
//!
//! The whole index is counted again, also shards that are whole: the groups that do not know the answers to a batch do not
//! know either which shards have given some.
//!
//! Crash behaviour: until 6, the shards say on the disk that they have to be rebuilt, and refuse batches and lookups. So a
//! rebuild that has ended early is begun again, and the batches that groups have settled by then stay settled. Blocks that nobody
//! has are not given back then: `pool check` names them.

use std::ops::Range;
use std::sync::Arc;

use onefold_format::census_message::{BlockRun, CENSUS_FINGERPRINTS_MAX};
use onefold_format::index_message::shard_of;
use onefold_format::record::EXCHANGE_ITEMS_MAX;
use onefold_format::units::{BLOCKS_PER_SPACE_EXTENT, ID_END};
use onefold_format::{GivenRun, GroupId, Pba, Shard};
use onefold_index::served::Served;
use onefold_index::{Fingerprint, FingerprintIndex, IndexCounts, IndexReader, Row, StreamId};
use onefold_metadata::{Result, StoreError, bits};

use super::SharedPool;
use super::census::Census;
use super::check::PoolWindow;
use crate::dedup::IndexStat;

/// The group on whose behalf blocks are given to the pool that no group has. No group gets this number.
const NOBODY: GroupId = GroupId(ID_END - 1);

/// The result of a rebuild.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RebuildReport {
    /// The index as it is now.
    pub index: IndexStat,
    /// Blocks without rows, because they cannot be read, or because another block has their content. They stay as they are,
    /// and are not freed.
    pub left_out: u64,
    /// Blocks that no group had, and that the pool has again.
    pub given_back: u64,
}

impl SharedPool {
    /// Counts the index again from the maps of all groups. Guests continue; jobs of all groups are paused until it has ended.
    /// `wait` is called when a group has not answered yet, and waits a moment. `progress` gets the number of blocks of the
    /// pool that are counted, and of all. This host serves all shards afterwards.
    ///
    /// # Errors
    ///
    /// `Busy` if a group is not open on any host, gets another owner, or is being counted already; `Damaged` if a map cannot
    /// be read; errors of the cluster. The index is lost then, until a rebuild ends without one.
    pub fn rebuild_index(
        &self,
        wait: &mut dyn FnMut(),
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<RebuildReport> {
        let pool_end = self.pool_end()?;
        let mut census = Census::begin_rebuild(self, Pba(pool_end), wait)?;
        let mut shards = Vec::new();
        for shard in (0..self.description().shards).map(Shard) {
            shards.push(self.take_emptied(shard)?);
            census.keep()?;
        }
        let (last_numbers, called_off) = self.settle_groups(&mut census, pool_end)?;
        let (mut left_out, mut given_back) = (0, 0);
        for blocks in self.windows(pool_end) {
            let end = blocks.end;
            let mut window = PoolWindow::new(blocks, pool_end, census.groups());
            let given = self.given_blocks(&window.blocks())?;
            window.count(&mut census)?;
            left_out += add_rows_of(&window, &mut census, &shards)?;
            census.confirm()?;
            given_back += self.give_back(&window, &given, called_off - given_back)?;
            progress(end, pool_end);
        }
        for shard in &shards {
            shard.in_turn(|index| index.finish_rebuild_of(&last_numbers))?;
        }
        drop(census);
        let mut counts = IndexCounts::default();
        for shard in &shards {
            let of_shard = shard.index().counts();
            counts.unique += of_shard.unique;
            counts.shared += of_shard.shared;
            counts.references += of_shard.references;
        }
        let report = RebuildReport {
            index: self.describe_index(counts, false)?,
            left_out,
            given_back,
        };
        tracing::info!(
            "the index is counted again: {} blocks are in it, {left_out} were left out, and {given_back} that no group had \
             are the pool's again",
            report.index.unique_blocks + report.index.shared_blocks
        );
        Ok(report)
    }

    /// Has all groups settle the batches that were open at the lost index. Returns the numbers of their last batches, and
    /// how many publications were called off.
    fn settle_groups(
        &self,
        census: &mut Census<'_>,
        pool_end: u64,
    ) -> Result<(Vec<(StreamId, u64)>, u64)> {
        let mut called_off = 0;
        let groups = census.groups();
        for blocks in self.windows(pool_end) {
            let range = (Pba(blocks.start), Pba(blocks.end));
            // Before the reports: a group that takes blocks of the pool in between reports them, too.
            let mut uses = Uses::new(blocks.clone(), self.given_blocks(&blocks)?);
            for group in &groups {
                census.prepare(*group, range)?;
            }
            for (place, group) in groups.iter().enumerate() {
                census.blocks_of(*group, range, &mut |run| uses.add(place, run))?;
            }
            called_off += uses.called_off();
            for (place, group) in groups.iter().enumerate() {
                census.decide(*group, &blocks, &uses.granted(place))?;
            }
        }
        let last_numbers = census.settle()?.into_iter();
        let last_numbers = last_numbers.map(|(group, number)| (StreamId(group.0), number));
        Ok((last_numbers.collect(), called_off))
    }

    /// Gives the blocks of a window that nobody has to the pool. `given` has those that are the pool's already. Returns how
    /// many were given.
    ///
    /// The lost index has left such a block only for a publication that was called off. If there are more than `most`, a group may
    /// have them that the directory does not know, and all of them stay as they are.
    fn give_back(&self, window: &PoolWindow, given: &[u64], most: u64) -> Result<u64> {
        if !window.findings.is_empty() {
            // A group that is damaged may have blocks that it cannot name.
            window
                .findings
                .iter()
                .for_each(|finding| tracing::error!("{finding}"));
            return Ok(0);
        }
        let first = window.blocks().start;
        let no_rows = vec![0; given.len()];
        let mut runs = Vec::new();
        for run in window.leaked(given, &no_rows) {
            let (mut at, end) = (first + run.start as u64, first + run.end as u64);
            while at < end {
                let next = (at / BLOCKS_PER_SPACE_EXTENT + 1) * BLOCKS_PER_SPACE_EXTENT;
                let count = (end.min(next) - at) as u32;
                runs.push(GivenRun {
                    pba: Pba(at),
                    count,
                });
                at += u64::from(count);
            }
        }
        let count = runs.iter().map(|run| u64::from(run.count)).sum();
        if count > most {
            tracing::error!(
                "{count} blocks of the pool are nobody's, and stay as they are: 'onefold pool check' names them"
            );
            return Ok(0);
        }
        for some in runs.chunks(EXCHANGE_ITEMS_MAX / 2) {
            let failed = |error| StoreError::io("giving blocks to the pool", error);
            let last = self.cluster().last_exchange(NOBODY).map_err(failed)?;
            let number = last.map_or(0, |last| last.number) + 1;
            self.cluster()
                .exchange(NOBODY, number, some, 0)
                .map_err(failed)?;
        }
        Ok(count)
    }
}

/// Adds the rows of a window's blocks. Returns how many blocks have none.
fn add_rows_of(
    window: &PoolWindow,
    census: &mut Census<'_>,
    shards: &[Arc<Served>],
) -> Result<u64> {
    let mut left_out = 0;
    let places = census.groups().into_iter().enumerate();
    let mut readers: Vec<_> = places
        .map(|(place, group)| (group, window.first_of(place)))
        .collect();
    while !readers.is_empty() {
        let mut asked = Vec::new();
        readers.retain_mut(|(group, blocks)| {
            let some = ranges(blocks.by_ref().take(CENSUS_FINGERPRINTS_MAX));
            let has_some = !some.is_empty();
            asked.extend(has_some.then_some((*group, some)));
            has_some
        });
        for (group, blocks) in &asked {
            census.prepare_fingerprints(*group, blocks)?;
        }
        for (group, some) in asked {
            let wanted: u64 = some.iter().map(|range| range.end - range.start).sum();
            let mut rows = Vec::new();
            census.fingerprints_of(group, some, &mut |pba, fingerprint| {
                let references = window.references(pba);
                rows.push((fingerprint, Row { pba, references }));
            })?;
            let refused = add_rows(shards, &rows)?;
            left_out += wanted - rows.len() as u64 + refused;
        }
    }
    Ok(left_out)
}

/// Adds rows to the shards that have their fingerprints. Returns how many rows were refused.
fn add_rows(shards: &[Arc<Served>], rows: &[(Fingerprint, Row)]) -> Result<u64> {
    let mut by_shard: Vec<Vec<(Fingerprint, Row)>> = vec![Vec::new(); shards.len()];
    for (fingerprint, row) in rows {
        let shard = shard_of(&fingerprint.0, shards.len() as u16);
        by_shard[usize::from(shard.0)].push((*fingerprint, *row));
    }
    let mut refused = 0;
    for (shard, rows) in shards.iter().zip(&by_shard) {
        if rows.is_empty() {
            continue;
        }
        for (_, row) in shard.in_turn(|index| index.add_rows(rows))? {
            refused += 1;
            tracing::error!(
                "block {} of the pool holds what another published block holds: it stays as it is and will not be freed",
                row.pba
            );
        }
    }
    Ok(refused)
}

/// Blocks in ascending order, as ranges.
fn ranges(blocks: impl Iterator<Item = Pba>) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for pba in blocks {
        match ranges.last_mut() {
            Some(last) if last.end == pba.0 => last.end += 1,
            _ => ranges.push(pba.0..pba.0 + 1),
        }
    }
    ranges
}

/// The use that the groups make of some blocks, before their open batches are settled. All are bitmaps but `group`.
struct Uses {
    blocks: Range<u64>,
    /// Blocks that entries or dropped references name.
    named: Vec<u64>,
    /// Blocks that a group has, free, private, or published by an open batch; and those that the pool has.
    kept: Vec<u64>,
    /// Blocks that an open batch of the finder publishes.
    publishing: Vec<u64>,
    /// Blocks that an open batch of the collector releases.
    releasing: Vec<u64>,
    /// For each block that is published or released, the place of the group that decides about it: the one that publishes
    /// it, or the first one that releases it.
    group: Vec<u16>,
}

impl Uses {
    /// No use, but the blocks of the bitmap `given` are the pool's.
    fn new(blocks: Range<u64>, given: Vec<u64>) -> Self {
        let count = (blocks.end - blocks.start) as usize;
        let none = vec![0; count / 64];
        Self {
            blocks,
            named: none.clone(),
            kept: given,
            publishing: none.clone(),
            releasing: none,
            group: vec![0; count],
        }
    }

    /// Adds a group's use of blocks. Groups come in the order of their places.
    fn add(&mut self, place: usize, run: &BlockRun) {
        let start = run.first.0.max(self.blocks.start);
        let end = (run.first.0 + run.count).min(self.blocks.end);
        if start >= end {
            return;
        }
        let usage = run.usage;
        let places = (start - self.blocks.start) as usize..(end - self.blocks.start) as usize;
        for at in places.clone() {
            let has = |words: &[u64]| bits::all(words, at..at + 1, true);
            let is_decided = has(&self.publishing) || has(&self.releasing);
            if usage.is_publishing || usage.is_releasing && !is_decided {
                self.group[at] = place as u16;
            }
        }
        let noted = [
            (
                &mut self.named,
                usage.references.is_some_and(|count| count > 0),
            ),
            (
                &mut self.kept,
                usage.is_free || usage.is_owned || usage.is_publishing,
            ),
            (&mut self.publishing, usage.is_publishing),
            (&mut self.releasing, usage.is_releasing),
        ];
        for (words, is_set) in noted {
            if is_set {
                bits::fill(words, places.clone(), true);
            }
        }
    }

    /// How many blocks of open publications become private again.
    fn called_off(&self) -> u64 {
        let both = self.publishing.iter().zip(&self.named);
        both.map(|(publishing, named)| u64::from((publishing & !named).count_ones()))
            .sum()
    }

    /// The blocks that a group has published, or frees.
    fn granted(&self, place: usize) -> Vec<Range<u64>> {
        let granted: Vec<u64> = (0..self.named.len())
            .map(|n| {
                let published = self.publishing[n] & self.named[n];
                let freed =
                    self.releasing[n] & !self.publishing[n] & !self.named[n] & !self.kept[n];
                published | freed
            })
            .collect();
        let places = bits::ones(&granted, 0..self.group.len());
        let ours = places.filter(|at| usize::from(self.group[*at]) == place);
        ranges(ours.map(|at| Pba(self.blocks.start + at as u64)))
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use onefold_format::census_message::BlockUse;

    use super::*;

    const NONE: BlockUse = BlockUse {
        is_free: false,
        is_owned: false,
        references: None,
        is_publishing: false,
        is_releasing: false,
    };
    const FREE: BlockUse = BlockUse {
        is_free: true,
        ..NONE
    };
    const OWNED: BlockUse = BlockUse {
        is_owned: true,
        ..NONE
    };
    const NAMED: BlockUse = BlockUse {
        references: Some(1),
        ..NONE
    };
    /// Of an entry that is an unsettled item.
    const PUBLISHING: BlockUse = BlockUse {
        references: Some(0),
        is_publishing: true,
        ..NONE
    };
    const RELEASING: BlockUse = BlockUse {
        is_releasing: true,
        ..NONE
    };

    /// The groups to which two blocks are granted, with the uses of two groups.
    fn granted(uses: [BlockUse; 2]) -> Vec<usize> {
        granted_from(5, uses)
    }

    fn granted_from(first: u64, uses: [BlockUse; 2]) -> Vec<usize> {
        // The last block is the pool's.
        let mut all = Uses::new(0..64, vec![1 << 63]);
        for (place, usage) in uses.into_iter().enumerate() {
            all.add(
                place,
                &BlockRun {
                    first: Pba(first),
                    count: 2,
                    usage,
                },
            );
        }
        let places = (0..uses.len()).filter(|place| match &all.granted(*place)[..] {
            [] => false,
            [blocks] => blocks.start == first,
            other => panic!("{other:?}"),
        });
        places.collect()
    }

    #[test]
    fn a_block_is_published_if_anything_else_names_it() {
        assert_eq!(granted([PUBLISHING, NAMED]), [0]);
        assert_eq!(granted([NAMED, PUBLISHING]), [1]);
        let twice = BlockUse {
            references: Some(1),
            ..PUBLISHING
        };
        assert_eq!(granted([twice, NONE]), [0]);
        assert_eq!(granted([PUBLISHING, NONE]), [0; 0]);
        assert_eq!(granted([PUBLISHING, RELEASING]), [0; 0]);
    }

    #[test]
    fn a_release_frees_a_block_that_nothing_names_and_nobody_has() {
        assert_eq!(granted([RELEASING, NONE]), [0]);
        assert_eq!(granted([NONE, RELEASING]), [1]);
        assert_eq!(granted([RELEASING, RELEASING]), [0]);
        for other in [FREE, OWNED, NAMED, PUBLISHING] {
            assert_eq!(granted([RELEASING, other]), [0; 0], "{other:?}");
            assert_eq!(granted([other, RELEASING]), [0; 0], "{other:?}");
        }
        let both = BlockUse {
            references: Some(1),
            ..RELEASING
        };
        assert_eq!(granted([both, RELEASING]), [0; 0]);
        assert_eq!(
            granted_from(63, [RELEASING, NONE]),
            [0; 0],
            "the pool has it"
        );
    }

    #[test]
    fn blocks_are_joined_to_ranges() {
        assert_eq!(
            ranges([1, 2, 3, 7, 9, 10].map(Pba).into_iter()),
            [1..4, 7..8, 9..11]
        );
        assert_eq!(ranges(std::iter::empty()), []);
    }
}
