//! What can be done to an open pool, each verb written once.
//!
//! A verb is a request that knows how to run. The command line runs it itself where it has opened
//! the pool, and the daemon runs it for a command line that sent it over the control socket; so
//! both give the same answer and refuse the same things. Importing and exporting move data beside
//! the request and are in [`transfer`].

pub(crate) mod diff;
pub(crate) mod index;
pub(crate) mod job;
mod loading;
pub(crate) mod metadata;
pub(crate) mod pool;
pub(crate) mod scrub;
pub(crate) mod snapshot;
pub(crate) mod transfer;
pub(crate) mod trim;
pub(crate) mod volume;

use crate::error::{Error, Result};
use crate::limits::LIST_SEGMENTS_MAX;
use crate::output::Document;
use crate::size;
use onefold_jobs::Maintenance;
use onefold_store::{Store, VolumeStat};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::ops::ControlFlow;
use std::sync::Arc;

/// `report(done, all)` of a long piece of work, in bytes wherever it is about data.
pub(crate) type Report<'a> = &'a mut (dyn FnMut(u64, u64) + Send);

/// One thing to do, and everything needed to do it.
pub(crate) trait Verb: Serialize + DeserializeOwned + Send + 'static {
    /// Where the control socket offers it.
    const PATH: &'static str;

    /// What comes back, and is printed.
    type Reply: Document + DeserializeOwned + Send + 'static;

    /// Does it.
    fn run(&self, service: &Service, report: Report<'_>) -> Result<Self::Reply>;
}

/// Keeps a volume free of clients while something is done to it.
pub(crate) type Hold = Box<dyn Any + Send>;

/// Who is connected to which volume. Only a daemon has such clients.
pub(crate) trait Attachments: Send + Sync {
    /// The clients of a volume, as a person would name them; empty when it is free.
    fn clients(&self, volume: &str) -> Vec<String>;

    /// Lets nobody new attach to a volume until the result is dropped.
    fn hold(&self, volume: &str) -> Hold;

    /// Ends their connections and returns when none of their requests is under way.
    fn disconnect(&self, volume: &str) -> Result<()>;

    /// Where a client finds this volume.
    fn nbd_uri(&self, volume: &str) -> Option<String>;

    /// How many requests wait for space in the pool.
    fn waiting_for_space(&self) -> u64;
}

/// The data that a reader of a volume or snapshot finds, over all layers; nothing where counting it now
/// would take long and nobody has yet.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct DataReply {
    data_bytes: Option<u64>,
    /// When it was counted, in seconds since the Unix epoch; nothing if just now.
    data_as_of: Option<u64>,
}

impl DataReply {
    /// For a table.
    fn short(self) -> String {
        let data = self.data_bytes;
        data.map_or_else(|| "-".to_owned(), size::display)
    }
}

/// An open pool with whoever uses it.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) store: Arc<Store>,
    pub(crate) attachments: Option<Arc<dyn Attachments>>,
    /// The background jobs. Only a daemon has any.
    pub(crate) maintenance: Option<Arc<Maintenance>>,
}

impl Service {
    /// A pool that this process has to itself.
    pub(crate) fn without_clients(store: Arc<Store>) -> Self {
        Self {
            store,
            attachments: None,
            maintenance: None,
        }
    }

    fn clients(&self, volume: &str) -> Vec<String> {
        self.attachments
            .as_ref()
            .map(|a| a.clients(volume))
            .unwrap_or_default()
    }

    fn maintenance(&self) -> Result<&Maintenance> {
        let maintenance = self.maintenance.as_deref();
        maintenance.ok_or_else(|| Error::failed("there are jobs only while 'onefold serve' runs"))
    }

    /// Whether long work should come to its end, because the daemon does.
    fn is_stopping(&self) -> bool {
        let maintenance = self.maintenance.as_ref();
        maintenance.is_some_and(|maintenance| maintenance.is_stopping())
    }

    /// Gives up what was deleted; where there is a daemon, its background job does that.
    fn finish_deletions(&self, report: Report<'_>) -> Result<()> {
        if self.maintenance.is_none() {
            self.store.finish_deletions(&mut self.blocks(report))?;
        }
        Ok(())
    }

    /// Reports blocks, of which each counts as its bytes.
    fn blocks<'a>(&self, report: Report<'a>) -> impl FnMut(u64, u64) + Send + use<'a> {
        let block_size = u64::from(self.store.block_size());
        move |done, all| report(done * block_size, all * block_size)
    }

    /// As [`Service::blocks`], of work that ends early when the daemon does.
    fn blocks_until_stopped<'a>(
        &'a self,
        report: Report<'a>,
    ) -> impl FnMut(u64, u64) -> ControlFlow<()> + Send + 'a {
        let mut report = self.blocks(report);
        move |done, all| {
            report(done, all);
            match self.is_stopping() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        }
    }

    fn waiting_for_space(&self) -> u64 {
        let attachments = self.attachments.as_ref();
        attachments.map_or(0, |attachments| attachments.waiting_for_space())
    }

    fn nbd_uri(&self, volume: &str) -> Option<String> {
        self.attachments.as_ref().and_then(|a| a.nbd_uri(volume))
    }

    /// What a reader of one of `among` volumes and snapshots finds, if that is known or soon counted.
    fn data(&self, name: &str, among: usize) -> DataReply {
        let segments_max = LIST_SEGMENTS_MAX / among.max(1) as u64;
        // Where a map cannot be read, `pool check` says so; the others are listed all the same.
        let data = self.store.data(name, segments_max).ok().flatten();
        DataReply {
            data_bytes: data.map(|data| data.blocks * u64::from(self.store.block_size())),
            data_as_of: data.and_then(|data| data.as_of_unix_seconds),
        }
    }

    /// The same for a plan, however long it takes to count.
    fn data_in_words(&self, name: &str) -> String {
        match self.store.data(name, u64::MAX) {
            Ok(Some(data)) => {
                let bytes = data.blocks * u64::from(self.store.block_size());
                format!("{} of data", size::display(bytes))
            }
            Ok(None) => "data".to_owned(),
            Err(error) => format!("data that cannot be counted ({error})"),
        }
    }

    fn find(&self, name: &str) -> Result<VolumeStat> {
        Ok(self.store.volume_stat(name)?)
    }

    /// Makes sure that nobody uses the volume, now and until the result is dropped: refuses, naming
    /// the clients, or disconnects them.
    fn detach(&self, volume: &str, force: bool, action: &str) -> Result<Option<Hold>> {
        let Some(attachments) = &self.attachments else {
            return Ok(None);
        };
        let hold = attachments.hold(volume);
        let clients = attachments.clients(volume);
        if !clients.is_empty() && !force {
            return Err(Error::failed(format!(
                "cannot {action} volume '{volume}': it is attached to {}; detach it there, \
                 or disconnect with --force",
                clients.join(", ")
            )));
        }
        attachments.disconnect(volume)?;
        Ok(Some(hold))
    }
}

/// The longest name that a volume may have.
const NAME_BYTES_MAX: usize = 63;

/// Names go into file names, URIs and export lists, so only plain characters are allowed, and none
/// that an option or a snapshot (`VOL@SNAP`) could be taken for.
pub(crate) fn check_name(name: &str) -> Result<()> {
    check_plain(name, "a volume's name")
}

/// Domains are named as volumes are.
pub(crate) fn check_domain(domain: &str) -> Result<()> {
    check_plain(domain, "the name of a domain")
}

fn check_plain(name: &str, what: &str) -> Result<()> {
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

/// What the user wants, as a whole number of blocks, and not nothing: `1.3G` and `20GB` are none, and
/// mean at least so much.
fn whole_blocks(size_bytes: u64, block_size: u32, of: &str) -> Result<u64> {
    if size_bytes == 0 {
        return Err(Error::usage(format!("a {of}'s size must not be 0")));
    }
    let rounded = size_bytes.checked_next_multiple_of(u64::from(block_size));
    rounded.ok_or_else(|| Error::usage(format!("{size_bytes} bytes are too many for a {of}")))
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
