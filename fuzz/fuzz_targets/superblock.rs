//! The superblock and the data part's label, unchanged and with a valid checksum.
#![no_main]

use libfuzzer_sys::fuzz_target;
use onefold_format::page::{PageHeader, PageKind};
use onefold_format::superblock::{Superblock, check_data_label, encode_data_label};
use onefold_format::{MINOR_OF_GROUPS, PageNumber, PoolId};
use onefold_fuzz::{assert_same_page, page_from, reseal_as, sealed_page_from};

fuzz_target!(|bytes: &[u8]| {
    let pool = PoolId([7; 16]);
    let header = PageHeader {
        kind: PageKind::Superblock,
        level: 0,
        pool,
        page: PageNumber(0),
        owner: 0,
        index: 0,
        sequence: 0,
    };
    let raw = page_from(bytes);
    let _ = Superblock::decode(&raw);
    let _ = check_data_label(&raw, pool);
    let sealed = sealed_page_from(bytes, &header);
    if let Ok(superblock) = Superblock::decode(&sealed) {
        assert_same_page(&sealed, &superblock.encode());
    }
    let mut of_group = sealed;
    reseal_as(&mut of_group, MINOR_OF_GROUPS);
    match Superblock::decode(&of_group) {
        Ok(superblock) if superblock.group.is_some() => {
            assert_same_page(&of_group, &superblock.encode());
        }
        _ => {}
    }
    let label = sealed_page_from(
        bytes,
        &PageHeader {
            kind: PageKind::DataLabel,
            ..header
        },
    );
    if check_data_label(&label, pool).is_ok() {
        assert_same_page(&label, &encode_data_label(pool));
    }
});
