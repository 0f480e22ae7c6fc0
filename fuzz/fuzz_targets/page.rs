//! The header that every page carries, valid or not.
#![no_main]

use libfuzzer_sys::fuzz_target;
use onefold_format::page::{self, PageHeader, PageKind};
use onefold_format::{PageNumber, PoolId};
use onefold_fuzz::page_from;

fuzz_target!(|input: (u64, u64, u64, u64, u8, Vec<u8>)| {
    let (number, owner, index, sequence, level, bytes) = input;
    let pool = PoolId([7; 16]);
    let header = PageHeader {
        kind: PageKind::Map,
        level,
        pool,
        page: PageNumber(number),
        owner,
        index,
        sequence,
    };
    let mut page = page_from(&bytes);
    // Anything may fail here, and nothing may panic.
    let _ = page::open(
        &page,
        &PageHeader {
            pool: page::claimed_pool(&page),
            ..header
        },
    );
    let _ = page::is_of_later_minor(&page);
    let checksum = page::seal(&mut page, &header);
    assert_eq!(page::open(&page, &header), Ok((sequence, checksum)));
    // A changed bit must always be detected.
    let at = usize::try_from(index).unwrap_or(0) % page.len();
    page[at] ^= 1 << (level % 8);
    assert!(page::open(&page, &header).is_err());
});
