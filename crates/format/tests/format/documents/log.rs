//! The tables of frame, record, entry and trace.

use onefold_format::trace::TraceFrame;
use onefold_format::{
    ClaimOutcome, Entry, FormatError, GivenRun, LayerId, Lba, MAJOR_VERSION, MINOR_VERSION,
    Outcome, Pba, PoolId, PublishRun, Record, Release, SegmentIndex, SpaceExtent, UnmapTo,
    VolumeId, VolumeRecord, frame,
};

use super::{ALL, Trial, bit_table, bits_of, check, crc_without, table};
use crate::samples::{self, read_frame, reseal_frame};

#[test]
fn frame_document() {
    let rows = table(
        include_str!("../../../../../docs/format/frame.md"),
        "Frame header",
    );
    let none = frame::FrameHeader {
        session: 0,
        commit: 0,
        position: 0,
        previous_checksum: 0,
        last: false,
    };
    let no_pool = PoolId([0; 16]);
    let encoded = |header: &frame::FrameHeader, pool: PoolId, payload: &[u8]| {
        let mut bytes = Vec::new();
        frame::encode(header, pool, payload, &mut bytes);
        bytes[60..64].fill(0);
        bytes[..64].to_vec()
    };
    let plain = encoded(&none, no_pool, &[]);
    let changed = |change: &dyn Fn(&mut frame::FrameHeader)| {
        let mut header = none;
        change(&mut header);
        encoded(&header, no_pool, &[])
    };
    let whole =
        |change: &dyn Fn(&mut frame::FrameHeader)| Trial::Whole(plain.clone(), changed(change));
    let sample = samples::frame();
    let used = 64 + samples::payload().len();
    let of_full_pool = encoded(&none, PoolId([255; 16]), &[]);
    let long = encoded(&none, no_pool, &[1; 0x1_0101]);
    let trials = vec![
        ("magic", Trial::Is(b"1FLG".to_vec())),
        ("major", Trial::Is(vec![MAJOR_VERSION])),
        ("minor", Trial::Is(vec![MINOR_VERSION])),
        (
            "flags",
            Trial::Part(plain.clone(), changed(&|header| header.last = true)),
        ),
        ("pool", Trial::Whole(plain.clone(), of_full_pool)),
        ("session", whole(&|header| header.session = ALL)),
        ("commit", whole(&|header| header.commit = ALL)),
        ("position", whole(&|header| header.position = ALL)),
        ("payload", Trial::Part(plain.clone(), long)),
        (
            "previous checksum",
            whole(&|header| header.previous_checksum = u32::MAX),
        ),
        ("checksum", Trial::Is(crc_without(&sample[..used], 60..64))),
    ];
    check(&rows, &sample[..64], trials, |at| {
        let mut bytes = samples::frame();
        bytes[at] |= 1;
        reseal_frame(&mut bytes);
        matches!(read_frame(&bytes), Err(FormatError::Reserved { .. }))
    });
}

#[test]
fn trace_document() {
    let rows = table(
        include_str!("../../../../../docs/format/trace.md"),
        "Trace frame",
    );
    let encoded = |position, path: &[u8]| {
        let mut bytes = Vec::new();
        let path = path.to_vec();
        TraceFrame::Input { path }.encode(position, &mut bytes);
        bytes[20..24].fill(0);
        bytes[..24].to_vec()
    };
    let plain = encoded(0, b"");
    let mut sample = Vec::new();
    let frame = TraceFrame::Input {
        path: b"/data".to_vec(),
    };
    frame.encode(7, &mut sample);
    let trials = vec![
        ("magic", Trial::Is(b"1FTR".to_vec())),
        ("major", Trial::Is(vec![MAJOR_VERSION])),
        ("minor", Trial::Is(vec![MINOR_VERSION])),
        ("kind", Trial::Is(vec![2])),
        ("position", Trial::Whole(plain.clone(), encoded(ALL, b""))),
        ("payload", Trial::Part(plain, encoded(0, &[1; 0xff00]))),
        ("checksum", Trial::Is(crc_without(&sample, 20..24))),
    ];
    check(&rows, &sample[..24], trials, |at| {
        let mut bytes = sample.clone();
        bytes[at] |= 1;
        let checksum = crc_without(&bytes, 20..24);
        bytes[20..24].copy_from_slice(&checksum);
        let refused = samples::read_trace_frame(&bytes, 7);
        matches!(refused, Err(FormatError::Reserved { .. }))
    });
}

fn encoded(record: &Record) -> Vec<u8> {
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    bytes
}

fn record_refuses(record: &Record, at: usize) -> bool {
    let mut bytes = encoded(record);
    bytes[at] |= 1;
    matches!(Record::decode(&bytes), Err(FormatError::Reserved { .. }))
}

const RECORD_DOCUMENT: &str = include_str!("../../../../../docs/format/record.md");

fn map_record(lba: u64, count: u32, old: Entry, new: Entry) -> Record {
    Record::Map {
        layer: LayerId(1),
        lba: Lba(lba),
        count,
        old,
        new,
    }
}

fn unmap_record(layer: u64, lba: u64, count: u32, to: UnmapTo) -> Record {
    Record::Unmap {
        layer: LayerId(layer),
        lba: Lba(lba),
        count,
        to,
    }
}

fn gone_record(slot: u64, volume: u64) -> Record {
    Record::VolumeGone {
        slot,
        volume: VolumeId(volume),
        layer: LayerId(1),
    }
}

#[test]
fn record_header_document() {
    let plain = unmap_record(1, 0, 1, UnmapTo::Absent);
    let header = |record: &Record| encoded(record)[..16].to_vec();
    let of_layer = |layer| header(&unmap_record(layer, 0, 1, UnmapTo::Absent));
    let trials = vec![
        ("kind", Trial::Is(vec![2])),
        ("bytes", Trial::Is(32_u16.to_le_bytes().to_vec())),
        ("layer", Trial::Whole(of_layer(0), of_layer(ALL))),
    ];
    check(
        &table(RECORD_DOCUMENT, "Header"),
        &header(&plain),
        trials,
        |at| record_refuses(&plain, at),
    );
    let kinds: Vec<u8> = samples::all_records()
        .iter()
        .map(|record| encoded(record)[0])
        .collect();
    assert_eq!(
        kinds,
        [1, 2, 3, 4, 16, 17, 18, 19, 20, 21, 1, 22, 23, 19, 24]
    );
}

#[test]
fn map_and_unmap_record_document() {
    let (absent, last) = (Entry::ABSENT, Entry::private(Pba((1 << 40) - 1)));
    let plain = encoded(&map_record(0, 0, absent, absent));
    let whole = |record| Trial::Whole(plain.clone(), encoded(&record));
    let part = |record| Trial::Part(plain.clone(), encoded(&record));
    let trials = vec![
        ("header", Trial::Elsewhere),
        ("lba", whole(map_record(ALL, 0, absent, absent))),
        ("count", whole(map_record(0, u32::MAX, absent, absent))),
        ("old", part(map_record(0, 0, last, absent))),
        ("new", part(map_record(0, 0, absent, last))),
    ];
    check(
        &table(RECORD_DOCUMENT, "Map (kind 1)"),
        &plain,
        trials,
        |at| record_refuses(&samples::records()[0], at),
    );

    let plain = encoded(&unmap_record(1, 0, 0, UnmapTo::Absent));
    let whole = |record| Trial::Whole(plain.clone(), encoded(&record));
    let to_zero = encoded(&unmap_record(1, 0, 0, UnmapTo::Zero));
    let trials = vec![
        ("header", Trial::Elsewhere),
        ("lba", whole(unmap_record(1, ALL, 0, UnmapTo::Absent))),
        (
            "count",
            whole(unmap_record(1, 0, u32::MAX, UnmapTo::Absent)),
        ),
        ("to", Trial::Part(plain.clone(), to_zero)),
    ];
    check(
        &table(RECORD_DOCUMENT, "Unmap (kind 2)"),
        &plain,
        trials,
        |_| false,
    );
}

#[test]
fn put_and_gone_record_document() {
    let put = |slot, created_unix_seconds| {
        let Some(volume) = samples::volumes().swap_remove(2) else {
            panic!("the sample has a volume there");
        };
        let volume = VolumeRecord {
            created_unix_seconds,
            ..volume
        };
        encoded(&Record::VolumePut { slot, volume })
    };
    let plain = put(0, 0);
    let trials = vec![
        ("header", Trial::Elsewhere),
        ("slot", Trial::Whole(plain.clone(), put(ALL, 0))),
        ("record", Trial::Part(plain.clone(), put(0, ALL))),
    ];
    check(
        &table(RECORD_DOCUMENT, "Put (kind 3)"),
        &plain,
        trials,
        |_| false,
    );

    let plain = encoded(&gone_record(0, 0));
    let trials = vec![
        ("header", Trial::Elsewhere),
        (
            "slot",
            Trial::Whole(plain.clone(), encoded(&gone_record(ALL, 0))),
        ),
        (
            "volume",
            Trial::Whole(plain.clone(), encoded(&gone_record(0, ALL))),
        ),
    ];
    check(
        &table(RECORD_DOCUMENT, "Gone (kind 4)"),
        &plain,
        trials,
        |_| false,
    );
}

#[test]
fn freeze_and_merge_record_document() {
    let freeze = |slot, live, below, created_unix_seconds| {
        let Some(snapshot) = samples::volumes().swap_remove(13) else {
            panic!("the sample has a snapshot there");
        };
        let snapshot = VolumeRecord {
            created_unix_seconds,
            ..snapshot
        };
        encoded(&Record::Freeze {
            slot,
            snapshot,
            live: LayerId(live),
            below: LayerId(below),
        })
    };
    let plain = freeze(0, 0, 0, 0);
    let trials = vec![
        ("header", Trial::Elsewhere),
        ("slot", Trial::Whole(plain.clone(), freeze(ALL, 0, 0, 0))),
        ("live", Trial::Whole(plain.clone(), freeze(0, ALL, 0, 0))),
        ("below", Trial::Whole(plain.clone(), freeze(0, 0, ALL, 0))),
        ("record", Trial::Part(plain.clone(), freeze(0, 0, 0, ALL))),
    ];
    let rows = table(RECORD_DOCUMENT, "Freeze (kind 20)");
    check(&rows, &plain, trials, |_| false);

    let merge = |above, segment| {
        encoded(&Record::Merge {
            layer: LayerId(1),
            above: LayerId(above),
            segment: SegmentIndex(segment),
        })
    };
    let plain = merge(0, 0);
    let trials = vec![
        ("header", Trial::Elsewhere),
        ("above", Trial::Whole(plain.clone(), merge(ALL, 0))),
        ("segment", Trial::Whole(plain.clone(), merge(0, ALL))),
    ];
    let rows = table(RECORD_DOCUMENT, "Merge (kind 21)");
    check(&rows, &plain, trials, |_| false);
}

#[test]
fn publish_record_document() {
    let publish = |number, lba, pba, count| Record::Publish {
        layer: LayerId(1),
        number,
        runs: vec![PublishRun {
            lba: Lba(lba),
            pba: Pba(pba),
            count,
        }],
    };
    let plain = encoded(&publish(0, 0, 1, 1));
    let part = |record| Trial::Part(plain.clone(), encoded(&record));
    let trials = vec![
        ("header", Trial::Elsewhere),
        (
            "number",
            Trial::Whole(plain.clone(), encoded(&publish(ALL, 0, 1, 1))),
        ),
        ("segment", part(publish(0, (1 << 38) - 512, 1, 1))),
        ("run", part(publish(0, 0, (1 << 40) - 1, 1))),
    ];
    let rows = table(RECORD_DOCUMENT, "Publish (kind 16)");
    check(&rows, &plain, trials, |_| false);

    let run = |slot, pba, count| {
        let bytes = encoded(&publish(1, slot, pba, count));
        let word = bytes[32..].try_into().expect("one run");
        bits_of(u64::from_le_bytes(word), 64)
    };
    let first = run(0, 1, 1);
    let whole = |other| Trial::Whole(first.clone(), other);
    let trials = vec![
        ("PBA", whole(run(0, (1 << 40) - 2, 1))),
        ("place", whole(run(511, 1, 1))),
        ("count", whole(run(0, 1, 512))),
    ];
    check(&bit_table(RECORD_DOCUMENT, "Run"), &first, trials, |bit| {
        record_refuses_bit(&publish(1, 0, 1, 1), 32, bit)
    });
}

/// Whether the record with this bit set of the word at `at` is refused as reserved.
fn record_refuses_bit(record: &Record, at: usize, bit: usize) -> bool {
    let mut bytes = encoded(record);
    bytes[at + bit / 8] |= 1 << (bit % 8);
    matches!(Record::decode(&bytes), Err(FormatError::Reserved { .. }))
}

#[test]
fn outcome_record_document() {
    let settled = |number, position, count, outcome| {
        encoded(&Record::Outcome {
            layer: LayerId(1),
            number,
            position,
            count,
            outcome,
        })
    };
    let plain = settled(0, 0, 1, Outcome::Inserted);
    let aliased = |pba| settled(0, 0, 1, Outcome::Aliased(Pba(pba)));
    let trials = vec![
        ("header", Trial::Elsewhere),
        (
            "number",
            Trial::Whole(plain.clone(), settled(ALL, 0, 1, Outcome::Inserted)),
        ),
        (
            "position",
            Trial::Whole(plain.clone(), settled(0, 4095, 1, Outcome::Inserted)),
        ),
        (
            "count",
            Trial::Whole(plain.clone(), settled(0, 0, 4096, Outcome::Inserted)),
        ),
        (
            "outcome",
            Trial::Part(plain.clone(), settled(0, 0, 1, Outcome::Declined)),
        ),
        ("PBA", Trial::Whole(aliased(0), aliased(ALL))),
    ];
    let rows = table(RECORD_DOCUMENT, "Outcome (kind 17)");
    check(&rows, &plain, trials, |_| false);
    let codes = [
        Outcome::Inserted,
        Outcome::Aliased(Pba(1)),
        Outcome::Dangling(Pba(1)),
        Outcome::Rejected(Pba(1)),
        Outcome::Declined,
    ]
    .map(|outcome| settled(0, 0, 1, outcome)[28]);
    assert_eq!(codes, [1, 2, 3, 4, 5]);
}

/// A record that takes elements off a queue, and the heading of its table.
fn elements_document(heading: &str, make: &dyn Fn(u64, u32) -> Record) {
    let plain = encoded(&make(0, 0));
    let whole = |number, elements| Trial::Whole(plain.clone(), encoded(&make(number, elements)));
    let trials = vec![
        ("header", Trial::Elsewhere),
        ("number", whole(ALL, 0)),
        ("elements", whole(0, u32::MAX)),
    ];
    let rows = table(RECORD_DOCUMENT, heading);
    check(&rows, &plain, trials, |at| record_refuses(&make(1, 1), at));
}

/// A record that settles items, by the last part's code, and the heading of its table.
fn settled_document(heading: &str, last: &'static str, make: &dyn Fn(u64, u32, u32, u8) -> Record) {
    let settled = |number, position, count, code| encoded(&make(number, position, count, code));
    let plain = settled(0, 0, 1, 1);
    let whole = |other| Trial::Whole(plain.clone(), other);
    let trials = vec![
        ("header", Trial::Elsewhere),
        ("number", whole(settled(ALL, 0, 1, 1))),
        ("position", whole(settled(0, 4095, 1, 1))),
        ("count", whole(settled(0, 0, 4096, 1))),
        (last, Trial::Part(plain.clone(), settled(0, 0, 1, 2))),
    ];
    let rows = table(RECORD_DOCUMENT, heading);
    check(&rows, &plain, trials, |_| false);
}

#[test]
fn collect_and_release_record_document() {
    elements_document("Collect (kind 18)", &|number, elements| Record::Collect {
        number,
        elements,
    });
    let releases = [
        Release::Remaining,
        Release::Freed,
        Release::Quarantined,
        Release::Held,
    ];
    let release = |number, position, count, code: u8| Record::Release {
        number,
        position,
        count,
        release: releases[usize::from(code) - 1],
    };
    settled_document("Release (kind 19)", "release", &release);
    let codes = [1, 2, 3, 4].map(|code| encoded(&release(0, 0, 1, code))[28]);
    assert_eq!(codes, [1, 2, 3, 4]);
}

#[test]
fn count_and_counted_record_document() {
    elements_document("Count (kind 22)", &|number, elements| Record::Count {
        number,
        elements,
    });
    let outcomes = [ClaimOutcome::Counted, ClaimOutcome::Quarantined];
    let counted = |number, position, count, code: u8| Record::Counted {
        number,
        position,
        count,
        outcome: outcomes[usize::from(code) - 1],
    };
    settled_document("Counted (kind 23)", "outcome", &counted);
    let codes = [1, 2].map(|code| encoded(&counted(0, 0, 1, code))[28]);
    assert_eq!(codes, [1, 2]);
}

#[test]
fn exchange_record_document() {
    let exchange = |number, given: &[(u64, u32)], taken: &[u64]| {
        let run = |&(pba, count): &(u64, u32)| GivenRun {
            pba: Pba(pba),
            count,
        };
        Record::Exchange {
            number,
            given: given.iter().map(run).collect(),
            taken: taken.iter().copied().map(SpaceExtent).collect(),
        }
    };
    let gives = |number, pba| encoded(&exchange(number, &[(pba, 1)], &[]));
    let plain = gives(0, 1);
    let last = gives(0, (1 << 40) - 1);
    let trials = vec![
        ("header", Trial::Elsewhere),
        ("number", Trial::Whole(plain.clone(), gives(ALL, 1))),
        ("given", Trial::Is(vec![1, 0])),
        ("taken", Trial::Is(vec![0, 0])),
        ("item", Trial::Part(plain.clone(), last)),
    ];
    let rows = table(RECORD_DOCUMENT, "Exchange (kind 24)");
    let valid = exchange(1, &[(1, 1)], &[]);
    check(&rows, &plain, trials, |at| record_refuses(&valid, at));

    let both = encoded(&exchange(1, &[(7, 1); 258], &[0x12_3456; 2]));
    assert_eq!(both[24..28], [2, 1, 2, 0], "runs and space extents");
    let (given, taken) = both[32..].split_at(8 * 258);
    assert!(given.chunks(8).all(|item| item == 7_u64.to_le_bytes()));
    let extent = 0x12_3456_u64.to_le_bytes();
    assert_eq!(taken, [extent; 2].as_flattened());

    let run = |pba, count| {
        let bytes = encoded(&exchange(1, &[(pba, count)], &[]));
        let word = bytes[32..].try_into().expect("one run");
        bits_of(u64::from_le_bytes(word), 64)
    };
    // A run of every length can begin with the first block of a space extent.
    let first = run(16_384, 1);
    let trials = vec![
        ("PBA", Trial::Whole(run(1, 1), run((1 << 40) - 2, 1))),
        ("count", Trial::Whole(first.clone(), run(16_384, 16_384))),
    ];
    let rows = bit_table(RECORD_DOCUMENT, "Given run");
    check(&rows, &first, trials, |bit| {
        record_refuses_bit(&valid, 32, bit)
    });
}

#[test]
fn entry_document() {
    let rows = bit_table(include_str!("../../../../../docs/format/entry.md"), "Entry");
    let entry_bits = |entry: Entry| bits_of(entry.to_bits(), 56);
    let first = entry_bits(Entry::private(Pba(1)));
    let other = entry_bits(Entry::private(Pba((1 << 40) - 2)));
    let trials = vec![
        ("PBA", Trial::Whole(first.clone(), other)),
        (
            "state",
            Trial::Part(entry_bits(Entry::ABSENT), entry_bits(Entry::ZERO)),
        ),
        (
            "unshareable",
            Trial::Whole(first.clone(), entry_bits(Entry::unshareable(Pba(1)))),
        ),
        ("codec", Trial::Is(vec![0; 4])),
        ("stored length", Trial::Is(vec![0; 8])),
    ];
    check(&rows, &first, trials, |_| false);
    for row in &rows[3..] {
        for bit in row.bytes.clone() {
            let bits = Entry::private(Pba(1)).to_bits() | 1 << bit;
            assert!(
                Entry::from_bits(bits).is_err(),
                "bit {bit} of '{}'",
                row.field
            );
        }
    }
}
