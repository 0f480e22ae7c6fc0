//! An export of a pool's metadata, and the parts that are made from one.
//!
//! An export is a sequence of pages, each as in the pool: see `docs/format/export.md`. Parts
//! without pages in it are rebuilt: the index from the maps and the data, the log from nothing,
//! unless the existing log continues where the export ends.
//!
//! Making parts from an export writes the root last: without it there is no pool, so a crash leaves
//! none, or all of it.

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use onefold_engine::{Engine, Part, reserve};
use onefold_format::node::ROOT_SLOTS;
use onefold_format::page::{self, PAGE_BYTES, PageBytes, PageHeader, PageKind};
use onefold_format::{
    ExportMark, PageNumber, Root, Secret, Superblock, VolumeRecord, catalogue_page, export,
};
use onefold_journal::{CheckpointReader, Log, LogMark, follow_log};
use onefold_metadata::{Result, StoreError, StoreErrorKind};

use crate::batches;
use crate::pool::Pool;
use crate::recovery::{check_data, check_log, part_error};

/// Pages of an export that are in no tree: marks, superblock, secret and root.
const OTHER_PAGES: u64 = 5;

/// A summary of an export that was read and checked.
#[derive(Debug)]
pub struct MetadataExport {
    superblock: Superblock,
    secret: Secret,
    root: Root,
    last: ExportMark,
    volumes: Vec<String>,
    snapshots: u64,
}

/// A log's addition to an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogAfter {
    /// Everything that was committed after the export, and the size of its frames in bytes.
    All(u64),
    /// The log adds nothing, for this reason.
    Nothing(String),
}

/// Writes exports of a pool's metadata: see [`Store::exporter`](crate::Store::exporter).
pub struct Exporter {
    pool: Arc<Pool>,
    engine: Arc<dyn Engine>,
    /// When the last export ended, in seconds since the Unix epoch; 0 before the first one since the pool
    /// was opened. Nothing else depends on it.
    ended_unix_seconds: AtomicU64,
}

impl Exporter {
    pub(crate) fn new(pool: Arc<Pool>, engine: Arc<dyn Engine>) -> Self {
        Self {
            pool,
            engine,
            ended_unix_seconds: AtomicU64::new(0),
        }
    }

    /// Writes all metadata of one moment, in the form that [`MetadataExport::read`] reads, while
    /// requests continue. The export contains the pool's secret.
    ///
    /// # Errors
    ///
    /// `Damaged` if a page cannot be read; `ReadOnly`; I/O errors, also of `into`.
    pub fn write(&self, into: &mut dyn Write) -> Result<()> {
        let pool = &self.pool;
        pool.journal().check_writable()?;
        let snapshot = CheckpointReader::take(pool.journal())?;
        let created_unix_seconds = self.engine.unix_seconds();
        let mark = |place, checksum| ExportMark {
            pool: pool.superblock().pool,
            place,
            created_unix_seconds,
            checksum,
        };
        let (mut place, mut checksum) = (0, 0);
        let mut write = |page: &PageBytes| {
            place += 1;
            checksum = export::add_to_checksum(checksum, page);
            let written = into.write_all(page);
            written.map_err(|error| StoreError::io("writing the export", error))
        };
        write(&mark(0, 0).encode())?;
        // A conversion may have changed the index's kind since the pool was created.
        let index = pool.index().kind();
        write(
            &Superblock {
                index,
                ..*pool.superblock()
            }
            .encode(),
        )?;
        write(
            &pool
                .blocks()
                .fingerprinter()
                .secret()
                .encode(pool.superblock().pool),
        )?;
        snapshot.each_page(&mut write)?;
        write(&snapshot.root.encode(pool.superblock().pool))?;
        let last = mark(place, checksum).encode();
        let written = into.write_all(&last[..]).and_then(|()| into.flush());
        written.map_err(|error| StoreError::io("writing the export", error))?;
        let now = self.engine.unix_seconds();
        self.ended_unix_seconds.store(now, Relaxed);
        Ok(())
    }

    /// When the last export ended, in seconds since the Unix epoch; 0 before the first one since the pool
    /// was opened.
    #[must_use]
    pub fn ended_unix_seconds(&self) -> u64 {
        self.ended_unix_seconds.load(Relaxed)
    }

    /// The size in bytes of an export made now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.pool.journal().page_count() - ROOT_SLOTS + OTHER_PAGES) * PAGE_BYTES as u64
    }
}

impl MetadataExport {
    /// Reads and checks an export to its end.
    ///
    /// # Errors
    ///
    /// `Damaged` if the export was changed since it was written, or is not complete; `NewerFormat`; `Io`.
    pub fn read(from: &mut dyn Read) -> Result<Self> {
        let (mut records, mut problem) = (Vec::new(), None);
        let read = read_pages(from, &mut |header, page| {
            if header.kind == PageKind::Catalogue {
                match catalogue_page::decode(page) {
                    Ok(slots) => records.extend(slots.into_iter().flatten()),
                    Err(error) => problem = Some(error),
                }
            }
            Ok(())
        })?;
        if let Some(error) = problem {
            return Err(StoreError::format("the export's catalogue", error));
        }
        let is_snapshot = |record: &&VolumeRecord| record.snapshot_of.is_some();
        let snapshots = records.iter().filter(is_snapshot).count() as u64;
        records.retain(|record| record.snapshot_of.is_none());
        let mut volumes: Vec<String> = records.into_iter().map(|record| record.name).collect();
        volumes.sort();
        Ok(Self {
            volumes,
            snapshots,
            ..read
        })
    }

    /// Names of the volumes, in order.
    #[must_use]
    pub fn volumes(&self) -> &[String] {
        &self.volumes
    }

    /// Snapshots of all volumes.
    #[must_use]
    pub fn snapshots(&self) -> u64 {
        self.snapshots
    }

    /// When the export was made, in seconds since the Unix epoch.
    #[must_use]
    pub fn created_unix_seconds(&self) -> u64 {
        self.last.created_unix_seconds
    }

    /// The length of the export in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.last.place + 1) * PAGE_BYTES as u64
    }

    /// Makes sure that the engine's data is the pool's, and all of it.
    ///
    /// # Errors
    ///
    /// `MissingPart`, `Damaged`, `Io`.
    pub fn check_data(&self, engine: &dyn Engine) -> Result<()> {
        let data = engine.open(Part::Data);
        let data = data.map_err(|error| part_error(engine, Part::Data, error))?;
        let name = engine.describe(Part::Data);
        check_data(&*data, &self.superblock, &self.root, &name)
    }

    /// The changes that the engine's log adds to the export. Changes nothing.
    #[must_use]
    pub fn log_after(&self, engine: &dyn Engine) -> LogAfter {
        let Superblock {
            pool, log_bytes, ..
        } = self.superblock;
        let name = engine.describe(Part::Log);
        let disk = match engine.open(Part::Log) {
            Ok(disk) => disk,
            Err(error) => {
                let error = part_error(engine, Part::Log, error);
                return LogAfter::Nothing(error.to_string());
            }
        };
        if let Err(error) = check_log(&*disk, &self.superblock, &name) {
            return LogAfter::Nothing(error.to_string());
        }
        let start = LogMark {
            position: self.root.log_position,
            commit: self.root.commit,
            checksum: self.root.frame_checksum,
        };
        let log = Log::new(disk, name, pool, log_bytes, start);
        match follow_log(&log) {
            Ok(end) => LogAfter::All(end.position - start.position),
            Err(error) => LogAfter::Nothing(error.to_string()),
        }
    }

    /// Makes the metadata parts of the pool from the same export, with an index that has to be
    /// counted again. Also makes an empty log, unless `has_log`: then the existing log continues
    /// where the export ends.
    ///
    /// # Errors
    ///
    /// `Exists` if one of the parts exists already; `Damaged` if the export differs from the one
    /// that was read before; I/O errors. Parts made before the error are left; without a root they
    /// are not a pool.
    pub fn make_parts(
        &self,
        engine: &dyn Engine,
        from: &mut dyn Read,
        has_log: bool,
    ) -> Result<()> {
        let part = |part, len| {
            let made = engine.create(part, len);
            made.map_err(|error| part_error(engine, part, error))
        };
        let step = |what: Part, done: std::io::Result<()>| {
            done.map_err(|e| StoreError::io(format_args!("making {}", engine.describe(what)), e))
        };
        let pool = self.superblock.pool;
        let meta = part(Part::Meta, ROOT_SLOTS * PAGE_BYTES as u64)?;
        let read = read_pages(from, &mut |header, page| {
            let at = header.page.0 * PAGE_BYTES as u64;
            step(Part::Meta, meta.write_at(page, at))
        })?;
        if read.last != self.last {
            return Err(StoreError::damaged(
                "the export was changed while it was read",
            ));
        }
        step(Part::Meta, meta.sync())?;
        if !has_log {
            let log = part(Part::Log, self.superblock.log_bytes)?;
            step(Part::Log, reserve(&*log, self.superblock.log_bytes))?;
            step(Part::Log, log.sync())?;
        }
        batches::create_uncounted(engine, self.superblock.index, pool)?;
        let pages = [
            (Part::Secret, self.secret.encode(pool)),
            (Part::Superblock, self.superblock.encode()),
        ];
        for (what, page) in pages {
            let disk = part(what, PAGE_BYTES as u64)?;
            step(what, disk.write_at(&page[..], 0))?;
            step(what, disk.sync())?;
        }
        let at = self.root.slot().0 * PAGE_BYTES as u64;
        step(Part::Meta, meta.write_at(&self.root.encode(pool)[..], at))?;
        step(Part::Meta, meta.sync())
    }
}

/// Reads an export, and visits the pages of its trees. The result has no names of volumes.
fn read_pages(
    from: &mut dyn Read,
    visit: &mut dyn FnMut(&PageHeader, &PageBytes) -> Result<()>,
) -> Result<MetadataExport> {
    let mut pages = Pages {
        from,
        place: 0,
        checksum: 0,
    };
    let place = |place| format!("page {place} of the export");
    let bad = |n, error| StoreError::format(place(n), error);
    let first = pages.next()?;
    let mark = ExportMark::decode(&first, 0).map_err(|e| bad(0, e))?;
    if page::is_of_later_minor(&first) {
        let message = "a later version of onefold wrote this export; use that version";
        return Err(StoreError::new(StoreErrorKind::NewerFormat, message));
    }
    let superblock = Superblock::decode(&*pages.next()?).map_err(|e| bad(1, e))?;
    if superblock.pool != mark.pool {
        return Err(bad(1, onefold_format::FormatError::Pool));
    }
    let secret = Secret::decode(&*pages.next()?, mark.pool).map_err(|e| bad(2, e))?;
    let root = loop {
        let (at, page) = (pages.place, pages.next()?);
        // Other pages are never in the root slots.
        let root = (0..ROOT_SLOTS).map(|slot| Root::decode(&page, mark.pool, PageNumber(slot)));
        if let Some(root) = root.flatten().next() {
            break root;
        }
        let header = page::open_of_tree(&page, mark.pool).map_err(|e| bad(at, e))?;
        visit(&header, &page)?;
    };
    let (at, checksum) = (pages.place, pages.checksum);
    let last = ExportMark::decode(&*pages.next()?, at).map_err(|e| bad(at, e))?;
    // The times may differ: earlier builds wrote the time of the end into the last mark.
    if (last.pool, last.place, last.checksum) != (mark.pool, at, checksum) {
        let message = "the export's pages are not those that were written together";
        return Err(StoreError::damaged(message));
    }
    pages.end()?;
    Ok(MetadataExport {
        superblock,
        secret,
        root,
        last,
        volumes: Vec::new(),
        snapshots: 0,
    })
}

/// The pages of an export, one after the other.
struct Pages<'a> {
    from: &'a mut dyn Read,
    place: u64,
    /// The checksum of all pages so far.
    checksum: u32,
}

impl Pages<'_> {
    fn next(&mut self) -> Result<Box<PageBytes>> {
        let mut page = page::blank();
        let place = self.place;
        let read = self.from.read_exact(&mut page[..]);
        read.map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => {
                StoreError::damaged(format!("the export ends early, in its page {place}"))
            }
            _ => StoreError::io("reading the export", error),
        })?;
        self.checksum = export::add_to_checksum(self.checksum, &page);
        self.place += 1;
        Ok(page)
    }

    /// Makes sure that nothing follows.
    fn end(&mut self) -> Result<()> {
        let read = self.from.read(&mut [0]);
        match read.map_err(|error| StoreError::io("reading the export", error))? {
            0 => Ok(()),
            _ => Err(StoreError::damaged("the export continues behind its end")),
        }
    }
}
