//! A pool's run directory on this host: memory that outlives the process, and the sessions of the owners that wrote it.
//!
//! The memory is valid while no other owner has had the pool since. So a file next to it lists the sessions that may
//! have written it. It lists the previous session until the head has the new one, because a process may die in between.

use crate::failure::explain;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The file of the memory that outlives the process.
pub(super) const TAIL: &str = "tail";

const SESSIONS: &str = "session";

/// A run directory, and the sessions that earlier processes left in it.
#[derive(Debug)]
pub(super) struct RunDirectory {
    path: PathBuf,
    sessions: Vec<String>,
}

impl RunDirectory {
    /// Opens the directory. The caller holds its lock.
    pub(super) fn open(path: &Path) -> io::Result<RunDirectory> {
        let file = path.join(SESSIONS);
        let sessions = match fs::read_to_string(&file) {
            Ok(text) => text.lines().map(str::to_owned).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(explain(format!("reading {}", file.display()), error)),
        };
        Ok(RunDirectory {
            path: path.to_path_buf(),
            sessions,
        })
    }

    /// Whether the owner with this session was a process of this directory. It is dead, because this process has its
    /// lock.
    pub(super) fn is_of_the_dead(&self, session: &str) -> bool {
        self.sessions.iter().any(|known| known == session)
    }

    /// Prepares for the owner after `before`. Discards the memory if other owners have had the pool since.
    pub(super) fn begin(&mut self, before: &str, session: &str) -> io::Result<()> {
        if !self.is_of_the_dead(before) {
            let tail = self.path.join(TAIL);
            match fs::remove_file(&tail) {
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
        let (file, new) = (self.path.join(SESSIONS), self.path.join("session.new"));
        let written = fs::write(&new, sessions.join("\n")).and_then(|()| fs::rename(&new, &file));
        written.map_err(|error| explain(format!("writing {}", file.display()), error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_is_kept_while_nobody_else_has_owned_the_pool() {
        let directory = tempfile::tempdir().unwrap();
        let tail = directory.path().join(TAIL);
        let open = || RunDirectory::open(directory.path()).unwrap();
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
