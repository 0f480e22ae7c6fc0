//! The host dies at any moment, and any change may fail on a full disk. Every backup that was reported as made is
//! whole, any other backup is whole or absent, and all commands work afterwards. A seed determines the run;
//! `ONEFOLD_SIM_BASE` and `ONEFOLD_SIM_RUNS` choose others.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "how tests fail")]

mod file_systems;
mod killed;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use onefold_backup::{
    BackupError, BlockReader, Change, Disk, DiskToBackUp, Options, PruneOptions, RepairPlan,
    Restore, Result, ShareOptions, create, prune, prune_popular, relatives, repair, share, verify,
};
use onefold_format::backup::{BackupNumber, Source};
use onefold_repository::{Access, KnownSource, Repository, RepositoryErrorKind, simulation};

const BLOCK: usize = 4096;
const SOURCES: usize = 2;

/// A disk given by the content of each block; 0 stands for zeros.
#[derive(Clone, PartialEq, Eq)]
struct MemoryDisk(Vec<u16>);

fn block(content: u16) -> Vec<u8> {
    let word = u64::from(content).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word.to_le_bytes().repeat(BLOCK / 8)
}

impl MemoryDisk {
    fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|content| block(*content)).collect()
    }
}

impl Disk for MemoryDisk {
    fn size_bytes(&self) -> u64 {
        (self.0.len() * BLOCK) as u64
    }

    fn next_change(&mut self, start: u64) -> Result<Option<Change>> {
        let size = self.size_bytes();
        Ok((start < size).then_some(Change {
            range: start..size,
            has_data: true,
        }))
    }

    fn read(&mut self, at: u64, bytes: &mut [u8]) -> Result<()> {
        for (piece, n) in bytes.chunks_mut(BLOCK).zip(at as usize / BLOCK..) {
            piece.copy_from_slice(&block(self.0[n]));
        }
        Ok(())
    }
}

/// A backup: the index of its source, and its number.
type Name = (usize, u64);

/// The expected state of a backup.
#[derive(Clone)]
struct Fact {
    disk: MemoryDisk,
    /// The backup may be there.
    may_be: bool,
    /// The backup must be there.
    must_be: bool,
}

#[derive(Clone, Default)]
struct Facts {
    backups: BTreeMap<Name, Fact>,
    /// The highest backup number of each source that any command has seen.
    seen: [u64; SOURCES],
}

struct World {
    repository: Arc<Repository>,
    sources: Vec<KnownSource>,
    facts: Facts,
    /// The facts, and the number of the change from which on they hold.
    history: Vec<(usize, Facts)>,
}

const ALL_WASTE: PruneOptions = PruneOptions {
    wasted_percent: 0,
    rewrite_bytes_max: u64::MAX,
    level: 1,
};

fn source(n: usize) -> Source {
    Source {
        name: format!("vm-{n}"),
        domain: "default".to_owned(),
        block_size: BLOCK as u32,
        origin: None,
    }
}

impl World {
    /// Opens the repository, and adds missing sources.
    fn open(root: &Path, facts: Facts) -> Result<Self> {
        let repository = Arc::new(Repository::open(root, &Access::Open)?);
        let sources = (0..SOURCES).map(|n| match repository.source(&source(n).name)? {
            Some(known) => Ok(known),
            None => repository.add_source(source(n)),
        });
        let sources = sources.collect::<onefold_repository::Result<_>>()?;
        Ok(Self {
            repository,
            sources,
            history: vec![(simulation::changes(), facts.clone())],
            facts,
        })
    }

    /// The same repository, opened by another process.
    fn reopened(self, root: &Path) -> Self {
        let Self { facts, history, .. } = self;
        let opened = Self::open(root, facts).unwrap();
        Self { history, ..opened }
    }

    /// Changes the facts as of now.
    fn note(&mut self, change: impl FnOnce(&mut Facts)) {
        change(&mut self.facts);
        self.history
            .push((simulation::changes(), self.facts.clone()));
    }

    fn create(&mut self, disks: &[(usize, MemoryDisk)]) -> Result<()> {
        let options = Options {
            tags: Vec::new(),
            host: String::new(),
            level: 1,
            threads: 1,
            memory_bytes: 1 << 20,
            temporary: std::env::temp_dir(),
        };
        let repository = Arc::clone(&self.repository);
        let writers = disks.iter().map(|(n, _)| {
            let source = self.sources[*n].id;
            Ok(repository.writer(source, "backup create")?)
        });
        let writers = writers.collect::<Result<Vec<_>>>()?;
        for ((n, disk), writer) in disks.iter().zip(&writers) {
            let number = repository.history(writer.source().id)?.next.0;
            assert!(number > self.facts.seen[*n], "number {number} comes again");
            let fact = Fact {
                disk: disk.clone(),
                may_be: true,
                must_be: false,
            };
            self.note(|facts| {
                facts.backups.insert((*n, number), fact);
            });
        }
        let each = disks.iter().zip(&writers);
        let mut opened: Vec<_> = each
            .map(|((_, disk), writer)| DiskToBackUp {
                writer,
                disk: Box::new(disk.clone()),
                parent: None,
                base: None,
                unix_seconds: 7,
                snapshot: String::new(),
            })
            .collect();
        let batch = create(&repository, &mut opened, &options, None, &mut |_, _| Ok(()))?;
        for ((n, _), made) in disks.iter().zip(batch.backups) {
            let number = made?.backup.0;
            self.note(|facts| {
                facts.seen[*n] = number;
                facts.backups.get_mut(&(*n, number)).unwrap().must_be = true;
            });
        }
        Ok(())
    }

    fn forget(&mut self, name: Name) -> Result<()> {
        self.note(|facts| facts.backups.get_mut(&name).unwrap().must_be = false);
        let source = self.sources[name.0].id;
        self.repository.forget(source, BackupNumber(name.1))?;
        self.note(|facts| facts.backups.get_mut(&name).unwrap().may_be = false);
        Ok(())
    }

    fn prune(&mut self) -> Result<()> {
        let nothing = &mut |_, _| Ok(());
        for source in &self.sources {
            let writer = self.repository.writer(source.id, "backup prune")?;
            prune(&writer, &ALL_WASTE, nothing)?;
        }
        for popular in self.repository.sources()?.popular {
            let writer = self.repository.writer(popular.id, "backup prune")?;
            prune_popular(&writer, &ALL_WASTE, 10, 0, nothing)?;
        }
        Ok(())
    }

    fn share(&mut self) -> Result<()> {
        let options = ShareOptions {
            level: 1,
            threads: 1,
            memory_bytes: 1 << 16,
        };
        for relatives in relatives(&self.repository, self.sources.clone()) {
            let popular = self.repository.popular(&relatives.sources[0].source)?;
            let writer = self.repository.writer(popular.id, "backup share")?;
            share(&writer, &relatives, &options, &mut |_, _| Ok(()))?;
        }
        Ok(())
    }

    /// Checks that each content is stored once.
    fn check_distinct(&self, what: &str) {
        let disks = self.facts.backups.values().flat_map(|fact| &fact.disk.0);
        let mut contents: Vec<u16> = disks.copied().filter(|content| *content > 0).collect();
        contents.sort_unstable();
        contents.dedup();
        let all = self.repository.sources().unwrap();
        let mut stored = 0;
        for store in all.disks.iter().chain(&all.popular) {
            for (number, generation) in self.repository.pack_generations(store.id).unwrap() {
                let pack = self.repository.pack(store.id, number, generation).unwrap();
                let slots = pack.slots().iter();
                stored += slots.filter(|slot| slot.stored().is_some()).count();
            }
        }
        assert_eq!(stored, contents.len(), "{what}");
    }

    fn repair(&mut self) -> Result<()> {
        let nothing = &mut |_, _| Ok(());
        for sick in RepairPlan::new(&self.repository, nothing)?.sick {
            let writer = self.repository.writer(sick.of.id, "backup repair")?;
            repair(&writer, &self.repository, &sick, 1, nothing)?;
        }
        Ok(())
    }

    /// Checks that every backup that must be there is, and that every backup that is there is whole.
    fn check(&mut self, what: &str) {
        let blocks = BlockReader::new(Arc::clone(&self.repository), 1 << 20);
        for (n, source) in self.sources.iter().enumerate() {
            let history = self.repository.history(source.id).unwrap();
            let missing = history.check_complete(source);
            missing.unwrap_or_else(|e| panic!("{what}: {e}"));
            let listed = history.backups;
            let must_be = self
                .facts
                .backups
                .iter()
                .filter(|(name, fact)| name.0 == n && fact.must_be);
            for ((_, number), _) in must_be {
                assert!(
                    listed.contains(&BackupNumber(*number)),
                    "{what}: vm-{n}@{number} is gone"
                );
            }
            for number in listed {
                let fact = self.facts.backups.get_mut(&(n, number.0));
                let fact = fact.filter(|fact| fact.may_be);
                let fact = fact.unwrap_or_else(|| panic!("{what}: vm-{n}@{number} is there"));
                fact.must_be = true;
                self.facts.seen[n] = self.facts.seen[n].max(number.0);
                let restore = Restore::open(&blocks, source, number, "test");
                let restore = restore.unwrap_or_else(|e| panic!("{what}: vm-{n}@{number}: {e}"));
                let mut bytes = vec![0; restore.manifest().size_bytes as usize];
                let read = restore.read(0, &mut bytes);
                read.unwrap_or_else(|e| panic!("{what}: vm-{n}@{number}: {e}"));
                assert!(
                    bytes == fact.disk.bytes(),
                    "{what}: vm-{n}@{number} is another"
                );
            }
        }
        // A backup that is not there now does not come back.
        let listed: Vec<Name> = (0..SOURCES)
            .flat_map(|n| {
                let listed = self.repository.backups(self.sources[n].id).unwrap();
                listed.into_iter().map(move |number| (n, number.0))
            })
            .collect();
        self.facts.backups.retain(|name, _| listed.contains(name));
    }

    /// Checks that every command works again.
    fn go_on(&mut self, random: &mut fastrand::Rng, what: &str) {
        let fine = |done: Result<()>| done.unwrap_or_else(|e| panic!("{what}: {e}"));
        let disks: Vec<_> = (0..SOURCES).map(|n| (n, disk(random))).collect();
        fine(self.create(&disks));
        self.check(what);
        if let Some(name) = self.facts.backups.keys().next().copied() {
            fine(self.forget(name));
        }
        fine(self.share());
        fine(self.prune());
        self.check(what);
        self.check_distinct(what);
        let verified = verify(&self.repository, None, true, &mut |_, _| Ok(()));
        let findings = verified.unwrap().findings;
        assert!(findings.is_empty(), "{what}: {findings:?}");
    }
}

fn disk(random: &mut fastrand::Rng) -> MemoryDisk {
    let blocks = random.usize(1..100);
    // Few contents, so that disks share some and return to earlier ones.
    MemoryDisk((0..blocks).map(|_| random.u16(..150)).collect())
}

/// Runs some commands, one after the other; each fails where a change does.
fn commands(world: &mut World, random: &mut fastrand::Rng) {
    for _ in 0..random.usize(2..7) {
        let known: Vec<Name> = world
            .facts
            .backups
            .iter()
            .filter(|(_, fact)| fact.must_be)
            .map(|(name, _)| *name)
            .collect();
        // A failed command is not repeated; its changes count.
        let _ = match random.u8(..10) {
            0 | 1 => {
                let disks: Vec<_> = (0..SOURCES).map(|n| (n, disk(random))).collect();
                world.create(&disks)
            }
            2 | 3 => world.create(&[(random.usize(..SOURCES), disk(random))]),
            4 | 5 if !known.is_empty() => world.forget(known[random.usize(..known.len())]),
            6 => world.repair(),
            7 | 8 => world.share(),
            _ => world.prune(),
        };
    }
}

/// Creates a folder in memory if possible: the simulation decides which changes are durable.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

fn seeds(runs: u64) -> std::ops::Range<u64> {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|value| value.parse().ok())
    };
    let base = number("ONEFOLD_SIM_BASE").unwrap_or(1);
    base..base + number("ONEFOLD_SIM_RUNS").unwrap_or(runs)
}

#[test]
fn the_host_may_die_at_any_moment() {
    for seed in seeds(60) {
        let folder = folder();
        let root = folder.path().join("r");
        std::fs::create_dir(&root).unwrap();
        let mut random = fastrand::Rng::with_seed(seed);
        simulation::restart_host();
        simulation::begin(None);
        Repository::init(&root, &Access::Open, 1).unwrap();
        let first = simulation::changes();
        let mut world = World::open(&root, Facts::default()).unwrap();
        commands(&mut world, &mut random);
        world.check(&format!("seed {seed}"));
        let noted = simulation::end();
        let what = format!("seed {seed}");
        die_and_check(&what, &noted, first, &world.history, &root, &mut random);
    }
}

/// Lets the host die at some moments from change `first` on, and checks each time that nothing is missing and that all
/// commands work.
fn die_and_check(
    what: &str,
    noted: &simulation::Noted,
    first: usize,
    history: &[(usize, Facts)],
    root: &Path,
    random: &mut fastrand::Rng,
) {
    let all = noted.count();
    for _ in 0..25 {
        let death = random.usize(first..=all);
        let what = format!("{what}, death after {death} of {all} changes");
        let before = history.iter().rev().find(|(at, _)| *at <= death);
        let facts = before.map_or_else(Facts::default, |(_, facts)| facts.clone());
        let after = folder();
        let target = after.path().join("r");
        std::fs::create_dir(&target).unwrap();
        noted
            .after_death(death, root, &target, &mut |end| random.usize(..end))
            .unwrap();
        simulation::restart_host();
        let opened = World::open(&target, facts);
        let mut world = opened.unwrap_or_else(|e| panic!("{what}: {e}"));
        world.check(&what);
        world.go_on(random, &what);
    }
}

#[test]
fn a_full_repository_is_restored_from() {
    let folder = folder();
    let root = folder.path().join("r");
    simulation::restart_host();
    Repository::init(&root, &Access::Open, 1).unwrap();
    let mut world = World::open(&root, Facts::default()).unwrap();
    let disk = MemoryDisk((1..60).collect());
    world.create(&[(0, disk.clone())]).unwrap();
    let mut fails_at = 0;
    loop {
        simulation::begin(Some(fails_at));
        let blocks = BlockReader::new(Arc::clone(&world.repository), 1 << 20);
        let restore = Restore::open(&blocks, &world.sources[0], BackupNumber(1), "test").unwrap();
        let changes = simulation::changes();
        let mut bytes = vec![0; disk.0.len() * BLOCK];
        restore.read(0, &mut bytes).unwrap();
        assert!(bytes == disk.bytes());
        drop(restore);
        let _ = simulation::end();
        if changes < fails_at {
            break;
        }
        fails_at += 1;
    }
    assert!(fails_at > 3, "{fails_at}");
}

fn is_full(error: &BackupError) -> bool {
    matches!(error, BackupError::Repository(error) if error.kind() == RepositoryErrorKind::NoSpace)
}

/// Prune uses the reserved space, and removes packs before it writes any again, because writing needs space.
#[test]
fn a_full_repository_is_pruned() {
    const ASIDE_BYTES: u64 = 8 << 10;
    let folder = folder();
    let root = folder.path().join("r");
    simulation::restart_host();
    Repository::init(&root, &Access::Open, 1).unwrap();
    let mut world = World::open(&root, Facts::default()).unwrap();
    for contents in [1..2000, 1000..2000, 3000..5000] {
        world
            .create(&[(0, MemoryDisk(contents.collect()))])
            .unwrap();
    }
    let repository = Arc::clone(&world.repository);
    assert!(repository.set_room_aside(ASIDE_BYTES).unwrap());
    simulation::set_room(Some(0));
    assert!(is_full(&world.forget((0, 1)).unwrap_err()));
    assert!(is_full(&world.prune().unwrap_err()));
    let room = repository.make_room(ASIDE_BYTES).unwrap();
    for backup in [1, 3] {
        room.with(is_full, || world.forget((0, backup))).unwrap();
    }
    room.with(is_full, || world.prune()).unwrap();
    let left = simulation::room().unwrap();
    assert!(left > 30 << 10, "{left}");
    drop(room);
    // Setting room aside once is enough.
    assert!(repository.set_room_aside(ASIDE_BYTES).unwrap());
    assert_eq!(simulation::room().unwrap(), left - ASIDE_BYTES - 512);
    assert!(repository.give_up_room().unwrap());
    assert!(!repository.give_up_room().unwrap());
    simulation::set_room(Some(100));
    assert!(!repository.set_room_aside(ASIDE_BYTES).unwrap());
    simulation::set_room(None);
    assert!(repository.foreign(None).unwrap().names.is_empty());
    world.check("a full repository");
    world.go_on(&mut fastrand::Rng::with_seed(1), "a full repository");
}

#[test]
fn any_change_may_fail() {
    for seed in seeds(60) {
        let folder = folder();
        let root = folder.path().join("r");
        let mut random = fastrand::Rng::with_seed(seed);
        simulation::restart_host();
        Repository::init(&root, &Access::Open, 1).unwrap();
        let mut world = World::open(&root, Facts::default()).unwrap();
        for round in 0..6 {
            let fails_at = random.usize(..120);
            simulation::begin(Some(fails_at));
            commands(&mut world, &mut random);
            let _ = simulation::end();
            let what = format!("seed {seed}, round {round}, change {fails_at} failed");
            // A lease that could not be released ends with its process.
            simulation::restart_host();
            world.check(&what);
        }
        world.go_on(&mut random, &format!("seed {seed}"));
    }
}

/// Finds a source by name, even if it is half removed.
fn find(repository: &Repository, name: &str) -> Option<KnownSource> {
    let known = repository.source(name).unwrap();
    known.or_else(|| repository.half_removed(name).unwrap())
}

#[test]
fn a_source_is_removed_whenever_the_host_dies() {
    let folder = folder();
    let root = folder.path().join("r");
    std::fs::create_dir(&root).unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    simulation::restart_host();
    simulation::begin(None);
    Repository::init(&root, &Access::Open, 1).unwrap();
    let mut world = World::open(&root, Facts::default()).unwrap();
    // Both sources need popular blocks, and the first has closed numbers of every kind.
    let disk = |first: u16| MemoryDisk((first..first + 90).collect());
    world.create(&[(0, disk(1)), (1, disk(30))]).unwrap();
    world.create(&[(0, disk(20)), (1, disk(50))]).unwrap();
    world.forget((0, 1)).unwrap();
    world.prune().unwrap();
    world.create(&[(0, disk(40))]).unwrap();
    world.forget((0, 2)).unwrap();
    let removed = world.sources[0].clone();
    let mut kept = world.facts.clone();
    kept.backups.retain(|name, _| name.0 == 1);
    kept.seen[0] = 0;
    let first = simulation::changes();
    world.repository.remove_source(removed.id).unwrap();
    let noted = simulation::end();
    let all = noted.count();
    assert!(all - first > 30, "{first} to {all}");
    for death in first..=all {
        let what = format!("death after {death} of {all} changes");
        let target = folder.path().join("after");
        std::fs::create_dir(&target).unwrap();
        noted
            .after_death(death, &root, &target, &mut |end| random.usize(..end))
            .unwrap();
        simulation::restart_host();
        let repository = Arc::new(Repository::open(&target, &Access::Open).unwrap());
        let clean = |what: &str| {
            let verified = verify(&repository, None, true, &mut |_, _| Ok(())).unwrap();
            assert!(
                verified.findings.is_empty(),
                "{what}: {:?}",
                verified.findings
            );
        };
        clean(&what);
        if let Some(found) = find(&repository, "vm-0") {
            assert_eq!(found.id, removed.id, "{what}");
            repository.remove_source(found.id).unwrap();
        }
        assert!(find(&repository, "vm-0").is_none(), "{what}");
        let left = repository.stored_bytes(removed.id).unwrap();
        assert_eq!(left, 0, "{what}");
        clean(&format!("{what}, and again"));
        // A new source with the same name is a different source, and the other source is not affected.
        let mut world = World::open(&target, kept.clone()).unwrap();
        assert_ne!(world.sources[0].id, removed.id, "{what}");
        world.check(&what);
        // Only sometimes, because it takes longer than everything else.
        if death % 8 == 0 {
            world.go_on(&mut random, &what);
        }
        drop(world);
        std::fs::remove_dir_all(&target).unwrap();
    }
}

#[test]
fn init_can_be_repeated_whenever_it_failed_or_the_host_died() {
    let access = Access::KeyFile(vec![7; 32]);
    let folder = folder();
    let root = folder.path().join("r");
    std::fs::create_dir(&root).unwrap();
    simulation::begin(None);
    Repository::init(&root, &access, 1).unwrap();
    let noted = simulation::end();
    let mut random = fastrand::Rng::with_seed(1);
    let (mut repeated, mut whole) = (0, 0);
    for moment in 0..=noted.count() {
        let target = folder.path().join(format!("died-{moment}"));
        std::fs::create_dir(&target).unwrap();
        noted
            .after_death(moment, &root, &target, &mut |end| random.usize(..end))
            .unwrap();
        match Repository::find(&target) {
            Ok(found) => {
                found.open(&access).unwrap();
                whole += 1;
            }
            Err(_) => {
                Repository::init(&target, &access, 1).unwrap();
                repeated += 1;
            }
        }
        let repository = Repository::open(&target, &access).unwrap();
        assert!(repository.wrong_keys().unwrap().is_empty());
        assert_eq!(repository.keys().unwrap().len(), 2);
        assert_eq!(repository.foreign(None).unwrap().names, [""; 0]);

        let target = folder.path().join(format!("failed-{moment}"));
        simulation::begin(Some(moment));
        let made = Repository::init(&target, &access, 1);
        let is_last = simulation::changes() < moment;
        let _ = simulation::end();
        if made.is_err() {
            Repository::init(&target, &access, 1).unwrap();
        }
        let repository = Repository::open(&target, &access).unwrap();
        assert_eq!(repository.keys().unwrap().len(), 2, "{moment}");
        assert!(!is_last);
    }
    assert!(repeated > 20 && whole > 3, "{repeated} {whole}");
}
