//! The fingerprints of claims, which save counting the reads of their blocks, and the alarm that there are many.
//!
//! Claims are made and counted in one order, so a claim's number ([`Queue::numbers`]) finds its fingerprint. Each
//! takes 16 bytes, and nothing else. Where no memory is left they are not kept: the block is read when its claim
//! is counted. After a crash none are known.
//!
//! [`Queue::numbers`]: onefold_metadata::Queue::numbers

use onefold_index::Fingerprint;
use onefold_metadata::CLAIM_FINGERPRINT_BYTES;
use onefold_metadata::sync::{Mutex, lock};
use std::collections::VecDeque;
use std::mem::size_of;
use std::ops::Range;
use std::sync::OnceLock;

/// Fingerprints in a chunk: 16 KiB, which comes and goes with the claims.
const CHUNK: usize = 1024;

const _: () = assert!(size_of::<Fingerprint>() as u64 == CLAIM_FINGERPRINT_BYTES);

/// The fingerprints of the claims that wait, or of the first of them, and the alarm.
pub(crate) struct ClaimedFingerprints {
    chunks_max: usize,
    alarm: OnceLock<ClaimsAlarm>,
    /// Chunks with ascending numbers.
    chunks: Mutex<VecDeque<Chunk>>,
}

/// Fingerprints of consecutive claims.
struct Chunk {
    /// The number of the first claim.
    first: u64,
    /// At most [`CHUNK`].
    fingerprints: Vec<Fingerprint>,
}

impl Chunk {
    fn new(first: u64) -> Self {
        Self {
            first,
            fingerprints: Vec::with_capacity(CHUNK),
        }
    }

    fn end(&self) -> u64 {
        self.first + self.fingerprints.len() as u64
    }

    fn takes(&self, number: u64) -> bool {
        self.end() == number && self.fingerprints.len() < CHUNK
    }

    fn get(&self, number: u64) -> Option<Fingerprint> {
        let at = number.checked_sub(self.first)?;
        self.fingerprints.get(at as usize).copied()
    }
}

impl ClaimedFingerprints {
    /// Keeps at most `max` fingerprints.
    pub(crate) fn new(max: u64) -> Self {
        Self {
            chunks_max: max as usize / CHUNK,
            alarm: OnceLock::new(),
            chunks: Mutex::default(),
        }
    }

    /// Notes the fingerprints of new claims, numbered from `first` on. The caller holds the uncommitted state.
    pub(crate) fn note(&self, first: u64, fingerprints: impl Iterator<Item = Fingerprint>) {
        let mut chunks = lock(&self.chunks);
        // A record that failed may have left fingerprints of claims that were not made.
        while let Some(last) = chunks.back_mut() {
            last.fingerprints
                .truncate(first.saturating_sub(last.first) as usize);
            if !last.fingerprints.is_empty() {
                break;
            }
            chunks.pop_back();
        }
        for (number, fingerprint) in (first..).zip(fingerprints) {
            if !chunks.back().is_some_and(|last| last.takes(number)) {
                if chunks.len() >= self.chunks_max {
                    return;
                }
                chunks.push_back(Chunk::new(number));
            }
            if let Some(last) = chunks.back_mut() {
                last.fingerprints.push(fingerprint);
            }
        }
    }

    /// The fingerprints of these claims, where they are known.
    pub(crate) fn get(&self, numbers: Range<u64>) -> Vec<Option<Fingerprint>> {
        let chunks = lock(&self.chunks);
        let mut at = chunks.partition_point(|chunk| chunk.end() <= numbers.start);
        let find = |number| {
            if chunks.get(at).is_some_and(|chunk| chunk.end() <= number) {
                at += 1;
            }
            chunks.get(at).and_then(|chunk| chunk.get(number))
        };
        numbers.map(find).collect()
    }

    /// Forgets the claims before this one, which are counted.
    pub(crate) fn forget_before(&self, number: u64) {
        let mut chunks = lock(&self.chunks);
        while chunks.front().is_some_and(|first| first.end() <= number) {
            chunks.pop_front();
        }
    }

    /// Sets the alarm. Further calls have no effect.
    pub(crate) fn set_alarm(&self, alarm: ClaimsAlarm) {
        let _ = self.alarm.set(alarm);
    }

    /// The alarm, if `more` new claims after `before` earlier ones make it due.
    pub(crate) fn due_alarm(&self, before: u64, more: u64) -> Option<&ClaimsAlarm> {
        let alarm = self.alarm.get();
        alarm.filter(|alarm| alarm.is_due(before, more))
    }

    /// Bytes of memory in use.
    pub(crate) fn bytes(&self) -> u64 {
        (lock(&self.chunks).len() * CHUNK) as u64 * CLAIM_FINGERPRINT_BYTES
    }
}

/// Called when there are many claims: see [`Dedup::set_claims_alarm`](crate::Dedup::set_claims_alarm).
pub(crate) struct ClaimsAlarm {
    every: u64,
    alarm: Box<dyn Fn() + Send + Sync>,
}

impl ClaimsAlarm {
    pub(crate) fn new(every: u64, alarm: Box<dyn Fn() + Send + Sync>) -> Self {
        Self { every, alarm }
    }

    /// Whether `more` new claims after `before` earlier ones make the alarm due.
    fn is_due(&self, before: u64, more: u64) -> bool {
        before / self.every != (before + more) / self.every
    }

    /// Calls the alarm. The caller holds nothing that others wait for.
    pub(crate) fn sound(&self) {
        (self.alarm)();
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    fn fingerprint(n: u64) -> Fingerprint {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        Fingerprint(bytes)
    }

    /// Notes the fingerprints of the claims `numbers`, made together.
    fn note(claimed: &ClaimedFingerprints, numbers: Range<u64>, generation: u64) {
        let fingerprints = numbers.clone().map(|n| fingerprint(n + generation));
        claimed.note(numbers.start, fingerprints);
    }

    fn known(claimed: &ClaimedFingerprints, numbers: Range<u64>) -> u64 {
        let found = claimed.get(numbers.clone());
        assert_eq!(found.len() as u64, numbers.end - numbers.start);
        for (number, found) in numbers.zip(&found) {
            assert!(
                found.is_none_or(|found| found == fingerprint(number)),
                "{number}"
            );
        }
        found.iter().flatten().count() as u64
    }

    #[test]
    fn a_claim_is_counted_by_the_newest_content() {
        let claimed = ClaimedFingerprints::new(8192);
        note(&claimed, 0..2000, 0);
        // The record of these failed: it made no claims, and later claims have their numbers.
        note(&claimed, 2000..4500, 7);
        note(&claimed, 2000..2003, 0);
        assert_eq!(known(&claimed, 0..2010), 2003);
        assert_eq!(known(&claimed, 2003..4600), 0);
    }

    #[test]
    fn fingerprints_are_known_for_as_long_as_there_are_claims() {
        let claimed = ClaimedFingerprints::new(8192);
        (0..3000).for_each(|n| note(&claimed, n..n + 1, 0));
        for first in [0, 1, 1023, 1024, 2500] {
            claimed.forget_before(first);
            assert_eq!(known(&claimed, first..3100), 3000 - first);
        }
        assert_eq!(claimed.bytes(), 16 << 10, "the chunk in which 2,500 is");
        claimed.forget_before(3000);
        assert_eq!(claimed.bytes(), 0);
    }

    #[test]
    fn fingerprints_keep_to_their_memory() {
        let claimed = ClaimedFingerprints::new(4096);
        note(&claimed, 0..5000, 0);
        assert_eq!(claimed.bytes(), 64 << 10);
        assert_eq!(known(&claimed, 0..5000), 4096);
        claimed.forget_before(2048);
        note(&claimed, 5000..6000, 0);
        assert_eq!(known(&claimed, 2048..6000), 2048 + 1000);
        note(&claimed, 6000..9000, 0);
        assert_eq!(claimed.bytes(), 64 << 10);
        assert_eq!(known(&claimed, 4096..9000), 2048);
    }
}
