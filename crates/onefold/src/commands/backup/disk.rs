//! The disks of a pool, as a backup reads them: snapshots, through the store or through the daemon.

use crate::session::Session;
use onefold_api::{Error, Result, SnapshotList};
use onefold_backup::{BackupError, Change, Disk};
use onefold_nbd::client::{Address, Client};
use onefold_store::{Blocking, Volume};
use std::sync::Arc;

/// The most that is read with one request.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// A snapshot in a pool that this process has open.
struct StoreDisk(Arc<Volume>);

/// A snapshot that a daemon serves.
struct NbdDisk(Client);

/// Opens the snapshot of this name.
pub(super) fn open(session: &Session, name: &str) -> Result<Box<dyn Disk>> {
    if let Session::Direct { service, .. } = session {
        return Ok(Box::new(StoreDisk(service.store.volume(name)?)));
    }
    let volume = name.split_once('@').map(|(volume, _)| volume.to_owned());
    let list = session.call(&SnapshotList { volume }, &mut |_, _| {})?;
    let found = list.snapshots.into_iter().find(|it| it.name == name);
    let uri = found.and_then(|it| it.nbd_uri).ok_or_else(|| {
        Error::failed(format!(
            "the daemon does not serve the snapshot '{name}' over NBD"
        ))
    })?;
    let address: Address = uri.parse().map_err(Error::failed)?;
    let client = Client::connect(&address);
    let client = client.map_err(|e| Error::io(format_args!("cannot attach to {uri}"), &e))?;
    Ok(Box::new(NbdDisk(client)))
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
        self.0.bytes()
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
        for piece in bytes.chunks_mut(REQUEST_BYTES_MAX) {
            self.0.read(piece, at).map_err(source)?;
            at += piece.len() as u64;
        }
        Ok(())
    }
}

fn source(error: impl std::fmt::Display) -> BackupError {
    BackupError::Source(error.to_string())
}
