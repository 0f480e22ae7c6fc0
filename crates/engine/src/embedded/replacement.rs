//! Replaces parts of a pool by rebuilt ones.
//!
//! The new parts are made in a directory of their own inside the pool's, so that the pool does not change until they
//! are complete. Then the existing metadata is renamed before anything else, and the new metadata comes last: a stop
//! between the two leaves a directory without that part, which is not taken for a pool, and the replacement can be
//! started again.

use super::{CacheMode, EmbeddedEngine, sync_parent};
use crate::Part;
use crate::failure::explain;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The name of the directory in which new parts are made.
const NEW_PARTS: &str = "new-parts";

/// New parts that are going to replace a pool's.
#[derive(Debug)]
pub struct Replacement {
    pool: PathBuf,
    new_parts: PathBuf,
}

impl Replacement {
    /// Begins in the pool's directory, whose lock the caller holds. Removes remains of an earlier attempt.
    pub fn begin(pool: &Path) -> io::Result<Replacement> {
        let new_parts = pool.join(NEW_PARTS);
        let doing = |what: &str, cause| explain(format!("{what} {}", new_parts.display()), cause);
        match fs::remove_dir_all(&new_parts) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(doing("removing", error));
            }
            _ => {}
        }
        let made = DirBuilder::new().mode(0o700).create(&new_parts);
        made.map_err(|cause| doing("creating", cause))?;
        let pool = pool.to_path_buf();
        Ok(Replacement { pool, new_parts })
    }

    /// The engine that makes the new parts.
    pub fn engine(&self) -> EmbeddedEngine {
        EmbeddedEngine::new(&self.new_parts, CacheMode::Host)
    }

    /// Puts the new parts into their places. The parts in `old` are renamed with `suffix`. After an error, or a crash,
    /// there is no metadata part, or everything is done.
    pub fn finish(self, old: &[Part], suffix: &str) -> io::Result<()> {
        for (from, to) in self.steps(old, suffix) {
            let doing = || format!("renaming {} to {}", from.display(), to.display());
            fs::rename(&from, &to).map_err(|cause| explain(doing(), cause))?;
            // After a power loss the renames appear in this order, too.
            sync_parent(&to)?;
        }
        // Empty by now, and harmless.
        let _ = fs::remove_dir(&self.new_parts);
        Ok(())
    }

    /// Each name that changes, in order.
    fn steps(&self, old: &[Part], suffix: &str) -> Vec<(PathBuf, PathBuf)> {
        let is_there = |path: &PathBuf| path.symlink_metadata().is_ok();
        let others = Part::ALL.into_iter().filter(|part| *part != Part::Meta);
        let meta_first = [Part::Meta].into_iter().chain(others.clone());
        let aside = meta_first.filter(|part| old.contains(part)).map(|part| {
            let name = part.name();
            (
                self.pool.join(name),
                self.pool.join(format!("{name}{suffix}")),
            )
        });
        let into_place = others.chain([Part::Meta]).map(|part| {
            let name = part.name();
            (self.new_parts.join(name), self.pool.join(name))
        });
        aside
            .chain(into_place)
            .filter(|(from, _)| is_there(from))
            .collect()
    }
}

impl EmbeddedEngine {
    /// Sets the path of the data part.
    #[must_use]
    pub fn with_data(mut self, data: &Path) -> EmbeddedEngine {
        self.data = Some(data.to_path_buf());
        self
    }

    /// Makes `target`, which exists, the data part.
    pub fn link_data(&self, target: &Path) -> io::Result<()> {
        // Links in the path are kept, as in a new pool.
        let target = std::path::absolute(target)
            .map_err(|cause| explain(format!("resolving {}", target.display()), cause))?;
        let link = self.directory.join(Part::Data.name());
        std::os::unix::fs::symlink(&target, &link)
            .map_err(|cause| explain(format!("creating the link {}", link.display()), cause))?;
        sync_parent(&link)
    }

    /// The parts that exist, in whatever state.
    pub fn parts(&self) -> Vec<Part> {
        let is_there = |part: &Part| self.path(*part).symlink_metadata().is_ok();
        Part::ALL.into_iter().filter(is_there).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    const OLD: [Part; 5] = [
        Part::Superblock,
        Part::Meta,
        Part::Log,
        Part::Index,
        Part::Secret,
    ];

    fn write(directory: &Path, parts: &[Part], content: &str) {
        for part in parts {
            fs::write(directory.join(part.name()), content).unwrap();
        }
    }

    fn read(directory: &Path, part: Part) -> Option<String> {
        fs::read_to_string(directory.join(part.name())).ok()
    }

    #[test]
    fn metadata_goes_first_and_comes_last() {
        let new = [Part::Superblock, Part::Meta, Part::Index, Part::Secret];
        for stop in 0.. {
            let directory = TempDir::new().unwrap();
            let pool = directory.path();
            write(pool, &OLD, "old");
            write(pool, &[Part::Data], "data");
            let replacement = Replacement::begin(pool).unwrap();
            write(&replacement.new_parts, &new, "new");
            let moved: Vec<Part> = OLD.into_iter().filter(|part| *part != Part::Log).collect();
            let steps = replacement.steps(&moved, ".old");
            let is_last = stop == steps.len();
            for (from, to) in &steps[..stop] {
                fs::rename(from, to).unwrap();
            }
            match read(pool, Part::Meta).as_deref() {
                Some("old") => assert_eq!(stop, 0),
                None => assert!(!is_last),
                Some(_) => {
                    assert!(is_last);
                    for part in new {
                        assert_eq!(read(pool, part).as_deref(), Some("new"), "{part:?}");
                        let aside = pool.join(format!("{}.old", part.name()));
                        assert_eq!(fs::read_to_string(aside).unwrap(), "old");
                    }
                }
            }
            assert_eq!(read(pool, Part::Log).as_deref(), Some("old"));
            assert_eq!(read(pool, Part::Data).as_deref(), Some("data"));
            if is_last {
                return;
            }
            // Whatever the stop left behind, the replacement can be started again.
            let again = Replacement::begin(pool).unwrap();
            write(&again.new_parts, &new, "again");
            again.finish(&again_old(pool), ".older").unwrap();
            assert_eq!(read(pool, Part::Meta).as_deref(), Some("again"));
        }
    }

    fn again_old(pool: &Path) -> Vec<Part> {
        let mut parts = EmbeddedEngine::new(pool, CacheMode::Host).parts();
        parts.retain(|part| !matches!(part, Part::Log | Part::Data));
        parts
    }
}
