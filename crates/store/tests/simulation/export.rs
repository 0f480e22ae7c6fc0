//! All metadata in one file, and pools that are rebuilt from it: with the log that continues where
//! it ends, and without; stopped at each I/O; and files that were changed after they were written.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use onefold_engine::simulated::{CrashKind, Op, SimulatedEngine, When};
use onefold_engine::{Engine, Part};
use onefold_format::page::PAGE_BYTES;
use onefold_store::{
    Blocking, CreateOptions, IndexKind, LogAfter, MetadataExport, Ready, Store, StoreError,
    StoreErrorKind,
};

use crate::common::{self, BLOCK, KINDS, LITTLE_MEMORY, MIB, assert_clean, pool_of, read_bytes};
use crate::world::{Fill, World};

/// The parts that an export brings back.
const MADE: [Part; 4] = [Part::Superblock, Part::Secret, Part::Meta, Part::Index];

/// The content of volumes and snapshots.
type Contents = BTreeMap<String, Vec<u8>>;

/// An open pool with volumes that share blocks, a snapshot, and references to release.
fn pool(index: IndexKind) -> Arc<World> {
    let options = CreateOptions {
        index,
        ..pool_of(8 * MIB)
    };
    let world = World::opened(11, &options);
    world.create_volume(MIB).unwrap();
    world.create_volume(MIB).unwrap();
    let ids = world.volume_ids();
    for id in &ids {
        world
            .write(*id, 0, 32 * BLOCK, Fill::Common, Blocking::Yes)
            .unwrap();
        world
            .write(*id, 32 * BLOCK, 64 * BLOCK, Fill::Data, Blocking::Yes)
            .unwrap();
        world.dedup(*id, Ready::All, 9).unwrap();
    }
    world.create_snapshots(&ids[..1]).unwrap();
    for id in &ids {
        world
            .write(*id, 8 * BLOCK, 50 * BLOCK, Fill::Data, Blocking::Yes)
            .unwrap();
        world.flush(*id).unwrap();
    }
    world
}

/// A file that is written slowly: a second for each page.
struct Slow<'a> {
    engine: &'a SimulatedEngine,
    bytes: Vec<u8>,
}

impl Write for Slow<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.engine.advance_seconds(1);
        self.bytes.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn export(store: &Store) -> Vec<u8> {
    let mut bytes = Vec::new();
    store.exporter().write(&mut bytes).unwrap();
    bytes
}

#[test]
fn an_export_may_take_longer_than_a_second() {
    let world = pool(IndexKind::Memory);
    let engine = world.engine();
    let began = engine.unix_seconds();
    let mut slow = Slow {
        engine: &engine,
        bytes: Vec::new(),
    };
    world.store().exporter().write(&mut slow).unwrap();
    assert!(engine.unix_seconds() > began + 5);
    let export = MetadataExport::read(&mut &*slow.bytes).unwrap();
    assert_eq!(export.created_unix_seconds(), began);
}

/// The machine after it was stopped and has lost these parts.
fn without(world: &World, lost: &[Part]) -> SimulatedEngine {
    world.engine().halt();
    let engine = world.engine().crash(CrashKind::ProcessKilled);
    lost.iter().for_each(|part| engine.lose_part(*part));
    engine
}

fn make_parts(engine: &SimulatedEngine, bytes: &[u8]) -> Result<(), StoreError> {
    let export = MetadataExport::read(&mut &*bytes)?;
    export.check_data(engine)?;
    let has_log = matches!(export.log_after(engine), LogAfter::All(_));
    export.make_parts(engine, &mut &*bytes, has_log)
}

fn open(engine: &SimulatedEngine) -> Result<Arc<Store>, StoreError> {
    common::open(engine.clone(), LITTLE_MEMORY).map(|(store, _)| store)
}

fn contents(store: &Store) -> Contents {
    let read = |name: String| {
        let volume = store.volume(&name).unwrap();
        let bytes = read_bytes(&volume, 0, volume.size_bytes());
        (name, bytes)
    };
    store.volumes().names().into_iter().map(read).collect()
}

/// Every block is accounted for, by an index that was made from the maps.
fn assert_sound(store: &Store) {
    assert_clean(store);
    assert!(!store.stat().unwrap().index_rebuilding);
}

#[test]
fn with_its_log_an_export_brings_back_what_was_flushed_after_it() {
    for index in KINDS {
        let world = pool(index);
        let ids = world.volume_ids();
        let bytes = export(&world.store());
        world
            .write(ids[0], 0, 20 * BLOCK, Fill::Data, Blocking::Yes)
            .unwrap();
        world.dedup(ids[1], Ready::All, 9).unwrap();
        world.collect().unwrap();
        world.create_snapshots(&ids).unwrap();
        world
            .write(ids[1], 3 * BLOCK, 90 * BLOCK, Fill::Data, Blocking::Yes)
            .unwrap();
        world.flush(ids[1]).unwrap();
        let expected = contents(&world.store());
        let engine = without(&world, &MADE);
        make_parts(&engine, &bytes).unwrap();
        let store = open(&engine).unwrap();
        assert_eq!(store.stat().unwrap().index, index);
        assert!(contents(&store) == expected, "{index:?}");
        assert_sound(&store);
        store.close().unwrap();
    }
}

#[test]
fn without_a_log_an_export_brings_back_its_own_moment() {
    let world = pool(IndexKind::Hash);
    let ids = world.volume_ids();
    let expected = contents(&world.store());
    let bytes = export(&world.store());
    // A new volume's blocks were free when the export was made.
    world.create_volume(MIB).unwrap();
    let new = *world.volume_ids().last().unwrap();
    assert!(!ids.contains(&new));
    world.write(new, 0, MIB, Fill::Data, Blocking::Yes).unwrap();
    world.flush(new).unwrap();
    let mut lost = MADE.to_vec();
    lost.push(Part::Log);
    let engine = without(&world, &lost);
    let read = MetadataExport::read(&mut &bytes[..]).unwrap();
    assert!(matches!(read.log_after(&engine), LogAfter::Nothing(_)));
    assert_eq!((read.volumes().len(), read.snapshots()), (2, 1));
    make_parts(&engine, &bytes).unwrap();
    let store = open(&engine).unwrap();
    assert!(contents(&store) == expected);
    assert_sound(&store);
}

/// A log whose older frames were overwritten would leave a gap: it is not used.
#[test]
fn a_log_that_has_gone_round_since_is_told() {
    let world = pool(IndexKind::Hash);
    let bytes = export(&world.store());
    let id = world.volume_ids()[0];
    let read = MetadataExport::read(&mut &bytes[..]).unwrap();
    let mut rounds = 0;
    let log_after = || read.log_after(&world.engine().crash(CrashKind::ProcessKilled));
    while matches!(log_after(), LogAfter::All(_)) {
        for n in 0..100 {
            world
                .write(id, (n % 50) * 2 * BLOCK, BLOCK, Fill::Data, Blocking::Yes)
                .unwrap();
            world
                .trim(id, (n % 50) * 2 * BLOCK, BLOCK, Blocking::Yes)
                .unwrap();
            world.flush(id).unwrap();
        }
        rounds += 1;
        assert!(rounds < 100, "the log never goes round");
    }
    let engine = without(&world, &MADE);
    let LogAfter::Nothing(why) = read.log_after(&engine) else {
        panic!("a log with a gap is used");
    };
    assert!(why.contains("the log has a bad frame"), "{why}");
}

#[test]
fn an_export_is_of_one_moment_while_guests_write() {
    let world = pool(IndexKind::Hash);
    let store = world.store();
    let id = world.volume_ids()[1];
    let expected = contents(&store);
    // In the middle of its reads everything is rewritten, twice, with checkpoints.
    let engine = world.engine();
    let writer = Arc::clone(&world);
    let hook = move || {
        for _ in 0..2 {
            writer.trim(id, 0, MIB, Blocking::Yes).unwrap();
            writer.write(id, 0, MIB, Fill::Data, Blocking::Yes).unwrap();
            writer.flush(id).unwrap();
            writer.store().check(false, &mut |_| {}).unwrap();
        }
    };
    engine.on_next_io(Part::Meta, Op::Read, When::After, Box::new(hook));
    let bytes = export(&store);
    drop(store);
    let mut lost = MADE.to_vec();
    lost.push(Part::Log);
    let engine = without(&world, &lost);
    make_parts(&engine, &bytes).unwrap();
    let found = contents(&open(&engine).unwrap());
    assert_eq!(
        found.keys().collect::<Vec<_>>(),
        expected.keys().collect::<Vec<_>>()
    );
    // The other volume's blocks are unchanged; this one's may have later content.
    for (name, bytes) in found.iter().filter(|(name, _)| *name != "volume-2") {
        assert!(*bytes == expected[name], "{name}");
    }
}

#[test]
fn a_stop_at_any_moment_of_an_import_leaves_a_whole_pool_or_none() {
    let world = pool(IndexKind::Hash);
    let expected = contents(&world.store());
    let bytes = export(&world.store());
    let lost = without(&world, &MADE);
    let (mut none, mut whole) = (0, 0);
    for stop in 1.. {
        let engine = lost.crash(CrashKind::ProcessKilled);
        engine.crash_after(stop);
        let made = make_parts(&engine, &bytes);
        let power_losses = [CrashKind::PowerLoss; 12];
        for kind in power_losses.into_iter().chain([CrashKind::ProcessKilled]) {
            let after = engine.crash(kind);
            match open(&after) {
                Ok(store) => {
                    whole += 1;
                    assert!(contents(&store) == expected, "stopped at I/O {stop}");
                    assert_sound(&store);
                }
                Err(error) => {
                    none += 1;
                    // Nothing that a root refers to is ever missing.
                    let message = error.to_string();
                    let places = ["has no root", "superblock", "secret"];
                    let is_none = error.kind() == StoreErrorKind::MissingPart
                        || places.iter().any(|place| message.contains(place));
                    assert!(is_none && made.is_err(), "stopped at I/O {stop}: {error}");
                }
            }
        }
        if made.is_ok() {
            break;
        }
    }
    assert!(
        none > 10 && whole > 0,
        "{none} without a pool, {whole} with one"
    );
}

#[test]
fn what_is_not_a_whole_export_is_refused() {
    let world = pool(IndexKind::Hash);
    let store = world.store();
    let bytes = export(&store);
    assert_eq!(
        bytes.len() as u64,
        MetadataExport::read(&mut &bytes[..]).unwrap().bytes()
    );
    let refused = |bytes: &[u8], what: &str| {
        let error = MetadataExport::read(&mut &*bytes).expect_err(what);
        assert_eq!(error.kind(), StoreErrorKind::Damaged, "{what}: {error}");
    };
    for at in (0..bytes.len()).step_by(517) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 4;
        refused(&flipped, &format!("a flipped bit at {at}"));
    }
    for end in (0..bytes.len()).step_by(PAGE_BYTES / 2) {
        refused(&bytes[..end], &format!("cut at {end}"));
    }
    let pages: Vec<&[u8]> = bytes.chunks(PAGE_BYTES).collect();
    for left_out in 0..pages.len() {
        let mut some = pages.clone();
        some.remove(left_out);
        refused(&some.concat(), &format!("without page {left_out}"));
    }
    refused(
        &[&bytes[..], &bytes[..PAGE_BYTES]].concat(),
        "more behind it",
    );
    world
        .write(world.volume_ids()[0], 0, MIB, Fill::Data, Blocking::Yes)
        .unwrap();
    let later = export(&store);
    let page = 5 * PAGE_BYTES;
    let mixed = [&later[..page], &bytes[page..]].concat();
    refused(&mixed, "put together from two");

    let mut newer = bytes.clone();
    newer[5] = 2;
    let checksum = crc32c_of_page(&mut newer[..PAGE_BYTES]);
    newer[60..64].copy_from_slice(&checksum.to_le_bytes());
    let error = MetadataExport::read(&mut &newer[..]).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NewerFormat, "{error}");
}

fn crc32c_of_page(page: &mut [u8]) -> u32 {
    page[60..64].fill(0);
    crate::damage::crc32c(page)
}

#[test]
fn the_data_of_another_pool_is_refused() {
    let (world, other) = (pool(IndexKind::Hash), World::opened(12, &pool_of(8 * MIB)));
    let bytes = export(&other.store());
    let engine = without(&world, &MADE);
    let error = make_parts(&engine, &bytes).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Damaged);
    assert!(error.to_string().contains("another pool"), "{error}");
    assert!(engine.open(Part::Meta).is_err(), "nothing was made");
}
