//! Defects that end a request by a panic, in the middle of its changes.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use onefold_engine::Part;
use onefold_engine::simulated::{Op, When};
use onefold_format::Lba;
use onefold_store::{Blocking, Ready, StoreErrorKind};

use crate::common::{MIB, pool_of};
use crate::crash::Recovery;
use crate::world::{Fill, World};

/// A pool with a volume of two equal halves, opened after a crash.
fn pool() -> (Arc<World>, u64) {
    let world = World::opened(12, &pool_of(16 * MIB));
    let id = world.new_volume(8 * MIB).unwrap();
    world
        .write(id, 0, 8 * MIB, Fill::Data, Blocking::Yes)
        .unwrap();
    world.flush(id).unwrap();
    world.check().unwrap();
    reopens(&world);
    (world, id)
}

fn reopens(world: &World) {
    world.recover_by(Recovery::POWER_LOSS).unwrap();
    world.check().unwrap();
}

/// The next such I/O of this request panics.
fn panics<T>(world: &World, part: Part, op: Op, request: impl FnOnce() -> T) {
    let panic = || resume_unwind(Box::new("a defect, made by a test"));
    world
        .engine()
        .on_next_io(part, op, When::Before, Box::new(panic));
    let ended = catch_unwind(AssertUnwindSafe(request));
    assert!(ended.is_err(), "there was no such I/O");
}

#[test]
fn a_job_that_panics_is_the_last_one_and_guests_go_on() {
    let (world, id) = pool();
    let (store, volume) = (world.store(), world.handle(id).unwrap());
    let dedup = || store.dedup().find_batch(&volume, &mut Lba(0), Ready::All);
    panics(&world, Part::Data, Op::Read, || dedup().unwrap());
    for error in [
        dedup().unwrap_err(),
        store.dedup().collect_batch().unwrap_err(),
        store.check(false, &mut |_| {}).unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::Damaged, "{error}");
        assert!(error.to_string().contains("a job ended by a panic"));
    }
    drop((store, volume));
    world.write(id, 0, MIB, Fill::Data, Blocking::Yes).unwrap();
    world.flush(id).unwrap();
    assert_eq!(world.state().coverage.failed_requests, 0);
    reopens(&world);
}

#[test]
fn a_change_of_the_catalogue_that_panics_stops_writes() {
    let (world, id) = pool();
    let store = world.store();
    let name = store.volumes().names()[0].clone();
    let resize = || store.resize_volume(&name, MIB);
    panics(&world, Part::Meta, Op::Read, || resize().unwrap());
    let volume = world.handle(id).unwrap();
    let error = volume.flush().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::ReadOnly, "{error}");
    assert!(error.to_string().contains("a change of the catalogue"));
    drop((store, volume));
    reopens(&world);
}
