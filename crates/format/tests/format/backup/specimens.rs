//! A specimen of each structure of a repository.

use onefold_format::backup::key::WRAPPED_BYTES;
use onefold_format::backup::pack::TRAILER_BYTES;
use onefold_format::backup::recipe::{BLOCKS_PER_RECIPE_PAGE, decode_page, encode_page};
use onefold_format::backup::{
    BackupNumber, ChangedBy, Closed, Condemned, Counts, Damage, DamagedPack, Derivation, Label,
    Lease, LeaseName, MachineId, Manifest, NumberRun, ObjectHeader, ObjectName, Origin,
    PackReference, PackTable, PackTrailer, PoolSnapshot, ProcessId, RecipeRun, RepositoryId,
    RepositoryObject, Sealing, Slot, Source, SourceId, StoredGroup, TAG_BYTES, TableCopy, Target,
    Witness, WrappedKey, Writers,
};
use onefold_format::{FormatError, VolumeId};

use crate::samples::POOL;

pub(super) const REPOSITORY: RepositoryId = RepositoryId(*b"a repository id.");

pub(super) fn header() -> ObjectHeader {
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

pub(super) fn repository() -> RepositoryObject {
    RepositoryObject {
        id: REPOSITORY,
        sealing: Sealing::Encrypted,
        writers: Writers::One,
        created_unix_seconds: 1_800_000_000,
    }
}

pub(super) fn key() -> WrappedKey {
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

pub(super) fn trailer() -> PackTrailer {
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

pub(super) fn manifest() -> Manifest {
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

pub(super) fn damage() -> Damage {
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

pub(super) fn specimens() -> Vec<Specimen> {
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
