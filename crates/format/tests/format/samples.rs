//! One specimen of each structure, with a different value in each field.
//!
//! The golden files of this version hold exactly these.

use onefold_format::batch_page::ITEMS_PER_PAGE;
use onefold_format::map_page::{EMPTY_SEGMENT, Segment};
use onefold_format::node::{Node, Pointer};
use onefold_format::page::{
    self, BATCH_OWNER, CATALOGUE_OWNER, PAGE_BYTES, PageBytes, PageHeader, PageKind, QUEUE_OWNER,
    SPACE_OWNER,
};
use onefold_format::queue_page::{ELEMENTS_PER_PAGE, Elements, NO_ELEMENTS};
use onefold_format::space_page::{Bitmap, EMPTY_BITMAP};
use onefold_format::trace::{
    self, TraceChunks, TraceContent, TraceEnd, TraceFrame, TraceRun, TraceUnit,
};
use onefold_format::{
    BadBlock, BatchItem, BatchKind, ClaimOutcome, DamagedVolume, DedupMode, DomainId, Entry,
    ExportMark, Fault, FormatError, GivenRun, GroupId, IndexKind, LayerCounts, LayerId, Lba,
    LossPage, Losses, LostRun, MINOR_OF_GROUPS, MINOR_VERSION, OpenBatchHead, Outcome, PageNumber,
    Pba, PoolId, Provisioning, PublishRun, QueueElement, Record, Release, Root, ScrubPage,
    ScrubProgress, Secret, SegmentIndex, SpaceExtent, Superblock, TreeRoot, UnmapTo, VolumeId,
    VolumeRecord, VolumeSettings, VolumeState, WhenFull,
};
use onefold_format::{
    batch_page, catalogue_page, frame, map_page, queue_page, scrub_page, space_page, superblock,
};

pub(crate) const POOL: PoolId = PoolId(*b"a pool's own id.");

pub(crate) fn superblock() -> Superblock {
    Superblock {
        pool: POOL,
        block_size: 4096,
        index: IndexKind::Memory,
        log_bytes: 32 << 20,
        created_unix_seconds: 1_700_000_000,
        group: None,
    }
}

pub(crate) fn superblock_of_group() -> Superblock {
    Superblock {
        group: Some(GroupId(0x1234_5678_9abc_def0)),
        ..superblock()
    }
}

pub(crate) fn root() -> Root {
    Root {
        minor: MINOR_VERSION,
        sequence: 0x0123,
        session: 7,
        log_position: 0x45_6000,
        commit: 0x89ab,
        frame_checksum: 0xdead_beef,
        next_volume_id: 12,
        next_layer_id: 34,
        catalogue: tree_root(5, 1),
        space: tree_root(6, 2),
        pool_blocks: 26_214_400,
        next_batch: 0x56,
        queue: tree_root(7, 3),
        queue_head: 0x7_0003,
        queue_end: 0x7_1234,
        batch: tree_root(8, 1),
        open_batch: Some(OpenBatchHead {
            number: 0x55,
            kind: BatchKind::Finder(LayerId(23)),
            items: 4096,
            done: 17,
        }),
        next_domain_id: 4,
        shrink_to: Some(19_660_801),
        claims: tree_root(12, 2),
        claims_head: 0x9_0001,
        claims_end: 0x9_0abc,
        when_full: WhenFull::Fail,
        provisioning: Provisioning::Thin,
        exchanged: 0,
    }
}

pub(crate) fn root_of_group() -> Root {
    Root {
        minor: MINOR_OF_GROUPS,
        exchanged: 0x0fed_cba9_8765_4321,
        ..root()
    }
}

fn tree_root(page: u64, levels: u8) -> TreeRoot {
    TreeRoot {
        top: Some(pointer(page, 0)),
        levels,
    }
}

fn pointer(page: u64, info: u16) -> Pointer {
    Pointer {
        page: PageNumber(page),
        info,
        checksum: 0xc0de_0000 | page as u32,
    }
}

pub(crate) fn node() -> Node {
    let mut node = Node::default();
    node.children[0] = Some(pointer(17, 512));
    node.children[1] = Some(pointer(0xffff_ffff_ffff, 1));
    node.children[255] = Some(pointer(2, 300));
    node
}

pub(crate) fn segment() -> Box<Segment> {
    let mut segment = Box::new(EMPTY_SEGMENT);
    segment[0] = Entry::private(Pba(1));
    segment[1] = Entry::ZERO;
    segment[3] = Entry::private(Pba(0xff_ffff_ffff));
    segment[4] = Entry::unshareable(Pba(0x12_3456_7899));
    segment[5] = Entry::shared(Pba(0xff_ffff_fffe));
    segment[511] = Entry::private(Pba(0x12_3456_789a));
    segment
}

pub(crate) fn bitmap() -> Box<Bitmap> {
    let mut bitmap = Box::new(EMPTY_BITMAP);
    bitmap[0] = 0b10;
    bitmap[1] = u64::MAX;
    bitmap[255] = 1 << 63;
    bitmap
}

pub(crate) fn elements() -> Box<Elements> {
    let mut elements = Box::new(NO_ELEMENTS);
    for (place, element) in elements.iter_mut().enumerate().skip(100) {
        *element = Some(QueueElement {
            pba: Pba(0x9_8765 + 300 * place as u64),
            count: 1 + place as u16 % 256,
            domain: DomainId(place as u16 % 3),
        });
    }
    elements[ELEMENTS_PER_PAGE - 1] = Some(QueueElement {
        pba: Pba((1 << 40) - 256),
        count: 256,
        domain: DomainId(u16::MAX),
    });
    elements
}

/// A page of the open batch that is not full: the other samples have no place for zeros.
pub(crate) fn items() -> Vec<BatchItem> {
    let item = |place: u64| BatchItem {
        lba: Lba(0x1_0000_0203 + place),
        pba: Pba(0x9_8765 + 3 * place),
        domain: DomainId(2),
        moved: place % 5 == 4,
    };
    let mut items: Vec<BatchItem> = (0..200).map(item).collect();
    items.push(BatchItem {
        lba: Lba((1 << 38) - 1),
        pba: Pba((1 << 40) - 1),
        domain: DomainId(u16::MAX),
        moved: true,
    });
    assert!(items.len() < ITEMS_PER_PAGE, "zeros follow");
    items
}

pub(crate) fn secret() -> Secret {
    Secret(std::array::from_fn(|at| 0xa0 ^ at as u8))
}

pub(crate) fn export_mark() -> ExportMark {
    ExportMark {
        pool: POOL,
        place: 0x0102_0304,
        created_unix_seconds: 1_700_000_001,
        checksum: 0x5ca1_ab1e,
    }
}

pub(crate) fn losses() -> Losses {
    let volume = |volume, found_unix_seconds| DamagedVolume {
        volume: VolumeId(volume),
        found_unix_seconds,
    };
    let run = |start, count| LostRun {
        start: Pba(start),
        count,
    };
    Losses {
        volumes: vec![volume(3, 1_700_000_100), volume(12, 1_700_000_200)],
        runs: vec![run(77, 1), run(0x1234, 512), run(0x56_789a, 3)],
    }
}

pub(crate) fn scrub_progress() -> ScrubProgress {
    ScrubProgress {
        next_block: 0x12_3456_7890,
        left_blocks: 0x34_5678_9012,
        bytes_per_second: 200 << 20,
        ended_unix_seconds: 1_790_000_000,
    }
}

pub(crate) fn bad_blocks() -> Vec<BadBlock> {
    let bad = |pba, fault, attempts, fingerprint| BadBlock {
        pba: Pba(pba),
        fault,
        attempts,
        fingerprint,
    };
    let fingerprint = |first: u8| Some(std::array::from_fn(|at| first ^ at as u8));
    vec![
        bad(1, Fault::Unreadable, 0, None),
        bad(77, Fault::Changed, 2, fingerprint(0x50)),
        bad((1 << 40) - 1, Fault::Unreadable, 3, fingerprint(0xc0)),
    ]
}

fn volume(id: u64, state: VolumeState, map: TreeRoot, name: &str) -> VolumeRecord {
    VolumeRecord {
        id: VolumeId(id),
        layer: LayerId(id + 20),
        below: (id == 3).then_some(LayerId(0x1234)),
        snapshot_of: None,
        state,
        // One ends inside a block.
        size_bytes: (id << 30) + if id == 6 { 512 } else { 0 },
        created_unix_seconds: 1_700_000_000 + id,
        map,
        name: name.to_owned(),
        domain: DomainId(id as u16 + 50),
        domain_name: if id == 5 {
            "d".repeat(63)
        } else {
            format!("tenant-{id}")
        },
        settings: settings(id),
        counts: match map.top {
            Some(_) => LayerCounts {
                private: 0x1_0000 + id,
                unshareable: 0x200 + id,
                shared: 0x3_0000 + id,
            },
            None => LayerCounts::default(),
        },
    }
}

fn settings(id: u64) -> VolumeSettings {
    VolumeSettings {
        dedup: match id {
            4 => DedupMode::Off,
            5 => DedupMode::Inline,
            6 => DedupMode::Auto,
            _ => DedupMode::Offline,
        },
        verify: id == 3,
        cold_passes: id as u8 - 2,
        interval_seconds: 10 * id as u32,
        min_run: 1 + id as u16 * 7 % 5,
        hash_cache_bytes: id << 20,
        quota_bytes: id << 30,
        reservation_bytes: id << 24,
    }
}

pub(crate) fn volumes() -> Vec<Option<VolumeRecord>> {
    let mut slots = vec![None; catalogue_page::RECORDS_PER_PAGE];
    slots[0] = Some(volume(3, VolumeState::Ready, tree_root(9, 3), "web-1"));
    slots[2] = Some(volume(
        4,
        VolumeState::Importing,
        TreeRoot::default(),
        &"n".repeat(63),
    ));
    slots[13] = Some(snapshot(6, tree_root(11, 2)));
    slots[14] = Some(volume(5, VolumeState::Deleting, tree_root(10, 4), "0"));
    slots
}

fn snapshot(id: u64, map: TreeRoot) -> VolumeRecord {
    VolumeRecord {
        below: Some(LayerId(0x5678)),
        snapshot_of: Some(VolumeId(3)),
        ..volume(id, VolumeState::Ready, map, "before-upgrade")
    }
}

pub(crate) fn records() -> Vec<Record> {
    vec![
        Record::Map {
            layer: LayerId(23),
            lba: Lba(0x1_0000_0203),
            count: 8,
            old: Entry::ZERO,
            new: Entry::private(Pba(0x9_8765)),
        },
        Record::Unmap {
            layer: LayerId(24),
            lba: Lba(512),
            count: 512,
            to: UnmapTo::Zero,
        },
        Record::VolumePut {
            slot: 2,
            volume: volume(4, VolumeState::Ready, TreeRoot::default(), "web-2.old"),
        },
        Record::VolumeGone {
            slot: 14,
            volume: VolumeId(5),
            layer: LayerId(25),
        },
        Record::Publish {
            layer: LayerId(23),
            number: 0x55,
            runs: vec![
                publish_run(0x1_0000_0200, 0x9_8765, 3),
                publish_run(0x1_0000_0203, 7, 1),
                publish_run(0x1_0000_03f0, (1 << 40) - 16, 16),
            ],
        },
        Record::Outcome {
            layer: LayerId(23),
            number: 0x55,
            position: 4000,
            count: 96,
            outcome: Outcome::Aliased(Pba(0x12_3456_789a)),
        },
        Record::Collect {
            number: 0x56,
            elements: 0x123,
        },
        Record::Release {
            number: 0x56,
            position: 0x304,
            count: 0x102,
            release: Release::Freed,
        },
        Record::Freeze {
            slot: 13,
            snapshot: snapshot(6, TreeRoot::default()),
            live: LayerId(0x9abc),
            below: LayerId(0x6789),
        },
        Record::Merge {
            layer: LayerId(0x5678),
            above: LayerId(26),
            segment: SegmentIndex(0x80_0001),
        },
        Record::Map {
            layer: LayerId(23),
            lba: Lba(0x1_0000_020b),
            count: 3,
            old: Entry::private(Pba(0x9_8770)),
            new: Entry::shared(Pba(0x12_3456_7800)),
        },
        Record::Count {
            number: 0x57,
            elements: 0x321,
        },
        Record::Counted {
            number: 0x57,
            position: 0x405,
            count: 0x103,
            outcome: ClaimOutcome::Quarantined,
        },
    ]
}

/// Records that only a group has.
pub(crate) fn records_of_group() -> Vec<Record> {
    vec![
        Record::Release {
            number: 0x58,
            position: 0x506,
            count: 0x104,
            release: Release::Held,
        },
        Record::Exchange {
            number: 0x0fed_cba9_8765_4321,
            given: vec![
                given_run(0x12_3456_7890, 0x321),
                given_run(0x4000, 0x4000),
                given_run((1 << 40) - 1, 1),
            ],
            taken: vec![SpaceExtent(0x12_3456), SpaceExtent((1 << 26) - 1)],
        },
    ]
}

fn given_run(pba: u64, count: u32) -> GivenRun {
    GivenRun {
        pba: Pba(pba),
        count,
    }
}

/// A record of each kind.
pub(crate) fn all_records() -> Vec<Record> {
    let mut all = records();
    all.extend(records_of_group());
    all
}

fn publish_run(lba: u64, pba: u64, count: u32) -> PublishRun {
    PublishRun {
        lba: Lba(lba),
        pba: Pba(pba),
        count,
    }
}

pub(crate) fn payload() -> Vec<u8> {
    payload_of(&records())
}

/// The records one after the other.
pub(crate) fn payload_of(records: &[Record]) -> Vec<u8> {
    let mut payload = Vec::new();
    for record in records {
        record.encode(&mut payload);
    }
    payload
}

pub(crate) fn frame_header() -> frame::FrameHeader {
    frame::FrameHeader {
        session: 7,
        commit: 0x89ac,
        position: 0x45_6000,
        previous_checksum: 0xdead_beef,
        last: true,
    }
}

pub(crate) fn frame() -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::encode(&frame_header(), POOL, &payload(), &mut bytes);
    bytes
}

/// A page, how it is read, and its reserved bytes.
pub(crate) struct PageSample {
    pub(crate) name: &'static str,
    pub(crate) page: Box<PageBytes>,
    pub(crate) header: PageHeader,
    /// Checks header and body as a reader does.
    pub(crate) decode: fn(&PageBytes) -> Result<(), FormatError>,
}

fn header(kind: PageKind, level: u8, page: u64, owner: u64, index: u64) -> PageHeader {
    PageHeader {
        kind,
        level,
        pool: POOL,
        page: PageNumber(page),
        owner,
        index,
        sequence: 0x0123,
    }
}

fn node_header() -> PageHeader {
    header(PageKind::Node, 1, 77, 23, 256)
}

fn map_header() -> PageHeader {
    header(PageKind::Map, 0, 78, 23, 257)
}

fn space_header() -> PageHeader {
    header(PageKind::Space, 0, 79, SPACE_OWNER, 3)
}

fn catalogue_header() -> PageHeader {
    header(PageKind::Catalogue, 0, 80, CATALOGUE_OWNER, 4)
}

fn queue_header() -> PageHeader {
    header(PageKind::Queue, 0, 81, QUEUE_OWNER, 910)
}

fn batch_header() -> PageHeader {
    header(PageKind::Batch, 0, 82, BATCH_OWNER, 16)
}

fn sealed(header: &PageHeader, fill: impl FnOnce(&mut PageBytes)) -> Box<PageBytes> {
    let mut page = page::blank();
    fill(&mut page);
    page::seal(&mut page, header);
    page
}

pub(crate) fn pages() -> Vec<PageSample> {
    let mut pages = pages_outside_trees();
    pages.extend(pages_of_groups());
    pages.extend(pages_of_trees());
    pages
}

fn pages_outside_trees() -> Vec<PageSample> {
    let identity = PageHeader {
        sequence: 0,
        ..header(PageKind::Superblock, 0, 0, 0, 0)
    };
    vec![
        PageSample {
            name: "superblock",
            page: superblock().encode(),
            header: identity,
            decode: |page| Superblock::decode(page).map(drop),
        },
        PageSample {
            name: "data_label",
            page: superblock::encode_data_label(POOL),
            header: PageHeader {
                kind: PageKind::DataLabel,
                ..identity
            },
            decode: |page| superblock::check_data_label(page, POOL),
        },
        PageSample {
            name: "root",
            page: root().encode(POOL),
            header: header(PageKind::Root, 0, 1, 0, 0),
            decode: |page| Root::decode(page, POOL, PageNumber(1)).map(drop),
        },
        PageSample {
            name: "secret",
            page: secret().encode(POOL),
            header: PageHeader {
                kind: PageKind::Secret,
                ..identity
            },
            decode: |page| Secret::decode(page, POOL).map(drop),
        },
        PageSample {
            name: "export",
            page: export_mark().encode(),
            header: PageHeader {
                kind: PageKind::ExportMark,
                page: PageNumber(export_mark().place),
                ..identity
            },
            decode: |page| {
                let mark = ExportMark::decode(page, export_mark().place)?;
                let is_ours = mark.pool == POOL;
                is_ours.then_some(()).ok_or(FormatError::Pool)
            },
        },
        PageSample {
            name: "scrub_page",
            page: scrub_page::encode(0x0123, &scrub_progress(), &bad_blocks(), POOL).remove(0),
            header: header(PageKind::Scrub, 0, 64, 0, 0),
            decode: |page| ScrubPage::decode(page, POOL, PageNumber(64)).map(drop),
        },
        PageSample {
            name: "loss_page",
            page: losses().encode(0x0123, POOL).remove(0).1,
            header: header(PageKind::Losses, 0, 1, 0, 0),
            decode: |page| LossPage::decode(page, POOL, PageNumber(1)).map(drop),
        },
    ]
}

/// Pages that have a field which only a group's have.
fn pages_of_groups() -> Vec<PageSample> {
    vec![
        PageSample {
            name: "superblock_of_group",
            page: superblock_of_group().encode(),
            ..page_outside_trees("superblock")
        },
        PageSample {
            name: "root_of_group",
            page: root_of_group().encode(POOL),
            ..page_outside_trees("root")
        },
    ]
}

fn page_outside_trees(name: &str) -> PageSample {
    let mut pages = pages_outside_trees().into_iter();
    pages.find(|page| page.name == name).expect("a known page")
}

fn pages_of_trees() -> Vec<PageSample> {
    vec![
        PageSample {
            name: "node",
            page: sealed(&node_header(), |page| node().encode(page)),
            header: node_header(),
            decode: |page| {
                page::open(page, &node_header())?;
                Node::decode(page).map(drop)
            },
        },
        PageSample {
            name: "map_page",
            page: sealed(&map_header(), |page| map_page::encode(&segment(), page)),
            header: map_header(),
            decode: |page| {
                page::open(page, &map_header())?;
                map_page::decode(page).map(drop)
            },
        },
        PageSample {
            name: "space_page",
            page: sealed(&space_header(), |page| space_page::encode(&bitmap(), page)),
            header: space_header(),
            decode: |page| {
                page::open(page, &space_header())?;
                space_page::decode(page).map(drop)
            },
        },
        PageSample {
            name: "catalogue_page",
            page: sealed(&catalogue_header(), |page| {
                catalogue_page::encode(&volumes(), page);
            }),
            header: catalogue_header(),
            decode: |page| {
                page::open(page, &catalogue_header())?;
                catalogue_page::decode(page).map(drop)
            },
        },
        PageSample {
            name: "queue_page",
            page: sealed(&queue_header(), |page| {
                queue_page::encode(&elements(), page)
            }),
            header: queue_header(),
            decode: |page| {
                page::open(page, &queue_header())?;
                queue_page::decode(page).map(drop)
            },
        },
        PageSample {
            name: "batch_page",
            page: sealed(&batch_header(), |page| batch_page::encode(&items(), page)),
            header: batch_header(),
            decode: |page| {
                page::open(page, &batch_header())?;
                batch_page::decode(page).map(drop)
            },
        },
    ]
}

pub(crate) fn page(name: &str) -> PageSample {
    let mut pages = pages().into_iter();
    pages.find(|page| page.name == name).expect("a known page")
}

/// Gives a page that was changed by hand the checksum that its bytes have now.
pub(crate) fn reseal(page: &mut PageBytes) {
    page[60..64].fill(0);
    let checksum = crc32c::crc32c(page);
    page[60..64].copy_from_slice(&checksum.to_le_bytes());
}

/// Gives a frame that was changed by hand the checksum that its bytes have now.
pub(crate) fn reseal_frame(bytes: &mut [u8]) {
    bytes[60..64].fill(0);
    let payload = u32::from_le_bytes(bytes[48..52].try_into().expect("four bytes"));
    let checksum = crc32c::crc32c(&bytes[..64 + payload as usize]);
    bytes[60..64].copy_from_slice(&checksum.to_le_bytes());
}

/// A trace with a frame of each kind.
pub(crate) fn trace_frames() -> Vec<TraceFrame> {
    vec![
        TraceFrame::Start {
            ways: vec!["fixed:4096".to_owned(), "file".to_owned()],
        },
        TraceFrame::Input {
            path: b"/data/\xff".to_vec(),
        },
        TraceFrame::Kind {
            name: "img".to_owned(),
        },
        TraceFrame::File {
            position: 0x0102_0304,
            bytes: 5 * 4096 + 300,
            input: 0,
            name: b"/data/\xff/disk.img".to_vec(),
        },
        TraceFrame::Chunks(TraceChunks {
            position: 0x0102_0304,
            input: 0,
            kind: 0,
            size_class: 14,
            way: 0,
            runs: vec![
                TraceRun {
                    bytes: 4096,
                    content: TraceContent::Data(vec![0xfedc_ba98 << 90, 1]),
                },
                TraceRun {
                    bytes: 4096,
                    content: TraceContent::Zeros(3),
                },
                TraceRun {
                    bytes: 300,
                    content: TraceContent::Data(vec![u128::MAX]),
                },
            ],
        }),
        TraceFrame::Sample {
            way: 0,
            zero_bits: 2,
            units: vec![TraceUnit {
                fingerprint: 0xfedc_ba98 << 90,
                position: 0x0102_0304,
                bytes: 4096,
                compressed_bytes: 1234,
                group_bytes: 65_536,
                compressed_group_bytes: 34_567,
            }],
        },
        TraceFrame::Problem {
            path: b"/data/secret".to_vec(),
            what: "Permission denied (os error 13)".to_owned(),
        },
        TraceFrame::End(TraceEnd {
            files: 3,
            empty_files: 1,
            bytes: 5 * 4096 + 301,
            skipped: 2,
            unopened_disks: 4,
            is_complete: true,
        }),
    ]
}

/// Reads the trace frame that begins at `position` of its file and ends with `bytes`.
pub(crate) fn read_trace_frame(bytes: &[u8], position: u64) -> Result<TraceFrame, FormatError> {
    let (header, payload) = bytes.split_first_chunk().expect("a header");
    let said = trace::decode_header(header)?;
    if said.payload_bytes != payload.len() {
        return Err(FormatError::Short {
            needed: said.payload_bytes,
            got: payload.len(),
        });
    }
    trace::decode(header, payload, position)
}

/// Reads a frame as recovery does.
pub(crate) fn read_frame(bytes: &[u8]) -> Result<(frame::FrameHeader, Vec<u8>), FormatError> {
    let unchecked = frame::decode_header(bytes, POOL)?;
    frame::check(&unchecked, bytes)?;
    let payload = &bytes[frame::FRAME_HEADER_BYTES..][..unchecked.payload_bytes];
    Ok((unchecked.header, payload.to_vec()))
}

#[test]
fn samples_are_valid() {
    for sample in pages() {
        assert_eq!((sample.decode)(&sample.page), Ok(()), "{}", sample.name);
        assert_eq!(sample.page.len(), PAGE_BYTES);
    }
    assert_eq!(read_frame(&frame()), Ok((frame_header(), payload())));
}
