//! The processor and the reads that a backup takes while guests work.

use crate::backup::{backed_up, backups, open_repository, snapshots};
use crate::harness::{Outcome, Scene, noise, overwrite};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Scheduling classes, as in sched(7).
const SCHED_OTHER: i32 = 0;
const SCHED_IDLE: i32 = 5;

/// A process's scheduling class.
fn policy(process: u32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // The name, which may contain spaces, is in parentheses; the fields after it start with the third.
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.split(' ').nth(41 - 3).unwrap().parse().unwrap()
}

/// The names of a process's threads that may use only one processor.
fn threads_on_one_processor(process: u32) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let names = threads.flatten().filter_map(|thread| {
        // The thread may have ended.
        let status = fs::read_to_string(thread.path().join("status")).ok()?;
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
        let processors = field("Cpus_allowed_list:")?.trim();
        let is_one = !processors.contains([',', '-']);
        is_one.then(|| field("Name:").unwrap_or_default().trim().to_owned())
    });
    names.collect()
}

/// Whether a command writes to any source.
fn is_lease_held(scene: &Scene) -> bool {
    let sources = Path::new(&scene.path("repository")).join("sources");
    let sources = fs::read_dir(sources).into_iter().flatten().flatten();
    sources
        .map(|source| source.path().join("writer"))
        .any(|folder| fs::read_dir(folder).is_ok_and(|mut holders| holders.next().is_some()))
}

#[test]
fn reading_for_a_backup_is_a_job_that_can_be_paused() {
    let mut scene = Scene::new();
    open_repository(&mut scene, "repository");
    let data_bytes = (8 << 20) + 3 * 4096;
    let mut content = noise(1, data_bytes);
    content.resize(16 << 20, 0);
    let image = scene.file("disk", &content);
    scene.ok(&["volume", "import", "vm", &image]);
    let other = scene.file("other", &noise(2, 1 << 20));
    for _ in 0..2 {
        scene.ok(&["backup", "create", &format!("other={other}")]);
    }
    let daemon = scene.daemon();
    scene.ok(&["job", "pause", "copying"]);
    let create = ["backup", "create", "vm"];
    let mut child = scene.command(&create).spawn().unwrap();
    let job = || {
        let list = scene.json(&["job", "list"]);
        let jobs = list["jobs"].as_array().unwrap().clone();
        jobs.into_iter().find(|job| job["job"] == "copying")
    };
    // The command takes the lease before it reads. In the idle class this may take a while.
    crate::harness::wait_until("the backup waits", || {
        is_lease_held(&scene) && job().is_some_and(|job| job["state"] == "paused")
    });
    if std::thread::available_parallelism().unwrap().get() > 1 {
        crate::harness::wait_until("one thread keeps to one processor", || {
            threads_on_one_processor(daemon.pid()) == ["nbd-client-1"]
        });
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none());
    assert_eq!(policy(child.id()), SCHED_IDLE);
    assert_eq!(job().unwrap()["bytes"], 0);
    // Other sources are pruned while the backup waits.
    scene.ok(&["backup", "forget", "other@1", "--yes"]);
    let prune = ["--format", "json", "backup", "prune", "--yes"];
    let pruned = scene.run(&prune);
    assert_eq!(pruned.code, Some(1), "{pruned:?}");
    let pruned = pruned.json();
    assert_eq!(pruned["sources"][0]["source"], "other");
    assert!(
        pruned["left"][0]
            .as_str()
            .unwrap()
            .contains("'vm' is in use")
    );
    scene.ok(&["job", "resume", "copying"]);
    let done = Outcome::of(child);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(
        done.stderr.contains("onefold job resume copying"),
        "{done:?}"
    );
    // New data is read twice, and blocks without data are not read at all.
    assert_eq!(job().unwrap()["bytes"], 2 * data_bytes);
    assert_eq!(backups(&scene), ["other@2", "vm@1"]);
}

#[test]
fn a_snapshot_of_the_users_is_copied_after_guests_and_in_use_meanwhile() {
    let mut scene = Scene::new();
    open_repository(&mut scene, "repository");
    let image = scene.file("disk", &noise(1, 8 << 20));
    scene.ok(&["volume", "import", "vm", &image]);
    scene.ok(&["snapshot", "create", "vm@mine"]);
    let _daemon = scene.daemon();
    scene.ok(&["job", "pause", "copying"]);
    let create = ["backup", "create", "vm@mine"];
    let child = scene.command(&create).spawn().unwrap();
    let clients = || {
        let snapshots = scene.json(&["snapshot", "list", "vm"]);
        snapshots["snapshots"][0]["clients"]
            .as_array()
            .map(Vec::len)
    };
    crate::harness::wait_until("the backup is attached", || clients() == Some(1));
    let delete = ["snapshot", "delete", "vm@mine", "--yes"];
    scene.run(&delete).is_refusal(1, &["is attached to"]);
    scene.ok(&["job", "resume", "copying"]);
    let done = Outcome::of(child);
    assert_eq!(done.code, Some(0), "{done:?}");
    let list = scene.json(&["job", "list"]);
    let jobs = list["jobs"].as_array().unwrap();
    let copying = jobs.iter().find(|job| job["job"] == "copying").unwrap();
    assert_eq!(copying["bytes"], 16 << 20);
    assert_eq!(backups(&scene), ["vm@1"]);
}

#[test]
fn two_backups_of_one_volume_at_once_do_not_disturb_each_other() {
    let mut scene = Scene::new();
    open_repository(&mut scene, "repository");
    let image = scene.file("disk", &noise(1, 64 << 20));
    scene.ok(&["volume", "import", "vm", &image]);
    let _daemon = scene.daemon();
    scene.ok(&["volume", "create", "other", "--size", "1M"]);
    let create = ["backup", "create", "vm", "--hurry"];
    let mut first = scene.command(&create).spawn().unwrap();
    let first_id = first.id().to_string();
    while !is_lease_held(&scene) {
        let ended = first.try_wait().unwrap();
        assert!(ended.is_none(), "it ended before it was seen");
    }
    let signal = |name: &str| {
        let sent = Command::new("kill").args([name, &first_id]).status();
        assert!(sent.unwrap().success());
    };
    signal("-STOP");
    assert_eq!(policy(first.id()), SCHED_OTHER);
    // The command reports the first error and backs up the rest.
    let second = scene.run(&["backup", "create", "other", "vm"]);
    signal("-CONT");
    let process = format!("process {first_id}");
    assert_eq!(second.code, Some(1), "{second:?}");
    for word in ["'vm' is in use by", &process, "backup create"] {
        assert!(second.stderr.contains(word), "{second:?}");
    }
    assert!(first.wait().unwrap().success());
    assert_eq!(backups(&scene), ["other@1", "vm@1"]);
    assert_eq!(snapshots(&scene).len(), 2, "only the bases");
    overwrite(&scene, "vm", 0, 9, 4096);
    let made = backed_up(&scene, "vm", &[]);
    assert_eq!(made, json!(["layers", 1, 4096, 4096]));
    scene.ok(&["backup", "create", "other"]);
}
