//! Guests' steps: the life of a write (admit to reply), trims, reads in flight, and the arrival of flushes.

use crate::bits::Bits;
use crate::guards::Guard;
use crate::image::{Content, Entry, LayerId, Lba, Record, Volume};
use crate::properties::Violation;
use crate::state::{Config, Flush, Reader, State, Target, Writer};

/// The block that receives a write's data.
struct Place {
    block: u8,
    in_place: bool,
}

/// Steps 1 to 4: admit, lock, shape, place. `None` if the lock is taken or the pool is full.
pub(crate) fn start_write(
    state: &mut State,
    config: &Config,
    slot: usize,
    volume: Volume,
    lba: Lba,
    content: Content,
) -> Option<()> {
    let layer = lockable(state, config, volume, lba)?;
    let place = place(state, config, layer, lba)?;
    state.budget.writes = state.budget.writes.checked_sub(1)?;
    admit(state, volume, lba, content);
    state.memory.drop_candidate(config, layer, lba);
    if !place.in_place {
        state.memory.leased.insert(place.block);
    }
    state.memory.writers[slot] = Some(Writer {
        volume,
        layer,
        lba,
        content,
        fingerprinted: content,
        block: place.block,
        in_place: place.in_place,
        stored: false,
        logged: place.in_place,
    });
    Some(())
}

/// A trim or a write of zeros: no data, so all its steps are one.
pub(crate) fn write_zeros(
    state: &mut State,
    config: &Config,
    volume: Volume,
    lba: Lba,
) -> Option<()> {
    let layer = lockable(state, config, volume, lba)?;
    state.budget.zeros = state.budget.zeros.checked_sub(1)?;
    admit(state, volume, lba, 0);
    let found = state.memory.image.layer(layer)?;
    let old = found.map[usize::from(lba)];
    let covers = found.below.is_some() && config.on(Guard::ZeroHidesBelow);
    let new = if covers { Entry::Zero } else { Entry::Absent };
    if old != new {
        state.append(
            config,
            Record::Write {
                layer,
                lba,
                old,
                new,
            },
        );
    }
    answer(state, volume, lba, 0);
    update_cache(state, config, volume, lba);
    Some(())
}

pub(crate) fn lockable(
    state: &State,
    config: &Config,
    volume: Volume,
    lba: Lba,
) -> Option<LayerId> {
    let layer = state.memory.image.live[usize::from(volume)]?;
    (!state.memory.is_locked(config, layer, lba)).then_some(layer)
}

/// Notes that from now on a crash may leave the new content, and a read may return it.
pub(crate) fn admit(state: &mut State, volume: Volume, lba: Lba, content: Content) {
    state.ghost.allowed[usize::from(volume)][usize::from(lba)].insert(content);
    if let Some(flush) = state.memory.flush.as_mut().filter(|f| f.volume == volume) {
        flush.allowed[usize::from(lba)].insert(content);
    }
    for reader in state.memory.readers.iter_mut().flatten() {
        if reader.target == Target::Live(volume) && reader.lba == lba {
            reader.legal.insert(content);
        }
    }
}

fn place(state: &State, config: &Config, layer: LayerId, lba: Lba) -> Option<Place> {
    let image = &state.memory.image;
    let in_place = match image.layer(layer)?.map[usize::from(lba)] {
        Entry::Private(block) | Entry::Kept(block) => Some(block),
        Entry::Shared(block) if !config.on(Guard::NotInPlaceShared) => Some(block),
        Entry::Absent if !config.on(Guard::NotInPlaceFrozen) => image.resolve(layer, lba).1.block(),
        _ => None,
    };
    match in_place {
        Some(block) => Some(Place {
            block,
            in_place: true,
        }),
        // The lowest free block: used blocks come before fresh ones, so that reuse is as early as possible.
        None => {
            let block = state.memory.free_blocks(config).iter().next()?;
            Some(Place {
                block,
                in_place: false,
            })
        }
    }
}

/// The owner of the buffer writes another content into it after it was fingerprinted. If the write uses a copy, this
/// has no effect.
pub(crate) fn change_buffer(
    state: &mut State,
    config: &Config,
    slot: usize,
    content: Content,
) -> Option<()> {
    let writer = state.memory.writers[slot].as_mut()?;
    let is_copied = config.on(Guard::OneFingerprint);
    if is_copied || writer.stored || writer.content == content {
        return None;
    }
    state.budget.buffer_changes = state.budget.buffer_changes.checked_sub(1)?;
    writer.content = content;
    let (volume, lba) = (writer.volume, writer.lba);
    admit(state, volume, lba, content);
    Some(())
}

/// Step 5: the data write completes; for a rewrite in place this is the last step.
pub(crate) fn store(state: &mut State, config: &Config, slot: usize) -> Option<()> {
    let mut writer = state.memory.writers[slot].clone()?;
    let turn = writer.logged || config.on(Guard::StoreBeforeLog);
    if writer.stored || !turn {
        return None;
    }
    if !may_store(state, &writer) {
        state.violate(Violation::ImmutableWritten);
    }
    state.disk.write(writer.block, writer.content);
    let is_other = writer.fingerprinted != writer.content;
    let misprinted = is_other.then_some(writer.fingerprinted);
    state.memory.misprinted[usize::from(writer.block)] = misprinted;
    writer.stored = true;
    if writer.logged || !config.on(Guard::ReplyAfterApply) {
        reply(state, &writer);
    }
    state.memory.writers[slot] = (!writer.logged).then_some(writer);
    Some(())
}

/// P1: data goes to a block that no map names, or to one that this entry alone owns in the live
/// layer.
fn may_store(state: &State, writer: &Writer) -> bool {
    if state.memory.leased.has(writer.block) {
        return true;
    }
    let image = &state.memory.image;
    let is_live = image.live[usize::from(writer.volume)] == Some(writer.layer);
    let entry = image
        .layer(writer.layer)
        .map(|l| l.map[usize::from(writer.lba)]);
    let block = writer.block;
    is_live && matches!(entry, Some(Entry::Private(b) | Entry::Kept(b)) if b == block)
}

/// Steps 6 to 8: append the record, apply it, reply.
pub(crate) fn log(state: &mut State, config: &Config, slot: usize) -> Option<()> {
    let mut writer = state.memory.writers[slot].clone()?;
    if writer.logged || (!writer.stored && config.on(Guard::StoreBeforeLog)) {
        return None;
    }
    let (layer, lba) = (writer.layer, writer.lba);
    let old = state.memory.image.layer(layer)?.map[usize::from(lba)];
    state.memory.leased.remove(writer.block);
    let new = Entry::Private(writer.block);
    state.append(
        config,
        Record::Write {
            layer,
            lba,
            old,
            new,
        },
    );
    writer.logged = true;
    update_cache(state, config, writer.volume, lba);
    if writer.stored {
        reply(state, &writer);
    }
    state.memory.writers[slot] = (!writer.stored).then_some(writer);
    Some(())
}

fn reply(state: &mut State, writer: &Writer) {
    answer(state, writer.volume, writer.lba, writer.content);
}

/// Notes that from now on the guest relies on the content.
pub(crate) fn answer(state: &mut State, volume: Volume, lba: Lba, content: Content) {
    state.ghost.answered[usize::from(volume)][usize::from(lba)] = content;
    state.ghost.affected[usize::from(volume)].remove(lba);
}

/// Updates a volume's cached lookup after the volume's own write.
pub(crate) fn update_cache(state: &mut State, config: &Config, volume: Volume, lba: Lba) {
    let cached = &mut state.memory.cache[usize::from(volume)][usize::from(lba)];
    if config.cached && cached.is_some() {
        let layer = state.memory.image.live[usize::from(volume)];
        *cached = layer.and_then(|layer| state.memory.image.resolve(layer, lba).1.block());
    }
}

/// Pins an epoch and looks the LBA up. A read that finds no block ends at once; the properties check such reads in
/// every state.
pub(crate) fn start_read(
    state: &mut State,
    config: &Config,
    slot: usize,
    target: Target,
    lba: Lba,
) -> Option<()> {
    let image = &state.memory.image;
    let (layer, legal) = match target {
        Target::Live(volume) => (
            image.live[usize::from(volume)]?,
            readable(state, volume, lba),
        ),
        Target::Frozen(layer) => (
            layer,
            state.ghost.frozen[usize::from(layer)][usize::from(lba)],
        ),
    };
    let mut found = image.resolve(layer, lba).1.block();
    if let (true, Target::Live(volume)) = (config.cached, target) {
        let cached = &mut state.memory.cache[usize::from(volume)][usize::from(lba)];
        found = cached.or(found);
        *cached = found;
    }
    let block = found?;
    state.budget.reads = state.budget.reads.checked_sub(1)?;
    state.memory.readers[slot] = Some(Reader {
        target,
        lba,
        block,
        legal,
    });
    Some(())
}

/// The contents that a read of a volume may return: the last answer, or a write in flight.
pub(crate) fn readable(state: &State, volume: Volume, lba: Lba) -> Bits {
    let answered = state.ghost.answered[usize::from(volume)][usize::from(lba)];
    in_flight(state, volume, lba).or(Bits::of(answered))
}

fn in_flight(state: &State, volume: Volume, lba: Lba) -> Bits {
    let writers = state.memory.writers.iter().flatten();
    writers
        .filter(|w| w.volume == volume && w.lba == lba)
        .fold(Bits::NONE, |set, w| set.or(Bits::of(w.content)))
}

/// Reads the block, returns its content, and unpins.
pub(crate) fn finish_read(state: &mut State, slot: usize) -> Option<()> {
    let reader = state.memory.readers[slot].take()?;
    if !reader.legal.has(state.disk.now[usize::from(reader.block)]) {
        state.violate(Violation::WrongRead);
    }
    let pin = slot as u8;
    for waits in &mut state.memory.waits {
        waits.remove(pin);
    }
    Some(())
}

/// A flush arrives and waits for a commit.
pub(crate) fn flush(state: &mut State, config: &Config, volume: Volume) -> Option<()> {
    if state.memory.flush.is_some() {
        return None;
    }
    state.memory.image.live[usize::from(volume)]?;
    state.budget.flushes = state.budget.flushes.checked_sub(1)?;
    let joined = state.memory.commit.is_some() && !config.on(Guard::FlushJoinsLaterSeal);
    let mut allowed = [Bits::NONE; crate::image::LBAS];
    for lba in 0..config.lbas {
        allowed[usize::from(lba)] = readable(state, volume, lba);
    }
    state.memory.flush = Some(Flush {
        volume,
        joined,
        allowed,
    });
    Some(())
}
