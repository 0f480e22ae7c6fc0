//! What is encoded is decoded again, for whatever a writer may put into a structure.

use onefold_format::catalogue_page::{self, RECORDS_PER_PAGE};
use onefold_format::frame::{self, FrameHeader};
use onefold_format::map_page::{self, EMPTY_SEGMENT};
use onefold_format::node::{LEVELS_MAX, NODE_FANOUT, Node, Pointer};
use onefold_format::page::{self, PageHeader, PageKind};
use onefold_format::root::POOL_BLOCKS_MIN;
use onefold_format::space_page::{self, EMPTY_BITMAP};
use onefold_format::superblock::{LOG_BYTES_MAX, LOG_BYTES_MIN};
use onefold_format::units::{
    BLOCK_SIZES, BLOCKS_PER_SEGMENT, ID_END, PBA_END, SECTOR_BYTES, VOLUME_BLOCKS_MAX,
};
use onefold_format::{
    Entry, LayerId, Lba, PageNumber, Pba, PoolId, Record, Root, Superblock, TreeRoot, UnmapTo,
    VolumeId, VolumeRecord, VolumeState, record,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

fn pools() -> impl Strategy<Value = PoolId> {
    any::<[u8; 16]>().prop_map(PoolId)
}

fn pointers(infos: impl Strategy<Value = u16>) -> impl Strategy<Value = Pointer> {
    (2..1_u64 << 48, infos, any::<u32>()).prop_map(|(page, info, checksum)| Pointer {
        page: PageNumber(page),
        info,
        checksum,
    })
}

fn tree_roots() -> impl Strategy<Value = TreeRoot> {
    option::of((pointers(Just(0)), 1..=LEVELS_MAX)).prop_map(|tree| match tree {
        Some((top, levels)) => TreeRoot {
            top: Some(top),
            levels,
        },
        None => TreeRoot::default(),
    })
}

/// Entries that a run of a whole segment can start with.
fn entries() -> impl Strategy<Value = Entry> {
    prop_oneof![
        Just(Entry::ABSENT),
        Just(Entry::ZERO),
        (1..=PBA_END - BLOCKS_PER_SEGMENT).prop_map(|pba| Entry::private(Pba(pba))),
        (PBA_END - BLOCKS_PER_SEGMENT - 3..=PBA_END - BLOCKS_PER_SEGMENT)
            .prop_map(|pba| Entry::private(Pba(pba))),
    ]
}

fn volumes(maps: impl Strategy<Value = TreeRoot>) -> impl Strategy<Value = VolumeRecord> {
    let states = select(vec![
        VolumeState::Importing,
        VolumeState::Ready,
        VolumeState::Deleting,
    ]);
    let largest = VOLUME_BLOCKS_MAX * u64::from(BLOCK_SIZES[3]);
    let sizes = (1..=largest / 4096).prop_map(|blocks| blocks * 4096);
    let names = "[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}";
    (
        1..ID_END,
        1..ID_END,
        states,
        sizes,
        any::<u64>(),
        maps,
        names,
    )
        .prop_map(
            |(id, layer, state, size_bytes, created_unix_seconds, map, name)| VolumeRecord {
                id: VolumeId(id),
                layer: LayerId(layer),
                state,
                size_bytes,
                created_unix_seconds,
                map,
                name,
            },
        )
}

fn ranges() -> impl Strategy<Value = (LayerId, Lba, u32)> {
    let segments = 0..VOLUME_BLOCKS_MAX / BLOCKS_PER_SEGMENT;
    (1..ID_END, segments, 0..BLOCKS_PER_SEGMENT, any::<u64>()).prop_map(
        |(layer, segment, slot, count)| {
            let lba = Lba(segment * BLOCKS_PER_SEGMENT + slot);
            let count = 1 + count % (BLOCKS_PER_SEGMENT - slot);
            (LayerId(layer), lba, count as u32)
        },
    )
}

fn records() -> impl Strategy<Value = Record> {
    let map =
        (ranges(), entries(), entries()).prop_map(|((layer, lba, count), old, new)| Record::Map {
            layer,
            lba,
            count,
            old,
            new,
        });
    let targets = select(vec![UnmapTo::Absent, UnmapTo::Zero]);
    let unmap = (ranges(), targets).prop_map(|((layer, lba, count), to)| Record::Unmap {
        layer,
        lba,
        count,
        to,
    });
    let put = (any::<u64>(), volumes(Just(TreeRoot::default())))
        .prop_map(|(slot, volume)| Record::VolumePut { slot, volume });
    let gone =
        (any::<u64>(), 1..ID_END, 1..ID_END).prop_map(|(slot, volume, layer)| Record::VolumeGone {
            slot,
            volume: VolumeId(volume),
            layer: LayerId(layer),
        });
    prop_oneof![map, unmap, put, gone]
}

proptest! {
    #[test]
    fn superblock(
        pool in pools(),
        block_size in select(BLOCK_SIZES.to_vec()),
        log_sectors in LOG_BYTES_MIN / SECTOR_BYTES..=LOG_BYTES_MAX / SECTOR_BYTES,
        created_unix_seconds: u64,
    ) {
        let log_bytes = log_sectors * SECTOR_BYTES;
        let written = Superblock { pool, block_size, log_bytes, created_unix_seconds };
        prop_assert_eq!(Superblock::decode(&written.encode()), Ok(written));
    }

    #[test]
    fn root(
        pool in pools(),
        numbers: [u64; 4],
        frame_checksum: u32,
        ids in (1..=ID_END, 1..=ID_END),
        (catalogue, space) in (tree_roots(), tree_roots()),
        pool_blocks in POOL_BLOCKS_MIN..=PBA_END,
    ) {
        let [sequence, session, log_position, commit] = numbers;
        let written = Root {
            sequence,
            session,
            log_position: log_position / SECTOR_BYTES * SECTOR_BYTES,
            commit,
            frame_checksum,
            next_volume_id: ids.0,
            next_layer_id: ids.1,
            catalogue,
            space,
            pool_blocks,
        };
        let page = written.encode(pool);
        prop_assert_eq!(Root::decode(&page, pool, written.slot()), Ok(written));
    }

    #[test]
    fn page_header(
        pool in pools(),
        kind in select(vec![PageKind::Node, PageKind::Map, PageKind::Catalogue]),
        level: u8,
        numbers: [u64; 4],
        body in vec(any::<u8>(), page::PAGE_BYTES - page::BODY),
    ) {
        let [number, owner, index, sequence] = numbers;
        let page = PageNumber(number);
        let header = PageHeader { kind, level, pool, page, owner, index, sequence };
        let mut bytes = page::blank();
        bytes[page::BODY..].copy_from_slice(&body);
        let checksum = page::seal(&mut bytes, &header);
        prop_assert_eq!(page::open(&bytes, &header), Ok((sequence, checksum)));
        prop_assert_eq!(page::claimed_pool(&bytes), pool);
        prop_assert_eq!(&bytes[page::BODY..], &body[..], "the body is left alone");
    }

    #[test]
    fn node(children in vec(option::of(pointers(any::<u16>())), NODE_FANOUT as usize)) {
        let mut written = Node::default();
        written.children.copy_from_slice(&children);
        let mut page = page::blank();
        written.encode(&mut page);
        prop_assert_eq!(Node::decode(&page), Ok(written));
    }

    #[test]
    fn map_page(entries in vec(entries(), BLOCKS_PER_SEGMENT as usize)) {
        let mut written = Box::new(EMPTY_SEGMENT);
        written.copy_from_slice(&entries);
        let mut page = page::blank();
        map_page::encode(&written, &mut page);
        prop_assert_eq!(map_page::decode(&page), Ok(written));
    }

    #[test]
    fn entry(entry in entries(), count in 0..BLOCKS_PER_SEGMENT) {
        prop_assert_eq!(Entry::from_bits(entry.to_bits()), Ok(entry));
        let later = entry.successor(count);
        prop_assert_eq!(Entry::from_bits(later.to_bits()), Ok(later));
        let moved = entry.pba().map(|pba| pba + count);
        prop_assert_eq!(later.pba(), moved);
    }

    #[test]
    fn space_page(words in vec(any::<u64>(), EMPTY_BITMAP.len())) {
        let mut written = Box::new(EMPTY_BITMAP);
        written.copy_from_slice(&words);
        let mut page = page::blank();
        space_page::encode(&written, &mut page);
        prop_assert_eq!(space_page::decode(&page), Ok(written));
    }

    #[test]
    fn catalogue_page(slots in vec(option::of(volumes(tree_roots())), RECORDS_PER_PAGE)) {
        let mut page = page::blank();
        catalogue_page::encode(&slots, &mut page);
        prop_assert_eq!(catalogue_page::decode(&page), Ok(slots));
    }

    #[test]
    fn records_one_after_the_other(written in vec(records(), 0..20)) {
        let mut payload = Vec::new();
        for record in &written {
            record.encode(&mut payload);
            prop_assert!(payload.len().is_multiple_of(8));
        }
        let read: Result<Vec<_>, _> = record::decode_all(&payload).collect();
        prop_assert_eq!(read, Ok(written));
    }

    #[test]
    fn frame(
        pool in pools(),
        numbers: [u64; 3],
        previous_checksum: u32,
        last: bool,
        payload in vec(any::<u8>(), 0..3000),
    ) {
        let [session, commit, position] = numbers;
        let header = FrameHeader { session, commit, position, previous_checksum, last };
        let mut bytes = Vec::new();
        let checksum = frame::encode(&header, pool, &payload, &mut bytes);
        prop_assert_eq!(bytes.len() as u64, frame::frame_bytes(payload.len()));
        prop_assert!(bytes.len().is_multiple_of(SECTOR_BYTES as usize));
        let read = frame::decode_header(&bytes, pool).expect("a header");
        prop_assert_eq!(read.header, header);
        prop_assert_eq!(read.checksum, checksum);
        prop_assert_eq!(frame::check(&read, &bytes), Ok(()));
        prop_assert_eq!(&bytes[64..64 + read.payload_bytes], &payload[..]);
    }
}
