//! Records and frames that no writer wrote are refused.

use onefold_format::batch_page::{self, ITEMS_PER_PAGE};
use onefold_format::frame::{self, FRAME_HEADER_BYTES, FRAME_PAYLOAD_MAX};
use onefold_format::page::{self};
use onefold_format::{
    BatchItem, DomainId, FormatError, GivenRun, LayerCounts, LayerId, Lba, Outcome, Pba,
    PublishRun, QueueElement, Record, Release, SpaceExtent, TreeRoot, VolumeRecord,
};
use onefold_format::{queue_page, record};

use crate::samples::{self, POOL, read_frame};

/// The record among the samples, the offset, and a value that no release writes there.
const IMPOSSIBLE_IN_RECORDS: &[(usize, usize, &[u8])] = &[
    (0, 0, &[0]),
    (0, 0, &[5]),
    (0, 0, &[15]),
    (0, 0, &[20]),
    (0, 0, &[25]),
    (0, 2, &[40]),
    (0, 2, &[56]),
    (0, 8, &0_u64.to_le_bytes()),
    (0, 8, &u64::MAX.to_le_bytes()),
    (0, 16, &(1_u64 << 38).to_le_bytes()),
    (0, 24, &0_u32.to_le_bytes()),
    (0, 24, &513_u32.to_le_bytes()),
    (0, 24, &u32::MAX.to_le_bytes()),
    (0, 32, &(3_u64 << 40).to_le_bytes()),
    (0, 40, &(2_u64 << 40).to_le_bytes()),
    // The run's last block would be one beyond the last PBA.
    (0, 40, &(2_u64 << 40 | ((1 << 40) - 7)).to_le_bytes()),
    // Counted on, this one would turn into shared entries of the first blocks.
    (0, 40, &(2_u64 << 40 | ((1 << 40) - 3)).to_le_bytes()),
    (0, 40, &(3_u64 << 40 | ((1 << 40) - 3)).to_le_bytes()),
    (0, 40, &(10_u64 << 40 | ((1 << 40) - 3)).to_le_bytes()),
    (0, 47, &[1]),
    (1, 8, &0_u64.to_le_bytes()),
    (1, 16, &513_u64.to_le_bytes()),
    (1, 28, &2_u32.to_le_bytes()),
    (2, 24, &[2]),
    (2, 32, &0_u64.to_le_bytes()),
    (3, 8, &0_u64.to_le_bytes()),
    (3, 24, &0_u64.to_le_bytes()),
    (4, 2, &32_u16.to_le_bytes()),
    (4, 2, &52_u16.to_le_bytes()),
    (4, 2, &4136_u16.to_le_bytes()),
    (4, 8, &0_u64.to_le_bytes()),
    (4, 16, &0_u64.to_le_bytes()),
    (4, 16, &(1_u64 << 63).to_le_bytes()),
    (4, 24, &(1_u64 << 29).to_le_bytes()),
    (4, 32, &[0; 5]),
    // One block more than there are up to the next run, and that one block earlier.
    (4, 38, &[3 << 1]),
    (4, 45, &[2]),
    // One block more than there are in the segment, and one beyond the last PBA.
    (4, 54, &[16 << 1 | 1]),
    (4, 48, &[0xf1]),
    (5, 8, &0_u64.to_le_bytes()),
    (5, 16, &0_u64.to_le_bytes()),
    (5, 24, &16_289_u16.to_le_bytes()),
    (5, 24, &u16::MAX.to_le_bytes()),
    (5, 26, &0_u16.to_le_bytes()),
    (5, 26, &12_385_u16.to_le_bytes()),
    (5, 28, &0_u32.to_le_bytes()),
    (5, 28, &6_u32.to_le_bytes()),
    // Inserted and declined have no block of the index.
    (5, 28, &1_u32.to_le_bytes()),
    (5, 28, &5_u32.to_le_bytes()),
    (5, 32, &0_u64.to_le_bytes()),
    (5, 32, &((1_u64 << 40) - 95).to_le_bytes()),
    (6, 16, &0_u64.to_le_bytes()),
    (6, 24, &0_u32.to_le_bytes()),
    (6, 24, &16_385_u32.to_le_bytes()),
    (7, 16, &0_u64.to_le_bytes()),
    (7, 24, &16_383_u16.to_le_bytes()),
    (7, 26, &0_u16.to_le_bytes()),
    (7, 28, &0_u32.to_le_bytes()),
    (7, 28, &5_u32.to_le_bytes()),
    // The live layer is none, or the frozen one; the one below it none, or itself; a snapshot without a
    // layer below, of no volume.
    (8, 8, &0_u64.to_le_bytes()),
    (8, 24, &0_u64.to_le_bytes()),
    (8, 24, &26_u64.to_le_bytes()),
    (8, 32, &0_u64.to_le_bytes()),
    (8, 32, &0x9abc_u64.to_le_bytes()),
    (8, 40 + 96, &(1_u64 << 63).to_le_bytes()),
    (8, 40 + 104, &0_u64.to_le_bytes()),
    (8, 40 + 104, &(1_u64 << 63).to_le_bytes()),
    (8, 40, &[1]),
    (9, 8, &0_u64.to_le_bytes()),
    (9, 16, &0_u64.to_le_bytes()),
    (9, 16, &0x5678_u64.to_le_bytes()),
    (9, 24, &(1_u64 << 29).to_le_bytes()),
    // The claimed run's last block would be one beyond the last PBA.
    (10, 40, &(3_u64 << 40 | ((1 << 40) - 2)).to_le_bytes()),
    (11, 16, &0_u64.to_le_bytes()),
    (11, 24, &0_u32.to_le_bytes()),
    (11, 24, &16_385_u32.to_le_bytes()),
    (12, 16, &0_u64.to_le_bytes()),
    (12, 24, &16_383_u16.to_le_bytes()),
    (12, 26, &0_u16.to_le_bytes()),
    (12, 28, &0_u32.to_le_bytes()),
    (12, 28, &3_u32.to_le_bytes()),
    (13, 28, &5_u32.to_le_bytes()),
    // Nothing is exchanged; a part of an item; more items than there can be.
    (14, 2, &32_u16.to_le_bytes()),
    (14, 2, &68_u16.to_le_bytes()),
    (14, 2, &4136_u16.to_le_bytes()),
    // The record's length and the numbers of runs and space extents contradict each other.
    (14, 2, &64_u16.to_le_bytes()),
    (14, 24, &0_u16.to_le_bytes()),
    (14, 24, &2_u16.to_le_bytes()),
    (14, 24, &6_u16.to_le_bytes()),
    (14, 24, &u16::MAX.to_le_bytes()),
    (14, 26, &0_u16.to_le_bytes()),
    (14, 26, &1_u16.to_le_bytes()),
    (14, 26, &3_u16.to_le_bytes()),
    (14, 26, &u16::MAX.to_le_bytes()),
    // As many items in all, but the last run would be a space extent.
    (14, 24, &[2, 0, 3, 0]),
    (14, 16, &0_u64.to_le_bytes()),
    (14, 16, &(1_u64 << 63).to_le_bytes()),
    (14, 16, &u64::MAX.to_le_bytes()),
    // The label; one block more than there are up to the space extent's end, and one beyond the last PBA.
    (14, 32, &[0; 5]),
    (14, 32, &((1_u64 << 54) - 1).to_le_bytes()),
    (14, 40, &(0x4001_u64 | 0x3fff << 40).to_le_bytes()),
    (14, 40, &(0x3fff_u64 | 1 << 40).to_le_bytes()),
    (14, 48, &(((1_u64 << 40) - 1) | 1 << 40).to_le_bytes()),
    // Space extents that are none. The last one's first block would wrap to 0.
    (14, 56, &(1_u64 << 26).to_le_bytes()),
    (14, 64, &(1_u64 << 26).to_le_bytes()),
    (14, 64, &u64::MAX.to_le_bytes()),
    (14, 64, &(1_u64 << 50).to_le_bytes()),
];

#[test]
fn impossible_records_are_refused() {
    let records = samples::all_records();
    for (which, at, value) in IMPOSSIBLE_IN_RECORDS {
        let mut bytes = Vec::new();
        records[*which].encode(&mut bytes);
        bytes[*at..at + value.len()].copy_from_slice(value);
        let read = Record::decode(&bytes);
        let refused = matches!(read, Err(FormatError::Field { .. }));
        assert!(refused, "{value:?} at {at} of record {which}: {read:?}");
    }
}

#[test]
fn a_record_leaves_out_the_map_and_what_it_counts() {
    let Some(volume) = samples::volumes().swap_remove(0) else {
        panic!("the sample has a volume there");
    };
    let plain = VolumeRecord {
        map: TreeRoot::default(),
        counts: LayerCounts::default(),
        ..volume.clone()
    };
    assert_ne!(volume.map, plain.map);
    assert_ne!(volume.counts, plain.counts);
    let put = |volume| Record::VolumePut { slot: 2, volume };
    let mut bytes = Vec::new();
    put(volume).encode(&mut bytes);
    let read = Record::decode(&bytes).map(|(record, _)| record);
    assert_eq!(read, Ok(put(plain)));
}

/// The log holds no trees, and no counts of their content: they come with the checkpoint.
#[test]
fn a_record_with_a_map_is_refused() {
    let mut bytes = Vec::new();
    samples::records()[2].encode(&mut bytes);
    let mut counting = bytes.clone();
    counting[24 + 64] = 1;
    let read = Record::decode(&counting);
    assert!(matches!(read, Err(FormatError::Field { .. })), "{read:?}");
    bytes[24 + 40] = 9;
    bytes[24 + 52] = 1;
    let read = Record::decode(&bytes);
    assert!(
        matches!(read, Err(FormatError::Reserved { .. })),
        "{read:?}"
    );
}

/// Whether an encoder accepts the values it is given. Numbers are cut to the width of their fields,
/// so a wrong one would refer to something else.
fn is_written(write: &dyn Fn()) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(write)).is_ok()
}

#[test]
fn runs_that_a_record_has_no_room_for_are_not_written() {
    let run = |lba, pba, count| PublishRun {
        lba: Lba(lba),
        pba: Pba(pba),
        count,
    };
    let publish = |runs: &[PublishRun]| {
        let record = Record::Publish {
            layer: LayerId(1),
            number: 1,
            runs: runs.to_vec(),
        };
        is_written(&|| record.encode(&mut Vec::new()))
    };
    assert!(publish(&[run(511, 1, 1)]));
    assert!(publish(&[run(0, 1, 512)]));
    assert!(publish(&[run(4, 1, 1), run(5, 9, 1)]));
    assert!(!publish(&[]));
    assert!(!publish(&[run(0, 1, 0)]));
    assert!(!publish(&[run(511, 1, 2)]), "two segments");
    assert!(!publish(&[run(511, 1, 1), run(512, 9, 1)]), "two segments");
    assert!(!publish(&[run(5, 1, 1), run(4, 9, 1)]), "not ascending");
    assert!(!publish(&[run(4, 1, 2), run(5, 9, 1)]), "overlapping");
    assert!(!publish(&[run(1 << 38, 1, 1)]), "beyond every volume");
    assert!(!publish(&[run(0, 0, 1)]), "the label");
}

#[test]
fn exchanges_that_a_record_has_no_room_for_are_not_written() {
    let exchange = |given: &[(u64, u32)], taken: &[u64]| {
        let run = |(pba, count)| GivenRun {
            pba: Pba(pba),
            count,
        };
        let record = Record::Exchange {
            number: 1,
            given: given.iter().copied().map(run).collect(),
            taken: taken.iter().copied().map(SpaceExtent).collect(),
        };
        is_written(&|| record.encode(&mut Vec::new()))
    };
    assert!(exchange(&[(1, 16_383)], &[]));
    assert!(exchange(&[(16_384, 16_384)], &[0]));
    assert!(exchange(&[], &[(1 << 26) - 1]));
    assert!(exchange(&[(1, 1); 512], &[]) && exchange(&[], &[1; 512]));
    assert!(!exchange(&[], &[]));
    assert!(!exchange(&[(1, 1); 512], &[1]) && !exchange(&[], &[1; 513]));
    assert!(!exchange(&[(1, 0)], &[]));
    assert!(!exchange(&[(0, 1)], &[]), "the label");
    assert!(!exchange(&[(16_383, 2)], &[]), "two space extents");
    assert!(!exchange(&[(16_385, 16_384)], &[]), "two space extents");
    assert!(!exchange(&[((1 << 40) - 1, 2)], &[]), "beyond every pool");
    assert!(!exchange(&[(1 << 40, 1)], &[]), "beyond every pool");
    assert!(!exchange(&[], &[1 << 26]), "beyond every pool");
    assert!(
        !exchange(&[], &[1 << 50]),
        "its first block would wrap to 0"
    );
}

#[test]
fn items_that_no_batch_has_are_not_written() {
    let settle = |position, count| {
        let outcome = Record::Outcome {
            layer: LayerId(1),
            number: 1,
            position,
            count,
            outcome: Outcome::Inserted,
        };
        let release = Record::Release {
            number: 1,
            position,
            count,
            release: Release::Remaining,
        };
        let [finder, collector] =
            [outcome, release].map(|record| is_written(&|| record.encode(&mut Vec::new())));
        assert_eq!(finder, collector);
        finder
    };
    assert!(settle(0, 16_384) && settle(16_383, 1));
    assert!(!settle(0, 0) && !settle(1, 16_384) && !settle(16_384, 0) && !settle(u32::MAX, 1));

    let batch = |items: usize, lba, pba| {
        let item = BatchItem {
            lba: Lba(lba),
            pba: Pba(pba),
            domain: DomainId(0),
            moved: false,
        };
        is_written(&|| batch_page::encode(&vec![item; items], &mut page::blank()))
    };
    assert!(batch(1, 0, 1) && batch(ITEMS_PER_PAGE, 0, 1));
    assert!(!batch(0, 0, 1) && !batch(ITEMS_PER_PAGE + 1, 0, 1));
    assert!(!batch(1, 1 << 38, 1) && !batch(1, 0, 0) && !batch(1, 0, 1 << 40));
}

#[test]
fn elements_that_a_queue_has_no_room_for_are_not_written() {
    let queue = |pba, count| {
        let mut elements = Box::new(queue_page::NO_ELEMENTS);
        elements[0] = Some(QueueElement {
            pba: Pba(pba),
            count,
            domain: DomainId(0),
        });
        is_written(&|| queue_page::encode(&elements, &mut page::blank()))
    };
    assert!(queue(1, 256) && queue((1 << 40) - 1, 1));
    assert!(!queue(1, 0) && !queue(1, 257) && !queue(0, 1) && !queue((1 << 40) - 1, 2));
}

#[test]
fn cut_records_and_frames_are_short() {
    for record in samples::all_records() {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        for len in 0..bytes.len() {
            let read = Record::decode(&bytes[..len]);
            assert!(
                matches!(read, Err(FormatError::Short { .. })),
                "{len}: {read:?}"
            );
        }
    }
    let bytes = samples::frame();
    for len in 0..FRAME_HEADER_BYTES + samples::payload().len() {
        let read = read_frame(&bytes[..len]);
        assert!(
            matches!(read, Err(FormatError::Short { .. })),
            "{len}: {read:?}"
        );
    }
}

#[test]
fn no_payload_is_longer_than_a_reader_expects() {
    let mut bytes = samples::frame();
    bytes[48..52].copy_from_slice(&(FRAME_PAYLOAD_MAX as u32 + 1).to_le_bytes());
    let read = frame::decode_header(&bytes, POOL);
    assert!(matches!(read, Err(FormatError::Field { .. })), "{read:?}");
}

#[test]
fn records_after_a_bad_one_are_not_given_out() {
    let mut payload = samples::payload();
    payload[48] = 99;
    let read: Vec<_> = record::decode_all(&payload).collect();
    assert_eq!(read.len(), 2);
    assert_eq!(read[0].as_ref(), Ok(&samples::records()[0]));
    assert!(read[1].is_err());
}
