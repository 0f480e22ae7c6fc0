//! A pool in Ceph RADOS: each [`Part`] in objects of 4 MiB, in a namespace of a Ceph pool.
//!
//! [`RadosEngine::take`] makes this process the pool's owner until the engine is dropped. The pool also has a directory
//! on this host, whose lock the caller holds: it contains the memory that outlives the process.
//!
//! Data that RADOS has acknowledged is durable. A submitted operation is never cancelled, because it could still take
//! effect: operations wait for the cluster as long as it takes, and the log reports them.
//!
//! Reading order: `place` (names and pieces), `head` (which parts there are), `run` (the directory on this host),
//! `ownership` (who may write), `fences` (who may not any more), `flights` and `cluster` (operations), `disk`.

mod behind;
mod cluster;
mod disk;
mod fences;
mod flights;
mod head;
mod ownership;
mod place;
mod prepared_read;
mod run;

pub use ownership::{OwnerEvent, TakeError, TakeOptions};

use crate::failure::explain;
use crate::host_memory::MappedFile;
use crate::{Disk, Engine, HostMemory, Part, host};
use cluster::{Cluster, ObjectChange};
use disk::RadosDisk;
use flights::News;
use head::{Change, Entry, HEAD, Head};
use onefold_rados::{Client, Pool, Watch};
use run::{RunDirectory, TAIL};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often the owner checks its operations, the head and its watch.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The location of a pool in Ceph.
#[derive(Debug, Clone)]
pub struct RadosPlace {
    /// The Ceph pool.
    pub ceph_pool: String,
    /// The pool's name, which is its namespace in the Ceph pool.
    pub name: String,
    /// The pool's run directory on this host.
    pub run: PathBuf,
}

impl RadosPlace {
    /// The pool's name as users write it.
    pub fn title(&self) -> String {
        format!("ceph:{}/{}", self.ceph_pool, self.name)
    }

    /// Explains an error of an operation on the pool. If capabilities are missing, lists those that are needed.
    fn explain(&self, doing: &str, error: io::Error) -> io::Error {
        let what = format!("{doing} {}", self.title());
        match error.kind() {
            io::ErrorKind::PermissionDenied => explain(
                format!(
                    "{what}: the Ceph user needs the capabilities mon 'profile rbd' osd 'allow rwx \
                     pool={} namespace={}', which 'ceph auth caps' gives",
                    self.ceph_pool, self.name
                ),
                error,
            ),
            _ => explain(what, error),
        }
    }

    fn open(&self, client: &Client) -> io::Result<Pool> {
        client.pool(&self.ceph_pool, &self.name).map_err(|error| {
            let what = match error.kind() {
                io::ErrorKind::NotFound => {
                    format!("the cluster has no Ceph pool {}", self.ceph_pool)
                }
                _ => format!("opening the Ceph pool {}", self.ceph_pool),
            };
            explain(what, error)
        })
    }
}

/// The parts of a pool in a cluster, and the right to change them.
pub struct RadosEngine {
    title: String,
    run: PathBuf,
    cluster: Arc<Cluster>,
    /// The thread that guards the ownership until the engine ends.
    watchman: Option<JoinHandle<()>>,
}

impl RadosEngine {
    /// Creates a pool without parts. `AlreadyExists` if there is one of this name.
    pub fn create_pool(client: &Client, place: &RadosPlace) -> io::Result<()> {
        let pool = place.open(client)?;
        if !pool.takes_overwrites()? {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!(
                    "the Ceph pool {} is erasure-coded and takes no overwrites: allow them \
                     (allow_ec_overwrites), or use a replicated pool",
                    place.ceph_pool
                ),
            ));
        }
        // Checked before anything exists: a host first needs this right when its predecessor has died.
        fences::try_out(client).map_err(|error| place.explain("creating", error))?;
        head::create(&pool).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => io::Error::new(
                error.kind(),
                format!("there is a pool {} already", place.title()),
            ),
            _ => place.explain("creating", error),
        })
    }

    /// Becomes the owner of a pool. The caller holds the lock of the pool's directory.
    ///
    /// # Errors
    ///
    /// [`TakeError::Held`] if the pool has a live owner; `NotFound` if there is no pool.
    pub fn take(
        client: &Client,
        place: &RadosPlace,
        options: TakeOptions,
    ) -> Result<RadosEngine, TakeError> {
        let pool = place.open(client)?;
        let explained = |error| TakeError::Io(place.explain("taking", error));
        head::read(&pool).map_err(|error| {
            TakeError::Io(match error.kind() {
                io::ErrorKind::NotFound => {
                    io::Error::new(error.kind(), format!("there is no pool {}", place.title()))
                }
                _ => place.explain("reading the head of", error),
            })
        })?;
        let mut run = RunDirectory::open(&place.run)?;
        let ownership = ownership::take(client, &pool, &mut run, options);
        let ownership = ownership.map_err(|error| match error {
            TakeError::Io(error) => explained(error),
            held => held,
        })?;
        let watch = ownership::watch(&pool, &ownership).map_err(explained)?;
        let head = head::read(&pool).map_err(explained)?;
        let cluster = Arc::new(Cluster::new(pool, ownership));
        let mut engine = RadosEngine {
            title: place.title(),
            run: place.run.clone(),
            cluster,
            watchman: None,
        };
        let watchman = engine.start_watchman(watch, client.clone(), options.fence_interval);
        engine.watchman = Some(watchman.map_err(explained)?);
        if let Some(entry) = head.replaced {
            engine.remove_replaced(entry)?;
        }
        Ok(engine)
    }

    /// Sets the callback for events of the ownership. It is called on threads that must not wait.
    pub fn on_event(&self, on_event: impl Fn(OwnerEvent) + Send + Sync + 'static) {
        self.cluster.ownership.set_on_event(Box::new(on_event));
    }

    /// Removes the pool, which this process owns: all of its objects, the head last.
    pub fn remove_pool(self) -> io::Result<()> {
        for part in Part::ALL {
            self.remove(part)?;
        }
        let room = ObjectChange {
            op: self.cluster.pool.write_op().remove(),
            doing: "removing",
            bytes: 0,
        };
        match self.cluster.change(cluster::ROOM, room) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let change = ObjectChange {
            op: self.cluster.asserted().remove(),
            doing: "removing",
            bytes: 0,
        };
        self.cluster.change(HEAD, change)
    }

    fn start_watchman(
        &self,
        mut watch: Watch,
        client: Client,
        fence_interval: Duration,
    ) -> io::Result<JoinHandle<()>> {
        let cluster = Arc::clone(&self.cluster);
        let (mut fenced_at, mut fencing) = (Instant::now(), None::<JoinHandle<()>>);
        let work = move || {
            while cluster.ownership.pause(LOOK_INTERVAL) {
                report(cluster.flights.news());
                let is_fencing = fencing.as_ref().is_some_and(|thread| !thread.is_finished());
                if fenced_at.elapsed() >= fence_interval && !is_fencing {
                    fenced_at = Instant::now();
                    // On a thread of its own, because it waits for the monitors, and an owner can do without them.
                    let (client, pool) = (client.clone(), cluster.pool.clone());
                    let restore = move || restore_fences(&client, &pool);
                    fencing = thread::Builder::new()
                        .name("rados-fences".to_owned())
                        .spawn(restore)
                        .ok();
                }
                ownership::look_for_head(&cluster.pool, &cluster.ownership);
                match ownership::confirm(&cluster.pool, &cluster.ownership, watch) {
                    Ok(again) => watch = again,
                    Err(error) if onefold_rados::is_fenced(&error) => {
                        return cluster.ownership.lose("this host was fenced");
                    }
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {
                        return cluster.ownership.lose_pool();
                    }
                    Err(error) => {
                        return cluster.ownership.lose(&format!(
                            "other hosts cannot ask this one for the pool: {error}"
                        ));
                    }
                }
            }
        };
        thread::Builder::new()
            .name("rados-owner".to_owned())
            .spawn(work)
    }

    /// Changes entries of the head in one operation.
    fn change_head(&self, change: impl FnOnce(Change) -> Change) -> io::Result<()> {
        let Cluster {
            pool, ownership, ..
        } = &*self.cluster;
        let change = change(Change::begin(pool, ownership.session()));
        let change = ObjectChange {
            op: change.into_op(),
            doing: "changing",
            bytes: 0,
        };
        let changed = self.cluster.change(HEAD, change);
        changed.map_err(|error| explain(format!("changing the head of {}", self.title), error))
    }

    /// Removes the objects of a replaced index.
    fn remove_replaced(&self, entry: Entry) -> io::Result<()> {
        let removed = RadosDisk::remove_objects(&self.cluster, Part::Index, entry);
        removed.map_err(|error| explain("removing an index that was replaced", error))?;
        self.change_head(|change| change.replaced(None))
    }

    /// Reads the head. An open part may be longer than the head says.
    fn head(&self, doing: &str, part: Part) -> io::Result<Head> {
        let head = head::read(&self.cluster.pool);
        head.map_err(|error| explain(format!("{doing} {}", self.describe(part)), error))
    }

    fn missing(&self, part: Part) -> io::Error {
        let name = self.describe(part);
        io::Error::new(io::ErrorKind::NotFound, format!("{name} does not exist"))
    }
}

fn restore_fences(client: &Client, pool: &Pool) {
    if let Err(error) = fences::restore(client, pool) {
        tracing::warn!(
            "cannot make sure that the cluster keeps former owners of the pool out: {error}"
        );
    }
}

/// Logs a report on operations that take long.
fn report(news: Option<News>) {
    match news {
        Some(News::Waits {
            operations,
            oldest,
            waited,
        }) => tracing::warn!(
            "the cluster has not answered for {:.0} s: {operations} operations wait, the oldest is {oldest}",
            waited.as_secs_f64()
        ),
        Some(News::GoesOn) => tracing::info!("the cluster answers again"),
        None => {}
    }
}

impl Engine for RadosEngine {
    fn create(&self, part: Part, len: u64) -> io::Result<Arc<dyn Disk>> {
        let head = self.head("creating", part)?;
        if head.parts.contains_key(&part) {
            let message = format!("{} exists already", self.describe(part));
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
        }
        let entry = Entry::new(head.next_generation(part), len);
        self.change_head(|change| change.part(part, Some(entry)).made(part, None))?;
        self.open(part)
    }

    fn open(&self, part: Part) -> io::Result<Arc<dyn Disk>> {
        let head = self.head("opening", part)?;
        let entry = head.parts.get(&part).ok_or_else(|| self.missing(part))?;
        let name = self.describe(part);
        let made = head.made(part, entry);
        let disk = RadosDisk::open(&self.cluster, part, *entry, made, name)?;
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
        let head = self.head("removing", part)?;
        let Some(entry) = head.parts.get(&part) else {
            return Ok(());
        };
        let removed = RadosDisk::remove_objects(&self.cluster, part, *entry);
        removed.map_err(|error| explain(format!("removing {}", self.describe(part)), error))?;
        self.change_head(|change| change.part(part, None))
    }

    fn host_memory(&self, len: usize) -> io::Result<Arc<dyn HostMemory>> {
        Ok(Arc::new(MappedFile::open(&self.run.join(TAIL), len)?))
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

impl Drop for RadosEngine {
    fn drop(&mut self) {
        self.cluster.ownership.end();
        if let Some(watchman) = self.watchman.take() {
            // The thread has reported its own panic.
            let _ = watchman.join();
        }
        ownership::give_up(&self.cluster.pool, &self.cluster.ownership);
    }
}
