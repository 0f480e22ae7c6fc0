//! Proves that everything that backups need is present and, on request, that all blocks match their fingerprints (B6).
//! Damaged blocks are recorded, so that no later backup refers to them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use onefold_format::backup::pack::BLOCKS_PER_PACK;
use onefold_format::backup::{
    BackupNumber, Manifest, NumberRun, PackReference, Slot, SourceId, Target, Witness, witness_of,
};
use onefold_index::Key;
use onefold_repository::{
    KnownDamage, KnownSource, Pack, Repository, RepositoryError, RepositoryErrorKind,
};

use crate::compare::compare;
use crate::create::Report;
use crate::error::{BackupError, Result};
use crate::follow::MovedNumbers;
use crate::numbers::push;
use crate::verified::{AffectedRun, Finding, NeededBy, Verified, add_place};

/// The most damaged or missing tables of a store that are listed.
const TABLES_MAX: usize = 8;

/// Verifies the backups of one source, or the whole repository. With `data`, reads all blocks, too, and records the
/// damaged ones in the repository; without it, reports the ones recorded before.
///
/// # Errors
///
/// If the repository cannot be read at all.
pub fn verify(
    repository: &Repository,
    only: Option<&KnownSource>,
    data: bool,
    report: Report<'_>,
) -> Result<Verified> {
    let mut verifier = Verifier {
        repository,
        key: data.then(|| Key::derive(&repository.fingerprint_secret(), 0)),
        verified: Verified::default(),
        backups: Vec::new(),
        needed_by: BTreeMap::new(),
        damages: Vec::new(),
        moved: Vec::new(),
        wrong_tables: Vec::new(),
        known: BTreeMap::new(),
        found: BTreeMap::new(),
        compared: BTreeSet::new(),
    };
    let wrong = repository.wrong_identity().into_iter();
    verifier.find(wrong.map(|(_, error)| error));
    let mut stores: BTreeMap<SourceId, Packs> = BTreeMap::new();
    let sources = match only {
        Some(source) => vec![source.clone()],
        None => verifier.find_sources()?,
    };
    for source in &sources {
        verifier.read_manifests(source)?;
        let own = repository.packs(source.id)?.into_iter();
        stores.insert(source.id, Packs(own.map(|(number, _)| number).collect()));
    }
    // All packs of the sources, and the needed packs of popular blocks.
    for backup in &verifier.backups {
        for (store, runs) in backup.needs() {
            stores.entry(store).or_default().add(runs);
        }
    }
    verifier.check_packs(&mut stores, report)?;
    verifier.follow_moved()?;
    verifier.remember_damage(&stores, only.is_none());
    verifier.name_places()
}

/// Numbers of packs.
#[derive(Default)]
struct Packs(BTreeSet<u64>);

impl Packs {
    fn add(&mut self, needed: &[NumberRun]) {
        for run in needed {
            let last = (run.first + run.blocks - 1) / BLOCKS_PER_PACK;
            self.0.extend(run.first / BLOCKS_PER_PACK..=last);
        }
    }
}

pub(crate) struct Verifier<'a> {
    pub(crate) repository: &'a Repository,
    /// The key of fingerprints, if blocks are compared with theirs.
    key: Option<Key>,
    verified: Verified,
    backups: Vec<KnownBackup>,
    /// For each pack, the indexes in `backups` of the backups that need it, so that no pack is compared with every
    /// backup.
    needed_by: BTreeMap<(SourceId, u64), Vec<usize>>,
    pub(crate) damages: Vec<Damage>,
    pub(crate) moved: Vec<MovedNumbers>,
    /// Packs that were opened by the copy of their table, or have no copy of it, with a message.
    wrong_tables: Vec<(u64, String)>,
    /// Blocks recorded as damaged before.
    known: BTreeMap<SourceId, KnownDamage>,
    /// Blocks found damaged now.
    found: BTreeMap<SourceId, KnownDamage>,
    /// Packs whose blocks were all compared.
    compared: BTreeSet<(SourceId, u64)>,
}

/// A backup with a readable manifest.
struct KnownBackup {
    /// Name of the backup, SOURCE@N.
    name: String,
    store: SourceId,
    popular_store: SourceId,
    backup: BackupNumber,
    manifest: Manifest,
}

/// Damaged numbers of one pack, with the reason.
pub(crate) struct Damage {
    pub(crate) store: SourceId,
    pub(crate) numbers: Range<u64>,
    /// The witness of the damaged pack; none if the damage concerns every backup that needs these numbers.
    pub(crate) witness: Option<Witness>,
    pub(crate) message: String,
}

impl KnownBackup {
    fn needs(&self) -> [(SourceId, &[NumberRun]); 2] {
        [
            (self.store, &self.manifest.own),
            (self.popular_store, &self.manifest.popular),
        ]
    }

    /// The witness that the backup names for a pack.
    fn witness(&self, store: SourceId, number: u64) -> Option<Witness> {
        let packs = if store == self.store {
            &self.manifest.own_packs
        } else if store == self.popular_store {
            &self.manifest.popular_packs
        } else {
            return None;
        };
        witness_of(packs, number)
    }

    /// The numbers of a store that the backup needs.
    fn needs_of(&self, store: SourceId) -> &[NumberRun] {
        let needs = self.needs().into_iter();
        needs
            .filter(|(needed, _)| *needed == store)
            .map(|(_, runs)| runs)
            .next()
            .unwrap_or_default()
    }
}

impl Damage {
    fn concerns(&self, backup: &KnownBackup) -> bool {
        let Range { start, end } = self.numbers;
        let runs = backup.needs_of(self.store);
        let first = runs.partition_point(|run| run.first + run.blocks <= start);
        let is_needed = runs.get(first).is_some_and(|run| run.first < end);
        let needed = || backup.witness(self.store, start / BLOCKS_PER_PACK);
        is_needed && (self.witness.is_none() || self.witness == needed())
    }
}

impl Verifier<'_> {
    /// All disks. Reports unreadable and missing sources.
    fn find_sources(&mut self) -> Result<Vec<KnownSource>> {
        let sources = self.repository.sources()?;
        self.find(sources.damaged);
        self.find(self.repository.wrong_keys()?);
        let disks: BTreeSet<SourceId> = sources.disks.iter().map(|disk| disk.id).collect();
        for popular in &sources.popular {
            self.find_wrong_copies(popular)?;
            let users = self.repository.users(popular.id)?.into_iter();
            let missing = users.filter(|user| !disks.contains(user));
            let missing: Vec<_> = missing
                .map(|user| self.repository.missing_source(user))
                .collect();
            self.find(missing);
        }
        Ok(sources.disks)
    }

    fn find(&mut self, errors: impl IntoIterator<Item = RepositoryError>) {
        let findings = errors.into_iter().map(|error| Finding {
            message: error.to_string(),
            needed_by: Vec::new(),
        });
        self.verified.findings.extend(findings);
    }

    fn find_wrong_copies(&mut self, source: &KnownSource) -> Result<()> {
        let copies = self.repository.wrong_copies(source).into_iter();
        let wrong = copies.chain(self.repository.wrong_marks(source)?);
        self.find(wrong.map(|(_, error)| error));
        Ok(())
    }

    fn read_manifests(&mut self, source: &KnownSource) -> Result<()> {
        self.find_wrong_copies(source)?;
        let history = self.repository.history(source.id)?;
        self.find(history.check_complete(source).err());
        self.find(history.damaged);
        for backup in history.backups {
            match check_recipe(self.repository, source, backup) {
                Ok(None) => continue,
                Ok(Some(manifest)) => {
                    self.verified.objects += 1;
                    self.add(KnownBackup {
                        name: format!("{}@{backup}", source.source.name),
                        store: source.id,
                        popular_store: self.repository.popular_id(&source.source),
                        backup,
                        manifest,
                    });
                }
                Err(error) => self.verified.findings.push(Finding {
                    message: damage(error)?,
                    needed_by: vec![NeededBy {
                        name: format!("{}@{backup}", source.source.name),
                        blocks: 0,
                        places: Vec::new(),
                    }],
                }),
            }
            self.verified.backups += 1;
        }
        Ok(())
    }

    fn add(&mut self, backup: KnownBackup) {
        let own = backup
            .manifest
            .own_packs
            .iter()
            .map(|pack| (backup.store, pack));
        let popular = backup.manifest.popular_packs.iter();
        let popular = popular.map(|pack| (backup.popular_store, pack));
        for (store, pack) in own.chain(popular) {
            let needed_by = self.needed_by.entry((store, pack.number)).or_default();
            needed_by.push(self.backups.len());
        }
        self.backups.push(backup);
    }

    /// The backups that need a pack.
    fn needing(&self, store: SourceId, number: u64) -> impl Iterator<Item = &KnownBackup> {
        let needed_by = self.needed_by.get(&(store, number));
        let needed_by = needed_by.map_or(&[][..], Vec::as_slice);
        needed_by.iter().map(|at| &self.backups[*at])
    }

    /// The store of popular blocks to which blocks of a store may be moved.
    pub(crate) fn popular_of(&self, store: SourceId) -> SourceId {
        let mut backups = self.backups.iter();
        let of_store = backups.find(|backup| backup.store == store);
        of_store.map_or(store, |backup| backup.popular_store)
    }

    /// Checks the packs of the stores, and adds and checks the popular packs to which their blocks were moved.
    fn check_packs(
        &mut self,
        stores: &mut BTreeMap<SourceId, Packs>,
        report: Report<'_>,
    ) -> Result<()> {
        let mut done: BTreeSet<(SourceId, u64)> = BTreeSet::new();
        loop {
            // The popular packs to which blocks were moved are found along the way.
            let mut all = done.len() as u64;
            let mut next = Vec::new();
            for (store, packs) in &*stores {
                let numbers = packs.0.iter().copied();
                let new: Vec<_> = numbers
                    .filter(|number| !done.contains(&(*store, *number)))
                    .collect();
                all += new.len() as u64;
                next.push((*store, new));
            }
            if all == done.len() as u64 {
                break;
            }
            for (store, numbers) in next {
                self.recall_damage(store)?;
                let there: BTreeMap<u64, u32> = self.repository.packs(store)?.into_iter().collect();
                let popular = self.popular_of(store);
                for number in numbers {
                    let generation = there.get(&number).copied();
                    let moved_to = self.check_pack(store, number, generation)?;
                    stores.entry(popular).or_default().0.extend(moved_to);
                    done.insert((store, number));
                    report(done.len() as u64, all)?;
                }
                self.find_wrong_tables(store);
            }
        }
        Ok(())
    }

    /// Checks a pack. Returns the popular packs to which its blocks were moved.
    fn check_pack(
        &mut self,
        store: SourceId,
        number: u64,
        generation: Option<u32>,
    ) -> Result<Vec<u64>> {
        let first = number * BLOCKS_PER_PACK;
        let opened = match generation {
            Some(generation) => self.repository.pack_or_newer(store, number, generation),
            None => Ok(None),
        };
        match opened {
            // A concurrent prune removed the pack, or it is lost.
            Ok(None) => self.find_missing(store, number, None),
            Ok(Some(pack)) => {
                self.verified.objects += 1;
                self.check_table(store, &pack)?;
                match &self.key {
                    Some(key) => {
                        let found = self.found.entry(store).or_default();
                        let compared = compare(&pack, key, store, &mut self.damages, found)?;
                        self.verified.compared_bytes += compared;
                        self.compared.insert((store, number));
                    }
                    None => self.find_known(store, &pack),
                }
                self.find_replaced(store, &pack);
                self.find_missing(store, number, Some(&pack));
                let moved_to = pack.popular_packs().iter();
                return Ok(moved_to.map(|pack| pack.number).collect());
            }
            Err(error) => {
                self.damages.push(Damage {
                    store,
                    numbers: first..first + BLOCKS_PER_PACK,
                    witness: None,
                    message: damage(error.into())?,
                });
            }
        }
        Ok(Vec::new())
    }

    /// Reads the recorded damage of a store before any of its packs is read, so that a record is dropped only if the
    /// block was proved intact after the record was made.
    fn recall_damage(&mut self, store: SourceId) -> Result<()> {
        if !self.known.contains_key(&store) {
            let known = self.repository.known_damage(store)?;
            self.find(known.wrong().cloned().collect::<Vec<_>>());
            self.known.insert(store, known);
        }
        Ok(())
    }

    /// Reports recorded damage of a pack whose blocks are not compared now.
    fn find_known(&mut self, store: SourceId, pack: &Pack) {
        let PackReference { number, witness } = pack.reference();
        let known = self
            .known
            .get(&store)
            .map(|known| known.of(pack.reference()));
        let mut runs = Vec::new();
        for block in known.into_iter().flat_map(|blocks| blocks.iter()) {
            let slot = pack.slots().get(block as usize);
            // A lost block is reported anyway.
            if slot.is_some_and(|slot| slot.stored().is_some()) {
                push(&mut runs, number * BLOCKS_PER_PACK + block);
            }
        }
        self.damages.extend(runs.into_iter().map(|run| Damage {
            store,
            numbers: run.first..run.first + run.blocks,
            witness: Some(witness),
            message: stored_blocks(run, "known to be damaged since a verification"),
        }));
    }

    /// Records the damaged blocks that were found. Keeps earlier records of packs that were not compared.
    fn remember_damage(&mut self, stores: &BTreeMap<SourceId, Packs>, are_all: bool) {
        if self.key.is_none() {
            return;
        }
        for (store, known) in &self.known {
            let mut found = self.found.remove(store).unwrap_or_default();
            let packs = stores.get(store);
            found.add_known(known, |number| {
                let may_be_there = !are_all || packs.is_some_and(|packs| packs.0.contains(&number));
                may_be_there && !self.compared.contains(&(*store, number))
            });
            let remembered = self
                .repository
                .remember_damage(*store, &found, known, are_all);
            if let Err(error) = remembered {
                self.verified.not_remembered = Some(error);
            }
        }
    }

    /// Checks that a pack has an intact table and an intact copy of it.
    fn check_table(&mut self, store: SourceId, pack: &Pack) -> Result<()> {
        let wrong = match pack.table_damage() {
            Some(error) => format!("{error}; the copy of its table serves"),
            None => match self.repository.check_table(store, pack) {
                Ok(()) => return Ok(()),
                Err(error) => damage(error.into())?,
            },
        };
        self.wrong_tables.push((pack.reference().number, wrong));
        Ok(())
    }

    /// Reports the first packs of a store without a table of their own, or a copy of it: no block is lost by that.
    fn find_wrong_tables(&mut self, store: SourceId) {
        let wrong = std::mem::take(&mut self.wrong_tables);
        if wrong.is_empty() {
            return;
        }
        let packs = self.verified.packs.entry(store).or_default();
        packs.extend(wrong.iter().map(|(number, _)| number));
        let more = wrong.len().saturating_sub(TABLES_MAX) as u64;
        let named = wrong.into_iter().take(TABLES_MAX).map(|(_, wrong)| wrong);
        let more = (more > 0).then(|| {
            format!("the tables of {more} more packs, or copies of them, are damaged or missing")
        });
        let findings = named.chain(more).map(|message| Finding {
            message,
            needed_by: Vec::new(),
        });
        self.verified.findings.extend(findings);
    }

    /// Reports backups that need a different pack with the same number.
    fn find_replaced(&mut self, store: SourceId, pack: &Pack) {
        let PackReference { number, witness } = pack.reference();
        let needed = self.needing(store, number);
        let needed = needed.filter_map(|backup| backup.witness(store, number));
        let replaced: BTreeSet<Witness> = needed.filter(|needed| *needed != witness).collect();
        let first = number * BLOCKS_PER_PACK;
        self.damages
            .extend(replaced.into_iter().map(|witness| Damage {
                store,
                numbers: first..first + BLOCKS_PER_PACK,
                witness: Some(witness),
                message: format!(
                    "pack {number} is lost, and a different one with its number is in its place"
                ),
            }));
    }

    /// Reports the needed numbers of a pack that are not there, in runs.
    fn find_missing(&mut self, store: SourceId, number: u64, pack: Option<&Pack>) {
        let first = number * BLOCKS_PER_PACK;
        let there = pack.map_or(&[][..], Pack::slots);
        let witness = pack.map(|pack| pack.reference().witness);
        let mut needed = vec![false; BLOCKS_PER_PACK as usize];
        for backup in self.needing(store, number) {
            if witness.is_some() && backup.witness(store, number) != witness {
                continue;
            }
            for of_pack in runs_in(backup.needs_of(store), first..first + BLOCKS_PER_PACK) {
                needed[(of_pack.start - first) as usize..(of_pack.end - first) as usize].fill(true);
            }
        }
        let (mut lost, mut absent) = (Vec::new(), Vec::new());
        for (n, number) in (0..needed.len()).zip(first..).filter(|(n, _)| needed[*n]) {
            match there.get(n).copied().unwrap_or(Slot::Gone) {
                Slot::Stored(_) | Slot::Moved { .. } => {}
                Slot::Lost(_) => push(&mut lost, number),
                Slot::Gone => push(&mut absent, number),
            }
        }
        if let Some(pack) = pack {
            self.note_moved(store, pack, &needed);
        }
        for (runs, why) in [(lost, "damaged and not mended yet"), (absent, "in no pack")] {
            self.damages.extend(runs.into_iter().map(|run| {
                let numbers = run.first..run.first + run.blocks;
                Damage {
                    store,
                    numbers,
                    witness,
                    message: stored_blocks(run, why),
                }
            }));
        }
    }

    /// Finds the backups that need damaged blocks, and the affected ranges.
    fn name_places(mut self) -> Result<Verified> {
        let mut findings: Vec<_> = self
            .damages
            .iter()
            .map(|damage| Finding {
                message: damage.message.clone(),
                needed_by: Vec::new(),
            })
            .collect();
        for backup in &self.backups {
            let concerned = self.damages.iter().zip(&mut findings);
            let mut concerned: Vec<_> = concerned
                .filter(|(damage, _)| damage.concerns(backup))
                .map(|(damage, finding)| (damage, finding, 0, Vec::new()))
                .collect();
            if concerned.is_empty() {
                continue;
            }
            let recipe = match self.repository.recipe(backup.store, backup.backup) {
                // Forgotten by a concurrent command.
                Err(error) if error.kind() == RepositoryErrorKind::NotFound => continue,
                opened => opened?,
            };
            let mut at = 0;
            for page in 0..backup.manifest.recipe_pages.len() as u64 {
                for run in recipe.page(page)? {
                    let (store, first) = match run.target {
                        Target::Zeros => (None, 0),
                        Target::Own(first) => (Some(backup.store), first),
                        Target::Popular(first) => (Some(backup.popular_store), first),
                    };
                    for (damage, _, blocks, places) in &mut concerned {
                        let start = damage.numbers.start.max(first);
                        let end = damage.numbers.end.min(first + run.blocks);
                        if store == Some(damage.store) && start < end {
                            let place = AffectedRun {
                                first_block: at + (start - first),
                                blocks: end - start,
                            };
                            *blocks += place.blocks;
                            add_place(places, place);
                        }
                    }
                    at += run.blocks;
                }
            }
            for (_, finding, blocks, places) in concerned {
                finding.needed_by.push(NeededBy {
                    name: backup.name.clone(),
                    blocks,
                    places,
                });
            }
        }
        let unneeded = findings
            .iter_mut()
            .filter(|finding| finding.needed_by.is_empty());
        unneeded.for_each(|finding| finding.message += "; no backup needs it");
        self.verified.findings.extend(findings);
        for damage in &self.damages {
            let packs = self.verified.packs.entry(damage.store).or_default();
            packs.insert(damage.numbers.start / BLOCKS_PER_PACK);
        }
        Ok(self.verified)
    }
}

/// The intersections of ascending runs with a range.
fn runs_in(runs: &[NumberRun], range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = |run: &NumberRun| run.first + run.blocks;
    let before = runs.partition_point(|run| end(run) <= range.start);
    let there = runs[before..]
        .iter()
        .take_while(move |run| run.first < range.end);
    there.map(move |run| run.first.max(range.start)..end(run).min(range.end))
}

fn stored_blocks(run: NumberRun, state: &str) -> String {
    match run.blocks {
        1 => format!("stored block {} is {state}", run.first),
        blocks => {
            let last = run.first + blocks - 1;
            format!("stored blocks {} to {last} are {state}", run.first)
        }
    }
}

/// The message of an error that means damage; any other error ends the verification.
pub(crate) fn damage(error: BackupError) -> Result<String> {
    match &error {
        BackupError::Repository(inner) if inner.is_of_object() => Ok(error.to_string()),
        _ => Err(error),
    }
}

/// The manifest of a backup whose recipe can be read; `None` if another command has forgotten it since it was listed.
fn check_recipe(
    repository: &Repository,
    source: &KnownSource,
    backup: BackupNumber,
) -> Result<Option<Manifest>> {
    let recipe = match repository.recipe(source.id, backup) {
        Err(error) if error.kind() == RepositoryErrorKind::NotFound => {
            return Ok(repository.listed_manifest(source.id, backup)?);
        }
        recipe => recipe?,
    };
    for page in 0..recipe.manifest().recipe_pages.len() as u64 {
        recipe.page(page)?;
    }
    Ok(Some(recipe.manifest().clone()))
}
