//! Sequences of events in which a rule matters, one for each rule that random events rarely need.

use onefold_engine::simulated::{ClusterRates, CrashKind};
use onefold_format::{GroupId, Shard};
use onefold_store::{Blocking, StoreErrorKind};

use crate::oracle;
use crate::world::{BLOCK, SHARDS, Step, VOLUME_BLOCKS, World, bytes_of};

/// Two groups on different hosts.
const ONE: GroupId = GroupId(1);
const TWO: GroupId = GroupId(2);

/// The host of [`ONE`].
const HOST_OF_ONE: usize = 0;

/// A content that both groups have.
const COMMON: u64 = 5;

/// Both groups refer to one block.
fn sharing(seed: u64) -> Result<World, String> {
    let mut world = World::new(seed, true)?;
    for group in [ONE, TWO] {
        world.write(group, 0, &[COMMON])?;
        world.flush(group)?;
        world.find_duplicates(group)?;
    }
    Ok(world)
}

/// A group drops its last reference to the common block, frees it, and uses all of its free blocks.
pub(crate) fn free_and_reuse(world: &mut World, group: GroupId) -> Step {
    world.write(group, 0, &[6])?;
    world.flush(group)?;
    world.collect(group)?;
    world.tidy(group, true)?;
    (1..VOLUME_BLOCKS).try_for_each(|lba| world.write(group, lba, &[100 + lba]))?;
    world.flush(group)
}

fn rest(mut world: World) -> Step {
    world.come_to_rest()?;
    oracle::check(&world)
}

/// A group reads a block and drops its reference; another group drops the last one, and uses the block again.
pub(crate) fn released_while_read(seed: u64) -> Step {
    let mut world = sharing(seed)?;
    world.begin_read(ONE, 0);
    world.write(ONE, 0, &[7])?;
    world.collect(ONE)?;
    free_and_reuse(&mut world, TWO)?;
    world.end_read()?;
    rest(world)
}

/// A host dies after a release, whose outcome is not durable; another group frees the block and publishes it with another content; then the release is
/// repeated.
pub(crate) fn released_by_a_dying_host(seed: u64) -> Step {
    let mut world = sharing(seed)?;
    world.write(ONE, 0, &[7])?;
    world.flush(ONE)?;
    world.collect(ONE)?;
    world.kill(HOST_OF_ONE, CrashKind::PowerLoss);
    world.serve_all(1)?;
    free_and_reuse(&mut world, TWO)?;
    world.find_duplicates(TWO)?;
    world.start(HOST_OF_ONE)?;
    world.collect(ONE)?;
    rest(world)
}

/// The cluster does not answer exchanges while a group runs out of blocks: its writes can be repeated, and succeed once the
/// cluster answers.
pub(crate) fn filled_while_the_cluster_is_late(seed: u64) -> Step {
    let mut world = World::new(seed, true)?;
    world.cluster.set_extents(40);
    let late = ClusterRates {
        exchange_lost: 1.0,
        ..ClusterRates::default()
    };
    let mut were_late = 0;
    for lba in 0..VOLUME_BLOCKS {
        let content = 100 + lba;
        let (_, _, volume) = world.find(ONE).ok_or("the group is not open")?;
        let write = || volume.write(lba * BLOCK, &bytes_of(content), Blocking::Yes);
        world.cluster.set_rates(late);
        let written = write();
        world.cluster.set_rates(ClusterRates::default());
        match written {
            Err(error) if error.kind() == StoreErrorKind::Busy => {
                were_late += 1;
                write().map_err(|error| format!("after the cluster has answered: {error}"))?;
            }
            written => written.map_err(|error| format!("while it has not: {error}"))?,
        }
        world.write(ONE, lba, &[content])?;
    }
    if were_late == 0 {
        return Err("the group has never run out of blocks".to_owned());
    }
    rest(world)
}

/// Whether events have reached the state that they are about.
type Reached = Result<bool, String>;

/// Has a job of [`ONE`] call the index, and loses all answers. Returns whether its batch is open now: a reply may have come all
/// the same.
fn unanswered(world: &mut World, job: fn(&mut World, GroupId) -> Reached) -> Reached {
    let is_open = |world: &World| {
        let store = world.process(HOST_OF_ONE)?.pool.store(ONE);
        let store = store.ok_or("the group is not open")?;
        let stat = store.stat().map_err(|error| error.to_string())?;
        let queued = store.dedup().pending_release_blocks();
        let queued = queued.map_err(|error| error.to_string())?;
        Ok::<_, String>(stat.unsettled_blocks > 0 || stat.pending_release_blocks > queued)
    };
    world.cluster.set_rates(ClusterRates {
        reply_lost: 0.5,
        ..ClusterRates::default()
    });
    let mut has_work = true;
    while has_work && !is_open(world)? {
        has_work = job(world, ONE)?;
    }
    world.cluster.set_rates(ClusterRates::default());
    is_open(world)
}

/// The whole index is lost and rebuilt. Returns how many blocks that gave to the pool.
fn rebuilt(world: &mut World) -> Result<u64, String> {
    (0..SHARDS).for_each(|shard| world.lose_index(Shard(shard)));
    let before = (world.rebuilds, world.given_back);
    world.rebuild(1)?;
    if world.rebuilds == before.0 {
        return Err("the index was not rebuilt".to_owned());
    }
    Ok(world.given_back - before.1)
}

/// The index aliases a block of one group to that of another, and the answer is lost; the other group releases its
/// reference; then the index is lost. Nobody has the block.
pub(crate) fn aliased_by_a_lost_index(seed: u64) -> Reached {
    let mut world = World::new(seed, true)?;
    world.write(TWO, 0, &[COMMON])?;
    world.flush(TWO)?;
    world.find_duplicates(TWO)?;
    world.write(ONE, 0, &[COMMON])?;
    world.flush(ONE)?;
    if !unanswered(&mut world, World::find_duplicates)? {
        return Ok(false);
    }
    world.write(TWO, 0, &[6])?;
    world.flush(TWO)?;
    world.collect(TWO)?;
    match rebuilt(&mut world)? {
        1 => rest(world).map(|()| true),
        given_back => Err(format!(
            "P6: {given_back} blocks were given to the pool, and not 1"
        )),
    }
}

/// A release of one group is executed, and the answer is lost; another group frees the block, writes another content to it,
/// and perhaps publishes that; then the index is lost.
pub(crate) fn released_by_a_lost_index(seed: u64) -> Reached {
    let mut world = sharing(seed)?;
    world.write(ONE, 0, &[7])?;
    world.flush(ONE)?;
    if !unanswered(&mut world, World::collect)? {
        return Ok(false);
    }
    free_and_reuse(&mut world, TWO)?;
    if seed.is_multiple_of(2) {
        world.find_duplicates(TWO)?;
    }
    expect_none(rebuilt(&mut world)?)?;
    rest(world).map(|()| true)
}

/// The release of a block's last reference is executed, and the answer is lost; the content is published again; then the
/// index is lost.
pub(crate) fn freed_by_a_lost_index(seed: u64) -> Reached {
    let mut world = World::new(seed, true)?;
    world.write(ONE, 0, &[COMMON])?;
    world.flush(ONE)?;
    world.find_duplicates(ONE)?;
    world.write(ONE, 0, &[7])?;
    world.flush(ONE)?;
    if !unanswered(&mut world, World::collect)? {
        return Ok(false);
    }
    world.write(TWO, 0, &[COMMON])?;
    world.flush(TWO)?;
    world.find_duplicates(TWO)?;
    expect_none(rebuilt(&mut world)?)?;
    rest(world).map(|()| true)
}

fn expect_none(given_back: u64) -> Step {
    match given_back {
        0 => Ok(()),
        _ => Err(format!("P6: nobody had {given_back} blocks")),
    }
}
