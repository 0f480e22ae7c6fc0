//! The bytes of a block.

use onefold_workload::{Contents, UNIQUE};
use proptest::prelude::*;
use std::collections::HashSet;

fn block(contents: &Contents, id: u64) -> Vec<u8> {
    let mut block = vec![0xaa; contents.block_bytes()];
    contents.fill(id, &mut block);
    block
}

#[test]
fn no_two_contents_are_alike_and_none_is_zero() {
    for bytes in [512, 4096] {
        let contents = [1, 2].map(|seed| Contents::new(seed, bytes, 100));
        let ids = (0..2000).chain((0..2000).map(|id| id | UNIQUE));
        let blocks = ids.flat_map(|id| contents.each_ref().map(|contents| block(contents, id)));
        let blocks: Vec<_> = blocks.collect();
        assert!(
            blocks
                .iter()
                .all(|block| block.iter().any(|byte| *byte != 0))
        );
        assert_eq!(blocks.into_iter().collect::<HashSet<_>>().len(), 8000);
    }
}

#[test]
fn as_much_compresses_as_was_asked_for() {
    for (percent, noise) in [(0, 65536), (30, 45888), (50, 32768), (99, 704), (100, 64)] {
        let block = block(&Contents::new(3, 65536, percent), 5);
        let words: Vec<&[u8]> = block.chunks(8).collect();
        let (noisy, repeated) = words.split_at(noise / 8);
        assert!(
            repeated.iter().all(|word| *word == repeated[0]),
            "{percent}"
        );
        let different: HashSet<_> = noisy.iter().collect();
        assert_eq!(different.len(), noisy.len(), "{percent}");
        // Every bit of the noise is as often one as zero.
        let ones: u32 = noisy.concat().iter().map(|byte| byte.count_ones()).sum();
        let bits = noise as f64 * 8.0;
        let off = (f64::from(ones) - bits / 2.0) / (bits / 4.0).sqrt();
        assert!(off.abs() < 3.5, "{percent}: {off}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_block_is_its_content_and_no_changed_one_is(
        seed: u64, id: u64, power in 9..21_u32, percent in 0..=100_u8,
        at: prop::sample::Index, bit in 0..8_u32,
    ) {
        let contents = Contents::new(seed, 1 << power, percent);
        let mut block = block(&contents, id);
        prop_assert!(contents.is(id, &block));
        prop_assert_eq!(contents.recognise(&block), Some(id));
        prop_assert!(!contents.is(id ^ 1, &block));
        prop_assert!(!contents.is(id, &block[1..]));
        prop_assert!(!Contents::new(!seed, 1 << power, percent).is(id, &block));
        block[at.index(1 << power)] ^= 1 << bit;
        prop_assert!(!contents.is(id, &block));
        prop_assert_eq!(contents.recognise(&block), None);
    }
}
