//! The marks of an export, unchanged and with a valid checksum, and pages of trees that are identified only by their
//! own headers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use onefold_format::page::{self, PageHeader, PageKind};
use onefold_format::{ExportMark, PageNumber, PoolId};
use onefold_fuzz::{assert_same_page, page_from, sealed_page_from};

fuzz_target!(|input: (u64, u8, &[u8])| {
    let (place, level, bytes) = input;
    let pool = PoolId([7; 16]);
    let header = PageHeader {
        kind: PageKind::ExportMark,
        level: 0,
        pool,
        page: PageNumber(place),
        owner: 0,
        index: 0,
        sequence: 0,
    };
    let raw = page_from(bytes);
    let _ = ExportMark::decode(&raw, place);
    let _ = page::open_of_tree(&raw, pool);
    let sealed = sealed_page_from(bytes, &header);
    if let Ok(mark) = ExportMark::decode(&sealed, place) {
        assert_same_page(&sealed, &mark.encode());
    }
    let of_tree = PageHeader {
        kind: PageKind::Node,
        level,
        owner: place / 2,
        ..header
    };
    let sealed = sealed_page_from(bytes, &of_tree);
    if let Ok(said) = page::open_of_tree(&sealed, pool) {
        assert_eq!(said, of_tree);
    }
});
