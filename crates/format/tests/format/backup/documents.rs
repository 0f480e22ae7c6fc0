//! The tables of the structures of a repository.

use onefold_format::FormatError;
use onefold_format::backup::cache::CACHED_PACK_BYTES;
use onefold_format::backup::key::WRAPPED_BYTES;
use onefold_format::backup::pack::TRAILER_BYTES;
use onefold_format::backup::{
    CacheHeader, CachedPack, Derivation, ObjectHeader, ObjectName, PackReference, PackTrailer,
    RepositoryId, RepositoryObject, SourceId, Witness, WrappedKey,
};

use super::specimens::{REPOSITORY, header, key, repository, trailer};
use crate::documents::{Trial, check, crc_without, table};

macro_rules! page {
    ($name:literal) => {
        include_str!(concat!("../../../../../docs/format/backup/", $name, ".md"))
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
