//! Tries each file system call that a repository needs when one is created, so that no backup finds later that one is
//! missing. Also tries calls that must fail: replacing an existing file, or merging folders, would destroy backups.

use std::io::{self, Read};
use std::path::Path;

use onefold_format::backup::Writers;
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::disk::{Root, joined};
use crate::error::{RepositoryError, RepositoryErrorKind, Result};

const CONTENT: &[u8] = b"onefold";

/// Tries every call in a new folder below `own`, which is empty again if all calls behave as required. `place` is the
/// repository's folder, for errors.
pub(crate) fn try_all(root: &Root, place: &Path, own: &str, writers: Writers) -> Result<()> {
    let trial = Trial {
        root,
        place,
        folder: joined(own, "trial"),
        writers,
    };
    trial.folders()?;
    trial.files()?;
    trial.names()?;
    trial.leases()?;
    trial.removal()
}

struct Trial<'a> {
    root: &'a Root,
    place: &'a Path,
    folder: String,
    writers: Writers,
}

impl Trial<'_> {
    fn folders(&self) -> Result<()> {
        let root = self.root;
        for folder in [self.folder.clone(), self.at(&[1]), self.at(&[2])] {
            let made = root.create_folder(&folder);
            self.must("mkdir", "make folders", made)?;
        }
        let synced = root.sync_folder(&self.folder);
        self.must("fsync of a folder", "make names durable", synced)
    }

    fn files(&self) -> Result<()> {
        let (root, path) = (self.root, &self.at(&[1, 1]));
        let make = "open with O_EXCL";
        let why = "make a file of one writer";
        let mut file = self.must(make, why, root.create_new(path))?;
        self.must_not(make, why, root.create_new(path), &[Errno::EXIST])?;
        let written = root.append(&mut file, path, CONTENT);
        self.must("write", "write objects", written)?;
        self.must("fsync", "make objects durable", root.sync(&file, path))?;
        drop(file);
        let changed = root.overwrite(path, &CONTENT.to_ascii_uppercase());
        self.must("pwrite", "give signs of life", changed)?;
        let read = root.open_file(path).and_then(|mut file| {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            if bytes == CONTENT.to_ascii_uppercase() {
                Ok(())
            } else {
                Err(io::Error::other("it reads other data than was written"))
            }
        });
        self.must("open", "read objects", read)?;
        let listed = root.list(&self.at(&[1])).and_then(|entries| {
            let mut entries = entries.iter();
            if entries
                .any(|entry| path.ends_with(&entry.name) && entry.kind == FileType::RegularFile)
            {
                Ok(())
            } else {
                Err(io::Error::other("it does not list a file"))
            }
        });
        self.must("readdir", "find objects", listed)?;
        let path = &self.at(&[1, 3]);
        let mut file = self.must(make, why, root.create_new(path))?;
        let allocated = root.allocate(&mut file, path, 4096);
        self.must("fallocate", "set room aside", allocated)
    }

    fn names(&self) -> Result<()> {
        let (root, first, second) = (self.root, self.at(&[1, 1]), self.at(&[1, 2]));
        let named = self.at(&[2, 1]);
        let call = "renameat2 with RENAME_NOREPLACE, nor link";
        let why = match self.writers {
            Writers::Many => {
                "give an object a name that no other has when several hosts write; with --one-writer a repository does without"
            }
            Writers::One => "give an object a name that no other has",
        };
        if !self.must(call, why, root.rename_new(&first, &named))? {
            self.must("unlink", "remove objects", root.remove_file(&first))?;
        }
        let made = root.create_new(&second);
        self.must("open with O_EXCL", "make a file", made)?;
        let again = root.rename_new(&second, &named);
        self.must_not(call, why, again, &[Errno::EXIST])?;
        let replaced = root.rename(&second, &named);
        self.must("rename", "replace an object", replaced)
    }

    fn leases(&self) -> Result<()> {
        let (root, staging, held) = (self.root, self.at(&[1]), self.at(&[3]));
        let call = "rename of a folder";
        let why = "give a lease to one process only";
        self.must(call, why, root.rename(&staging, &held))?;
        if self.writers == Writers::Many {
            let taken = root.rename(&self.at(&[2]), &held);
            self.must_not(call, why, taken, &[Errno::NOTEMPTY, Errno::EXIST])?;
        }
        Ok(())
    }

    fn removal(&self) -> Result<()> {
        let (root, folders) = (self.root, [self.at(&[2]), self.at(&[3])]);
        let (call, why) = ("rmdir", "remove a folder that is empty, and no other");
        for (folder, file) in folders.iter().zip([self.at(&[2, 1]), self.at(&[3, 3])]) {
            let removed = root.remove_empty_folder(folder);
            self.must_not(call, why, removed, &[Errno::NOTEMPTY, Errno::EXIST])?;
            self.must("unlink", "remove objects", root.remove_file(&file))?;
        }
        for folder in folders.iter().chain([&self.folder]) {
            self.must(call, why, root.remove_empty_folder(folder))?;
        }
        Ok(())
    }

    fn at(&self, numbers: &[u64]) -> String {
        let names = numbers.iter().map(|number| format!("{number:016x}"));
        names.fold(self.folder.clone(), |path, name| joined(&path, &name))
    }

    fn must<T>(&self, call: &str, why: &str, answer: io::Result<T>) -> Result<T> {
        answer.map_err(|error| self.lacks(call, why, &error))
    }

    fn must_not<T>(
        &self,
        call: &str,
        why: &str,
        answer: io::Result<T>,
        refusals: &[Errno],
    ) -> Result<()> {
        let Err(error) = answer else {
            let error = io::Error::other("it does not fail where it has to");
            return Err(self.lacks(call, why, &error));
        };
        match Errno::from_io_error(&error) {
            Some(errno) if refusals.contains(&errno) => Ok(()),
            _ => Err(self.lacks(call, why, &error)),
        }
    }

    fn lacks(&self, call: &str, why: &str, error: &io::Error) -> RepositoryError {
        let what = format!("cannot make a repository in {:?}", self.place);
        let failed = RepositoryError::io(&what, error);
        // The error does not mean that a call is missing. A missing call may also be reported as forbidden.
        let is_refused = failed.kind() == RepositoryErrorKind::ReadOnly
            && Errno::from_io_error(error) != Some(Errno::PERM);
        if is_refused || failed.kind() == RepositoryErrorKind::NoSpace {
            return failed;
        }
        let message =
            format!("{what}: its file system does not have {call} ({error}), needed to {why}");
        RepositoryError::new(RepositoryErrorKind::Io, message)
    }
}
