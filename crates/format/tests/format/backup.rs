//! The structures of a repository: round trips, damage, pages, and bytes that stay readable for
//! ever.

use std::collections::BTreeSet;
use std::path::PathBuf;

use onefold_format::FormatError;
use onefold_format::backup::cache::CACHED_PACK_BYTES;
use onefold_format::backup::key::WRAPPED_BYTES;
use onefold_format::backup::pack::{BLOCKS_PER_GROUP, BLOCKS_PER_PACK, TRAILER_BYTES};
use onefold_format::backup::recipe::{
    BLOCKS_PER_RECIPE_PAGE, NUMBER_END, decode_page, encode_page,
};
use onefold_format::backup::{
    BackupNumber, CacheHeader, CachedPack, ChangedBy, Closed, Condemned, Counts, Damage,
    DamagedPack, Derivation, Label, Lease, LeaseName, MachineId, Manifest, NumberRun, ObjectHeader,
    ObjectName, Origin, PackReference, PackTable, PackTrailer, PoolSnapshot, ProcessId, RecipeRun,
    RepositoryId, RepositoryObject, Sealing, Slot, Source, SourceId, StoredGroup, TAG_BYTES,
    TableCopy, Target, Witness, WrappedKey, Writers, packs_of,
};
use onefold_format::{PoolId, VolumeId};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::documents::{Trial, check, crc_without, table};
use crate::samples::POOL;

const REPOSITORY: RepositoryId = RepositoryId(*b"a repository id.");

fn header() -> ObjectHeader {
    ObjectHeader {
        repository: REPOSITORY,
        name: ObjectName::Pack {
            source: SourceId(0x1122_3344_5566_7788),
            number: 77,
            generation: 3,
        },
        salt: *b"sixteen of salt.",
    }
}

fn repository() -> RepositoryObject {
    RepositoryObject {
        id: REPOSITORY,
        sealing: Sealing::Encrypted,
        writers: Writers::One,
        created_unix_seconds: 1_800_000_000,
    }
}

fn key() -> WrappedKey {
    WrappedKey {
        number: 0x99aa_bbcc_ddee_ff00,
        derivation: Derivation::Passphrase {
            memory_kib: 65_536,
            passes: 3,
            lanes: 1,
        },
        salt: *b"salt of the key.",
        is_recovery: false,
        created_unix_seconds: 1_800_000_001,
        wrapped: [0x5a; WRAPPED_BYTES],
    }
}

fn source() -> Source {
    Source {
        name: "web".to_owned(),
        domain: "customers".to_owned(),
        block_size: 4096,
        origin: Some(Origin::Volume {
            pool: POOL,
            volume: VolumeId(12),
        }),
    }
}

fn label() -> Label {
    Label {
        name: "shop".to_owned(),
        origin: Some(Origin::File {
            machine: MachineId(*b"a hashed machine"),
            path: "/disks/shop.raw".to_owned(),
        }),
    }
}

fn pack_table() -> PackTable {
    let slot = |n: u8| match n % 7 {
        3 => Slot::Gone,
        5 => Slot::Lost([n; 16]),
        6 => Slot::Moved {
            fingerprint: [n; 16],
            number: u64::from(n / 20) << 40 | u64::from(n),
        },
        _ => Slot::Stored([n; 16]),
    };
    let popular = |n: u8| PackReference {
        number: u64::from(n) << 26,
        witness: Witness([n; 16]),
    };
    PackTable {
        block_size: 4096,
        witness: Witness(*b"that pack alone."),
        groups: vec![
            StoredGroup {
                bytes: 70_000,
                is_compressed: true,
            },
            StoredGroup {
                bytes: 4096 + TAG_BYTES as u32,
                is_compressed: false,
            },
        ],
        slots: (1..=65).map(slot).collect(),
        popular_packs: (0..4).map(popular).collect(),
    }
}

fn trailer() -> PackTrailer {
    PackTrailer {
        groups: 2,
        table_at: 74_272,
        table_bytes: 1_161,
    }
}

fn runs() -> Vec<RecipeRun> {
    let run = |blocks, target| RecipeRun { blocks, target };
    vec![
        run(3, Target::Zeros),
        run(10, Target::Own(1000)),
        run(4, Target::Popular(1 << 50)),
        run(2, Target::Own(5)),
        run(1, Target::Own(7_000_000)),
        run(9, Target::Popular((1 << 50) + 4)),
        run(BLOCKS_PER_RECIPE_PAGE - 29, Target::Zeros),
    ]
}

fn manifest() -> Manifest {
    Manifest {
        size_bytes: 200 << 20,
        block_size: 4096,
        changed_by: ChangedBy::Layers,
        unix_seconds: 1_800_000_002,
        parent: Some(BackupNumber(6)),
        base: Some(PoolSnapshot {
            pool: POOL,
            volume: VolumeId(12),
            snapshot: VolumeId(34),
        }),
        counts: Counts {
            logical_blocks: 40_000,
            read_blocks: 500,
            new_blocks: 300,
            stored_bytes: 700_000,
            popular_blocks: 9_000,
        },
        recipe: Witness(*b"witness of rcp 6"),
        recipe_pages: vec![300, 0],
        own: vec![
            NumberRun {
                first: 16_384,
                blocks: 300,
            },
            NumberRun {
                first: 32_768,
                blocks: 7,
            },
        ],
        popular: vec![NumberRun {
            first: 1 << 50,
            blocks: 9_000,
        }],
        own_packs: vec![
            PackReference {
                number: 1,
                witness: Witness(*b"witness of pack1"),
            },
            PackReference {
                number: 2,
                witness: Witness(*b"witness of pack2"),
            },
        ],
        popular_packs: vec![PackReference {
            number: 1 << 36,
            witness: Witness(*b"a popular one's."),
        }],
        host: "kvm-1".to_owned(),
        snapshot: "monday".to_owned(),
        tags: vec!["before the update".to_owned()],
    }
}

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

fn lease() -> Lease {
    Lease {
        holder: ProcessId {
            boot: *b"boot of a host..",
            namespace: 4_026_531_836,
            process: 1234,
            started: 987_654,
        },
        since_unix_seconds: 1_800_000_003,
        host: "host-1".to_owned(),
        doing: "backup create".to_owned(),
    }
}

fn condemned() -> Condemned {
    Condemned {
        since_unix_seconds: 1_800_000_004,
        numbers: vec![
            NumberRun {
                first: 1 << 50,
                blocks: 3,
            },
            NumberRun {
                first: (1 << 50) + 10,
                blocks: 200,
            },
        ],
        before: Some(vec![LeaseName {
            source: SourceId(0x1122_3344_5566_7788),
            holder: 0x0123_4567_89ab_cdef,
        }]),
    }
}

fn closed() -> Closed {
    Closed {
        unix_seconds: 1_800_000_005,
        next_pack: 42,
        backups: vec![1..5, 7..8, 1000..1200],
    }
}

fn table_copy() -> TableCopy {
    TableCopy {
        header: header().encode(),
        table: pack_table(),
    }
}

fn damage() -> Damage {
    let run = |first, blocks| NumberRun { first, blocks };
    let pack = |number, witness: &[u8; 16], blocks| DamagedPack {
        pack: PackReference {
            number,
            witness: Witness(*witness),
        },
        blocks,
    };
    Damage {
        unix_seconds: 1_800_000_006,
        packs: vec![
            pack(3, b"the older one's.", vec![run(0, 64), run(130, 1)]),
            pack(3, b"the younger's...", vec![run(16_320, 64)]),
            pack(1 << 36, b"a popular one's.", vec![run(7, 1)]),
        ],
    }
}

/// A structure's name, its bytes, and the result of decoding arbitrary bytes as it.
type Specimen = (
    &'static str,
    Vec<u8>,
    fn(&[u8]) -> Result<String, FormatError>,
);

fn specimens() -> Vec<Specimen> {
    vec![
        ("object", header().encode().to_vec(), |bytes| {
            let bytes = bytes
                .try_into()
                .map_err(|_| FormatError::Short { needed: 80, got: 0 })?;
            ObjectHeader::decode(bytes, header().name, Some(REPOSITORY))
                .map(|decoded| format!("{decoded:#?}"))
        }),
        ("repository", repository().encode().to_vec(), |bytes| {
            RepositoryObject::decode(bytes).map(|decoded| format!("{decoded:#?}"))
        }),
        ("key", key().encode(REPOSITORY).to_vec(), |bytes| {
            WrappedKey::decode(bytes, key().number, REPOSITORY)
                .map(|decoded| format!("{decoded:#?}"))
        }),
        ("source", source().encode(), |bytes| {
            Source::decode(bytes).map(|decoded| format!("{decoded:#?}"))
        }),
        ("label", label().encode(), |bytes| {
            Label::decode(bytes).map(|decoded| format!("{decoded:#?}"))
        }),
        ("pack_trailer", trailer().encode().to_vec(), |bytes| {
            let short = FormatError::Short {
                needed: TRAILER_BYTES,
                got: 0,
            };
            let bytes = bytes.try_into().map_err(|_| short)?;
            PackTrailer::decode(bytes).map(|decoded| format!("{decoded:#?}"))
        }),
        ("pack_table", pack_table().encode(), |bytes| {
            PackTable::decode(bytes).map(|decoded| format!("{decoded:#?}"))
        }),
        ("recipe", encode_page(&runs()), |bytes| {
            decode_page(bytes, BLOCKS_PER_RECIPE_PAGE).map(|decoded| format!("{decoded:#?}"))
        }),
        ("manifest", manifest().encode(), |bytes| {
            Manifest::decode(bytes).map(|decoded| format!("{decoded:#?}"))
        }),
        ("lease", lease().encode(), |bytes| {
            Lease::decode(bytes).map(|decoded| format!("{decoded:#?}"))
        }),
        ("condemned", condemned().encode(), |bytes| {
            Condemned::decode(bytes).map(|decoded| format!("{decoded:#?}"))
        }),
        ("closed", closed().encode(), |bytes| {
            Closed::decode(bytes).map(|decoded| format!("{decoded:#?}"))
        }),
        ("table", table_copy().encode(), |bytes| {
            TableCopy::decode(bytes).map(|decoded| format!("{decoded:#?}"))
        }),
        ("damage", damage().encode(), |bytes| {
            Damage::decode(bytes).map(|decoded| format!("{decoded:#?}"))
        }),
    ]
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

macro_rules! page {
    ($name:literal) => {
        include_str!(concat!("../../../../docs/format/backup/", $name, ".md"))
    };
}

#[test]
fn object_document() {
    let plain = ObjectHeader {
        repository: RepositoryId([0; 16]),
        name: ObjectName::Pack {
            source: SourceId(0),
            number: 0,
            generation: 0,
        },
        salt: [0; 16],
    };
    let bytes = |header: ObjectHeader| {
        let mut bytes = header.encode().to_vec();
        bytes[76..].fill(0);
        bytes
    };
    let named = |source, number, generation| {
        let name = ObjectName::Pack {
            source: SourceId(source),
            number,
            generation,
        };
        Trial::Whole(bytes(plain), bytes(ObjectHeader { name, ..plain }))
    };
    let repository = RepositoryId([255; 16]);
    let trials = vec![
        ("magic", Trial::Is(b"1FBO".to_vec())),
        ("major", Trial::Is(vec![2])),
        ("minor", Trial::Is(vec![0])),
        ("kind", Trial::Is(vec![4])),
        (
            "repository",
            Trial::Whole(
                bytes(plain),
                bytes(ObjectHeader {
                    repository,
                    ..plain
                }),
            ),
        ),
        ("source", named(u64::MAX, 0, 0)),
        ("number", named(0, u64::MAX, 0)),
        ("generation", named(0, 0, u32::MAX)),
        (
            "salt",
            Trial::Whole(
                bytes(plain),
                bytes(ObjectHeader {
                    salt: [255; 16],
                    ..plain
                }),
            ),
        ),
        (
            "checksum",
            Trial::Is(crc_without(&header().encode(), 76..80)),
        ),
    ];
    check(
        &table(page!("object"), "Object"),
        &header().encode(),
        trials,
        |at| {
            let mut bytes = header().encode().to_vec();
            bytes[at] |= 1;
            let checksum = crc_without(&bytes, 76..80);
            bytes[76..].copy_from_slice(&checksum);
            let bytes: [u8; 80] = bytes.try_into().expect("a header");
            let refused = ObjectHeader::decode(&bytes, header().name, Some(REPOSITORY));
            matches!(refused, Err(FormatError::Reserved { .. }))
        },
    );
}

/// Replaces the checksum at `at`, which covers all bytes before it.
fn resealed(mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
    bytes[at] |= 1;
    let end = bytes.len() - 4;
    let checksum = crc32c::crc32c(&bytes[..end]).to_le_bytes();
    bytes[end..].copy_from_slice(&checksum);
    bytes
}

#[test]
fn repository_document() {
    let sample = repository().encode().to_vec();
    let trials = vec![
        ("object header", Trial::Elsewhere),
        ("sealing", Trial::Is(vec![1])),
        ("writers", Trial::Is(vec![1])),
        (
            "created",
            Trial::Is(1_800_000_000_u64.to_le_bytes().to_vec()),
        ),
        (
            "checksum",
            Trial::Is(crc32c::crc32c(&sample[..124]).to_le_bytes().to_vec()),
        ),
    ];
    check(
        &table(page!("repository"), "Repository"),
        &sample,
        trials,
        |at| {
            let refused = RepositoryObject::decode(&resealed(sample.clone(), at));
            matches!(refused, Err(FormatError::Reserved { .. }))
        },
    );
}

#[test]
fn key_document() {
    let sample = key().encode(REPOSITORY).to_vec();
    let key_file = |is_recovery| {
        let key = WrappedKey {
            derivation: Derivation::KeyFile,
            is_recovery,
            ..key()
        };
        let read = WrappedKey::decode(&key.encode(REPOSITORY), key.number, REPOSITORY);
        assert_eq!(read.as_ref(), Ok(&key));
        // The bytes that the checksum covers.
        key.encode(REPOSITORY)[..172].to_vec()
    };
    let trials = vec![
        ("object header", Trial::Elsewhere),
        ("derivation", Trial::Is(vec![1])),
        ("recovery", Trial::Whole(key_file(false), key_file(true))),
        ("memory", Trial::Is(65_536_u32.to_le_bytes().to_vec())),
        ("passes", Trial::Is(3_u32.to_le_bytes().to_vec())),
        ("lanes", Trial::Is(1_u32.to_le_bytes().to_vec())),
        ("salt", Trial::Is(b"salt of the key.".to_vec())),
        (
            "created",
            Trial::Is(1_800_000_001_u64.to_le_bytes().to_vec()),
        ),
        ("wrapped", Trial::Is(vec![0x5a; WRAPPED_BYTES])),
        (
            "checksum",
            Trial::Is(crc32c::crc32c(&sample[..172]).to_le_bytes().to_vec()),
        ),
    ];
    check(&table(page!("key"), "Key"), &sample, trials, |at| {
        let refused = WrappedKey::decode(&resealed(sample.clone(), at), key().number, REPOSITORY);
        matches!(refused, Err(FormatError::Reserved { .. }))
    });
}

#[test]
fn cache_header_document() {
    let packs = [7; CACHED_PACK_BYTES];
    let header = CacheHeader {
        repository: RepositoryId(*b"a repository's i"),
        store: SourceId(0x0102_0304_0506_0708),
        rows: 9_876_543_210,
        packs: 1,
    };
    let sample = header.encode(&packs);
    CacheHeader::check(&sample, &packs).expect("its own packs");
    let other = CacheHeader::check(&sample, &[8; CACHED_PACK_BYTES]);
    assert!(matches!(other, Err(FormatError::Checksum { .. })));
    assert_eq!(CacheHeader::decode(&sample), Ok(header));
    let mut covered = sample.to_vec();
    covered[60..].fill(0);
    covered.extend(packs);
    let checksum = crc32c::crc32c(&covered).to_le_bytes().to_vec();
    let trials = vec![
        ("magic", Trial::Is(b"1FTC".to_vec())),
        ("version", Trial::Is(vec![1, 0, 0, 0])),
        ("repository", Trial::Is(b"a repository's i".to_vec())),
        ("store", Trial::Is(vec![8, 7, 6, 5, 4, 3, 2, 1])),
        ("rows", Trial::Is(9_876_543_210_u64.to_le_bytes().to_vec())),
        ("packs", Trial::Is(vec![1, 0, 0, 0])),
        ("checksum", Trial::Is(checksum)),
    ];
    check(
        &table(page!("cache"), "Cache header"),
        &sample,
        trials,
        |at| {
            let mut bytes = sample;
            bytes[at] |= 1;
            matches!(
                CacheHeader::decode(&bytes),
                Err(FormatError::Reserved { .. })
            )
        },
    );
}

#[test]
fn cached_pack_document() {
    let pack = CachedPack {
        pack: PackReference {
            number: 0x0102_0304,
            witness: Witness(*b"witness of packs"),
        },
        generation: 258,
        stored_bytes: 9_876_543_210,
        table_at: 8_765_432_109,
        table_bytes: 772,
        table_checksum: CachedPack::checksum_of(b"a table"),
    };
    let sample = pack.encode();
    assert_eq!(CachedPack::decode(&sample), Ok(pack));
    pack.check_table(b"a table").expect("its own table");
    pack.check_table(b"a tablet").expect_err("another table");
    let trials = vec![
        ("number", Trial::Is(vec![4, 3, 2, 1, 0, 0, 0, 0])),
        ("generation", Trial::Is(vec![2, 1, 0, 0])),
        ("table bytes", Trial::Is(vec![4, 3, 0, 0])),
        ("witness", Trial::Is(b"witness of packs".to_vec())),
        (
            "stored bytes",
            Trial::Is(9_876_543_210_u64.to_le_bytes().to_vec()),
        ),
        (
            "table at",
            Trial::Is(8_765_432_109_u64.to_le_bytes().to_vec()),
        ),
        (
            "table checksum",
            Trial::Is(crc32c::crc32c(b"a table").to_le_bytes().to_vec()),
        ),
    ];
    check(
        &table(page!("cache"), "Cached pack"),
        &sample,
        trials,
        |at| {
            let mut bytes = sample;
            bytes[at] |= 1;
            matches!(
                CachedPack::decode(&bytes),
                Err(FormatError::Reserved { .. })
            )
        },
    );
}

#[test]
fn pack_trailer_document() {
    let sample = trailer().encode().to_vec();
    let trials = vec![
        ("magic", Trial::Is(b"1FPT".to_vec())),
        ("groups", Trial::Is(2_u32.to_le_bytes().to_vec())),
        ("table at", Trial::Is(74_272_u64.to_le_bytes().to_vec())),
        ("table", Trial::Is(1_161_u32.to_le_bytes().to_vec())),
        ("checksum", Trial::Is(crc_without(&sample, 28..32))),
    ];
    check(
        &table(page!("pack"), "Pack trailer"),
        &sample,
        trials,
        |at| {
            let mut bytes = sample.clone();
            bytes[at] |= 1;
            let checksum = crc_without(&bytes, 28..32);
            bytes[28..].copy_from_slice(&checksum);
            let bytes: [u8; TRAILER_BYTES] = bytes.try_into().expect("a trailer");
            matches!(
                PackTrailer::decode(&bytes),
                Err(FormatError::Reserved { .. })
            )
        },
    );
}

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
