//! Stage 1: reads changed blocks, and sorts their fingerprints.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use onefold_index::{Key, is_zero};
use onefold_sorter::Sorter;

use crate::create::Report;
use crate::disk::{ChangedBlocks, read_blocks};
use crate::error::{Result, stopped};
use crate::records::{Fingerprint, Found, Place, Row};
use crate::temporary::Temporary;

/// The blocks read from all disks, and filters for the stored blocks to compare them with.
pub(crate) struct Rows {
    pub(crate) sorter: Sorter<Row>,
    pub(crate) filter: Filter,
    pub(crate) words: Words,
    /// How many blocks were read.
    pub(crate) read: u64,
}

impl Rows {
    pub(crate) fn new(temporary: &Temporary) -> Self {
        Self {
            sorter: temporary.sorter(2),
            filter: Filter::new(temporary.memory_bytes / FILTER_SHARE),
            words: Words {
                all: Vec::new(),
                most: temporary.memory_bytes / WORDS_SHARE / size_of::<u64>(),
            },
            read: 0,
        }
    }
}

/// Divisor of the memory: one share is the filter's.
const FILTER_SHARE: usize = 8;

/// Divisor of the memory: one share holds the words of the fingerprints read.
const WORDS_SHARE: usize = 8;

/// The first words of the fingerprints read, for as long as memory holds all of them.
pub(crate) struct Words {
    all: Vec<u64>,
    most: usize,
}

impl Words {
    fn insert(&mut self, word: u64) {
        if self.all.len() < self.most {
            self.all.push(word);
        } else {
            (self.all, self.most) = (Vec::new(), 0);
        }
    }

    /// All words, each once and in ascending order; `None` if there were too many.
    pub(crate) fn sorted(&mut self) -> Option<&[u64]> {
        self.all.sort_unstable();
        self.all.dedup();
        (self.most > 0).then_some(&self.all)
    }
}

/// A Bloom filter of the contents read. However many blocks are stored, only few pass and are compared.
pub(crate) struct Filter {
    bits: Vec<u64>,
}

impl Filter {
    fn new(bytes: usize) -> Self {
        Self {
            bits: vec![0; bytes.max(8) / 8],
        }
    }

    /// The most stored blocks that pass the filter, after `read` blocks were read.
    pub(crate) fn passing(memory_bytes: usize, stored: u64, read: u64) -> u64 {
        let bits = (memory_bytes / FILTER_SHARE).max(8) as u128 * 8;
        let passing = u128::from(stored) * u128::from(read) / bits;
        stored.min(
            u64::try_from(passing)
                .unwrap_or(u64::MAX)
                .saturating_add(read),
        )
    }

    fn place(&self, fingerprint: Fingerprint) -> (usize, u64) {
        let word = fingerprint.word();
        ((word >> 6) as usize % self.bits.len(), 1 << (word % 64))
    }

    pub(crate) fn insert(&mut self, fingerprint: Fingerprint) {
        let (at, bit) = self.place(fingerprint);
        self.bits[at] |= bit;
    }

    pub(crate) fn may_have(&self, fingerprint: Fingerprint) -> bool {
        let (at, bit) = self.place(fingerprint);
        self.bits[at] & bit != 0
    }
}

/// Buffers of blocks read: one is being filled, one is being sorted, and one waits.
const BUFFERS: usize = 3;

/// Consecutive blocks that were read.
struct Piece {
    first: u64,
    blocks: u64,
    buffer: Vec<u8>,
}

/// Adds the rows of a disk. Returns how many blocks were read.
///
/// While this thread reads on, another one fingerprints the blocks read.
pub(crate) fn scan(
    disk: usize,
    changes: &mut ChangedBlocks<'_>,
    key: &Key,
    block_size: u32,
    rows: &mut Rows,
    report: Report<'_>,
) -> Result<u64> {
    let (filled, to_sort) = sync_channel::<Piece>(BUFFERS);
    let (sorted, free) = sync_channel(BUFFERS);
    for _ in 0..BUFFERS {
        let buffer = vec![0; changes.disk().piece_bytes()];
        sorted.send(buffer).map_err(|_| stopped())?;
    }
    thread::scope(|scope| {
        let sorter = scope.spawn(move || {
            let (mut fingerprints, mut batch) = (Vec::new(), Vec::new());
            for Piece {
                first,
                blocks,
                buffer,
            } in to_sort
            {
                let block_bytes = block_size as usize;
                let bytes = &buffer[..blocks as usize * block_bytes];
                fingerprints.clear();
                key.fingerprints(bytes, block_bytes, &mut fingerprints);
                let each = bytes.chunks(block_bytes).zip(&fingerprints).zip(first..);
                for ((content, fingerprint), block) in each {
                    if !is_zero(content) {
                        let fingerprint = Fingerprint::new(fingerprint.0);
                        let found = Found::Read(Place::new(disk, block));
                        rows.filter.insert(fingerprint);
                        rows.words.insert(fingerprint.word());
                        batch.push(Row::new(fingerprint, found));
                    }
                }
                rows.read += batch.len() as u64;
                rows.sorter.add(&mut batch)?;
                // Fails for the last buffers, when the reader has finished.
                let _ = sorted.send(buffer);
            }
            Ok(())
        });
        let read = read_changes(changes, block_size, &free, filled, report)?;
        match sorter.join() {
            Ok(sorted) => sorted.map(|()| read),
            Err(_) => Err(stopped()),
        }
    })
}

/// Reads changed blocks piece by piece, until the receiver ends. Returns how many blocks were read.
fn read_changes(
    changes: &mut ChangedBlocks<'_>,
    block_size: u32,
    free: &Receiver<Vec<u8>>,
    filled: SyncSender<Piece>,
    report: Report<'_>,
) -> Result<u64> {
    let (block_bytes, size) = (u64::from(block_size), changes.disk().size_bytes());
    let mut read = 0;
    while let Some(run) = changes.next()? {
        let mut first = run.blocks.start;
        while run.has_data && first < run.blocks.end {
            let Ok(mut buffer) = free.recv() else {
                return Ok(read);
            };
            let blocks = (run.blocks.end - first).min(buffer.len() as u64 / block_bytes);
            let bytes = &mut buffer[..(blocks * block_bytes) as usize];
            read_blocks(changes.disk(), first * block_bytes, bytes)?;
            let piece = Piece {
                first,
                blocks,
                buffer,
            };
            if filled.send(piece).is_err() {
                return Ok(read);
            }
            read += blocks;
            first += blocks;
            report(first * block_bytes, size)?;
        }
    }
    report(size, size)?;
    Ok(read)
}
