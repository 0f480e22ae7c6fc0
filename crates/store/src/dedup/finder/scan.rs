//! Reading cold blocks before they are published, in pieces and without any lock.
//!
//! The blocks are candidates (`metadata/src/candidates.rs`) until they are published. Those that are written or
//! unmapped before are not.

use std::ops::Range;
use std::sync::Arc;

use onefold_format::batch_page::BatchItem;
use onefold_format::record::BATCH_ITEMS_MAX;
use onefold_format::{Lba, Pba, SegmentIndex};
use onefold_index::Fingerprint;
use onefold_metadata::heat::{self, SlotBits};
use onefold_metadata::{Blocking, Layer, Leaf, Result, Wanted, bits};
use rustc_hash::FxHashMap;

use super::publish::choose;
use crate::batches::Urgency;
use crate::dedup::{Dedup, Pace};
use crate::volume::Volume;

/// At most one in this many segments in memory is kept there for its candidates.
const LEAVES_DIVISOR: usize = 32;

/// Cold blocks of a volume, which are read and then published.
pub(super) struct Scan {
    pub(super) layer: Arc<Layer>,
    pub(super) segments: Vec<ScannedSegment>,
    /// The candidates, with the number of the segment of each; in the order of the pool once all are there.
    items: Vec<(BatchItem, usize)>,
    /// Where the next scan begins; nothing at the volume's end.
    pub(super) next: Option<Lba>,
}

/// A segment with candidates.
pub(super) struct ScannedSegment {
    pub(super) segment: SegmentIndex,
    pub(super) slots: SlotBits,
    leaf: Arc<Leaf>,
}

impl Scan {
    pub(super) fn of_nothing(layer: Arc<Layer>) -> Self {
        Self {
            layer,
            segments: Vec::new(),
            items: Vec::new(),
            next: None,
        }
    }

    /// Whether there are no candidates.
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    fn is_candidate(&self, (item, segment): &(BatchItem, usize)) -> bool {
        let candidates = self.segments[*segment].leaf.candidates.slots();
        heat::has(&candidates, item.lba.slot())
    }
}

impl Drop for Scan {
    fn drop(&mut self) {
        for scanned in &self.segments {
            scanned.leaf.candidates.drop_all(&scanned.slots);
        }
    }
}

impl Dedup {
    /// Chooses a batch of cold blocks from `from` on, and makes them candidates.
    pub(super) fn scan(&self, volume: &Volume, layer: Arc<Layer>, from: Lba) -> Result<Scan> {
        let cold_passes = volume.settings().cold_passes;
        let segments_max = (self.pool.limits().leaves_max / LEAVES_DIVISOR).max(1);
        let mut scan = Scan::of_nothing(layer);
        scan.next = Some(from);
        while let Some(at) = scan.next
            && scan.items.len() < BATCH_ITEMS_MAX as usize
            && scan.segments.len() < segments_max
        {
            let maps = self.pool.maps();
            let next = maps.next_segment(&scan.layer, at.segment(), Wanted::Publishable)?;
            let Some(segment) = next else {
                scan.next = None;
                break;
            };
            let first = segment.first().max(at);
            let leaf = maps.leaf(&scan.layer, segment, Blocking::Yes)?;
            // A segment's rest, after a scan was full, was looked at with its start.
            let cold = if first == segment.first() {
                leaf.heat.look(cold_passes)
            } else {
                leaf.heat.still_cold(cold_passes)
            };
            scan.next = Some(self.add_candidates(volume, &mut scan, leaf, first, &cold)?);
        }
        scan.items.sort_unstable_by_key(|(item, _)| item.pba);
        Ok(scan)
    }

    /// Makes cold blocks of one segment candidates, while no write to them is in progress. Returns where the scan
    /// continues.
    fn add_candidates(
        &self,
        volume: &Volume,
        scan: &mut Scan,
        leaf: Arc<Leaf>,
        first: Lba,
        cold: &SlotBits,
    ) -> Result<Lba> {
        let room = u64::from(BATCH_ITEMS_MAX) - scan.items.len() as u64;
        let segment = first.segment();
        let end = SegmentIndex(segment.0 + 1).first();
        let chosen = |within: Range<Lba>| {
            leaf.with(|entries| choose(entries, within, room, &self.without_bad(entries, cold)))
        };
        // Checked without the lock first: most segments have nothing to publish.
        let (runs, next) = chosen(first..end);
        let (Some(from), Some(to)) = (runs.first(), runs.last()) else {
            return Ok(end);
        };
        let range = from.lba..to.lba + u64::from(to.count);
        let _locked = scan
            .layer
            .locks
            .lock(range.start.0..range.end.0, Blocking::Yes);
        volume.check_has_blocks()?;
        let mut slots = SlotBits::default();
        for run in chosen(range).0 {
            for n in 0..u64::from(run.count) {
                let item = BatchItem {
                    lba: run.lba + n,
                    pba: run.pba + n,
                    domain: scan.layer.domain,
                    ..BatchItem::default()
                };
                scan.items.push((item, scan.segments.len()));
            }
            let slot = run.lba.slot();
            bits::fill(&mut slots, slot..slot + run.count as usize, true);
        }
        leaf.candidates.add(&slots);
        scan.segments.push(ScannedSegment {
            segment,
            slots,
            leaf,
        });
        Ok(next.unwrap_or(end))
    }

    /// Reads the candidates, without those that the volume's hash cache has, and returns their fingerprints; nothing if
    /// `pace` breaks off.
    pub(super) fn read_candidates(
        &self,
        scan: &Scan,
        pace: Pace<'_>,
    ) -> Option<FxHashMap<Pba, Fingerprint>> {
        let cache = scan.layer.hash_cache();
        let is_cached = |item: &BatchItem| {
            let cache = cache.as_ref();
            cache.is_some_and(|cache| cache.find(item.lba, item.pba).is_some())
        };
        let wanted = |found: &(BatchItem, usize)| {
            let is_wanted = scan.is_candidate(found) && !is_cached(&found.0);
            is_wanted.then_some(found.0.pba)
        };
        let domain = scan.layer.domain;
        self.read_in_pieces(&scan.items, &wanted, domain, Urgency::Background, pace)
    }
}
