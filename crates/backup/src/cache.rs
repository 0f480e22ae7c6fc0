//! This host's cache of pack tables, so that a backup reads only few of them from the repository.
//!
//! The cache is a hint. It chooses which tables are read: a new backup refers only to blocks found in a table of the
//! repository. For blocks of the parent backup, the cache may answer that a pack has them if the repository lists that
//! pack with the same generation and size; the manifest still names the pack's witness. A damaged, stale or foreign
//! cache costs time or space, never data, and no failure of it fails a backup.
//!
//! Each store has a folder of files as `docs/format/backup/cache.md` describes them. A file never changes. Newly read
//! tables are added as a new file, into which existing files of about its size are merged, so that there are few.

use std::cell::RefCell;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use onefold_format::backup::cache::CACHED_ROW_BYTES;
use onefold_format::backup::{
    CachedPack, CachedRow, PackReference, PackTable, RepositoryId, SourceId, Witness,
};
use onefold_repository::{Pack, Repository};
use onefold_sorter::{Record, Sorter};
use rustc_hash::FxHashMap;
use rustix::fs::{FlockOperation, flock};

use crate::cached_tables::{CachedTables, NewTables, compressed};
use crate::records::Fingerprint;

/// Marks the folder as a cache, so that archivers leave it out.
const TAG: &str = "CACHEDIR.TAG";
const TAG_CONTENT: &str = "Signature: 8a477f597d28d172789f06886806bc55\n\
    # Tables of packs that onefold has read from repositories. They may be removed at any time.\n";

/// The suffix of a file's name, after its number.
const SUFFIX: &str = ".tables";

/// The prefix of the names of incomplete files.
pub(crate) const INCOMPLETE: &str = ".incomplete-";

/// The process that writes files of a store holds the lock on this file.
const LOCK: &str = "lock";

/// Divisor of a stage's memory: one share sorts the rows of newly read tables, another holds their packs and tables.
const MEMORY_SHARE: usize = 16;

/// A file is merged into a new one if it has at most this many times as many rows.
const MERGED_SHARE: u64 = 4;

/// A host's cache of the tables of a repository.
#[derive(Debug)]
pub struct TableCache {
    folder: PathBuf,
    repository: RepositoryId,
    memory_bytes: usize,
    failure: RefCell<Option<io::Error>>,
}

impl TableCache {
    /// Opens the cache of a repository in a host's folder of caches, and creates that folder if it is missing.
    /// Removes the cached tables of sources that are gone. `memory_bytes` is the memory of a stage, of which the
    /// cache takes a part.
    ///
    /// # Errors
    ///
    /// If the folder cannot be made or listed.
    pub fn open(folder: &Path, repository: &Repository, memory_bytes: usize) -> io::Result<Self> {
        let own = folder.join("tables").join(repository.id().to_string());
        DirBuilder::new().recursive(true).mode(0o700).create(&own)?;
        let tag = folder.join(TAG);
        if !tag.exists() {
            fs::write(tag, TAG_CONTENT)?;
        }
        if let Ok(sources) = repository.source_ids() {
            remove_others(&own, &sources)?;
        }
        Ok(Self {
            folder: own,
            repository: repository.id(),
            memory_bytes,
            failure: RefCell::default(),
        })
    }

    /// The first failure of the cache, if any. The tables that it affected were read from the repository.
    pub fn take_failure(&self) -> Option<io::Error> {
        self.failure.take()
    }

    fn folder_of(&self, store: SourceId) -> PathBuf {
        self.folder.join(store.to_string())
    }

    fn note<T>(&self, result: io::Result<T>) -> Option<T> {
        result
            .map_err(|error| self.failure.borrow_mut().get_or_insert(error).kind())
            .ok()
    }
}

fn remove_others(folder: &Path, sources: &[SourceId]) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let is_of = |source: &SourceId| entry.file_name() == source.to_string().as_str();
        if entry.file_type()?.is_dir() && !sources.iter().any(is_of) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// The cached tables of the packs of a source, or of popular blocks.
pub(crate) struct StoreCache<'a> {
    /// The cache that this store is part of; `None` if this host has no cache.
    cache: Option<&'a TableCache>,
    store: SourceId,
    /// The numbers and generations of the packs in the repository.
    listed: &'a [(u64, u32)],
    files: Vec<CachedTables>,
    /// For each cached pack, by number and generation: the file that has it, and its place there.
    known: FxHashMap<(u64, u32), (usize, usize)>,
    learned: Option<Learned>,
}

/// Tables that were read and are not in a file yet.
struct Learned {
    packs: Vec<CachedPack>,
    /// The compressed tables of the packs, one after the other.
    tables: Vec<u8>,
    rows: Sorter<LearnedRow>,
    count: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LearnedRow(CachedRow);

impl Record for LearnedRow {
    const BYTES: usize = CACHED_ROW_BYTES;

    fn put(&self, into: &mut Vec<u8>) {
        into.extend(self.0.encode());
    }

    fn get(bytes: &[u8]) -> Self {
        let mut own = [0; CACHED_ROW_BYTES];
        own.copy_from_slice(bytes);
        Self(CachedRow::decode(&own))
    }
}

impl<'a> StoreCache<'a> {
    pub(crate) fn open(
        cache: Option<&'a TableCache>,
        store: SourceId,
        listed: &'a [(u64, u32)],
    ) -> Self {
        let mut opened = Self {
            cache,
            store,
            listed,
            files: Vec::new(),
            known: FxHashMap::default(),
            learned: None,
        };
        if let Some(cache) = cache {
            opened.read_files(cache);
        }
        opened
    }

    /// Reads which packs the files have. An unreadable file is treated as missing.
    fn read_files(&mut self, cache: &TableCache) {
        let folder = cache.folder_of(self.store);
        self.files.clear();
        self.known.clear();
        for number in numbers_of_files(&folder).unwrap_or_default() {
            let path = path_of_file(&folder, number);
            let Ok(file) = CachedTables::open(path, cache.repository, self.store) else {
                continue;
            };
            let packs = file.packs().iter().enumerate();
            let known = packs.map(|(place, pack)| {
                let key = (pack.pack.number, pack.generation);
                (key, (self.files.len(), place))
            });
            self.known.extend(known);
            self.files.push(file);
        }
    }

    fn cached(&self, pack: PackReference, generation: u32) -> Option<(&CachedTables, &CachedPack)> {
        let (file, place) = *self.known.get(&(pack.number, generation))?;
        let file = &self.files[file];
        let cached = &file.packs()[place];
        (cached.pack == pack).then_some((file, cached))
    }

    /// The slots of a pack without their fingerprints, the popular packs to which blocks were moved, and the pack's
    /// size in bytes when its table was cached.
    pub(crate) fn table(&self, pack: PackReference, generation: u32) -> Option<(PackTable, u64)> {
        let (file, cached) = self.cached(pack, generation)?;
        Some((file.table(cached)?, cached.stored_bytes))
    }

    pub(crate) fn store(&self) -> SourceId {
        self.store
    }

    /// The packs whose tables may have some contents, in order, each with its place among all listed packs. `words` are
    /// parts of the fingerprints of the contents, in ascending order; `None` if they do not fit into memory. `needed`
    /// returns the witness that backups name for a pack.
    pub(crate) fn to_read(
        &self,
        words: Option<&[u64]>,
        needed: impl Fn(u64) -> Option<Witness>,
    ) -> Vec<(u64, (u64, u32))> {
        let find = |file: &CachedTables| self.cache?.note(file.find(words?));
        let found: Vec<Option<Vec<bool>>> = self.files.iter().map(find).collect();
        let may_have = |pack: &(u64, u32)| {
            let Some((file, place)) = self.known.get(pack) else {
                return true;
            };
            let witness = self.files[*file].packs()[*place].pack.witness;
            let is_other = needed(pack.0).is_some_and(|needed| needed != witness);
            is_other || found[*file].as_ref().is_none_or(|found| found[*place])
        };
        let listed = (0..).zip(self.listed.iter().copied());
        listed.filter(|(_, pack)| may_have(pack)).collect()
    }

    /// Remembers the table of a pack. A damaged table is not remembered, so the next backup reads it again.
    pub(crate) fn add(&mut self, pack: &Pack) {
        let key = (pack.reference().number, pack.generation());
        let Some(cache) = self.cache else {
            return;
        };
        if self.known.contains_key(&key) || pack.table_damage().is_some() {
            return;
        }
        let added = self.try_add(cache, pack);
        cache.note(added);
    }

    fn try_add(&mut self, cache: &TableCache, pack: &Pack) -> io::Result<()> {
        let learned = match &mut self.learned {
            Some(learned) => learned,
            none => none.insert(Learned::new(cache, self.store)?),
        };
        learned.add(pack)?;
        let kept = learned.tables.len() + size_of_val(learned.packs.as_slice());
        if kept > cache.memory_bytes / MEMORY_SHARE {
            self.write(cache)?;
            self.read_files(cache);
        }
        Ok(())
    }

    /// Writes the newly read tables to the cache.
    pub(crate) fn save(mut self) {
        if let Some(cache) = self.cache {
            let saved = self.write(cache);
            cache.note(saved);
        }
    }

    fn write(&mut self, cache: &TableCache) -> io::Result<()> {
        let Some(learned) = self.learned.take() else {
            return Ok(());
        };
        let folder = cache.folder_of(self.store);
        let lock = File::create(folder.join(LOCK))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            // Another command is writing. It read mostly the same tables; the next command reads the rest again.
            return Ok(());
        }
        remove_incomplete(&folder)?;
        let rows = learned.rows.finish()?.map(|row| Ok(row?.0));
        let mut new = NewTables::new(&learned.packs, &learned.tables, rows, learned.count);
        let is_listed = |pack: &CachedPack| {
            let key = (pack.pack.number, pack.generation);
            self.listed.binary_search(&key).is_ok()
        };
        let mut files: Vec<_> = self.files.iter().collect();
        files.sort_by_key(|file| file.rows());
        let mut merged = Vec::new();
        for file in files {
            let live = file.packs().iter().filter(|pack| is_listed(pack)).count();
            if file.rows() <= new.rows() * MERGED_SHARE || live * 2 < file.packs().len() {
                new.merge(file)?;
                merged.push(file.path());
            }
        }
        let last = numbers_of_files(&folder)?.last().copied().unwrap_or(0);
        let path = path_of_file(&folder, last + 1);
        new.write(&path, cache.repository, self.store, is_listed)?;
        for path in merged {
            remove_if_there(path)?;
        }
        Ok(())
    }
}

impl Learned {
    fn new(cache: &TableCache, store: SourceId) -> io::Result<Self> {
        let folder = cache.folder_of(store);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)?;
        Ok(Self {
            packs: Vec::new(),
            tables: Vec::new(),
            rows: Sorter::new(cache.memory_bytes / MEMORY_SHARE, &folder),
            count: 0,
        })
    }

    fn add(&mut self, pack: &Pack) -> io::Result<()> {
        let table = compressed(pack.table())?;
        let place = self.packs.len() as u32;
        for fingerprint in pack.slots().iter().filter_map(|slot| slot.content()) {
            let word = Fingerprint::new(fingerprint).word();
            self.rows
                .push(LearnedRow(CachedRow { word, pack: place }))?;
            self.count += 1;
        }
        self.packs.push(CachedPack {
            pack: pack.reference(),
            generation: pack.generation(),
            stored_bytes: pack.stored_bytes(),
            table_at: self.tables.len() as u64,
            table_bytes: table.len() as u32,
            table_checksum: CachedPack::checksum_of(&table),
        });
        self.tables.extend(table);
        Ok(())
    }
}

fn path_of_file(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number}{SUFFIX}"))
}

/// The numbers of the files of a store, in order; none if it has no folder.
fn numbers_of_files(folder: &Path) -> io::Result<Vec<u64>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut numbers = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(SUFFIX));
        // Far below the largest number, because new files count up from it.
        let number = number.and_then(|number| number.parse::<u32>().ok());
        numbers.extend(number.map(u64::from));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Removes the incomplete files of killed commands. The caller holds the lock.
fn remove_incomplete(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.as_encoded_bytes().starts_with(INCOMPLETE.as_bytes()) {
            remove_if_there(&entry.path())?;
        }
    }
    Ok(())
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
