//! The tables of pages and of what stands in them.

use onefold_format::catalogue_page::{self, RECORDS_PER_PAGE, VOLUME_RECORD_BYTES};
use onefold_format::map_page::{self, EMPTY_SEGMENT};
use onefold_format::node::{Node, Pointer};
use onefold_format::page::{self, PageBytes, PageHeader, PageKind};
use onefold_format::space_page::{self, EMPTY_BITMAP};
use onefold_format::{
    Entry, FormatError, LayerId, MAJOR_VERSION, MINOR_VERSION, PageNumber, Pba, PoolId, Root,
    Superblock, TreeRoot, VolumeId, VolumeRecord, VolumeState,
};

use super::{ALL, Trial, check, crc_without, table};
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
    let trials = vec![
        ("page header", Trial::Elsewhere),
        (
            "block size",
            whole(&|superblock| superblock.block_size = u32::MAX),
        ),
        ("log bytes", whole(&|superblock| superblock.log_bytes = ALL)),
        (
            "created",
            whole(&|superblock| superblock.created_unix_seconds = ALL),
        ),
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

#[test]
fn root_document() {
    let rows = table(include_str!("../../../../../docs/format/root.md"), "Root");
    let none = Root {
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
    };
    let pair = |change: &dyn Fn(&mut Root)| {
        let mut root = none;
        change(&mut root);
        let page = |root: Root| without_checksum(&root.encode(POOL));
        (page(none), page(root))
    };
    let whole = |change: &dyn Fn(&mut Root)| {
        let (a, b) = pair(change);
        Trial::Whole(a, b)
    };
    let part = |change: &dyn Fn(&mut Root)| {
        let (a, b) = pair(change);
        Trial::Part(a, b)
    };
    let trials = vec![
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
    ];
    let sample = page("root").page;
    check(&rows, &sample[..], trials, |at| page_refuses("root", at));
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

#[test]
fn catalogue_page_document() {
    let document = include_str!("../../../../../docs/format/catalogue_page.md");
    let encoded = |slots: &[Option<VolumeRecord>]| {
        let mut page = page::blank();
        catalogue_page::encode(slots, &mut page);
        page.to_vec()
    };
    let none = VolumeRecord {
        id: VolumeId(0),
        layer: LayerId(0),
        state: VolumeState::Importing,
        size_bytes: 0,
        created_unix_seconds: 0,
        map: TreeRoot::default(),
        name: "a".to_owned(),
    };
    let full = vec![Some(none.clone()); RECORDS_PER_PAGE];
    let trials = vec![
        ("page header", Trial::Elsewhere),
        ("records", Trial::Part(encoded(&[]), encoded(&full))),
    ];
    let sample = page("catalogue_page").page;
    check(
        &table(document, "Catalogue page"),
        &sample[..],
        trials,
        |at| page_refuses("catalogue_page", at),
    );

    let first = |record: &VolumeRecord| {
        encoded(&[Some(record.clone())])[64..64 + VOLUME_RECORD_BYTES].to_vec()
    };
    let pair = |change: &dyn Fn(&mut VolumeRecord)| {
        let mut record = none.clone();
        change(&mut record);
        (first(&none), first(&record))
    };
    let whole = |change: &dyn Fn(&mut VolumeRecord)| {
        let (a, b) = pair(change);
        Trial::Whole(a, b)
    };
    let part = |change: &dyn Fn(&mut VolumeRecord)| {
        let (a, b) = pair(change);
        Trial::Part(a, b)
    };
    let sample = first(&VolumeRecord {
        name: "n".repeat(63),
        ..none.clone()
    });
    let trials = vec![
        ("kind", Trial::Is(vec![1])),
        ("state", whole(&|record| record.state = VolumeState::Ready)),
        ("name len", Trial::Is(vec![63])),
        ("volume", whole(&|record| record.id = VolumeId(u64::MAX))),
        ("layer", whole(&|record| record.layer = LayerId(u64::MAX))),
        ("size", whole(&|record| record.size_bytes = u64::MAX)),
        (
            "created",
            whole(&|record| record.created_unix_seconds = u64::MAX),
        ),
        ("map", part(&|record| record.map = full_tree())),
        ("name", part(&|record| record.name = "b".to_owned())),
    ];
    check(&table(document, "Volume record"), &sample, trials, |at| {
        page_refuses("catalogue_page", 64 + at)
    });
}
