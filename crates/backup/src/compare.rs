//! Compares the blocks of packs with their fingerprints.

use onefold_format::backup::pack::{BLOCKS_PER_GROUP, BLOCKS_PER_PACK};
use onefold_format::backup::{PackReference, SourceId};
use onefold_index::Key;
use onefold_repository::{KnownDamage, Pack};

use crate::error::Result;
use crate::verify::{Damage, damage};

/// Compares all blocks of a pack and records the damaged ones. Returns how many bytes were compared.
pub(crate) fn compare(
    pack: &Pack,
    key: &Key,
    store: SourceId,
    damages: &mut Vec<Damage>,
    found: &mut KnownDamage,
) -> Result<u64> {
    let reference = pack.reference();
    let PackReference { number, witness } = reference;
    let (first, witness) = (number * BLOCKS_PER_PACK, Some(witness));
    let mut compared = 0;
    for group in 0..pack.groups() {
        let start = first + (group * BLOCKS_PER_GROUP) as u64;
        match check_group(pack, group, key) {
            Ok((bytes, wrong)) => {
                compared += bytes;
                for n in wrong {
                    found.add(reference, n as u64);
                    let number = first + n as u64;
                    damages.push(Damage {
                        store,
                        numbers: number..number + 1,
                        witness,
                        message: format!(
                            "stored block {number} does not have the content that was stored"
                        ),
                    });
                }
            }
            Err(error) => {
                let message = damage(error)?;
                let of_group = pack.slots().iter().zip(0_u64..);
                let of_group = of_group
                    .skip(group * BLOCKS_PER_GROUP)
                    .take(BLOCKS_PER_GROUP);
                let stored = of_group.filter(|(slot, _)| slot.stored().is_some());
                stored.for_each(|(_, n)| found.add(reference, n));
                damages.push(Damage {
                    store,
                    numbers: start..start + BLOCKS_PER_GROUP as u64,
                    witness,
                    message,
                });
            }
        }
    }
    Ok(compared)
}

/// The bytes of a group, and which blocks of its pack do not match their fingerprints.
pub(crate) fn check_group(pack: &Pack, group: usize, key: &Key) -> Result<(u64, Vec<usize>)> {
    if !pack.has_any(group) {
        return Ok((0, Vec::new()));
    }
    let bytes = pack.read_group(group)?;
    let mut found = Vec::new();
    key.fingerprints(&bytes, pack.block_size() as usize, &mut found);
    let slots = pack.slots().iter().enumerate();
    let of_group = slots.skip(group * BLOCKS_PER_GROUP).take(BLOCKS_PER_GROUP);
    let stored = of_group.filter_map(|(n, slot)| Some((n, slot.stored()?)));
    let pairs = stored.zip(&found);
    let wrong = pairs.filter(|((_, wanted), found)| found.0 != *wanted);
    let wrong = wrong.map(|((n, _), _)| n).collect();
    Ok((bytes.len() as u64, wrong))
}
