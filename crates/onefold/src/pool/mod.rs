//! Opens and creates pools: the directory's lock, and the store in it.

pub(crate) mod place;
pub(crate) mod restoration;
pub(crate) mod shared;

use crate::control::socket_path;
use crate::image::writer::is_block_device;
use crate::limits::{MEMORY_BYTES_DEFAULT, store_memory_bytes};
use onefold_api::{Error, ErrorKind, Result};
use onefold_engine::embedded::{CacheMode, EmbeddedEngine, LockError, PoolLock};
use onefold_engine::rados::{OwnerEvent, RadosEngine, RadosHost, TakeError, TakeOptions};
use onefold_engine::{Engine, Holding};
use onefold_nbd::SOCKET_PATH_BYTES_MAX;
use onefold_store::{
    CreateOptions, OpenOptions, RecoveryReport, Store, StoreError, StoreErrorKind,
};
use place::{CephPlace, PoolPlace};
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{self, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The files of a pool.
const PARTS: [&str; 6] = ["superblock", "meta", "log", "data", "index", "secret"];

/// A directory with any of these files is a pool, though perhaps a damaged one. The other files have names
/// that are common elsewhere.
const MARKS: [&str; 4] = ["superblock", "meta", "log", "data"];

/// Name of the lock file, which exists while a pool is being created, too.
const LOCK: &str = "lock";

/// How often a pool's owner in Ceph verifies that former owners are still blocklisted. An entry that was
/// removed is missing for this long at most, and each check costs the whole cluster a new map.
pub(crate) const FENCE_INTERVAL: Duration = Duration::from_secs(3600);

/// The result of the attempt to open a pool exclusively.
pub(crate) enum Claim {
    /// This process has the lock until the value is dropped.
    Ours(PoolLock),
    /// The lock is held by another process.
    Held {
        /// The process or host that has the lock, as far as it is known.
        holder: String,
    },
}

/// Tries to take the pool's lock on this machine.
pub(crate) fn claim(place: &PoolPlace) -> Result<Claim> {
    let pool = match place {
        PoolPlace::Directory(directory) => directory,
        PoolPlace::Ceph(ceph) => {
            ceph.make_run()?;
            return lock_directory(&ceph.rados.run);
        }
    };
    // Locking creates a file, which must not appear in a directory that is not a pool.
    if !MARKS
        .iter()
        .any(|part| pool.join(part).symlink_metadata().is_ok())
    {
        return Err(Error::failed(format!(
            "there is no pool at {}; 'onefold pool create' makes one",
            pool.display()
        )));
    }
    lock_directory(pool)
}

/// Tries to lock a directory, which may not have a pool yet.
fn lock_directory(pool: &Path) -> Result<Claim> {
    match PoolLock::acquire(pool) {
        Ok(lock) => Ok(Claim::Ours(lock)),
        Err(LockError::Held { pid: Some(pid), .. }) => Ok(Claim::Held {
            holder: format!("process {pid}"),
        }),
        Err(LockError::Held { pid: None, .. }) => Ok(Claim::Held {
            holder: "another process".to_owned(),
        }),
        Err(LockError::Io(error)) => Err(Error::failed(error.to_string())),
    }
}

/// Options for opening a pool.
pub(crate) struct Opening {
    pub(crate) cache: CacheMode,
    pub(crate) memory_bytes: u64,
    /// Rebuild the free-space map if it cannot be opened.
    pub(crate) repair: bool,
    /// Ask the host that owns the pool to give it up.
    pub(crate) asks_owner: bool,
    /// The pool's data, opened by an earlier process and kept by the service manager.
    pub(crate) kept_data: Option<File>,
    /// Called when another host requests or takes over the pool. It must not block.
    pub(crate) on_owner_event: Option<Arc<dyn Fn(OwnerEvent) + Send + Sync>>,
}

impl Default for Opening {
    fn default() -> Self {
        Self {
            cache: CacheMode::Host,
            memory_bytes: MEMORY_BYTES_DEFAULT,
            repair: false,
            asks_owner: false,
            kept_data: None,
            on_owner_event: None,
        }
    }
}

/// Opens the pool's store. The caller holds the lock.
pub(crate) fn open(
    place: &PoolPlace,
    mut opening: Opening,
) -> Result<(Arc<Store>, RecoveryReport)> {
    let engine: Arc<dyn Engine> = match place {
        PoolPlace::Directory(directory) => {
            let engine = EmbeddedEngine::new(directory, opening.cache);
            Arc::new(match opening.kept_data.take() {
                Some(kept) => engine.with_kept_data(kept),
                None => engine,
            })
        }
        PoolPlace::Ceph(ceph) => Arc::new(take(ceph, &opening)?),
    };
    let options = OpenOptions {
        memory_bytes: store_memory_bytes(opening.memory_bytes),
        rebuild_free_space: opening.repair,
        shared: None,
    };
    Ok(Store::open(engine, &options)?)
}

/// Takes ownership of a pool in a cluster.
fn take(ceph: &CephPlace, opening: &Opening) -> Result<RadosEngine> {
    let options = TakeOptions {
        patience: ceph.patience(),
        asks: opening.asks_owner,
        fence_interval: FENCE_INTERVAL,
    };
    let client = ceph.connect()?;
    // If this cannot be told, opening the pool says why.
    if RadosHost::is_shared(&client, &ceph.rados).unwrap_or(false) {
        return Err(Error::failed(format!(
            "hosts share the pool {0}, and commands reach it through this host's daemon: start 'onefold serve --pool {0}'",
            ceph.rados.title()
        )));
    }
    let engine = RadosEngine::take(&client, &ceph.rados, options);
    let engine = engine.map_err(|error| match error {
        TakeError::Held { owner } => Error::failed(format!(
            "the pool {} is in use by {owner}; 'onefold serve --take' asks it to give the pool up",
            ceph.rados.title()
        )),
        TakeError::Io(error) => Error::failed(error.to_string()),
    })?;
    if let Some(on_event) = &opening.on_owner_event {
        let on_event = Arc::clone(on_event);
        engine.on_event(Box::new(move |event| on_event(event)));
    }
    Ok(engine)
}

/// Creates a pool in a cluster; on failure removes everything it created.
pub(crate) fn create_in_ceph(ceph: &CephPlace, options: &CreateOptions) -> Result<()> {
    let title = ceph.rados.title();
    let failed = |cause: &dyn fmt::Display| {
        Error::failed(format!("cannot create a pool at {title}: {cause}"))
    };
    ceph.make_run()?;
    let _lock = PoolLock::acquire(&ceph.rados.run).map_err(|e| failed(&e))?;
    let client = ceph.connect()?;
    RadosEngine::create_pool(&client, &ceph.rados).map_err(|e| failed(&e))?;
    let take = TakeOptions {
        patience: ceph.patience(),
        asks: false,
        fence_interval: FENCE_INTERVAL,
    };
    let engine = RadosEngine::take(&client, &ceph.rados, take).map_err(|e| failed(&e))?;
    let created = Store::create(&engine, options);
    if created.is_err() {
        // Report the original error, whether or not this succeeds.
        let _ = engine.remove_pool();
    }
    created.map_err(|error| Error {
        kind: match error.kind() {
            StoreErrorKind::Invalid => ErrorKind::Usage,
            _ => ErrorKind::Failed,
        },
        ..failed(&error)
    })
}

/// Whether a directory contains a pool.
fn is_pool(directory: &Path) -> bool {
    ["superblock", "meta"]
        .iter()
        .all(|part| directory.join(part).is_file())
}

/// A pool to be created in a directory.
#[derive(Debug)]
pub(crate) struct NewPool {
    pub(crate) directory: PathBuf,
    /// Where to keep the blocks, if not in the directory: a device, or a new file.
    pub(crate) data: Option<PathBuf>,
    pub(crate) options: CreateOptions,
}

impl NewPool {
    /// Refuses options with which no pool can be created. Changes nothing.
    pub(crate) fn check(&self) -> Result<()> {
        self.options.check().map_err(|error| self.refused(&error))?;
        let engine = EmbeddedEngine::new(&self.directory, CacheMode::Host);
        engine.check_directory().map_err(|e| self.failed(&e))?;
        self.check_place()?;
        let device = self.data.as_deref().filter(|data| is_block_device(data));
        let Some(device) = device else {
            return Ok(());
        };
        let checked = engine.check_device(device, self.options.size_bytes);
        checked.map_err(|e| self.failed(&e))
    }

    /// Refuses a place inside another pool, or one in which no daemon could listen.
    fn check_place(&self) -> Result<()> {
        let absolute = |path: &Path| path::absolute(path).map_err(|e| self.failed(&e));
        let directory = absolute(&self.directory)?;
        let data = self.data.as_deref().map(absolute).transpose()?;
        for place in [Some(&directory), data.as_ref()].into_iter().flatten() {
            if let Some(pool) = place.ancestors().skip(1).find(|ancestor| is_pool(ancestor)) {
                let pool = pool.display();
                return Err(Error::usage(self.message(&format_args!(
                    "{} is inside the pool at {pool}; choose a place outside it",
                    place.display()
                ))));
            }
        }
        let (socket, most) = (socket_path(&directory), SOCKET_PATH_BYTES_MAX);
        let bytes = socket.as_os_str().len();
        if bytes > most {
            let fits = most - (bytes - directory.as_os_str().len());
            return Err(Error::usage(self.message(&format_args!(
                "a daemon could not listen in it: the path of the directory has {} bytes, and with more than {fits} that of \
                 its control socket is too long",
                directory.as_os_str().len()
            ))));
        }
        Ok(())
    }

    /// Creates the pool; on failure removes everything it created.
    pub(crate) fn create(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        self.check()?;
        let engine = EmbeddedEngine::new(&self.directory, CacheMode::Host);
        let directory_existed = self.directory.exists();
        // A dangling symlink exists as well and must not be removed.
        let target_existed =
            (self.data.as_ref()).is_some_and(|target| target.symlink_metadata().is_ok());
        engine.create_directory().map_err(|e| self.failed(&e))?;
        let created = self.fill(&engine, progress);
        if created.is_err() {
            self.remove(directory_existed, target_existed);
        }
        created
    }

    fn fill(&self, engine: &EmbeddedEngine, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        let _lock =
            PoolLock::acquire(&self.directory).map_err(|e| Error::failed(self.message(&e)))?;
        if let Some(target) = &self.data {
            engine
                .create_data_link(target)
                .map_err(|e| self.failed(&e))?;
        }
        Store::create_with_progress(engine, &self.options, progress)
            .map_err(|error| self.refused(&error))
    }

    fn refused(&self, error: &StoreError) -> Error {
        let kind = match error.kind() {
            StoreErrorKind::Invalid => ErrorKind::Usage,
            _ => ErrorKind::Failed,
        };
        Error {
            kind,
            message: self.message(error),
        }
    }

    fn message(&self, cause: &dyn fmt::Display) -> String {
        format!(
            "cannot create a pool at {}: {cause}",
            self.directory.display()
        )
    }

    fn failed(&self, cause: &io::Error) -> Error {
        Error::failed(self.message(cause))
    }

    /// Removes the files that were created. The directory was empty, so all of them are ours.
    fn remove(&self, directory_existed: bool, target_existed: bool) {
        for name in PARTS.iter().chain([&LOCK]) {
            let _ = fs::remove_file(self.directory.join(name));
        }
        if let (Some(target), false) = (&self.data, target_existed) {
            let _ = fs::remove_file(target);
        }
        if !directory_existed {
            let _ = fs::remove_dir(&self.directory);
        }
    }
}
