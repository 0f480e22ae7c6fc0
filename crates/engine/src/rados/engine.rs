//! The parts of an estate, as its owner creates, opens and removes them.

use super::RadosPlace;
use super::disk::RadosDisk;
use super::fences::Kept;
use super::head::{self, Change, Entry, Head};
use super::held::Held;
use super::host::Watched;
use super::names::Estate;
use super::names::object_name;
use super::operations::{ObjectChange, Operations};
use super::place::OBJECT_BYTES;
use super::run;
use crate::cluster::{Answer, Holding, OnEvent, Owned, TakeError, TakeOptions};
use crate::failure::explain;
use crate::host_memory::MappedFile;
use crate::{Disk, Engine, HostMemory, Part, host};
use onefold_format::GroupId;
use onefold_rados::{Client, Create};
use std::io;
use std::sync::Arc;

/// The parts of a pool in a cluster, or of a group or a shard of one, and the right to change them until this is dropped.
pub struct RadosEngine {
    /// The pool in messages; with the group or the shard, if it has several.
    title: String,
    /// The addressable length of the data that hosts share.
    shared_data_bytes: u64,
    operations: Arc<Operations>,
    pub(super) held: Arc<Held>,
    watched: Arc<Watched>,
}

impl RadosEngine {
    /// Creates a pool without parts. `AlreadyExists` if there is one of this name.
    pub fn create_pool(client: &Client, place: &RadosPlace) -> io::Result<()> {
        let pool = place.open_for_creation(client)?;
        head::create(&pool, Estate::Pool).map_err(|error| place.not_created(error))
    }

    /// Becomes the owner of a pool. The caller holds the lock of the pool's directory.
    ///
    /// # Errors
    ///
    /// [`TakeError::Held`] if the pool has a live owner; `NotFound` if there is no pool; `Unsupported` if hosts share
    /// it.
    pub fn take(
        client: &Client,
        place: &RadosPlace,
        options: TakeOptions,
    ) -> Result<RadosEngine, TakeError> {
        let pool = place.open(client)?;
        head::read(&pool, Estate::Pool).map_err(|error| {
            TakeError::Io(match error.kind() {
                io::ErrorKind::NotFound => place.missing(),
                _ => place.explain("reading the head of", error),
            })
        })?;
        let (run, interval) = (place.run.clone(), options.fence_interval);
        let explained = |error| TakeError::Io(place.explain("taking", error));
        let watched = Watched::start(client, pool, Kept::InHead, run, interval);
        let watched = watched.map_err(explained)?;
        let held = watched.host.take(Estate::Pool, &options);
        let held = held.map_err(|error| match error {
            TakeError::Io(error) => explained(error),
            held => held,
        })?;
        RadosEngine::begin(&watched, held, place.title(), 0).map_err(explained)
    }

    /// Removes the pool, which this process owns: all of its objects, the head last.
    pub fn remove_pool(self) -> io::Result<()> {
        let operations = &self.operations;
        let room = ObjectChange {
            op: operations.pool().write_op().remove(),
            doing: "removing",
            bytes: 0,
        };
        match operations.change(&operations.host.room, room) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        remove_all(&self, operations)
    }

    /// Begins to use what this process owns. `head` was read since it owns it.
    pub(super) fn begin(
        watched: &Arc<Watched>,
        held: Arc<Held>,
        title: String,
        shared_data_bytes: u64,
    ) -> io::Result<RadosEngine> {
        let operations = Operations::new(&watched.host, &held.ownership);
        let engine = RadosEngine {
            title,
            shared_data_bytes,
            operations: Arc::new(operations),
            held,
            watched: Arc::clone(watched),
        };
        let head = head::read(engine.operations.pool(), engine.operations.estate)?;
        if let Some(entry) = head.replaced {
            engine.remove_replaced(entry)?;
        }
        Ok(engine)
    }

    pub(super) fn operations(&self) -> &Operations {
        &self.operations
    }

    /// Changes entries of the head in one operation.
    pub(super) fn change_head(&self, change: impl FnOnce(Change) -> Change) -> io::Result<()> {
        let owner = &self.operations;
        let change = change(Change::begin(owner.pool(), owner.session()));
        let change = ObjectChange {
            op: change.into_op(),
            doing: "changing",
            bytes: 0,
        };
        let changed = owner.change(&owner.head, change);
        changed.map_err(|error| explain(format!("changing the head of {}", self.title), error))
    }

    /// Removes the objects of a replaced index.
    fn remove_replaced(&self, entry: Entry) -> io::Result<()> {
        let removed = self.operations.remove_objects(Part::Index, entry);
        removed.map_err(|error| explain("removing an index that was replaced", error))?;
        self.change_head(|change| change.replaced(None))
    }

    /// Reads the head. An open part may be longer than the head says.
    fn head(&self, doing: &str, part: Part) -> io::Result<Head> {
        let head = head::read(self.operations.pool(), self.operations.estate);
        head.map_err(|error| explain(format!("{doing} {}", self.describe(part)), error))
    }

    /// Creates a part that the hosts of the pool share: only the secret is ever missing.
    fn create_shared(&self, part: Part) -> io::Result<()> {
        if part == Part::Data {
            return Err(self.exists(part));
        }
        let create = self.operations.pool().write_op().create(Create::Exclusive);
        let change = ObjectChange {
            op: create,
            doing: "creating",
            bytes: 0,
        };
        let created = self.operations.change(&self.first_object(part), change);
        created.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => self.exists(part),
            _ => explain(format!("creating {}", self.describe(part)), error),
        })
    }

    fn open_shared(&self, part: Part) -> io::Result<RadosDisk> {
        let name = self.describe(part);
        let owner = &self.operations;
        if part == Part::Data {
            let len = self.shared_data_bytes;
            return Ok(RadosDisk::open_shared(owner, part, len, name));
        }
        let _admitted = owner.ownership.admit()?;
        match owner.pool().stat(&self.first_object(part)) {
            Ok(_) => Ok(RadosDisk::open_shared(owner, part, OBJECT_BYTES, name)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(self.missing(part)),
            Err(error) => Err(explain(format!("opening {name}"), error)),
        }
    }

    fn first_object(&self, part: Part) -> String {
        object_name(&self.operations.estate.base(part, 0), 0)
    }

    fn exists(&self, part: Part) -> io::Error {
        let name = self.describe(part);
        io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!("{name} exists already"),
        )
    }

    fn missing(&self, part: Part) -> io::Error {
        let name = self.describe(part);
        io::Error::new(io::ErrorKind::NotFound, format!("{name} does not exist"))
    }
}

/// Removes all parts of an estate, then the head. The estate has no owner afterwards.
pub(super) fn remove_all(engine: &dyn Engine, owner: &Operations) -> io::Result<()> {
    for part in Part::ALL {
        if !owner.estate.shares(part) {
            engine.remove(part)?;
        }
    }
    let change = ObjectChange {
        op: owner.asserted().remove(),
        doing: "removing",
        bytes: 0,
    };
    owner.change(&owner.head, change)?;
    owner.ownership.end_removed();
    Ok(())
}

impl Engine for RadosEngine {
    fn create(&self, part: Part, len: u64) -> io::Result<Arc<dyn Disk>> {
        if self.operations.estate.shares(part) {
            self.create_shared(part)?;
            return self.open(part);
        }
        let head = self.head("creating", part)?;
        if head.parts.contains_key(&part) {
            return Err(self.exists(part));
        }
        let first = self.operations.estate.first_generation();
        let entry = Entry::new(head.next_generation(part, first), len);
        self.change_head(|change| change.part(part, Some(entry)).made(part, None))?;
        self.open(part)
    }

    fn open(&self, part: Part) -> io::Result<Arc<dyn Disk>> {
        if self.operations.estate.shares(part) {
            return Ok(Arc::new(self.open_shared(part)?));
        }
        let head = self.head("opening", part)?;
        let entry = head.parts.get(&part).ok_or_else(|| self.missing(part))?;
        let name = self.describe(part);
        let made = head.made(part, entry);
        let disk = RadosDisk::open(&self.operations, part, *entry, made, name)?;
        Ok(Arc::new(disk))
    }

    fn replace(&self, place: Part, part: Part) -> io::Result<()> {
        let head = self.head("replacing", place)?;
        let entry = *head.parts.get(&part).ok_or_else(|| self.missing(part))?;
        let replaced = head.parts.get(&place).copied();
        self.change_head(|change| {
            let change = change.part(place, Some(entry)).part(part, None);
            change.replaced(replaced)
        })?;
        // If this fails, the next owner removes the objects.
        if let Some(replaced) = replaced
            && let Err(error) = self.remove_replaced(replaced)
        {
            tracing::warn!("{error}");
        }
        Ok(())
    }

    fn remove(&self, part: Part) -> io::Result<()> {
        if self.operations.estate.shares(part) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!(
                    "{} belongs to all hosts of the pool: it goes with the pool",
                    self.describe(part)
                ),
            ));
        }
        let head = self.head("removing", part)?;
        let Some(entry) = head.parts.get(&part) else {
            return Ok(());
        };
        let removed = self.operations.remove_objects(part, *entry);
        removed.map_err(|error| explain(format!("removing {}", self.describe(part)), error))?;
        self.change_head(|change| change.part(part, None))
    }

    fn host_memory(&self, len: usize) -> io::Result<Arc<dyn HostMemory>> {
        let tail = run::tail(&self.watched.host.run, self.operations.estate);
        Ok(Arc::new(MappedFile::open(&tail, len)?))
    }

    fn boot_id(&self) -> io::Result<[u8; 16]> {
        host::boot_id()
    }

    fn describe(&self, part: Part) -> String {
        format!("{} of {}", part.name(), self.title)
    }

    fn random_id(&self) -> io::Result<[u8; 16]> {
        host::random_id()
    }

    fn unix_seconds(&self) -> u64 {
        host::unix_seconds()
    }
}

impl Holding for RadosEngine {
    /// The group or the shard. A pool with one owner counts as group 0.
    fn owned(&self) -> Owned {
        match self.operations.estate {
            Estate::Pool => Owned::Group(GroupId(0)),
            Estate::Shared(owned) => owned,
        }
    }

    fn session(&self) -> u64 {
        self.held.ownership.session().number
    }

    fn serve(&self, answer: Arc<dyn Answer>) -> io::Result<()> {
        if matches!(self.operations.estate, Estate::Pool) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} answers no calls: it has one owner", self.title),
            ));
        }
        let _admitted = self.held.ownership.admit()?;
        self.held.serve(answer, self.watched.host.queue()?);
        Ok(())
    }

    fn on_event(&self, on_event: OnEvent) {
        self.held.ownership.set_on_event(on_event);
    }
}

impl Drop for RadosEngine {
    fn drop(&mut self) {
        self.watched.host.give_up(&self.held);
    }
}
