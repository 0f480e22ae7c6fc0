//! The backups of a source: recipes and manifests.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;

use onefold_format::backup::object::OBJECT_HEADER_BYTES;
use onefold_format::backup::recipe::{RECIPE_PAGE_BYTES_MAX, decode_page, encode_page};
use onefold_format::backup::{
    BackupNumber, Closed, Manifest, ObjectName, PackReference, RecipeRun, SourceId, Target, Witness,
};

use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::fenced::Fenced;
use crate::folder::NewObject;
use crate::history::History;
use crate::host::now_unix_seconds;
use crate::objects::Objects;
use crate::seal::ChunkKey;
use crate::table::Tables;

/// The zstd level for recipes, which are small and read more often than written.
const LEVEL: i32 = 3;

/// A recipe that is being written. Dropping it discards it.
pub struct NewRecipe {
    path: String,
    object: BufWriter<NewObject>,
    key: ChunkKey,
    pages: Vec<u32>,
}

impl NewRecipe {
    /// Starts the recipe of a backup.
    pub(crate) fn start(fenced: &Fenced<'_>, backup: BackupNumber) -> Result<NewRecipe> {
        let name = ObjectName::Recipe(fenced.source(), backup);
        let (object, key) = fenced.create(name)?;
        Ok(NewRecipe {
            path: name.path(),
            object: BufWriter::with_capacity(1 << 18, object),
            key,
            pages: Vec::new(),
        })
    }

    /// Writes the next page of the disk.
    ///
    /// # Errors
    ///
    /// Any failure of writing.
    pub fn push(&mut self, runs: &[RecipeRun]) -> Result<()> {
        if runs.iter().all(|run| run.target == Target::Zeros) {
            self.pages.push(0);
            return Ok(());
        }
        let mut bytes = zstd::bulk::compress(&encode_page(runs), LEVEL)
            .map_err(|e| RepositoryError::io("cannot compress", &e))?;
        let sealed = self.key.seal(self.pages.len() as u32, &mut bytes);
        sealed.map_err(|e| RepositoryError::damaged(&self.path, e))?;
        let path = &self.path;
        self.object
            .write_all(&bytes)
            .map_err(|e| RepositoryError::io(format_args!("cannot write object {path}"), &e))?;
        self.pages.push(bytes.len() as u32);
        Ok(())
    }

    /// Completes the recipe and makes it durable. Returns its witness and the bytes of its pages, for the manifest.
    ///
    /// # Errors
    ///
    /// Any failure of writing.
    pub fn finish(self) -> Result<(Witness, Vec<u32>)> {
        let Self {
            path,
            object,
            key,
            pages,
        } = self;
        NewObject::complete(object)
            .map_err(|e| RepositoryError::io(format_args!("cannot write object {path}"), &e))?;
        Ok((key.witness(), pages))
    }
}

/// The recipe of a backup.
pub struct Recipe {
    path: String,
    file: File,
    key: ChunkKey,
    manifest: Manifest,
    /// The offset of each page.
    starts: Vec<u64>,
}

impl Recipe {
    /// The manifest of the backup.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The error for a recipe that refers to a stored block which its manifest does not list.
    #[must_use]
    pub fn names_unneeded(&self, number: u64) -> RepositoryError {
        let message = format_args!("it names stored block {number}, and its manifest does not");
        RepositoryError::damaged(&self.path, message)
    }

    /// The runs of a page of the disk.
    ///
    /// # Errors
    ///
    /// `Damaged` if the page is not authentic.
    pub fn page(&self, page: u64) -> Result<Vec<RecipeRun>> {
        let path = &self.path;
        let damaged = |why: &dyn std::fmt::Display| {
            RepositoryError::damaged(path, format_args!("page {page}: {why}"))
        };
        let at = page as usize;
        let (Some(bytes), Some(start)) = (self.manifest.recipe_pages.get(at), self.starts.get(at))
        else {
            return Err(damaged(&"there is none"));
        };
        let blocks = self.manifest.blocks_of_page(page);
        if *bytes == 0 {
            return Ok(vec![RecipeRun {
                blocks,
                target: Target::Zeros,
            }]);
        }
        let mut sealed = vec![0; *bytes as usize];
        self.file
            .read_exact_at(&mut sealed, *start)
            .map_err(|e| match e.kind() {
                std::io::ErrorKind::UnexpectedEof => damaged(&"it is cut"),
                _ => RepositoryError::io(format_args!("cannot read object {path}"), &e),
            })?;
        self.key
            .open(page as u32, &mut sealed)
            .map_err(|e| damaged(&e))?;
        let bytes = zstd::bulk::decompress(&sealed, RECIPE_PAGE_BYTES_MAX);
        let bytes = bytes.map_err(|e| damaged(&e))?;
        decode_page(&bytes, blocks).map_err(|e| damaged(&e))
    }
}

/// The witnesses of the packs that the backups of a source need. If two backups disagree, the newer one counts.
#[derive(Debug, Default)]
pub struct NeededPacks {
    /// The source's own packs, by number.
    pub own: BTreeMap<u64, Witness>,
    /// Popular packs, by number.
    pub popular: BTreeMap<u64, Witness>,
}

/// The backups of a source, and what they need.
pub(crate) struct Backups<'a> {
    objects: &'a Objects,
    source: SourceId,
}

impl<'a> Backups<'a> {
    pub(crate) fn of(objects: &'a Objects, source: SourceId) -> Self {
        Self { objects, source }
    }

    /// All backups, in order.
    pub(crate) fn all(&self) -> Result<Vec<BackupNumber>> {
        Ok(History::read(self.objects, self.source)?.backups)
    }

    /// Backups with a recipe, in order: some of them may be forgotten.
    pub(crate) fn recipes(&self) -> Result<Vec<BackupNumber>> {
        self.objects.numbers(&ObjectName::recipes(self.source))
    }

    /// Backups that are protected from being forgotten, in order.
    pub(crate) fn protected(&self) -> Result<Vec<BackupNumber>> {
        self.objects.numbers(&ObjectName::protections(self.source))
    }

    /// Protects a backup from being forgotten, or ends its protection.
    pub(crate) fn protect(&self, backup: BackupNumber, is_protected: bool) -> Result<()> {
        let name = ObjectName::Protection(self.source, backup);
        match (self.protected()?.contains(&backup), is_protected) {
            // The process that wrote the mark may have died before its name was durable.
            (true, true) => return self.objects.sync_name(name),
            (false, false) => return Ok(()),
            (true, false) | (false, true) => {}
        }
        if is_protected {
            self.objects
                .put(name, &self.objects.sealed(name, Vec::new())?)
        } else {
            self.objects.remove(name)
        }
    }

    /// The manifest of a backup.
    pub(crate) fn manifest(&self, backup: BackupNumber) -> Result<Manifest> {
        let name = ObjectName::Manifest(self.source, backup);
        let content = self.objects.read_sealed(name)?;
        Manifest::decode(&content).map_err(|e| RepositoryError::format(&name.path(), e))
    }

    /// The manifest of a backup that was listed a moment ago; `None` if another command has forgotten it since.
    pub(crate) fn listed_manifest(&self, backup: BackupNumber) -> Result<Option<Manifest>> {
        match self.manifest(backup) {
            Err(error) if error.kind() == RepositoryErrorKind::NotFound => {
                if History::read(self.objects, self.source)?
                    .missing
                    .contains(&backup)
                {
                    Err(error)
                } else {
                    Ok(None)
                }
            }
            read => read.map(Some),
        }
    }

    /// The packs that the backups of a source need. Skips unreadable manifests, which `verify` reports.
    pub(crate) fn needed_packs(&self) -> Result<NeededPacks> {
        let mut needed = NeededPacks::default();
        for backup in self.all()? {
            match self.manifest(backup) {
                Ok(manifest) => {
                    let pair = |pack: &PackReference| (pack.number, pack.witness);
                    needed.own.extend(manifest.own_packs.iter().map(pair));
                    let popular = manifest.popular_packs.iter();
                    needed.popular.extend(popular.map(pair));
                }
                Err(error) if error.is_of_object() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(needed)
    }

    /// The recipe of a backup.
    pub(crate) fn recipe(&self, backup: BackupNumber) -> Result<Recipe> {
        let manifest = self.manifest(backup)?;
        let name = ObjectName::Recipe(self.source, backup);
        let path = name.path();
        let (file, key) = self
            .objects
            .open_object(name)
            .map_err(|error| match error.kind() {
                RepositoryErrorKind::NotFound => RepositoryError::damaged(&path, "it is not there"),
                _ => error,
            })?;
        if key.witness() != manifest.recipe {
            let why =
                "it is not the recipe of the backup, but a different one with the same number";
            return Err(RepositoryError::damaged(&path, why));
        }
        let mut at = OBJECT_HEADER_BYTES as u64;
        let starts = manifest.recipe_pages.iter().map(|bytes| {
            let start = at;
            at += u64::from(*bytes);
            start
        });
        Ok(Recipe {
            starts: starts.collect(),
            path,
            file,
            key,
            manifest,
        })
    }

    /// The number of the next pack. It is higher than the number of every pack that is listed, has a copy of its table,
    /// was ever removed from the source, or is needed by a backup.
    pub(crate) fn next_pack(&self, needed: &NeededPacks) -> Result<u64> {
        let needed = needed.own.last_key_value().map(|(number, _)| *number);
        let tables = Tables::of(self.objects, self.source).all()?;
        let copied = tables.last().map(|(number, _)| *number);
        let next = needed.max(copied).map_or(0, |last| last + 1);
        Ok(next.max(History::read(self.objects, self.source)?.next_pack))
    }

    /// Writes the tombstone of a backup, whether its manifest is there or not.
    pub(crate) fn bury(&self, backup: BackupNumber) -> Result<()> {
        // The manifest may be the last object that shows which pack numbers were used.
        let own = self.manifest(backup).ok();
        let last = own.and_then(|manifest| manifest.own_packs.last().map(|pack| pack.number + 1));
        let history = History::read(self.objects, self.source)?;
        let next_pack = history.next_pack.max(last.unwrap_or(0));
        let closed = Closed::one(backup, next_pack, now_unix_seconds());
        let name = ObjectName::Tombstone(self.source, backup);
        self.objects
            .put_over(name, &self.objects.sealed(name, closed.encode())?)
    }
}
