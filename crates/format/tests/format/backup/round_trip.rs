//! Structures of a repository are read as they were written, and any bytes are read or refused.

use std::collections::BTreeSet;

use onefold_format::backup::pack::{BLOCKS_PER_GROUP, BLOCKS_PER_PACK};
use onefold_format::backup::recipe::{
    BLOCKS_PER_RECIPE_PAGE, NUMBER_END, decode_page, encode_page,
};
use onefold_format::backup::{
    BackupNumber, Counts, Manifest, NumberRun, PackReference, PackTable, PoolSnapshot, RecipeRun,
    Slot, StoredGroup, Target, Witness, packs_of,
};
use onefold_format::{PoolId, VolumeId};
use proptest::collection::vec;
use proptest::prelude::*;

use super::specimens::{manifest, specimens};

proptest! {
    #[test]
    fn recipe_pages_are_read_as_they_were_written(
        lengths in vec((1_u64..200, 0..3, 0_u64..1 << 40), 0..200),
    ) {
        let mut runs = Vec::new();
        for (blocks, kind, number) in lengths {
            let target = match kind {
                0 => Target::Zeros,
                1 => Target::Own(number),
                _ => Target::Popular(number),
            };
            RecipeRun { blocks, target }.push(&mut runs);
        }
        let blocks: u64 = runs.iter().map(|run| run.blocks).sum();
        prop_assert_eq!(decode_page(&encode_page(&runs), blocks), Ok(runs));
    }

    #[test]
    fn manifests_are_read_as_they_were_written(
        pages in vec(any::<u32>(), 0..20),
        numbers in vec((1_u64..1 << 30, 1_u64..1 << 20), 0..50),
        tags in vec(".{0,20}", 0..5),
        popular in vec((1_u64..1 << 30, 1_u64..1 << 20), 0..50),
        counts in any::<[u64; 5]>(),
        ids in proptest::option::of((1..=u128::MAX, 1..=u64::MAX, 1..=u64::MAX)),
        parent in any::<u64>(),
    ) {
        let runs = |numbers: Vec<(u64, u64)>| {
            let mut end = 0;
            let runs = numbers.into_iter().map(|(gap, blocks)| {
                let first = end + gap;
                end = first + blocks;
                NumberRun { first, blocks }
            });
            runs.collect()
        };
        let (own, popular): (Vec<_>, Vec<_>) = (runs(numbers), runs(popular));
        let packs = |runs: &[NumberRun]| {
            let packs = packs_of(runs);
            let packs = packs.map(|number| PackReference {
                number,
                witness: Witness(u128::from(number).to_le_bytes()),
            });
            packs.collect()
        };
        let [logical_blocks, read_blocks, new_blocks, stored_bytes, popular_blocks] = counts;
        let written = Manifest {
            size_bytes: pages.len() as u64 * BLOCKS_PER_RECIPE_PAGE * 4096,
            own_packs: packs(&own),
            popular_packs: packs(&popular),
            own,
            popular,
            recipe_pages: pages,
            tags,
            host: "kvm-1".to_owned(),
            snapshot: String::new(),
            counts: Counts { logical_blocks, read_blocks, new_blocks, stored_bytes, popular_blocks },
            base: ids.map(|(pool, volume, snapshot)| PoolSnapshot {
                pool: PoolId(pool.to_le_bytes()),
                volume: VolumeId(volume),
                snapshot: VolumeId(snapshot),
            }),
            parent: (parent > 0).then_some(BackupNumber(parent)),
            ..manifest()
        };
        prop_assert_eq!(Manifest::decode(&written.encode()), Ok(written));
    }

    #[test]
    fn pack_tables_are_read_as_they_were_written(
        slots in vec((0..4, any::<[u8; 16]>(), 0..NUMBER_END), 1..300),
        bytes in 16_u32..200_000,
        witness in any::<[u8; 16]>(),
    ) {
        let groups = slots.len().div_ceil(BLOCKS_PER_GROUP);
        let group = |n| StoredGroup { bytes: bytes + n as u32, is_compressed: n % 2 == 0 };
        let slots = slots.into_iter().map(|(kind, fingerprint, number)| match kind {
            0 => Slot::Gone,
            1 => Slot::Stored(fingerprint),
            2 => Slot::Lost(fingerprint),
            _ => Slot::Moved { fingerprint, number },
        });
        let slots: Vec<_> = slots.collect();
        let popular: BTreeSet<_> = slots.iter().filter_map(|slot| slot.moved()).collect();
        let mut popular: Vec<_> = popular.iter().map(|number| number / BLOCKS_PER_PACK).collect();
        popular.dedup();
        let popular = popular.into_iter();
        let popular = popular.map(|number| PackReference { number, witness: Witness(witness) });
        let written = PackTable {
            block_size: 4096,
            witness: Witness(witness),
            groups: (0..groups).map(group).collect(),
            slots,
            popular_packs: popular.collect(),
        };
        prop_assert_eq!(PackTable::decode(&written.encode()), Ok(written));
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..300)) {
        for (_, _, decode) in specimens() {
            let _ = decode(&bytes);
        }
    }
}
