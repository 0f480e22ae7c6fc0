//! Blocks by their contents: numbers, of which 0 is a block of zeros.

use onefold_store::{Blocking, Volume};

pub(crate) const BLOCK: u64 = 4096;

/// Blocks of these contents, one after another.
pub(crate) fn blocks(contents: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for content in contents {
        words_of(content).for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
    }
    bytes
}

/// The content itself, and then words that no other content has in this place: a block that is
/// torn, or whose sectors were moved, is noticed.
fn words_of(content: u64) -> impl Iterator<Item = u64> {
    let factors = (0..BLOCK / 8).map(|n| (2 * n).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    factors.map(move |factor| content.wrapping_mul(factor))
}

/// Writes these contents from a block on.
#[track_caller]
pub(crate) fn write(volume: &Volume, lba: u64, contents: impl IntoIterator<Item = u64>) {
    let bytes = blocks(contents);
    volume.write(lba * BLOCK, &bytes, Blocking::Yes).unwrap();
}

/// The contents of `count` blocks.
#[track_caller]
pub(crate) fn read(volume: &Volume, lba: u64, count: u64) -> Vec<u64> {
    let bytes = read_bytes(volume, lba * BLOCK, count * BLOCK);
    let contents = bytes.chunks(BLOCK as usize).map(content);
    let contents: Option<_> = contents.collect();
    contents.expect("blocks of one write each")
}

/// The content of a block; none of one that is not as one write left it.
fn content(block: &[u8]) -> Option<u64> {
    let words = block.chunks_exact(8);
    let mut words = words.map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
    let content = words.next()?;
    words.eq(words_of(content).skip(1)).then_some(content)
}

#[track_caller]
pub(crate) fn read_bytes(volume: &Volume, offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0xdd; len as usize];
    volume.read(offset, &mut bytes, Blocking::Yes).unwrap();
    bytes
}
