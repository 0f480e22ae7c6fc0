//! A pool's run directory on this host: memory that outlives the process, and the sessions of the owners that wrote it.
//!
//! The memory is valid while no other owner has had the estate since. So a file next to it lists the sessions that may
//! have written it. It lists the previous session until the head has the new one, because a process may die in between.
//! A shared pool has both files for each of its groups and shards that this host has owned.

use super::names::Estate;
use crate::failure::explain;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A run directory, and the sessions of one estate that earlier processes left in it.
#[derive(Debug)]
pub(super) struct RunDirectory {
    /// The file with the sessions.
    file: PathBuf,
    tail: PathBuf,
    sessions: Vec<String>,
}

/// The file of the memory that outlives the process.
pub(super) fn tail(directory: &Path, estate: Estate) -> PathBuf {
    directory.join(format!("tail{}", estate.file_suffix()))
}

fn sessions(directory: &Path, estate: Estate) -> PathBuf {
    directory.join(format!("session{}", estate.file_suffix()))
}

/// Removes the files of an estate that no longer exists. If this fails, they only take space.
pub(super) fn forget(directory: &Path, estate: Estate) {
    for file in [tail(directory, estate), sessions(directory, estate)] {
        let _ = fs::remove_file(file);
    }
}

impl RunDirectory {
    /// Opens the directory. The caller holds its lock.
    pub(super) fn open(path: &Path, estate: Estate) -> io::Result<RunDirectory> {
        let file = sessions(path, estate);
        let sessions = match fs::read_to_string(&file) {
            Ok(text) => text.lines().map(str::to_owned).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(explain(format!("reading {}", file.display()), error)),
        };
        Ok(RunDirectory {
            file,
            tail: tail(path, estate),
            sessions,
        })
    }

    /// Whether the owner with this session was a process of this directory. It is dead, because this process has its
    /// lock.
    pub(super) fn is_of_the_dead(&self, session: &str) -> bool {
        self.sessions.iter().any(|known| known == session)
    }

    /// Prepares for the owner after `before`. Discards the memory if other owners have had the estate since.
    pub(super) fn begin(&mut self, before: &str, session: &str) -> io::Result<()> {
        if !self.is_of_the_dead(before) {
            let tail = &self.tail;
            match fs::remove_file(tail) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(explain(format!("removing {}", tail.display()), error));
                }
                _ => {}
            }
        }
        self.write(&[before, session])
    }

    /// Lists only the new owner's session, because the head has it.
    pub(super) fn has_begun(&mut self, session: &str) -> io::Result<()> {
        self.write(&[session])
    }

    fn write(&mut self, sessions: &[&str]) -> io::Result<()> {
        self.sessions = sessions
            .iter()
            .map(|session| (*session).to_owned())
            .collect();
        let (file, mut new) = (&self.file, self.file.clone().into_os_string());
        new.push(".new");
        let written = fs::write(&new, sessions.join("\n")).and_then(|()| fs::rename(&new, file));
        written.map_err(|error| explain(format!("writing {}", file.display()), error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_is_kept_while_nobody_else_has_owned_the_pool() {
        let directory = tempfile::tempdir().unwrap();
        let tail = tail(directory.path(), Estate::Pool);
        let open = || RunDirectory::open(directory.path(), Estate::Pool).unwrap();
        let mut run = open();
        fs::write(&tail, "of an unknown owner").unwrap();
        run.begin("", "a").unwrap();
        assert!(!tail.exists());
        run.has_begun("a").unwrap();
        fs::write(&tail, "of a").unwrap();
        // Each process dies before the head has its session.
        for session in ["b", "c"] {
            let mut run = open();
            assert!(run.is_of_the_dead("a"));
            run.begin("a", session).unwrap();
            assert!(tail.exists(), "{session}");
        }
        let mut run = open();
        assert!(run.is_of_the_dead("c"));
        run.begin("another's", "d").unwrap();
        assert!(!tail.exists());
        run.has_begun("d").unwrap();
        assert!(!open().is_of_the_dead("a"));
    }
}
