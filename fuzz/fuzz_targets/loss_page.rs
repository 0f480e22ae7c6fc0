//! A page of the part `losses`, unchanged and with a valid checksum.
#![no_main]

use libfuzzer_sys::fuzz_target;
use onefold_format::page::{PageHeader, PageKind};
use onefold_format::{LossPage, PageNumber, PoolId};
use onefold_fuzz::{assert_same_page, page_from, sealed_page_from};

fuzz_target!(|bytes: &[u8]| {
    let pool = PoolId([7; 16]);
    let header = PageHeader {
        kind: PageKind::Losses,
        level: 0,
        pool,
        page: PageNumber(1),
        owner: 0,
        index: 0,
        sequence: 1,
    };
    let _ = LossPage::decode(&page_from(bytes), pool, PageNumber(1));
    let sealed = sealed_page_from(bytes, &header);
    if let Ok(page) = LossPage::decode(&sealed, pool, PageNumber(1))
        && page.pages() == 1
    {
        let again = page.part.encode(page.sequence, pool);
        assert_same_page(&sealed, &again[0].1);
    }
});
