//! The names of a pool's objects, which depend on who owns them.
//!
//! An *estate* is all that has one owner: a pool of format 1 as a whole, or a group or a shard of a pool that hosts
//! share (format 2). Its head names its parts.

use crate::Part;
use crate::cluster::Owned;

/// The head of a pool of format 1. In a shared pool, an object of this name keeps releases out that know format 1 only.
pub(super) const FIRST_HEAD: &str = "g.0";

/// What a shared pool is: identity, block size and shards.
pub(super) const POOL: &str = "pool";

/// Rows that all hosts of a shared pool see.
pub(super) const DIRECTORY: &str = "directory";

/// The space extents of a shared pool.
pub(super) const EXTENTS: &str = "extents";

/// The prefix of objects that are created to test whether the cluster has room, in a shared pool.
const ROOM: &str = "room.";

/// The first generation of a shard's index. The index of a pool of format 1 has objects of the same names but for the generation,
/// which is lower, so the first shard can be made while that index is in use.
const GENERATION_OF_SHARDS: u64 = 1 << 32;

/// All that has one owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Estate {
    /// A pool of format 1.
    Pool,
    /// A group or a shard of a shared pool.
    Shared(Owned),
}

impl Estate {
    /// The name of the head.
    pub(super) fn head(self) -> String {
        match self {
            Estate::Pool => FIRST_HEAD.to_owned(),
            Estate::Shared(Owned::Group(group)) => format!("g.{group}"),
            Estate::Shared(Owned::Shard(shard)) => format!("ix.{shard}"),
        }
    }

    /// The version of the layout, as the head has it.
    pub(super) fn format(self) -> &'static str {
        match self {
            Estate::Pool => "1",
            Estate::Shared(_) => "2",
        }
    }

    /// Whether the part belongs to all hosts of the pool. Then it is always there, no head lists it, and it has no
    /// length.
    pub(super) fn shares(self, part: Part) -> bool {
        matches!(self, Estate::Shared(_)) && matches!(part, Part::Data | Part::Secret)
    }

    /// The prefix of a part's object names. A part that replaces another keeps its objects, so the name of an index has
    /// a generation.
    pub(super) fn base(self, part: Part, generation: u64) -> String {
        match (self, part) {
            (_, Part::Data) => "d".to_owned(),
            (_, Part::Secret) => "secret".to_owned(),
            (Estate::Pool, Part::Index | Part::NextIndex) => format!("ix.0.index.{generation:x}"),
            (_, Part::Index | Part::NextIndex) => format!("{}.index.{generation:x}", self.head()),
            _ => format!("{}.{}", self.head(), part.name()),
        }
    }

    /// The generation of the first index.
    pub(super) fn first_generation(self) -> u64 {
        match self {
            Estate::Shared(Owned::Shard(_)) => GENERATION_OF_SHARDS,
            Estate::Pool | Estate::Shared(Owned::Group(_)) => 0,
        }
    }

    /// Whether every write to this object asserts the owner's session. Other objects rely on the blocklist alone.
    pub(super) fn guards(self, part: Part, object: u64) -> bool {
        match part {
            _ if self.shares(part) => false,
            Part::Log => true,
            Part::Data => false,
            _ => object == 0,
        }
    }

    /// What files in the run directory are named after; nothing if there is only one estate.
    pub(super) fn file_suffix(self) -> String {
        match self {
            Estate::Pool => String::new(),
            Estate::Shared(Owned::Group(group)) => format!(".{group}"),
            Estate::Shared(Owned::Shard(shard)) => format!(".ix.{shard}"),
        }
    }

    /// The estate in messages.
    pub(super) fn title(self) -> String {
        match self {
            Estate::Pool => "the pool".to_owned(),
            Estate::Shared(what) => what.to_string(),
        }
    }
}

/// The object that this client creates to test whether the cluster has room. In a shared pool each client has one of its
/// own, because an object that exists proves nothing.
pub(super) fn room(is_shared: bool, client: u64) -> String {
    if is_shared {
        format!("{ROOM}{client}")
    } else {
        format!("{FIRST_HEAD}.room")
    }
}

/// The name of an object of a part.
pub(super) fn object_name(base: &str, object: u64) -> String {
    format!("{base}.{object:016x}")
}

/// The group or the shard whose head has this name.
pub(super) fn head_of(name: &str) -> Option<Owned> {
    let owned = match name.split_once('.')? {
        ("g", number) => Owned::Group(onefold_format::GroupId(number.parse().ok()?)),
        ("ix", number) => Owned::Shard(onefold_format::Shard(number.parse().ok()?)),
        _ => return None,
    };
    let is_head = name != FIRST_HEAD && Estate::Shared(owned).head() == name;
    is_head.then_some(owned)
}

/// Whether an object of a shared pool's namespace can belong to the pool.
pub(super) fn is_of_pool(name: &str) -> bool {
    [POOL, DIRECTORY, EXTENTS].contains(&name)
        || [ROOM, "g.", "ix.", "d.", "secret."]
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

/// Whether an object in the namespace of a pool of format 1 is what an interrupted conversion has left.
pub(super) fn is_remains_of_conversion(name: &str) -> bool {
    let is_of_format_1 = ["d.", "secret.", "g.0."]
        .iter()
        .any(|prefix| name.starts_with(prefix));
    !is_of_format_1 && name != FIRST_HEAD && is_of_pool(name) && !is_index_of_format_1(name)
}

/// Whether an object is of the index of a pool of format 1, and of no shard.
fn is_index_of_format_1(name: &str) -> bool {
    let generation = name.strip_prefix("ix.0.index.");
    let generation = generation.and_then(|rest| rest.split('.').next());
    let generation = generation.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    generation.is_some_and(|generation| generation < GENERATION_OF_SHARDS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_format::{GroupId, Shard};

    #[test]
    fn each_estate_has_names_of_its_own() {
        let group = Estate::Shared(Owned::Group(GroupId(12)));
        let shard = Estate::Shared(Owned::Shard(Shard(3)));
        assert_eq!(Estate::Pool.base(Part::Log, 0), "g.0.log");
        assert_eq!(Estate::Pool.base(Part::NextIndex, 17), "ix.0.index.11");
        assert_eq!(group.base(Part::Log, 0), "g.12.log");
        assert_eq!(shard.base(Part::Index, 17), "ix.3.index.11");
        assert_eq!(group.base(Part::Data, 0), Estate::Pool.base(Part::Data, 0));
        assert_eq!(object_name("d", 0x1f), "d.000000000000001f");
        assert!(group.shares(Part::Secret) && !Estate::Pool.shares(Part::Secret));
        assert!(!group.guards(Part::Secret, 0) && Estate::Pool.guards(Part::Secret, 0));
    }

    #[test]
    fn a_conversion_removes_nothing_of_the_pool_with_one_owner() {
        let shard = Estate::Shared(Owned::Shard(Shard(0)));
        let first = shard.first_generation();
        for generation in [0, 1, 0x1f, first - 1] {
            let index = Estate::Pool.base(Part::Index, generation);
            assert!(!is_remains_of_conversion(&object_name(&index, 7)));
        }
        for part in Part::ALL {
            let name = object_name(&Estate::Pool.base(part, 0), 3);
            assert!(!is_remains_of_conversion(&name), "{name}");
        }
        for name in [FIRST_HEAD, "g.0.room", "rbd_header.1"] {
            assert!(!is_remains_of_conversion(name), "{name}");
        }
        let index = object_name(&shard.base(Part::Index, first), 0);
        for name in [
            &index,
            POOL,
            DIRECTORY,
            EXTENTS,
            "ix.0",
            "ix.63",
            "ix.1.index.0.0",
        ] {
            assert!(is_remains_of_conversion(name), "{name}");
        }
        for name in ["g.1", "g.1.meta.0", "g.01", "room.12", "ix.0.index.x"] {
            assert!(is_remains_of_conversion(name), "{name}");
        }
    }

    #[test]
    fn heads_are_told_from_parts() {
        for owned in [Owned::Group(GroupId(7)), Owned::Shard(Shard(1023))] {
            assert_eq!(head_of(&Estate::Shared(owned).head()), Some(owned));
        }
        for name in ["g.0", "g.07", "g.7.log.0", "ix.", "d.1", "pool", "ix.70000"] {
            assert_eq!(head_of(name), None, "{name}");
        }
        assert!(is_of_pool("room.4123") && is_of_pool("g.0") && !is_of_pool("rbd_header.1"));
    }
}
