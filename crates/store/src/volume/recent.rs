//! Recent results of the index for all in-line volumes, so that it is not searched for them again.
//!
//! The table belongs to the pool and has its share of the memory (P9): a volume takes no more of it for being
//! in line. The same content has another fingerprint in each domain, so no domain finds the entries of another
//! (P11).

use onefold_format::Pba;
use onefold_index::Fingerprint;
use onefold_metadata::sync::{Mutex, lock};

/// Parts of the table with a lock each, so that volumes seldom wait for one another.
const PARTS: usize = 64;

/// Fingerprints that the index found recently. A result is invalid once published blocks have become free
/// after it, so it is kept with its lookup version, which is compared with the present one.
pub(crate) struct Recent {
    parts: [Mutex<Option<Slots>>; PARTS],
    slots_of_part: usize,
}

/// The slots of a part of the table, made when something is put there.
type Slots = Box<[Option<Seen>]>;

/// A fingerprint that was found.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    pub(super) fingerprint: Fingerprint,
    pub(super) pba: Pba,
    pub(super) lookup_version: u64,
}

impl Recent {
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            parts: std::array::from_fn(|_| Mutex::default()),
            slots_of_part: (bytes / size_of::<Option<Seen>>() / PARTS).max(1),
        }
    }

    pub(super) fn get(&self, fingerprint: Fingerprint, lookup_version: u64) -> Option<Pba> {
        let (part, slot) = self.place(fingerprint);
        let slots = lock(&self.parts[part]);
        let seen = slots.as_ref()?[slot]?;
        let holds = seen.fingerprint == fingerprint && seen.lookup_version == lookup_version;
        holds.then_some(seen.pba)
    }

    pub(super) fn put(&self, seen: Seen) {
        let (part, slot) = self.place(seen.fingerprint);
        let mut slots = lock(&self.parts[part]);
        let slots = slots.get_or_insert_with(|| vec![None; self.slots_of_part].into_boxed_slice());
        slots[slot] = Some(seen);
    }

    /// The part and the slot of a fingerprint, which is a hash already.
    fn place(&self, fingerprint: Fingerprint) -> (usize, usize) {
        let [a, b, c, d, e, ..] = fingerprint.0;
        let slot = u32::from_le_bytes([a, b, c, d]) as usize % self.slots_of_part;
        (usize::from(e) % PARTS, slot)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    fn seen(fingerprint: Fingerprint) -> Seen {
        Seen {
            fingerprint,
            pba: Pba(9),
            lookup_version: 3,
        }
    }

    #[test]
    fn what_was_seen_before_a_block_was_freed_is_not_found() {
        let recent = Recent::new(64 << 10);
        let fingerprint = Fingerprint([7; 16]);
        assert_eq!(recent.get(fingerprint, 0), None);
        recent.put(seen(fingerprint));
        assert_eq!(recent.get(fingerprint, 3), Some(Pba(9)));
        assert_eq!(recent.get(fingerprint, 4), None);
        // The same slot, another fingerprint.
        let mut other = fingerprint;
        other.0[15] = 8;
        assert_eq!(recent.get(other, 3), None);
    }

    #[test]
    fn the_table_takes_no_more_than_its_share_however_much_is_found() {
        let share = 64 << 10;
        let recent = Recent::new(share);
        for n in 0..50_000_u32 {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&n.wrapping_mul(0x9e37_79b1).to_le_bytes());
            bytes[4] = n as u8;
            recent.put(seen(Fingerprint(bytes)));
        }
        let slots = recent.parts.iter().map(|part| {
            let slots = lock(part);
            slots.as_ref().map_or(0, |slots| slots.len())
        });
        let bytes = slots.sum::<usize>() * size_of::<Option<Seen>>();
        assert!(bytes <= share && bytes > share * 9 / 10, "{bytes}");
    }
}
