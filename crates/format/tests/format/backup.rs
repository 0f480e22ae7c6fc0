//! The structures of a repository: round trips, damage, pages, and bytes that stay readable for
//! ever.

mod documents;
mod round_trip;
mod specimens;

use std::path::PathBuf;

use onefold_format::FormatError;
use onefold_format::backup::{
    BackupNumber, Damage, NumberRun, ObjectHeader, ObjectName, RepositoryId, SourceId, packs_of,
};

use crate::documents::crc_without;
use specimens::{REPOSITORY, damage, header, specimens};

#[test]
fn the_packs_of_numbers_are_named_once() {
    let run = |first, blocks| NumberRun { first, blocks };
    let packs = |runs: &[NumberRun]| packs_of(runs).collect::<Vec<_>>();
    assert!(packs(&[]).is_empty());
    assert_eq!(packs(&[run(0, 1), run(5, 2), run(16_383, 1)]), [0]);
    assert_eq!(packs(&[run(16_383, 2), run(20_000, 1)]), [0, 1]);
    assert_eq!(packs(&[run(10, 40_000), run(49_152, 1)]), [0, 1, 2, 3]);
    assert_eq!(packs(&[run(3, 1), run(163_840, 1)]), [0, 10]);
}

#[test]
fn golden_repository_structures() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/repository-v2");
    let is_written = std::env::var_os("ONEFOLD_WRITE_GOLDEN").is_some_and(|set| set == "1");
    for (name, bytes, decode) in specimens() {
        let (bin, txt) = (format!("{name}.bin"), format!("{name}.txt"));
        let text = decode(&bytes).expect("a specimen can be read") + "\n";
        if is_written {
            std::fs::create_dir_all(&folder).expect("the folder can be made");
            std::fs::write(folder.join(&bin), &bytes).expect("the golden bytes can be written");
            std::fs::write(folder.join(&txt), &text).expect("the golden text can be written");
        }
        let kept = std::fs::read(folder.join(&bin)).expect("the golden bytes are there");
        assert!(kept == bytes, "{name} is written otherwise");
        let kept = std::fs::read_to_string(folder.join(&txt)).expect("the golden text is there");
        assert_eq!(kept, text, "what {name} means");
    }
}

/// Whatever is cut or changed, decoding never panics, and plain structures are refused.
#[test]
fn damage_of_repository_structures_is_refused_or_harmless() {
    for (name, bytes, decode) in specimens() {
        let whole = decode(&bytes).expect("a specimen can be read");
        for len in 0..bytes.len() {
            let cut = decode(&bytes[..len]);
            assert!(name == "recipe" || cut.is_err(), "{name} cut to {len}");
        }
        let has_checksum = ["object", "repository", "key", "pack_trailer"].contains(&name);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut bad = bytes.clone();
                bad[at] ^= 1 << bit;
                let read = decode(&bad);
                assert!(
                    !has_checksum || read.is_err(),
                    "{name}, byte {at}, bit {bit}"
                );
                // Sealing refuses these before they are decoded; nevertheless each value has only one
                // form.
                assert_ne!(
                    read.ok(),
                    Some(whole.clone()),
                    "{name}, byte {at}, bit {bit}"
                );
            }
        }
    }
}

#[test]
fn damage_is_of_packs_in_order_and_of_blocks_that_they_can_have() {
    let decode = |change: fn(&mut Damage)| {
        let mut changed = damage();
        change(&mut changed);
        Damage::decode(&changed.encode())
    };
    assert_eq!(decode(|_| ()), Ok(damage()));
    let refused: [fn(&mut Damage); 5] = [
        |damage| damage.packs.swap(0, 1),
        |damage| damage.packs[1] = damage.packs[0].clone(),
        |damage| damage.packs[0].blocks.clear(),
        |damage| damage.packs[1].blocks[0].blocks += 1,
        |damage| damage.packs[2].pack.number = 1 << 48,
    ];
    for (n, change) in refused.into_iter().enumerate() {
        let refused = decode(change);
        assert!(
            matches!(refused, Err(FormatError::Field { .. })),
            "{n}: {refused:?}"
        );
    }
}

#[test]
fn an_object_under_another_name_is_refused() {
    let bytes = header().encode();
    let ObjectName::Pack {
        source,
        number,
        generation,
    } = header().name
    else {
        unreachable!("the specimen is a pack");
    };
    let pack = |source, number, generation| ObjectName::Pack {
        source,
        number,
        generation,
    };
    for other in [
        pack(SourceId(1), number, generation),
        pack(source, number + 1, generation),
        pack(source, number, generation + 1),
        ObjectName::Recipe(source, BackupNumber(number)),
    ] {
        let refused = ObjectHeader::decode(&bytes, other, Some(REPOSITORY));
        assert!(
            matches!(refused, Err(FormatError::Address { .. })),
            "{other:?}"
        );
    }
    let mut of_before = bytes;
    of_before[4] = 1;
    let checksum = crc_without(&of_before, 76..80);
    of_before[76..].copy_from_slice(&checksum);
    let refused = ObjectHeader::decode(&of_before, header().name, Some(REPOSITORY));
    assert_eq!(refused, Err(FormatError::Older { major: 1, minor: 0 }));
    let elsewhere = ObjectHeader::decode(&bytes, header().name, Some(RepositoryId([1; 16])));
    assert_eq!(elsewhere, Err(FormatError::Repository));
}
