//! The state: two groups, their blocks, the index in shards, and the calls between them.
//!
//! A record of a group is durable at once, because the model of one pool covers records that are lost. So the death of
//! a group loses only its memory: answers, lookups and reads.

use super::config::{Budget, GROUPS};
use super::few::Few;
use super::violation::Violation;
use crate::bits::Bits;

/// The number of blocks in the data space.
pub const BLOCKS: u8 = 4;
/// The largest number of LBAs of a group, and so of items of a batch.
pub const LBAS_MAX: usize = 2;
/// The largest number of shards.
pub const SHARDS_MAX: usize = 2;
/// The contents that guests write; content 0 is zeros, which a trim leaves. A content is its own fingerprint.
pub const CONTENTS: [u8; 2] = [1, 2];

/// A block of an entry, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Entry {
    /// Zeros.
    Absent,
    /// The entry alone owns the block.
    Private(u8),
    /// The block is published, or being published.
    Shared(u8),
}

impl Entry {
    /// The block that only this entry names.
    pub fn private(self) -> Option<u8> {
        match self {
            Entry::Private(block) => Some(block),
            Entry::Absent | Entry::Shared(_) => None,
        }
    }

    /// The block that the entry names.
    pub fn block(self) -> Option<u8> {
        match self {
            Entry::Absent => None,
            Entry::Private(block) | Entry::Shared(block) => Some(block),
        }
    }
}

/// The job that a batch belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the words of docs/model.md")]
pub enum Kind {
    Finder,
    Collector,
    Counting,
}

/// A shard's answer to an item of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Answer {
    /// Finder: the item's own block has the row.
    Inserted,
    /// Finder: another block has the row.
    Shared(u8),
    /// Counting: the claim is counted.
    Counted,
    /// Collector: other references are left.
    Remaining,
    /// Collector: it was the last reference, and the row is removed.
    Zero,
    /// Collector: it is the last reference of a row that is held, or may be: nothing changes.
    Held,
    /// Collector, counting: there is no row with this block.
    Unknown,
    /// Finder: the batch was called off before any call of it was executed.
    CalledOff,
}

/// An unsettled item of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Item {
    /// The item's place in the batch, which settling other items does not change.
    pub position: u8,
    /// The LBA that was published; 0 for other jobs.
    pub lba: u8,
    /// The block.
    pub block: u8,
    /// Finder: the entry has dropped its reference since.
    pub is_moved: bool,
    /// The answer, in memory.
    pub answer: Option<Answer>,
}

/// An announced batch with its unsettled items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Batch {
    /// The job.
    pub kind: Kind,
    /// The batch's number in the series of its group.
    pub number: u8,
    /// Counting: the lookup version of the claim.
    pub version: u8,
    /// The items that are not settled.
    pub items: Few<Item, LBAS_MAX>,
    /// The group's owner is not the one that announced the batch, so it does not know the shards that were called.
    pub is_inherited: bool,
    /// The group's owner has recalled the inherited batch. Only a guard that is off makes this a separate step.
    pub is_recalled: bool,
}

/// A reference that an entry has and the index does not count yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Claim {
    /// The block.
    pub block: u8,
    /// The lookup version under which the block was found.
    pub version: u8,
}

/// A write that looks its content up, in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the words of docs/model.md")]
pub enum Lookup {
    Idle,
    Asked { content: u8, version: u8 },
    Found { content: u8, version: u8, block: u8 },
}

/// A read in progress, in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Read {
    /// The block that the entry named when the read began.
    pub block: u8,
    /// The content that the reader has to get.
    pub content: u8,
}

/// A group, and what its owner knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// The map.
    pub entries: [Entry; LBAS_MAX],
    /// The content that the guest wrote last at each LBA: the promise.
    pub written: [u8; LBAS_MAX],
    /// Dropped references, first in, first out.
    pub queue: Few<u8, 4>,
    /// Claims, first in, first out.
    pub claims: Few<Claim, 3>,
    /// The open batch.
    pub batch: Option<Batch>,
    /// The number of the next batch.
    pub next_number: u8,
    /// Free blocks in the group's custody.
    pub free: Bits,
    /// Released blocks in the group's custody that its own read still pins.
    pub deferred: Bits,
    /// The read in progress.
    pub read: Option<Read>,
    /// The lookup version.
    pub version: u8,
    /// The last version whose holds the group has ended.
    pub ended_version: u8,
    /// The last session of each shard that the group has met.
    pub sessions: [u8; SHARDS_MAX],
    /// The lookup in progress.
    pub lookup: Lookup,
}

/// A row of the index. The rows of a content are in the shard that `Config::shard` gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    /// The block with the content.
    pub block: u8,
    /// The counted references.
    pub references: i8,
}

/// An item's answer with the item's position in the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the type's words")]
pub struct Positioned {
    pub position: u8,
    pub answer: Answer,
}

/// A group's stream in a shard: the last batch that the shard executed, with its answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the words of docs/model.md")]
pub struct Stream {
    pub number: u8,
    pub answers: Few<Positioned, LBAS_MAX>,
}

/// A promise of a shard not to remove the row of a block, in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the words of docs/model.md")]
pub struct Hold {
    pub group: u8,
    pub version: u8,
    pub block: u8,
}

/// What a group does with each block, before it settles what it has open at the lost shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Use {
    /// Blocks of shared entries and of dropped references, without the group's own unsettled items.
    pub named: Bits,
    /// Blocks in the group's custody: free, private, or unsettled items of the finder.
    pub kept: Bits,
    /// Blocks of unsettled items of the collector.
    pub releases: Bits,
}

/// The references of a group that has settled what was open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Contribution {
    /// Entries and dropped references, less claims, for each block.
    pub references: [i8; BLOCKS as usize],
    /// The number of the last batch of the group's stream.
    pub last_number: u8,
}

/// A shard of the index, apart from its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shard {
    /// The stream of each group, durable.
    pub streams: [Stream; GROUPS],
    /// Blocks that are held.
    pub holds: Few<Hold, 4>,
    /// Groups that may have holds, durable.
    pub holders: Bits,
    /// Groups that may have holds from before the shard's session.
    pub owing: Bits,
    /// The session: changes with each owner and each loss.
    pub session: u8,
    /// The index was lost, and is not rebuilt yet.
    pub is_lost: bool,
    /// What each group has reported for the rebuild in progress, in memory.
    pub uses: [Option<Use>; GROUPS],
    /// What each group has counted for the rebuild in progress, in memory.
    pub counted: [Option<Contribution>; GROUPS],
}

/// An item of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the words of docs/model.md")]
pub struct CalledItem {
    pub position: u8,
    pub fingerprint: u8,
    pub block: u8,
}

/// A message in flight. It arrives in any order, late or never, also after its sender has died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message {
    /// A group's call of a batch, with the items of one shard.
    #[allow(missing_docs, reason = "the words of docs/model.md")]
    Call {
        group: u8,
        shard: u8,
        kind: Kind,
        number: u8,
        items: Few<CalledItem, LBAS_MAX>,
    },
    /// A group calls its finder's batch of one item off: the block cannot be read.
    #[allow(missing_docs, reason = "the words of docs/model.md")]
    CallOff {
        group: u8,
        shard: u8,
        number: u8,
        position: u8,
    },
    /// A group looks a content up for a hit.
    #[allow(missing_docs, reason = "the words of docs/model.md")]
    Lookup { group: u8, content: u8, version: u8 },
    /// A shard's answer to a lookup.
    #[allow(missing_docs, reason = "the words of docs/model.md")]
    Found {
        group: u8,
        content: u8,
        version: u8,
        session: u8,
        block: Option<u8>,
    },
    /// A group has counted the claims of all lookups up to a version.
    #[allow(missing_docs, reason = "the words of docs/model.md")]
    EndHolds {
        group: u8,
        shard: u8,
        version: u8,
        session: u8,
    },
}

/// A state of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The groups.
    pub groups: [Group; GROUPS],
    /// The content of each block of the data space.
    pub contents: [u8; BLOCKS as usize],
    /// The row of each content, in the order of [`CONTENTS`].
    pub rows: [Option<Row>; CONTENTS.len()],
    /// The shards.
    pub shards: [Shard; SHARDS_MAX],
    /// The messages in flight.
    pub messages: Few<Message, 12>,
    /// The events that may still happen.
    pub budget: Budget,
    /// A violation that a step has met, apart from those that the state itself shows.
    pub met: Option<Violation>,
}

impl State {
    /// The first state: all blocks are free, the first `free[0]` in the custody of the first group.
    pub fn new(free: [u8; GROUPS], budget: Budget) -> State {
        let own = [
            Bits::below(free[0]),
            Bits::below(free[0] + free[1]).minus(Bits::below(free[0])),
        ];
        State {
            groups: own.map(Group::new),
            contents: [0; BLOCKS as usize],
            rows: [None; CONTENTS.len()],
            shards: [Shard::NEW; SHARDS_MAX],
            messages: Few::NONE,
            budget,
            met: None,
        }
    }

    /// The row of a content.
    pub fn row(&mut self, content: u8) -> &mut Option<Row> {
        &mut self.rows[usize::from(content) - 1]
    }

    /// A group takes custody of a block that nothing names.
    pub fn release(&mut self, group: usize, block: u8) {
        let group = &mut self.groups[group];
        if group.free.or(group.deferred).has(block) {
            self.met = Some(Violation::TwoKeepers);
        }
        group.deferred.insert(block);
        group.free_unread();
    }
}

impl Group {
    fn new(free: Bits) -> Group {
        Group {
            entries: [Entry::Absent; LBAS_MAX],
            written: [0; LBAS_MAX],
            queue: Few::NONE,
            claims: Few::NONE,
            batch: None,
            next_number: 1,
            free,
            deferred: Bits::NONE,
            read: None,
            version: 1,
            ended_version: 0,
            sessions: [1; SHARDS_MAX],
            lookup: Lookup::Idle,
        }
    }

    /// Deferred blocks that no read of the group pins become free.
    pub fn free_unread(&mut self) {
        for block in self.deferred.iter() {
            if self.read.is_none_or(|read| read.block != block) {
                self.deferred.remove(block);
                self.free.insert(block);
            }
        }
    }
}

impl Shard {
    const NEW: Shard = Shard {
        streams: [Stream {
            number: 0,
            answers: Few::NONE,
        }; GROUPS],
        holds: Few::NONE,
        holders: Bits::NONE,
        owing: Bits::NONE,
        session: 1,
        is_lost: false,
        uses: [None; GROUPS],
        counted: [None; GROUPS],
    };
}
