//! A pool that hosts share (format 2), as one of them uses it.
//!
//! Objects of the pool as a whole: `pool` says what it is, `directory` and `extents` are changed by all hosts, and `g.0`
//! keeps out releases that know pools with one owner only: it has another layout in its attribute `format`.
//!
//! Crash behaviour: creation makes `g.0` first and `pool` last, and removal begins with `pool` and ends with `g.0`. A pool
//! with `g.0` alone was half created or half removed, and can only be removed.

use super::bounded::Work;
use super::directory::{self, RadosDirectory};
use super::engine::{self, RadosEngine};
use super::extents::Exchange;
use super::fences::{self, Kept};
use super::head::{self, FORMAT_KEY};
use super::held::Held;
use super::host::{Host, Watched};
use super::names::{self, EXTENTS, Estate, FIRST_HEAD, POOL};
use super::operations::Operations;
use super::{RadosPlace, extents, run};
use crate::cluster::{
    Answered, Cluster, Directory, Exchanged, ExtentCounts, Holding, OnEvent, Owned, OwnerEvent,
    TakeError, TakeOptions,
};
use crate::failure::explain;
use onefold_format::units::{BLOCK_SIZES, PBA_END, SHARDS_MAX};
use onefold_format::{GivenRun, GroupId, PoolId};
use onefold_rados::{Client, Create, Pool, WhenFull};
use std::io;
use std::ops::Range;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// The version of the layout of a shared pool.
pub(super) const FORMAT: &str = "2";

const IDENTITY_KEY: &str = "identity";
const BLOCK_BYTES_KEY: &str = "block-bytes";
const SHARDS_KEY: &str = "shards";

/// Objects that a removal removes at a time.
const REMOVALS_MAX: usize = 128;

/// How long an exchange of space extents is waited for. A guest's request may be what waits.
const EXCHANGE_TIME_MAX: Duration = Duration::from_secs(1);

/// How long a group's last exchange is waited for. Openings wait, and exchanges that follow one that was late.
const LAST_EXCHANGE_TIME_MAX: Duration = Duration::from_secs(60);

/// How long the count of the space extents is waited for.
const COUNT_TIME_MAX: Duration = Duration::from_secs(5);

/// The permanent properties of a shared pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolDescription {
    /// The pool's identity.
    pub identity: PoolId,
    /// The size of a block in bytes.
    pub block_bytes: u32,
    /// The number of shards of the fingerprint index.
    pub shards: u16,
}

impl PoolDescription {
    pub(super) fn check(&self) -> io::Result<()> {
        let PoolDescription {
            block_bytes,
            shards,
            ..
        } = self;
        let wrong = if !BLOCK_SIZES.contains(block_bytes) {
            format!("blocks of {block_bytes} bytes")
        } else if !shards.is_power_of_two() || *shards > SHARDS_MAX {
            format!("{shards} shards")
        } else {
            return Ok(());
        };
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("a pool cannot have {wrong}"),
        ))
    }

    /// Reads the object. Nothing if there is none.
    fn read(pool: &Pool) -> io::Result<Option<PoolDescription>> {
        let texts = match head::read_texts(pool, POOL) {
            Ok((texts, _)) => texts,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let text = |key: &str| texts.get(key).map(String::as_str).unwrap_or_default();
        if text(FORMAT_KEY) != FORMAT {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!(
                    "object {POOL} has layout {:?}, and this onefold knows {FORMAT}: use a newer one",
                    text(FORMAT_KEY)
                ),
            ));
        }
        let identity = PoolId::parse(text(IDENTITY_KEY));
        let (block_bytes, shards) = (text(BLOCK_BYTES_KEY).parse(), text(SHARDS_KEY).parse());
        let (Some(identity), Ok(block_bytes), Ok(shards)) = (identity, block_bytes, shards) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("object {POOL} does not say what the pool is"),
            ));
        };
        let description = PoolDescription {
            identity,
            block_bytes,
            shards,
        };
        description.check()?;
        Ok(Some(description))
    }

    pub(super) fn write(&self, pool: &Pool) -> io::Result<()> {
        let attributes = [
            (FORMAT_KEY, FORMAT.to_owned()),
            (IDENTITY_KEY, self.identity.to_string()),
            (BLOCK_BYTES_KEY, self.block_bytes.to_string()),
            (SHARDS_KEY, self.shards.to_string()),
        ];
        let op = pool.write_op().create(Create::Exclusive);
        let op = attributes
            .iter()
            .fold(op, |op, (key, value)| op.set_xattr(key, value.as_bytes()));
        pool.change(POOL, op).map(drop)
    }
}

/// This process as a host of a shared pool. It fences hosts that are dead, and is fenced, as a whole: with a client of
/// its own, and everything that it owns.
pub struct RadosHost {
    place: RadosPlace,
    description: PoolDescription,
    pool: Pool,
    watched: Arc<Watched>,
    directory: RadosDirectory,
}

impl RadosHost {
    /// Creates a pool without groups, shards and space extents. `AlreadyExists` if there is one of this name.
    pub fn create_pool(
        client: &Client,
        place: &RadosPlace,
        description: &PoolDescription,
    ) -> io::Result<()> {
        description.check()?;
        let pool = place.open_for_creation(client)?;
        let keeps_out = pool.write_op().create(Create::Exclusive);
        let keeps_out = keeps_out.set_xattr(FORMAT_KEY, FORMAT.as_bytes());
        pool.change(FIRST_HEAD, keeps_out)
            .map_err(|error| place.not_created(error))?;
        directory::create(&pool)
            .and_then(|()| extents::create(&pool))
            .and_then(|()| description.write(&pool))
            .map_err(|error| place.explain("creating", error))
    }

    /// Whether a pool is one that hosts share, even if its creation or its removal was interrupted.
    pub fn is_shared(client: &Client, place: &RadosPlace) -> io::Result<bool> {
        let pool = place.open(client)?;
        let format = format(&pool).map_err(|error| place.explain("opening", error))?;
        Ok(format.as_deref() == Some(FORMAT))
    }

    /// Becomes a host of a pool. The caller holds the lock of the pool's directory on this host, and uses the client for
    /// nothing else. Every `fence_interval` the host makes sure that hosts which were fenced stay so; the interval in
    /// [`TakeOptions`] does not count.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no pool; `Unsupported` if it has one owner.
    pub fn open(
        client: &Client,
        place: &RadosPlace,
        fence_interval: Duration,
    ) -> io::Result<RadosHost> {
        let pool = place.open(client)?;
        let description = describe(&pool, place)?;
        let opened = fences::try_out(client).and_then(|()| {
            let watched = start(client, &pool, place, fence_interval)?;
            watched.host.taker.restore_fences()?;
            Ok(watched)
        });
        let watched = opened.map_err(|error| place.explain("opening", error))?;
        Ok(RadosHost {
            place: place.clone(),
            description,
            directory: RadosDirectory::new(pool.clone(), place.title()),
            pool,
            watched,
        })
    }

    /// The pool's permanent properties.
    pub fn description(&self) -> PoolDescription {
        self.description
    }

    /// Sets the callback for events of all groups and shards that this host owns now or later. It is called on threads
    /// that must not wait.
    pub fn on_event(&self, on_event: impl Fn(Owned, OwnerEvent) + Send + Sync + 'static) {
        let on_event = Arc::new(on_event);
        let of_estate = move |estate: Estate| -> OnEvent {
            let on_event = Arc::clone(&on_event);
            Box::new(move |event| {
                if let Estate::Shared(owned) = estate {
                    on_event(owned, event);
                }
            })
        };
        self.host().on_event(Box::new(of_estate));
    }

    /// Sets the number of space extents that the pool has.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if a group has taken one beyond, or if there cannot be so many.
    pub fn set_extents(&self, extents: u64) -> io::Result<()> {
        let set = extents::set_count(&self.pool, extents);
        set.map_err(|error| self.failed("changing the space extents of", error))
    }

    /// Stops answering other hosts, like a process that is frozen. For tests.
    #[cfg(feature = "simulated")]
    pub fn fall_silent(&self) {
        self.host().fall_silent();
    }

    /// Removes a pool with all of its groups and shards, and their data. Nobody may own any: `options` says how their
    /// owners are asked. An interrupted removal is repeated.
    ///
    /// # Errors
    ///
    /// [`TakeError::Held`] if a group or a shard has a live owner: nothing is removed.
    pub fn remove_pool(
        client: &Client,
        place: &RadosPlace,
        options: &TakeOptions,
    ) -> Result<(), TakeError> {
        let pool = place.open(client)?;
        let failed = |error| place.explain("removing", error);
        match format(&pool).map_err(failed)?.as_deref() {
            Some(FORMAT) => {}
            other => return Err(not_shared(place, other).into()),
        }
        let watched = start(client, &pool, place, options.fence_interval).map_err(failed)?;
        let host = &watched.host;
        let mut taken = Vec::new();
        let removed = take_all(host, place, options, &mut taken).and_then(|()| {
            // Their heads go, which is no loss.
            taken.iter().for_each(|held| held.ownership.end_removed());
            Ok(remove_objects(&pool).map_err(failed)?)
        });
        for held in &taken {
            host.give_up(held);
            if removed.is_ok() {
                run::forget(&place.run, held.ownership.estate());
            }
        }
        removed
    }

    fn host(&self) -> &Arc<Host> {
        &self.watched.host
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(super) fn failed(&self, doing: &str, error: io::Error) -> io::Error {
        explain(format!("{doing} {}", self.place.title()), error)
    }

    fn check_possible(&self, what: Owned) -> io::Result<()> {
        let is_possible = match what {
            Owned::Group(group) => group.0 > 0,
            Owned::Shard(shard) => shard.0 < self.description.shards,
        };
        if is_possible {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{} can have no {what}", self.place.title()),
        ))
    }

    /// The addressable length of the data.
    fn data_bytes(&self) -> u64 {
        PBA_END * u64::from(self.description.block_bytes)
    }
}

impl Cluster for RadosHost {
    fn create(&self, what: Owned) -> io::Result<()> {
        self.check_possible(what)?;
        // In a pool that is being removed, nothing may be made.
        self.pool.stat(POOL).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => self.place.missing(),
            _ => self.failed("looking for", error),
        })?;
        let last_session = match what {
            Owned::Shard(shard) => directory::last_session(&self.pool, shard),
            // Numbers of groups are never used again.
            Owned::Group(_) => Ok(0),
        };
        let created = last_session
            .and_then(|last| head::create_after(&self.pool, Estate::Shared(what), last));
        created.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => io::Error::new(
                error.kind(),
                format!("{} has {what} already", self.place.title()),
            ),
            _ => self.failed(&format!("creating {what} of"), error),
        })
    }

    fn take(&self, what: Owned, options: &TakeOptions) -> Result<Arc<dyn Holding>, TakeError> {
        self.check_possible(what)?;
        let estate = Estate::Shared(what);
        let explained = |error| self.failed(&format!("taking {what} of"), error);
        head::read(&self.pool, estate).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => io::Error::new(
                error.kind(),
                format!("{} has no {what}", self.place.title()),
            ),
            _ => explained(error),
        })?;
        let held = self.host().take(estate, options);
        let held = held.map_err(|error| match error {
            TakeError::Io(error) => TakeError::Io(explained(error)),
            held => held,
        })?;
        let title = format!("{what} of {}", self.place.title());
        let engine = RadosEngine::begin(&self.watched, held, title, self.data_bytes());
        let engine = engine.map_err(explained)?;
        if let Owned::Shard(shard) = what {
            // If its objects are lost, it is made again with later sessions.
            directory::keep_session(&self.pool, shard, engine.session()).map_err(explained)?;
        }
        Ok(Arc::new(engine))
    }

    fn remove(&self, holding: Arc<dyn Holding>) -> io::Result<()> {
        let (what, session) = (holding.owned(), holding.session());
        let estate = Estate::Shared(what);
        let failed = |error| self.failed(&format!("removing {what} of"), error);
        let held = self.host().find(estate, session).ok_or_else(|| {
            let other = "another host of the pool, or another pool, has it";
            failed(io::Error::new(io::ErrorKind::InvalidInput, other))
        })?;
        let owner = Operations::new(self.host(), &held.ownership);
        engine::remove_all(&*holding, &owner).map_err(failed)?;
        run::forget(&self.place.run, estate);
        Ok(())
    }

    fn call(&self, what: Owned, request: Vec<u8>, timeout: Duration, answered: Answered) {
        let calls = &self.host().calls;
        calls.begin(&self.pool, what, &request, timeout, answered);
    }

    fn exchange(
        &self,
        group: GroupId,
        number: u64,
        give: &[GivenRun],
        take: u32,
    ) -> io::Result<Exchanged> {
        let exchange = Exchange {
            group,
            number,
            give: give.to_vec(),
            take,
        };
        let (host, pool) = (Arc::clone(self.host()), self.pool.clone());
        let work = Work::Exchange(group);
        // Looked up here, because an owner that has given the group up is not found any more.
        let owner = host.ownership_of(Estate::Shared(Owned::Group(group)));
        let exchanged = host.bounded.clone().run(work, EXCHANGE_TIME_MAX, move || {
            // The next owner relies on the end of this operation (P7).
            let _admitted = owner.map(|owner| owner.admit()).transpose()?;
            let ticket = host.flights.begin("changing", EXTENTS, 0);
            let exchanged = exchange.run(&host.taker.client, &pool);
            host.flights.end(ticket);
            exchanged
        });
        exchanged.map_err(|error| self.failed("exchanging space extents of", error))
    }

    fn last_exchange(&self, group: GroupId) -> io::Result<Option<Exchanged>> {
        let (client, pool) = (self.host().taker.client.clone(), self.pool.clone());
        let (bounded, work) = (&self.host().bounded, Work::Exchange(group));
        let last = bounded.run(work, LAST_EXCHANGE_TIME_MAX, move || {
            extents::last_exchange(&client, &pool, group)
        });
        last.map_err(|error| self.failed("reading the space extents of", error))
    }

    fn extent_counts(&self) -> io::Result<ExtentCounts> {
        let pool = self.pool.clone();
        let bounded = &self.host().bounded;
        let counts = bounded.run(Work::Count, COUNT_TIME_MAX, move || extents::counts(&pool));
        counts.map_err(|error| self.failed("counting the space extents of", error))
    }

    fn given_blocks(&self, blocks: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        let given = extents::given_blocks(&self.pool, blocks);
        given.map_err(|error| self.failed("reading the space extents of", error))
    }

    fn directory(&self) -> &dyn Directory {
        &self.directory
    }
}

fn start(
    client: &Client,
    pool: &Pool,
    place: &RadosPlace,
    fence_interval: Duration,
) -> io::Result<Arc<Watched>> {
    let (pool, run) = (pool.clone(), place.run.clone());
    Watched::start(client, pool, Kept::InDirectory, run, fence_interval)
}

/// Reads the pool's permanent properties. Fails, with a reason, if hosts cannot share it.
fn describe(pool: &Pool, place: &RadosPlace) -> io::Result<PoolDescription> {
    let failed = |error| place.explain("opening", error);
    if let Some(description) = PoolDescription::read(pool).map_err(failed)? {
        return Ok(description);
    }
    Err(match format(pool).map_err(failed)?.as_deref() {
        Some(FORMAT) => io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "the creation or the removal of the pool {} was interrupted: remove it",
                place.title()
            ),
        ),
        other => not_shared(place, other),
    })
}

/// The layout of a pool of any format; nothing if there is none.
fn format(pool: &Pool) -> io::Result<Option<String>> {
    match head::read_texts(pool, FIRST_HEAD) {
        Ok((mut texts, _)) => Ok(Some(texts.remove(FORMAT_KEY).unwrap_or_default())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The error for a pool of another format, or for none.
fn not_shared(place: &RadosPlace, format: Option<&str>) -> io::Error {
    let title = place.title();
    let message = match format {
        None => return place.missing(),
        Some("1") => format!(
            "the pool {title} has one owner, and hosts cannot share it: 'onefold pool convert' makes it a pool that they share"
        ),
        Some(other) => format!(
            "the pool {title} has layout {other:?}, and this onefold knows 1 and {FORMAT}: use a newer one"
        ),
    };
    io::Error::new(io::ErrorKind::Unsupported, message)
}

/// Takes all groups and shards.
fn take_all(
    host: &Arc<Host>,
    place: &RadosPlace,
    options: &TakeOptions,
    taken: &mut Vec<Arc<Held>>,
) -> Result<(), TakeError> {
    let pool = &host.taker.pool;
    let failed = |error| TakeError::Io(place.explain("removing", error));
    for owned in heads(pool).map_err(failed)? {
        let estate = Estate::Shared(owned);
        match head::read(pool, estate) {
            // It is gone by now.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
            Ok(_) => taken.push(host.take(estate, options)?),
        }
    }
    Ok(())
}

/// All groups and shards of a pool.
fn heads(pool: &Pool) -> io::Result<Vec<Owned>> {
    let mut heads = Vec::new();
    for name in pool.objects()? {
        heads.extend(names::head_of(&name?));
    }
    heads.sort_unstable();
    Ok(heads)
}

/// Removes all objects of the pool: first the one without which no host uses it, and last the one that keeps others from
/// making a pool in its place.
fn remove_objects(pool: &Pool) -> io::Result<()> {
    remove_some(pool, &[POOL.to_owned()])?;
    remove_names(pool, |name| names::is_of_pool(name) && name != FIRST_HEAD)?;
    remove_some(pool, &[FIRST_HEAD.to_owned()])
}

/// Removes all objects with such names, also those that a host makes in the meantime.
pub(super) fn remove_names(pool: &Pool, is_removed: impl Fn(&str) -> bool) -> io::Result<()> {
    let is_left = |name: &io::Result<String>| match name {
        Ok(name) => is_removed(name),
        // A name that is no text is not ours.
        Err(error) => error.kind() != io::ErrorKind::InvalidData,
    };
    loop {
        let mut left = pool.objects()?.filter(is_left).peekable();
        if left.peek().is_none() {
            return Ok(());
        }
        loop {
            let some: Vec<String> = left.by_ref().take(REMOVALS_MAX).collect::<Result<_, _>>()?;
            if some.is_empty() {
                break;
            }
            remove_some(pool, &some)?;
        }
    }
}

/// Removes objects, as far as they are there.
pub(super) fn remove_some(pool: &Pool, names: &[String]) -> io::Result<()> {
    for some in names.chunks(REMOVALS_MAX) {
        let (ended, ends) = mpsc::channel();
        for name in some {
            let ended = ended.clone();
            let op = pool.write_op().remove();
            pool.submit_write(name, op, WhenFull::Go, move |removed| {
                // After an error, the receiver is gone.
                let _ = ended.send(removed);
            });
        }
        drop(ended);
        for removed in ends {
            match removed {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}
