//! The head of an estate: an object whose attributes name the estate's parts and its owner.
//!
//! The attributes are text, so that `rados listxattr` and `rados getxattr` show them:
//! - `format`: the version of this layout.
//! - `session`: the present owner's session. Every change of the head asserts it.
//! - `number`: the number of that session, in a shared pool. Each owner has a greater one than those before it.
//! - `owner`: the present owner's process and host, for messages.
//! - `part.NAME`: generation, length in bytes, and the reach, below which all objects of the part are. Empty if the
//!   part does not exist.
//! - `made.NAME`: generation, and how many of the part's first objects are guarded and known to exist. If one of these
//!   is missing, the cluster has lost it. Releases that did not know this attribute leave it unchanged, so it may be
//!   too low.
//! - `fenced`: addresses, one per line, of former owners that may still wake up; see `fences`. A shared pool keeps them
//!   in its directory.
//! - `replaced`: the entry of an index that another has replaced, as long as it has objects.
//!
//! Crash behaviour: each change is one operation on one object, which takes effect entirely or not at all.

use super::names::{Estate, FIRST_HEAD};
use super::place::OBJECT_BYTES;
use crate::Part;
use onefold_rados::{Create, Pool, Version, WriteOp};
use std::collections::BTreeMap;
use std::io;
use std::str::FromStr;

/// The attribute with the version of the layout.
pub(super) const FORMAT_KEY: &str = "format";
pub(super) const SESSION_KEY: &str = "session";
const OWNER_KEY: &str = "owner";
const REPLACED_KEY: &str = "replaced";
const FENCED_KEY: &str = "fenced";
const NUMBER_KEY: &str = "number";
const PART_PREFIX: &str = "part.";
const MADE_PREFIX: &str = "made.";

/// A growing part rounds its reach up to a multiple of this many bytes.
const REACH_STEP: u64 = 16 * OBJECT_BYTES;

/// A part's entry in the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Entry {
    /// Distinguishes the objects of indexes that replace each other.
    pub(super) generation: u64,
    pub(super) len: u64,
    /// All objects of the part are below this offset.
    pub(super) reach: u64,
}

impl Entry {
    /// The entry of a part of this length.
    pub(super) fn new(generation: u64, len: u64) -> Entry {
        let mut entry = Entry {
            generation,
            ..Entry::default()
        };
        entry.set_len(len);
        entry
    }

    /// Sets the length. Returns whether the reach has grown: the head has to be changed before objects are created
    /// there.
    pub(super) fn set_len(&mut self, len: u64) -> bool {
        self.len = len;
        let grows = len > self.reach;
        if grows {
            self.reach = len.next_multiple_of(REACH_STEP);
        }
        grows
    }

    /// The most objects that the part can have.
    pub(super) fn objects(&self) -> u64 {
        self.reach / OBJECT_BYTES
    }

    fn text(&self) -> String {
        format!("{} {} {}", self.generation, self.len, self.reach)
    }
}

impl FromStr for Entry {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Entry> {
        let mut numbers = text.split(' ').map(u64::from_str);
        match (
            numbers.next(),
            numbers.next(),
            numbers.next(),
            numbers.next(),
        ) {
            (Some(Ok(generation)), Some(Ok(len)), Some(Ok(reach)), None)
                if len <= reach && reach.is_multiple_of(OBJECT_BYTES) =>
            {
                Ok(Entry {
                    generation,
                    len,
                    reach,
                })
            }
            _ => Err(invalid(format!("{text:?} describes no part"))),
        }
    }
}

/// How many guarded objects of a part are known to exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Made {
    pub(super) generation: u64,
    pub(super) objects: u64,
}

impl Made {
    fn text(self) -> String {
        format!("{} {}", self.generation, self.objects)
    }
}

impl FromStr for Made {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Made> {
        let numbers = text.split_once(' ');
        let numbers = numbers.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        let (generation, objects) =
            numbers.ok_or_else(|| invalid(format!("{text:?} counts no objects")))?;
        Ok(Made {
            generation,
            objects,
        })
    }
}

/// A time during which an estate has one owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Session {
    /// Random, and the cookie of the owner's lock.
    pub(super) id: String,
    /// Ascends from owner to owner, in a shared pool; 0 elsewhere.
    pub(super) number: u64,
}

/// The head as read from the cluster.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) version: Version,
    pub(super) session: String,
    /// The number of the session; 0 before the first, and in pools with one owner.
    pub(super) number: u64,
    pub(super) owner: String,
    pub(super) parts: BTreeMap<Part, Entry>,
    pub(super) made: BTreeMap<Part, Made>,
    pub(super) replaced: Option<Entry>,
    pub(super) fenced: Vec<String>,
}

impl Head {
    fn new(version: Version) -> Head {
        Head {
            version,
            session: String::new(),
            number: 0,
            owner: String::new(),
            parts: BTreeMap::new(),
            made: BTreeMap::new(),
            replaced: None,
            fenced: Vec::new(),
        }
    }

    /// How many guarded objects of the part with this entry are known to exist. A count for another generation does not
    /// apply.
    pub(super) fn made(&self, part: Part, entry: &Entry) -> u64 {
        let made = self.made.get(&part);
        made.filter(|made| made.generation == entry.generation)
            .map_or(0, |made| made.objects)
    }

    /// The generation of a new part, `first` or later: one that no object has.
    pub(super) fn next_generation(&self, part: Part, first: u64) -> u64 {
        if !matches!(part, Part::Index | Part::NextIndex) {
            return 0;
        }
        let both = [Part::Index, Part::NextIndex].map(|part| self.parts.get(&part));
        let used = both.into_iter().chain([self.replaced.as_ref()]).flatten();
        used.map(|entry| entry.generation + 1)
            .max()
            .unwrap_or(first)
    }
}

/// Creates a head without parts. `AlreadyExists` if there is one.
pub(super) fn create(pool: &Pool, estate: Estate) -> io::Result<()> {
    create_after(pool, estate, 0)
}

/// Creates a head without parts, whose sessions continue after this number.
pub(super) fn create_after(pool: &Pool, estate: Estate, number: u64) -> io::Result<()> {
    let op = pool.write_op().create(Create::Exclusive);
    let mut op = op.set_xattr(FORMAT_KEY, estate.format().as_bytes());
    if number > 0 {
        op = op.set_xattr(NUMBER_KEY, number.to_string().as_bytes());
    }
    pool.change(&estate.head(), op).map(drop)
}

/// The attributes of an object that are text, and the object's version.
pub(super) fn read_texts(
    pool: &Pool,
    object: &str,
) -> io::Result<(BTreeMap<String, String>, Version)> {
    let reply = pool.ask(object, pool.read_op().xattrs())?;
    let mut texts = BTreeMap::new();
    for (name, value) in reply.xattrs {
        // Binary attributes are Ceph's, such as the lock.
        if let Ok(text) = String::from_utf8(value) {
            texts.insert(name, text);
        }
    }
    Ok((texts, reply.version))
}

/// Reads the head. `NotFound` if it does not exist.
pub(super) fn read(pool: &Pool, estate: Estate) -> io::Result<Head> {
    let object = estate.head();
    let (texts, version) = read_texts(pool, &object)?;
    let format = texts.get(FORMAT_KEY).map(String::as_str);
    if format != Some(estate.format()) {
        return Err(match (estate, format) {
            (_, None) => invalid(format!("object {object} is no head")),
            (Estate::Pool, Some("2")) => io::Error::new(
                io::ErrorKind::Unsupported,
                "hosts share this pool (layout 2), so no process can own all of it: serve it as a \
                 shared pool",
            ),
            (_, Some(other)) => io::Error::new(
                io::ErrorKind::Unsupported,
                format!(
                    "object {object} has layout {other}, and this onefold knows {}: use a newer one",
                    estate.format()
                ),
            ),
        });
    }
    parse(texts, version)
}

/// The head with these attributes, of any layout.
pub(super) fn parse(texts: BTreeMap<String, String>, version: Version) -> io::Result<Head> {
    let mut head = Head::new(version);
    for (name, text) in texts {
        match name.as_str() {
            SESSION_KEY => head.session = text,
            OWNER_KEY => head.owner = text,
            NUMBER_KEY => {
                let number = text.parse();
                head.number =
                    number.map_err(|_| invalid(format!("{text:?} is no number of a session")))?;
            }
            _ if text.is_empty() => {}
            FENCED_KEY => head.fenced = text.lines().map(str::to_owned).collect(),
            REPLACED_KEY => head.replaced = Some(text.parse()?),
            name => {
                if let Some(part) = name.strip_prefix(PART_PREFIX).and_then(part_of) {
                    head.parts.insert(part, text.parse()?);
                } else if let Some(part) = name.strip_prefix(MADE_PREFIX).and_then(part_of) {
                    head.made.insert(part, text.parse()?);
                }
            }
        }
    }
    Ok(head)
}

/// Records a new owner, and the number of its session in a shared pool.
pub(super) fn set_owner(
    pool: &Pool,
    estate: Estate,
    session: &Session,
    owner: &str,
) -> io::Result<()> {
    let op = pool.write_op().assert_exists();
    let op = op.set_xattr(SESSION_KEY, session.id.as_bytes());
    let mut op = op.set_xattr(OWNER_KEY, owner.as_bytes());
    if estate != Estate::Pool {
        op = op.set_xattr(NUMBER_KEY, session.number.to_string().as_bytes());
    }
    pool.change(&estate.head(), op).map(drop)
}

/// Records the addresses of fenced owners, if the head still has this version. A host does this before it owns the
/// pool.
pub(super) fn set_fenced(pool: &Pool, version: Version, fenced: &[String]) -> io::Result<()> {
    let op = pool.write_op().assert_version(version);
    let op = op.set_xattr(FENCED_KEY, fenced.join("\n").as_bytes());
    pool.change(FIRST_HEAD, op).map(drop)
}

/// Empties all attributes in which a head names parts and fences, of those with these names.
pub(super) fn without_parts(op: WriteOp, names: &[String]) -> WriteOp {
    let is_of_parts = |name: &str| {
        let is_part = name.starts_with(PART_PREFIX) || name.starts_with(MADE_PREFIX);
        is_part || [REPLACED_KEY, FENCED_KEY].contains(&name)
    };
    let names = names.iter().filter(|name| is_of_parts(name));
    names.fold(op, |op, name| op.set_xattr(name, b""))
}

/// A change of the head by the owner of this session.
pub(super) struct Change(WriteOp);

impl Change {
    pub(super) fn begin(pool: &Pool, session: &str) -> Change {
        Change(asserted(pool, session))
    }

    pub(super) fn part(self, part: Part, entry: Option<Entry>) -> Change {
        self.set(&format!("{PART_PREFIX}{}", part.name()), entry)
    }

    /// Records how many guarded objects of the part are known to exist.
    pub(super) fn made(self, part: Part, made: Option<Made>) -> Change {
        let text = made.map_or(String::new(), Made::text);
        Change(
            self.0
                .set_xattr(&format!("{MADE_PREFIX}{}", part.name()), text.as_bytes()),
        )
    }

    pub(super) fn replaced(self, entry: Option<Entry>) -> Change {
        self.set(REPLACED_KEY, entry)
    }

    pub(super) fn format(self, format: &str) -> Change {
        Change(self.0.set_xattr(FORMAT_KEY, format.as_bytes()))
    }

    fn set(self, name: &str, entry: Option<Entry>) -> Change {
        let text = entry.map_or(String::new(), |entry| entry.text());
        Change(self.0.set_xattr(name, text.as_bytes()))
    }

    pub(super) fn into_op(self) -> WriteOp {
        self.0
    }
}

/// Begins an operation that changes nothing unless this session owns the object.
pub(super) fn asserted(pool: &Pool, session: &str) -> WriteOp {
    pool.write_op()
        .compare_xattr(SESSION_KEY, session.as_bytes())
}

fn part_of(name: &str) -> Option<Part> {
    Part::ALL.into_iter().find(|part| part.name() == name)
}

fn invalid(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_as_written() {
        for len in [0, 1, OBJECT_BYTES, REACH_STEP, REACH_STEP + 1] {
            let entry = Entry::new(3, len);
            assert_eq!(entry.text().parse::<Entry>().unwrap(), entry);
            assert!(entry.reach >= len && entry.reach.is_multiple_of(REACH_STEP));
        }
        for text in [
            "", "1", "1 2", "0 9 4", "0 0 1", "0 0 0 0", "a 0 0", "-1 0 0",
        ] {
            assert!(text.parse::<Entry>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn counts_of_objects_are_read_as_written() {
        for objects in [0, 1, u64::MAX] {
            let made = Made {
                generation: 7,
                objects,
            };
            assert_eq!(made.text().parse::<Made>().unwrap(), made);
        }
        for text in ["", "1", "1 ", "1 2 3", "a 1"] {
            assert!(text.parse::<Made>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_part_grows_in_steps() {
        let mut entry = Entry::new(0, 5);
        assert!(!entry.set_len(REACH_STEP));
        assert!(entry.set_len(REACH_STEP + 1));
        assert!(!entry.set_len(0));
        assert_eq!(entry.objects(), 2 * REACH_STEP / OBJECT_BYTES);
    }
}
