//! Disks in memory are backed up into real folders: each is restored as it was and stored once, and whatever is
//! damaged, a restore never returns other data than was backed up.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "how tests fail")]

mod absence;
mod cache;
mod containment;
mod creating;
mod damage;
mod history;
mod overwriting;
mod planning;
mod popular;
mod pruning;
mod repairing;
mod rollback;
mod salvage;
mod sharing;
mod tables;
mod temporary;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use onefold_backup::{
    AffectedRun, BackupError, Batch, BlockReader, Change, Created, Difference, Disk, DiskToBackUp,
    NeededBy, Options, Restore, Result, TableCache, Verified, create, verify,
};
use onefold_format::backup::key::WRAPPED_BYTES;
use onefold_format::backup::{BackupNumber, Derivation, RecipeRun, Source, WrappedKey};
use onefold_repository::{Access, KnownSource, Repository, RepositoryErrorKind};

const BLOCK: usize = 4096;

/// A disk given by the content of each block; 0 stands for zeros.
#[derive(Clone, Default)]
struct MemoryDisk {
    contents: Vec<u64>,
    /// The changes that the disk reports; if `None`, all of its data.
    changes: Option<Vec<Change>>,
    /// Reading this block in the second pass returns other data.
    fickle: Option<(u64, u32)>,
    /// Bytes missing from the last block.
    cut: u64,
    /// Reading the second half of the disk fails.
    unreadable: bool,
}

fn block(content: u64) -> Vec<u8> {
    let word = |n: u64| match content {
        0 => 0,
        _ => (content << 32 | n).wrapping_mul(0x9e37_79b9_7f4a_7c15),
    };
    (0..BLOCK as u64 / 8)
        .flat_map(|n| word(n).to_le_bytes())
        .collect()
}

impl MemoryDisk {
    fn new(contents: impl IntoIterator<Item = u64>) -> Self {
        Self {
            contents: contents.into_iter().collect(),
            ..Self::default()
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self
            .contents
            .iter()
            .flat_map(|content| block(*content))
            .collect();
        bytes.truncate(self.size_bytes() as usize);
        bytes
    }

    /// The same disk, which reports its changes since `before` in whole blocks, as layers do.
    fn since(&self, before: &MemoryDisk) -> Self {
        let changed = (0..self.contents.len()).filter_map(|n| {
            let (now, then) = (self.contents[n], before.contents.get(n).copied());
            (then != Some(now)).then(|| Change {
                range: (n * BLOCK) as u64..((n + 1) * BLOCK) as u64,
                has_data: now != 0,
            })
        });
        Self {
            changes: Some(changed.collect()),
            ..self.clone()
        }
    }
}

impl Disk for &mut MemoryDisk {
    fn size_bytes(&self) -> u64 {
        MemoryDisk::size_bytes(self)
    }

    fn next_change(&mut self, start: u64) -> Result<Option<Change>> {
        MemoryDisk::next_change(self, start)
    }

    fn read(&mut self, at: u64, bytes: &mut [u8]) -> Result<()> {
        MemoryDisk::read(self, at, bytes)
    }
}

impl MemoryDisk {
    fn size_bytes(&self) -> u64 {
        (self.contents.len() * BLOCK) as u64 - self.cut
    }

    fn next_change(&mut self, start: u64) -> Result<Option<Change>> {
        if let Some(changes) = &self.changes {
            return Ok(changes
                .iter()
                .find(|change| change.range.end > start)
                .cloned());
        }
        let first = (start as usize).div_ceil(BLOCK);
        let found = (first..self.contents.len()).find(|n| self.contents[*n] != 0);
        Ok(found.map(|n| Change {
            range: (n * BLOCK) as u64..((n + 1) * BLOCK) as u64,
            has_data: true,
        }))
    }

    fn read(&mut self, at: u64, bytes: &mut [u8]) -> Result<()> {
        assert!(
            at + bytes.len() as u64 <= self.size_bytes(),
            "beyond the end"
        );
        for (piece, n) in bytes.chunks_mut(BLOCK).zip(at / BLOCK as u64..) {
            if self.unreadable && n as usize >= self.contents.len() / 2 {
                return Err(BackupError::Source("a bad sector".to_owned()));
            }
            let mut content = self.contents[n as usize];
            if let Some((fickle, times)) = &mut self.fickle
                && *fickle == n
            {
                *times += 1;
                content += u64::from(*times > 1);
            }
            piece.copy_from_slice(&block(content)[..piece.len()]);
        }
        Ok(())
    }
}

/// Creates a folder in memory if possible: making objects durable one by one is slow on a disk.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

struct Rig {
    folder: tempfile::TempDir,
    /// The host's cache.
    host: tempfile::TempDir,
    repository: Arc<Repository>,
    source: KnownSource,
}

fn source(name: &str) -> Source {
    Source {
        name: name.to_owned(),
        domain: "default".to_owned(),
        block_size: BLOCK as u32,
        origin: None,
    }
}

impl Rig {
    fn new(access: &Access) -> Self {
        let folder = scratch();
        let (repository, _) = Repository::init(&folder.path().join("r"), access, 1).unwrap();
        let source = repository.add_source(source("disk")).unwrap();
        Self {
            folder,
            host: scratch(),
            repository: Arc::new(repository),
            source,
        }
    }

    fn create(&self, disk: &mut MemoryDisk, parent: Option<BackupNumber>) -> Result<Created> {
        let mut batch = self.create_batch(&mut [(&self.source, disk)], parent)?;
        batch.backups.remove(0)
    }

    fn create_batch(
        &self,
        disks: &mut [(&KnownSource, &mut MemoryDisk)],
        parent: Option<BackupNumber>,
    ) -> Result<Batch> {
        let options = Options {
            tags: Vec::new(),
            host: String::new(),
            level: 1,
            threads: 2,
            memory_bytes: 1 << 20,
            temporary: std::env::temp_dir(),
        };
        let writers = disks.iter().map(|(source, _)| {
            let writer = self.repository.writer(source.id, "backup create");
            Ok(writer?)
        });
        let writers = writers.collect::<Result<Vec<_>>>()?;
        let disks = disks.iter_mut().zip(&writers);
        let mut disks: Vec<_> = disks
            .map(|((_, disk), writer)| DiskToBackUp {
                writer,
                disk: Box::new(&mut **disk),
                parent,
                base: None,
                unix_seconds: 7,
                snapshot: String::new(),
            })
            .collect();
        let cache = self.cache();
        let made = create(
            &self.repository,
            &mut disks,
            &options,
            Some(&cache),
            &mut |_, _| Ok(()),
        );
        assert!(cache.take_failure().is_none());
        made
    }

    fn cache(&self) -> TableCache {
        TableCache::open(self.host.path(), &self.repository, 1 << 20).unwrap()
    }

    fn check_parent(&self, source: &KnownSource, parent: BackupNumber) -> Result<()> {
        onefold_backup::check_parent(&self.repository, source, parent, Some(&self.cache()))
    }

    fn verify(&self, data: bool) -> Verified {
        verify(&self.repository, None, data, &mut |_, _| Ok(())).unwrap()
    }

    fn blocks(&self) -> Arc<BlockReader> {
        BlockReader::new(Arc::clone(&self.repository), 1 << 20)
    }

    fn restore(&self, backup: BackupNumber) -> Result<Vec<u8>> {
        self.restore_of(&self.source, backup)
    }

    /// Restores a backup in the order of addresses and in the order of packs.
    fn restore_of(&self, source: &KnownSource, backup: BackupNumber) -> Result<Vec<u8>> {
        let restore = Restore::open(&self.blocks(), source, backup, "test")?;
        let mut bytes = vec![0; restore.manifest().size_bytes as usize];
        let ordered = restore.read_all(None, &mut |at, data| {
            bytes[at as usize..at as usize + data.len()].copy_from_slice(data);
            Ok(())
        });
        let anywhere = Mutex::new(vec![0; bytes.len()]);
        let counts = restore.read_anywhere(2, 1 << 12, None, &|at, data| {
            let mut bytes = anywhere.lock().unwrap();
            bytes[at as usize..at as usize + data.len()].copy_from_slice(data);
            Ok(())
        });
        assert_eq!(ordered.is_ok(), counts.is_ok(), "{ordered:?}, {counts:?}");
        ordered?;
        assert!(bytes == *anywhere.lock().unwrap(), "read in two orders");
        let counted = counts?.bytes;
        assert_eq!(
            // The last block may be partial.
            counted.next_multiple_of(BLOCK as u64),
            restore.manifest().counts.logical_blocks * BLOCK as u64
        );
        Ok(bytes)
    }

    fn recipe(&self, backup: BackupNumber) -> Vec<Vec<RecipeRun>> {
        let recipe = self.repository.recipe(self.source.id, backup).unwrap();
        let pages = recipe.manifest().recipe_pages.len() as u64;
        (0..pages).map(|page| recipe.page(page).unwrap()).collect()
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        collect_files(self.folder.path(), &mut files);
        files.sort();
        files
    }
}

fn collect_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect_files(&path, files);
        } else {
            files.push(path);
        }
    }
}

/// States of a disk on successive days: some blocks are written, zeroed or copied each day.
fn days(seed: u64, blocks: usize, count: usize) -> Vec<MemoryDisk> {
    let mut random = fastrand::Rng::with_seed(seed);
    let first = (0..blocks).map(|n| match n % 5 {
        0 => 0,
        1 => 1 + n as u64 / 7,
        _ => 1000 + n as u64,
    });
    let mut disk = MemoryDisk::new(first);
    let mut days = vec![disk.clone()];
    for day in 1..count {
        for _ in 0..blocks / 20 {
            let at = random.usize(..blocks);
            disk.contents[at] = match random.u8(..4) {
                0 => 0,
                1 => disk.contents[random.usize(..blocks)],
                _ => (day as u64) << 20 | random.u64(..4096),
            };
        }
        days.push(disk.clone());
    }
    days
}

#[test]
fn every_day_is_restored_and_each_content_is_stored_once() {
    for access in [Access::Open, Access::Passphrase(b"a passphrase".to_vec())] {
        let rig = Rig::new(&access);
        let mut known = BTreeSet::new();
        let days = days(1, 3000, 5);
        for (n, day) in (1..).zip(&days) {
            let created = rig.create(&mut day.clone(), None).unwrap();
            assert_eq!(created.backup, BackupNumber(n));
            let before = known.len();
            known.extend(day.contents.iter().copied().filter(|content| *content != 0));
            let new = (known.len() - before) as u64;
            assert_eq!(created.manifest.counts.new_blocks, new, "day {n}");
            let data = day.contents.iter().filter(|content| **content != 0).count();
            assert_eq!(created.manifest.counts.logical_blocks, data as u64);
        }
        // Opens the repository again, as another process would.
        let root = rig.folder.path().join("r");
        let rig = Rig {
            repository: Arc::new(Repository::open(&root, &access).unwrap()),
            ..rig
        };
        for (n, day) in (1..).zip(&days) {
            assert!(
                rig.restore(BackupNumber(n)).unwrap() == day.bytes(),
                "day {n}"
            );
        }
        let verified = rig.verify(true);
        assert_eq!((verified.backups, verified.findings.len()), (5, 0));
        assert_eq!(verified.compared_bytes, (known.len() * BLOCK) as u64);
    }
}

#[test]
fn what_changed_may_be_known_or_not_and_the_backup_is_the_same() {
    let days = days(2, 2000, 4);
    let (told, full) = (Rig::new(&Access::Open), Rig::new(&Access::Open));
    let mut parent = None;
    for (n, day) in days.iter().enumerate() {
        let mut disk = match n {
            0 => day.clone(),
            _ => day.since(&days[n - 1]),
        };
        let one = told.create(&mut disk, parent).unwrap();
        let other = full.create(&mut day.clone(), None).unwrap();
        assert!(n == 0 || one.manifest.counts.read_blocks < other.manifest.counts.read_blocks / 4);
        assert_eq!(
            told.recipe(one.backup),
            full.recipe(other.backup),
            "day {n}"
        );
        assert_eq!(one.manifest.own, other.manifest.own);
        assert!(told.restore(one.backup).unwrap() == day.bytes());
        parent = Some(one.backup);
    }
}

/// The runs of a range, by the property that `each` gives for its blocks.
fn runs<T: PartialEq + Copy>(range: &Range<u64>, each: impl Fn(usize) -> T) -> Vec<(u64, T)> {
    let mut runs: Vec<(u64, T)> = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let end = (at / BLOCK as u64 + 1) * BLOCK as u64;
        let (bytes, what) = (end.min(range.end) - at, each(at as usize / BLOCK));
        match runs.last_mut() {
            Some(last) if last.1 == what => last.0 += bytes,
            _ => runs.push((bytes, what)),
        }
        at += bytes;
    }
    runs
}

#[test]
fn any_part_of_a_backup_is_read_and_compared() {
    let rig = Rig::new(&Access::Open);
    // More than one page of a recipe; the last block is partial.
    let mut days = days(3, 40_000, 3);
    days[1].contents.truncate(33_000);
    days[1].contents[32_999] = 0;
    days.iter_mut().for_each(|day| day.cut = 1000);
    let blocks = rig.blocks();
    let opened = days.iter().map(|day| {
        let made = rig.create(&mut day.clone(), None).unwrap();
        Restore::open(&blocks, &rig.source, made.backup, "test").unwrap()
    });
    let opened: Vec<Restore> = opened.collect();
    let mut random = fastrand::Rng::with_seed(4);
    let mut found_in_memory = 0;
    for round in 0..300 {
        let (now, then) = (random.usize(..3), random.usize(..3));
        let (restore, day) = (&opened[now], &days[now]);
        let size = day.size_bytes();
        let start = random.u64(..size);
        let len_max = if round % 10 == 0 { size } else { 300_000 };
        let range = start..(start + random.u64(1..len_max)).min(size);
        let content = |n: usize| day.contents[n];
        let before = |n: usize| days[then].contents.get(n).copied().unwrap_or(0);

        let small = range.start..range.end.min(range.start + 500_000);
        let mut bytes = vec![7; (small.end - small.start) as usize];
        restore.read(small.start, &mut bytes).unwrap();
        let mut from_memory = vec![7; bytes.len()];
        let is_there = restore.read_from_memory(small.start, &mut from_memory);
        let is_there = is_there.unwrap();
        assert!(!is_there || from_memory == bytes, "{small:?}");
        found_in_memory += usize::from(is_there);
        let first = small.start as usize / BLOCK;
        let last = (small.end as usize).div_ceil(BLOCK);
        let all: Vec<u8> = (first..last).flat_map(|n| block(content(n))).collect();
        let skipped = small.start as usize - first * BLOCK;
        assert!(bytes == all[skipped..skipped + bytes.len()], "{small:?}");

        let most = random.usize(1..1000);
        let extents = restore.extents(&range, most).unwrap();
        let extents = extents.iter().map(|run| (run.bytes, run.what));
        let expected = runs(&range, |n| content(n) != 0);
        assert!(extents.eq(expected.into_iter().take(most)), "{range:?}");

        let differences = restore.differences(&opened[then], &range, most).unwrap();
        let differences = differences.iter().map(|run| (run.bytes, run.what));
        let expected = runs(&range, |n| match (content(n), before(n)) {
            (now, then) if now == then => Difference::Same,
            (0, _) => Difference::Zeros,
            _ => Difference::Data,
        });
        assert!(differences.eq(expected.into_iter().take(most)), "{range:?}");
    }
    assert!((10..290).contains(&found_in_memory), "{found_in_memory}");
    // Reads zeros beyond the end.
    let mut bytes = [7; 2000];
    opened[0]
        .read(days[0].size_bytes() - 100, &mut bytes)
        .unwrap();
    assert!(bytes[100..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_disk_may_end_within_a_block_and_change_its_size() {
    let rig = Rig::new(&Access::Open);
    let mut disk = MemoryDisk::new(1..=40_000);
    disk.cut = 1000;
    let first = rig.create(&mut disk.clone(), None).unwrap();
    assert!(rig.restore(first.backup).unwrap() == disk.bytes());
    let smaller = MemoryDisk::new(1..=100).since(&MemoryDisk::new(1..=100));
    let second = rig
        .create(&mut smaller.clone(), Some(first.backup))
        .unwrap();
    assert!(rig.restore(second.backup).unwrap() == smaller.bytes());
    assert_eq!(second.manifest.counts.new_blocks, 0);
    let empty = rig.create(&mut MemoryDisk::default(), None).unwrap();
    assert!(rig.restore(empty.backup).unwrap().is_empty());
}

#[test]
fn a_disk_that_changes_meanwhile_is_refused_and_nothing_is_published() {
    let rig = Rig::new(&Access::Open);
    let mut disk = MemoryDisk::new(1..=500);
    disk.fickle = Some((123, 0));
    let refused = rig.create(&mut disk, None).unwrap_err();
    assert!(
        refused
            .to_string()
            .starts_with("'disk': block 123 of the source changed"),
        "{refused}"
    );
    assert!(rig.repository.backups(rig.source.id).unwrap().is_empty());
    // The remains of the failed backup do not get in the way.
    let created = rig.create(&mut MemoryDisk::new(1..=500), None).unwrap();
    assert!(rig.restore(created.backup).unwrap() == MemoryDisk::new(1..=500).bytes());
}

/// Flips every byte of a small repository in turn: restoring fails or returns the original data, and `verify` reports
/// damage.
#[test]
fn a_flipped_byte_never_gives_other_data_and_is_noticed() {
    for access in [Access::Open, Access::KeyFile(b"a key".to_vec())] {
        let rig = Rig::new(&access);
        let disks: Vec<_> = days(2, 40, 2);
        // Half of the blocks are popular.
        let other = rig.repository.add_source(source("other")).unwrap();
        for disk in &disks {
            let mut half = MemoryDisk::new(disk.contents[..20].to_vec());
            let mut both = [(&rig.source, &mut disk.clone()), (&other, &mut half)];
            let batch = rig.create_batch(&mut both, None).unwrap();
            assert!(batch.backups.iter().all(Result::is_ok));
        }
        assert_eq!(rig.repository.sources().unwrap().popular.len(), 1);
        let root = rig.folder.path().join("r");
        let mut outcomes = BTreeMap::new();
        for file in rig.files() {
            let good = std::fs::read(&file).unwrap();
            // A third of the bytes of small files, each bit in turn; of packs, the ends and samples in between. Fewer
            // without encryption, because only the cipher differs.
            let step = match (good.len() > 4096, &access) {
                (true, _) => 397,
                (false, Access::Open) => 17,
                (false, _) => 3,
            };
            let len = good.len();
            let at =
                (0..len).filter(|at| at % step == 0 || step > 7 && (*at < 90 || at + 200 > len));
            for at in at {
                let mut bad = good.clone();
                bad[at] ^= 1 << (at % 8);
                std::fs::write(&file, &bad).unwrap();
                let outcome = restored_or_refused(&root, &access, &disks);
                *outcomes.entry(outcome).or_insert(0) += 1;
                assert!(is_noticed(&root, &access), "byte {at} of {file:?}");
            }
            std::fs::write(&file, &good).unwrap();
        }
        assert!(outcomes[&false] > 300, "{outcomes:?}");
        assert!(restored_or_refused(&root, &access, &disks));
        assert!(!is_noticed(&root, &access));
    }
}

/// Whether the repository cannot be opened, or `verify` reports damage. Listing all backups must not panic.
fn is_noticed(root: &Path, access: &Access) -> bool {
    let Ok(repository) = Repository::open(root, access) else {
        return true;
    };
    for source in repository.sources().unwrap().disks {
        for backup in repository.backups(source.id).unwrap() {
            let _ = repository.manifest(source.id, backup);
        }
    }
    let verified = verify(&repository, None, true, &mut |_, _| Ok(()));
    verified.map_or(true, |verified| !verified.findings.is_empty())
}

/// Whether all backups are restored; other data fails the test.
fn restored_or_refused(root: &Path, access: &Access, disks: &[MemoryDisk]) -> bool {
    let restored = || -> Result<()> {
        let repository = Repository::open(root, access)?;
        let source = repository
            .source("disk")?
            .ok_or_else(|| BackupError::Source("there is no source".to_owned()))?;
        let blocks = BlockReader::new(Arc::new(repository), 1 << 20);
        for (n, disk) in (1..).zip(disks) {
            let restore = Restore::open(&blocks, &source, BackupNumber(n), "test")?;
            let mut bytes = vec![0; restore.manifest().size_bytes as usize];
            restore.read_all(None, &mut |at, data| {
                bytes[at as usize..at as usize + data.len()].copy_from_slice(data);
                Ok(())
            })?;
            assert!(bytes == disk.bytes(), "other data than was backed up");
        }
        Ok(())
    };
    restored().is_ok()
}

#[test]
fn a_lost_pack_fails_the_backups_that_need_it_and_no_other() {
    let rig = Rig::new(&Access::Open);
    let disks = [MemoryDisk::new(1..=300), MemoryDisk::new(301..=600)];
    for disk in &disks {
        rig.create(&mut disk.clone(), None).unwrap();
    }
    let packs: Vec<_> = rig
        .files()
        .into_iter()
        .filter(|path| path.to_string_lossy().contains("/packs/") && !path.ends_with("source"))
        .collect();
    assert_eq!(packs.len(), 2);
    for (lost, needed_by) in packs.iter().zip([1, 2]) {
        let aside = lost.with_extension("aside");
        std::fs::rename(lost, &aside).unwrap();
        let findings = rig.verify(false).findings;
        let [finding] = &findings[..] else {
            panic!("{findings:?}");
        };
        let needed_by_backup = NeededBy {
            name: format!("disk@{needed_by}"),
            blocks: 300,
            places: vec![AffectedRun {
                first_block: 0,
                blocks: 300,
            }],
        };
        assert_eq!(finding.needed_by, [needed_by_backup]);
        for (n, disk) in (1..).zip(&disks) {
            let restored = rig.restore(BackupNumber(n));
            assert_eq!(restored.is_ok(), n != needed_by);
            assert!(restored.is_err() || restored.unwrap() == disk.bytes());
        }
        std::fs::rename(&aside, lost).unwrap();
    }
}

#[test]
fn other_secrets_open_nothing() {
    let folder = scratch();
    let root = folder.path().join("r");
    let right = Access::Passphrase(b"right".to_vec());
    let (_, recovery) = Repository::init(&root, &right, 1).unwrap();
    let recovery = recovery.unwrap().to_string();
    let with_line_break = Access::KeyFile(format!("{recovery}\n").into_bytes());
    Repository::open(&root, &right).unwrap();
    Repository::open(&root, &with_line_break).unwrap();
    for wrong in [
        Access::Passphrase(b"wrong".to_vec()),
        Access::Passphrase(recovery.into_bytes()),
        Access::KeyFile(b"right".to_vec()),
        Access::Open,
    ] {
        let refused = Repository::open(&root, &wrong).unwrap_err();
        assert_eq!(refused.kind(), RepositoryErrorKind::Access, "{wrong:?}");
    }
    let again = Repository::init(&root, &right, 1).unwrap_err();
    assert_eq!(again.kind(), RepositoryErrorKind::Exists);
}

/// Keys are read before anything is authenticated, so a writer to the folder can add keys that are expensive to try.
#[test]
fn keys_that_cost_too_much_are_not_tried() {
    let folder = scratch();
    let root = folder.path().join("r");
    let right = Access::Passphrase(b"right".to_vec());
    let (repository, _) = Repository::init(&root, &right, 1).unwrap();
    // Trying these keys would take all of the machine's memory, or an hour.
    for (number, memory_kib, passes) in [(1, 4 << 20, 1), (2, 1 << 20, 1000), (3, 64 << 10, 11)] {
        let key = WrappedKey {
            number,
            derivation: Derivation::Passphrase {
                memory_kib,
                passes,
                lanes: 1,
            },
            salt: [7; 16],
            is_recovery: false,
            created_unix_seconds: 0,
            wrapped: [0; WRAPPED_BYTES],
        };
        let path = root.join(format!("keys/{number:016x}"));
        std::fs::write(path, key.encode(repository.id())).unwrap();
    }
    Repository::open(&root, &right).unwrap();
    let wrong = Access::Passphrase(b"wrong".to_vec());
    let refused = Repository::open(&root, &wrong).unwrap_err();
    assert_eq!(refused.kind(), RepositoryErrorKind::Access);
    assert!(refused.to_string().contains("are the limit"), "{refused}");
}

/// An encrypted repository reveals neither the names of sources nor blocks.
#[test]
fn a_reader_without_a_key_learns_no_name_and_no_block() {
    let folder = scratch();
    let root = folder.path().join("r");
    let (repository, _) = Repository::init(&root, &Access::KeyFile(b"k".to_vec()), 1).unwrap();
    let known = repository.add_source(source("a-secret-name")).unwrap();
    let rig = Rig {
        folder,
        host: scratch(),
        repository: Arc::new(repository),
        source: known,
    };
    let mut disk = MemoryDisk::new(1..=64);
    rig.create(&mut disk, None).unwrap();
    let plain = block(7);
    for file in rig.files() {
        let bytes = std::fs::read(&file).unwrap();
        let has = |what: &[u8]| bytes.windows(what.len()).any(|window| window == what);
        assert!(!has(b"a-secret-name") && !has(&plain[..64]));
        assert!(!file.to_string_lossy().contains("secret-name"));
    }
}
