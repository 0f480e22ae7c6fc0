//! A block that a group has found bad is known to the others.

use onefold_engine::Part;
use onefold_engine::cluster::Owned;
use onefold_engine::simulated::{ClusterRates, CrashKind};
use onefold_format::{GroupId, Pba};
use onefold_store::{Blocking, Lba, Ready, StoreErrorKind, VolumeOptions, VolumeSettings};

use crate::model::Content;
use crate::oracle;
use crate::scenarios::free_and_reuse;
use crate::world::{BLOCK, Step, World, bytes_of};

/// The group that finds the block bad.
const FINDER: GroupId = GroupId(1);

/// A group with the same content, which finds duplicates off-line.
const OFF_LINE: GroupId = GroupId(2);

/// A group with the same content, which writes in line.
const IN_LINE: GroupId = GroupId(3);

const HOST_OF_FINDER: usize = 0;
const COMMON: Content = 5;

fn publish(world: &mut World, group: GroupId) -> Step {
    world.flush(group)?;
    while world.find_duplicates(group)? {}
    Ok(())
}

/// The only published block.
fn published(world: &World) -> Result<Pba, String> {
    match world.rows()[..] {
        [(_, row)] => Ok(row.pba),
        ref rows => Err(format!("there are {} rows, and not one", rows.len())),
    }
}

fn make_unreadable(world: &World, pba: Pba) -> Step {
    let engine = world
        .cluster
        .engine(HOST_OF_FINDER, Owned::Group(FINDER))
        .ok_or("the group has no owner")?;
    engine.make_unreadable(Part::Data, pba.0 * BLOCK..(pba.0 + 1) * BLOCK);
    Ok(())
}

/// Whether a guest can read its first block.
fn is_readable(world: &World, group: GroupId) -> Result<bool, String> {
    let (_, _, volume) = world.find(group).ok_or("the group is not open")?;
    let mut block = vec![0; BLOCK as usize];
    let read = volume.read(0, &mut block, Blocking::Yes);
    Ok(read.is_ok() && block == bytes_of(COMMON))
}

/// What the jobs of a group do about bad blocks, until all shards have answered.
fn look_at_bad_blocks(world: &World, group: GroupId) -> Step {
    let (_, store, _) = world.find(group).ok_or("the group is not open")?;
    let failed = |error| format!("group {group} looks at bad blocks: {error}");
    store.scrub().look_at_suspects().map_err(failed)?;
    let again = store.scrub().look_at_unreadable(&mut Pba(0));
    again.map_err(failed)?;
    world.cluster.set_rates(ClusterRates {
        request_lost: 0.2,
        reply_lost: 0.2,
        call_doubled: 0.2,
        ..ClusterRates::default()
    });
    let mut tries = 0..100;
    while let Err(error) = store.scrub().mark_for_all_groups(true) {
        if tries.next().is_none() || error.kind() != StoreErrorKind::Busy {
            return Err(failed(error));
        }
    }
    world.cluster.set_rates(ClusterRates::default());
    Ok(())
}

/// A group finds a block bad; others write its content. None of them refers to the bad block before one has repaired it
/// with its own. The owners of the shards may change before, and the group that found it may be gone.
pub(crate) fn met_again(seed: u64) -> Step {
    let mut world = World::new(seed, seed.is_multiple_of(3))?;
    world.write(FINDER, 0, &[COMMON])?;
    publish(&mut world, FINDER)?;
    let pba = published(&world)?;
    make_unreadable(&world, pba)?;
    if is_readable(&world, FINDER)? {
        return Err("the block is readable".to_owned());
    }
    look_at_bad_blocks(&world, FINDER)?;
    if seed.is_multiple_of(2) {
        world.kill(HOST_OF_FINDER, CrashKind::PowerLoss);
        world.serve_all(1)?;
    }

    // A store gets no hit from a shard before it knows the session of its owner, and has ended its earlier holds.
    world.write(IN_LINE, 7, &[6])?;
    world.end_holds(IN_LINE)?;
    let hits = world.hits;
    world.write(IN_LINE, 0, &[COMMON])?;
    if world.hits != hits {
        return Err("P8: a write in line refers to the bad block".to_owned());
    }
    world.write(OFF_LINE, 0, &[COMMON])?;
    publish(&mut world, OFF_LINE)?;
    for group in [OFF_LINE, IN_LINE] {
        if !is_readable(&world, group)? {
            return Err(format!("P8: group {group} cannot read what it has written"));
        }
    }
    if published(&world)? != pba {
        return Err("the content has another block now".to_owned());
    }

    // The mark is taken off, although the group that set it may not know.
    look_at_bad_blocks(&world, OFF_LINE)?;
    world.write(IN_LINE, 1, &[COMMON])?;
    if world.hits == hits {
        return Err("the block is good again, and a write in line does not find it".to_owned());
    }
    world.come_to_rest()?;
    oracle::check(&world)?;
    if !is_readable(&world, FINDER)? {
        return Err("P8: the block is not repaired".to_owned());
    }
    Ok(())
}

/// A group that compares bytes meets a bad block, and lists it. The block can be read again, is released, and gets another
/// content.
#[test]
fn an_entry_of_the_list_goes_when_its_block_has_another_content() {
    for seed in 0..20 {
        let mut world = World::new(seed, true).unwrap();
        world.write(FINDER, 0, &[COMMON]).unwrap();
        publish(&mut world, FINDER).unwrap();
        let pba = published(&world).unwrap();
        make_unreadable(&world, pba).unwrap();
        assert!(!is_readable(&world, FINDER).unwrap());
        look_at_bad_blocks(&world, FINDER).unwrap();

        let (_, store, _) = world.find(OFF_LINE).unwrap();
        let verifying = VolumeOptions::new(BLOCK).with(VolumeSettings {
            verify: true,
            ..VolumeSettings::default()
        });
        store.create_volume("verifying", &verifying).unwrap();
        let volume = store.volume("verifying").unwrap();
        volume
            .write(0, &bytes_of(COMMON), Blocking::Yes)
            .and_then(|()| volume.flush())
            .unwrap();
        let found = store
            .dedup()
            .find_batch(&volume, &mut Lba(0), Ready::All)
            .unwrap();
        assert_eq!((found.rejected, found.duplicates), (1, 0));
        let listed = || store.scrub().status().unwrap().bad_blocks;
        assert_eq!(listed(), 1);
        while store.dedup().collect_batch().unwrap().released > 0 {}

        let engine = world.cluster.engine(HOST_OF_FINDER, Owned::Group(FINDER));
        engine.unwrap().clear_unreadable(Part::Data);
        look_at_bad_blocks(&world, FINDER).unwrap();
        free_and_reuse(&mut world, FINDER).unwrap();
        publish(&mut world, FINDER).unwrap();
        assert!(world.rows().iter().any(|(_, row)| row.pba == pba));
        look_at_bad_blocks(&world, OFF_LINE).unwrap();
        assert_eq!(listed(), 0, "seed {seed}");
    }
}
