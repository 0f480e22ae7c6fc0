//! The content of a block: a function of its content's number and a seed.

use crate::deal::ContentId;
use crate::permutation::mix;

/// Numbers that are generated together, so that the processor computes several at a time.
const LANES: usize = 8;

/// Bytes of one round of all lanes: a line. Blocks are whole lines.
const LINE_BYTES: usize = LANES * WORD_BYTES;

const WORD_BYTES: usize = size_of::<u64>();

/// Makes the block of a content, and recognises such blocks.
///
/// A block begins with the number of its content and a word that depends on seed and number; so no
/// two contents have equal blocks, and a misplaced block can be identified. Then comes an
/// incompressible part, from generators of the xorshift family (Marsaglia 2003), and then one
/// repeated word, which compresses. No word of the repeated part is zero, and so no block is.
#[derive(Debug, Clone, Copy)]
pub struct Contents {
    seed: u64,
    block_bytes: usize,
    /// The incompressible part: whole lines, at least one.
    noise_bytes: usize,
}

impl Contents {
    /// Blocks of `block_bytes`, a multiple of 512, of which about `compressible_percent` compress to
    /// nearly nothing.
    #[must_use]
    pub fn new(seed: u64, block_bytes: usize, compressible_percent: u8) -> Self {
        let percent = usize::from(100 - compressible_percent.min(100));
        let noise = (block_bytes * percent).div_ceil(100);
        Self {
            seed,
            block_bytes,
            noise_bytes: noise
                .next_multiple_of(LINE_BYTES)
                .clamp(LINE_BYTES, block_bytes),
        }
    }

    /// The size of each block.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Fills `block`, which has the size of a block, with a content.
    pub fn fill(&self, id: ContentId, block: &mut [u8]) {
        let (noise, repeated) = block.split_at_mut(self.noise_bytes);
        let Start {
            mut lanes,
            words,
            word,
        } = self.start(id);
        for line in noise.as_chunks_mut::<LINE_BYTES>().0 {
            let bytes = line.as_chunks_mut::<WORD_BYTES>().0;
            for n in 0..LANES {
                lanes[n] = step(lanes[n]);
                bytes[n] = lanes[n].to_le_bytes();
            }
        }
        noise[..8].copy_from_slice(&words[0].to_le_bytes());
        noise[8..16].copy_from_slice(&words[1].to_le_bytes());
        repeated
            .as_chunks_mut::<WORD_BYTES>()
            .0
            .fill(word.to_le_bytes());
    }

    /// Whether the block has exactly this content.
    #[must_use]
    pub fn is(&self, id: ContentId, block: &[u8]) -> bool {
        if block.len() != self.block_bytes {
            return false;
        }
        let (noise, repeated) = block.split_at(self.noise_bytes);
        let Start {
            mut lanes,
            words,
            word,
        } = self.start(id);
        let mut differences = [0; LANES];
        let Some((first, lines)) = noise.as_chunks::<LINE_BYTES>().0.split_first() else {
            return false;
        };
        for (n, bytes) in first.as_chunks::<WORD_BYTES>().0.iter().enumerate() {
            lanes[n] = step(lanes[n]);
            differences[n] = words.get(n).unwrap_or(&lanes[n]) ^ u64::from_le_bytes(*bytes);
        }
        for line in lines {
            let bytes = line.as_chunks::<WORD_BYTES>().0;
            for n in 0..LANES {
                lanes[n] = step(lanes[n]);
                differences[n] |= lanes[n] ^ u64::from_le_bytes(bytes[n]);
            }
        }
        for line in repeated.as_chunks::<LINE_BYTES>().0 {
            let bytes = line.as_chunks::<WORD_BYTES>().0;
            for n in 0..LANES {
                differences[n] |= word ^ u64::from_le_bytes(bytes[n]);
            }
        }
        differences.iter().fold(0, |any, lane| any | lane) == 0
    }

    /// The content of a block, if it has one of these contents.
    #[must_use]
    pub fn recognise(&self, block: &[u8]) -> Option<ContentId> {
        let id = u64::from_le_bytes(*block.first_chunk()?);
        self.is(id, block).then_some(id)
    }

    fn start(&self, id: ContentId) -> Start {
        let key = mix(id ^ mix(self.seed));
        // A generator of this family that begins with zero never leaves it.
        let lanes = std::array::from_fn(|n| mix(key.wrapping_add(n as u64)) | 1);
        Start {
            lanes,
            words: [id, key],
            word: mix(!key) | 1,
        }
    }
}

/// The values from which a content is made.
struct Start {
    /// The first values of the generators.
    lanes: [u64; LANES],
    /// The first two words.
    words: [u64; 2],
    /// The word that is repeated.
    word: u64,
}

fn step(mut lane: u64) -> u64 {
    lane ^= lane << 13;
    lane ^= lane >> 7;
    lane ^ (lane << 17)
}
