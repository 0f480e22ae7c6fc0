//! New blocks that were rewritten in place before a commit made their records durable.
//!
//! The tail copy has a checksum of each new block, with which an opening compares the disk if a
//! sync may have failed. Such a block may be rewritten without a record. Then its checksum is
//! outdated, and the next process must know: so the block is marked in memory that outlives the
//! process before it is rewritten.
//!
//! Blocks whose records are durable are rewritten far more often, and need no mark. Two bit sets of
//! this process, one for each half of the tail copy, record which blocks are new. A bit stands for all
//! blocks whose numbers differ by a multiple of [`MARK_BITS`]; a superfluous mark only prevents a
//! comparison.
//!
//! Ordering: a block's bit is set before the request that put it to use is answered, and while its
//! blocks are locked; so a rewrite, which locks them, finds it. A half is cleared only once its records
//! are durable.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use onefold_engine::HostMemory;
use onefold_format::Pba;
use onefold_metadata::PbaRun;
use onefold_metadata::sync::AtomicU64;

use super::tail_memory::{MARK_BITS, MARK_WORDS, TailMemory, mark_at};

const BITS: u64 = u64::BITS as u64;

/// Bytes of marks that are cleared together.
const PIECE_BYTES: usize = 4096;

/// Words of a set that share a bit of its summary.
const SUMMED: usize = 64;

/// The new blocks of each half, and the marks of rewritten ones.
pub(super) struct Rewritten {
    memory: Option<Arc<dyn HostMemory>>,
    new: [NewBlocks; 2],
}

/// The new blocks of one half.
struct NewBlocks {
    words: Box<[AtomicU64]>,
    /// Bit `n`: whether the words from `SUMMED n` on may have bits.
    summary: Box<[AtomicU64]>,
}

impl NewBlocks {
    fn new() -> Self {
        let words = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self {
            words: words(MARK_WORDS),
            summary: words(MARK_WORDS.div_ceil(SUMMED * BITS as usize)),
        }
    }
}

impl Rewritten {
    /// Sets without any new block.
    pub(super) fn new(memory: &TailMemory) -> Self {
        Self {
            memory: memory.halves().cloned(),
            new: [NewBlocks::new(), NewBlocks::new()],
        }
    }

    /// Notes blocks as new in a half.
    pub(super) fn note_new(&self, half: usize, run: PbaRun) {
        if self.memory.is_none() {
            return;
        }
        let new = &self.new[half];
        for (word, bits) in words_of(run) {
            let summed = word / SUMMED;
            new.summary[summed / BITS as usize].fetch_or(1 << (summed as u64 % BITS), SeqCst);
            new.words[word].fetch_or(bits, SeqCst);
        }
    }

    /// Marks new blocks among these as rewritten. The caller rewrites them only after this returns.
    #[inline]
    pub(super) fn mark(&self, run: PbaRun) {
        let Some(memory) = &self.memory else { return };
        for (half, new) in self.new.iter().enumerate() {
            for (word, bits) in words_of(run) {
                let marked = new.words[word].load(SeqCst) & bits;
                if marked != 0 {
                    memory.set_bits(marked, mark_at(half, word));
                }
            }
        }
    }

    /// Clears a half: none of its blocks is new any more.
    pub(super) fn clear(&self, half: usize) {
        let Some(memory) = &self.memory else { return };
        let new = &self.new[half];
        for (n, summary) in new.summary.iter().enumerate() {
            let mut bits = summary.swap(0, SeqCst);
            while bits != 0 {
                let summed = n * BITS as usize + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                for word in summed * SUMMED..(summed + 1) * SUMMED {
                    if new.words[word].swap(0, SeqCst) != 0 {
                        memory.write_word(0, mark_at(half, word));
                    }
                }
            }
        }
    }

    /// The marks of earlier processes.
    pub(super) fn left_behind(&self) -> Marks {
        let memory = self.memory.as_ref();
        Marks(memory.map(|memory| [0, 1].map(|half| read_marks(&**memory, half))))
    }

    /// Removes the marks of earlier processes.
    pub(super) fn begin_session(&self) {
        let Some(memory) = &self.memory else { return };
        for half in 0..2 {
            let marks = read_marks(&**memory, half);
            for (n, piece) in marks.chunks(PIECE_BYTES).enumerate() {
                let zeros = &[0; PIECE_BYTES][..piece.len()];
                if piece != zeros {
                    memory.write_at(zeros, mark_at(half, 0) + n * PIECE_BYTES);
                }
            }
        }
    }
}

/// The marks of both halves that an earlier process left, little-endian; `None` if there is no memory for
/// them.
pub(super) struct Marks(Option<[Vec<u8>; 2]>);

impl Marks {
    /// Whether a block, or one that shares its mark, was rewritten.
    pub(super) fn has(&self, pba: Pba) -> bool {
        let bit = pba.0 % MARK_BITS;
        let mut halves = self.0.iter().flatten();
        halves.any(|marks| marks[(bit / 8) as usize] & 1 << (bit % 8) != 0)
    }
}

fn read_marks(memory: &dyn HostMemory, half: usize) -> Vec<u8> {
    let mut marks = vec![0; MARK_WORDS * size_of::<u64>()];
    memory.read_at(&mut marks, mark_at(half, 0));
    marks
}

/// The bits of consecutive blocks, word by word.
fn words_of(run: PbaRun) -> impl Iterator<Item = (usize, u64)> {
    let (mut at, end) = (run.start.0, run.start.0 + run.count);
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let bit = at % BITS;
            let count = (BITS - bit).min(end - at);
            let word = (at % MARK_BITS / BITS) as usize;
            at += count;
            (word, u64::MAX >> (BITS - count) << bit)
        })
    })
}

#[cfg(all(test, feature = "shuttle"))]
mod shuttle_tests {
    use std::collections::BTreeSet;

    use onefold_metadata::sync::{Mutex, lock};
    use shuttle::thread;

    use super::*;
    use crate::tail_memory::tests::Bytes;

    /// The state under the lock of the uncommitted state: which half takes records, and the new
    /// blocks of both.
    #[derive(Default)]
    struct Tail {
        half: usize,
        new: [BTreeSet<u64>; 2],
    }

    /// Whatever commits run concurrently, a block that is rewritten is marked in the half that has
    /// its record.
    #[test]
    fn a_new_block_is_marked_before_it_is_rewritten() {
        shuttle::check_random(
            || {
                let (_, memory) = Bytes::memory();
                let rewritten = Arc::new(Rewritten::new(&memory));
                let tail = Arc::new(Mutex::new(Tail::default()));
                let (marks, committed) = (Arc::clone(&rewritten), Arc::clone(&tail));
                let committer = thread::spawn(move || {
                    for _ in 0..3 {
                        let mut tail = lock(&committed);
                        tail.half = 1 - tail.half;
                        let half = tail.half;
                        tail.new[half].clear();
                        marks.clear(half);
                    }
                });
                let writers = [70_u64, 71].map(|block| {
                    let (marks, tail) = (Arc::clone(&rewritten), Arc::clone(&tail));
                    thread::spawn(move || {
                        let run = PbaRun {
                            start: Pba(block),
                            count: 1,
                        };
                        {
                            let mut tail = lock(&tail);
                            let half = tail.half;
                            marks.note_new(half, run);
                            tail.new[half].insert(block);
                        }
                        marks.mark(run);
                        // The block is rewritten from here on; the process may die.
                        let tail = lock(&tail);
                        let left = marks.left_behind();
                        let is_new = tail.new.iter().any(|new| new.contains(&block));
                        assert!(!is_new || left.has(Pba(block)), "block {block}");
                    })
                });
                committer.join().unwrap();
                writers
                    .into_iter()
                    .for_each(|writer| writer.join().unwrap());
            },
            500,
        );
    }
}
