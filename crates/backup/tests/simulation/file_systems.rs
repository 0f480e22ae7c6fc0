//! File systems that lack system calls.

use onefold_format::backup::Writers;
use onefold_repository::{Access, Repository, RepositoryErrorKind, simulation};

use crate::{Facts, MemoryDisk, World, commands, folder};

const EPERM: i32 = 1;
const EIO: i32 = 5;
const EINVAL: i32 = 22;
const ENOSYS: i32 = 38;
const EOPNOTSUPP: i32 = 95;

/// Errors of rclone's mounts and of some other file systems in user space.
const NO_NAME_IS_EXCLUSIVE: [[(&str, i32); 2]; 2] = [
    [("renameat2", EINVAL), ("link", EIO)],
    [("renameat2", EIO), ("link", EPERM)],
];

#[test]
fn init_names_the_call_that_the_file_system_does_not_have() {
    let folder = folder();
    let root = folder.path().join("r");
    for call in [
        "mkdir",
        "open with O_EXCL",
        "write",
        "fsync",
        "fsync of a folder",
        "pwrite",
        "open",
        "fallocate",
        "rename",
        "rename of a folder",
        "unlink",
        "rmdir",
    ] {
        simulation::set_answers(&[(call, EIO)]);
        let refused = Repository::init(&root, &Access::Open, 1).unwrap_err();
        simulation::set_answers(&[]);
        assert_eq!(refused.kind(), RepositoryErrorKind::Io, "{call}: {refused}");
        let named = format!("does not have {call} (");
        assert!(
            call == "mkdir" || refused.to_string().contains(&named),
            "{call}: {refused}"
        );
        // If nothing can be removed, files stay.
        let left = std::fs::read_dir(&root).unwrap().count();
        assert!(left == 0 || ["unlink", "rmdir"].contains(&call), "{call}");
        let left_there: Vec<_> = std::fs::read_dir(&root).unwrap().collect();
        left_there
            .into_iter()
            .for_each(|entry| std::fs::remove_dir_all(entry.unwrap().path()).unwrap());
    }
    // On a full disk, the error names the space and not a call.
    simulation::set_room(Some(1000));
    let refused = Repository::init(&root, &Access::Open, 1).unwrap_err();
    simulation::set_room(None);
    assert_eq!(refused.kind(), RepositoryErrorKind::NoSpace, "{refused}");
    Repository::init(&root, &Access::Open, 1).unwrap();
}

/// Such a file system makes names durable by itself; a file that was not synced is still lost.
#[test]
fn a_file_system_need_not_sync_folders() {
    for answer in [EINVAL, ENOSYS, EOPNOTSUPP] {
        let folder = folder();
        let root = folder.path().join("r");
        simulation::restart_host();
        simulation::set_answers(&[("fsync of a folder", answer)]);
        Repository::init(&root, &Access::Open, 1).unwrap();
        let mut world = World::open(&root, Facts::default()).unwrap();
        world.go_on(&mut fastrand::Rng::with_seed(1), "unsynced folders");
        simulation::set_answers(&[("fsync", answer)]);
        let disk = || MemoryDisk((1..9).collect());
        world.create(&[(0, disk())]).unwrap_err();
        simulation::set_answers(&[]);
        world.create(&[(0, disk())]).unwrap();
        world.check("synced files");
    }
}

#[test]
fn one_writer_needs_no_names_that_are_exclusive() {
    for answers in NO_NAME_IS_EXCLUSIVE {
        let folder = folder();
        let root = folder.path().join("r");
        simulation::restart_host();
        simulation::set_answers(&answers);
        let refused = Repository::init(&root, &Access::Open, 1).unwrap_err();
        for words in ["renameat2", "link", "--one-writer"] {
            assert!(refused.to_string().contains(words), "{refused}");
        }
        Repository::init_for(Writers::One, &root, &Access::Open, 1).unwrap();
        let mut world = World::open(&root, Facts::default()).unwrap();
        for seed in 0..4 {
            let mut random = fastrand::Rng::with_seed(seed);
            commands(&mut world, &mut random);
            world.go_on(&mut random, &format!("one writer, seed {seed}"));
        }
        // Two processes of one host exclude each other.
        let other = World::open(&root, Facts::default()).unwrap();
        let held = world
            .repository
            .writer(world.sources[0].id, "test")
            .unwrap();
        let refused = other.repository.writer(world.sources[0].id, "test");
        let refused = refused.err().unwrap();
        assert_eq!(refused.kind(), RepositoryErrorKind::InUse, "{refused}");
        drop(held);
        simulation::set_answers(&[]);
    }
}
