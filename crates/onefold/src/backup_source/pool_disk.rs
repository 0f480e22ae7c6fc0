//! Reads disks of a pool for a backup: snapshots, through the store or through the daemon.

use super::link::Link;
use crate::pool::place::PoolPlace;
use crate::session::Session;
use onefold_api::{
    DiffContent, DiffPage, Error, ErrorKind, NextPage, Result, SnapshotDiff, SnapshotList,
    SnapshotReply,
};
use onefold_backup::{BackupError, Change, Disk, HostSnapshot, SnapshotDisk};
use onefold_format::VolumeId;
use onefold_nbd::CopyExport;
use onefold_nbd::client::{Address, Client};
use onefold_store::{Blocking, Volume};
use rustix::io::Errno;
use std::io;
use std::sync::Arc;

/// The largest read from a daemon. A read from the page cache keeps a processor busy from start to end, and a
/// guest may have to wait for it: smaller reads are slower, larger reads delay guests for longer.
const REQUEST_BYTES_MAX: usize = 256 << 10;

/// The largest read where each read has to wait for I/O: in a cluster, or without a daemon.
const LONG_REQUEST_BYTES_MAX: usize = 1 << 20;

/// A snapshot of a pool. The pool's maps provide its extents, or the changes since another snapshot.
pub(super) struct PoolDisk<'a> {
    link: Link<'a>,
    name: String,
    /// The snapshot since which changes count; if `None`, all data counts.
    since: Option<String>,
    data: Data,
    request_bytes_max: usize,
    size_bytes: u64,
    /// The page of the list of changes that contains the last requested change, and the page's start.
    page: Option<(DiffPage, u64)>,
}

/// The way to a snapshot's data.
enum Data {
    /// The pool is open in this process.
    Store(Arc<Volume>),
    /// A daemon serves the snapshot.
    Daemon {
        /// `None` from the loss of the daemon until it serves the snapshot again.
        client: Option<Client>,
        snapshot: Box<HostSnapshot>,
    },
}

impl<'a> PoolDisk<'a> {
    pub(super) fn open(pool: &PoolPlace, link: Link<'a>, snapshot: &HostSnapshot) -> Result<Self> {
        Ok(Self {
            link,
            name: snapshot.full_name.clone(),
            since: None,
            data: Data::open(link.session, snapshot)?,
            request_bytes_max: match (link.session, pool) {
                (Session::Remote(_), PoolPlace::Directory(_)) => REQUEST_BYTES_MAX,
                _ => LONG_REQUEST_BYTES_MAX,
            },
            size_bytes: snapshot.size_bytes,
            page: None,
        })
    }

    fn turn_to(&mut self, page: Option<NextPage>) -> Result<()> {
        let diff = SnapshotDiff {
            since: self.since.clone(),
            name: self.name.clone(),
            page,
        };
        let start = page.map_or(0, |page| page.offset());
        self.page = Some((self.link.call(&diff)?, start));
        Ok(())
    }
}

impl Data {
    fn open(session: &Session, snapshot: &HostSnapshot) -> Result<Self> {
        let name = &snapshot.full_name;
        if let Session::Direct { service, .. } = session {
            return Ok(Self::Store(service.store_of(name)?.volume(name)?));
        }
        Ok(Self::Daemon {
            client: Some(attach(snapshot)?),
            snapshot: Box::new(snapshot.clone()),
        })
    }

    fn read(&mut self, link: Link<'_>, at: u64, bytes: &mut [u8]) -> Result<()> {
        let (client, snapshot) = match self {
            Self::Store(volume) => return Ok(volume.read(at, bytes, Blocking::Yes)?),
            Self::Daemon { client, snapshot } => (client, snapshot),
        };
        link.outlast(|| {
            let attached = match client.take() {
                Some(attached) => attached,
                None => attach_again(link.session, snapshot)?,
            };
            let attached = client.insert(attached);
            let read = attached.read(bytes, at);
            read.map_err(|error| {
                let what = format!("cannot read '{}' from the daemon", snapshot.full_name);
                if is_gone(&error) {
                    *client = None;
                    Error::new(ErrorKind::Lost, format!("{what}: {error}"))
                } else {
                    Error::io(what, &error)
                }
            })
        })
    }
}

fn attach(snapshot: &HostSnapshot) -> Result<Client> {
    let name = &snapshot.full_name;
    let uri = snapshot.address.as_deref().ok_or_else(|| {
        Error::failed(format!(
            "the daemon does not serve the snapshot '{name}' over NBD"
        ))
    })?;
    let address: Address = uri.parse().map_err(Error::failed)?;
    let copy =
        CopyExport::of(name).ok_or_else(|| Error::failed(format!("'{name}' is not a snapshot")))?;
    // Through the export for copies, so that guests go first.
    let client = Client::connect(&address.with_export(&copy.to_string()));
    client.map_err(|e| Error::io(format_args!("cannot attach to {uri}"), &e))
}

/// Attaches again after the daemon was lost. The snapshot must be the same one, because the daemon may now
/// serve another pool.
fn attach_again(session: &Session, snapshot: &HostSnapshot) -> Result<Client> {
    let list = SnapshotList { volume: None };
    let list = session.call(&list, &mut |_, _| {})?.snapshots;
    let is_same = |other: &&SnapshotReply| {
        let moment = other.stat.created_unix_seconds == snapshot.created_unix_seconds;
        VolumeId(other.stat.number) == snapshot.snapshot
            && other.stat.name == snapshot.full_name
            && moment
    };
    let found = list.iter().find(is_same).ok_or_else(|| {
        let message = format!("the snapshot '{}' is gone", snapshot.full_name);
        Error::new(ErrorKind::NotFound, message)
    })?;
    // The daemon may not be listening yet.
    let served = HostSnapshot {
        address: found.nbd_uri.clone(),
        ..snapshot.clone()
    };
    attach(&served).map_err(|error| Error::new(ErrorKind::Lost, error.message))
}

/// Whether the daemon has gone away or is about to.
fn is_gone(error: &io::Error) -> bool {
    let is_ending = Errno::from_io_error(error) == Some(Errno::SHUTDOWN);
    let kinds = [
        io::ErrorKind::UnexpectedEof,
        io::ErrorKind::BrokenPipe,
        io::ErrorKind::ConnectionReset,
        io::ErrorKind::ConnectionAborted,
    ];
    is_ending || kinds.contains(&error.kind())
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
        let link = self.link;
        pieces.try_for_each(|(piece, at)| self.data.read(link, at, piece).map_err(source))
    }
}

impl SnapshotDisk for PoolDisk<'_> {
    fn compare_with(&mut self, since: &HostSnapshot) -> onefold_backup::Result<()> {
        self.since = Some(since.full_name.clone());
        let turned = self.turn_to(None);
        if turned.is_err() {
            self.since = None;
        }
        turned.map_err(BackupError::of_host)
    }
}

fn source(error: impl std::fmt::Display) -> BackupError {
    BackupError::Source(error.to_string())
}
