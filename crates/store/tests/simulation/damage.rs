//! Parts that decayed, are missing, or are of a newer version: reported clearly, and never mistaken
//! for valid ones.

use std::sync::Arc;

use onefold_engine::Part;
use onefold_engine::simulated::{CrashKind, SimulatedEngine};
use onefold_format::PageNumber;
use onefold_format::page::{self, PAGE_BYTES, PageBytes};
use onefold_store::{Blocking, Store, StoreError, StoreErrorKind, VolumeOptions};

use crate::common::{self, BLOCK, LITTLE_MEMORY, MIB, findings, newest_root, pool_of, superblock};
use crate::crash::Recovery;
use crate::world::{Fill, Stop, World};

/// A pool whose checkpoint has some of everything, with commits in the log behind it. Volume 1 has
/// four segments, of which the first three are mapped.
fn pool() -> Arc<World> {
    let world = World::opened(5, &pool_of(16 * MIB));
    world.create_volume(8 * MIB).unwrap();
    world.create_volume(MIB).unwrap();
    let ids = world.volume_ids();
    for n in 0..3 {
        let offset = n * 2 * MIB;
        world
            .write(ids[0], offset, MIB, Fill::Data, Blocking::Yes)
            .unwrap();
    }
    world
        .write(ids[1], 0, MIB / 2, Fill::Data, Blocking::Yes)
        .unwrap();
    world.check().unwrap();
    for n in 0..4 {
        let offset = (n + 1) * 16 * BLOCK;
        world
            .write(ids[1], offset, BLOCK, Fill::Zeros, Blocking::Yes)
            .unwrap();
        world.flush(ids[1]).unwrap();
    }
    world.engine().halt();
    world
}

/// The machine after a crash, with a test's damage.
pub(crate) fn damaged(world: &World, damage: impl FnOnce(&SimulatedEngine)) -> SimulatedEngine {
    let engine = world.engine().crash(CrashKind::ProcessKilled);
    damage(&engine);
    engine
}

/// The report of opening.
fn open(engine: SimulatedEngine) -> Result<Arc<Store>, StoreError> {
    common::open(engine, LITTLE_MEMORY).map(|(store, _)| store)
}

#[track_caller]
fn assert_damaged(opened: Result<Arc<Store>, StoreError>, place: &str) {
    let Err(error) = opened else {
        panic!("opened although {place} is damaged");
    };
    assert_eq!(error.kind(), StoreErrorKind::Damaged, "{error}");
    assert!(error.to_string().contains(place), "{error}");
}

/// Pages of a kind in the metadata part, and their places in bytes. Some may be of old checkpoints.
fn pages_of(engine: &SimulatedEngine, kind: page::PageKind) -> Vec<(u64, Box<PageBytes>)> {
    let places = (2..64).map(PageNumber);
    let pages = places.map(|at| {
        let page = common::page(engine, Part::Meta, at);
        (at.0 * PAGE_BYTES as u64, page)
    });
    let is_of_kind = |(_, page): &(u64, Box<PageBytes>)| page[4] == kind as u8 && page[5] == 1;
    pages.filter(is_of_kind).collect()
}

/// Seals a page again after its bytes were changed.
fn seal_again(bytes: &mut PageBytes, change: impl FnOnce(&mut PageBytes)) {
    change(bytes);
    bytes[60..64].fill(0);
    let checksum = crc32c(bytes);
    bytes[60..64].copy_from_slice(&checksum.to_le_bytes());
}

/// CRC-32C, bit by bit.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 }
        })
    };
    !bytes.iter().fold(!0, step)
}

#[test]
fn a_flipped_bit_in_superblock_or_label_is_said() {
    let world = pool();
    for at in [0, 5, 9, 30, 64, 72, 500, 4095] {
        for (part, place) in [
            (Part::Superblock, "simulated:superblock"),
            (Part::Data, "the label of simulated:data"),
        ] {
            let engine = damaged(&world, |engine| engine.flip_bit(part, at, 3));
            assert_damaged(open(engine), place);
        }
    }
}

#[test]
fn one_root_may_decay_and_never_leads_astray() {
    let world = pool();
    let newest = |engine: &SimulatedEngine| newest_root(engine).unwrap().slot().0;
    let slot = newest(&world.engine());
    for at in [0, 5, 50, 80, 100, 130, 150, 3000] {
        // The older one is not needed.
        let older = (1 - slot) * PAGE_BYTES as u64 + at;
        let engine = damaged(&world, |engine| engine.flip_bit(Part::Meta, older, 1));
        world.open_after(Recovery::KILLED, engine).unwrap();
        world.verify().unwrap();
        world.check().unwrap();
        world.engine().halt();

        // Without the newer one either everything is still there, or the missing data is reported.
        let slot = newest(&world.engine());
        let newer = slot * PAGE_BYTES as u64 + at;
        let engine = damaged(&world, |engine| engine.flip_bit(Part::Meta, newer, 1));
        match open(engine) {
            Err(error) => assert_eq!(error.kind(), StoreErrorKind::Damaged, "{error}"),
            Ok(_) => {
                let engine = damaged(&world, |engine| engine.flip_bit(Part::Meta, newer, 1));
                world.open_after(Recovery::KILLED, engine).unwrap();
                world.verify().unwrap();
                world.engine().halt();
            }
        }
    }
    let engine = damaged(&world, |engine| {
        engine.flip_bit(Part::Meta, 100, 1);
        engine.flip_bit(Part::Meta, 4196, 1);
    });
    assert_damaged(open(engine), "simulated:meta has no root");
}

#[test]
fn a_flipped_bit_in_an_inner_page_is_said_when_opening() {
    let world = pool();
    let nodes = pages_of(&world.engine(), page::PageKind::Node);
    assert!(nodes.len() >= 3, "{} inner pages", nodes.len());
    let mut said = 0;
    for (at, _) in nodes {
        for byte in [0, 20, 40, 64, 70, 1000, 4000] {
            let engine = damaged(&world, |engine| engine.flip_bit(Part::Meta, at + byte, 6));
            match open(engine) {
                Err(error) => {
                    assert_eq!(error.kind(), StoreErrorKind::Damaged, "{error}");
                    let place = format!("page {}", at / PAGE_BYTES as u64);
                    assert!(error.to_string().contains(&place), "{error}");
                    said += 1;
                }
                // A page that no root reaches any more.
                Ok(store) => assert_eq!(findings(&store, false), []),
            }
        }
    }
    assert!(said >= 3 * 7, "only {said} were said");
}

#[test]
fn a_flipped_bit_in_the_catalogue_is_said_when_opening() {
    let world = pool();
    for (at, _) in pages_of(&world.engine(), page::PageKind::Catalogue) {
        let engine = damaged(&world, |engine| engine.flip_bit(Part::Meta, at + 100, 0));
        assert_damaged(open(engine), &format!("page {}", at / PAGE_BYTES as u64));
    }
}

#[test]
fn a_flipped_bit_in_a_map_page_hurts_its_segment_only() {
    let world = pool();
    let pages = pages_of(&world.engine(), page::PageKind::Map);
    let of_volume_1 = |page: &PageBytes| u64::from_le_bytes(page[32..40].try_into().unwrap()) == 1;
    let index = |page: &PageBytes| u64::from_le_bytes(page[40..48].try_into().unwrap());
    let (at, _) = pages
        .iter()
        .find(|(_, page)| of_volume_1(page) && index(page) == 1)
        .unwrap();
    let engine = damaged(&world, |engine| engine.flip_bit(Part::Meta, at + 200, 2));
    let store = open(engine).unwrap();
    let volume = store.volume("volume-1").unwrap();
    let mut buf = vec![0; 4096];
    for offset in [0, MIB, 4 * MIB, 6 * MIB] {
        volume.read(offset, &mut buf, Blocking::Yes).unwrap();
    }
    let page = format!("page {} of simulated:meta", at / PAGE_BYTES as u64);
    for error in [
        volume.read(2 * MIB, &mut buf, Blocking::Yes).unwrap_err(),
        volume.write(3 * MIB, &buf, Blocking::Yes).unwrap_err(),
        volume.trim(2 * MIB, MIB, Blocking::Yes).unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::Damaged, "{error}");
        let message = error.to_string();
        assert!(
            message.contains("volume-1") && message.contains(&page),
            "{message}"
        );
    }
    volume.write(0, &[9; 4096], Blocking::Yes).unwrap();
    let found = findings(&store, false);
    assert!(
        found[0]
            .message
            .contains("volume 'volume-1', LBA 512 to 1023")
            && !found[0].repairable
            && found[0].message.contains(&page),
        "{found:?}"
    );

    // The blocks of the page are not known, so nothing may be freed.
    let free = store.stat().unwrap().free_blocks;
    let found = findings(&store, true);
    assert!(found.iter().all(|finding| !finding.repairable), "{found:?}");
    assert_eq!(store.stat().unwrap().free_blocks, free);
}

#[test]
fn a_finding_in_a_snapshot_names_its_volume() {
    let world = World::opened(6, &pool_of(16 * MIB));
    let id = world.new_volume(8 * MIB).unwrap();
    world.write(id, 0, MIB, Fill::Data, Blocking::Yes).unwrap();
    world.create_snapshots(&[id]).unwrap();
    world.check().unwrap();
    let snapshot = world.store().stat().unwrap().snapshots;
    world.engine().halt();
    let pages = pages_of(&world.engine(), page::PageKind::Map);
    let (at, _) = pages.last().unwrap();
    let engine = damaged(&world, |engine| engine.flip_bit(Part::Meta, at + 200, 2));
    let found = findings(&open(engine).unwrap(), false);
    let place = format!("volume '{}', LBA 0 to 511", snapshot[0].name);
    assert!(snapshot[0].name.starts_with("volume-1@"), "{snapshot:?}");
    assert!(found[0].message.starts_with(&place), "{found:?}");
}

#[test]
fn a_flipped_bit_in_free_space_is_found_and_repaired() {
    let world = pool();
    let newest = pages_of(&world.engine(), page::PageKind::Space);
    let sequence = |page: &PageBytes| u64::from_le_bytes(page[48..56].try_into().unwrap());
    let (at, _) = newest
        .iter()
        .max_by_key(|(_, page)| sequence(page))
        .unwrap();
    // Records that change free space cannot be replayed: the log must be empty.
    world.crash_and_open(Recovery::KILLED).unwrap();
    world.verify().unwrap();
    world.engine().halt();
    let engine = damaged(&world, |engine| engine.flip_bit(Part::Meta, at + 100, 2));
    match open(engine) {
        Err(error) => {
            assert_eq!(error.kind(), StoreErrorKind::Damaged, "{error}");
            assert!(error.to_string().contains("free-space") || error.to_string().contains("page"));
        }
        Ok(store) => {
            let found = findings(&store, true);
            assert!(found.iter().all(|finding| finding.repairable), "{found:?}");
            assert_eq!(findings(&store, false), []);
        }
    }
}

#[test]
fn a_flipped_bit_in_the_log_is_said_where_commits_follow() {
    let world = pool();
    let engine = world.engine();
    let pool = superblock(&engine).pool;
    let log = engine.read_raw(Part::Log, 0, 256 << 10);
    let frames: Vec<usize> = (0..log.len())
        .step_by(512)
        .filter(|at| onefold_format::frame::decode_header(&log[*at..], pool).is_ok())
        .collect();
    let (last, before) = frames.split_last().unwrap();
    let start = before.len() - 3;
    for at in &before[start..] {
        for byte in [0, 6, 30, 40, 47, 50, 62, 64, 80] {
            let engine = damaged(&world, |engine| {
                engine.flip_bit(Part::Log, *at as u64 + byte, 7);
            });
            assert_damaged(open(engine), &format!("bad frame at {at}"));
        }
    }
    // The last commit cannot be distinguished from one that a crash tore: one flush is lost with
    // it.
    let engine = damaged(&world, |engine| {
        engine.flip_bit(Part::Log, *last as u64 + 70, 7);
    });
    let store = open(engine).unwrap();
    assert_eq!(findings(&store, false), []);
}

#[test]
fn a_missing_part_is_named() {
    let world = pool();
    let is_derived = |part| {
        matches!(
            part,
            Part::Index | Part::NextIndex | Part::Scrub | Part::Losses
        )
    };
    for part in Part::ALL.into_iter().filter(|part| !is_derived(*part)) {
        let error = open(damaged(&world, |engine| engine.lose_part(part)))
            .err()
            .unwrap();
        assert_eq!(error.kind(), StoreErrorKind::MissingPart, "{error}");
        assert_eq!(
            error.to_string(),
            format!("simulated:{} is missing", part.name())
        );
    }
}

#[test]
fn newer_versions_are_refused_or_only_read() {
    let world = pool();
    let change_superblock = |change: fn(&mut PageBytes)| {
        damaged(&world, |engine| {
            let mut bytes = common::page(engine, Part::Superblock, PageNumber(0));
            seal_again(&mut bytes, change);
            engine.overwrite(Part::Superblock, 0, &bytes[..]);
        })
    };
    let error = open(change_superblock(|page| page[5] += 1)).err().unwrap();
    assert_eq!(error.kind(), StoreErrorKind::NewerFormat, "{error}");
    assert!(error.to_string().contains("version 2.2"), "{error}");

    let engine = change_superblock(|page| page[6] = 9);
    let image = engine.durable_image(Part::Meta);
    let log = engine.durable_image(Part::Log);
    let opened = world.open_after(Recovery::KILLED, engine);
    assert!(matches!(opened, Ok(true)), "{opened:?}");
    if let Err(Stop::Violation(violation)) = world.verify() {
        panic!("{violation}");
    }
    let store = world.store();
    let volume = store.volume("volume-1").unwrap();
    let error = volume.write(0, &[1], Blocking::Yes).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::ReadOnly, "{error}");
    assert!(error.to_string().contains("later version"), "{error}");
    assert_eq!(
        store
            .create_volume("c", &VolumeOptions::new(MIB))
            .unwrap_err()
            .kind(),
        StoreErrorKind::ReadOnly
    );
    assert_eq!(findings(&store, false), []);
    store.tidy(true).unwrap();
    let engine = world.engine();
    assert!(
        image == engine.read_raw(Part::Meta, 0, image.len()),
        "metadata was written"
    );
    assert!(
        log == engine.read_raw(Part::Log, 0, log.len()),
        "the log was written"
    );
}
