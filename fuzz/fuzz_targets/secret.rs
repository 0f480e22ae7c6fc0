//! The pool's secret, unchanged and with a valid checksum.
#![no_main]

use libfuzzer_sys::fuzz_target;
use onefold_format::page::{PageHeader, PageKind};
use onefold_format::{PageNumber, PoolId, Secret};
use onefold_fuzz::{assert_same_page, page_from, sealed_page_from};

fuzz_target!(|bytes: &[u8]| {
    let pool = PoolId([7; 16]);
    let header = PageHeader {
        kind: PageKind::Secret,
        level: 0,
        pool,
        page: PageNumber(0),
        owner: 0,
        index: 0,
        sequence: 0,
    };
    let _ = Secret::decode(&page_from(bytes), pool);
    let sealed = sealed_page_from(bytes, &header);
    if let Ok(secret) = Secret::decode(&sealed, pool) {
        assert_same_page(&sealed, &secret.encode(pool));
    }
});
