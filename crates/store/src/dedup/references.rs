//! Counting references from the maps, which are the truth (P6), and the rows of an index from them.
//!
//! The references are counted in a checkpoint on disk, which is kept until the end, so requests continue.
//! Finder, collector and counting wait, so the index does not change. References dropped during the
//! count only join the queue, where they still count; claims made during it are counted later.

use std::collections::BTreeSet;
use std::ops::Range;

use onefold_format::batch_page::BatchItem;
use onefold_format::entry::State;
use onefold_format::space_page::BLOCKS_PER_SPACE_PAGE;
use onefold_format::{DomainId, Pba, QueueElement, VolumeRecord};
use onefold_index::{Fingerprint, FingerprintIndex, Row};
use onefold_journal::CheckpointReader;
use onefold_metadata::{Guard, Result, bits};
use rustc_hash::FxHashMap;

use crate::batches::STREAM;
use crate::pool::Pool;

/// Rows made at a time.
pub(super) const ROWS_AT_ONCE: usize = 4096;

/// The references of maps and queue to a window of the pool's blocks.
pub(crate) struct Window {
    pub(crate) blocks: Range<u64>,
    /// A bitmap of the blocks that an entry owns alone.
    owned: Vec<u64>,
    /// A bitmap of the blocks that have references, claimed or not.
    referenced: Vec<u64>,
    /// References to each block, without claimed ones. Counts of 65,535 and more are in `many`, which takes
    /// little memory: the maps with the entries for it are some ten thousand times as large.
    counted: Vec<u16>,
    many: FxHashMap<u64, u64>,
}

impl Window {
    /// Blocks that `bytes` of memory are enough for: whole pages of the free-space map.
    pub(crate) fn blocks_for(bytes: usize, pool_blocks: u64) -> u64 {
        // Two bytes and two bits for a block; less than a byte for the data compared with them.
        (bytes as u64 / 3)
            .next_multiple_of(BLOCKS_PER_SPACE_PAGE)
            .min(pool_blocks.next_multiple_of(BLOCKS_PER_SPACE_PAGE))
    }

    pub(crate) fn new(blocks: Range<u64>) -> Self {
        let count = (blocks.end - blocks.start) as usize;
        Self {
            blocks,
            owned: vec![0; count / 64],
            referenced: vec![0; count / 64],
            counted: vec![0; count],
            many: FxHashMap::default(),
        }
    }

    fn place(&self, pba: Pba) -> usize {
        (pba.0 - self.blocks.start) as usize
    }

    /// Notes that an entry owns the block; false if another does already.
    pub(crate) fn own(&mut self, pba: Pba) -> bool {
        let bit = self.place(pba);
        let is_first = bits::all(&self.owned, bit..bit + 1, false);
        bits::fill(&mut self.owned, bit..bit + 1, true);
        is_first
    }

    /// Notes one more reference to the block.
    pub(crate) fn refer(&mut self, pba: Pba) {
        let place = self.place(pba);
        bits::fill(&mut self.referenced, place..place + 1, true);
        let count = &mut self.counted[place];
        *count = count.saturating_add(1);
        if *count == u16::MAX {
            *self.many.entry(pba.0).or_insert(u64::from(u16::MAX) - 1) += 1;
        }
    }

    /// Notes, after all references, that the index does not count one of them yet; false if there is none left.
    pub(crate) fn claim(&mut self, pba: Pba) -> bool {
        let place = self.place(pba);
        let count = &mut self.counted[place];
        match (*count, self.many.get_mut(&pba.0)) {
            (0, _) => return false,
            (u16::MAX, Some(many)) if *many > u64::from(u16::MAX) => *many -= 1,
            _ => *count -= 1,
        }
        true
    }

    /// The number of references to the block that the index should count.
    pub(crate) fn counted(&self, pba: Pba) -> u64 {
        match self.counted[self.place(pba)] {
            u16::MAX => self.many.get(&pba.0).copied().unwrap_or_default(),
            count => u64::from(count),
        }
    }

    /// A bitmap of the blocks that an entry owns alone.
    pub(crate) fn owned(&self) -> &[u64] {
        &self.owned
    }

    /// A bitmap of the blocks that have references, claimed or not.
    pub(crate) fn referenced_bits(&self) -> &[u64] {
        &self.referenced
    }

    /// Notes `more` references to the block, which may be none if all of them are claimed.
    pub(crate) fn refer_many(&mut self, pba: Pba, more: u64) {
        let place = self.place(pba);
        bits::fill(&mut self.referenced, place..place + 1, true);
        let count = self.counted(pba) + more;
        self.counted[place] = u16::try_from(count).unwrap_or(u16::MAX);
        if count >= u64::from(u16::MAX) {
            self.many.insert(pba.0, count);
        }
    }

    /// Blocks with references, in ascending order.
    pub(crate) fn referenced(&self) -> impl Iterator<Item = Pba> + '_ {
        let places = bits::ones(&self.referenced, 0..self.counted.len());
        places.map(|place| Pba(self.blocks.start + place as u64))
    }
}

/// Counts the index again. The caller holds the job lock.
pub(super) fn count_index(pool: &Pool, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
    let index = pool.index().get()?;
    let snapshot = CheckpointReader::take(pool.journal())?;
    // An older checkpoint names blocks that were freed since: they must not be read, and a failed
    // read would not mean that they are bad.
    if !snapshot.is_fresh {
        pool.journal().check_writable()?;
    }
    index.begin_rebuild()?;
    if Guard::HitOfThisIndex.holds() {
        pool.journal().outdate_lookups()?;
    }
    let all: u64 = snapshot.volumes.iter().map(|v| v.counts.shared).sum();
    let mut done = 0;
    let mut domains: BTreeSet<DomainId> = snapshot.volumes.iter().map(|v| v.domain).collect();
    snapshot.each_dropped(&mut |element| {
        domains.insert(element.domain);
    })?;
    for domain in domains {
        let pool_blocks = data_blocks(pool)?;
        let step = Window::blocks_for(pool.limits().check_bytes, pool_blocks);
        for start in (0..pool_blocks).step_by(step as usize) {
            let _memory = pool.scan_memory();
            let mut window = Window::new(start..start + step);
            count_references(&snapshot, domain, &mut window)?;
            let mut report = |blocks| {
                done += blocks;
                progress(done, all.max(done));
            };
            add_rows(pool, &*index, domain, &window, &mut report)?;
        }
    }
    let next = pool.journal().metadata()?.batches().next_number();
    let last = snapshot.open.as_ref().map_or(next, |batch| batch.number) - 1;
    Ok(index.finish_rebuild(STREAM, last)?)
}

fn data_blocks(pool: &Pool) -> Result<u64> {
    Ok(pool.journal().metadata()?.space().blocks())
}

/// Reads the referenced blocks of a window again and adds their rows.
fn add_rows(
    pool: &Pool,
    index: &dyn FingerprintIndex,
    domain: DomainId,
    window: &Window,
    report: &mut dyn FnMut(u64),
) -> Result<()> {
    let mut blocks = window.referenced().peekable();
    while blocks.peek().is_some() {
        let items: Vec<BatchItem> = blocks
            .by_ref()
            .take(ROWS_AT_ONCE)
            .map(|pba| BatchItem {
                pba,
                domain,
                ..BatchItem::default()
            })
            .collect();
        let row = |(fingerprint, pba): (Fingerprint, Pba)| {
            let references = window.counted(pba);
            (fingerprint, Row { pba, references })
        };
        let refused = pool.background().run(|| -> Result<_> {
            let found = fingerprint_published(pool, &items)?;
            let rows: Vec<_> = found.into_iter().map(row).collect();
            Ok(index.add_rows(&rows)?)
        })?;
        for (_, refused) in refused {
            tracing::error!(
                "block {} of the pool holds what another published block holds: it stays as \
                 it is and will not be freed",
                refused.pba
            );
        }
        report(items.len() as u64);
    }
    Ok(())
}

/// The fingerprints of published blocks. A bad block has the fingerprint on the list, and no row if
/// none is known: then it stays as it is, and will not be freed. A block that was not known to be
/// bad is an error the first time.
pub(crate) fn fingerprint_published(
    pool: &Pool,
    items: &[BatchItem],
) -> Result<Vec<(Fingerprint, Pba)>> {
    let listed = |pba: Pba| pool.bad().get(pba);
    let mut found = pool.blocks().fingerprint_items(items)?;
    let is_news = |pba: &&Pba| listed(**pba).is_none();
    while let Some(pba) = found.unreadable.iter().find(is_news).copied() {
        let mut block = vec![0; pool.block_size() as usize];
        if let Err(error) = pool.blocks().read_back(pba, &mut block) {
            pool.blocks().list_unreadable(&[pba])?;
            return Err(error);
        }
        found = pool.blocks().fingerprint_items(items)?;
    }
    let known = |pba| listed(pba).and_then(|bad| bad.fingerprint);
    for (fingerprint, pba) in &mut found.items {
        *fingerprint = known(*pba).map_or(*fingerprint, Fingerprint);
    }
    found.unreadable.retain(|pba| known(*pba).is_none());
    let unreadable = found.unreadable;
    found.items.retain(|(_, pba)| !unreadable.contains(pba));
    Ok(found.items)
}

/// Counts the references of a domain's entries, and of its dropped ones, to a window's blocks.
fn count_references(
    snapshot: &CheckpointReader<'_>,
    domain: DomainId,
    window: &mut Window,
) -> Result<()> {
    let is_wanted = |volume: &VolumeRecord| volume.domain == domain;
    snapshot.each_map_page(&is_wanted, &mut |volume, page| {
        let entries = page.entries?;
        let unpublished = snapshot.unpublished(volume);
        // An entry that was announced may have become a hit on another block since.
        let is_unpublished = |lba: u64, pba: Pba| {
            let found = unpublished.binary_search_by_key(&lba, |item| item.lba.0);
            found.is_ok_and(|at| unpublished[at].pba == pba || !Guard::RebuildCountsHits.holds())
        };
        for (entry, lba) in entries.iter().zip(page.segment.first().0..) {
            if let State::Shared(pba) = entry.state()
                && window.blocks.contains(&pba.0)
                && !is_unpublished(lba, pba)
            {
                window.refer(pba);
            }
        }
        Ok(())
    })?;
    let within = |window: &Window, element: &QueueElement| {
        let blocks = window.blocks.clone();
        let wanted = (element.domain == domain).then(|| element.blocks());
        let wanted = wanted.into_iter().flatten();
        wanted.filter(move |pba| blocks.contains(&pba.0))
    };
    snapshot.each_dropped(&mut |element| {
        within(window, &element).for_each(|pba| window.refer(pba));
    })?;
    if !Guard::RebuildLessClaims.holds() {
        return Ok(());
    }
    snapshot.each_claim(&mut |element| {
        within(window, &element).for_each(|pba| {
            window.claim(pba);
        });
    })
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::Window;
    use onefold_format::Pba;

    #[test]
    fn references_beyond_two_bytes_are_counted() {
        let mut window = Window::new(16_384..32_768);
        for (block, count) in [
            (16_384, 1),
            (16_400, 65_534),
            (16_401, 65_535),
            (32_767, 100_000),
        ] {
            (0..count).for_each(|_| window.refer(Pba(block)));
            assert_eq!(window.counted(Pba(block)), count);
        }
        assert_eq!(window.counted(Pba(20_000)), 0);
        for (block, left) in [(16_384, 0), (16_401, 65_534), (32_767, 99_999)] {
            assert!(window.claim(Pba(block)));
            assert_eq!(window.counted(Pba(block)), left);
        }
        (0..40_000).for_each(|_| assert!(window.claim(Pba(32_767))));
        assert_eq!(window.counted(Pba(32_767)), 59_999);
        assert!(!window.claim(Pba(16_384)), "there is one reference");
        let referenced: Vec<u64> = window.referenced().map(|pba| pba.0).collect();
        assert_eq!(referenced, [16_384, 16_400, 16_401, 32_767]);
        assert!(window.own(Pba(17_000)) && !window.own(Pba(17_000)));
    }
}
