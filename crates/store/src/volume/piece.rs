//! Whole blocks that are written together: the fate of each run of them ([step 4 shape]), its place
//! ([step 5 place]), and the records of both ([step 7 log]).

use onefold_format::{Entry, LayerId, Lba, Pba, Record, UnmapTo};
use onefold_index::Fingerprint;
use onefold_metadata::{BlockRange, Entries, PbaRun, PbaRuns};
use smallvec::SmallVec;

use super::resolve::{Content, Resolved};

/// Blocks of one piece with the same fate, consecutive in the volume and, if stored, in the pool.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) blocks: BlockRange,
    pub(super) fate: Fate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// A block that the entry owns alone, rewritten where it is (P1).
    InPlace(Pba),
    /// Needs a new block: nothing is stored yet, or the stored block is shared.
    New,
    /// This published block has the content: the entry will refer to it, and nothing is stored.
    Hit(Pba),
    /// All zeros: the entry releases its block and becomes this.
    Zero(UnmapTo),
    /// The content does not change.
    Nothing,
}

/// The place of a run: new blocks for [`Fate::New`], in step 5.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placed {
    pub(super) run: Run,
    pub(super) new: Option<Pba>,
}

/// Whole blocks that are written together.
pub(super) struct Piece<'a> {
    pub(super) first: Lba,
    pub(super) data: &'a [u8],
    pub(super) block_size: u64,
    /// The live layer's entries for the blocks before the write.
    pub(super) entries: Entries,
    /// The contents of the blocks, if the volume looks them up.
    pub(super) resolved: Option<&'a Resolved>,
    /// Whether a block that is published already is not stored again.
    pub(super) takes_hits: bool,
}

pub(super) type Runs = SmallVec<[Run; 4]>;
pub(super) type PlacedRuns = SmallVec<[Placed; 4]>;

impl Placed {
    /// Where the run's bytes go; none if it is not stored.
    pub(super) fn pba(&self) -> Option<Pba> {
        match self.run.fate {
            Fate::InPlace(pba) => Some(pba),
            Fate::New => self.new,
            Fate::Hit(_) | Fate::Zero(_) | Fate::Nothing => None,
        }
    }
}

impl Run {
    /// Whether the run is written to the pool's data.
    pub(super) fn is_stored(&self) -> bool {
        matches!(self.fate, Fate::InPlace(_) | Fate::New)
    }

    /// The blocks of a hit, and the published blocks to which they will refer.
    pub(super) fn hit(&self) -> Option<(BlockRange, PbaRun)> {
        let Fate::Hit(start) = self.fate else {
            return None;
        };
        let count = self.blocks.count;
        Some((self.blocks, PbaRun { start, count }))
    }

    pub(super) fn continues_with(&self, fate: Fate) -> bool {
        match (self.fate, fate) {
            (Fate::InPlace(start), Fate::InPlace(next)) | (Fate::Hit(start), Fate::Hit(next)) => {
                start + self.blocks.count == next
            }
            (own, other) => own == other,
        }
    }
}

impl<'a> Piece<'a> {
    pub(super) fn new(
        first: Lba,
        data: &'a [u8],
        block_size: u64,
        entries: Entries,
        resolved: Option<&'a Resolved>,
    ) -> Self {
        Self {
            first,
            data,
            block_size,
            entries,
            resolved,
            takes_hits: resolved.is_some_and(Resolved::has_published),
        }
    }

    pub(super) fn blocks(&self) -> BlockRange {
        BlockRange::new(self.first, self.entries.len() as u64)
    }

    /// The entries of some blocks of the piece before the write.
    pub(super) fn entries(&self, blocks: BlockRange) -> &[Entry] {
        let at = (blocks.first.0 - self.first.0) as usize;
        &self.entries[at..at + blocks.count as usize]
    }

    /// The bytes to write to some blocks of the piece.
    pub(super) fn bytes(&self, blocks: BlockRange) -> &[u8] {
        let start = ((blocks.first.0 - self.first.0) * self.block_size) as usize;
        &self.data[start..start + (blocks.count * self.block_size) as usize]
    }

    /// The content of block `n` of the piece, if it is known.
    pub(super) fn content(&self, n: u64) -> Option<Content> {
        self.resolved?.contents.get(n as usize).copied()
    }

    /// The fingerprints of some blocks of the piece, if they are known.
    pub(super) fn fingerprints(&self, blocks: BlockRange) -> Option<SmallVec<[Fingerprint; 8]>> {
        let (resolved, at) = (self.resolved?, blocks.first.0 - self.first.0);
        let fingerprints = at..at + blocks.count;
        fingerprints.map(|n| resolved.fingerprint(n)).collect()
    }

    /// The number of blocks whose content is published.
    pub(super) fn published(&self) -> u64 {
        let contents = self.resolved.iter().flat_map(|resolved| &resolved.contents);
        let is_published = |content: &&Content| matches!(content, Content::Published(..));
        contents.filter(is_published).count() as u64
    }

    /// The number of published blocks that are not written: hits, and blocks that do not change.
    pub(super) fn not_written(&self, runs: &[Run]) -> u64 {
        let blocks = |run: &Run| match run.fate {
            Fate::Hit(_) => run.blocks.count,
            Fate::Nothing => {
                let first = run.blocks.first.0 - self.first.0;
                let contents = (first..first + run.blocks.count).map(|n| self.content(n));
                let is_published =
                    |content: &Option<Content>| matches!(content, Some(Content::Published(..)));
                contents.filter(is_published).count() as u64
            }
            Fate::InPlace(_) | Fate::New | Fate::Zero(_) => 0,
        };
        runs.iter().map(blocks).sum()
    }

    /// The number of entries that will hold data and did not in this layer.
    pub(super) fn entries_more(&self, runs: &[Run]) -> u64 {
        let new = runs
            .iter()
            .filter(|run| matches!(run.fate, Fate::New | Fate::Hit(_)));
        let before = new.flat_map(|run| self.entries(run.blocks));
        before.filter(|entry| entry.pba().is_none()).count() as u64
    }
}

/// The records of a piece, and the blocks of the layer that they release. Blocks rewritten in place
/// have neither.
pub(super) fn changes(
    layer: LayerId,
    piece: &Piece<'_>,
    placed: &[Placed],
) -> (SmallVec<[Record; 2]>, PbaRuns) {
    let mut records = SmallVec::new();
    let mut old_blocks = PbaRuns::new();
    for Placed { run, new } in placed {
        let before = piece.entries(run.blocks);
        match (run.fate, new) {
            (Fate::Zero(to), _) => {
                old_blocks.extend(onefold_metadata::owned_runs(before));
                for part in run.blocks.by_segment() {
                    records.push(Record::Unmap {
                        layer,
                        lba: part.first,
                        count: part.count as u32,
                        to,
                    });
                }
            }
            (Fate::New, _) | (Fate::Hit(_), _) => {
                let new = match (run.fate, new) {
                    (Fate::Hit(pba), _) => Entry::shared(pba),
                    (_, Some(pba)) => Entry::private(*pba),
                    (_, None) => continue,
                };
                // A hit releases the layer's own blocks, and so does a new block that replaces a lost one.
                old_blocks.extend(onefold_metadata::owned_runs(before));
                let mut done = 0;
                for same in before.chunk_by(|a, b| a.successor(1) == *b) {
                    let alike = BlockRange::new(run.blocks.first + done, same.len() as u64);
                    for part in alike.by_segment() {
                        records.push(Record::Map {
                            layer,
                            lba: part.first,
                            count: part.count as u32,
                            old: same[0].successor(part.first.0 - alike.first.0),
                            new: new.successor(part.first.0 - run.blocks.first.0),
                        });
                    }
                    done += same.len() as u64;
                }
            }
            _ => {}
        }
    }
    (records, old_blocks)
}
