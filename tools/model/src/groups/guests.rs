//! Requests of a group's guests: writes, trims, reads, and writes in line that look their content up.

use super::config::take_one;
use super::guards::Guard;
use super::milestone::Milestone;
use super::protocol::Groups;
use super::state::{Claim, Entry, Kind, Lookup, Message, Read, State};
use super::violation::Violation;

impl Groups {
    /// Writes zeros.
    pub(super) fn trim(&self, state: &mut State, group: usize, lba: usize) -> Option<()> {
        let guest = &state.groups[group];
        (guest.lookup == Lookup::Idle && guest.written[lba] != 0).then_some(())?;
        take_one(&mut state.budget.writes)?;
        self.drop_entry(state, group, lba);
        state.groups[group].entries[lba] = Entry::Absent;
        state.groups[group].written[lba] = 0;
        Some(())
    }

    /// Writes a content: in place if the block is private, else to the lowest free block.
    pub(super) fn write(
        &self,
        state: &mut State,
        group: usize,
        lba: usize,
        content: u8,
    ) -> Option<()> {
        let guest = &mut state.groups[group];
        (guest.lookup == Lookup::Idle && guest.written[lba] != content).then_some(())?;
        take_one(&mut state.budget.writes)?;
        let block = if let Entry::Private(block) = guest.entries[lba] {
            // A read concurrent with the write may return either content.
            if guest.read.is_some_and(|read| read.block == block) {
                guest.read = None;
            }
            block
        } else {
            let block = guest.free.iter().next()?;
            guest.free.remove(block);
            self.drop_entry(state, group, lba);
            block
        };
        state.groups[group].entries[lba] = Entry::Private(block);
        state.groups[group].written[lba] = content;
        state.contents[usize::from(block)] = content;
        state.groups[group].free_unread();
        Some(())
    }

    /// An entry stops naming its block: a private one is released, the reference to a shared one is queued, unless the
    /// entry is an unsettled item, whose outcome settles it.
    fn drop_entry(&self, state: &mut State, group: usize, lba: usize) {
        let guest = &mut state.groups[group];
        match guest.entries[lba] {
            Entry::Absent => {}
            Entry::Private(block) => state.release(group, block),
            Entry::Shared(block) => {
                let batch = guest.batch.as_mut();
                let finder = batch.filter(|batch| batch.kind == Kind::Finder);
                let item = finder.and_then(|finder| {
                    let mut items = finder.items.iter_mut();
                    items.find(|item| {
                        usize::from(item.lba) == lba && item.block == block && !item.is_moved
                    })
                });
                match item {
                    Some(item) => item.is_moved = true,
                    None => guest.queue.push(block),
                }
            }
        }
    }

    /// Resolves an LBA and pins its block.
    pub(super) fn read(&self, state: &mut State, group: usize) -> Option<()> {
        let guest = &mut state.groups[group];
        guest.read.is_none().then_some(())?;
        let block = guest.entries[0].block()?;
        take_one(&mut state.budget.reads)?;
        let content = state.contents[usize::from(block)];
        guest.read = Some(Read { block, content });
        Some(())
    }

    /// Reads the pinned block.
    pub(super) fn finish_read(&self, state: &mut State, group: usize) -> Option<()> {
        let read = state.groups[group].read.take()?;
        if state.contents[usize::from(read.block)] != read.content {
            state.met = Some(Violation::WrongRead);
        }
        if state.groups[group].deferred.has(read.block) {
            self.reach(Milestone::ReadOfReleased);
        }
        state.groups[group].free_unread();
        Some(())
    }

    /// A write in line asks the shard of its content.
    pub(super) fn look_up(&self, state: &mut State, group: usize, content: u8) -> Option<()> {
        let guest = &mut state.groups[group];
        (guest.lookup == Lookup::Idle && guest.written[0] != content).then_some(())?;
        take_one(&mut state.budget.lookups)?;
        let version = guest.version;
        guest.lookup = Lookup::Asked { content, version };
        let group = group as u8;
        state.messages.insert(Message::Lookup {
            group,
            content,
            version,
        });
        Some(())
    }

    /// The write gives its lookup up. It continues as a write of its own, which is another step.
    pub(super) fn abandon(&self, state: &mut State, group: usize) -> Option<()> {
        let lookup = &mut state.groups[group].lookup;
        (*lookup != Lookup::Idle).then_some(())?;
        *lookup = Lookup::Idle;
        Some(())
    }

    /// The write takes a reference to the block that its lookup found, and makes a claim with it.
    pub(super) fn hit(&self, state: &mut State, group: usize) -> Option<()> {
        let guest = &state.groups[group];
        let Lookup::Found {
            content,
            version,
            block,
        } = guest.lookup
        else {
            return None;
        };
        if version != guest.version {
            self.reach(Milestone::HitRefused);
            if self.on(Guard::HitOfThisVersion) {
                return None;
            }
        }
        self.drop_entry(state, group, 0);
        let other = &state.groups[1 - group];
        let published = other.batch.is_some_and(|batch| {
            let mut items = batch.items.iter();
            batch.kind == Kind::Finder && items.any(|item| item.block == block)
        });
        if published {
            self.reach(Milestone::HitOnUnsettled);
        }
        if other.entries[0] == Entry::Shared(block) {
            self.reach(Milestone::HitOnOther);
        }
        let guest = &mut state.groups[group];
        guest.lookup = Lookup::Idle;
        guest.entries[0] = Entry::Shared(block);
        guest.written[0] = content;
        guest.claims.push(Claim { block, version });
        Some(())
    }
}
