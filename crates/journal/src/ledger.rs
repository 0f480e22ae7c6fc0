//! The ledger: which syncs of the data were in progress when a process died, and which volumes had
//! written in place since the last sync that succeeded.
//!
//! The kernel reports data that it could not write once, to the process that syncs next. If that
//! process dies first, the next process's sync succeeds, and nothing shows that the disk lacks data
//! for which guests have been answered. So each sync is counted, in memory that outlives the process,
//! when it begins and when it has succeeded. The counts of a session that is over differ if a sync was
//! in progress, or failed; they agree again only once the next opening has made every loss durable.
//!
//! A block that is rewritten in place leaves no record, and no checksum to compare. So its volume is
//! marked before the rewrite, and again before the reply, with the number of syncs begun so far. A
//! sync with a higher number that succeeds has made the rewrite durable.
//!
//! Nothing is counted where writes are durable once they have returned, as in Ceph.

use std::io;
use std::sync::atomic::Ordering::SeqCst;

use onefold_format::tail::{
    LEDGER_BYTES, LEDGER_SLOT_BYTES, LEDGER_SLOTS, LEDGER_SLOTS_AT, LEDGER_WORDS_AT, OTHER_VOLUMES,
    TAIL_HEADER_BYTES, encode_ledger,
};
use onefold_format::{FormatError, Ledger, VolumeId};
use onefold_metadata::Guard;
use onefold_metadata::sync::{AtomicU64, Mutex, lock};

use super::tail_memory::TailMemory;

/// Counts the syncs of the data of one pool.
pub struct SyncLedger {
    memory: TailMemory,
    is_counting: bool,
    /// The number of syncs that have begun. Read without a lock after a write has ended: a sync
    /// that is not counted yet begins later, and covers the write.
    begun: AtomicU64,
    ended: Mutex<Ended>,
    /// The number of slots in use; held while a slot is written.
    slots: Mutex<usize>,
}

#[derive(Default)]
struct Ended {
    /// The number of syncs that have succeeded.
    count: u64,
    /// The highest number among them; `None` before the session begins, because a sync of the
    /// opening proves nothing about writes of earlier processes.
    good: Option<u64>,
}

/// When a volume was last marked as written in place.
#[derive(Default)]
pub struct RewriteMark {
    /// The mark's label plus one; 0 before the first mark.
    label: AtomicU64,
    /// The volume's slot plus one; 0 before it has one.
    slot: AtomicU64,
}

/// The ledger left by an earlier process of this boot; `None` if there was none.
pub type FoundLedger = std::result::Result<Option<Ledger>, FormatError>;

impl SyncLedger {
    /// Continues the ledger of an earlier process, which is returned. `is_counting` is false if data
    /// is durable as soon as it is written.
    pub fn open(memory: TailMemory, is_counting: bool) -> (Self, FoundLedger) {
        let found = match memory.ledger() {
            Some(host) if is_counting => {
                let mut bytes = vec![0; LEDGER_BYTES];
                host.read_at(&mut bytes, 0);
                Ledger::decode(&bytes, &memory.owner)
            }
            _ => Ok(None),
        };
        let (begun, ended) = match &found {
            Ok(Some(ledger)) => (ledger.begun, ledger.ended),
            _ => (0, 0),
        };
        let ledger = Self {
            is_counting: is_counting && memory.ledger().is_some(),
            memory,
            begun: AtomicU64::new(begun),
            ended: Mutex::new(Ended {
                count: ended,
                good: None,
            }),
            slots: Mutex::new(0),
        };
        (ledger, found)
    }

    /// Whether syncs and rewrites are counted at all.
    pub(super) fn is_counting(&self) -> bool {
        self.is_counting
    }

    /// Runs a sync of the data and counts it.
    ///
    /// # Errors
    ///
    /// Errors of the sync.
    pub fn counted(&self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        if !self.is_counting || !Guard::SyncsCounted.holds() {
            return sync();
        }
        let number = {
            // One thread at a time, so that the word never goes back.
            let _ended = lock(&self.ended);
            let number = self.begun.fetch_add(1, SeqCst) + 1;
            self.write(Word::Begun, number);
            number
        };
        let synced = sync();
        match &synced {
            Ok(()) => {
                let mut ended = lock(&self.ended);
                ended.count += 1;
                // If the process dies between the two, one sync too many is doubted.
                if let Some(good) = &mut ended.good {
                    *good = number.max(*good);
                    self.write(Word::Good, *good);
                }
                self.write(Word::Ended, ended.count);
            }
            Err(_) => self.write(Word::Failed, 1),
        }
        synced
    }

    /// Notes that the host reports data that it could not write. The host reports it only once, so a
    /// process that dies before the loss is listed leaves it here for the next one.
    pub fn note_failure(&self) {
        if self.is_counting {
            self.write(Word::Failed, 1);
        }
    }

    /// Notes that a volume is about to write in place, or has done so and is about to be answered.
    #[inline]
    pub fn mark(&self, mark: &RewriteMark, volume: VolumeId) {
        if self.is_counting && mark.label.load(SeqCst) != self.begun.load(SeqCst) + 1 {
            self.mark_slot(mark, volume);
        }
    }

    fn mark_slot(&self, mark: &RewriteMark, volume: VolumeId) {
        let mut used = lock(&self.slots);
        let slot = match mark.slot.load(SeqCst) {
            0 => {
                let slot = (*used).min(LEDGER_SLOTS - 1);
                *used = slot + 1;
                mark.slot.store(slot as u64 + 1, SeqCst);
                slot
            }
            slot => slot as usize - 1,
        };
        let volume = if slot == LEDGER_SLOTS - 1 {
            OTHER_VOLUMES
        } else {
            volume
        };
        let label = self.begun.load(SeqCst);
        if let Some(memory) = self.memory.ledger() {
            let at = LEDGER_SLOTS_AT + slot * LEDGER_SLOT_BYTES;
            memory.write_word(label, at);
            memory.write_word(volume.0, at + 8);
        }
        mark.label.store(label + 1, SeqCst);
    }

    /// Starts again, once all losses of earlier processes are durably listed.
    pub(super) fn begin_session(&self) {
        let Some(memory) = self.memory.ledger() else {
            return;
        };
        let mut ended = lock(&self.ended);
        self.begun.store(0, SeqCst);
        *ended = Ended {
            count: 0,
            good: Some(0),
        };
        *lock(&self.slots) = 0;
        memory.write_word(0, 0);
        if !self.is_counting {
            return;
        }
        memory.write_at(&[0; LEDGER_BYTES - TAIL_HEADER_BYTES], TAIL_HEADER_BYTES);
        let header = encode_ledger(&self.memory.owner);
        memory.write_at(&header[8..], 8);
        memory.write_word(first_word(&header), 0);
    }

    fn write(&self, word: Word, value: u64) {
        if let Some(memory) = self.memory.ledger() {
            memory.write_word(value, LEDGER_WORDS_AT + word as usize * size_of::<u64>());
        }
    }
}

/// The ledger's words, in their order.
#[derive(Clone, Copy)]
enum Word {
    Begun,
    Ended,
    Good,
    Failed,
}

/// The word of a header that is written last.
pub(super) fn first_word(header: &[u8; TAIL_HEADER_BYTES]) -> u64 {
    header[..8]
        .iter()
        .rev()
        .fold(0, |all, byte| all << 8 | u64::from(*byte))
}

#[cfg(all(test, feature = "shuttle"))]
mod shuttle_tests {
    use std::sync::Arc;

    use onefold_engine::HostMemory;
    use shuttle::thread;

    use super::*;
    use crate::tail_memory::tests::Bytes;

    const VOLUME: VolumeId = VolumeId(7);

    /// A disk with a cache: the data written, and which of it is durable.
    #[derive(Default)]
    struct Disk {
        written: u64,
        durable: u64,
    }

    /// However writes and syncs interleave, a volume is in the ledger as long as an answered write of
    /// it is not durable.
    #[test]
    fn an_answered_rewrite_is_durable_or_its_volume_is_marked() {
        shuttle::check_random(
            || {
                let (bytes, memory) = Bytes::memory();
                let owner = memory.owner;
                let (ledger, _) = SyncLedger::open(memory, true);
                ledger.begin_session();
                let ledger = Arc::new(ledger);
                let disk = Arc::new(Mutex::new(Disk::default()));
                let (counted, synced) = (Arc::clone(&ledger), Arc::clone(&disk));
                let syncs = thread::spawn(move || {
                    for _ in 0..2 {
                        let sync = || {
                            let covered = lock(&synced).written;
                            let mut disk = lock(&synced);
                            disk.durable = disk.durable.max(covered);
                            Ok(())
                        };
                        counted.counted(sync).unwrap();
                    }
                });
                let (marked, written) = (Arc::clone(&ledger), Arc::clone(&disk));
                let writes = thread::spawn(move || {
                    let mark = RewriteMark::default();
                    for n in 1..=2 {
                        marked.mark(&mark, VOLUME);
                        lock(&written).written = n;
                        marked.mark(&mark, VOLUME);
                        // The write is answered from here on; the process may die.
                        let mut left = vec![0; LEDGER_BYTES];
                        bytes.read_at(&mut left, 0);
                        let is_durable = lock(&written).durable >= n;
                        let left = Ledger::decode(&left, &owner).unwrap().unwrap();
                        assert!(is_durable || left.unsynced == [VOLUME], "write {n}");
                    }
                });
                syncs.join().unwrap();
                writes.join().unwrap();
            },
            500,
        );
    }
}
