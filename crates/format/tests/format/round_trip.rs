//! Encoded structures decode to the same values, for all values that a writer may use.

use onefold_format::batch_page::{self, ITEMS_PER_PAGE};
use onefold_format::catalogue_page::{
    self, COLD_PASSES, HASH_CACHE_BYTES, INTERVAL_SECONDS, MIN_RUN, RECORDS_PER_PAGE,
    SPACE_LIMIT_BYTES,
};
use onefold_format::entry::State;
use onefold_format::frame::{self, FrameHeader};
use onefold_format::map_page::{self, EMPTY_SEGMENT};
use onefold_format::node::{LEVELS_MAX, NODE_FANOUT, Node, Pointer};
use onefold_format::page::{self, PageHeader, PageKind};
use onefold_format::queue_page::{
    self, ELEMENT_BLOCKS_MAX, ELEMENTS_END, ELEMENTS_PER_PAGE, NO_ELEMENTS,
};
use onefold_format::record::{BATCH_ITEMS_MAX, EXCHANGE_ITEMS_MAX};
use onefold_format::root::POOL_BLOCKS_MIN;
use onefold_format::scrub_page::{self, ATTEMPTS_MAX, SLOT_PAGES, SLOTS};
use onefold_format::space_page::{self, EMPTY_BITMAP};
use onefold_format::superblock::{LOG_BYTES_MAX, LOG_BYTES_MIN};
use onefold_format::trace::{
    TRACE_POSITION_END, TraceChunks, TraceContent, TraceEnd, TraceFrame, TraceRun, TraceUnit,
};
use onefold_format::units::{
    BLOCK_SIZES, BLOCKS_PER_SEGMENT, BLOCKS_PER_SPACE_EXTENT, DOMAIN_END, ID_END, PBA_END,
    SECTOR_BYTES, VOLUME_BLOCKS_MAX,
};
use onefold_format::{
    BadBlock, BatchItem, BatchKind, ClaimOutcome, DamagedVolume, DedupMode, DomainId, Entry,
    ExportMark, Fault, GivenRun, GroupId, IndexKind, LayerCounts, LayerId, Lba, LossPage, Losses,
    LostRun, MINOR_OF_GROUPS, OpenBatchHead, Outcome, PageNumber, Pba, PoolId, Provisioning,
    PublishRun, QueueElement, Record, Release, Root, ScrubPage, ScrubProgress, Secret,
    SegmentIndex, SpaceExtent, Superblock, TreeRoot, UnmapTo, VolumeId, VolumeRecord,
    VolumeSettings, VolumeState, WhenFull, record,
};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use crate::samples;

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

/// Blocks that a run of this length can start with, the last ones often.
fn blocks(count: u64) -> impl Strategy<Value = Pba> {
    let last = PBA_END - count;
    prop_oneof![1..=last, last - 3..=last].prop_map(Pba)
}

/// Entries that a run of a whole segment can start with.
fn entries() -> impl Strategy<Value = Entry> {
    let states = select(vec![Entry::private, Entry::unshareable, Entry::shared]);
    prop_oneof![
        Just(Entry::ABSENT),
        Just(Entry::ZERO),
        (states, blocks(BLOCKS_PER_SEGMENT)).prop_map(|(state, pba)| state(pba)),
    ]
}

fn volumes(maps: impl Strategy<Value = TreeRoot>) -> impl Strategy<Value = VolumeRecord> {
    let states = select(vec![
        VolumeState::Importing,
        VolumeState::Ready,
        VolumeState::Deleting,
    ]);
    let largest = VOLUME_BLOCKS_MAX * u64::from(BLOCK_SIZES[3]);
    let sizes = (1..=largest / 512).prop_map(|sectors| sectors * 512);
    let life = (1..ID_END, 1..ID_END, states, sizes, any::<u64>());
    let counts = (maps, any::<[u64; 3]>());
    let layers = (option::of(1..ID_END), option::of(1..ID_END));
    let parts = (life, names(), sharing(), counts, layers);
    parts.prop_map(|(life, name, sharing, (map, numbers), layers)| {
        let (id, layer, state, size_bytes, created_unix_seconds) = life;
        let (domain, domain_name, settings) = sharing;
        let (below, snapshot_of) = layers;
        VolumeRecord {
            id: VolumeId(id),
            layer: LayerId(layer),
            below: below.map(LayerId),
            snapshot_of: snapshot_of.map(VolumeId),
            state,
            size_bytes,
            created_unix_seconds,
            map,
            name,
            domain: DomainId(domain),
            domain_name,
            settings,
            counts: counts_of(&map, size_bytes / 4096, numbers),
        }
    })
}

fn names() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}"
}

fn sharing() -> impl Strategy<Value = (u16, String, VolumeSettings)> {
    (any::<u16>(), names(), settings())
}

fn settings() -> impl Strategy<Value = VolumeSettings> {
    let modes = select(vec![
        DedupMode::Off,
        DedupMode::Offline,
        DedupMode::Inline,
        DedupMode::Auto,
    ]);
    let finder = (modes, any::<bool>(), COLD_PASSES, INTERVAL_SECONDS, MIN_RUN);
    let space = (HASH_CACHE_BYTES, SPACE_LIMIT_BYTES, SPACE_LIMIT_BYTES);
    (finder, space).prop_map(|(finder, space)| {
        let (dedup, verify, cold_passes, interval_seconds, min_run) = finder;
        let (hash_cache_bytes, quota_bytes, reservation_bytes) = space;
        VolumeSettings {
            dedup,
            verify,
            cold_passes,
            interval_seconds,
            min_run,
            hash_cache_bytes,
            quota_bytes,
            reservation_bytes,
        }
    })
}

/// Numbers of entries that a layer with this map and this many blocks can have.
fn counts_of(map: &TreeRoot, blocks: u64, [private, unshareable, shared]: [u64; 3]) -> LayerCounts {
    if map.top.is_none() {
        return LayerCounts::default();
    }
    let private = private % (blocks + 1);
    let unshareable = unshareable % (blocks - private + 1);
    let shared = shared % (blocks - private - unshareable + 1);
    LayerCounts {
        private,
        unshareable,
        shared,
    }
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
    let others = prop_oneof![batch_records(), records_of_layers(), exchanges()];
    prop_oneof![map, unmap, put, gone, others]
}

/// Runs that begin at some of these slots of the segment.
fn publish_runs() -> impl Strategy<Value = Vec<PublishRun>> {
    let segments = 0..VOLUME_BLOCKS_MAX / BLOCKS_PER_SEGMENT;
    let starts = proptest::collection::btree_set(0..BLOCKS_PER_SEGMENT, 1..=512);
    let run = (blocks(BLOCKS_PER_SEGMENT), any::<u64>());
    (segments, starts, vec(run, 512)).prop_map(|(segment, starts, runs)| {
        let ends = starts.iter().copied().skip(1).chain([BLOCKS_PER_SEGMENT]);
        let places = starts.iter().zip(ends).zip(runs);
        places
            .map(|((start, end), (pba, count))| PublishRun {
                lba: Lba(segment * BLOCKS_PER_SEGMENT + start),
                pba,
                count: 1 + (count % (end - start)) as u32,
            })
            .collect()
    })
}

fn outcomes() -> impl Strategy<Value = Outcome> {
    let pba = blocks(BATCH_ITEMS_MAX.into());
    prop_oneof![
        Just(Outcome::Inserted),
        Just(Outcome::Declined),
        (
            select(vec![Outcome::Aliased, Outcome::Dangling, Outcome::Rejected]),
            pba
        )
            .prop_map(|(outcome, pba)| outcome(pba)),
    ]
}

/// Position and count of items of a batch.
fn item_ranges() -> impl Strategy<Value = (u32, u32)> {
    (0..BATCH_ITEMS_MAX, any::<u32>())
        .prop_map(|(position, count)| (position, 1 + count % (BATCH_ITEMS_MAX - position)))
}

fn batch_records() -> impl Strategy<Value = Record> {
    let publish = (1..ID_END, 1..ID_END, publish_runs()).prop_map(|(layer, number, runs)| {
        let layer = LayerId(layer);
        Record::Publish {
            layer,
            number,
            runs,
        }
    });
    let outcome = (1..ID_END, 1..ID_END, item_ranges(), outcomes()).prop_map(
        |(layer, number, (position, count), outcome)| Record::Outcome {
            layer: LayerId(layer),
            number,
            position,
            count,
            outcome,
        },
    );
    let collect = (1..ID_END, 1..=BATCH_ITEMS_MAX)
        .prop_map(|(number, elements)| Record::Collect { number, elements });
    let releases = select(vec![
        Release::Remaining,
        Release::Freed,
        Release::Quarantined,
        Release::Held,
    ]);
    let release =
        (1..ID_END, item_ranges(), releases).prop_map(|(number, (position, count), release)| {
            Record::Release {
                number,
                position,
                count,
                release,
            }
        });
    let count = (1..ID_END, 1..=BATCH_ITEMS_MAX)
        .prop_map(|(number, elements)| Record::Count { number, elements });
    let outcomes = select(vec![ClaimOutcome::Counted, ClaimOutcome::Quarantined]);
    let counted =
        (1..ID_END, item_ranges(), outcomes).prop_map(|(number, (position, count), outcome)| {
            Record::Counted {
                number,
                position,
                count,
                outcome,
            }
        });
    prop_oneof![publish, outcome, collect, release, count, counted]
}

fn records_of_layers() -> impl Strategy<Value = Record> {
    let layers = || (1..ID_END, 1..ID_END).prop_filter("two layers", |(one, other)| one != other);
    let snapshots = (volumes(Just(TreeRoot::default())), 1..ID_END);
    let ids =
        (layers(), 1..ID_END).prop_filter("another one below", |((_, live), below)| live != below);
    let freeze =
        (any::<u64>(), ids, snapshots).prop_map(|(slot, ((layer, live), below), (record, of))| {
            Record::Freeze {
                slot,
                snapshot: VolumeRecord {
                    layer: LayerId(layer),
                    snapshot_of: Some(VolumeId(of)),
                    ..record
                },
                live: LayerId(live),
                below: LayerId(below),
            }
        });
    let segments = 0..VOLUME_BLOCKS_MAX / BLOCKS_PER_SEGMENT;
    let merge = (layers(), segments).prop_map(|((layer, above), segment)| Record::Merge {
        layer: LayerId(layer),
        above: LayerId(above),
        segment: SegmentIndex(segment),
    });
    prop_oneof![freeze, merge]
}

/// Space extents, the first and the last ones often.
fn space_extents() -> impl Strategy<Value = SpaceExtent> {
    let end = PBA_END / BLOCKS_PER_SPACE_EXTENT;
    prop_oneof![0..end, 0..3_u64, end - 3..end].prop_map(SpaceExtent)
}

/// Runs of one space extent, up to its last block often.
fn given_runs() -> impl Strategy<Value = GivenRun> {
    let places = 0..BLOCKS_PER_SPACE_EXTENT;
    (space_extents(), places, any::<u64>(), any::<bool>()).prop_map(
        |(extent, place, count, is_to_the_end)| {
            // The label is in no run.
            let place = place.max(u64::from(extent.0 == 0));
            let most = BLOCKS_PER_SPACE_EXTENT - place;
            let count = if is_to_the_end {
                most
            } else {
                1 + count % most
            };
            let pba = extent.first() + place;
            GivenRun {
                pba,
                count: count as u32,
            }
        },
    )
}

fn exchanges() -> impl Strategy<Value = Record> {
    let items = EXCHANGE_ITEMS_MAX;
    let parts = prop_oneof![
        (vec(given_runs(), 0..9), vec(space_extents(), 1..9)),
        (vec(given_runs(), 1..9), vec(space_extents(), 0..9)),
        (vec(given_runs(), items), Just(Vec::new())),
        (Just(Vec::new()), vec(space_extents(), items)),
        (
            vec(given_runs(), items / 2),
            vec(space_extents(), items / 2)
        ),
    ];
    (1..ID_END, parts).prop_map(|(number, (given, taken))| Record::Exchange {
        number,
        given,
        taken,
    })
}

/// A batch that may be open while this is the first number never used.
fn open_batches() -> impl Strategy<Value = (u64, OpenBatchHead)> {
    let kinds = prop_oneof![
        Just(BatchKind::Collector),
        Just(BatchKind::Counting),
        (1..ID_END).prop_map(|layer| BatchKind::Finder(LayerId(layer))),
    ];
    (1..ID_END, any::<u64>(), kinds, item_ranges()).prop_map(
        |(number, later, kind, (done, rest))| {
            let next = number + 1 + later % (ID_END - number);
            let items = done + rest;
            let head = OpenBatchHead {
                number,
                kind,
                items,
                done,
            };
            (next, head)
        },
    )
}

/// Head and end of a queue, and the tree if it is not empty.
fn queues() -> impl Strategy<Value = (u64, u64, TreeRoot)> {
    let top = (pointers(Just(0)), 1..=LEVELS_MAX);
    (0..=ELEMENTS_END, 0..=ELEMENTS_END, top).prop_map(|(a, b, (top, levels))| {
        let top = (a != b).then_some(top);
        let levels = if a == b { 0 } else { levels };
        (a.min(b), a.max(b), TreeRoot { top, levels })
    })
}

proptest! {
    #[test]
    fn superblock(
        pool in pools(),
        block_size in select(BLOCK_SIZES.to_vec()),
        index in select(vec![IndexKind::Btree, IndexKind::Memory, IndexKind::Hash]),
        log_sectors in LOG_BYTES_MIN / SECTOR_BYTES..=LOG_BYTES_MAX / SECTOR_BYTES,
        created_unix_seconds: u64,
        group in option::of((1..ID_END).prop_map(GroupId)),
    ) {
        let log_bytes = log_sectors * SECTOR_BYTES;
        let written =
            Superblock { pool, block_size, index, log_bytes, created_unix_seconds, group };
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
        shrink_by in option::of(1..PBA_END),
        next_domain_id in 0..=DOMAIN_END,
        when_full in select(vec![WhenFull::Pause, WhenFull::Fail]),
        provisioning in select(vec![Provisioning::Thin, Provisioning::Thick]),
        (queue_head, queue_end, queue) in queues(),
        (claims_head, claims_end, claims) in queues(),
        (next_batch, open) in open_batches(),
        batch in option::of((pointers(Just(0)), 1..=LEVELS_MAX)),
        minor in 0..=MINOR_OF_GROUPS,
        exchanged in 0..ID_END,
    ) {
        let [sequence, session, log_position, commit] = numbers;
        let written = Root {
            minor,
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
            next_batch,
            queue,
            queue_head,
            queue_end,
            batch: TreeRoot {
                top: batch.map(|(top, _)| top),
                levels: batch.map_or(0, |(_, levels)| levels),
            },
            open_batch: batch.map(|_| open),
            next_domain_id,
            shrink_to: shrink_by
                .and_then(|by| pool_blocks.checked_sub(by))
                .filter(|blocks| *blocks >= POOL_BLOCKS_MIN),
            claims,
            claims_head,
            claims_end,
            when_full,
            provisioning,
            exchanged,
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
        let has_own_block = matches!(later.state(), State::Private(_) | State::Unshareable(_));
        prop_assert_eq!(later.own_pba(), moved.filter(|_| has_own_block));
        prop_assert_eq!(
            std::mem::discriminant(&later.state()),
            std::mem::discriminant(&entry.state())
        );
    }

    #[test]
    fn queue_page(
        first in 0..ELEMENTS_PER_PAGE,
        elements in vec(
            (blocks(ELEMENT_BLOCKS_MAX.into()), 1..=ELEMENT_BLOCKS_MAX, any::<u16>()),
            0..=ELEMENTS_PER_PAGE,
        ),
    ) {
        let mut written = Box::new(NO_ELEMENTS);
        for (place, (pba, count, domain)) in written[first..].iter_mut().zip(elements) {
            *place = Some(QueueElement { pba, count, domain: DomainId(domain) });
        }
        let mut page = page::blank();
        queue_page::encode(&written, &mut page);
        prop_assert_eq!(queue_page::decode(&page), Ok(written));
    }

    #[test]
    fn batch_page(
        items in vec(
            (0..VOLUME_BLOCKS_MAX, blocks(1), any::<u16>(), any::<bool>()),
            1..=ITEMS_PER_PAGE,
        ),
    ) {
        let items: Vec<BatchItem> = items
            .into_iter()
            .map(|(lba, pba, domain, moved)| {
                BatchItem { lba: Lba(lba), pba, domain: DomainId(domain), moved }
            })
            .collect();
        let mut page = page::blank();
        batch_page::encode(&items, &mut page);
        prop_assert_eq!(batch_page::decode(&page), Ok(items));
    }

    #[test]
    fn scrub_pages(
        pool in pools(),
        sequence in 1_u64..1000,
        progress in (0..PBA_END, 0..=PBA_END, any::<u64>(), any::<u64>()),
        bad_blocks in btree_map(
            1..PBA_END,
            (any::<bool>(), 0..=ATTEMPTS_MAX, option::of(any::<[u8; 16]>())),
            0..300,
        ),
    ) {
        let (next_block, left_blocks, bytes_per_second, ended_unix_seconds) = progress;
        let progress =
            ScrubProgress { next_block, left_blocks, bytes_per_second, ended_unix_seconds };
        let written: Vec<BadBlock> = bad_blocks
            .into_iter()
            .map(|(pba, (changed, attempts, fingerprint))| BadBlock {
                pba: Pba(pba),
                fault: if changed && fingerprint.is_some() {
                    Fault::Changed
                } else {
                    Fault::Unreadable
                },
                attempts,
                fingerprint,
            })
            .collect();
        let pages = scrub_page::encode(sequence, &progress, &written, pool);
        let mut read = Vec::new();
        for (page, number) in pages.iter().zip(sequence % SLOTS * SLOT_PAGES..) {
            let page = ScrubPage::decode(page, pool, PageNumber(number));
            let page = page.expect("it was just written");
            prop_assert_eq!((page.sequence, page.progress), (sequence, progress));
            prop_assert_eq!(page.pages(), pages.len() as u64);
            read.extend(page.listed);
        }
        prop_assert_eq!(read, written);
    }

    #[test]
    fn loss_pages(
        pool in pools(),
        sequence in 1_u64..1000,
        volumes in btree_map(1..u64::MAX, any::<u64>(), 0..300),
        runs in btree_map(1..PBA_END / 1000, 1..1000_u64, 0..600),
    ) {
        let damaged = |(volume, found_unix_seconds)| DamagedVolume {
            volume: VolumeId(volume),
            found_unix_seconds,
        };
        let run = |(start, count)| LostRun { start: Pba(start * 1000), count };
        let written = Losses {
            volumes: volumes.into_iter().map(damaged).collect(),
            runs: runs.into_iter().map(run).collect(),
        };
        let pages = written.encode(sequence, pool);
        let mut read = Losses::default();
        for (number, page) in &pages {
            let page = LossPage::decode(page, pool, *number).expect("it was just written");
            prop_assert_eq!((page.sequence, page.pages()), (sequence, pages.len() as u64));
            read.extend(&page.part).expect("they are in order");
        }
        prop_assert_eq!(read, written);
    }

    #[test]
    fn secret(pool in pools(), secret in vec(any::<u8>(), 32)) {
        prop_assume!(secret.iter().any(|byte| *byte != 0));
        let written = Secret(secret.try_into().expect("32 bytes"));
        prop_assert_eq!(Secret::decode(&written.encode(pool), pool), Ok(written));
    }

    #[test]
    fn export(pool in pools(), place: u64, created_unix_seconds: u64, checksum: u32) {
        let checksum = if place == 0 { 0 } else { checksum };
        let written = ExportMark { pool, place, created_unix_seconds, checksum };
        prop_assert_eq!(ExportMark::decode(&written.encode(), place), Ok(written));
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

    #[test]
    fn trace_frame(written in trace_frames(), position: u64, flip: prop::sample::Index, bit in 0..8_u32) {
        let mut bytes = Vec::new();
        written.encode(position, &mut bytes);
        prop_assert_eq!(samples::read_trace_frame(&bytes, position), Ok(written));
        let at = flip.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        prop_assert!(samples::read_trace_frame(&bytes, position).is_err());
    }
}

fn trace_chunks() -> impl Strategy<Value = TraceChunks> {
    let content = prop_oneof![
        (1..1_u64 << 20).prop_map(TraceContent::Zeros),
        vec(any::<u128>(), 1..40).prop_map(TraceContent::Data),
    ];
    let run = (1..1_u64 << 21, content).prop_map(|(bytes, content)| TraceRun { bytes, content });
    let head = (
        0..TRACE_POSITION_END / 2,
        any::<u16>(),
        any::<u16>(),
        0..64_u8,
        any::<u8>(),
    );
    (head, vec(run, 0..20)).prop_map(|((position, input, kind, size_class, way), runs)| {
        TraceChunks {
            position,
            input,
            kind,
            size_class,
            way,
            runs,
        }
    })
}

fn trace_frames() -> impl Strategy<Value = TraceFrame> {
    let path = || vec(any::<u8>(), 0..40);
    let sizes = || (1..u32::MAX, any::<u32>()).prop_map(|(all, left)| (all, left % (all + 1)));
    let unit = (any::<u128>(), 0..TRACE_POSITION_END, sizes(), sizes()).prop_map(
        |(fingerprint, position, chunk, group)| TraceUnit {
            fingerprint,
            position,
            bytes: chunk.0,
            compressed_bytes: chunk.1,
            group_bytes: group.0,
            compressed_group_bytes: group.1,
        },
    );
    prop_oneof![
        vec(".{0,30}", 0..5).prop_map(|ways| TraceFrame::Start { ways }),
        path().prop_map(|path| TraceFrame::Input { path }),
        ".{0,30}".prop_map(|name| TraceFrame::Kind { name }),
        (
            0..TRACE_POSITION_END,
            0..TRACE_POSITION_END,
            any::<u16>(),
            path()
        )
            .prop_map(|(position, bytes, input, name)| TraceFrame::File {
                position,
                bytes,
                input,
                name
            }),
        trace_chunks().prop_map(TraceFrame::Chunks),
        (any::<u16>(), 0..=128_u16, vec(unit, 0..20)).prop_map(|(way, zero_bits, units)| {
            TraceFrame::Sample {
                way,
                zero_bits,
                units,
            }
        }),
        (path(), ".{0,30}").prop_map(|(path, what)| TraceFrame::Problem { path, what }),
        (any::<[u64; 5]>(), any::<bool>()).prop_map(|(numbers, is_complete)| {
            let [files, empty_files, bytes, skipped, unopened_disks] = numbers;
            TraceFrame::End(TraceEnd {
                files,
                empty_files,
                bytes,
                skipped,
                unopened_disks,
                is_complete,
            })
        }),
    ]
}
