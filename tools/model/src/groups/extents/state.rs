//! The state: two groups and their owners, the object `extents`, the clients, and the storage daemons.

use super::Budget;
use crate::bits::Bits;
use crate::groups::config::GROUPS;
use crate::groups::few::Few;

/// The number of extents.
pub(super) const EXTENTS: u8 = 2;
/// Each group's first owner, and the owners that take groups.
pub(super) const CLIENTS: usize = 4;

/// An exchange of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the words of docs/model.md")]
pub struct Exchange {
    pub number: u8,
    pub gives: Option<u8>,
    pub takes: bool,
}

/// An operation of a client in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the words of docs/model.md")]
pub enum Operation {
    Exchange {
        group: u8,
        client: u8,
        epoch: u8,
        exchange: Exchange,
    },
    Write {
        client: u8,
        epoch: u8,
        extent: u8,
    },
}

/// The block that a group's map names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub(super) extent: u8,
    /// The client whose write the block has.
    pub(super) content: u8,
    pub(super) is_published: bool,
}

/// A group: its records, which are durable at once, and the memory of its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Group {
    /// The client that owns the group.
    pub(super) client: u8,
    /// Extents that are recorded as the group's, and that no entry names.
    pub(super) free: Bits,
    pub(super) entry: Option<Entry>,
    /// The number of the last exchange whose answer is recorded.
    pub(super) last_number: u8,
    /// The exchange in progress.
    pub(super) exchange: Option<Exchange>,
    /// The extent of the write in progress, in memory.
    pub(super) writing: Option<u8>,
    /// Whether the owner has read or written the entry's block, in memory.
    pub(super) has_touched: bool,
}

/// The object `extents`: the answer to a group's last exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Answer {
    pub(super) number: u8,
    pub(super) took: Option<u8>,
}

/// A state of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(super) groups: [Group; GROUPS],
    /// Extents that no group leases.
    pub(super) unleased: Bits,
    pub(super) answers: [Answer; GROUPS],
    /// The newest map's epoch.
    pub(super) epoch: u8,
    /// The epoch of the map that fences each client.
    pub(super) fences: [Option<u8>; CLIENTS],
    /// The group of each client.
    pub(super) groups_of: [u8; CLIENTS],
    /// The epoch of the map that each client has.
    pub(super) client_epochs: [u8; CLIENTS],
    /// The epoch of the map that the daemon of each extent has; the last one is the daemon of the object `extents`.
    pub(super) daemon_epochs: [u8; EXTENTS as usize + 1],
    /// The client that wrote each extent last.
    pub(super) contents: [Option<u8>; EXTENTS as usize],
    pub(super) operations: Few<Operation, 10>,
    pub(super) next_client: u8,
    pub(super) budget: Budget,
}

impl State {
    /// The first state: the first group leases the first extent, and nothing is written.
    pub(super) fn new(budget: Budget) -> State {
        let group = |client, free| Group {
            client,
            free,
            entry: None,
            last_number: 0,
            exchange: None,
            writing: None,
            has_touched: false,
        };
        State {
            groups: [group(0, Bits::of(0)), group(1, Bits::NONE)],
            unleased: Bits::of(1),
            answers: [Answer {
                number: 0,
                took: None,
            }; GROUPS],
            epoch: 0,
            fences: [None; CLIENTS],
            groups_of: [0, 1, 0, 0],
            client_epochs: [0; CLIENTS],
            daemon_epochs: [0; EXTENTS as usize + 1],
            contents: [None; EXTENTS as usize],
            operations: Few::NONE,
            next_client: GROUPS as u8,
            budget,
        }
    }
}
