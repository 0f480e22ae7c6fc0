//! The body of a batch page.
#![no_main]

use libfuzzer_sys::fuzz_target;
use onefold_format::batch_page;
use onefold_format::page::{BODY, blank};
use onefold_fuzz::{assert_same_page, page_from};

fuzz_target!(|bytes: &[u8]| {
    let mut page = page_from(&[]);
    for (to, from) in page.iter_mut().skip(BODY).zip(bytes) {
        *to = *from;
    }
    if let Ok(decoded) = batch_page::decode(&page) {
        let mut again = blank();
        batch_page::encode(&decoded, &mut again);
        assert_same_page(&page, &again);
    }
});
