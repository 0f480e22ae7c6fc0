//! How many different blocks some files hold, counted without a line of the product's code.
//!
//! What a pool says of itself is worth little while the same code makes and counts it. Here two
//! blocks are the same only if all of their bytes are: a hash merely says which ones to compare,
//! so no weakness of a hash can make two different blocks one. Blocks of zeros are not counted,
//! because nothing stores them.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

pub(crate) const BLOCK_BYTES: usize = 4096;

/// How much is read at once.
const PIECE_BYTES: usize = 256 * BLOCK_BYTES;

/// Blocks of some files, taken together.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Those that are not all zeros.
    pub(crate) nonzero: u64,
    /// The different ones among these.
    pub(crate) distinct: u64,
}

/// Counts over all files. The last block of a file is filled up with zeros.
pub(crate) fn count(paths: &[impl AsRef<Path>]) -> Result<Counted> {
    let hasher = RandomState::new();
    count_by(paths, |block| hasher.hash_one(block))
}

fn count_by(paths: &[impl AsRef<Path>], hash: impl Fn(&[u8]) -> u64) -> Result<Counted> {
    let sources: Vec<Source> = paths
        .iter()
        .map(|path| Source::open(path.as_ref()))
        .collect::<Result<_>>()?;
    let mut counted = Counted::default();
    // By hash, the first block of each content.
    let mut firsts: HashMap<u64, Vec<(&Source, u64)>> = HashMap::new();
    let (mut piece, mut earlier) = (vec![0; PIECE_BYTES], vec![0; BLOCK_BYTES]);
    for source in &sources {
        let mut offset = 0;
        while source.read(&mut piece, offset)? {
            for (block, at) in piece
                .chunks(BLOCK_BYTES)
                .zip((offset..).step_by(BLOCK_BYTES))
            {
                if block.iter().all(|byte| *byte == 0) {
                    continue;
                }
                counted.nonzero += 1;
                let candidates = firsts.entry(hash(block)).or_default();
                let mut is_new = true;
                for (first, place) in candidates.iter() {
                    first.read(&mut earlier, *place)?;
                    is_new &= earlier != block;
                }
                if is_new {
                    counted.distinct += 1;
                    candidates.push((source, at));
                }
            }
            offset += PIECE_BYTES as u64;
        }
    }
    Ok(counted)
}

/// A file that is read at any place, as if zeros followed it.
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

    /// Fills `buffer` from `offset` on; false at the end of the file.
    fn read(&self, buffer: &mut [u8], offset: u64) -> Result<bool> {
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
        Ok(filled > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files of blocks that hold one byte again and again; an odd tail at each file's end.
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

    #[test]
    fn equal_blocks_of_all_files_are_one_and_zeros_are_none() {
        let (_directory, paths) = files(&[&[1, 2, 0, 1], &[0, 3, 2]], &[]);
        let expected = Counted {
            nonzero: 5,
            distinct: 3,
        };
        assert_eq!(count(&paths).unwrap(), expected);
    }

    #[test]
    fn a_short_block_at_the_end_is_filled_up_with_zeros() {
        let (_directory, paths) = files(&[&[1], &[]], &[7, 7]);
        let expected = Counted {
            nonzero: 3,
            distinct: 2,
        };
        assert_eq!(count(&paths).unwrap(), expected);
    }

    #[test]
    fn blocks_behind_the_first_piece_are_counted_too() {
        let bytes: Vec<u8> = (0..=255).chain(0..=255).chain(1..=2).collect();
        let (_directory, paths) = files(&[&bytes], &[]);
        let counted = count(&paths).unwrap();
        assert_eq!((counted.nonzero, counted.distinct), (512, 255));
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
