//! Proves that everything that the backups of a source need is there, and if asked to, that it is what was
//! stored (B6).

use std::collections::BTreeMap;
use std::ops::Range;

use onefold_format::backup::pack::{BLOCKS_PER_GROUP, BLOCKS_PER_PACK};
use onefold_format::backup::{BackupNumber, Manifest};
use onefold_index::Key;
use onefold_repository::{KnownSource, Pack, Repository, RepositoryErrorKind};

use crate::create::Report;
use crate::error::{BackupError, Result};

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Verified {
    /// Backups that were looked at.
    pub backups: u64,
    /// Recipes and packs that were looked at.
    pub objects: u64,
    /// Bytes of blocks that were compared with their fingerprints.
    pub compared_bytes: u64,
    /// What is wrong.
    pub findings: Vec<Finding>,
}

/// Damage, and who needs what is damaged.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The damage.
    pub message: String,
    /// The backups.
    pub backups: Vec<BackupNumber>,
}

/// Damaged numbers of a pack, with the reason.
struct Damage {
    numbers: Range<u64>,
    message: String,
}

impl Damage {
    /// With the backups that need what is damaged.
    fn found(self, manifests: &BTreeMap<BackupNumber, Manifest>) -> Finding {
        let Range { start, end } = self.numbers;
        let needs = |manifest: &Manifest| {
            let mut runs = manifest.numbers.iter();
            runs.any(|run| run.first < end && start < run.first + run.blocks)
        };
        let backups = manifests.iter().filter(|(_, manifest)| needs(manifest));
        Finding {
            message: self.message,
            backups: backups.map(|(backup, _)| *backup).collect(),
        }
    }
}

/// Verifies the backups of a source; with `data`, its blocks too.
///
/// # Errors
///
/// If the repository cannot be read at all.
pub fn verify(
    repository: &Repository,
    source: &KnownSource,
    data: bool,
    report: Report<'_>,
) -> Result<Verified> {
    let mut verified = Verified::default();
    let mut manifests = BTreeMap::new();
    for backup in repository.backups(source.id)? {
        verified.backups += 1;
        match check_recipe(repository, source, backup) {
            Ok(manifest) => {
                verified.objects += 1;
                manifests.insert(backup, manifest);
            }
            Err(error) => verified.findings.push(Finding {
                message: damage(error)?,
                backups: vec![backup],
            }),
        }
    }
    let key = Key::derive(&repository.fingerprint_secret(), 0);
    let packs: BTreeMap<u64, u32> = repository.packs(source.id)?.into_iter().collect();
    let mut damages = Vec::new();
    let mut there = Vec::new();
    for ((number, generation), done) in packs.iter().zip(1..) {
        verified.objects += 1;
        match newest(repository, source, (*number, *generation)) {
            // Pruned meanwhile; what is still needed of it is missed below.
            Ok(None) => {}
            Ok(Some(pack)) => {
                let stored = pack.fingerprints().iter().map(Option::is_some);
                there.push((*number, stored.collect::<Vec<_>>()));
                if data {
                    let compared = compare(&pack, *number, &key, &mut damages)?;
                    verified.compared_bytes += compared;
                }
            }
            Err(error) => damages.push(Damage {
                numbers: number * BLOCKS_PER_PACK..(number + 1) * BLOCKS_PER_PACK,
                message: damage(error)?,
            }),
        }
        report(done, packs.len() as u64)?;
    }
    for (backup, manifest) in &manifests {
        for run in &manifest.numbers {
            for number in missing(run.first..run.first + run.blocks, &there, &damages) {
                damages.push(Damage {
                    message: format!(
                        "block {number} of the source is in no pack, and backup {backup} needs it"
                    ),
                    numbers: number..number + 1,
                });
            }
        }
    }
    let found = damages.into_iter().map(|damage| damage.found(&manifests));
    verified.findings.extend(found);
    Ok(verified)
}

/// The newest generation of a pack, of which this one was there a moment ago.
fn newest(
    repository: &Repository,
    source: &KnownSource,
    (number, generation): (u64, u32),
) -> Result<Option<Pack>> {
    match repository.pack(source.id, number, generation) {
        Err(error) if error.kind() == RepositoryErrorKind::NotFound => {}
        opened => return Ok(Some(opened?)),
    }
    let listed = repository.packs(source.id)?;
    let newest = listed.into_iter().find(|(listed, _)| *listed == number);
    let opened = newest.map(|(_, generation)| repository.pack(source.id, number, generation));
    Ok(opened.transpose()?)
}

/// The message of damage; any other failure ends the verification.
fn damage(error: BackupError) -> Result<String> {
    match &error {
        BackupError::Repository(inner)
            if matches!(
                inner.kind(),
                RepositoryErrorKind::Damaged | RepositoryErrorKind::NotFound
            ) =>
        {
            Ok(error.to_string())
        }
        _ => Err(error),
    }
}

fn check_recipe(
    repository: &Repository,
    source: &KnownSource,
    backup: BackupNumber,
) -> Result<Manifest> {
    let recipe = repository.recipe(source.id, backup)?;
    for page in 0..recipe.manifest().recipe_pages.len() as u64 {
        recipe.page(page)?;
    }
    Ok(recipe.manifest().clone())
}

/// Returns how many bytes were compared.
fn compare(pack: &Pack, number: u64, key: &Key, damages: &mut Vec<Damage>) -> Result<u64> {
    let first = number * BLOCKS_PER_PACK;
    let mut compared = 0;
    for group in 0..pack.groups() {
        let start = first + (group * BLOCKS_PER_GROUP) as u64;
        let end = start + BLOCKS_PER_GROUP as u64;
        let bytes = match pack.read_group(group) {
            Ok(bytes) => bytes,
            Err(error) => {
                let message = damage(error.into())?;
                damages.push(Damage {
                    numbers: start..end,
                    message,
                });
                continue;
            }
        };
        let mut found = Vec::new();
        key.fingerprints(&bytes, pack.block_size() as usize, &mut found);
        compared += bytes.len() as u64;
        let of_group = pack.fingerprints().iter().zip(first..);
        let of_group = of_group
            .skip(group * BLOCKS_PER_GROUP)
            .take(BLOCKS_PER_GROUP);
        let stored =
            of_group.filter_map(|(fingerprint, number)| Some((fingerprint.as_ref()?, number)));
        for ((wanted, number), found) in stored.zip(&found) {
            if found.0 != *wanted {
                damages.push(Damage {
                    numbers: number..number + 1,
                    message: format!("block {number} of the source is not what was stored"),
                });
            }
        }
    }
    Ok(compared)
}

/// The first of these numbers that no pack stores, if that is not known yet, for each pack.
fn missing(numbers: Range<u64>, there: &[(u64, Vec<bool>)], damages: &[Damage]) -> Vec<u64> {
    let mut missing = Vec::new();
    let mut at = numbers.start;
    while at < numbers.end {
        let pack = at / BLOCKS_PER_PACK;
        let end = numbers.end.min((pack + 1) * BLOCKS_PER_PACK);
        let found = there.binary_search_by_key(&pack, |(number, _)| *number);
        let stored = found.map_or(&[][..], |found| &there[found].1);
        let is_stored =
            |number: u64| stored.get((number % BLOCKS_PER_PACK) as usize) == Some(&true);
        if let Some(first_missing) = (at..end).find(|number| !is_stored(*number))
            && !damages
                .iter()
                .any(|damage| damage.numbers.contains(&first_missing))
        {
            missing.push(first_missing);
        }
        at = end;
    }
    missing
}
