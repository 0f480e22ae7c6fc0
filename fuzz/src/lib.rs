//! The common parts of the fuzz targets.
//!
//! Each target checks two properties of a decoder: no bytes make it panic, and all bytes that it accepts are exactly
//! the encoder's output. The second finds fields that are not checked.

use onefold_format::page::{self, PAGE_BYTES, PageBytes, PageHeader};

/// A page that begins with these bytes; the rest is zeros.
pub fn page_from(bytes: &[u8]) -> Box<PageBytes> {
    let mut page = page::blank();
    for (to, from) in page.iter_mut().zip(bytes) {
        *to = *from;
    }
    page
}

/// A page with these bytes under a valid header, so that the fuzzer gets past the checksum.
pub fn sealed_page_from(bytes: &[u8], header: &PageHeader) -> Box<PageBytes> {
    let mut page = page::blank();
    let body = page.iter_mut().skip(page::BODY);
    for (to, from) in body.zip(bytes) {
        *to = *from;
    }
    page::seal(&mut page, header);
    page
}

/// Gives a sealed page another minor version.
pub fn reseal_as(page: &mut PageBytes, minor: u8) {
    page[6] = minor;
    page[60..64].fill(0);
    let checksum = crc32c::crc32c(page);
    page[60..64].copy_from_slice(&checksum.to_le_bytes());
}

/// Fails if the encoder would have written another page.
pub fn assert_same_page(decoded: &PageBytes, encoded: &PageBytes) {
    if let Some(at) = (0..PAGE_BYTES).find(|&at| decoded[at] != encoded[at]) {
        panic!(
            "byte {at} is {:#04x} and would be {:#04x}",
            decoded[at], encoded[at]
        );
    }
}
