//! The body of a catalogue page: any bytes, and a valid page with some bytes changed. The fuzzer
//! would rarely guess a whole volume record by itself.
#![no_main]

use libfuzzer_sys::fuzz_target;
use onefold_format::catalogue_page;
use onefold_format::page::{BODY, PageBytes, blank};
use onefold_format::{
    DomainId, LayerCounts, LayerId, PageNumber, Pointer, TreeRoot, VolumeId, VolumeRecord,
    VolumeSettings, VolumeState,
};
use onefold_fuzz::{assert_same_page, page_from};

/// A place in the first volume record, and a change to its byte.
type Change = (u8, u8);

fuzz_target!(|input: (Vec<Change>, &[u8])| {
    let (changes, bytes) = input;
    let mut page = page_from(&[]);
    for (to, from) in page.iter_mut().skip(BODY).zip(bytes) {
        *to = *from;
    }
    look_at(&page);
    let mut page = blank();
    catalogue_page::encode(&[Some(volume())], &mut page);
    for (place, change) in changes {
        page[BODY + usize::from(place)] ^= change;
        look_at(&page);
    }
});

/// Checks that every accepted page equals the encoder's output.
fn look_at(page: &PageBytes) {
    if let Ok(decoded) = catalogue_page::decode(page) {
        let mut again = blank();
        catalogue_page::encode(&decoded, &mut again);
        assert_same_page(page, &again);
    }
}

fn volume() -> VolumeRecord {
    let top = Pointer {
        page: PageNumber(9),
        info: 0,
        checksum: 0xc0de,
    };
    VolumeRecord {
        id: VolumeId(3),
        layer: LayerId(23),
        below: Some(LayerId(22)),
        snapshot_of: None,
        state: VolumeState::Ready,
        size_bytes: 1 << 30,
        created_unix_seconds: 1_700_000_000,
        map: TreeRoot {
            top: Some(top),
            levels: 2,
        },
        name: "web-1".to_owned(),
        domain: DomainId(2),
        domain_name: "tenant".to_owned(),
        settings: VolumeSettings {
            verify: true,
            hash_cache_bytes: 1 << 20,
            quota_bytes: 1 << 31,
            reservation_bytes: 1 << 29,
            ..VolumeSettings::default()
        },
        counts: LayerCounts {
            private: 3,
            unshareable: 2,
            shared: 1,
        },
    }
}
