//! The structures of a repository, both authenticated and unauthenticated ones.
#![no_main]

use libfuzzer_sys::fuzz_target;
use onefold_format::backup::recipe::{decode_page, encode_page};
use onefold_format::backup::{
    CacheHeader, CachedPack, Closed, Condemned, Damage, Label, Lease, Manifest, ObjectHeader, ObjectName, PackTable, PackTrailer, RepositoryId,
    RepositoryObject, Source, TableCopy, WrappedKey,
};

fuzz_target!(|input: (u8, u16, &[u8])| {
    let (kind, blocks, bytes) = input;
    match kind % 16 {
        0 => {
            if let Ok(read) = Manifest::decode(bytes) {
                assert_eq!(read.encode(), bytes, "{read:?} has one form");
            }
        }
        1 => {
            if let Ok(read) = PackTable::decode(bytes) {
                assert_eq!(read.encode(), bytes, "{read:?} has one form");
            }
        }
        2 => {
            if let Ok(read) = Source::decode(bytes) {
                assert_eq!(read.encode(), bytes, "{read:?} has one form");
            }
        }
        3 => {
            if let Ok(read) = decode_page(bytes, blocks.into()) {
                assert_eq!(encode_page(&read), bytes, "{read:?} has one form");
            }
        }
        4 => {
            if let Some((trailer, _)) = bytes.split_first_chunk() {
                let _ = PackTrailer::decode(trailer);
            }
        }
        5 => {
            if let Some((header, _)) = bytes.split_first_chunk() {
                let _ = ObjectHeader::decode(header, ObjectName::Key(blocks.into()), None);
            }
        }
        6 => {
            let _ = RepositoryObject::decode(bytes);
        }
        7 => {
            if let Ok(read) = Lease::decode(bytes) {
                assert_eq!(read.encode(), bytes, "{read:?} has one form");
            }
        }
        8 => {
            if let Ok(read) = Condemned::decode(bytes) {
                assert_eq!(read.encode(), bytes, "{read:?} has one form");
            }
        }
        9 => {
            if let Ok(read) = Closed::decode(bytes) {
                assert_eq!(read.encode(), bytes, "{read:?} has one form");
            }
        }
        10 => {
            if let Ok(read) = Label::decode(bytes) {
                assert_eq!(read.encode(), bytes, "{read:?} has one form");
            }
        }
        11 => {
            if let Ok(read) = Damage::decode(bytes) {
                assert_eq!(read.encode(), bytes, "{read:?} has one form");
            }
        }
        12 => {
            if let Ok(read) = TableCopy::decode(bytes) {
                assert_eq!(read.encode(), bytes, "{read:?} has one form");
            }
        }
        13 => {
            if let Some((header, packs)) = bytes.split_first_chunk() {
                let checked = CacheHeader::check(header, packs);
                if let (Ok(read), Ok(())) = (CacheHeader::decode(header), checked) {
                    assert_eq!(&read.encode(packs), header, "{read:?} has one form");
                }
            }
        }
        14 => {
            if let Some((pack, _)) = bytes.split_first_chunk()
                && let Ok(read) = CachedPack::decode(pack)
            {
                assert_eq!(&read.encode(), pack, "{read:?} has one form");
            }
        }
        _ => {
            let _ = WrappedKey::decode(bytes, blocks.into(), RepositoryId([0; 16]));
        }
    }
});
