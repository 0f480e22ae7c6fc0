//! The effect of an exchange on the space extents of a shared pool, apart from the rows that keep them.
//!
//! Each extent that was ever taken is *out*, unless it was given as a whole. Of an extent that is out, the pool may have
//! parts: blocks that groups gave. An extent whose blocks are all among them is taken by the group that gave the last one.

use onefold_format::record::EXCHANGE_ITEMS_MAX;
use onefold_format::units::{BLOCKS_PER_SPACE_EXTENT, PBA_END};
use onefold_format::{GivenRun, SpaceExtent};
use std::collections::BTreeMap;
use std::ops::Range;

/// The first extent that groups take; the one before has the pool's label.
pub(super) const FIRST: u64 = 1;

/// The first extent that no pool has.
pub(super) const EXTENTS_END: u64 = PBA_END / BLOCKS_PER_SPACE_EXTENT;

/// Extents in a page: a row of 512 bytes. One exchange reads up to [`EXCHANGE_ITEMS_MAX`] pages with an extent to take, so
/// it finds enough, wherever they are.
pub(super) const PAGE_EXTENTS: u64 = 4096;

/// A bitmap of a page's extents, or of an extent's blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bitmap(Vec<u8>);

impl Bitmap {
    /// The extents of a page.
    pub(super) fn page() -> Bitmap {
        Bitmap(vec![0; PAGE_EXTENTS as usize / 8])
    }

    /// The blocks of an extent.
    pub(super) fn part() -> Bitmap {
        Bitmap(vec![0; BLOCKS_PER_SPACE_EXTENT as usize / 8])
    }

    /// Takes over the bytes if there are as many.
    pub(super) fn filled(mut self, bytes: &[u8]) -> Option<Bitmap> {
        (self.0.len() == bytes.len()).then(|| {
            self.0.copy_from_slice(bytes);
            self
        })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn count(&self) -> u64 {
        self.0.iter().map(|byte| u64::from(byte.count_ones())).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|byte| *byte == 0)
    }

    pub(super) fn is_full(&self) -> bool {
        self.0.iter().all(|byte| *byte == u8::MAX)
    }

    fn has(&self, bit: u64) -> bool {
        let byte = self.0.get((bit / 8) as usize);
        byte.is_some_and(|byte| byte >> (bit % 8) & 1 == 1)
    }

    fn set(&mut self, bit: u64, to: bool) {
        if let Some(byte) = self.0.get_mut((bit / 8) as usize) {
            *byte = *byte & !(1 << (bit % 8)) | u8::from(to) << (bit % 8);
        }
    }

    /// The bits that are set, ascending.
    pub(super) fn ones(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.0.len() as u64 * 8).filter(|bit| self.has(*bit))
    }
}

/// The space extents of a pool, as far as an exchange is concerned with them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Space {
    /// The first extent that was never taken.
    pub(super) next: u64,
    /// The first extent beyond the pool.
    pub(super) limit: u64,
    /// The extents below `next` that were given as a whole.
    pub(super) free: u64,
    /// Which extents these are, by pages.
    pub(super) pages: BTreeMap<u64, Bitmap>,
    /// The blocks that the pool has of extents that are out.
    pub(super) parts: BTreeMap<u64, Bitmap>,
}

impl Space {
    /// A pool in which groups have these extents, in ascending order, of all below `end`.
    ///
    /// # Errors
    ///
    /// The reason why it is refused.
    pub(super) fn leased(end: u64, leased: &[SpaceExtent]) -> Result<Space, String> {
        let next = leased.last().map_or(FIRST, |last| last.0 + 1).max(FIRST);
        let limit = end.max(FIRST);
        if next > limit || limit > EXTENTS_END {
            return Err(format!(
                "a pool of {end} space extents cannot have number {next}"
            ));
        }
        let mut space = Space {
            next,
            limit,
            free: 0,
            pages: BTreeMap::new(),
            parts: BTreeMap::new(),
        };
        let mut leased = leased.iter().map(|extent| extent.0).peekable();
        for extent in FIRST..next {
            while leased.next_if(|other| *other < extent).is_some() {}
            if leased.next_if_eq(&extent).is_none() {
                space.give_whole(extent);
            }
        }
        Ok(space)
    }

    /// Gives runs of blocks and takes extents: up to `take`, and those that the runs complete. The caller has read the pages
    /// and parts of the runs' extents, and up to `take` pages that are not empty.
    ///
    /// A record has room for [`EXCHANGE_ITEMS_MAX`] runs and extents. So fewer are taken, and an extent that is completed
    /// beyond can be taken by any group, as if it had been given as a whole.
    ///
    /// # Errors
    ///
    /// The reason why it is refused. Then nothing of this value counts any more.
    pub(super) fn exchange(
        &mut self,
        give: &[GivenRun],
        take: u32,
    ) -> Result<Vec<SpaceExtent>, String> {
        let room = EXCHANGE_ITEMS_MAX.checked_sub(give.len()).ok_or_else(|| {
            let count = give.len();
            format!("it gives {count} runs, and {EXCHANGE_ITEMS_MAX} is the most")
        })?;
        give.iter().try_for_each(|run| self.add(run))?;
        let (completed, mut whole) = self.complete(give);
        let (completed, beyond) = completed.split_at(completed.len().min(room));
        whole.extend(beyond);
        let take = usize::try_from(take).unwrap_or(room);
        // No extent is both given and taken.
        let mut taken = self.take(take.min(room - completed.len()));
        taken.extend(completed);
        whole.iter().for_each(|extent| self.give_whole(*extent));
        Ok(taken.into_iter().map(SpaceExtent).collect())
    }

    /// The blocks of this range that the pool has. The caller has read the pages and parts of its extents.
    pub(super) fn given(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let extents =
            range.start / BLOCKS_PER_SPACE_EXTENT..range.end.div_ceil(BLOCKS_PER_SPACE_EXTENT);
        let extents = extents.start..extents.end.min(self.limit);
        let mut given: Vec<Range<u64>> = Vec::new();
        let mut add = |blocks: Range<u64>| {
            let blocks = blocks.start.max(range.start)..blocks.end.min(range.end);
            match given.last_mut() {
                Some(last) if last.end == blocks.start => last.end = blocks.end,
                _ if blocks.is_empty() => {}
                _ => given.push(blocks),
            }
        };
        for extent in extents {
            let first = extent * BLOCKS_PER_SPACE_EXTENT;
            if !self.is_out(extent) {
                add(first..first + BLOCKS_PER_SPACE_EXTENT);
            } else if let Some(part) = self.parts.get(&extent) {
                part.ones()
                    .for_each(|block| add(first + block..first + block + 1));
            }
        }
        given
    }

    /// Adds the blocks to the parts that the pool has.
    fn add(&mut self, run: &GivenRun) -> Result<(), String> {
        let blocks = blocks(run).ok_or_else(|| {
            let GivenRun { pba, count } = run;
            format!("{count} blocks from {pba} on are no run of one space extent")
        })?;
        let extent = run.pba.space_extent().0;
        if !self.is_out(extent) {
            return Err(format!("no group has space extent {extent}"));
        }
        let part = self.parts.entry(extent).or_insert_with(Bitmap::part);
        for block in blocks {
            if extent < FIRST && block == 0 {
                return Err("block 0 is the pool's label".to_owned());
            }
            if part.has(block) {
                let first = SpaceExtent(extent).first();
                return Err(format!("the pool has block {} already", first + block));
            }
            part.set(block, true);
        }
        Ok(())
    }

    /// Whether no group can take the extent. The first one never can be taken, but blocks of it can be given: groups of a pool
    /// that had one owner have some.
    fn is_out(&self, extent: u64) -> bool {
        let page = self.pages.get(&(extent / PAGE_EXTENTS));
        let is_free = page.is_some_and(|page| page.has(extent % PAGE_EXTENTS));
        extent < FIRST || extent < self.next && !is_free
    }

    /// Empties the parts that have all blocks of their extent, and returns these: those that were given part by part, and
    /// those that one run gave as a whole.
    fn complete(&mut self, give: &[GivenRun]) -> (Vec<u64>, Vec<u64>) {
        let (mut completed, mut whole) = (Vec::new(), Vec::new());
        for run in give {
            let extent = run.pba.space_extent().0;
            // Nothing is full but by this exchange: two runs of one extent complete it once.
            let part = self.parts.get_mut(&extent);
            if let Some(part) = part.filter(|part| part.is_full()) {
                *part = Bitmap::part();
                if u64::from(run.count) == BLOCKS_PER_SPACE_EXTENT {
                    whole.push(extent);
                } else {
                    completed.push(extent);
                }
            }
        }
        (completed, whole)
    }

    /// Takes up to `count` extents: those that were given first.
    fn take(&mut self, count: usize) -> Vec<u64> {
        let mut taken = Vec::new();
        for (number, page) in &mut self.pages {
            let left = count - taken.len();
            let bits: Vec<u64> = page.ones().take(left).collect();
            for bit in bits {
                page.set(bit, false);
                taken.push(number * PAGE_EXTENTS + bit);
            }
        }
        self.free = self.free.saturating_sub(taken.len() as u64);
        let new = self.limit.saturating_sub(self.next);
        let new = new.min((count - taken.len()) as u64);
        taken.extend(self.next..self.next + new);
        self.next += new;
        taken
    }

    fn give_whole(&mut self, extent: u64) {
        let page = self.pages.entry(extent / PAGE_EXTENTS);
        let page = page.or_insert_with(Bitmap::page);
        page.set(extent % PAGE_EXTENTS, true);
        self.free += 1;
    }
}

/// The run's blocks, counted from the start of their extent. Nothing if they are not of one extent of a pool.
pub(super) fn blocks(run: &GivenRun) -> Option<Range<u64>> {
    let first = run.pba.0 % BLOCKS_PER_SPACE_EXTENT;
    let end = first + u64::from(run.count);
    let is_run = run.count > 0 && end <= BLOCKS_PER_SPACE_EXTENT && run.pba.0 < PBA_END;
    is_run.then_some(first..end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_format::Pba;

    const ALL: u32 = BLOCKS_PER_SPACE_EXTENT as u32;

    const NOTHING: [u64; 0] = [];

    /// All extents below `next` are out.
    fn space(next: u64, limit: u64) -> Space {
        Space {
            next,
            limit,
            free: 0,
            pages: BTreeMap::new(),
            parts: BTreeMap::new(),
        }
    }

    fn run(extent: u64, from: u32, to: u32) -> GivenRun {
        GivenRun {
            pba: SpaceExtent(extent).first() + u64::from(from),
            count: to - from,
        }
    }

    #[test]
    fn blocks_next_to_the_label_can_be_given_and_never_taken() {
        let mut space = space(3, 3);
        assert!(space.clone().exchange(&[run(0, 0, 5)], 0).is_err());
        assert_eq!(exchange(&mut space, &[run(0, 1, ALL)], 9), NOTHING);
        assert_eq!(space.given(0..5), vec![1..5]);
        assert!(space.exchange(&[run(0, 7, 8)], 0).is_err());
    }

    #[test]
    fn extents_between_leased_ones_can_be_taken() {
        let extents = |numbers: &[u64]| numbers.iter().map(|n| SpaceExtent(*n)).collect::<Vec<_>>();
        let mut space = Space::leased(9, &extents(&[0, 2, 5])).unwrap();
        assert_eq!((space.next, space.limit, space.free), (6, 9, 3));
        assert_eq!(space.given(0..10 * BLOCKS_PER_SPACE_EXTENT).len(), 3);
        assert_eq!(exchange(&mut space, &[], 9), [1, 3, 4, 6, 7, 8]);
        for none in [&[][..], &[0]] {
            let space = Space::leased(3, &extents(none)).unwrap();
            assert_eq!((space.next, space.free), (1, 0));
        }
        assert!(Space::leased(5, &extents(&[5])).is_err());
        assert!(Space::leased(EXTENTS_END + 1, &[]).is_err());
    }

    fn exchange(space: &mut Space, give: &[GivenRun], take: u32) -> Vec<u64> {
        let taken = space.exchange(give, take).unwrap();
        taken.iter().map(|extent| extent.0).collect()
    }

    /// The extents of which the pool has parts.
    fn count_parts(space: &Space) -> usize {
        let parts = space.parts.values();
        parts.filter(|part| !part.is_empty()).count()
    }

    /// Why it is refused.
    fn refused(space: &Space, give: &[GivenRun]) -> String {
        space.clone().exchange(give, 1).unwrap_err()
    }

    #[test]
    fn what_was_given_is_taken_first_and_nothing_twice() {
        let mut space = space(FIRST, 6);
        assert_eq!(exchange(&mut space, &[], 4), [1, 2, 3, 4]);
        let give = [run(4, 0, ALL), run(2, 0, ALL)];
        assert_eq!(exchange(&mut space, &give, 1), [5]);
        assert_eq!((space.free, space.next), (2, 6));
        assert_eq!(exchange(&mut space, &[], 1), [2]);
        assert_eq!(exchange(&mut space, &[], 9), [4]);
        assert_eq!(exchange(&mut space, &[], 9), NOTHING);
        assert_eq!((space.free, space.next), (0, 6));
        assert!(count_parts(&space) == 0 && space.pages[&0].is_empty());
    }

    #[test]
    fn pages_keep_extents_far_from_each_other() {
        let far = 3 * PAGE_EXTENTS;
        let mut space = space(far + 1, far + 1);
        let give = [far, PAGE_EXTENTS - 1, PAGE_EXTENTS].map(|extent| run(extent, 0, ALL));
        assert_eq!(exchange(&mut space, &give, 9), NOTHING);
        assert_eq!((space.free, space.pages.len()), (3, 3));
        let taken = exchange(&mut space, &[], 9);
        assert_eq!(taken, [PAGE_EXTENTS - 1, PAGE_EXTENTS, far]);
    }

    #[test]
    fn the_last_part_completes_an_extent_whoever_gives_it_and_in_any_order() {
        let mut space = space(4, 4);
        let some = [run(2, 8, 9), run(3, 1, ALL), run(2, 100, ALL)];
        assert_eq!(exchange(&mut space, &some, 5), NOTHING);
        assert_eq!(space.parts[&2].count(), u64::from(ALL) - 99);
        let rest = [run(2, 0, 8), run(3, 0, 1), run(2, 9, 100)];
        assert_eq!(exchange(&mut space, &rest, 0), [2, 3]);
        assert_eq!(count_parts(&space), 0);
        // Also two runs of one exchange, and again.
        for _ in 0..2 {
            let both = [run(2, 5, ALL), run(2, 0, 5)];
            assert_eq!(exchange(&mut space, &both, 0), [2]);
        }
        assert_eq!(space.free, 0);
    }

    #[test]
    fn what_the_pool_has_or_never_had_is_refused() {
        let mut space = space(4, 9);
        exchange(&mut space, &[run(1, 0, ALL), run(2, 10, 20)], 0);
        for extent in [1, 4, 9, EXTENTS_END - 1] {
            let why = refused(&space, &[run(extent, 0, ALL)]);
            assert_eq!(why, format!("no group has space extent {extent}"));
        }
        for give in [&[run(2, 0, ALL)][..], &[run(2, 19, 25)], &[run(2, 0, 11)]] {
            assert!(refused(&space, give).ends_with("already"), "{give:?}");
        }
        let whole = run(3, 0, ALL);
        for give in [
            [whole, whole],
            [run(3, 0, 2), run(3, 1, 3)],
            [whole, run(3, 7, 8)],
        ] {
            assert!(refused(&space, &give).ends_with("already"), "{give:?}");
        }
        let odd = |pba: u64, count| GivenRun {
            pba: Pba(pba),
            count,
        };
        let first = SpaceExtent(2).first().0;
        for wrong in [
            odd(first, 0),
            odd(first + 1, ALL),
            odd(first, u32::MAX),
            odd(PBA_END, 1),
        ] {
            assert!(refused(&space, &[wrong]).contains("no run"), "{wrong:?}");
        }
        assert_eq!(
            exchange(&mut space, &[run(2, 0, 10), run(2, 20, ALL)], 1),
            [1, 2]
        );
    }

    #[test]
    fn given_blocks_are_those_of_extents_that_nobody_has_and_of_parts() {
        const EXTENT: u64 = BLOCKS_PER_SPACE_EXTENT;
        let mut space = space(4, 6);
        exchange(&mut space, &[run(1, 0, ALL), run(2, 0, 3), run(2, 7, 9)], 0);
        let all = [
            EXTENT..2 * EXTENT + 3,
            2 * EXTENT + 7..2 * EXTENT + 9,
            4 * EXTENT..6 * EXTENT,
        ];
        assert_eq!(space.given(0..9 * EXTENT), all);
        let some = [
            2 * EXTENT + 2..2 * EXTENT + 3,
            2 * EXTENT + 7..2 * EXTENT + 8,
        ];
        assert_eq!(space.given(2 * EXTENT + 2..2 * EXTENT + 8), some);
        assert!(space.given(3 * EXTENT..4 * EXTENT).is_empty());
    }

    #[test]
    fn an_exchange_fits_a_record() {
        let most = EXCHANGE_ITEMS_MAX as u64;
        let mut space = space(most + 1, 2 * most + 1);
        let give: Vec<GivenRun> = (1..=most).map(|extent| run(extent, 0, 1)).collect();
        assert_eq!(exchange(&mut space, &give[..500], u32::MAX).len(), 12);
        assert_eq!(exchange(&mut space, &give[500..], 0), NOTHING);
        // All are completed; there is room for 12.
        let rest = |extent| run(extent, 1, ALL);
        let rest: Vec<GivenRun> = (1..=500).map(rest).collect();
        let taken = exchange(&mut space, &rest, 9);
        assert_eq!(taken, (1..=12).collect::<Vec<_>>());
        assert_eq!((space.free, count_parts(&space)), (488, 12));
        assert_eq!(exchange(&mut space, &[], 1), [13]);
        let many: Vec<GivenRun> = (0..=most as u32).map(|n| run(1, n, n + 1)).collect();
        assert!(refused(&space, &many).contains("513 runs"));
    }
}
