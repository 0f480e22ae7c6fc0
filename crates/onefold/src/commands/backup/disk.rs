//! The disks of a pool, as a backup reads them: snapshots, through the store or through the daemon.

use crate::daemon::exports::copy_of;
use crate::pool::place::PoolPlace;
use crate::session::Session;
use onefold_api::{DiffContent, DiffPage, Error, NextPage, Result, SnapshotDiff, SnapshotReply};
use onefold_backup::{BackupError, Change, Disk};
use onefold_nbd::client::{Address, Client};
use onefold_store::{Blocking, Volume};
use std::sync::Arc;

/// The most that is read from a daemon with one request. A read that finds its data in memory keeps a processor busy from
/// beginning to end, and a guest may have to wait for it: less is slower, and more delays guests for longer.
const REQUEST_BYTES_MAX: usize = 256 << 10;

/// The same where each read has to be waited for: in a cluster, or without a daemon.
const LONG_REQUEST_BYTES_MAX: usize = 1 << 20;

/// A snapshot of a pool. What it holds, or what changed since another one, the pool's maps say.
pub(super) struct PoolDisk<'a> {
    session: &'a Session,
    name: String,
    /// The snapshot since which changes count. Without one, all data counts.
    since: Option<String>,
    data: Data,
    request_bytes_max: usize,
    size_bytes: u64,
    /// The list of changes comes in pages. This is the one of the last change that was asked for, and its start.
    page: Option<(DiffPage, u64)>,
}

/// Where a snapshot's data is read.
enum Data {
    /// In a pool that this process has open.
    Store(Arc<Volume>),
    /// From a daemon that serves it.
    Daemon(Client),
}

impl<'a> PoolDisk<'a> {
    pub(super) fn open(
        pool: &PoolPlace,
        session: &'a Session,
        snapshot: &SnapshotReply,
    ) -> Result<Self> {
        Ok(Self {
            session,
            name: snapshot.name.clone(),
            since: None,
            data: Data::open(session, snapshot)?,
            request_bytes_max: match (session, pool) {
                (Session::Remote(_), PoolPlace::Directory(_)) => REQUEST_BYTES_MAX,
                _ => LONG_REQUEST_BYTES_MAX,
            },
            size_bytes: snapshot.size_bytes,
            page: None,
        })
    }

    /// Makes only changes since that snapshot count.
    ///
    /// # Errors
    ///
    /// If the pool cannot tell what changed since then; all data counts as before.
    pub(super) fn compare_with(&mut self, since: String) -> Result<()> {
        self.since = Some(since);
        let turned = self.turn_to(None);
        if turned.is_err() {
            self.since = None;
        }
        turned
    }

    fn turn_to(&mut self, page: Option<NextPage>) -> Result<()> {
        let diff = SnapshotDiff {
            since: self.since.clone(),
            name: self.name.clone(),
            page,
        };
        let start = page.map_or(0, |page| page.offset());
        self.page = Some((self.session.call(&diff, &mut |_, _| {})?, start));
        Ok(())
    }
}

impl Data {
    fn open(session: &Session, snapshot: &SnapshotReply) -> Result<Self> {
        let name = &snapshot.name;
        if let Session::Direct { service, .. } = session {
            return Ok(Self::Store(service.store.volume(name)?));
        }
        let uri = snapshot.nbd_uri.as_deref().ok_or_else(|| {
            Error::failed(format!(
                "the daemon does not serve the snapshot '{name}' over NBD"
            ))
        })?;
        let address: Address = uri.parse().map_err(Error::failed)?;
        // So that guests go first.
        let client = Client::connect(&address.with_export(&copy_of(name)));
        let client = client.map_err(|e| Error::io(format_args!("cannot attach to {uri}"), &e));
        Ok(Self::Daemon(client?))
    }

    fn read(&mut self, at: u64, bytes: &mut [u8]) -> onefold_backup::Result<()> {
        match self {
            Self::Store(volume) => volume.read(at, bytes, Blocking::Yes).map_err(source),
            Self::Daemon(client) => client.read(bytes, at).map_err(source),
        }
    }
}

impl Disk for PoolDisk<'_> {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn next_change(&mut self, start: u64) -> onefold_backup::Result<Option<Change>> {
        if self.page.as_ref().is_none_or(|(_, first)| start < *first) {
            self.turn_to(None).map_err(source)?;
        }
        while let Some((page, _)) = &self.page {
            let extents = &page.extents;
            let before = extents.partition_point(|extent| extent.offset + extent.length <= start);
            if let Some(extent) = extents.get(before) {
                return Ok(Some(Change {
                    range: extent.offset..extent.offset + extent.length,
                    has_data: extent.content == DiffContent::Data,
                }));
            }
            let Some(next) = page.next else {
                break;
            };
            self.turn_to(Some(next)).map_err(source)?;
        }
        Ok(None)
    }

    fn piece_bytes(&self) -> usize {
        self.request_bytes_max
    }

    fn read(&mut self, at: u64, bytes: &mut [u8]) -> onefold_backup::Result<()> {
        let pieces = bytes.chunks_mut(self.request_bytes_max);
        let mut pieces = pieces.zip((at..).step_by(self.request_bytes_max));
        pieces.try_for_each(|(piece, at)| self.data.read(at, piece))
    }
}

fn source(error: impl std::fmt::Display) -> BackupError {
    BackupError::Source(error.to_string())
}
