//! Fingerprints: keyed hashes of blocks.
//!
//! A fingerprint is BLAKE3 in its keyed mode, cut to 128 bits. Two of 2^40 different blocks share
//! one with a probability of 2^-49 by accident, and without the key a collision cannot be made on
//! purpose. Each domain has its own key, so equal contents of two domains have different
//! fingerprints and never meet (P11).
//!
//! # Several at once
//!
//! BLAKE3 cuts its input into chunks of 1,024 bytes and joins their hashes in a binary tree. A
//! block of 4 KiB has four chunks and three joints: too few to fill the lanes of a processor that
//! can do sixteen. So the same chunk of sixteen blocks is hashed together, and then the same level
//! of all their trees. The tree of a block whose size is a power of two is complete, so all trees
//! are alike; blocks of other sizes are hashed one at a time.
//!
//! The crate `blake3` offers this only through a module that it keeps for its own benchmarks,
//! hence its exact version in `Cargo.toml`. The tests compare with the plain function for every
//! size and number of blocks.

use std::fmt;

use blake3::IncrementCounter;
use blake3::platform::{Platform, words_from_le_bytes_32};

/// The keyed hash of a block. Orders as its bytes do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Fingerprint(pub [u8; FINGERPRINT_BYTES]);

/// Bytes in a fingerprint.
pub const FINGERPRINT_BYTES: usize = 16;

impl Fingerprint {
    /// The next larger one, from which to ask for further rows; `None` after the last.
    #[must_use]
    pub fn successor(mut self) -> Option<Fingerprint> {
        for byte in self.0.iter_mut().rev() {
            *byte = byte.wrapping_add(1);
            if *byte != 0 {
                return Some(self);
            }
        }
        None
    }

    /// The bits that decide most about its place in the order.
    pub(crate) fn high_bits(self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_le_bytes([h, g, f, e, d, c, b, a])
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// Whether every byte of a block is zero: such a block has no fingerprint. Most that are not show it in the
/// first bytes.
#[must_use]
pub fn is_zero(block: &[u8]) -> bool {
    let mut words = block.chunks(64);
    words.all(|bytes| bytes.iter().fold(0, |any, byte| any | byte) == 0)
}

/// The key of one domain's fingerprints.
#[derive(Clone)]
pub struct Key {
    bytes: [u8; 32],
    words: [u32; 8],
    platform: Platform,
}

/// The context of BLAKE3's key derivation: a globally unique text.
const KEY_CONTEXT: &str = "onefold 2026-11-20 fingerprints of the blocks of one domain";

impl Key {
    /// The key of the domain numbered `domain` in a pool with this secret.
    #[must_use]
    pub fn derive(secret: &[u8; 32], domain: u16) -> Key {
        let mut hasher = blake3::Hasher::new_derive_key(KEY_CONTEXT);
        hasher.update(secret);
        hasher.update(&domain.to_le_bytes());
        Key::new(*hasher.finalize().as_bytes())
    }

    fn new(bytes: [u8; 32]) -> Key {
        Key {
            bytes,
            words: words_from_le_bytes_32(&bytes),
            platform: Platform::detect(),
        }
    }

    /// The fingerprint of one block.
    #[must_use]
    pub fn fingerprint(&self, block: &[u8]) -> Fingerprint {
        truncated(blake3::keyed_hash(&self.bytes, block).as_bytes())
    }

    /// Appends the fingerprints of consecutive blocks of `block_size` bytes to `into`, in their
    /// order.
    ///
    /// # Panics
    /// If `blocks` is not a whole number of blocks, which is the caller's mistake.
    pub fn fingerprints(&self, blocks: &[u8], block_size: usize, into: &mut Vec<Fingerprint>) {
        assert!(
            block_size > 0 && blocks.len().is_multiple_of(block_size),
            "{} bytes are no whole number of blocks of {block_size}",
            blocks.len()
        );
        into.reserve(blocks.len() / block_size);
        let lanes = self.platform.simd_degree();
        let is_complete_tree = block_size.is_power_of_two() && block_size >= 2 * CHUNK_BYTES;
        if lanes == 1 || !is_complete_tree {
            into.extend(
                blocks
                    .chunks(block_size)
                    .map(|block| self.fingerprint(block)),
            );
            return;
        }
        let mut trees = Trees::new(self, block_size / CHUNK_BYTES, lanes);
        let left_over = blocks.len() / block_size % GROUP_BLOCKS;
        let (groups, rest) = blocks.split_at(blocks.len() - left_over * block_size);
        for group in groups.chunks(block_size * lanes) {
            trees.hash(group, into);
        }
        into.extend(rest.chunks(block_size).map(|block| self.fingerprint(block)));
    }
}

/// Shows nothing of the key.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

fn truncated(hash: &[u8]) -> Fingerprint {
    let mut fingerprint = Fingerprint::default();
    fingerprint.0.copy_from_slice(&hash[..FINGERPRINT_BYTES]);
    fingerprint
}

/// Blocks that are hashed side by side without empty lanes. A remainder is faster through the
/// library, block by block.
const GROUP_BLOCKS: usize = 4;

/// Bytes of a leaf of BLAKE3's tree.
const CHUNK_BYTES: usize = 1024;

/// Bytes of the hash of a chunk or of a joint: a chaining value.
const HASH_BYTES: usize = 32;

/// A joint's input: the hashes of its two children.
const JOINT_BYTES: usize = 2 * HASH_BYTES;

/// Flags of the compression function, as the BLAKE3 paper has them in its table 3.
mod flags {
    pub(super) const CHUNK_START: u8 = 1 << 0;
    pub(super) const CHUNK_END: u8 = 1 << 1;
    pub(super) const PARENT: u8 = 1 << 2;
    pub(super) const ROOT: u8 = 1 << 3;
    pub(super) const KEYED_HASH: u8 = 1 << 4;
}

/// The trees of a group of blocks, hashed level by level.
struct Trees<'a> {
    key: &'a Key,
    /// Chunks in a block: a power of two, at least 2.
    chunks: usize,
    lanes: usize,
    /// The hashes of one level, block by block.
    level: Vec<u8>,
    /// Where the next level is written before the two change places.
    above: Vec<u8>,
}

impl Trees<'_> {
    fn new(key: &Key, chunks: usize, lanes: usize) -> Trees<'_> {
        Trees {
            key,
            chunks,
            lanes,
            level: vec![0; lanes * chunks * HASH_BYTES],
            above: vec![0; lanes * chunks * HASH_BYTES],
        }
    }

    /// Appends the fingerprints of a group of 1 to `lanes` blocks.
    fn hash(&mut self, group: &[u8], into: &mut Vec<Fingerprint>) {
        let (chunks, _) = group.as_chunks();
        let blocks = chunks.len() / self.chunks;
        if self.chunks >= self.lanes {
            self.hash_chunks_within_blocks(chunks);
        } else {
            self.hash_chunks_across_blocks(chunks);
        }
        let mut width = self.chunks;
        while width > 1 {
            self.join(blocks * width, width == 2);
            std::mem::swap(&mut self.level, &mut self.above);
            width /= 2;
        }
        let roots = self.level.chunks_exact(HASH_BYTES).take(blocks);
        into.extend(roots.map(truncated));
    }

    /// For large blocks: the chunks of one fill the lanes by themselves.
    fn hash_chunks_within_blocks(&mut self, chunks: &[[u8; CHUNK_BYTES]]) {
        let blocks = chunks.chunks(self.chunks);
        let hashes = self.level.chunks_mut(self.chunks * HASH_BYTES);
        for (block, hashes) in blocks.zip(hashes) {
            let inputs: Vec<_> = block.iter().collect();
            hash_chunks(self.key, &inputs, 0, IncrementCounter::Yes, hashes);
        }
    }

    /// For small blocks: the first chunks of all of them together, then the second ones, ...
    fn hash_chunks_across_blocks(&mut self, chunks: &[[u8; CHUNK_BYTES]]) {
        for number in 0..self.chunks {
            let inputs: Vec<_> = chunks.iter().skip(number).step_by(self.chunks).collect();
            let hashes = &mut self.above[..inputs.len() * HASH_BYTES];
            hash_chunks(
                self.key,
                &inputs,
                number as u64,
                IncrementCounter::No,
                hashes,
            );
            let places = self.level.chunks_exact_mut(HASH_BYTES).skip(number);
            let places = places.step_by(self.chunks);
            for (place, hash) in places.zip(hashes.chunks_exact(HASH_BYTES)) {
                place.copy_from_slice(hash);
            }
        }
    }

    /// Joins the first `hashes` of the level in pairs, of which none spans two blocks because
    /// every block has an even number of them.
    fn join(&mut self, hashes: usize, is_root: bool) {
        let (pairs, _) = self.level[..hashes * HASH_BYTES].as_chunks::<JOINT_BYTES>();
        let inputs: Vec<_> = pairs.iter().collect();
        let root = if is_root { flags::ROOT } else { 0 };
        self.key.platform.hash_many(
            &inputs,
            &self.key.words,
            0,
            IncrementCounter::No,
            flags::KEYED_HASH | flags::PARENT | root,
            0,
            0,
            &mut self.above[..inputs.len() * HASH_BYTES],
        );
    }
}

/// Hashes chunks of which the first is number `number` in its block; `increment` is set if the
/// others follow it there, and not if they have the same number in other blocks.
fn hash_chunks(
    key: &Key,
    inputs: &[&[u8; CHUNK_BYTES]],
    number: u64,
    increment: IncrementCounter,
    hashes: &mut [u8],
) {
    key.platform.hash_many(
        inputs,
        &key.words,
        number,
        increment,
        flags::KEYED_HASH,
        flags::CHUNK_START,
        flags::CHUNK_END,
        hashes,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn noise(seed: u64, len: usize) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(seed);
        (0..len).map(|_| random.u8(..)).collect()
    }

    /// The expected result of `fingerprints`.
    fn one_at_a_time(key: &Key, blocks: &[u8], block_size: usize) -> Vec<Fingerprint> {
        let plain = |block| truncated(blake3::keyed_hash(&key.bytes, block).as_bytes());
        blocks.chunks(block_size).map(plain).collect()
    }

    fn agrees(key: &Key, blocks: &[u8], block_size: usize) {
        let mut found = vec![Fingerprint([9; FINGERPRINT_BYTES])];
        key.fingerprints(blocks, block_size, &mut found);
        assert_eq!(found[0], Fingerprint([9; FINGERPRINT_BYTES]), "it appends");
        assert_eq!(
            found[1..],
            one_at_a_time(key, blocks, block_size),
            "{block_size} x {}, {:?}",
            blocks.len() / block_size,
            key.platform
        );
    }

    /// The key for every instruction set that this processor has, not only its best.
    fn keys(secret: u8) -> Vec<Key> {
        let key = Key::derive(&[secret; 32], 1);
        #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
        let others = [Platform::sse2(), Platform::sse41(), Platform::avx2()];
        #[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
        let others = [];
        let platforms = others.into_iter().flatten();
        let platforms = platforms.chain([Platform::portable(), Platform::detect()]);
        let with = |platform| Key {
            platform,
            ..key.clone()
        };
        platforms.map(with).collect()
    }

    #[test]
    fn several_at_once_are_what_one_at_a_time_are() {
        for key in keys(3) {
            for block_size in [4096, 8192, 16384, 65536] {
                let blocks = noise(block_size as u64, block_size * 37);
                for count in (0..=17).chain([31, 32, 33, 37]) {
                    agrees(&key, &blocks[..count * block_size], block_size);
                }
            }
            for block_size in [1, 64, 512, 1000, 1024, 2048, 3072, 5000, 32768, 1 << 20] {
                agrees(&key, &noise(5, block_size * 3), block_size);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn whatever_the_data(
            secret: [u8; 32],
            domain: u16,
            size in prop::sample::select(vec![2048_usize, 4096, 8192, 16384, 65536, 12288, 777]),
            count in 0_usize..40,
            seed: u64,
        ) {
            agrees(&Key::derive(&secret, domain), &noise(seed, size * count), size);
        }
    }

    #[test]
    fn the_kept_bits_are_the_first_of_the_keyed_hash() {
        let key = Key::derive(&[7; 32], 258);
        let mut context = blake3::Hasher::new_derive_key(KEY_CONTEXT);
        context.update(&[7; 32]).update(&[2, 1]);
        let hash = blake3::keyed_hash(context.finalize().as_bytes(), b"content");
        assert_eq!(key.fingerprint(b"content").0, hash.as_bytes()[..16]);
        // A changed context or order of inputs would orphan every index there is.
        assert_eq!(
            key.fingerprint(b"content").to_string(),
            "1b49a16988623302f42e99a1761eac7b"
        );
    }

    #[test]
    fn domains_and_secrets_have_keys_of_their_own() {
        let block = [1; 4096];
        let of = |secret, domain| Key::derive(&[secret; 32], domain).fingerprint(&block);
        let all = [of(1, 1), of(1, 2), of(1, 256), of(2, 1)];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[at + 1..].contains(one));
        }
        assert_eq!(of(1, 1), of(1, 1));
    }

    #[test]
    fn nothing_lies_between_a_fingerprint_and_its_successor() {
        let successor = |bytes| Fingerprint(bytes).successor();
        assert_eq!(successor([0; 16]).unwrap().0[15], 1);
        let [mut low, mut high] = [[7; 16], [7; 16]];
        low[8..].fill(255);
        high[7] = 8;
        high[8..].fill(0);
        assert_eq!(successor(low), Some(Fingerprint(high)));
        assert_eq!(successor([255; 16]), None);
    }

    #[test]
    fn a_key_shows_nothing() {
        assert_eq!(format!("{:?}", Key::derive(&[7; 32], 1)), "Key(..)");
    }

    #[test]
    #[should_panic(expected = "no whole number of blocks")]
    fn a_broken_block_is_the_callers_mistake() {
        Key::derive(&[0; 32], 1).fingerprints(&[0; 5000], 4096, &mut Vec::new());
    }
}
