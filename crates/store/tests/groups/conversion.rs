//! Pools that had one owner: a volume is written, shared and cleaned up, perhaps until the process dies, and then the pool is
//! converted.

use std::io::ErrorKind;
use std::sync::Arc;

use onefold_engine::cluster::Owned;
use onefold_engine::simulated::{CrashKind, SimulatedCluster, SimulatedEngine};
use onefold_engine::{Cluster, Disk, Engine, Part};
use onefold_format::GroupId;
use onefold_format::units::BLOCKS_PER_SPACE_EXTENT;
use onefold_store::{
    Blocking, Conversion, CreateOptions, DedupMode, Lba, OpenOptions, Ready, SharedDescription,
    Store, StoreError, StoreErrorKind, Volume, VolumeOptions, VolumeSettings,
};

use crate::model::{Block, VolumeModel};
use crate::world::{
    BLOCK, EXTENTS, SHARDS, VOLUME_BLOCKS, Violation, Xorshift, bytes_of, take_options,
};

/// The group that the pool becomes.
pub(crate) const GROUP: GroupId = GroupId(1);

/// Blocks of the pool: three space extents.
const POOL_BLOCKS: u64 = 3 * BLOCKS_PER_SPACE_EXTENT;

/// Blocks of the volume that makes others begin in the last space extent.
const FILLER_BLOCKS: u64 = 2 * BLOCKS_PER_SPACE_EXTENT;

/// Events before the conversion.
const EVENTS: u64 = 30;

/// Different contents, which the groups have in common.
const CONTENTS: u64 = 12;

const OPTIONS: OpenOptions = OpenOptions {
    memory_bytes: 64 << 20,
    rebuild_free_space: false,
    shared: None,
};

/// Makes a pool with one owner, and converts it to a pool of this cluster, with one volume in its first group.
pub(crate) fn convert_into(
    cluster: &SimulatedCluster,
    random: &mut Xorshift,
    seed: u64,
) -> Result<(SharedDescription, VolumeModel), Violation> {
    let failed = |doing: &str| {
        let doing = doing.to_owned();
        move |error: StoreError| format!("{doing}: {error}")
    };
    let mut engine = Arc::new(SimulatedEngine::of_cluster(seed));
    let options = CreateOptions {
        size_bytes: POOL_BLOCKS * BLOCK,
        log_bytes: 256 << 10,
        ..CreateOptions::default()
    };
    Store::create(&*engine, &options).map_err(failed("creating a pool with one owner"))?;
    let (store, _) = Store::open(engine.clone(), &OPTIONS).map_err(failed("opening it"))?;
    let mut model = VolumeModel {
        name: "vm0".to_owned(),
        blocks: vec![Block::zeros(); VOLUME_BLOCKS as usize],
    };
    let dedup = match random.below(2) {
        0 => DedupMode::Offline,
        _ => DedupMode::Inline,
    };
    let settings = VolumeOptions::new(VOLUME_BLOCKS * BLOCK).with(VolumeSettings {
        dedup,
        ..VolumeSettings::default()
    });
    for name in ["vm0", "gone"] {
        let created = store.create_volume(name, &settings);
        created.map_err(failed("creating a volume"))?;
    }
    if random.one_in(4) {
        begin_in_the_last_extent(&store, &mut model).map_err(failed("filling it"))?;
    }
    let dies = random.one_in(2);
    if dies {
        engine.crash_after(random.below(400));
    }
    let worked = work(&store, random, &mut model);
    if dies {
        let crashed = Arc::new(engine.crash(CrashKind::ProcessKilled));
        drop(store);
        engine = crashed;
    } else {
        worked.map_err(failed("using it"))?;
        store.close().map_err(failed("closing it"))?;
    }

    let conversion = Conversion::begin(engine.clone(), OPTIONS.memory_bytes)
        .map_err(failed("beginning a conversion"))?;
    let host = cluster.host(0);
    let mut steps = Vec::new();
    let copied = conversion.copy_to(&*host, SHARDS, "host0", &take_options(), &mut |at, all| {
        steps.push((at, all));
    });
    copied.map_err(failed("converting"))?;
    assert!(steps.is_sorted() && steps.last().is_some_and(|(at, all)| at == all));
    assert!(
        conversion.used_extents().len() < 3,
        "all space extents are in use"
    );
    cluster.set_leased(EXTENTS + 1, conversion.used_extents());
    copy_common(&*engine, cluster).map_err(|error| format!("copying the data: {error}"))?;
    model.blocks.iter_mut().for_each(Block::flushed);
    Ok((conversion.description(SHARDS), model))
}

/// Writes a block to the last space extent, and leaves the first ones without any.
fn begin_in_the_last_extent(store: &Store, model: &mut VolumeModel) -> Result<(), StoreError> {
    let settings = VolumeOptions::new(FILLER_BLOCKS * BLOCK).with(VolumeSettings {
        dedup: DedupMode::Off,
        ..VolumeSettings::default()
    });
    store.create_volume("filler", &settings)?;
    let filler = store.volume("filler")?;
    let some = vec![7; 256 * BLOCK as usize];
    for lba in (0..FILLER_BLOCKS).step_by(256) {
        filler.write(lba * BLOCK, &some, Blocking::Yes)?;
    }
    drop(filler);
    model.blocks[0].begin(CONTENTS);
    store
        .volume("vm0")?
        .write(0, &bytes_of(CONTENTS), Blocking::Yes)?;
    model.blocks[0].answered(CONTENTS);
    store.delete_volume("filler")?;
    store.deletions().finish(&mut |_, _| {})?;
    store.tidy(true)
}

/// Random events in a pool with one owner, until one fails.
fn work(store: &Store, random: &mut Xorshift, model: &mut VolumeModel) -> Result<(), StoreError> {
    let volume = store.volume("vm0")?;
    for event in 0..EVENTS {
        let lba = random.below(VOLUME_BLOCKS);
        let content = random.below(CONTENTS);
        let other = store.volume("gone").ok();
        match (random.below(8), other) {
            (0, _) => find(store, &volume)?,
            (1, Some(other)) => find(store, &other)?,
            (2, _) => {
                store.dedup().collect_batch()?;
            }
            (3, _) => {
                store.dedup().count_batch()?;
            }
            (4, _) if event > EVENTS / 2 => {
                delete_rest(store)?;
                if random.one_in(2) {
                    store.deletions().step()?;
                }
            }
            (5, Some(other)) => other.write(lba * BLOCK, &bytes_of(content), Blocking::Yes)?,
            _ => {
                let block = &mut model.blocks[lba as usize];
                block.begin(content);
                volume.write(lba * BLOCK, &bytes_of(content), Blocking::Yes)?;
                block.answered(content);
            }
        }
    }
    delete_rest(store)
}

/// Deletes the volume that is not in the model, if it is there.
pub(crate) fn delete_rest(store: &Store) -> Result<(), StoreError> {
    match store.delete_volume("gone") {
        Err(error) if error.kind() == StoreErrorKind::NotFound => Ok(()),
        deleted => deleted,
    }
}

fn find(store: &Store, volume: &Arc<Volume>) -> Result<(), StoreError> {
    let mut cursor = Lba(0);
    let found = store.dedup().find_batch(volume, &mut cursor, Ready::All);
    found.map(drop)
}

/// Gives the cluster the data and the secret, which a conversion in Ceph leaves where they are.
fn copy_common(from: &dyn Engine, cluster: &SimulatedCluster) -> Result<(), String> {
    let failed = |error: std::io::Error| error.to_string();
    let holding = cluster.host(0).take(Owned::Group(GROUP), &take_options());
    let holding = holding.map_err(|error| error.to_string())?;
    let secret = holding.create(Part::Secret, 4096).map_err(failed)?;
    let data = holding.open(Part::Data).map_err(failed)?;
    for (part, to) in [(Part::Secret, secret), (Part::Data, data)] {
        let from: Arc<dyn Disk> = from.open(part).map_err(failed)?;
        let mut block = vec![0; BLOCK as usize];
        for at in (0..from.len().map_err(failed)?).step_by(BLOCK as usize) {
            match from.read_at(&mut block, at) {
                Ok(()) => to.write_at(&block, at).map_err(failed)?,
                // It was never written.
                Err(error) if part == Part::Data && error.kind() == ErrorKind::UnexpectedEof => {}
                Err(error) => return Err(failed(error)),
            }
        }
        to.sync().map_err(failed)?;
    }
    Ok(())
}
