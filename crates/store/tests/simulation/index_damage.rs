//! An index that is missing, decayed, cut or another pool's: volumes are still served, nothing is
//! lost, and `check --repair` rebuilds it.

use std::io::ErrorKind;
use std::sync::Arc;

use onefold_engine::simulated::{CrashKind, Op, SimulatedEngine};
use onefold_engine::{Engine, Part};
use onefold_store::{Blocking, CreateOptions, Finding, IndexKind, Lba, Ready, StoreErrorKind};

use crate::common::{BLOCK, KINDS, MIB, findings, pool_of};
use crate::crash::Recovery;
use crate::damage::damaged;
use crate::index_rows;
use crate::world::{Fill, Step, World};

/// A closed pool with published blocks, references to release and blocks to publish.
fn pool(index: IndexKind, seed: u64) -> Arc<World> {
    let options = CreateOptions {
        index,
        ..pool_of(8 * MIB)
    };
    let world = World::opened(seed, &options);
    let run = || -> Step {
        world.create_volume(MIB)?;
        world.create_volume(MIB)?;
        for id in world.volume_ids() {
            world.write(id, 0, 32 * BLOCK, Fill::Common, Blocking::Yes)?;
            world.write(id, 32 * BLOCK, 64 * BLOCK, Fill::Data, Blocking::Yes)?;
            world.dedup(id, Ready::All, 9)?;
            world.trim(id, 16 * BLOCK, 24 * BLOCK, Blocking::Yes)?;
            world.write(id, 16 * BLOCK, 8 * BLOCK, Fill::Common, Blocking::Yes)?;
        }
        world.close_and_open(8 * MIB)?;
        world.durably("close", || world.store().close())?;
        world.engine().halt();
        Ok(())
    };
    run().unwrap();
    world
}

fn index_bytes(engine: &SimulatedEngine) -> Vec<u8> {
    engine.durable_image(Part::Index)
}

/// Puts other bytes into the place of the index.
fn replace(engine: &SimulatedEngine, bytes: &[u8]) {
    engine.lose_part(Part::Index);
    engine.create(Part::Index, 0).unwrap();
    engine.overwrite(Part::Index, 0, bytes);
}

/// Volumes read and write; operations that need the index work or report that they cannot.
fn volumes_are_served(world: &World) -> Step {
    world.verify_contents()?;
    for id in world.volume_ids() {
        world.write(id, 8 * BLOCK, 16 * BLOCK, Fill::Common, Blocking::Yes)?;
        world.write(id, 100 * BLOCK, 16 * BLOCK, Fill::Data, Blocking::Yes)?;
        world.trim(id, 40 * BLOCK, 8 * BLOCK, Blocking::Yes)?;
        world.flush(id)?;
        world.dedup(id, Ready::All, 2)?;
        world.read(id, 0, MIB, Blocking::Yes)?;
    }
    world.collect()?;
    world.verify_contents()
}

/// Opens the pool with such an index, uses it, repairs it, and uses it again. Returns the findings
/// of a check before.
fn repaired(world: &Arc<World>, engine: SimulatedEngine) -> Vec<Finding> {
    world.state().is_index_damaged = true;
    world.open_after(Recovery::KILLED, engine).unwrap();
    volumes_are_served(world).unwrap();
    let found = findings(&world.store(), false);
    let again = findings(&world.store(), true);
    let is_repairable = |finding: &Finding| finding.repairable;
    assert!(again.iter().all(is_repairable), "{again:?}");
    assert_eq!(
        findings(&world.store(), false),
        [],
        "after the repair of {again:?}"
    );
    world.state().is_index_damaged = false;
    world.settle().unwrap();
    world.recover_by(Recovery::POWER_LOSS).unwrap();
    world.settle().unwrap();
    world.engine().halt();
    found
}

#[test]
fn a_missing_index_is_said_and_made_anew() {
    for index in KINDS {
        let world = pool(index, 1);
        let lose = |engine: &SimulatedEngine| engine.lose_part(Part::Index);
        world.state().is_index_damaged = true;
        world
            .open_after(Recovery::KILLED, damaged(&world, lose))
            .unwrap();
        let store = world.store();
        let volume = store.volume("volume-1").unwrap();
        let error = store
            .dedup()
            .find_batch(&volume, &mut Lba(0), Ready::All)
            .unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Damaged, "{error}");
        assert!(error.to_string().contains("check --repair"), "{error}");
        let error = store.dedup().collect_batch().unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Damaged, "{error}");
        assert!(store.stat().unwrap().index_rebuilding);
        let found = findings(&store, false);
        assert!(
            found.len() == 1 && found[0].repairable && found[0].message.contains("index"),
            "{found:?}"
        );
        drop((volume, store));
        world.engine().halt();
        assert_eq!(repaired(&world, damaged(&world, |_| {})).len(), 1);
    }
}

#[test]
fn an_index_of_another_pool_is_not_used() {
    for index in KINDS {
        let other = index_bytes(&pool(index, 2).engine());
        let world = pool(index, 1);
        let engine = damaged(&world, |engine| replace(engine, &other));
        let found = repaired(&world, engine);
        assert!(
            found.len() == 1 && found[0].message.contains("belongs to the pool"),
            "{found:?}"
        );
    }
}

#[test]
fn a_cut_index_is_made_anew() {
    for index in KINDS {
        let world = pool(index, 1);
        let whole = index_bytes(&world.engine());
        let mut said = 0;
        for len in [0, 100, 512, 4096, whole.len() / 2, whole.len() - 512] {
            let world = pool(index, 1);
            let engine = damaged(&world, |engine| replace(engine, &whole[..len]));
            said += repaired(&world, engine).len();
        }
        // A memory index that cannot be read is counted again without being asked.
        assert!(said >= 4 || index == IndexKind::Memory, "{said}");
    }
}

#[test]
fn flipped_bits_in_the_index_lose_nothing() {
    for index in KINDS {
        let world = pool(index, 1);
        let whole = index_bytes(&world.engine());
        let in_use = |at: &usize| {
            whole[*at..(*at + 16).min(whole.len())]
                .iter()
                .any(|b| *b != 0)
        };
        let step = (whole.len() / 400).max(7) | 1;
        let mut said = 0;
        for at in (0..whole.len()).step_by(step).filter(in_use) {
            let world = pool(index, 1);
            let engine = damaged(&world, |engine| {
                engine.flip_bit(Part::Index, at as u64, at as u32 % 8);
            });
            said += repaired(&world, engine).len();
        }
        println!("{index:?}: {said} findings");
    }
}

#[test]
fn rows_that_disagree_with_the_maps_are_found_and_put_right() {
    for index in KINDS {
        let world = pool(index, 1);
        let engine = damaged(&world, |engine| {
            index_rows::change(engine, |rows| {
                let shared = rows.iter().position(|(_, row)| row.references > 2).unwrap();
                rows[shared].1.references -= 1;
                let unique = rows
                    .iter()
                    .position(|(_, row)| row.references == 1)
                    .unwrap();
                rows[unique].1.references += 1;
                let lost = rows
                    .iter()
                    .position(|(_, row)| row.references == 1)
                    .unwrap();
                rows.remove(lost);
            });
        });
        world.open_after(Recovery::KILLED, engine).unwrap();
        world.verify_contents().unwrap();
        let store = world.store();
        let found = findings(&store, false);
        assert_eq!(found.len(), 3, "{found:?}");
        let said = |what: &str| found.iter().filter(|f| f.message.contains(what)).count();
        assert_eq!(said("the index counts"), 2, "{found:?}");
        assert_eq!(said("but not in the index"), 1, "{found:?}");
        assert!(found.iter().all(|finding| finding.repairable));
        assert_eq!(findings(&store, true), found);
        assert_eq!(findings(&store, false), []);
        drop(store);
        world.settle().unwrap();
        world.recover_by(Recovery::POWER_LOSS).unwrap();
        world.settle().unwrap();
    }
}

#[test]
fn rows_that_nobody_refers_to_are_removed() {
    for index in KINDS {
        let world = pool(index, 1);
        let engine = damaged(&world, |engine| {
            index_rows::change(engine, |rows| {
                let (_, row) = rows[0];
                // A free block, and one that a volume's entry shares under another content.
                let free = onefold_index::Row {
                    pba: onefold_format::Pba(2000),
                    references: 1,
                };
                let content = |byte| index_rows::fingerprint(engine, &[byte; BLOCK as usize]);
                rows.extend([(content(1), free), (content(2), row)]);
            });
        });
        world.open_after(Recovery::KILLED, engine).unwrap();
        let store = world.store();
        let found = findings(&store, true);
        let said = |what: &str| found.iter().filter(|f| f.message.contains(what)).count();
        assert_eq!(
            (found.len(), said("twice in the index")),
            (2, 1),
            "{found:?}"
        );
        assert_eq!(findings(&store, false), []);
        drop(store);
        world.settle().unwrap();
    }
}

/// The index forgets a row, and its content is published a second time before this is noticed.
#[test]
fn a_content_that_was_published_twice_is_put_right() {
    for index in KINDS {
        let world = pool(index, 1);
        let engine = damaged(&world, |engine| {
            index_rows::change(engine, |rows| rows.retain(|(_, row)| row.references == 1));
        });
        world.state().is_index_damaged = true;
        world.open_after(Recovery::KILLED, engine).unwrap();
        let run = || -> Step {
            let id = world.volume_ids()[0];
            world.write(id, 100 * BLOCK, 32 * BLOCK, Fill::Common, Blocking::Yes)?;
            world.dedup(id, Ready::All, 9)?;
            world.verify_contents()
        };
        run().unwrap();
        assert!(!findings(&world.store(), true).is_empty());
        // One of the two blocks has no row and never will: it is reported until no entry refers to
        // it.
        let left = findings(&world.store(), false);
        let is_said = |finding: &Finding| finding.message.contains("but not in the index");
        assert!(!left.is_empty() && left.iter().all(is_said), "{left:?}");
        let forget = || -> Step {
            for id in world.volume_ids() {
                world.trim(id, 0, MIB, Blocking::Yes)?;
            }
            world.verify_contents()?;
            world.collect()
        };
        forget().unwrap();
        assert!(!findings(&world.store(), true).is_empty());
        assert_eq!(findings(&world.store(), false), []);
        world.state().is_index_damaged = false;
        world.settle().unwrap();
    }
}

/// The machine stops in the middle of rebuilding the index.
#[test]
fn every_io_of_a_repair_can_be_the_last() {
    for index in KINDS {
        let closed = pool(index, 1);
        let mut ios = 0;
        for n in 1.. {
            let world = pool(index, 1);
            let engine = damaged(&closed, |engine| engine.lose_part(Part::Index));
            world.open_after(Recovery::KILLED, engine).unwrap();
            world.engine().crash_after(n);
            let repaired = world.store().check(true, &mut |_| {});
            if repaired.is_ok() {
                break;
            }
            assert!(world.engine().is_crashed(), "{repaired:?}");
            ios = n;
            world.state().is_index_damaged = true;
            world.recover_by(Recovery::POWER_LOSS).unwrap();
            // It is never taken for whole before it is.
            let found = findings(&world.store(), false);
            let is_said = found.is_empty()
                || (found.len() == 1 && found[0].message.contains("cannot be used"));
            assert!(is_said, "{index:?}, stopped at I/O {n}: {found:?}");
            findings(&world.store(), true);
            world.state().is_index_damaged = false;
            world.settle().unwrap();
        }
        assert!(ios > 10, "a repair of {ios} I/Os");
    }
}

/// The last checkpoint of a pool that takes no writes is not its state: blocks that it names were freed since, must not
/// be read, and are not bad if such a read fails.
#[test]
fn an_index_is_not_counted_from_a_checkpoint_that_is_old() {
    let world = pool(IndexKind::Memory, 11);
    let engine = damaged(&world, |_| {});
    // The process dies, and the index in its memory with it.
    let (store, _) = crate::common::open(engine.clone(), 8 * MIB).unwrap();
    engine.halt();
    drop(store);
    let engine = engine.crash(CrashKind::ProcessKilled);
    let (store, _) = crate::common::open(engine.clone(), 8 * MIB).unwrap();
    let volume = store.volume("volume-1").unwrap();
    volume
        .write(0, &[1; BLOCK as usize], Blocking::Yes)
        .unwrap();
    engine.fail_once(Part::Log, Op::Sync, 1, ErrorKind::Other);
    volume.flush().unwrap_err();
    assert!(store.read_only_reason().is_some());
    let reads = || engine.count(Part::Data, Op::Read).count;
    let before = reads();
    let refused = store.index().rebuild_if_needed(&mut |_, _| {}).unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::ReadOnly, "{refused}");
    assert_eq!(reads(), before);
}
