//! The backups of a source: recipes and manifests.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;

use onefold_format::backup::object::OBJECT_HEADER_BYTES;
use onefold_format::backup::recipe::{RECIPE_PAGE_BYTES_MAX, decode_page, encode_page};
use onefold_format::backup::{
    BackupNumber, Manifest, ObjectName, PackReference, RecipeRun, SourceId, Target, Witness,
};

use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::folder::NewObject;
use crate::layout::decimal;
use crate::repository::Repository;
use crate::seal::ChunkKey;
use crate::writer::Writer;

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

impl Writer<'_> {
    /// Starts the recipe of a backup.
    ///
    /// # Errors
    ///
    /// `InUse` if the lease is lost; any failure of writing.
    pub fn new_recipe(&self, backup: BackupNumber) -> Result<NewRecipe> {
        let name = ObjectName::Recipe(self.source().id, backup);
        let (object, key) = self.create(name)?;
        Ok(NewRecipe {
            path: name.path(),
            object: BufWriter::with_capacity(1 << 18, object),
            key,
            pages: Vec::new(),
        })
    }
}

impl Repository {
    /// The backups of a source, in order.
    ///
    /// # Errors
    ///
    /// Any failure of reading.
    pub fn backups(&self, source: SourceId) -> Result<Vec<BackupNumber>> {
        Ok(self.history(source)?.backups)
    }

    /// Backups with a recipe, in order: some of them may be forgotten.
    ///
    /// # Errors
    ///
    /// Any failure of reading.
    pub fn recipes(&self, source: SourceId) -> Result<Vec<BackupNumber>> {
        self.numbers(&ObjectName::recipes(source))
    }

    /// Backups that are protected from being forgotten, in order.
    ///
    /// # Errors
    ///
    /// Any failure of reading.
    pub fn protected(&self, source: SourceId) -> Result<Vec<BackupNumber>> {
        self.numbers(&ObjectName::protections(source))
    }

    /// Protects a backup from being forgotten, or ends its protection.
    ///
    /// # Errors
    ///
    /// Any failure of writing.
    pub fn protect(
        &self,
        source: SourceId,
        backup: BackupNumber,
        is_protected: bool,
    ) -> Result<()> {
        let name = ObjectName::Protection(source, backup);
        if self.protected(source)?.contains(&backup) == is_protected {
            return Ok(());
        }
        if is_protected {
            self.put(name, &self.sealed(name, Vec::new())?)
        } else {
            self.remove(name)
        }
    }

    /// Forgets backups: writes the tombstone of each before it removes the manifest. Recipes stay until the source is
    /// pruned. If a manifest is already missing, the tombstone records that the loss is accepted. Waits for all silent
    /// readers at the same time.
    ///
    /// # Errors
    ///
    /// `Interrupted`. For each backup: `Invalid` if it is protected; `InUse` if it is being read; any failure of
    /// writing.
    pub fn forget_all(&self, backups: &[(SourceId, BackupNumber)]) -> Result<Vec<Result<()>>> {
        let checked = self.check_not_read(backups)?.into_iter();
        let both = checked.zip(backups);
        Ok(both
            .map(|(checked, (source, backup))| checked.and_then(|()| self.forget(*source, *backup)))
            .collect())
    }

    /// Forgets a backup, as with [`Repository::forget_all`].
    ///
    /// # Errors
    ///
    /// The errors of each backup in [`Repository::forget_all`].
    pub fn forget(&self, source: SourceId, backup: BackupNumber) -> Result<()> {
        self.waiting
            .check_interrupted(format_args!("before backup {backup} was forgotten"))?;
        if self.protected(source)?.contains(&backup) {
            let message = format!("backup {backup} is protected");
            return Err(RepositoryError::new(RepositoryErrorKind::Invalid, message));
        }
        // Checked again, because a reader may have come while the command waited for others.
        self.check_not_read(&[(source, backup)])?.remove(0)?;
        self.bury(source, backup)?;
        match self.remove(ObjectName::Manifest(source, backup)) {
            // A damaged manifest stays, with its number closed; `prune` reports it.
            Err(error) if !error.is_of_object() => return Err(error),
            _ => {}
        }
        self.remove_readers_of(source, backup);
        Ok(())
    }

    /// The objects in a folder whose names are numbers.
    pub(crate) fn numbers(&self, folder: &str) -> Result<Vec<BackupNumber>> {
        let names = self.folder.objects(folder);
        let names =
            names.map_err(|e| RepositoryError::io(format_args!("cannot list {folder}"), &e))?;
        let numbers = names.iter().filter_map(|name| decimal(name));
        let mut numbers: Vec<_> = numbers.map(BackupNumber).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The manifest of a backup.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Damaged`.
    pub fn manifest(&self, source: SourceId, backup: BackupNumber) -> Result<Manifest> {
        let name = ObjectName::Manifest(source, backup);
        let content = self.read_sealed(name)?;
        Manifest::decode(&content).map_err(|e| RepositoryError::format(&name.path(), e))
    }

    /// The manifest of a backup that was listed a moment ago; `None` if another command has forgotten it since.
    ///
    /// # Errors
    ///
    /// `NotFound` if it is gone without a tombstone; `Damaged`; any failure of reading.
    pub fn listed_manifest(
        &self,
        source: SourceId,
        backup: BackupNumber,
    ) -> Result<Option<Manifest>> {
        match self.manifest(source, backup) {
            Err(error) if error.kind() == RepositoryErrorKind::NotFound => {
                if self.history(source)?.missing.contains(&backup) {
                    Err(error)
                } else {
                    Ok(None)
                }
            }
            read => read.map(Some),
        }
    }

    /// The packs that the backups of a source need. Skips unreadable manifests, which `verify` reports.
    ///
    /// # Errors
    ///
    /// Any failure of listing.
    pub fn needed_packs(&self, source: SourceId) -> Result<NeededPacks> {
        let mut needed = NeededPacks::default();
        for backup in self.backups(source)? {
            match self.manifest(source, backup) {
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
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such backup; `Damaged`.
    pub fn recipe(&self, source: SourceId, backup: BackupNumber) -> Result<Recipe> {
        let manifest = self.manifest(source, backup)?;
        let name = ObjectName::Recipe(source, backup);
        let path = name.path();
        let (file, key) = self.open_object(name).map_err(|error| match error.kind() {
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
}
