//! Damages every kind of object of a repository in every way, and runs every command: none may return wrong
//! data or report "nothing wrong", and no more is lost than the object held. The table is printed.

use crate::harness::{Scene, is_left_out_in_ceph, noise, overwrite};
use onefold_backup::{BlockReader, Restore};
use onefold_format::backup::{BackupNumber, SourceId};
use onefold_repository::{Access, KnownSource, Repository};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const KEY: &[u8] = b"a key file of more than thirty-two bytes";
const DISK_BYTES: usize = 256 << 10;

/// Commands, and whether they change the repository. `create` by layers uses a user's snapshot as its base,
/// so that it leaves the pool unchanged.
const COMMANDS: [(&str, &[&str], bool); 10] = [
    ("list", &["list"], false),
    ("show", &["show", "web@3"], false),
    ("verify", &["verify"], false),
    ("data", &["verify", "--data"], false),
    ("restore", &["restore", "web@3", "-"], false),
    ("layers", &["create", "--hurry", "web@s4"], true),
    ("full", &["create", "--hurry", "--full", "web@s4"], true),
    ("forget", &["forget", "db@2", "--yes"], true),
    ("prune", &["prune", "--wasted", "0%", "--yes"], true),
    ("repair", &["repair", "--yes"], true),
];

/// Damage that `verify` does not notice, and why that is correct.
const UNNOTICED: [(&str, &[Damage], &str); 6] = [
    (
        "keys/N",
        &[Damage::Removed],
        "another key opens the repository, and keys may be removed",
    ),
    (
        "sources/DISK/closed/N",
        &[Damage::Removed, Damage::OfFork, Damage::FolderAway],
        "tombstones close the numbers, too",
    ),
    (
        "sources/DISK/forgotten/N",
        &[Damage::Removed],
        "it was folded, and the number is closed",
    ),
    (
        "sources/DISK/labels/N",
        &[Damage::Removed, Damage::OfFork, Damage::FolderAway],
        "the source has the name that it had before",
    ),
    (
        "sources/DISK/protected/N",
        &[Damage::Removed, Damage::OfFork, Damage::FolderAway],
        "it protects against mistakes, not against the storage",
    ),
    (
        "sources/POPULAR/users/DISK",
        &[Damage::OfFork],
        "it says the same",
    ),
];

/// Backups that are lost with an object, even if a command restores the object.
fn held_by(case: &Case<'_>) -> &'static [&'static str] {
    match (case.kind, case.damage, case.command) {
        // The fork's manifest needs other packs, so the packs of the previous backup are pruned.
        ("sources/DISK/backups/N", Damage::OfFork, "prune") => &["web@3"],
        // Repair removes the damaged blocks from the next generation of the pack, which is the valid one from
        // then on.
        ("sources/POPULAR/packs/N/N", Damage::Flipped, "repair") => {
            &["db@1", "db@2", "db@3", "web@2", "web@3"]
        }
        _ => &[],
    }
}

/// A source that a command created because it did not see the existing one.
const NEW: &str = "new";

/// A kind of damage to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    Removed,
    Emptied,
    Cut,
    Flipped,
    /// Replaced by the authentic object of the same name from a fork: a copy of the repository that has
    /// diverged.
    OfFork,
    /// Replaced by another authentic object of the same kind.
    Another,
    FolderAway,
}

const DAMAGES: [Damage; 7] = [
    Damage::Removed,
    Damage::Emptied,
    Damage::Cut,
    Damage::Flipped,
    Damage::OfFork,
    Damage::Another,
    Damage::FolderAway,
];

/// A repository with all kinds of objects, and the expected content of its backups.
struct World {
    scene: Scene,
    /// The intact repository, a copy of it that diverged two backups ago, and the one that is damaged.
    whole: PathBuf,
    fork: PathBuf,
    damaged: PathBuf,
    contents: BTreeMap<String, Vec<u8>>,
    /// The ids of the sources.
    sources: Vec<SourceId>,
}

impl World {
    fn new() -> Self {
        // Thousands of objects are synced one by one, which takes no time in memory.
        let memory = Path::new("/dev/shm");
        let temporary = std::env::temp_dir();
        let parent = if memory.is_dir() { memory } else { &temporary };
        let mut scene = Scene::in_directory(parent, &["--size", "1G"]);
        let key = scene.secret("key", KEY);
        scene.set("ONEFOLD_KEY_FILE", key);
        let [whole, fork, damaged] =
            ["whole", "fork", "repository"].map(|name| PathBuf::from(scene.path(name)));
        let mut world = Self {
            scene,
            whole,
            fork,
            damaged,
            contents: BTreeMap::new(),
            sources: Vec::new(),
        };
        world.make();
        world
    }

    /// Runs as a host that has not used the repository before, so only the repository itself shows the
    /// damage.
    fn run(&self, repository: &Path, arguments: &[&str]) -> crate::harness::Outcome {
        let _ = fs::remove_dir_all(self.scene.path("state"));
        let (repository, key) = (repository.to_str().unwrap(), self.scene.path("key"));
        let with = ["--repository", repository, "--key-file", &key];
        self.scene.run(&[&["backup"], arguments, &with].concat())
    }

    #[track_caller]
    fn ok(&self, repository: &Path, arguments: &[&str]) {
        let outcome = self.run(repository, arguments);
        assert_eq!(outcome.code, Some(0), "{arguments:?}: {outcome:?}");
    }

    /// Backs up a snapshot of `web` and the image `db`, with their content of a given day.
    fn back_up(&mut self, repository: &Path, snapshot: &str, day: u64, is_kept: bool) {
        let db = self.scene.path("db");
        let mut content = noise(1, DISK_BYTES / 2);
        content.extend(noise(100 + day, DISK_BYTES / 2));
        fs::write(&db, &content).unwrap();
        self.scene.ok(&["snapshot", "create", snapshot]);
        self.ok(repository, &["create", snapshot, &format!("db={db}")]);
        if is_kept {
            let web = self.scene.content(snapshot);
            self.contents.insert(format!("web@{day}"), web);
            self.contents.insert(format!("db@{day}"), content);
        }
    }

    fn make(&mut self) {
        let (whole, fork) = (self.whole.clone(), self.fork.clone());
        let mut web = noise(1, DISK_BYTES / 2);
        web.extend(noise(2, DISK_BYTES / 2));
        let image = self.scene.file("web", &web);
        self.scene.ok(&["volume", "import", "web", &image]);
        self.ok(&whole, &["init"]);
        let daemon = self.scene.daemon();
        for day in 1..=2 {
            overwrite(&self.scene, "web", 200 << 10, day as u8, 16 << 10);
            self.back_up(&whole, &format!("web@s{day}"), day, true);
        }
        self.ok(&whole, &["forget", "web@1", "--yes"]);
        copy(&whole, &fork);
        overwrite(&self.scene, "web", 220 << 10, 77, 16 << 10);
        self.back_up(&fork, "web@fork", 33, false);
        for day in 3..=4 {
            overwrite(&self.scene, "web", 200 << 10, day as u8, 16 << 10);
            match day {
                3 => self.back_up(&whole, "web@s3", day, true),
                _ => drop(self.scene.ok(&["snapshot", "create", "web@s4"])),
            }
        }
        self.contents
            .insert("web@4".to_owned(), self.scene.content("web@s4"));
        self.contents.remove("web@1");
        drop(daemon);
        let repository = Repository::open(&whole, &access()).unwrap();
        let sources = ["web", "db"].map(|name| repository.source(name).unwrap().unwrap().id);
        self.sources = sources.to_vec();
        for repository in [&whole, &fork] {
            self.ok(repository, &["protect", "web@2"]);
            for name in ["x", "db"] {
                let before = if name == "x" { "db" } else { "x" };
                self.ok(repository, &["rename", before, name]);
            }
            self.ok(repository, &["prune", "--wasted", "0%", "--yes"]);
        }
    }

    fn renew(&self) {
        for folder in [&self.damaged, &PathBuf::from(self.scene.path("away"))] {
            if folder.exists() {
                fs::remove_dir_all(folder).unwrap();
            }
        }
        copy(&self.whole, &self.damaged);
    }

    /// One object of each kind, by path in the repository's folder: the last one by name.
    fn objects(&self) -> BTreeMap<String, String> {
        let mut objects = BTreeMap::new();
        for file in files(&self.whole) {
            let name = file.strip_prefix(&self.whole).unwrap().to_str().unwrap();
            // Reserved space, which holds no data.
            if name == "reserve" {
                continue;
            }
            let parts = name.split('/').map(|part| match part {
                _ if self.sources.iter().any(|id| part == id.to_string()) => "DISK",
                _ if part.len() == 16 && !part.contains('.') && name.starts_with("sources/") => {
                    "POPULAR"
                }
                _ if part.contains(|letter: char| letter.is_ascii_digit()) || part.len() == 2 => {
                    "N"
                }
                _ => part,
            });
            let kind = parts.collect::<Vec<_>>().join("/");
            let before = objects.get(&kind);
            if self.is_of_web(name) || !before.is_some_and(|other: &String| self.is_of_web(other)) {
                objects.insert(kind, name.to_owned());
            }
        }
        objects
    }

    fn is_of_web(&self, name: &str) -> bool {
        let id = name.split('/').nth(1);
        id.is_some_and(|id| id == self.sources[0].to_string())
    }

    /// Damages an object. Returns whether anything changed.
    fn damage(&self, object: &str, damage: Damage) -> bool {
        let path = self.damaged.join(object);
        let good = fs::read(&path).unwrap();
        match damage {
            Damage::Removed => fs::remove_file(&path).unwrap(),
            Damage::Emptied => fs::write(&path, b"").unwrap(),
            Damage::Cut => fs::write(&path, &good[..good.len() / 2]).unwrap(),
            Damage::Flipped => {
                let mut bad = good.clone();
                bad[good.len() * 2 / 3] ^= 4;
                fs::write(&path, bad).unwrap();
            }
            Damage::OfFork => match fs::read(self.fork.join(object)) {
                Ok(other) if other != good => fs::write(&path, other).unwrap(),
                _ => return false,
            },
            Damage::Another => {
                let siblings = fs::read_dir(path.parent().unwrap()).unwrap().flatten();
                let mut siblings = siblings
                    .map(|entry| entry.path())
                    .filter(|sibling| sibling.is_file() && *sibling != path);
                match siblings.next() {
                    Some(other) => drop(fs::copy(other, &path).unwrap()),
                    None => return false,
                }
            }
            Damage::FolderAway => {
                let folder = path.parent().unwrap();
                if folder == self.damaged {
                    return false;
                }
                fs::rename(folder, self.scene.path("away")).unwrap();
            }
        }
        true
    }

    /// Restores the damaged object.
    fn undo(&self, object: &str, damage: Damage) {
        let path = self.damaged.join(object);
        if damage == Damage::FolderAway {
            let folder = path.parent().unwrap();
            let away = PathBuf::from(self.scene.path("away"));
            // A command may have created the folder again.
            copy(&away, folder);
            fs::remove_dir_all(away).unwrap();
        } else if path.parent().unwrap().is_dir() {
            fs::copy(self.whole.join(object), &path).unwrap();
        }
    }

    /// The backups that cannot be restored. Panics if restored data differs from the data backed up.
    fn lost(&self, case: &str) -> BTreeSet<String> {
        let mut lost: BTreeSet<String> = self.contents.keys().cloned().collect();
        let Ok(repository) = Repository::open(&self.damaged, &access()) else {
            return lost;
        };
        let repository = Arc::new(repository);
        let blocks = BlockReader::new(Arc::clone(&repository), 1 << 20);
        let Ok(sources) = repository.sources() else {
            return lost;
        };
        for source in &sources.disks {
            for backup in repository.backups(source.id).unwrap_or_default() {
                // By id, because a label may be damaged; a source whose folder is missing gets a new id.
                let known = self.sources.iter().position(|id| *id == source.id);
                let name = known.map_or(NEW, |at| ["web", "db"][at]);
                let name = format!("{name}@{backup}");
                if let Some(content) = restored(&blocks, source, backup) {
                    let expected = match known {
                        Some(_) => self.contents.get(&name),
                        None => self.contents.get("web@4"),
                    };
                    let is_right = expected.is_some_and(|expected| *expected == content);
                    assert!(is_right, "{case}: {name} is other data than was backed up");
                    lost.remove(&name);
                }
            }
        }
        lost
    }
}

fn restored(
    blocks: &Arc<BlockReader>,
    source: &KnownSource,
    backup: BackupNumber,
) -> Option<Vec<u8>> {
    let restore = Restore::open(blocks, source, backup, "test").ok()?;
    let mut bytes = vec![0; restore.manifest().size_bytes as usize];
    restore.read(0, &mut bytes).ok()?;
    Some(bytes)
}

fn access() -> Access {
    Access::KeyFile(KEY.to_vec())
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else if !to.exists() {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found.sort();
    found
}

/// A command, run after damaging one object in one way.
struct Case<'a> {
    world: &'a World,
    kind: &'a str,
    object: &'a str,
    damage: Damage,
    command: &'static str,
    arguments: &'static [&'static str],
    changes: bool,
}

impl Case<'_> {
    fn name(&self) -> String {
        let (object, damage, command) = (self.object, self.damage, self.command);
        format!("{object} {damage:?}, {command}")
    }

    /// Returns the exit code and the errors found. `whole` are the backups that are lost without any damage,
    /// `before` the ones lost by the damage.
    fn run(&self, whole: &BTreeSet<String>, before: &BTreeSet<String>) -> (i32, Vec<String>) {
        let outcome = self.world.run(&self.world.damaged, self.arguments);
        let (code, mut wrong) = (outcome.code.unwrap_or(-1), Vec::new());
        if !(0..=3).contains(&code) {
            wrong.push(format!("{outcome:?}"));
        }
        match self.command {
            "data" if code == 0 && !self.is_unnoticed() => {
                wrong.push("nothing wrong, it says".into())
            }
            "restore" if code == 0 && outcome.stdout != self.world.contents["web@3"] => {
                wrong.push("other data".into());
            }
            _ => {}
        }
        if self.changes {
            wrong.extend(self.more_lost(before, "lost by it"));
            self.world.undo(self.object, self.damage);
            let mut held = whole.clone();
            held.extend(held_by(self).iter().map(|name| (*name).to_owned()));
            wrong.extend(self.more_lost(&held, "lost although the object was put back"));
        }
        let wrong = wrong.into_iter();
        let wrong = wrong.map(|what| format!("{}: {what}: {}", self.name(), outcome.stderr));
        (code, wrong.collect())
    }

    fn more_lost(&self, allowed: &BTreeSet<String>, how: &str) -> Option<String> {
        let lost = self.world.lost(&self.name());
        let more = lost.difference(allowed);
        let more: Vec<_> = more
            .filter(|name| self.command != "forget" || *name != "db@2")
            .collect();
        (!more.is_empty()).then(|| format!("{more:?} {how}"))
    }

    fn is_unnoticed(&self) -> bool {
        let mut ways = UNNOTICED.iter().filter(|(kind, ..)| *kind == self.kind);
        ways.any(|(_, ways, _)| ways.contains(&self.damage))
    }
}

#[test]
fn whatever_is_damaged_costs_what_it_held_and_is_said() {
    if is_left_out_in_ceph("a repository is not in the cluster") {
        return;
    }
    let world = World::new();
    world.renew();
    let whole = world.lost("undamaged");
    assert_eq!(whole, ["web@4".to_owned()].into(), "what is not made yet");
    let mut wrong = Vec::new();
    let heads = COMMANDS.map(|(name, ..)| format!("{name:>8}")).concat();
    println!("{:31}{:11}{heads}  lost", "object", "damage");
    for (kind, object) in world.objects() {
        for damage in DAMAGES {
            world.renew();
            if !world.damage(&object, damage) {
                continue;
            }
            let before = world.lost(&format!("{object} {damage:?}"));
            let mut line = format!("{kind:31}{:11}", format!("{damage:?}"));
            for (command, arguments, changes) in COMMANDS {
                if changes {
                    world.renew();
                    world.damage(&object, damage);
                }
                let case = Case {
                    world: &world,
                    kind: &kind,
                    object: &object,
                    damage,
                    command,
                    arguments,
                    changes,
                };
                let (code, found) = case.run(&whole, &before);
                line += &format!("{code:>8}");
                wrong.extend(found);
            }
            let lost: Vec<_> = before.difference(&whole).cloned().collect();
            println!("{line}  {}", lost.join(" "));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
