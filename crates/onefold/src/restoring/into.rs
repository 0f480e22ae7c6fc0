//! Restores into an existing volume of a pool, through the store or through the daemon.

use crate::context::Context;
use crate::session::Session;
use onefold_api::backup::{RestoreTarget, RestoredBytes};
use onefold_api::{
    DiffContent, DiffExtent, Error, ErrorKind, NextPage, PoolStat, ProblemReason, Result,
    SnapshotDiff, VolumeReply, VolumeStat,
};
use onefold_backup::{DiskToOverwrite, RestoredBackup, Supervision};
use onefold_nbd::client::{Address, Client};
use onefold_store::{Blocking, SECTOR_BYTES, Volume, split_name};
use std::collections::VecDeque;
use std::sync::Arc;

/// A volume whose content is replaced.
pub(super) struct VolumeToOverwrite<'a> {
    pub(super) context: &'a Context,
    pub(super) name: &'a str,
    /// Whether it may be overwritten.
    pub(super) yes: bool,
}

impl RestoreTarget for VolumeToOverwrite<'_> {
    fn prepare(&self, backup: &RestoredBackup) -> Result<()> {
        if self.yes {
            return Ok(());
        }
        let (volume, size_bytes) = (self.name, backup.size_bytes());
        self.context
            .with_session(|session| check_target(session, volume, size_bytes))?;
        let name = backup.name();
        Err(Error::usage(format!(
            "this makes volume '{volume}' what {name} is, and its other data is lost unless a snapshot \
             has it; nothing was changed, --yes goes on"
        )))
    }

    fn write(&self, backup: &RestoredBackup, supervision: &Supervision) -> Result<RestoredBytes> {
        let written_bytes = self.context.with_session(|session| {
            let mut disk = PoolVolume::open(session, self.name, backup.size_bytes())?;
            backup.overwrite(&mut disk, supervision)
        })?;
        Ok(RestoredBytes {
            written_bytes,
            pack_reads: None,
        })
    }
}

/// A volume that is open for writing.
struct PoolVolume<'a> {
    size_bytes: u64,
    extents: Extents<'a>,
    access: Access,
}

/// The way to a volume's data.
enum Access {
    Store(Arc<Volume>),
    Nbd(Client),
}

/// Finds the data of the volume, so that a large disk with little data is not read completely.
struct Extents<'a> {
    session: &'a Session,
    name: &'a str,
    /// The remaining extents of a page.
    extents: VecDeque<DiffExtent>,
    /// Where the next page begins; `Some(None)` for the first page.
    page: Option<Option<NextPage>>,
}

impl<'a> PoolVolume<'a> {
    fn open(session: &'a Session, name: &'a str, backup_bytes: u64) -> Result<Self> {
        let volume = check_target(session, name, backup_bytes)?;
        Ok(Self {
            // An image can end inside a sector, but a volume cannot: the rest of the sector is filled with zeros.
            size_bytes: volume.stat.size_bytes,
            extents: Extents {
                session,
                name,
                extents: VecDeque::new(),
                page: Some(None),
            },
            access: Access::open(session, name, &volume)?,
        })
    }
}

impl DiskToOverwrite for PoolVolume<'_> {
    type Error = Error;

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn next_data(&mut self, at: u64) -> Result<u64> {
        self.extents.next(at)
    }

    fn read(&mut self, at: u64, bytes: &mut [u8]) -> Result<()> {
        match &mut self.access {
            Access::Store(volume) => Ok(volume.read(at, bytes, Blocking::Yes)?),
            Access::Nbd(client) => client.read(bytes, at).map_err(|e| failed("read", at, &e)),
        }
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        match &mut self.access {
            Access::Store(volume) => Ok(volume.write(at, bytes, Blocking::Yes)?),
            Access::Nbd(client) => client
                .write(0, bytes, at)
                .map_err(|e| failed("write", at, &e)),
        }
    }

    fn flush(&mut self) -> Result<()> {
        match &mut self.access {
            Access::Store(volume) => Ok(volume.flush()?),
            Access::Nbd(client) => client.flush().map_err(|e| failed("flush", 0, &e)),
        }
    }
}

impl Access {
    fn open(session: &Session, name: &str, stat: &VolumeReply) -> Result<Self> {
        if let Session::Direct { service, .. } = session {
            return Ok(Self::Store(service.store_of(name)?.volume(name)?));
        }
        let uri = stat.nbd_uri.as_ref().ok_or_else(|| {
            Error::failed(format!(
                "the daemon does not serve the volume '{name}' over NBD"
            ))
        })?;
        let address: Address = uri.parse().map_err(Error::failed)?;
        let client = Client::connect(&address);
        let client = client.map_err(|e| Error::io(format_args!("cannot attach to {uri}"), &e))?;
        Ok(Self::Nbd(client))
    }
}

impl Extents<'_> {
    /// The next byte with data at or after `at`, or the largest number if there is none. `at` must not
    /// decrease between calls.
    fn next(&mut self, at: u64) -> Result<u64> {
        loop {
            while let Some(extent) = self.extents.front() {
                if extent.offset + extent.length > at {
                    return Ok(extent.offset.max(at));
                }
                self.extents.pop_front();
            }
            let Some(page) = self.page else {
                return Ok(u64::MAX);
            };
            let request = SnapshotDiff {
                since: None,
                name: self.name.to_owned(),
                page,
            };
            let reply = self.session.call(&request, &mut |_, _| {})?;
            let data = reply.extents.into_iter();
            self.extents
                .extend(data.filter(|extent| extent.content == DiffContent::Data));
            self.page = reply.next.map(Some);
        }
    }
}

/// Refuses a volume that cannot take a backup of this size. Changes nothing.
fn check_target(session: &Session, name: &str, size_bytes: u64) -> Result<VolumeReply> {
    let stat = VolumeStat {
        name: name.to_owned(),
        exact: false,
    };
    let volume = session.call(&stat, &mut |_, _| {})?;
    if split_name(name).1.is_some() {
        return Err(Error::usage(format!(
            "'{name}' is a snapshot, which stays as it is; restore into a volume"
        )));
    }
    if volume.stat.size_bytes != size_bytes.next_multiple_of(SECTOR_BYTES) {
        return Err(Error::usage(format!(
            "'{name}' has {} bytes, and the backup {size_bytes}; 'onefold volume resize' changes that",
            volume.stat.size_bytes
        )));
    }
    if !volume.clients.is_empty() {
        return Err(Error::new(
            ErrorKind::InUse,
            format!("'{name}' is attached by {}", volume.clients.join(", ")),
        ));
    }
    let problems = session.call(&PoolStat {}, &mut |_, _| {})?.problems;
    let read_only = problems
        .into_iter()
        .find(|problem| problem.reason == ProblemReason::ReadOnly);
    match read_only {
        Some(problem) => Err(Error::new(ErrorKind::ReadOnly, problem.message)),
        None => Ok(volume),
    }
}

fn failed(verb: &str, at: u64, error: &std::io::Error) -> Error {
    Error::io(format_args!("cannot {verb} the volume at byte {at}"), error)
}
