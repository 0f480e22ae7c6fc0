//! A page of the part `scrub`, unchanged and with a valid checksum.
#![no_main]

use libfuzzer_sys::fuzz_target;
use onefold_format::page::{PageHeader, PageKind};
use onefold_format::{PageNumber, PoolId, ScrubPage, scrub_page};
use onefold_fuzz::{assert_same_page, page_from, sealed_page_from};

fuzz_target!(|bytes: &[u8]| {
    let pool = PoolId([7; 16]);
    let header = PageHeader {
        kind: PageKind::Scrub,
        level: 0,
        pool,
        page: PageNumber(64),
        owner: 0,
        index: 0,
        sequence: 1,
    };
    let _ = ScrubPage::decode(&page_from(bytes), pool, PageNumber(64));
    let sealed = sealed_page_from(bytes, &header);
    if let Ok(page) = ScrubPage::decode(&sealed, pool, PageNumber(64))
        && page.pages() == 1
    {
        let again = scrub_page::encode(page.sequence, &page.progress, &page.listed, pool);
        assert_same_page(&sealed, &again[0]);
    }
});
