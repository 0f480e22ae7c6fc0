//! Sequences of events in which a rule matters, one for each rule that random events rarely need.

use onefold_engine::simulated::{ClusterRates, CrashKind};
use onefold_format::GroupId;
use onefold_store::{Blocking, StoreErrorKind};

use crate::oracle;
use crate::world::{BLOCK, Step, VOLUME_BLOCKS, World, bytes_of};

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
fn free_and_reuse(world: &mut World, group: GroupId) -> Step {
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
