//! The tables of pages and of their content.

use onefold_format::batch_page::{self, ITEM_BYTES, ITEMS_PER_PAGE};
use onefold_format::catalogue_page::{self, RECORDS_PER_PAGE, VOLUME_RECORD_BYTES};
use onefold_format::map_page::{self, EMPTY_SEGMENT};
use onefold_format::node::{Node, Pointer};
use onefold_format::page::{self, PageBytes, PageHeader, PageKind};
use onefold_format::queue_page::{self, ELEMENTS_PER_PAGE};
use onefold_format::scrub_page::{self, BAD_BLOCK_BYTES};
use onefold_format::space_page::{self, EMPTY_BITMAP};
use onefold_format::{
    BadBlock, BatchItem, BatchKind, DedupMode, DomainId, Entry, ExportMark, Fault, FormatError,
    GroupId, IndexKind, LayerCounts, LayerId, Lba, MAJOR_VERSION, MINOR_VERSION, OpenBatchHead,
    PageNumber, Pba, PoolId, Provisioning, QueueElement, Root, ScrubProgress, Secret, Superblock,
    TreeRoot, VolumeId, VolumeRecord, VolumeSettings, VolumeState, WhenFull,
};

use super::{ALL, Trial, bit_table, bits_of, check, crc_without, table};
use crate::samples::{self, POOL, page, reseal};

fn without_checksum(page: &PageBytes) -> Vec<u8> {
    let mut bytes = page.to_vec();
    bytes[60..64].fill(0);
    bytes
}

/// Whether a page with a one at this offset and the right checksum is refused.
fn page_refuses(name: &str, at: usize) -> bool {
    let mut sample = page(name);
    sample.page[at] |= 1;
    reseal(&mut sample.page);
    matches!(
        (sample.decode)(&sample.page),
        Err(FormatError::Reserved { .. })
    )
}

#[test]
fn page_document() {
    let rows = table(include_str!("../../../../../docs/format/page.md"), "Header");
    let none = PageHeader {
        kind: PageKind::Superblock,
        level: 0,
        pool: PoolId([0; 16]),
        page: PageNumber(0),
        owner: 0,
        index: 0,
        sequence: 0,
    };
    let whole = |change: &dyn Fn(&mut PageHeader)| {
        let sealed = |header: &PageHeader| {
            let mut page = page::blank();
            page::seal(&mut page, header);
            without_checksum(&page)[..64].to_vec()
        };
        let mut header = none;
        change(&mut header);
        Trial::Whole(sealed(&none), sealed(&header))
    };
    let sample = page("map_page").page;
    let trials = vec![
        ("magic", Trial::Is(b"1FLD".to_vec())),
        ("kind", whole(&|header| header.kind = PageKind::Map)),
        ("major", Trial::Is(vec![MAJOR_VERSION])),
        ("minor", Trial::Is(vec![MINOR_VERSION])),
        ("level", whole(&|header| header.level = 1)),
        ("pool", whole(&|header| header.pool = PoolId([255; 16]))),
        ("page", whole(&|header| header.page = PageNumber(u64::MAX))),
        ("owner", whole(&|header| header.owner = u64::MAX)),
        ("index", whole(&|header| header.index = u64::MAX)),
        ("sequence", whole(&|header| header.sequence = u64::MAX)),
        ("checksum", Trial::Is(crc_without(&sample[..], 60..64))),
    ];
    check(&rows, &sample[..64], trials, |at| {
        page_refuses("map_page", at)
    });
}

#[test]
fn superblock_document() {
    let document = include_str!("../../../../../docs/format/superblock.md");
    let none = Superblock {
        block_size: 0,
        index: IndexKind::Btree,
        log_bytes: 0,
        created_unix_seconds: 0,
        ..samples::superblock()
    };
    let whole = |change: &dyn Fn(&mut Superblock)| {
        let mut superblock = none;
        change(&mut superblock);
        let page = |superblock: Superblock| without_checksum(&superblock.encode());
        Trial::Whole(page(none), page(superblock))
    };
    let encoded = |superblock: Superblock| without_checksum(&superblock.encode());
    // A group's superblock has another minor version, too; here only the group differs.
    let of_group = |group| {
        encoded(Superblock {
            group: Some(GroupId(group)),
            ..none
        })
    };
    let with_memory = Superblock {
        index: IndexKind::Memory,
        ..none
    };
    let trials = vec![
        ("page header", Trial::Elsewhere),
        (
            "block size",
            whole(&|superblock| superblock.block_size = u32::MAX),
        ),
        ("index", Trial::Part(encoded(none), encoded(with_memory))),
        ("log bytes", whole(&|superblock| superblock.log_bytes = ALL)),
        (
            "created",
            whole(&|superblock| superblock.created_unix_seconds = ALL),
        ),
        ("group", Trial::Whole(of_group(0), of_group(ALL))),
    ];
    let sample = page("superblock").page;
    check(&table(document, "Superblock"), &sample[..], trials, |at| {
        page_refuses("superblock", at)
    });
    let label = page("data_label").page;
    let trials = vec![("page header", Trial::Elsewhere)];
    check(&table(document, "Data label"), &label[..], trials, |at| {
        page_refuses("data_label", at)
    });
}

/// A pointer in which every byte is set; as the top of a tree it counts nothing.
fn full_pointer(info: u16) -> Pointer {
    Pointer {
        page: PageNumber((1 << 48) - 1),
        info,
        checksum: u32::MAX,
    }
}

fn full_tree() -> TreeRoot {
    TreeRoot {
        top: Some(full_pointer(0)),
        levels: 4,
    }
}

/// A root of zeros, except for the fields that every encoding has.
fn empty_root() -> Root {
    Root {
        minor: MINOR_VERSION,
        sequence: 1,
        session: 0,
        log_position: 0,
        commit: 0,
        frame_checksum: 0,
        next_volume_id: 0,
        next_layer_id: 0,
        catalogue: TreeRoot::default(),
        space: TreeRoot::default(),
        pool_blocks: 0,
        next_batch: 0,
        queue: TreeRoot::default(),
        queue_head: 0,
        queue_end: 0,
        batch: TreeRoot::default(),
        open_batch: Some(EMPTY_BATCH),
        next_domain_id: 0,
        shrink_to: None,
        claims: TreeRoot::default(),
        claims_head: 0,
        claims_end: 0,
        when_full: WhenFull::Pause,
        provisioning: Provisioning::Thin,
        exchanged: 0,
    }
}

const EMPTY_BATCH: OpenBatchHead = OpenBatchHead {
    number: 0,
    kind: BatchKind::Finder(LayerId(0)),
    items: 0,
    done: 0,
};

fn root_pair(change: &dyn Fn(&mut Root)) -> (Vec<u8>, Vec<u8>) {
    let mut root = empty_root();
    change(&mut root);
    let page = |root: Root| without_checksum(&root.encode(POOL));
    (page(empty_root()), page(root))
}

#[test]
fn root_document() {
    let rows = table(include_str!("../../../../../docs/format/root.md"), "Root");
    let whole = |change: &dyn Fn(&mut Root)| {
        let (a, b) = root_pair(change);
        Trial::Whole(a, b)
    };
    let part = |change: &dyn Fn(&mut Root)| {
        let (a, b) = root_pair(change);
        Trial::Part(a, b)
    };
    let mut trials = vec![
        ("page header", part(&|root| root.sequence = 3)),
        ("session", whole(&|root| root.session = ALL)),
        ("log position", whole(&|root| root.log_position = ALL)),
        ("commit", whole(&|root| root.commit = ALL)),
        (
            "frame checksum",
            whole(&|root| root.frame_checksum = u32::MAX),
        ),
        ("next volume id", whole(&|root| root.next_volume_id = ALL)),
        ("next layer id", whole(&|root| root.next_layer_id = ALL)),
        ("catalogue", part(&|root| root.catalogue = full_tree())),
        ("free space", part(&|root| root.space = full_tree())),
        ("pool blocks", whole(&|root| root.pool_blocks = ALL)),
        ("next batch", whole(&|root| root.next_batch = ALL)),
        ("queue", part(&|root| root.queue = full_tree())),
        ("queue head", whole(&|root| root.queue_head = ALL)),
        ("queue end", whole(&|root| root.queue_end = ALL)),
        ("batch", part(&|root| root.batch = full_tree())),
    ];
    trials.extend(open_batch_trials());
    trials.push((
        "next domain id",
        whole(&|root| root.next_domain_id = u32::MAX),
    ));
    trials.push(("shrink to", whole(&|root| root.shrink_to = Some(ALL))));
    trials.extend([
        ("claims", part(&|root| root.claims = full_tree())),
        ("claims head", whole(&|root| root.claims_head = ALL)),
        ("claims end", whole(&|root| root.claims_end = ALL)),
        ("exchanged", whole(&|root| root.exchanged = ALL)),
    ]);
    trials.push((
        "provisioning",
        part(&|root| root.provisioning = Provisioning::Thick),
    ));
    trials.push(("when full", part(&|root| root.when_full = WhenFull::Fail)));
    let sample = page("root").page;
    check(&rows, &sample[..], trials, |at| page_refuses("root", at));
}

fn open_batch_trials() -> Vec<(&'static str, Trial)> {
    let pair = |change: &dyn Fn(&mut OpenBatchHead)| {
        let mut head = EMPTY_BATCH;
        change(&mut head);
        root_pair(&|root| root.open_batch = Some(head))
    };
    let whole = |change: &dyn Fn(&mut OpenBatchHead)| {
        let (a, b) = pair(change);
        Trial::Whole(a, b)
    };
    let of_layer = BatchKind::Finder(LayerId(ALL));
    let (before, of_collector) = pair(&|head| head.kind = BatchKind::Collector);
    vec![
        ("batch number", whole(&|head| head.number = ALL)),
        ("batch layer", whole(&|head| head.kind = of_layer)),
        ("batch kind", Trial::Part(before, of_collector)),
        ("batch items", whole(&|head| head.items = u32::MAX)),
        ("batch done", whole(&|head| head.done = u32::MAX)),
    ]
}

#[test]
fn node_document() {
    let document = include_str!("../../../../../docs/format/node.md");
    let encoded = |node: &Node| {
        let mut page = page::blank();
        node.encode(&mut page);
        page.to_vec()
    };
    let mut full = Node::default();
    full.children.fill(Some(full_pointer(u16::MAX)));
    let trials = vec![
        ("page header", Trial::Elsewhere),
        (
            "pointers",
            Trial::Whole(encoded(&Node::default()), encoded(&full)),
        ),
    ];
    let sample = page("node").page;
    check(&table(document, "Node page"), &sample[..], trials, |at| {
        page_refuses("node", at)
    });
}

#[test]
fn pointer_document() {
    let document = include_str!("../../../../../docs/format/node.md");
    let sample = page("node").page;
    let zero = Pointer {
        page: PageNumber(0),
        info: 0,
        checksum: 0,
    };
    let in_node = |pointer: Pointer| {
        let mut node = Node::default();
        node.children[0] = Some(pointer);
        let mut page = page::blank();
        node.encode(&mut page);
        page[64..76].to_vec()
    };
    let whole = |pointer: Pointer| Trial::Whole(in_node(zero), in_node(pointer));
    let last = PageNumber((1 << 48) - 1);
    let trials = vec![
        ("page", whole(Pointer { page: last, ..zero })),
        (
            "info",
            whole(Pointer {
                info: u16::MAX,
                ..zero
            }),
        ),
        (
            "checksum",
            whole(Pointer {
                checksum: u32::MAX,
                ..zero
            }),
        ),
    ];
    check(&table(document, "Pointer"), &sample[64..76], trials, |_| {
        false
    });
}

#[test]
fn tree_root_document() {
    let document = include_str!("../../../../../docs/format/node.md");
    let in_root = |space: TreeRoot| {
        let root = Root {
            space,
            ..samples::root()
        };
        root.encode(POOL)[128..144].to_vec()
    };
    let other_top = TreeRoot {
        top: Some(full_pointer(0)),
        ..samples::root().space
    };
    let other_levels = TreeRoot {
        levels: 3,
        ..samples::root().space
    };
    let sample = in_root(samples::root().space);
    let trials = vec![
        ("pointer", Trial::Part(sample.clone(), in_root(other_top))),
        (
            "levels",
            Trial::Whole(sample.clone(), in_root(other_levels)),
        ),
    ];
    check(&table(document, "Tree root"), &sample, trials, |at| {
        page_refuses("root", 128 + at)
    });
}

#[test]
fn map_page_document() {
    let rows = table(
        include_str!("../../../../../docs/format/map_page.md"),
        "Map page",
    );
    let encoded = |entry: Entry| {
        let mut segment = EMPTY_SEGMENT;
        segment.fill(entry);
        let mut page = page::blank();
        map_page::encode(&segment, &mut page);
        page.to_vec()
    };
    let full = encoded(Entry::private(Pba((1 << 40) - 1)));
    let trials = vec![
        ("page header", Trial::Elsewhere),
        ("entries", Trial::Part(encoded(Entry::ABSENT), full)),
    ];
    let sample = page("map_page").page;
    check(&rows, &sample[..], trials, |at| {
        page_refuses("map_page", at)
    });
}

#[test]
fn space_page_document() {
    let rows = table(
        include_str!("../../../../../docs/format/space_page.md"),
        "Space page",
    );
    let encoded = |bitmap: &space_page::Bitmap| {
        let mut page = page::blank();
        space_page::encode(bitmap, &mut page);
        page.to_vec()
    };
    let full = EMPTY_BITMAP.map(|_| u64::MAX);
    let trials = vec![
        ("page header", Trial::Elsewhere),
        ("bits", Trial::Whole(encoded(&EMPTY_BITMAP), encoded(&full))),
    ];
    let sample = page("space_page").page;
    check(&rows, &sample[..], trials, |at| {
        page_refuses("space_page", at)
    });
}

const CATALOGUE_DOCUMENT: &str = include_str!("../../../../../docs/format/catalogue_page.md");

fn encoded_volumes(slots: &[Option<VolumeRecord>]) -> Vec<u8> {
    let mut page = page::blank();
    catalogue_page::encode(slots, &mut page);
    page.to_vec()
}

/// A volume of zeros, except for the fields that every encoding has.
fn empty_volume() -> VolumeRecord {
    VolumeRecord {
        id: VolumeId(0),
        layer: LayerId(0),
        below: None,
        snapshot_of: None,
        state: VolumeState::Importing,
        size_bytes: 0,
        created_unix_seconds: 0,
        map: TreeRoot::default(),
        name: "a".to_owned(),
        domain: DomainId(0),
        domain_name: "a".to_owned(),
        settings: VolumeSettings {
            cold_passes: 0,
            interval_seconds: 0,
            ..VolumeSettings::of_mode(DedupMode::Off)
        },
        counts: LayerCounts::default(),
    }
}

#[test]
fn catalogue_page_document() {
    let none = encoded_volumes(&[]);
    let full = encoded_volumes(&vec![Some(empty_volume()); RECORDS_PER_PAGE]);
    let trials = vec![
        ("page header", Trial::Elsewhere),
        ("records", Trial::Part(none, full)),
    ];
    let rows = table(CATALOGUE_DOCUMENT, "Catalogue page");
    let sample = page("catalogue_page").page;
    check(&rows, &sample[..], trials, |at| {
        page_refuses("catalogue_page", at)
    });
}

#[test]
fn volume_record_document() {
    let first = |record: &VolumeRecord| {
        encoded_volumes(&[Some(record.clone())])[64..64 + VOLUME_RECORD_BYTES].to_vec()
    };
    let pair = |change: &dyn Fn(&mut VolumeRecord)| {
        let mut record = empty_volume();
        change(&mut record);
        (first(&empty_volume()), first(&record))
    };
    let whole = |change: &dyn Fn(&mut VolumeRecord)| {
        let (a, b) = pair(change);
        Trial::Whole(a, b)
    };
    let part = |change: &dyn Fn(&mut VolumeRecord)| {
        let (a, b) = pair(change);
        Trial::Part(a, b)
    };
    // A snapshot has another kind, too; here only the volume differs.
    let of = |volume| VolumeRecord {
        snapshot_of: Some(VolumeId(volume)),
        ..empty_volume()
    };
    let snapshot_of = Trial::Whole(first(&of(0)), first(&of(ALL)));
    let sample = first(&VolumeRecord {
        name: "n".repeat(63),
        domain_name: "d".repeat(62),
        ..empty_volume()
    });
    let trials = vec![
        ("kind", Trial::Is(vec![1])),
        ("state", whole(&|record| record.state = VolumeState::Ready)),
        (
            "dedup",
            whole(&|record| record.settings.dedup = DedupMode::Offline),
        ),
        ("name len", Trial::Is(vec![63])),
        ("domain", part(&|record| record.domain = DomainId(u16::MAX))),
        ("volume", whole(&|record| record.id = VolumeId(u64::MAX))),
        ("layer", whole(&|record| record.layer = LayerId(u64::MAX))),
        ("size", whole(&|record| record.size_bytes = u64::MAX)),
        (
            "created",
            whole(&|record| record.created_unix_seconds = u64::MAX),
        ),
        ("map", part(&|record| record.map = full_tree())),
        ("flags", whole(&|record| record.settings.verify = true)),
        ("domain name len", Trial::Is(vec![62])),
        (
            "cold passes",
            whole(&|record| record.settings.cold_passes = u8::MAX),
        ),
        ("min run", whole(&|record| record.settings.min_run = 256)),
        (
            "interval",
            whole(&|record| record.settings.interval_seconds = u32::MAX),
        ),
        ("private", whole(&|record| record.counts.private = ALL)),
        (
            "unshareable",
            whole(&|record| record.counts.unshareable = ALL),
        ),
        ("shared", whole(&|record| record.counts.shared = ALL)),
        (
            "cache",
            whole(&|record| record.settings.hash_cache_bytes = u64::MAX),
        ),
        ("below", whole(&|record| record.below = Some(LayerId(ALL)))),
        ("snapshot of", snapshot_of),
        (
            "quota",
            whole(&|record| record.settings.quota_bytes = u64::MAX),
        ),
        (
            "reservation",
            whole(&|record| record.settings.reservation_bytes = u64::MAX),
        ),
        ("name", part(&|record| record.name = "b".to_owned())),
        (
            "domain name",
            part(&|record| record.domain_name = "b".to_owned()),
        ),
    ];
    let rows = table(CATALOGUE_DOCUMENT, "Volume record");
    check(&rows, &sample, trials, |at| {
        page_refuses("catalogue_page", 64 + at)
    });
}

#[test]
fn queue_page_document() {
    let document = include_str!("../../../../../docs/format/queue_page.md");
    let encoded = |element: Option<QueueElement>| {
        let mut page = page::blank();
        queue_page::encode(&[element; ELEMENTS_PER_PAGE], &mut page);
        page.to_vec()
    };
    let element = |pba, count, domain| {
        Some(QueueElement {
            pba: Pba(pba),
            count,
            domain: DomainId(domain),
        })
    };
    let full = encoded(element((1 << 40) - 1, 1, u16::MAX));
    let trials = vec![
        ("page header", Trial::Elsewhere),
        ("elements", Trial::Whole(encoded(None), full)),
    ];
    let sample = page("queue_page").page;
    check(&table(document, "Queue page"), &sample[..], trials, |at| {
        page_refuses("queue_page", at)
    });

    let bits = |element| {
        let word = encoded(element)[64..72].try_into().expect("one element");
        bits_of(u64::from_le_bytes(word), 64)
    };
    let first = bits(element(1, 1, 0));
    let whole = |other| Trial::Whole(first.clone(), bits(other));
    let trials = vec![
        ("PBA", whole(element((1 << 40) - 2, 1, 0))),
        ("count", whole(element(1, 256, 0))),
        ("domain", whole(element(1, 1, u16::MAX))),
    ];
    check(&bit_table(document, "Element"), &first, trials, |_| false);
}

#[test]
fn batch_page_document() {
    let document = include_str!("../../../../../docs/format/batch_page.md");
    let encoded = |lba, pba, domain, moved| {
        let item = BatchItem {
            lba: Lba(lba),
            pba: Pba(pba),
            domain: DomainId(domain),
            moved,
        };
        let mut page = page::blank();
        batch_page::encode(&[item; ITEMS_PER_PAGE], &mut page);
        page.to_vec()
    };
    let none = page::blank().to_vec();
    let full = encoded(1, 1, 0, true);
    let trials = vec![
        ("page header", Trial::Elsewhere),
        ("items", Trial::Whole(none, full)),
    ];
    let sample = page("batch_page").page;
    check(&table(document, "Batch page"), &sample[..], trials, |at| {
        page_refuses("batch_page", at)
    });

    let item =
        |lba, pba, domain, moved| encoded(lba, pba, domain, moved)[64..64 + ITEM_BYTES].to_vec();
    let first = item(0, 1, 0, false);
    let trials = vec![
        (
            "lba",
            Trial::Part(first.clone(), item((1 << 38) - 1, 1, 0, false)),
        ),
        ("block", Trial::Whole(first.clone(), item(0, 2, 0, true))),
    ];
    check(&table(document, "Item"), &first, trials, |_| false);

    let block = |pba, domain, moved| {
        let word = item(0, pba, domain, moved)[8..].try_into().expect("a word");
        bits_of(u64::from_le_bytes(word), 64)
    };
    let first = block(1, 0, false);
    let whole = |other| Trial::Whole(first.clone(), other);
    let trials = vec![
        ("PBA", whole(block((1 << 40) - 2, 0, false))),
        ("domain", whole(block(1, u16::MAX, false))),
        ("moved", whole(block(1, 0, true))),
    ];
    check(&bit_table(document, "Block"), &first, trials, |bit| {
        let mut sample = page("batch_page");
        sample.page[64 + 8 + bit / 8] |= 1 << (bit % 8);
        reseal(&mut sample.page);
        let read = (sample.decode)(&sample.page);
        matches!(read, Err(FormatError::Reserved { .. }))
    });
}

#[test]
fn export_document() {
    let document = include_str!("../../../../../docs/format/export.md");
    let mark = samples::export_mark();
    let encoded = |mark: ExportMark| without_checksum(&mark.encode());
    let created = |created_unix_seconds| {
        encoded(ExportMark {
            created_unix_seconds,
            ..mark
        })
    };
    let checksum = |checksum| encoded(ExportMark { checksum, ..mark });
    let trials = vec![
        ("page header", Trial::Elsewhere),
        ("created", Trial::Whole(created(0), created(ALL))),
        ("checksum", Trial::Whole(checksum(0), checksum(u32::MAX))),
    ];
    let sample = page("export").page;
    check(&table(document, "Mark"), &sample[..], trials, |at| {
        page_refuses("export", at)
    });
}

#[test]
fn secret_document() {
    let document = include_str!("../../../../../docs/format/secret.md");
    let encoded = |byte| without_checksum(&Secret([byte; 32]).encode(POOL));
    let trials = vec![
        ("page header", Trial::Elsewhere),
        ("secret", Trial::Whole(encoded(0), encoded(255))),
    ];
    let sample = page("secret").page;
    check(&table(document, "Secret"), &sample[..], trials, |at| {
        page_refuses("secret", at)
    });
}

#[test]
fn scrub_page_document() {
    let document = include_str!("../../../../../docs/format/scrub_page.md");
    let none = ScrubProgress::default();
    let encoded = |progress: &ScrubProgress, bad_blocks: &[BadBlock]| {
        without_checksum(&scrub_page::encode(1, progress, bad_blocks, POOL)[0])
    };
    let progress = |change: &dyn Fn(&mut ScrubProgress)| {
        let mut changed = none;
        change(&mut changed);
        Trial::Whole(encoded(&none, &[]), encoded(&changed, &[]))
    };
    let within = |change: &dyn Fn(&mut ScrubProgress)| match progress(change) {
        Trial::Whole(before, after) => Trial::Part(before, after),
        other => other,
    };
    let whole = BadBlock {
        pba: Pba(1),
        fault: Fault::Unreadable,
        attempts: 0,
        fingerprint: None,
    };
    let mut counted = encoded(&none, &[whole]);
    counted[128..].fill(0);
    let mut listed = encoded(&none, &[whole]);
    listed[96..100].fill(0);
    let trials = vec![
        ("page header", Trial::Elsewhere),
        (
            "next block",
            within(&|scrub| scrub.next_block = (1 << 40) - 1),
        ),
        ("left", within(&|scrub| scrub.left_blocks = 1 << 40)),
        ("rate", progress(&|scrub| scrub.bytes_per_second = ALL)),
        ("ended", progress(&|scrub| scrub.ended_unix_seconds = ALL)),
        ("bad blocks", Trial::Part(encoded(&none, &[]), counted)),
        ("list", Trial::Part(encoded(&none, &[]), listed)),
    ];
    let sample = page("scrub_page").page;
    check(&table(document, "Scrub page"), &sample[..], trials, |at| {
        page_refuses("scrub_page", at)
    });

    let bad = |change: &dyn Fn(&mut BadBlock)| {
        let mut block = whole;
        change(&mut block);
        encoded(&none, &[block])[128..128 + BAD_BLOCK_BYTES].to_vec()
    };
    let of = |byte| Some([byte; 16]);
    let known = bad(&|block| block.fingerprint = of(0));
    let changed = |change: &dyn Fn(&mut BadBlock)| Trial::Whole(known.clone(), bad(change));
    let last = Pba((1 << 40) - 2);
    let trials = vec![
        (
            "PBA",
            Trial::Part(bad(&|_| ()), bad(&|block| block.pba = last)),
        ),
        ("fingerprint", changed(&|block| block.fingerprint = of(255))),
        (
            "fault",
            changed(&|block| {
                block.fingerprint = of(0);
                block.fault = Fault::Changed;
            }),
        ),
        (
            "attempts",
            changed(&|block| {
                block.fingerprint = of(0);
                block.attempts = 3;
            }),
        ),
        ("known", changed(&|_| ())),
    ];
    check(&table(document, "Bad block"), &known, trials, |at| {
        page_refuses("scrub_page", 128 + at)
    });
}
