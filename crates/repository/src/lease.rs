//! A lease: a folder of its holder with a heartbeat, in the folder of all leases of a source or a backup.
//!
//! It is taken and released by renaming folders; `leases.rs` and `reader.rs` say when.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use onefold_format::backup::{Lease, ObjectName, SourceId};
use rustix::fs::FileType;

use crate::disk::{Entry, Root, joined};
use crate::error::{RepositoryError, Result};
use crate::host::{host_name, now_unix_seconds};
use crate::layout::{RETIRED, hexadecimal, is_of_lease};
use crate::objects::Objects;
use crate::process::this_process;

/// The heartbeat interval.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);

/// The file with the heartbeat.
pub(crate) const HEARTBEAT: &str = "sign";

/// The prefix of staging folders, whose leases are not taken yet.
pub(crate) const STAGING: &str = ".coming-";

/// A lease with a heartbeat. Dropping it releases the lease.
pub(crate) struct HeldLease {
    root: Root,
    /// The folder that the holder's folder is in.
    leases: String,
    token: u64,
    /// The path of the holder's folder once the lease is released.
    retired: String,
    /// Whether the retired folder stays, because the next holder has to close the number of its backup.
    has_remains: AtomicBool,
    /// The heartbeat thread ends when this is dropped.
    stop: Option<Sender<()>>,
    beat: Option<JoinHandle<()>>,
}

impl HeldLease {
    pub(crate) fn new(root: &Root, leases: String, token: u64, retired: String) -> HeldLease {
        let sign = format!("{leases}/{}/{HEARTBEAT}", folder_name(token));
        let beating = root.clone();
        let (stop, stopped) = channel();
        let beat = thread::spawn(move || {
            let mut count = token;
            while stopped.recv_timeout(HEARTBEAT_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                count = count.wrapping_add(1);
                // A holder that has lost its lease notices when it next uses it.
                let _ = beating.overwrite(&sign, &count.to_le_bytes());
            }
        });
        HeldLease {
            root: root.clone(),
            leases,
            token,
            retired,
            has_remains: AtomicBool::new(false),
            stop: Some(stop),
            beat: Some(beat),
        }
    }
}

impl HeldLease {
    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    /// The retired folder stays when the lease is dropped.
    pub(crate) fn keep_remains(&self) {
        self.has_remains.store(true, Ordering::Relaxed);
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(beat) = self.beat.take() {
            let _ = beat.join();
        }
        if self.has_remains.load(Ordering::Relaxed) {
            put_aside(&self.root, &self.leases, self.token, &self.retired);
        } else {
            give_back(&self.root, &self.leases, self.token, &self.retired);
        }
    }
}

/// The content of a lease of this process.
pub(crate) fn this_lease(doing: &str) -> Result<Lease> {
    Ok(Lease {
        holder: this_process().map_err(|e| not_taken(&e))?,
        since_unix_seconds: now_unix_seconds(),
        host: host_name(),
        doing: doing.to_owned(),
    })
}

pub(crate) fn folder_name(token: u64) -> String {
    format!("{token:016x}")
}

/// The number of the holder of a source's lease, if it is held.
pub(crate) fn holder_of(root: &Root, source: SourceId) -> Option<u64> {
    let mut entries = root.list(&ObjectName::writer(source)).ok()?.into_iter();
    entries.find_map(|entry| hexadecimal(&entry.name).filter(|_| is_holder(&entry)))
}

/// The path of a folder next to the folder of a source's leases.
pub(crate) fn lease_folder(source: SourceId, kind: &str, token: u64) -> String {
    format!("sources/{source}/{kind}{token:016x}")
}

/// The retired folders of a source's leases, with the numbers of their holders.
pub(crate) fn remains(objects: &Objects, source: SourceId) -> Result<Vec<(String, u64)>> {
    let folder = format!("sources/{source}");
    let names = objects.folder().folders_with(&folder, RETIRED);
    let names = names.map_err(|e| RepositoryError::io(format_args!("cannot list {folder}"), &e))?;
    let retired = names.iter().filter_map(|name| {
        let token = hexadecimal(name.strip_prefix(RETIRED)?)?;
        Some((format!("{folder}/{name}"), token))
    });
    Ok(retired.collect())
}

/// Whether an entry has the name of a holder's folder.
pub(crate) fn is_holder(entry: &Entry) -> bool {
    entry.kind == FileType::Directory && hexadecimal(&entry.name).is_some()
}

/// Releases a lease. Fails only if the holder has lost it already.
pub(crate) fn give_back(root: &Root, leases: &str, token: u64, retired: &str) {
    if root
        .rename(&joined(leases, &folder_name(token)), retired)
        .is_ok()
    {
        let _ = remove_lease(root, retired);
    }
}

/// Ends the lease of a dead holder. If it was making a backup, the folder stays for the next holder.
pub(crate) fn put_aside(root: &Root, leases: &str, token: u64, retired: &str) {
    let moved = root.rename(&joined(leases, &folder_name(token)), retired);
    if moved.is_ok() && !has_remains(root, retired) {
        let _ = remove_lease(root, retired);
    }
}

/// Whether the retired folder of a lease records a backup that was being made.
pub(crate) fn has_remains(root: &Root, retired: &str) -> bool {
    let under_way = root.kind(&joined(retired, ObjectName::UNDER_WAY));
    under_way.is_ok_and(|kind| kind == Some(FileType::RegularFile))
}

/// Removes a retired or staging folder of a lease. Fails if it has foreign files.
pub(crate) fn remove_lease(root: &Root, path: &str) -> io::Result<()> {
    let folders = lease_folders(root, path)?;
    let files = files_of_lease(root, &folders)?;
    files.iter().try_for_each(|file| root.remove_file(file))?;
    let mut folders = folders.iter().rev();
    folders.try_for_each(|folder| root.remove_empty_folder(folder))
}

/// The folder of a lease and, in a staging folder, the holder's folder in it.
pub(crate) fn lease_folders(root: &Root, path: &str) -> io::Result<Vec<String>> {
    let entries = root.list(path)?;
    let holder = entries.iter().find(|entry| is_holder(entry));
    let holder = holder.map(|entry| joined(path, &entry.name));
    Ok(std::iter::once(path.to_owned()).chain(holder).collect())
}

/// The files in the folders of a lease; fails if there are any others.
pub(crate) fn files_of_lease(root: &Root, folders: &[String]) -> io::Result<Vec<String>> {
    let mut files = Vec::new();
    for folder in folders {
        for entry in root.list(folder)? {
            let path = joined(folder, &entry.name);
            if entry.kind == FileType::RegularFile && is_of_lease(&entry.name) {
                files.push(path);
            } else if !folders.contains(&path) {
                let message = format!("{path} is not of onefold, and stays");
                return Err(io::Error::other(message));
            }
        }
    }
    Ok(files)
}

pub(crate) fn not_taken(error: &io::Error) -> RepositoryError {
    RepositoryError::io("cannot take the lease of the source", error)
}
