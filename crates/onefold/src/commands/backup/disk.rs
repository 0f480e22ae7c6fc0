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

/// The same where the pool is in a cluster, which has to be waited for each time.
const CLUSTER_REQUEST_BYTES_MAX: usize = 1 << 20;

/// A snapshot in a pool that this process has open.
struct StoreDisk(Arc<Volume>);

/// A snapshot that a daemon serves.
struct NbdDisk {
    client: Client,
    request_bytes_max: usize,
}

/// Opens a snapshot of a pool.
pub(super) fn open(
    pool: &PoolPlace,
    session: &Session,
    snapshot: &SnapshotReply,
) -> Result<Box<dyn Disk>> {
    let name = &snapshot.name;
    if let Session::Direct { service, .. } = session {
        return Ok(Box::new(StoreDisk(service.store.volume(name)?)));
    }
    let uri = snapshot.nbd_uri.as_deref().ok_or_else(|| {
        Error::failed(format!(
            "the daemon does not serve the snapshot '{name}' over NBD"
        ))
    })?;
    let address: Address = uri.parse().map_err(Error::failed)?;
    // So that guests go first.
    let client = Client::connect(&address.with_export(&copy_of(name)));
    let client = client.map_err(|e| Error::io(format_args!("cannot attach to {uri}"), &e))?;
    Ok(Box::new(NbdDisk {
        client,
        request_bytes_max: match pool {
            PoolPlace::Directory(_) => REQUEST_BYTES_MAX,
            PoolPlace::Ceph(_) => CLUSTER_REQUEST_BYTES_MAX,
        },
    }))
}

/// A snapshot of which only the changes since another one count.
pub(super) struct SinceDisk<'a> {
    session: &'a Session,
    disk: Box<dyn Disk + 'a>,
    since: String,
    name: String,
    /// The list of changes comes in pages. This is the one of the last change that was asked for.
    page: DiffPage,
    page_start: u64,
}

impl<'a> SinceDisk<'a> {
    /// `disk` is the snapshot `name`. Fails if the pool cannot tell what changed since `since`.
    pub(super) fn new(
        session: &'a Session,
        disk: Box<dyn Disk + 'a>,
        since: String,
        name: String,
    ) -> std::result::Result<Self, (Box<dyn Disk + 'a>, Error)> {
        let first = changes(session, &since, &name, None);
        match first {
            Err(error) => Err((disk, error)),
            Ok(page) => Ok(Self {
                session,
                disk,
                since,
                name,
                page,
                page_start: 0,
            }),
        }
    }

    fn turn_to(&mut self, page: Option<NextPage>) -> onefold_backup::Result<()> {
        self.page = changes(self.session, &self.since, &self.name, page).map_err(source)?;
        self.page_start = page.map_or(0, |page| page.offset());
        Ok(())
    }
}

fn changes(session: &Session, since: &str, name: &str, page: Option<NextPage>) -> Result<DiffPage> {
    let diff = SnapshotDiff {
        since: since.to_owned(),
        name: name.to_owned(),
        page,
    };
    session.call(&diff, &mut |_, _| {})
}

impl Disk for SinceDisk<'_> {
    fn size_bytes(&self) -> u64 {
        self.disk.size_bytes()
    }

    fn next_change(&mut self, start: u64) -> onefold_backup::Result<Option<Change>> {
        if start < self.page_start {
            self.turn_to(None)?;
        }
        loop {
            let extents = &self.page.extents;
            let before = extents.partition_point(|extent| extent.offset + extent.length <= start);
            if let Some(extent) = extents.get(before) {
                return Ok(Some(Change {
                    range: extent.offset..extent.offset + extent.length,
                    has_data: extent.content == DiffContent::Data,
                }));
            }
            let Some(next) = self.page.next else {
                return Ok(None);
            };
            self.turn_to(Some(next))?;
        }
    }

    fn piece_bytes(&self) -> usize {
        self.disk.piece_bytes()
    }

    fn read(&mut self, at: u64, bytes: &mut [u8]) -> onefold_backup::Result<()> {
        self.disk.read(at, bytes)
    }
}

impl Disk for StoreDisk {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn next_change(&mut self, start: u64) -> onefold_backup::Result<Option<Change>> {
        let size = self.size_bytes();
        let mut at = start;
        while at < size {
            let extents = self.0.extents(at..size, 1, Blocking::Yes).map_err(source)?;
            let Some(extent) = extents.first().filter(|extent| extent.len > 0) else {
                return Ok(None);
            };
            let end = (at + extent.len).min(size);
            if extent.data {
                return Ok(Some(Change {
                    range: at..end,
                    has_data: true,
                }));
            }
            at = end;
        }
        Ok(None)
    }

    fn read(&mut self, at: u64, bytes: &mut [u8]) -> onefold_backup::Result<()> {
        self.0.read(at, bytes, Blocking::Yes).map_err(source)
    }
}

impl Disk for NbdDisk {
    fn size_bytes(&self) -> u64 {
        self.client.bytes()
    }

    fn piece_bytes(&self) -> usize {
        self.request_bytes_max
    }

    fn next_change(&mut self, start: u64) -> onefold_backup::Result<Option<Change>> {
        let size = self.size_bytes();
        Ok((start < size).then_some(Change {
            range: start..size,
            has_data: true,
        }))
    }

    fn read(&mut self, at: u64, bytes: &mut [u8]) -> onefold_backup::Result<()> {
        let mut at = at;
        for piece in bytes.chunks_mut(self.request_bytes_max) {
            self.client.read(piece, at).map_err(source)?;
            at += piece.len() as u64;
        }
        Ok(())
    }
}

fn source(error: impl std::fmt::Display) -> BackupError {
    BackupError::Source(error.to_string())
}
