//! What a host's death leaves of a repository: the changes of a thread are noted, and any state that a file system
//! may have after a death between two of them is made in another folder.
//!
//! Nothing is there for sure but what was synced: a file's bytes after its own sync, a name after its folder's. Of
//! the rest, any part may be there, in any order; of bytes any beginning, with zeros behind. A name that was moved
//! may be there twice, or not at all. Folders are moved at once.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// A change.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    Create(PathBuf),
    Append(PathBuf, Vec<u8>),
    Sync(PathBuf),
    SyncFolder(PathBuf),
    CreateFolder(PathBuf),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
    RemoveEmpty(PathBuf),
}

thread_local! {
    static NOTED: RefCell<Option<Vec<Op>>> = const { RefCell::new(None) };
    static FAILS_AT: Cell<Option<usize>> = const { Cell::new(None) };
    static ROOM: Cell<Option<u64>> = const { Cell::new(None) };
    static ANSWERS: RefCell<Vec<(&'static str, i32)>> = const { RefCell::new(Vec::new()) };
    static BOOT: Cell<u64> = const { Cell::new(0) };
}

/// Bytes that a name takes in a file system with little room.
const NAME_BYTES: u64 = 512;

/// Notes a change of this thread; fails if it is the one that is to, or if there is no room for it.
pub(crate) fn note(op: impl FnOnce() -> Op) -> io::Result<()> {
    let op = || -> io::Result<Op> {
        let op = op();
        if let Some(room) = ROOM.get() {
            let left = op.room_after(room).ok_or(io::ErrorKind::StorageFull)?;
            ROOM.set(Some(left));
        }
        Ok(op)
    };
    if ROOM.get().is_some() && NOTED.with_borrow(Option::is_none) {
        return op().map(drop);
    }
    NOTED.with_borrow_mut(|noted| {
        let Some(noted) = noted else { return Ok(()) };
        if FAILS_AT.get() == Some(noted.len()) {
            FAILS_AT.set(None);
            return Err(io::ErrorKind::StorageFull.into());
        }
        noted.push(op()?);
        Ok(())
    })
}

/// From now on the changes of this thread are noted; the one of this number fails.
pub fn begin(fails_at: Option<usize>) {
    NOTED.set(Some(Vec::new()));
    FAILS_AT.set(fails_at);
}

/// The change of this number fails.
pub fn fail_at(change: usize) {
    FAILS_AT.set(Some(change));
}

/// From now on the file system of this thread has room for so many bytes; for any number of them, if none is given.
pub fn set_room(bytes: Option<u64>) {
    ROOM.set(bytes);
}

/// For how many bytes it has room now.
#[must_use]
pub fn room() -> Option<u64> {
    ROOM.get()
}

impl Op {
    /// What is left of the room.
    fn room_after(&self, room: u64) -> Option<u64> {
        match self {
            Self::Create(_) | Self::CreateFolder(_) => room.checked_sub(NAME_BYTES),
            Self::Append(_, bytes) => room.checked_sub(bytes.len() as u64),
            Self::Remove(path) => {
                let bytes = std::fs::symlink_metadata(path).map_or(0, |it| it.len());
                Some(room + NAME_BYTES + bytes)
            }
            Self::RemoveEmpty(path) => Some(room + if path.is_dir() { NAME_BYTES } else { 0 }),
            Self::Sync(_) | Self::SyncFolder(_) | Self::Rename(..) => Some(room),
        }
    }
}

/// From now on the file system of this thread answers these calls with an error, by its number.
pub fn set_answers(answers: &[(&'static str, i32)]) {
    ANSWERS.set(answers.to_vec());
}

pub(crate) fn answered(call: &str) -> rustix::io::Result<()> {
    ANSWERS.with_borrow(|answers| {
        let answer = answers.iter().find(|answer| answer.0 == call);
        answer.map_or(Ok(()), |answer| Err(Errno::from_raw_os_error(answer.1)))
    })
}

/// How many changes there were.
#[must_use]
pub fn changes() -> usize {
    NOTED.with_borrow(|noted| noted.as_ref().map_or(0, Vec::len))
}

/// Nothing is noted any more. Returns what was.
#[must_use]
pub fn end() -> Noted {
    FAILS_AT.set(None);
    Noted(NOTED.take().unwrap_or_default())
}

/// The host has started anew: no process of before is alive, and nobody waits to find out.
pub fn restart_host() {
    BOOT.set(BOOT.get() + 1);
}

/// Tells the boots of this thread's host apart; nothing for the real one.
pub(crate) fn boot() -> Option<u64> {
    Some(BOOT.get()).filter(|boot| *boot > 0)
}

/// Changes of a folder.
pub struct Noted(Vec<Op>);

#[derive(Default)]
struct File {
    bytes: Vec<u8>,
    synced: usize,
}

/// A change of a name in a folder.
struct Change {
    name: String,
    to: Option<Node>,
    is_synced: bool,
    /// Changes that are made at once have the same number.
    together: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    File(usize),
    Folder(usize),
}

#[derive(Default)]
struct Tree {
    files: Vec<File>,
    folders: Vec<Vec<Change>>,
    count: usize,
}

impl Noted {
    /// How many they are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Makes in `target`, an empty folder, what the death of the host after the first `count` changes may leave
    /// of the folder `root`, which was empty at first. `random` returns a number below its argument.
    ///
    /// # Errors
    ///
    /// If `target` cannot be written.
    pub fn after_death(
        &self,
        count: usize,
        root: &Path,
        target: &Path,
        random: &mut dyn FnMut(usize) -> usize,
    ) -> io::Result<()> {
        let mut tree = Tree::default();
        tree.folders.push(Vec::new());
        for op in self.0.iter().take(count) {
            tree.apply(op, root);
        }
        tree.count += 1;
        let coins: Vec<bool> = (0..tree.count).map(|_| random(2) == 0).collect();
        tree.make(0, target, &coins, random)
    }
}

impl Tree {
    /// What has this name now, for those who live.
    fn find(&self, path: &Path, root: &Path) -> Option<Node> {
        let mut node = Node::Folder(0);
        for part in path.strip_prefix(root).ok()? {
            let Node::Folder(folder) = node else {
                return None;
            };
            let changes = self.folders[folder].iter().rev();
            let name = part.to_str()?;
            node = changes.clone().find(|it| it.name == name)?.to?;
        }
        Some(node)
    }

    fn set(&mut self, path: &Path, root: &Path, to: Option<Node>, together: usize) {
        let name = path
            .file_name()
            .and_then(|it| it.to_str())
            .unwrap_or_default();
        let folder = path.parent().and_then(|it| self.find(it, root));
        if let Some(Node::Folder(folder)) = folder {
            self.folders[folder].push(Change {
                name: name.to_owned(),
                to,
                is_synced: false,
                together,
            });
        }
    }

    fn next(&mut self) -> usize {
        self.count += 1;
        self.count
    }

    fn apply(&mut self, op: &Op, root: &Path) {
        let together = self.next();
        match op {
            Op::Create(path) => {
                self.files.push(File::default());
                let node = Node::File(self.files.len() - 1);
                self.set(path, root, Some(node), together);
            }
            Op::Append(path, bytes) => {
                if let Some(Node::File(file)) = self.find(path, root) {
                    self.files[file].bytes.extend(bytes);
                }
            }
            Op::Sync(path) => {
                if let Some(Node::File(file)) = self.find(path, root) {
                    self.files[file].synced = self.files[file].bytes.len();
                }
            }
            Op::SyncFolder(path) => {
                if let Some(Node::Folder(folder)) = self.find(path, root) {
                    let changes = self.folders[folder].iter_mut();
                    changes.for_each(|change| change.is_synced = true);
                }
            }
            Op::CreateFolder(path) => {
                if self.find(path, root).is_none() {
                    self.folders.push(Vec::new());
                    let node = Node::Folder(self.folders.len() - 1);
                    self.set(path, root, Some(node), together);
                }
            }
            Op::Rename(from, to) => {
                let Some(node) = self.find(from, root) else {
                    return;
                };
                let is_taken = match (node, self.find(to, root)) {
                    // Then the system refused it.
                    (Node::Folder(_), Some(Node::Folder(there))) => !self.is_empty(there),
                    _ => false,
                };
                if is_taken {
                    return;
                }
                self.set(to, root, Some(node), together);
                let together = match node {
                    Node::Folder(_) => together,
                    Node::File(_) => self.next(),
                };
                self.set(from, root, None, together);
            }
            Op::Remove(path) => self.set(path, root, None, together),
            Op::RemoveEmpty(path) => {
                if let Some(Node::Folder(folder)) = self.find(path, root)
                    && self.is_empty(folder)
                {
                    self.set(path, root, None, together);
                }
            }
        }
    }

    fn is_empty(&self, folder: usize) -> bool {
        let mut names: BTreeMap<&str, bool> = BTreeMap::new();
        for change in &self.folders[folder] {
            names.insert(&change.name, change.to.is_some());
        }
        !names.values().any(|is_there| *is_there)
    }

    fn make(
        &self,
        folder: usize,
        target: &Path,
        coins: &[bool],
        random: &mut dyn FnMut(usize) -> usize,
    ) -> io::Result<()> {
        let mut entries: BTreeMap<&str, Option<Node>> = BTreeMap::new();
        for change in &self.folders[folder] {
            if change.is_synced || coins[change.together] {
                entries.insert(&change.name, change.to);
            }
        }
        for (name, node) in entries {
            let path = target.join(name);
            match node {
                None => {}
                Some(Node::Folder(folder)) => {
                    std::fs::create_dir(&path)?;
                    self.make(folder, &path, coins, random)?;
                }
                Some(Node::File(file)) => {
                    let File { bytes, synced } = &self.files[file];
                    let written = synced + random(bytes.len() - synced + 1);
                    let mut left = bytes[..written].to_vec();
                    left.resize(written + random(bytes.len() - written + 1), 0);
                    std::fs::write(&path, left)?;
                }
            }
        }
        Ok(())
    }
}
