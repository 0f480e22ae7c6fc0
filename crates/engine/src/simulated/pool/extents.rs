//! The space extents of a pool, and which of their blocks the pool has.

use super::super::random::Random;
use crate::cluster::{Exchanged, ExtentCounts};
use onefold_format::record::EXCHANGE_ITEMS_MAX;
use onefold_format::units::BLOCKS_PER_SPACE_EXTENT;
use onefold_format::{GivenRun, GroupId, Pba, SpaceExtent};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::ops::Range;

/// The first extent that groups lease; the one before has the block whose number is not valid.
const FIRST: u64 = 1;

/// The extents of a pool.
pub(super) struct Extents {
    /// The first extent beyond the pool.
    limit: u64,
    /// The first extent that was never leased.
    next: u64,
    /// Extents that were given as a whole.
    returned: BTreeSet<SpaceExtent>,
    /// The blocks that were given of other extents.
    parts: BTreeMap<SpaceExtent, BTreeSet<Pba>>,
    last: BTreeMap<GroupId, Exchanged>,
}

/// A group's request.
pub(super) struct Exchange<'a> {
    pub(super) group: GroupId,
    pub(super) number: u64,
    pub(super) give: &'a [GivenRun],
    pub(super) take: u32,
    /// A repeat of the last number is recognised.
    pub(super) is_number_kept: bool,
}

impl Extents {
    pub(super) fn new() -> Extents {
        Extents {
            limit: FIRST,
            next: FIRST,
            returned: BTreeSet::new(),
            parts: BTreeMap::new(),
            last: BTreeMap::new(),
        }
    }

    pub(super) fn set_count(&mut self, extents: u64) {
        self.limit = FIRST + extents;
    }

    pub(super) fn set_leased(&mut self, end: u64, leased: &[SpaceExtent]) {
        self.limit = end.max(FIRST);
        self.next = leased.last().map_or(FIRST, |last| last.0 + 1);
        let below = (FIRST..self.next).map(SpaceExtent);
        self.returned = below.filter(|extent| !leased.contains(extent)).collect();
    }

    pub(super) fn exchange(
        &mut self,
        exchange: &Exchange<'_>,
        random: &mut Random,
    ) -> io::Result<Exchanged> {
        let Exchange {
            group,
            number,
            give,
            take,
            is_number_kept,
        } = *exchange;
        if is_number_kept && let Some(last) = self.last.get(&group) {
            if number == last.number {
                return Ok(last.clone());
            }
            if number < last.number {
                let last = last.number;
                return invalid(format!("exchange {number} of group {group} after {last}"));
            }
        }
        self.check(give)?;
        let Some(room) = EXCHANGE_ITEMS_MAX.checked_sub(give.len()) else {
            return invalid(format!("{} runs are too many", give.len()));
        };
        let parts = give.iter().filter(|run| !is_whole(run));
        // Each part may complete an extent.
        let take = (take as usize).min(room.saturating_sub(parts.count()));
        let mut taken: Vec<SpaceExtent> = (0..take).map_while(|_| self.take_one(random)).collect();
        for run in give {
            let Some(extent) = self.give(run) else {
                continue;
            };
            if taken.len() < room {
                taken.push(extent);
            } else {
                self.returned.insert(extent);
            }
        }
        let exchanged = Exchanged {
            number,
            given: give.to_vec(),
            taken,
        };
        self.last.insert(group, exchanged.clone());
        Ok(exchanged)
    }

    /// Refuses blocks that the pool has already, or that it never handed out.
    fn check(&self, give: &[GivenRun]) -> io::Result<()> {
        let mut given = BTreeSet::new();
        for run in give {
            let extent = run.pba.space_extent();
            let last = run.pba + u64::from(run.count).saturating_sub(1);
            if run.count == 0 || last.space_extent() != extent {
                return invalid(format!("{run:?} is no run of one space extent"));
            }
            let parts = self.parts.get(&extent);
            let is_out = self.is_out(extent);
            for block in blocks(run) {
                let is_known = parts.is_some_and(|parts| parts.contains(&block));
                if !is_out || is_known || block == Pba(0) || !given.insert(block) {
                    return invalid(format!("the pool has block {block} already"));
                }
            }
        }
        Ok(())
    }

    /// Takes a run back. Returns its extent if this completes it part by part.
    fn give(&mut self, run: &GivenRun) -> Option<SpaceExtent> {
        let extent = run.pba.space_extent();
        if is_whole(run) {
            self.returned.insert(extent);
            return None;
        }
        let parts = self.parts.entry(extent).or_default();
        parts.extend(blocks(run));
        let is_complete = parts.len() as u64 == BLOCKS_PER_SPACE_EXTENT;
        is_complete.then(|| self.parts.remove(&extent))?;
        Some(extent)
    }

    /// A free extent: one that was given as a whole, or one that was never taken.
    fn take_one(&mut self, random: &mut Random) -> Option<SpaceExtent> {
        let below = self.returned.range(..SpaceExtent(self.limit));
        let first = below.copied().next();
        let is_new = self.next < self.limit && (first.is_none() || random.coin());
        if is_new {
            self.next += 1;
            return Some(SpaceExtent(self.next - 1));
        }
        let extent = first?;
        self.returned.remove(&extent);
        Some(extent)
    }

    pub(super) fn last(&self, group: GroupId) -> Option<Exchanged> {
        self.last.get(&group).cloned()
    }

    pub(super) fn counts(&self) -> ExtentCounts {
        let returned = self.returned.range(..SpaceExtent(self.limit)).count() as u64;
        ExtentCounts {
            free: self.limit.saturating_sub(self.next) + returned,
            all: self.limit - FIRST,
        }
    }

    /// The blocks of this range that the pool has.
    pub(super) fn given(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut given: Vec<Range<u64>> = Vec::new();
        let mut add = |blocks: Range<u64>| {
            let blocks = blocks.start.max(range.start)..blocks.end.min(range.end);
            match given.last_mut() {
                Some(last) if last.end == blocks.start => last.end = blocks.end,
                _ if blocks.is_empty() => {}
                _ => given.push(blocks),
            }
        };
        let first = range.start / BLOCKS_PER_SPACE_EXTENT;
        for extent in first..range.end.div_ceil(BLOCKS_PER_SPACE_EXTENT).min(self.limit) {
            let first = SpaceExtent(extent).first().0;
            if !self.is_out(SpaceExtent(extent)) {
                add(first..first + BLOCKS_PER_SPACE_EXTENT);
            }
            let parts = self.parts.get(&SpaceExtent(extent));
            parts
                .into_iter()
                .flatten()
                .for_each(|block| add(block.0..block.0 + 1));
        }
        given
    }

    /// Whether no group can take the extent. The first one never can be taken, but blocks of it can be given.
    pub(super) fn is_out(&self, extent: SpaceExtent) -> bool {
        extent.0 < FIRST || extent.0 < self.next && !self.returned.contains(&extent)
    }

    /// The blocks that the pool has of extents that are out.
    pub(super) fn parts(&self) -> impl Iterator<Item = Pba> + '_ {
        self.parts.values().flatten().copied()
    }
}

fn is_whole(run: &GivenRun) -> bool {
    u64::from(run.count) == BLOCKS_PER_SPACE_EXTENT
}

fn blocks(run: &GivenRun) -> impl Iterator<Item = Pba> + use<> {
    let first = run.pba;
    (0..u64::from(run.count)).map(move |n| first + n)
}

fn invalid<T>(message: String) -> io::Result<T> {
    Err(io::Error::new(ErrorKind::InvalidInput, message))
}
