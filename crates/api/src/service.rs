//! An open pool with its clients and jobs, which carries out requests.

use std::any::Any;
use std::ops::ControlFlow;
use std::sync::Arc;

use onefold_jobs::Maintenance;
use onefold_store::{SECTOR_BYTES, Store, VolumeStat};
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::limits::LIST_SEGMENTS_MAX;
use crate::measure::NbdStatistics;
use crate::request::{Report, Request};
use crate::size;
use crate::stores::Stores;

/// A guard that keeps clients away from a volume while a request changes it.
pub type Hold = Box<dyn Any + Send>;

/// The NBD clients of an open pool. Only a daemon has any.
pub trait Clients: Send + Sync {
    /// The clients of a volume, as a person would name them; empty if there are none.
    fn clients(&self, volume: &str) -> Vec<String>;

    /// Refuses new clients of a volume until the returned guard is dropped.
    fn hold(&self, volume: &str) -> Hold;

    /// Disconnects a volume's clients, and returns when all their in-flight requests have ended.
    ///
    /// # Errors
    /// If a client's last request does not end in time.
    fn disconnect(&self, volume: &str) -> Result<()>;

    /// The URI by which clients reach this volume.
    fn nbd_uri(&self, volume: &str) -> Option<String>;

    /// Number of requests that wait for space in the pool.
    fn waiting_for_space(&self) -> u64;

    /// Statistics of clients and their requests since the daemon started.
    fn statistics(&self) -> NbdStatistics;
}

/// Data of a volume or snapshot, over all layers.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DataReply {
    /// Bytes of data that a reader finds; absent if counting would take long and there is no earlier count.
    pub data_bytes: Option<u64>,
    /// When `data_bytes` was counted, in seconds since the Unix epoch; absent if just now.
    pub data_as_of: Option<u64>,
}

/// Fragmentation of a volume or snapshot in the pool.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LocalityReply {
    /// Extents of the pool that a reader finds: runs of blocks that are consecutive in the volume and in the
    /// pool. Absent if counting would take long and there is no earlier count.
    pub extents: Option<u64>,
    /// Average blocks per extent; absent also if there is no data.
    pub blocks_per_extent: Option<f64>,
    /// When `extents` was counted, in seconds since the Unix epoch; absent if just now.
    pub extents_as_of: Option<u64>,
}

/// An open pool with its clients and jobs.
#[derive(Clone)]
pub struct Service {
    /// The pool's stores that are open in this process.
    pub stores: Stores,
    /// The NBD clients. Only a daemon has any.
    pub clients: Option<Arc<dyn Clients>>,
    /// The background jobs. Only a daemon has any.
    pub maintenance: Option<Arc<Maintenance>>,
    /// Whether the caller of the request has gone, if that can happen.
    pub is_abandoned: Option<Abandonment>,
}

/// Returns whether the caller of a request has gone.
pub type Abandonment = Arc<dyn Fn() -> bool + Send + Sync>;

impl Service {
    /// A pool without clients and jobs.
    #[must_use]
    pub fn without_clients(store: Arc<Store>) -> Self {
        Self {
            stores: Stores::One(store),
            clients: None,
            maintenance: None,
            is_abandoned: None,
        }
    }

    /// A service for one caller, who may go away before the reply.
    #[must_use]
    pub fn for_caller(&self, is_abandoned: Abandonment) -> Self {
        Self {
            is_abandoned: Some(is_abandoned),
            ..self.clone()
        }
    }

    /// Whether the caller has gone, so that long work may stop here and be continued later.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.is_abandoned.as_ref().is_some_and(|gone| gone())
    }

    /// Checks a request and carries it out.
    ///
    /// # Errors
    /// The request's own errors.
    pub fn call<R: Request>(&self, request: &R, report: Report<'_>) -> Result<R::Reply> {
        request.check()?;
        request.run(self, report)
    }

    pub(crate) fn clients(&self, volume: &str) -> Vec<String> {
        self.clients
            .as_ref()
            .map(|a| a.clients(volume))
            .unwrap_or_default()
    }

    pub(crate) fn maintenance(&self) -> Result<&Maintenance> {
        let maintenance = self.maintenance.as_deref();
        maintenance.ok_or_else(|| Error::failed("there are jobs only while 'onefold serve' runs"))
    }

    /// Whether the daemon is stopping, so that long work should end.
    pub(crate) fn is_stopping(&self) -> bool {
        let maintenance = self.maintenance.as_ref();
        maintenance.is_some_and(|maintenance| maintenance.is_stopping())
    }

    /// The store with this volume or snapshot.
    ///
    /// # Errors
    /// Those of [`Stores::of`].
    pub fn store_of(&self, name: &str) -> Result<Arc<Store>> {
        self.stores.of(name)
    }

    /// Releases deleted volumes and snapshots of a store. Under a daemon, its background job does that instead.
    pub(crate) fn finish_deletions(&self, store: &Store, report: Report<'_>) -> Result<()> {
        if self.maintenance.is_none() {
            store.deletions().finish(&mut self.blocks(report))?;
        }
        Ok(())
    }

    /// Wraps a report in bytes as one that takes blocks.
    pub(crate) fn blocks<'a>(&self, report: Report<'a>) -> impl FnMut(u64, u64) + Send + use<'a> {
        let block_size = u64::from(self.stores.block_size());
        move |done, all| report(done * block_size, all * block_size)
    }

    /// Like [`Service::blocks`], for work that ends early when the daemon stops.
    pub(crate) fn blocks_until_stopped<'a>(
        &'a self,
        report: Report<'a>,
    ) -> impl FnMut(u64, u64) -> ControlFlow<()> + Send + 'a {
        let mut report = self.blocks(report);
        move |done, all| {
            report(done, all);
            if self.is_stopping() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        }
    }

    pub(crate) fn waiting_for_space(&self) -> u64 {
        let clients = self.clients.as_ref();
        clients.map_or(0, |clients| clients.waiting_for_space())
    }

    pub(crate) fn nbd_uri(&self, volume: &str) -> Option<String> {
        self.clients.as_ref().and_then(|a| a.nbd_uri(volume))
    }

    /// The data of a volume or snapshot, if it is known or quickly counted. `among` is the number of entries
    /// in the list, which share the budget for counting.
    pub(crate) fn data(&self, name: &str, among: usize) -> DataReply {
        let segments_max = LIST_SEGMENTS_MAX / among.max(1) as u64;
        // `pool check` reports unreadable maps; a list shows the other volumes anyway.
        let counted = |store: Arc<Store>| {
            let volume = store.volume(name).ok()?;
            store.accounting().data(&volume, segments_max).ok()?
        };
        let data = self.store_of(name).ok().and_then(counted);
        DataReply {
            data_bytes: data.map(|data| data.blocks * u64::from(self.stores.block_size())),
            data_as_of: data.and_then(|data| data.as_of_unix_seconds),
        }
    }

    /// The extents of a volume or snapshot, counted with the same budget as [`Service::data`].
    pub(crate) fn locality(&self, name: &str, among: usize) -> LocalityReply {
        let segments_max = LIST_SEGMENTS_MAX / among.max(1) as u64;
        let counted = |store: Arc<Store>| {
            let volume = store.volume(name).ok()?;
            store.accounting().locality(&volume, segments_max).ok()?
        };
        let found = self.store_of(name).ok().and_then(counted);
        let some = found.filter(|found| found.runs > 0);
        LocalityReply {
            extents: found.map(|found| found.runs),
            blocks_per_extent: some.map(|found| found.blocks as f64 / found.runs as f64),
            extents_as_of: found.and_then(|found| found.as_of_unix_seconds),
        }
    }

    /// The data of a volume or snapshot in words, for a plan; counts it however long that takes.
    pub(crate) fn data_in_words(&self, name: &str) -> String {
        let counted = self.store_of(name).and_then(|store| {
            let volume = store.volume(name)?;
            Ok(store.accounting().data(&volume, u64::MAX)?)
        });
        match counted {
            Ok(Some(data)) => {
                let bytes = data.blocks * u64::from(self.stores.block_size());
                format!("{} of data", size::display(bytes))
            }
            Ok(None) => "data".to_owned(),
            Err(error) => format!("data that cannot be counted ({error})"),
        }
    }

    pub(crate) fn find(&self, name: &str) -> Result<VolumeStat> {
        Ok(self.store_of(name)?.volume_stat(name)?)
    }

    /// Refuses the action and names the clients, if the volume is attached and `force` is not set.
    pub(crate) fn check_detachable(&self, volume: &str, force: bool, action: &str) -> Result<()> {
        let clients = self.clients(volume);
        if clients.is_empty() || force {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::InUse,
            format!(
                "cannot {action} volume '{volume}': it is attached to {}; detach it there, \
                 or disconnect with --force",
                clients.join(", ")
            ),
        ))
    }

    /// Keeps the volume free of clients until the returned guard is dropped: disconnects them, or refuses and
    /// names them.
    pub(crate) fn detach(&self, volume: &str, force: bool, action: &str) -> Result<Option<Hold>> {
        let Some(server) = &self.clients else {
            return Ok(None);
        };
        let hold = server.hold(volume);
        self.check_detachable(volume, force, action)?;
        server.disconnect(volume)?;
        Ok(Some(hold))
    }
}

/// The longest allowed name of a volume.
const NAME_BYTES_MAX: usize = 63;

/// Checks a volume's name. Names are used in file names, URIs and export lists, so only plain characters are
/// allowed, and none that could be mistaken for an option or a snapshot (`VOL@SNAP`).
///
/// # Errors
/// [`Usage`](crate::ErrorKind::Usage) for other names.
pub fn check_name(name: &str) -> Result<()> {
    check_plain(name, "a volume's name")
}

/// Checks a domain's name, by the same rules as a volume's name.
pub(crate) fn check_domain(domain: &str) -> Result<()> {
    check_plain(domain, "the name of a domain")
}

pub(crate) fn check_plain(name: &str, what: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if starts_well && name.len() <= NAME_BYTES_MAX && name.chars().all(plain) {
        return Ok(());
    }
    Err(Error::usage(format!(
        "{name:?} cannot be {what}: use 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' \
         and '-', with a letter or digit first"
    )))
}

/// Rounds a user's size up to whole blocks and refuses zero: `1.3G` and `20GB` are not whole and mean at
/// least that much.
pub(crate) fn whole_blocks(size_bytes: u64, block_size: u32, of: &str) -> Result<u64> {
    if size_bytes == 0 {
        return Err(Error::usage(format!("a {of}'s size must not be 0")));
    }
    let rounded = size_bytes.checked_next_multiple_of(u64::from(block_size));
    rounded.ok_or_else(|| Error::usage(format!("{size_bytes} bytes are too many for a {of}")))
}

/// The size of a volume from a user's input: a multiple of a sector is used as is; other sizes, such as
/// `1.3G`, mean at least that much.
pub(crate) fn volume_size(size_bytes: u64, block_size: u32) -> Result<u64> {
    if size_bytes > 0 && size_bytes.is_multiple_of(SECTOR_BYTES) {
        Ok(size_bytes)
    } else {
        whole_blocks(size_bytes, block_size, "volume")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        let longest = "x".repeat(NAME_BYTES_MAX);
        for name in ["a", "7", "Debian-12.5_amd64", &longest] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        let too_long = "x".repeat(NAME_BYTES_MAX + 1);
        for name in [
            "", ".", "-a", "_a", "a b", "a/b", "a@b", "ä", "a\n", &too_long,
        ] {
            let error = check_name(name).expect_err(name);
            assert_eq!(error.kind, crate::error::ErrorKind::Usage);
        }
    }
}
