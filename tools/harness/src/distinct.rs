//! Counts the distinct blocks of some files, and the copies of each, without a line of the product's code.
//!
//! A count by the code under test proves little. Here two blocks are equal only if all their bytes are: a hash only
//! selects blocks to compare, so a weak hash cannot merge two different blocks. Blocks of zeros are not counted,
//! because they are not stored.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The unit of counting: blocks of this size, from the start of each file.
pub const BLOCK_BYTES: usize = 4096;

/// The size of a read.
const PIECE_BYTES: usize = 256 * BLOCK_BYTES;

/// The blocks of some files, taken together.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Counted {
    /// All blocks.
    pub blocks: u64,
    /// Blocks that are not all zeros.
    pub nonzero: u64,
    /// Distinct blocks that are not all zeros.
    pub distinct: u64,
    /// For each number of copies, how many distinct blocks have that many.
    pub copies: BTreeMap<u64, u64>,
    /// The counts of each file.
    pub files: Vec<Share>,
}

/// Distinct blocks of one file that are not all zeros.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// All distinct blocks of the file.
    pub distinct: u64,
    /// Distinct blocks that another file has as well.
    pub shared: u64,
    /// Distinct blocks that no file before this one has.
    pub new: u64,
}

/// A distinct block.
struct First {
    /// The file and the offset where the block was first met.
    source: usize,
    at: u64,
    /// The number of copies in each file.
    counts: Vec<u64>,
}

/// Counts the blocks of all files. The last block of a file is padded with zeros.
pub fn count(paths: &[impl AsRef<Path>]) -> Result<Counted> {
    let hasher = RandomState::new();
    count_by(paths, |block| hasher.hash_one(block))
}

fn count_by(paths: &[impl AsRef<Path>], hash: impl Fn(&[u8]) -> u64) -> Result<Counted> {
    let sources: Vec<Source> = paths
        .iter()
        .map(|path| Source::open(path.as_ref()))
        .collect::<Result<_>>()?;
    let mut counted = Counted {
        files: vec![Share::default(); sources.len()],
        ..Counted::default()
    };
    // The first block of each content, by hash.
    let mut firsts: HashMap<u64, Vec<First>> = HashMap::new();
    let (mut piece, mut earlier) = (vec![0; PIECE_BYTES], vec![0; BLOCK_BYTES]);
    for (n, source) in sources.iter().enumerate() {
        let mut offset = 0;
        while let filled @ 1.. = source.read(&mut piece, offset)? {
            let blocks = piece.chunks(BLOCK_BYTES).take(filled.div_ceil(BLOCK_BYTES));
            for (block, at) in blocks.zip((offset..).step_by(BLOCK_BYTES)) {
                counted.blocks += 1;
                if block.iter().all(|byte| *byte == 0) {
                    continue;
                }
                let candidates = firsts.entry(hash(block)).or_default();
                let mut known = None;
                for (place, first) in candidates.iter().enumerate() {
                    sources[first.source].read(&mut earlier, first.at)?;
                    if earlier == block {
                        known = Some(place);
                    }
                }
                let place = known.unwrap_or(candidates.len());
                if known.is_none() {
                    candidates.push(First {
                        source: n,
                        at,
                        counts: vec![0; sources.len()],
                    });
                }
                candidates[place].counts[n] += 1;
            }
            offset += PIECE_BYTES as u64;
        }
    }
    for first in firsts.values().flatten() {
        counted.add(&first.counts);
    }
    Ok(counted)
}

impl Counted {
    /// Adds a distinct block with this number of copies in each file.
    fn add(&mut self, counts: &[u64]) {
        let copies = counts.iter().sum();
        self.nonzero += copies;
        self.distinct += 1;
        *self.copies.entry(copies).or_default() += 1;
        let owners = || (0..counts.len()).filter(|n| counts[*n] > 0);
        for n in owners() {
            let share = &mut self.files[n];
            share.distinct += 1;
            share.shared += u64::from(owners().count() > 1);
            share.new += u64::from(owners().next() == Some(n));
        }
    }
}

/// A file that can be read at any offset, as if zeros followed it.
struct Source {
    file: File,
    path: PathBuf,
}

impl Source {
    fn open(path: &Path) -> Result<Source> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let path = path.to_path_buf();
        Ok(Source { file, path })
    }

    /// Fills `buffer` from `offset` on. Returns the number of bytes that come from the file; the rest are zeros.
    fn read(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let read = self.file.read_at(rest, offset + filled as u64);
            match read.with_context(|| format!("cannot read {}", self.path.display()))? {
                0 => {
                    rest.fill(0);
                    break;
                }
                length => filled += length,
            }
        }
        Ok(filled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes files of blocks that each repeat one byte, with an odd tail at each file's end.
    fn files(contents: &[&[u8]], tail: &[u8]) -> (tempfile::TempDir, Vec<PathBuf>) {
        let directory = tempfile::tempdir().unwrap();
        let write = |(index, bytes): (usize, &&[u8])| {
            let path = directory.path().join(index.to_string());
            let mut content: Vec<u8> = bytes.iter().flat_map(|b| [*b; BLOCK_BYTES]).collect();
            content.extend_from_slice(tail);
            std::fs::write(&path, content).unwrap();
            path
        };
        let paths = contents.iter().enumerate().map(write).collect();
        (directory, paths)
    }

    fn numbers(counted: &Counted) -> (u64, u64, u64) {
        (counted.blocks, counted.nonzero, counted.distinct)
    }

    #[test]
    fn equal_blocks_of_all_files_are_one_and_zeros_are_none() {
        let (_directory, paths) = files(&[&[1, 2, 0, 1], &[0, 3, 2]], &[]);
        let counted = count(&paths).unwrap();
        assert_eq!(numbers(&counted), (7, 5, 3));
        assert_eq!(counted.copies, BTreeMap::from([(1, 1), (2, 2)]));
        let share = |distinct, shared, new| Share {
            distinct,
            shared,
            new,
        };
        assert_eq!(counted.files, [share(2, 1, 2), share(2, 1, 1)]);
    }

    #[test]
    fn a_short_block_at_the_end_is_filled_up_with_zeros() {
        let (_directory, paths) = files(&[&[1], &[]], &[7, 7]);
        assert_eq!(numbers(&count(&paths).unwrap()), (3, 3, 2));
    }

    #[test]
    fn blocks_behind_the_first_piece_are_counted_too() {
        let bytes: Vec<u8> = (0..=255).chain(0..=255).chain(1..=2).collect();
        let (_directory, paths) = files(&[&bytes], &[]);
        assert_eq!(numbers(&count(&paths).unwrap()), (514, 512, 255));
    }

    #[test]
    fn a_hash_that_tells_nothing_apart_changes_nothing() {
        let (_directory, paths) = files(&[&[1, 2, 0, 1], &[0, 3, 2]], &[]);
        assert_eq!(count_by(&paths, |_| 0).unwrap(), count(&paths).unwrap());
    }

    #[test]
    fn no_files_hold_no_blocks_and_a_missing_one_is_an_error() {
        assert_eq!(count(&[] as &[PathBuf]).unwrap(), Counted::default());
        let error = count(&["no/such/file"]).unwrap_err();
        assert!(format!("{error:#}").contains("no/such/file"));
    }
}
