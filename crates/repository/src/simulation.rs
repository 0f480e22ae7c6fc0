//! Simulates crashes of the host: records the changes of a thread, and builds, in another folder, a state that a file
//! system may have after a crash between two of them.
//!
//! Only synced state is certain to survive: a file's bytes after a sync of the file, a name after a sync of its
//! folder. Of the rest, any part may survive, in any order; of bytes, any prefix, followed by zeros. A renamed file
//! may have both names, or neither. Renaming a folder is atomic.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
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

/// Bytes that a name takes in a simulated file system with limited space.
const NAME_BYTES: u64 = 512;

/// Records a change of this thread; fails if this change is set to fail, or if there is no space for it.
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

/// Starts recording the changes of this thread; the change with number `fails_at` fails.
pub fn begin(fails_at: Option<usize>) {
    NOTED.set(Some(Vec::new()));
    FAILS_AT.set(fails_at);
}

/// Makes the change with this number fail.
pub fn fail_at(change: usize) {
    FAILS_AT.set(Some(change));
}

/// Limits the free space of this thread's file system to `bytes`, or removes the limit.
pub fn set_room(bytes: Option<u64>) {
    ROOM.set(bytes);
}

/// The free space that is left of the limit.
#[must_use]
pub fn room() -> Option<u64> {
    ROOM.get()
}

impl Op {
    /// The free space after this change; `None` if there is too little.
    fn room_after(&self, room: u64) -> Option<u64> {
        match self {
            Self::Create(_) | Self::CreateFolder(_) => room.checked_sub(NAME_BYTES),
            Self::Append(_, bytes) => room.checked_sub(bytes.len() as u64),
            Self::Remove(path) => {
                let bytes = std::fs::symlink_metadata(path).map_or(0, |metadata| metadata.len());
                Some(room + NAME_BYTES + bytes)
            }
            Self::RemoveEmpty(path) => Some(room + if path.is_dir() { NAME_BYTES } else { 0 }),
            Self::Sync(_) | Self::SyncFolder(_) | Self::Rename(..) => Some(room),
        }
    }
}

/// Makes these calls of this thread fail with the given error numbers.
pub fn set_answers(answers: &[(&'static str, i32)]) {
    ANSWERS.set(answers.to_vec());
}

pub(crate) fn answered(call: &str) -> rustix::io::Result<()> {
    ANSWERS.with_borrow(|answers| {
        let answer = answers.iter().find(|answer| answer.0 == call);
        answer.map_or(Ok(()), |answer| Err(Errno::from_raw_os_error(answer.1)))
    })
}

/// How many changes were recorded.
#[must_use]
pub fn changes() -> usize {
    NOTED.with_borrow(|noted| noted.as_ref().map_or(0, Vec::len))
}

/// Stops recording, and returns the recorded changes.
#[must_use]
pub fn end() -> Noted {
    FAILS_AT.set(None);
    Noted(NOTED.take().unwrap_or_default())
}

/// Simulates a restart of the host: all earlier processes are dead, and no lease timeout has to pass.
pub fn restart_host() {
    BOOT.set(BOOT.get() + 1);
}

/// The number of restarts of this thread's host; `None` for a real host.
pub(crate) fn boot() -> Option<u64> {
    Some(BOOT.get()).filter(|boot| *boot > 0)
}

/// Recorded changes of a folder.
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
    /// Changes with the same number are atomic.
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
    /// How many changes were recorded.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Builds in `target`, an empty folder, a state that a crash of the host after the first `count` changes may
    /// leave in the folder `root`, which was empty at first. `random` returns a number below its argument.
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
    /// The node that has this name before the crash.
    fn find(&self, path: &Path, root: &Path) -> Option<Node> {
        let mut node = Node::Folder(0);
        for part in path.strip_prefix(root).ok()? {
            let Node::Folder(folder) = node else {
                return None;
            };
            let changes = self.folders[folder].iter().rev();
            let name = part.to_str()?;
            node = changes.clone().find(|change| change.name == name)?.to?;
        }
        Some(node)
    }

    fn set(&mut self, path: &Path, root: &Path, to: Option<Node>, together: usize) {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let folder = path.parent().and_then(|parent| self.find(parent, root));
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
                    self.sync_folder(folder);
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
                    // The system call failed then.
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

    /// Makes the changes in a folder durable, and those in other folders that are atomic with one of them.
    fn sync_folder(&mut self, folder: usize) {
        let changes = self.folders[folder]
            .iter()
            .filter(|change| !change.is_synced);
        let synced: BTreeSet<usize> = changes.map(|change| change.together).collect();
        for change in self.folders.iter_mut().flatten() {
            change.is_synced |= synced.contains(&change.together);
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
