//! Fingerprints made while blocks are written, which save the finder from reading blocks back
//! ([DEDIS §4.5]). Each volume may have a cache of bounded size. The finder reads and fingerprints
//! all blocks that are not in it; after a start the cache is empty.
//!
//! A segment of the map has a set of slots, one for each of its blocks; segments that map to the
//! same set replace each other.
//!
//! Invariant: a fingerprint matches its block's bytes until the next write there. A writer holds
//! the entry's lock, empties the slot before the pool is written and fills it afterwards. The
//! volume's cache is looked up under that lock, and a cache that is switched on again starts empty:
//! so no writer can miss the cache that the finder uses.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use onefold_format::units::BLOCKS_PER_SEGMENT;
use onefold_format::{Lba, Pba, SegmentIndex};
use onefold_index::{Fingerprint, Key};

use super::run::BlockRange;
use crate::sync::{AtomicU64, Mutex, lock};

/// Bytes that a block's slot takes.
const SLOT_BYTES: u64 = size_of::<Slot>() as u64;

/// Bytes that the slots of a segment take.
const SET_BYTES: u64 = BLOCKS_PER_SEGMENT * SLOT_BYTES;

/// The blocks of one segment.
type Set = Option<(SegmentIndex, Box<[Slot]>)>;

/// A block's fingerprint, and where it was written; the pool's block 0 is never used.
#[derive(Debug, Clone, Copy)]
struct Slot {
    pba: Pba,
    fingerprint: Fingerprint,
}

const EMPTY: Slot = Slot {
    pba: Pba(0),
    fingerprint: Fingerprint([0; 16]),
};

/// The cache of one volume.
pub struct HashCache {
    /// The fingerprint key of the volume's domain.
    pub key: Key,
    sets: Vec<Mutex<Set>>,
    room: Arc<Room>,
}

/// The memory that all caches of a pool may take together (P9).
pub struct Room {
    limit_bytes: u64,
    used_bytes: AtomicU64,
}

impl Room {
    /// Memory of `limit_bytes` for the caches of a pool.
    pub fn new(limit_bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            limit_bytes,
            used_bytes: AtomicU64::new(0),
        })
    }

    /// Bytes that caches have taken.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Relaxed)
    }

    /// Takes `bytes` or the remainder, in whole sets.
    fn take(&self, bytes: u64) -> u64 {
        let mut taken = 0;
        let _ = self.used_bytes.fetch_update(Relaxed, Relaxed, |used| {
            taken = bytes.min(self.limit_bytes - used) / SET_BYTES * SET_BYTES;
            Some(used + taken)
        });
        taken
    }
}

impl HashCache {
    /// A cache of `bytes`, or smaller if the room does not suffice; `None` if less is left than a
    /// segment needs.
    pub fn new(room: &Arc<Room>, bytes: u64, key: Key) -> Option<Arc<Self>> {
        let taken = room.take(bytes);
        if taken < bytes / SET_BYTES * SET_BYTES {
            tracing::warn!(
                "a hash cache gets {taken} bytes instead of {bytes}: the hash caches of all volumes \
                 together have three sixty-fourths of the pool's memory"
            );
        }
        let sets = (0..taken / SET_BYTES).map(|_| Mutex::default()).collect();
        let cache = Self {
            key,
            sets,
            room: Arc::clone(room),
        };
        (taken > 0).then(|| Arc::new(cache))
    }

    fn set(&self, segment: SegmentIndex) -> &Mutex<Set> {
        &self.sets[(segment.0 % self.sets.len() as u64) as usize]
    }

    /// Forgets blocks of one segment that are about to be written. The caller holds their locks.
    pub fn forget(&self, blocks: BlockRange) {
        let mut set = lock(self.set(blocks.segment()));
        if let Some((segment, slots)) = &mut *set
            && *segment == blocks.segment()
        {
            slots[blocks.slots()].fill(EMPTY);
        }
    }

    /// Notes blocks of one segment that were written to consecutive blocks from `pba` on. The
    /// caller still holds their locks.
    pub fn note(&self, lba: Lba, pba: Pba, fingerprints: &[Fingerprint]) {
        let mut set = lock(self.set(lba.segment()));
        let (_, slots) = match &mut *set {
            Some(found) if found.0 == lba.segment() => found,
            other => {
                // The replaced set may still be useful, but so is the new one.
                let slots = vec![EMPTY; BLOCKS_PER_SEGMENT as usize].into_boxed_slice();
                other.insert((lba.segment(), slots))
            }
        };
        let range = BlockRange::new(lba, fingerprints.len() as u64).slots();
        for ((slot, fingerprint), n) in slots[range].iter_mut().zip(fingerprints).zip(0..) {
            *slot = Slot {
                pba: pba + n,
                fingerprint: *fingerprint,
            };
        }
    }

    /// The fingerprint of the block, if it is known.
    pub fn find(&self, lba: Lba, pba: Pba) -> Option<Fingerprint> {
        let set = lock(self.set(lba.segment()));
        let (segment, slots) = set.as_ref()?;
        let slot = slots.get(lba.slot())?;
        (*segment == lba.segment() && slot.pba == pba).then_some(slot.fingerprint)
    }
}

impl Drop for HashCache {
    fn drop(&mut self) {
        let bytes = self.sets.len() as u64 * SET_BYTES;
        self.room.used_bytes.fetch_sub(bytes, Relaxed);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::ops::Range;

    use super::*;

    fn cache(room: &Arc<Room>, bytes: u64) -> Option<Arc<HashCache>> {
        HashCache::new(room, bytes, Key::derive(&[7; 32], 0))
    }

    fn fingerprints(bytes: Range<u8>) -> Vec<Fingerprint> {
        bytes.map(|byte| Fingerprint([byte; 16])).collect()
    }

    #[test]
    fn a_block_is_found_where_it_was_written_until_it_is_forgotten() {
        let cache = cache(&Room::new(1 << 20), 1 << 20).unwrap();
        assert_eq!(cache.find(Lba(5), Pba(9)), None);
        cache.note(Lba(5), Pba(9), &fingerprints(1..4));
        assert_eq!(cache.find(Lba(6), Pba(10)), Some(Fingerprint([2; 16])));
        assert_eq!(cache.find(Lba(6), Pba(9)), None, "it was written elsewhere");
        assert_eq!(cache.find(Lba(8), Pba(12)), None, "it was not written");
        cache.forget(BlockRange::new(Lba(6), 1));
        assert_eq!(cache.find(Lba(6), Pba(10)), None);
        assert_eq!(cache.find(Lba(7), Pba(11)), Some(Fingerprint([3; 16])));
    }

    #[test]
    fn segments_replace_each_other_and_are_not_mistaken_for_each_other() {
        let cache = cache(&Room::new(2 * SET_BYTES), 2 * SET_BYTES).unwrap();
        let (first, third) = (Lba(3), Lba(3 + 2 * BLOCKS_PER_SEGMENT));
        cache.note(first, Pba(9), &fingerprints(1..2));
        assert_eq!(cache.find(third, Pba(9)), None);
        cache.forget(BlockRange::new(third, 1));
        assert!(cache.find(first, Pba(9)).is_some());
        cache.note(third, Pba(12), &fingerprints(4..5));
        assert_eq!(cache.find(first, Pba(9)), None);
        assert_eq!(cache.find(third, Pba(12)), Some(Fingerprint([4; 16])));
    }

    #[test]
    fn caches_take_no_more_than_there_is_and_give_it_back() {
        let room = Room::new(3 * SET_BYTES + 1);
        let first = cache(&room, 2 * SET_BYTES).unwrap();
        let second = cache(&room, 5 * SET_BYTES).unwrap();
        assert_eq!((first.sets.len(), second.sets.len()), (2, 1));
        assert!(cache(&room, SET_BYTES).is_none());
        drop(first);
        assert_eq!(cache(&room, 5 * SET_BYTES).unwrap().sets.len(), 2);
    }
}
