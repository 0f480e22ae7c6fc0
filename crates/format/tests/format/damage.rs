//! Anything that no writer wrote is refused, and nothing panics.

use onefold_format::batch_page::{self};
use onefold_format::catalogue_page;
use onefold_format::frame::{self, FRAME_HEADER_BYTES};
use onefold_format::node::Node;
use onefold_format::page::{self, BODY, PAGE_BYTES, PageBytes, PageHeader, PageKind};
use onefold_format::superblock::check_data_label;
use onefold_format::{
    Entry, ExportMark, FormatError, LossPage, MAJOR_VERSION, MINOR_OF_GROUPS, MINOR_VERSION,
    PageNumber, PoolId, Record, Root, ScrubPage, Secret, Superblock,
};
use onefold_format::{map_page, queue_page, record, space_page};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::samples::{self, POOL, page, pages, read_frame, reseal, reseal_frame};

#[test]
fn every_flipped_bit_of_a_page_is_noticed() {
    for mut sample in pages() {
        for bit in 0..PAGE_BYTES * 8 {
            sample.page[bit / 8] ^= 1 << (bit % 8);
            let read = (sample.decode)(&sample.page);
            assert!(read.is_err(), "bit {bit} of {}", sample.name);
            sample.page[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!((sample.decode)(&sample.page), Ok(()));
    }
}

#[test]
fn every_flipped_bit_of_a_frame_is_noticed_or_padding() {
    let written = samples::frame();
    let used = FRAME_HEADER_BYTES + samples::payload().len();
    assert!(used < written.len(), "the sample has padding");
    let expected = read_frame(&written);
    for bit in 0..written.len() * 8 {
        let mut bytes = written.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let read = read_frame(&bytes);
        if bit / 8 < used {
            assert!(read.is_err(), "bit {bit}");
        } else {
            assert_eq!(read, expected, "bit {bit} is in the padding");
        }
    }
}

/// A version is not trusted before the checksum: otherwise one flipped bit would make a torn frame
/// one of a later release.
#[test]
fn a_flipped_version_of_a_frame_is_a_checksum_error() {
    let mut bytes = samples::frame();
    bytes[4] ^= 2;
    let read = read_frame(&bytes);
    assert!(
        matches!(read, Err(FormatError::Checksum { .. })),
        "{read:?}"
    );
}

#[test]
fn a_torn_page_is_noticed() {
    for sample in pages() {
        for sectors in 1..PAGE_BYTES / 512 {
            let mut torn = page::blank();
            torn[..sectors * 512].copy_from_slice(&sample.page[..sectors * 512]);
            let lost_something = torn != sample.page;
            let read = (sample.decode)(&torn);
            assert_eq!(
                read.is_err(),
                lost_something,
                "{sectors} of {}",
                sample.name
            );
            torn.copy_from_slice(&sample.page[..]);
            torn[..sectors * 512].fill(0);
            assert!(
                (sample.decode)(&torn).is_err(),
                "{sectors} of {}",
                sample.name
            );
        }
    }
}

const RESERVED_OF_ROOTS: &[std::ops::Range<usize>] = &[
    56..60,
    92..96,
    125..128,
    141..144,
    173..176,
    205..208,
    261..264,
    288..4088,
];

/// Bytes that must be zero, for each kind of page.
#[allow(
    clippy::single_range_in_vec_init,
    reason = "a list of ranges, not of their numbers"
)]
const RESERVED: &[(&str, &[std::ops::Range<usize>])] = &[
    ("superblock", &[56..60, 96..4096]),
    ("superblock_of_group", &[56..60, 96..4096]),
    ("data_label", &[56..60, 64..4096]),
    ("root", RESERVED_OF_ROOTS),
    ("root_of_group", RESERVED_OF_ROOTS),
    ("node", &[56..60, 3136..4096]),
    ("map_page", &[56..60, 3648..4096]),
    ("space_page", &[56..60, 2112..4096]),
    (
        "catalogue_page",
        &[
            56..60,
            64 + 53..64 + 56,
            64 + 128 + 5..64 + 192,
            64 + 192 + 8..64 + 256,
            3904..4096,
        ],
    ),
    ("queue_page", &[56..60]),
    // After the last item, except for the PBA that would make another one.
    ("batch_page", &[56..60, 3280..3288, 3293..4096]),
    ("secret", &[56..60, 96..4096]),
    ("export", &[56..60, 76..4096]),
    // After the third bad block, and at the end of each.
    (
        "scrub_page",
        &[56..60, 100..128, 155..160, 187..192, 219..4096],
    ),
    // After the fifth item.
    ("loss_page", &[56..60, 72..128, 208..4096]),
];

#[test]
fn reserved_bytes_are_refused_even_with_the_right_checksum() {
    assert_eq!(RESERVED.len(), pages().len());
    for (name, ranges) in RESERVED {
        let mut sample = page(name);
        for at in ranges.iter().cloned().flatten() {
            assert_eq!(sample.page[at], 0, "byte {at} of {name}");
            for value in [1, 0x80] {
                sample.page[at] = value;
                reseal(&mut sample.page);
                let read = (sample.decode)(&sample.page);
                let refused = matches!(read, Err(FormatError::Reserved { .. }));
                assert!(refused, "byte {at} of {name}: {read:?}");
            }
            sample.page[at] = 0;
        }
    }
}

#[test]
fn reserved_bits_of_frames_and_records_are_refused() {
    for (at, bit) in (6..8)
        .chain(56..60)
        .flat_map(|at| (0..8).map(move |bit| (at, bit)))
    {
        if (at, bit) == (6, 0) {
            continue;
        }
        let mut bytes = samples::frame();
        bytes[at] |= 1 << bit;
        reseal_frame(&mut bytes);
        let read = read_frame(&bytes);
        assert!(
            matches!(read, Err(FormatError::Reserved { .. })),
            "{read:?}"
        );
    }
    for record in samples::all_records() {
        let mut written = Vec::new();
        record.encode(&mut written);
        let mut reserved: Vec<usize> = vec![1, 4, 5, 6, 7];
        match record {
            Record::Map { .. } => reserved.extend(28..32),
            Record::VolumePut { .. } | Record::Release { .. } | Record::Counted { .. } => {
                reserved.extend(8..16);
            }
            Record::Collect { .. } | Record::Count { .. } | Record::Exchange { .. } => {
                reserved.extend((8..16).chain(28..32));
            }
            Record::Unmap { .. }
            | Record::VolumeGone { .. }
            | Record::Publish { .. }
            | Record::Outcome { .. }
            | Record::Freeze { .. }
            | Record::Merge { .. } => {}
        }
        for at in reserved {
            let mut bytes = written.clone();
            bytes[at] = 1;
            let read = Record::decode(&bytes);
            assert!(
                matches!(read, Err(FormatError::Reserved { .. })),
                "{at}: {read:?}"
            );
        }
    }
}

/// Reserved bits that share a byte with others: page, byte, bits.
const RESERVED_BITS: &[(&str, usize, u8)] = &[
    ("catalogue_page", 64 + 56, !1),
    ("batch_page", 64 + 15, !0x80),
    ("batch_page", 64 + 4 * 16 + 15, !0x80),
];

#[test]
fn reserved_bits_are_refused_even_with_the_right_checksum() {
    for (name, at, bits) in RESERVED_BITS {
        for bit in (0..8).map(|bit| 1 << bit).filter(|bit| bit & bits != 0) {
            let mut sample = page(name);
            assert_eq!(sample.page[*at] & bit, 0, "byte {at} of {name}");
            sample.page[*at] |= bit;
            reseal(&mut sample.page);
            let read = (sample.decode)(&sample.page);
            let refused = matches!(read, Err(FormatError::Reserved { .. }));
            assert!(refused, "bit {bit:#x} of byte {at} of {name}: {read:?}");
        }
    }
    let mut written = Vec::new();
    samples::records()[4].encode(&mut written);
    for (run, bit) in (0..3).flat_map(|run| (2..8).map(move |bit| (run, bit))) {
        let mut bytes = written.clone();
        bytes[32 + 8 * run + 7] |= 1 << bit;
        let read = Record::decode(&bytes);
        let refused = matches!(read, Err(FormatError::Reserved { .. }));
        assert!(refused, "bit {bit} of run {run}: {read:?}");
    }
    let mut written = Vec::new();
    samples::all_records()[14].encode(&mut written);
    for (run, bit) in (0..3).flat_map(|run| (6..16).map(move |bit| (run, bit))) {
        let mut bytes = written.clone();
        bytes[32 + 8 * run + 6 + bit / 8] |= 1 << (bit % 8);
        let read = Record::decode(&bytes);
        let refused = matches!(read, Err(FormatError::Reserved { .. }));
        assert!(refused, "bit {bit} of given run {run}: {read:?}");
    }
}

#[test]
fn a_page_from_elsewhere_is_refused() {
    let address = |field, expected, found| {
        Err(FormatError::Address {
            field,
            expected,
            found,
        })
    };
    let sample = page("node");
    let is = sample.header;
    let open = |expected: PageHeader| page::open(&sample.page, &expected).map(drop);
    assert_eq!(open(is), Ok(()));
    let other = PoolId([9; 16]);
    assert_eq!(
        open(PageHeader { pool: other, ..is }),
        Err(FormatError::Pool)
    );
    assert_eq!(
        open(PageHeader {
            kind: PageKind::Map,
            ..is
        }),
        address("page kind", 4, 3)
    );
    assert_eq!(
        open(PageHeader { level: 2, ..is }),
        address("tree level", 2, 1)
    );
    let elsewhere = PageNumber(76);
    assert_eq!(
        open(PageHeader {
            page: elsewhere,
            ..is
        }),
        address("page number", 76, 77)
    );
    assert_eq!(
        open(PageHeader { owner: 22, ..is }),
        address("owner", 22, 23)
    );
    assert_eq!(
        open(PageHeader { index: 0, ..is }),
        address("index", 0, 256)
    );
    assert_eq!(
        open(PageHeader { sequence: 0, ..is }),
        Ok(()),
        "never compared"
    );

    let root = samples::root();
    let in_wrong_slot = Root::decode(&root.encode(POOL), POOL, PageNumber(0));
    assert_eq!(in_wrong_slot.map(drop), address("page number", 0, 1));
    let of_other_pool = Root::decode(&root.encode(POOL), other, PageNumber(1));
    assert_eq!(of_other_pool, Err(FormatError::Pool));
    let label = page("data_label");
    assert_eq!(check_data_label(&label.page, other), Err(FormatError::Pool));
    assert_eq!(
        Superblock::decode(&label.page).map(drop),
        address("page kind", 1, 7)
    );
    assert_eq!(
        frame::decode_header(&samples::frame(), other).map(drop),
        Err(FormatError::Pool)
    );
}

#[test]
fn pages_of_other_versions() {
    for sample in pages() {
        let read_as = |major, minor| {
            let mut page = sample.page.clone();
            page[5] = major;
            page[6] = minor;
            reseal(&mut page);
            ((sample.decode)(&page), page::is_of_later_minor(&page))
        };
        let newer = Err(FormatError::Newer { major: 2, minor: 3 });
        assert_eq!(read_as(2, 3).0, newer, "{}", sample.name);
        for (minor, is_later) in [
            (MINOR_OF_GROUPS + 1, true),
            (MINOR_OF_GROUPS, false),
            (MINOR_VERSION, false),
            (0, false),
        ] {
            let found = read_as(MAJOR_VERSION, minor);
            // The releases before groups wrote none into a superblock.
            if sample.name == "superblock_of_group" && minor < MINOR_OF_GROUPS {
                assert!(matches!(found.0, Err(FormatError::Field { .. })));
            } else {
                assert_eq!(found, (Ok(()), is_later), "{}", sample.name);
            }
        }
        assert!(matches!(read_as(0, 0).0, Err(FormatError::Field { .. })));
    }
}

#[test]
fn frames_of_other_versions() {
    let read_as = |major, minor| {
        let mut bytes = samples::frame();
        bytes[4] = major;
        bytes[5] = minor;
        reseal_frame(&mut bytes);
        read_frame(&bytes)
    };
    assert_eq!(
        read_as(2, 3),
        Err(FormatError::Newer { major: 2, minor: 3 })
    );
    assert!(read_as(MAJOR_VERSION, MINOR_VERSION + 1).is_ok());
    assert!(matches!(read_as(0, 0), Err(FormatError::Field { .. })));
}

/// Values that the right checksum does not make possible: page, offset, bytes.
const IMPOSSIBLE: &[(&str, usize, &[u8])] = &[
    ("superblock", 64, &512_u32.to_le_bytes()),
    ("superblock", 64, &32_768_u32.to_le_bytes()),
    ("superblock", 68, &0_u32.to_le_bytes()),
    ("superblock", 68, &4_u32.to_le_bytes()),
    ("superblock", 72, &0_u64.to_le_bytes()),
    ("superblock", 72, &((256_u64 << 10) - 512).to_le_bytes()),
    ("superblock", 72, &((1_u64 << 30) + 512).to_le_bytes()),
    ("superblock", 72, &((32_u64 << 20) + 1).to_le_bytes()),
    // A group's superblock has its minor version, too.
    ("superblock", 88, &1_u64.to_le_bytes()),
    ("superblock_of_group", 6, &[MINOR_VERSION]),
    ("superblock_of_group", 88, &(1_u64 << 63).to_le_bytes()),
    ("superblock_of_group", 88, &u64::MAX.to_le_bytes()),
    ("root", 48, &2_u64.to_le_bytes()),
    ("root", 72, &511_u64.to_le_bytes()),
    ("root", 96, &0_u64.to_le_bytes()),
    ("root", 96, &u64::MAX.to_le_bytes()),
    ("root", 104, &0_u64.to_le_bytes()),
    ("root", 112, &[1, 0, 0, 0, 0, 0]),
    ("root", 124, &[0]),
    ("root", 124, &[5]),
    ("root", 144, &1_u64.to_le_bytes()),
    ("root", 144, &((1_u64 << 40) + 1).to_le_bytes()),
    ("root", 152, &0_u64.to_le_bytes()),
    ("root", 152, &u64::MAX.to_le_bytes()),
    // Elements without a tree that holds them.
    ("root", 160, &[0; 16]),
    ("root", 176, &0x7_1235_u64.to_le_bytes()),
    ("root", 184, &((504_u64 << 32) + 1).to_le_bytes()),
    // An open batch without items, and items without an open batch.
    ("root", 192, &[0; 16]),
    ("root", 208, &[0; 28]),
    // All fields of a batch except its number.
    ("root", 192, &[0; 24]),
    ("root", 208, &0_u64.to_le_bytes()),
    ("root", 208, &0x56_u64.to_le_bytes()),
    ("root", 208, &u64::MAX.to_le_bytes()),
    ("root", 216, &0_u64.to_le_bytes()),
    ("root", 216, &u64::MAX.to_le_bytes()),
    ("root", 224, &0_u32.to_le_bytes()),
    ("root", 224, &2_u32.to_le_bytes()),
    ("root", 224, &3_u32.to_le_bytes()),
    ("root", 224, &4_u32.to_le_bytes()),
    ("root", 228, &[0; 8]),
    ("root", 228, &16_u32.to_le_bytes()),
    ("root", 228, &16_385_u32.to_le_bytes()),
    ("root", 232, &16_385_u32.to_le_bytes()),
    ("root", 236, &65_537_u32.to_le_bytes()),
    ("root", 240, &1_u64.to_le_bytes()),
    ("root", 240, &26_214_400_u64.to_le_bytes()),
    // The claims: no tree although there are some; head and end.
    ("root", 248, &[0; 16]),
    ("root", 264, &0x9_0abd_u64.to_le_bytes()),
    ("root", 272, &((504_u64 << 32) + 1).to_le_bytes()),
    ("root", 280, &(1_u64 << 63).to_le_bytes()),
    ("root_of_group", 280, &(1_u64 << 63).to_le_bytes()),
    ("root_of_group", 280, &u64::MAX.to_le_bytes()),
    ("root", 4088, &2_u32.to_le_bytes()),
    ("root", 4092, &2_u32.to_le_bytes()),
    ("node", 64, &[0, 0, 0, 0, 0, 0]),
    ("node", 64, &[1, 0, 0, 0, 0, 0]),
    ("map_page", 64, &[0, 0, 0, 0, 0, 2, 0]),
    ("map_page", 64, &[1, 0, 0, 0, 0, 0, 0]),
    ("map_page", 64, &[1, 0, 0, 0, 0, 1, 0]),
    ("map_page", 64, &[0, 0, 0, 0, 0, 3, 0]),
    ("map_page", 64, &[1, 0, 0, 0, 0, 4, 0]),
    ("map_page", 64, &[0, 0, 0, 0, 0, 8, 0]),
    ("map_page", 64, &[0, 0, 0, 0, 0, 1 | 8, 0]),
    ("map_page", 64, &[0, 0, 0, 0, 0, 2 | 8, 0]),
    ("map_page", 64, &[1, 0, 0, 0, 0, 3 | 8, 0]),
    ("map_page", 64, &[1, 0, 0, 0, 0, 3 | 16, 0]),
    ("map_page", 64, &[1, 0, 0, 0, 0, 3, 1]),
    ("map_page", 64, &[1, 0, 0, 0, 0, 2 | 16, 0]),
    ("map_page", 64, &[1, 0, 0, 0, 0, 2, 1]),
    ("catalogue_page", 64, &[2]),
    ("catalogue_page", 65, &[0]),
    ("catalogue_page", 65, &[4]),
    ("catalogue_page", 66, &[4]),
    ("catalogue_page", 67, &[0]),
    ("catalogue_page", 67, &[64]),
    ("catalogue_page", 67, &[255]),
    ("catalogue_page", 68, &65_536_u32.to_le_bytes()),
    ("catalogue_page", 72, &0_u64.to_le_bytes()),
    ("catalogue_page", 80, &u64::MAX.to_le_bytes()),
    ("catalogue_page", 88, &0_u64.to_le_bytes()),
    ("catalogue_page", 88, &4097_u64.to_le_bytes()),
    ("catalogue_page", 88, &((1_u64 << 54) + 4096).to_le_bytes()),
    ("catalogue_page", 116, &[0]),
    ("catalogue_page", 192, b"-"),
    ("catalogue_page", 193, b"/"),
    ("catalogue_page", 193, &[0xff]),
    ("catalogue_page", 121, &[0]),
    ("catalogue_page", 121, &[64]),
    ("catalogue_page", 121, &[255]),
    ("catalogue_page", 122, &[0]),
    ("catalogue_page", 122, &[17]),
    ("catalogue_page", 124, &0_u32.to_le_bytes()),
    ("catalogue_page", 124, &86_401_u32.to_le_bytes()),
    // As many entries of each state as the volume has blocks; together they are more.
    ("catalogue_page", 128, &786_432_u64.to_le_bytes()),
    ("catalogue_page", 136, &786_432_u64.to_le_bytes()),
    ("catalogue_page", 144, &786_432_u64.to_le_bytes()),
    ("catalogue_page", 144, &u64::MAX.to_le_bytes()),
    ("catalogue_page", 152, &((1_u64 << 40) + 1).to_le_bytes()),
    // The volume in slot 2 has no map.
    ("catalogue_page", 640, &1_u64.to_le_bytes()),
    ("catalogue_page", 256, b"-"),
    ("catalogue_page", 257, b"/"),
    ("catalogue_page", 257, &[0xff]),
    // No PBA, a run beyond the last PBA, a gap, an element before a gap.
    ("queue_page", 864, &(1_u64 << 40).to_le_bytes()),
    (
        "queue_page",
        4088,
        &(((1_u64 << 40) - 255) | 255 << 40).to_le_bytes(),
    ),
    ("queue_page", 872, &[0; 8]),
    ("queue_page", 64, &1_u64.to_le_bytes()),
    ("batch_page", 64, &(1_u64 << 38).to_le_bytes()),
    ("batch_page", 64, &[0; 4032]),
    ("secret", 64, &[0; 32]),
    ("scrub_page", 48, &0x0122_u64.to_le_bytes()),
    ("scrub_page", 48, &[0; 8]),
    ("scrub_page", 64, &(1_u64 << 40).to_le_bytes()),
    ("scrub_page", 72, &((1_u64 << 40) + 1).to_le_bytes()),
    ("scrub_page", 96, &7937_u32.to_le_bytes()),
    // A fourth block; none; the same block twice; a changed block without a known fingerprint.
    ("scrub_page", 96, &4_u32.to_le_bytes()),
    ("scrub_page", 128, &[0; 8]),
    ("scrub_page", 160, &1_u64.to_le_bytes()),
    ("scrub_page", 192, &(1_u64 << 40).to_le_bytes()),
    ("scrub_page", 152, &[2]),
    ("scrub_page", 152, &[0]),
    ("scrub_page", 152, &[3]),
    ("scrub_page", 153, &[4]),
    ("scrub_page", 154, &[2]),
    ("scrub_page", 186, &[0]),
    ("scrub_page", 151, &[1]),
    ("loss_page", 48, &0x0122_u64.to_le_bytes()),
    ("loss_page", 48, &[0; 8]),
    ("loss_page", 64, &((1_u32 << 20) + 1).to_le_bytes()),
    ("loss_page", 68, &((1_u32 << 20) + 1).to_le_bytes()),
    // No volume; the same one twice; no block; a run after the last block; runs that overlap.
    ("loss_page", 128, &[0; 8]),
    ("loss_page", 144, &3_u64.to_le_bytes()),
    ("loss_page", 160, &[0; 8]),
    ("loss_page", 168, &[0; 8]),
    ("loss_page", 176, &77_u64.to_le_bytes()),
    ("loss_page", 200, &(1_u64 << 40).to_le_bytes()),
];

#[test]
fn impossible_values_are_refused_even_with_the_right_checksum() {
    for (name, at, value) in IMPOSSIBLE {
        let mut sample = page(name);
        sample.page[*at..at + value.len()].copy_from_slice(value);
        reseal(&mut sample.page);
        let read = (sample.decode)(&sample.page);
        let refused = matches!(read, Err(FormatError::Field { .. }));
        assert!(refused, "{value:?} at {at} of {name}: {read:?}");
    }
}

#[test]
fn the_first_mark_of_an_export_is_of_no_pages() {
    let mark = ExportMark {
        place: 0,
        ..samples::export_mark()
    };
    assert!(matches!(
        ExportMark::decode(&mark.encode(), 0),
        Err(FormatError::Field { .. })
    ));
}

/// A reader of pages in sequence has only their headers to identify them.
#[test]
fn pages_of_trees_are_told_from_others() {
    for sample in pages() {
        let opened = page::open_of_tree(&sample.page, POOL);
        let ends_well =
            sample.name.ends_with("_page") && !["scrub_page", "loss_page"].contains(&sample.name);
        let is_of_tree = sample.name == "node" || ends_well;
        assert_eq!(opened.is_ok(), is_of_tree, "{}: {opened:?}", sample.name);
        if let Ok(header) = opened {
            assert_eq!(header, sample.header);
        }
        let foreign = page::open_of_tree(&sample.page, PoolId([1; 16]));
        assert!(foreign.is_err(), "{}", sample.name);
    }
    for place in [0, 1, 1 << 48] {
        let mut page = page("node").page;
        page[24..32].copy_from_slice(&u64::to_le_bytes(place));
        reseal(&mut page);
        let opened = page::open_of_tree(&page, POOL);
        assert!(
            matches!(opened, Err(FormatError::Field { .. })),
            "{opened:?}"
        );
    }
}

#[test]
fn counts_stand_only_above_leaves() {
    let sample = page("node");
    let mut high = sample.page.clone();
    let header = PageHeader {
        level: 2,
        ..sample.header
    };
    page::seal(&mut high, &header);
    assert!(matches!(
        Node::decode(&high),
        Err(FormatError::Field { .. })
    ));
    let mut root = page("root");
    root.page[118] = 1;
    reseal(&mut root.page);
    assert_eq!(
        (root.decode)(&root.page),
        Err(FormatError::Reserved {
            structure: "tree root"
        })
    );
}

/// Calls every decoder that takes a page.
fn read_as_everything(page: &PageBytes) {
    let _ = Superblock::decode(page);
    let _ = check_data_label(page, POOL);
    let _ = page::is_of_later_minor(page);
    for slot in 0..2 {
        let _ = Root::decode(page, page::claimed_pool(page), PageNumber(slot));
    }
    let _ = Node::decode(page);
    let _ = map_page::decode(page);
    let _ = space_page::decode(page);
    let _ = catalogue_page::decode(page);
    let _ = queue_page::decode(page);
    let _ = batch_page::decode(page);
    let _ = Secret::decode(page, page::claimed_pool(page));
    for place in [0, samples::export_mark().place] {
        let _ = ExportMark::decode(page, place);
    }
    let _ = page::open_of_tree(page, page::claimed_pool(page));
    for place in [0, 1, 63, 64, 127, 128, u64::MAX] {
        let _ = ScrubPage::decode(page, page::claimed_pool(page), PageNumber(place));
        let _ = LossPage::decode(page, page::claimed_pool(page), PageNumber(place));
    }
}

proptest! {
    #[test]
    fn garbage_never_panics(bytes in vec(any::<u8>(), 0..PAGE_BYTES), kind in 1..14_u8) {
        let mut page = page::blank();
        page[..bytes.len()].copy_from_slice(&bytes);
        read_as_everything(&page);
        let _ = Record::decode(&bytes);
        prop_assert!(record::decode_all(&bytes).count() <= bytes.len());
        let _ = read_frame(&bytes);
        // The same bytes after a valid header and with a valid checksum.
        page[..BODY].copy_from_slice(&samples::pages()[0].page[..BODY]);
        page[4] = kind;
        reseal(&mut page);
        read_as_everything(&page);
    }

    #[test]
    fn damaged_samples_never_panic(at in BODY..PAGE_BYTES, value: u64, which: Index) {
        let pages = pages();
        let sample = which.get(&pages);
        let mut page = sample.page.clone();
        let end = (at + 8).min(PAGE_BYTES);
        page[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
        reseal(&mut page);
        read_as_everything(&page);
        let _ = (sample.decode)(&page);
    }

    #[test]
    fn damaged_records_never_panic(at: Index, value: u64) {
        let mut payload = samples::payload_of(&samples::all_records());
        let at = at.index(payload.len());
        let end = (at + 8).min(payload.len());
        payload[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
        let shortest = 32;
        prop_assert!(record::decode_all(&payload).count() <= payload.len() / shortest + 1);
    }

    /// Bits that do not decode are refused, and all others come back as they were.
    #[test]
    fn entry_bits_are_refused_or_kept(low: u64, top in 0..1_u64 << 24) {
        for bits in [low, (low & ((1 << 40) - 1)) | (top << 40), (low % 16) | ((top % 16) << 40)] {
            if let Ok(entry) = Entry::from_bits(bits) {
                prop_assert_eq!(entry.to_bits(), bits);
            }
        }
    }
}
