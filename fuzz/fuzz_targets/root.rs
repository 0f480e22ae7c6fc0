//! A root, unchanged and with a valid checksum.
#![no_main]

use libfuzzer_sys::fuzz_target;
use onefold_format::page::{PageHeader, PageKind};
use onefold_format::{PageNumber, PoolId, Root};
use onefold_fuzz::{assert_same_page, page_from, sealed_page_from};

fuzz_target!(|input: (u64, u8, &[u8])| {
    let (sequence, slot, bytes) = input;
    let (pool, slot) = (PoolId([7; 16]), PageNumber(u64::from(slot % 4)));
    let _ = Root::decode(&page_from(bytes), pool, slot);
    let header = PageHeader {
        kind: PageKind::Root,
        level: 0,
        pool,
        page: slot,
        owner: 0,
        index: 0,
        sequence,
    };
    let sealed = sealed_page_from(bytes, &header);
    if let Ok(root) = Root::decode(&sealed, pool, slot) {
        assert_same_page(&sealed, &root.encode(pool));
    }
});
