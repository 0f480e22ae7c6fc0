//! Restores a pool's metadata from an export, for existing data.

use super::{Claim, lock_directory};
use crate::rendering::utc;
use onefold_api::{Error, Result, size};
use onefold_engine::Part;
use onefold_engine::embedded::{CacheMode, EmbeddedEngine, PoolLock, Replacement};
use onefold_store::{LogAfter, MetadataExport, Store};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Bytes of an export that are read per call.
const READ_BYTES: usize = 1 << 20;

/// An export that has been read and matches the data.
pub(crate) struct Restoration {
    directory: PathBuf,
    file: PathBuf,
    data: Option<PathBuf>,
    export: MetadataExport,
    log: LogAfter,
    /// Existing parts, which are renamed before the new parts take their names.
    old: Vec<Part>,
    suffix: String,
    /// Whether the superblock and root of a pool exist.
    is_pool_there: bool,
    /// `None` if the directory does not exist yet.
    lock: Option<PoolLock>,
}

impl Restoration {
    /// Reads the export and checks the existing parts. Changes nothing.
    pub(crate) fn prepare(
        directory: &Path,
        file: PathBuf,
        data: Option<PathBuf>,
        report: &mut dyn FnMut(u64, u64),
    ) -> Result<Self> {
        let lock = if directory.is_dir() {
            Some(lock(directory)?)
        } else {
            None
        };
        let export = MetadataExport::read(&mut reader(&file, report)?)
            .map_err(|error| Error::failed(format!("{}: {error}", file.display())))?;
        let mut engine = EmbeddedEngine::new(directory, CacheMode::Host);
        let mut old = engine.parts();
        let has_data = directory.join(Part::Data.name()).is_file();
        if let Some(data) = &data {
            if has_data && !directory.join(Part::Data.name()).is_symlink() {
                return Err(Error::usage(format!(
                    "{} has its blocks in it; --data is for a pool that has them elsewhere",
                    directory.display()
                )));
            }
            engine = engine.with_data(data);
        } else {
            old.retain(|part| *part != Part::Data);
        }
        export.check_data(&engine).map_err(|error| {
            let hint = match (&data, has_data) {
                (None, false) => "; --data says where the pool's blocks are",
                _ => "",
            };
            Error::failed(format!("this export does not fit: {error}{hint}"))
        })?;
        let log = export.log_after(&engine);
        if matches!(log, LogAfter::All(_)) {
            old.retain(|part| *part != Part::Log);
        }
        let now = SystemTime::UNIX_EPOCH.elapsed();
        Ok(Self {
            directory: directory.to_path_buf(),
            file,
            data,
            log,
            old,
            suffix: format!(".before-{}", now.map_or(0, |since| since.as_secs())),
            is_pool_there: Store::seems_usable(&engine),
            export,
            lock,
        })
    }

    pub(crate) fn export(&self) -> &MetadataExport {
        &self.export
    }

    /// Whether the log still has everything that was committed since the export.
    pub(crate) fn keeps_log(&self) -> bool {
        matches!(self.log, LogAfter::All(_))
    }

    /// The consequences of the restoration, one sentence each.
    pub(crate) fn plan(&self) -> Vec<String> {
        let (directory, export) = (self.directory.display(), &self.export);
        let made = utc(export.created_unix_seconds());
        let mut plan = vec![format!(
            "make the metadata of the pool in {directory} as it was at {made}: {}, {}",
            size::count(export.volumes().len() as u64, "volume"),
            size::count(export.snapshots(), "snapshot")
        )];
        if self.is_pool_there {
            plan.push(
                "replace the metadata of a pool that may well be usable: see what 'onefold pool \
                 check' says of it first"
                    .to_owned(),
            );
        }
        match &self.log {
            LogAfter::All(bytes) => plan.push(format!(
                "continue with the existing log: it has all that was committed since, {} of records",
                size::display(*bytes)
            )),
            LogAfter::Nothing(why) => {
                plan.push(format!(
                    "begin a new log, since the old one cannot be continued: {why}"
                ));
                plan.push(
                    "lose data written to new blocks since then; blocks that were freed since then and \
                     reused hold their latest content, perhaps of another volume"
                        .to_owned(),
                );
            }
        }
        if let Some(data) = &self.data {
            plan.push(format!("keep the blocks in {}", data.display()));
        }
        let names: Vec<&str> = self.old.iter().map(|part| part.name()).collect();
        if !names.is_empty() {
            let suffix = &self.suffix;
            plan.push(format!(
                "rename existing parts to NAME{suffix}: {}",
                names.join(", ")
            ));
        }
        plan.push("count the index again, by reading every shared block".to_owned());
        plan
    }

    /// Writes the parts and moves them into place. The pool stays locked until the result is dropped. After
    /// an error, the directory has either no pool or a complete one.
    pub(crate) fn carry_out(self, report: &mut dyn FnMut(u64, u64)) -> Result<PoolLock> {
        let failed = |error: io::Error| Error::failed(error.to_string());
        let lock = match self.lock {
            Some(lock) => lock,
            None => {
                let engine = EmbeddedEngine::new(&self.directory, CacheMode::Host);
                engine.create_directory().map_err(failed)?;
                lock(&self.directory)?
            }
        };
        let has_log = matches!(self.log, LogAfter::All(_));
        let replacement = Replacement::begin(&self.directory).map_err(failed)?;
        let engine = replacement.engine();
        let mut file = reader(&self.file, report)?;
        self.export.make_parts(&engine, &mut file, has_log)?;
        if let Some(data) = &self.data {
            engine.link_data(data).map_err(failed)?;
        }
        // The engine keeps no parts open, so they can be replaced.
        replacement
            .finish(&self.old, &self.suffix)
            .map_err(failed)?;
        Ok(lock)
    }
}

fn lock(directory: &Path) -> Result<PoolLock> {
    match lock_directory(directory)? {
        Claim::Ours(lock) => Ok(lock),
        Claim::Held { holder } => Err(Error::failed(format!(
            "the pool {} is in use by {holder}: it has its metadata",
            directory.display()
        ))),
    }
}

/// Opens the export and reads it from the beginning.
fn reader<'a>(file: &Path, report: &'a mut dyn FnMut(u64, u64)) -> Result<impl Read + 'a> {
    let failed = |e: io::Error| Error::io(format_args!("cannot read {}", file.display()), &e);
    let opened = File::open(file).map_err(failed)?;
    let all = opened.metadata().map_err(failed)?.len();
    Ok(BufReader::with_capacity(
        READ_BYTES,
        Reported {
            file: opened,
            done: 0,
            all,
            report,
        },
    ))
}

/// A reader that reports how much of a file has been read.
struct Reported<'a> {
    file: File,
    done: u64,
    all: u64,
    report: &'a mut dyn FnMut(u64, u64),
}

impl Read for Reported<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(bytes)?;
        self.done += read as u64;
        (self.report)(self.done, self.all);
        Ok(read)
    }
}
