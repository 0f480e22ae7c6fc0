//! Data to analyse.

use std::fs;
use std::path::PathBuf;

use fastrand::Rng;
use onefold_analyze::{Chunking, Options};
use tempfile::TempDir;

/// Memory that has room for everything, and memory that has room for almost nothing.
pub(crate) const MEMORIES: [usize; 2] = [64 << 20, 0];

pub(crate) fn options(chunkings: Vec<Chunking>, memory_bytes: usize) -> Options {
    Options {
        chunkings,
        memory_bytes,
        temporary: std::env::temp_dir(),
        trace: None,
    }
}

/// Blocks of 512 bytes, many of them alike, and zeros.
pub(crate) fn content(random: &mut Rng, blocks: usize, tail: usize) -> Vec<u8> {
    let mut content = Vec::new();
    while content.len() < blocks * 512 {
        let repeats = random.usize(1..40);
        let kind = random.u64(..60);
        for n in 0..repeats as u64 {
            let mut block = vec![0; 512];
            match kind {
                0..20 => {}
                20..50 => Rng::with_seed(kind * 100 + n).fill(&mut block),
                _ => random.fill(&mut block),
            }
            content.extend(block);
        }
    }
    content.truncate(blocks * 512);
    content.extend((0..tail).map(|_| random.u8(..)));
    content
}

/// Files of two inputs, by path.
pub(crate) fn tree(random: &mut Rng) -> (TempDir, Vec<PathBuf>) {
    let scratch = TempDir::new().unwrap();
    let inputs = ["a", "b"].map(|input| scratch.path().join(input));
    let shared = content(random, 3000, 100);
    for input in &inputs {
        fs::create_dir_all(input.join("deep/er")).unwrap();
        for (name, blocks, tail) in [
            ("one.log", 100, 17),
            ("two.LOG", 8, 0),
            ("three", 0, 1),
            ("deep/four.c", 5000, 511),
            ("deep/er/.five", 700, 3),
            ("deep/er/empty.txt", 0, 0),
        ] {
            fs::write(input.join(name), content(random, blocks, tail)).unwrap();
        }
        fs::write(input.join("same.img"), &shared).unwrap();
    }
    (scratch, inputs.to_vec())
}
