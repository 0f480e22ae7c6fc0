//! Plans: without `--yes` a command fails with the same errors as with `--yes`, and changes nothing.

use crate::daemon::attach;
use crate::harness::{Daemon, Loop, Scene, is_left_out_in_ceph, noise};
use crate::pools::set_minor;
use std::fs::File;
use std::os::unix::fs::FileExt;

const MIB: usize = 1 << 20;

/// A pool and a repository: volume `vm` of 8 MiB with a snapshot, `small` of 4 MiB, both backed up, and `idle`.
fn scene() -> Scene {
    let mut scene = Scene::with_pool_options(&["--size", "64M"]);
    scene.use_open_repository("repository");
    scene.ok(&["backup", "init"]);
    for (name, mib) in [("vm", 8), ("small", 4), ("idle", 8)] {
        let image = scene.file("image", &noise(mib as u64, mib * MIB));
        scene.ok(&["volume", "import", name, &image]);
    }
    scene.ok(&["snapshot", "create", "vm@one"]);
    scene.ok(&["backup", "create", "vm", "small"]);
    scene
}

/// A command without `--yes`, its exit code, and words of its refusal.
type Refusal<'a> = (&'a [&'a str], i32, &'a [&'a str]);

/// Runs each command without and with `--yes`: both must fail with the same message.
#[track_caller]
fn are_refused(scene: &Scene, refusals: &[Refusal<'_>]) {
    for (command, code, words) in refusals {
        let planned = scene.run(command);
        planned.is_refusal(*code, words);
        assert!(
            !planned.stderr.contains("--yes"),
            "{command:?}: {planned:?}"
        );
        let done = scene.run(&[command, &["--yes"][..]].concat());
        done.is_refusal(*code, words);
        assert_eq!(planned.stderr, done.stderr, "{command:?}");
    }
}

/// Runs each command without `--yes`, which returns the exit code of a plan, and then with it, which
/// succeeds.
#[track_caller]
fn are_carried_out(scene: &Scene, commands: &[&[&str]]) {
    for command in commands {
        let planned = scene.run(command);
        assert_eq!(planned.code, Some(2), "{command:?}: {planned:?}");
        assert!(planned.stderr.contains("--yes"), "{command:?}: {planned:?}");
        scene.ok(&[command, &["--yes"][..]].concat());
    }
}

#[test]
fn a_plan_refuses_what_yes_would_refuse() {
    let scene = scene();
    let huge = "16E";
    let refusals: &[Refusal<'_>] = &[
        (
            &["volume", "delete", "vm@one"],
            2,
            &["'vm@one' is a snapshot"],
        ),
        (&["volume", "delete", "vm"], 1, &["vm@one", "--snapshots"]),
        (&["volume", "delete", "none"], 1, &["'none'"]),
        (
            &["volume", "resize", "vm@one", "--size", "1M"],
            2,
            &["'vm@one' is a snapshot"],
        ),
        (
            &["volume", "resize", "vm", "--size", "0"],
            2,
            &["must not be 0"],
        ),
        (&["volume", "resize", "vm", "--size", huge], 2, &["volume"]),
        (
            &["volume", "resize", "none", "--size", "1M"],
            1,
            &["'none'"],
        ),
        (&["volume", "accept-loss", "none"], 1, &["'none'"]),
        (&["volume", "unshare", "none"], 1, &["'none'"]),
        (&["volume", "defrag", "none"], 1, &["'none'"]),
        (&["snapshot", "delete", "vm@none"], 1, &["'vm@none'"]),
        (&["snapshot", "rollback", "vm@none"], 1, &["'vm@none'"]),
        (&["snapshot", "rollback", "none@one"], 1, &["'none'"]),
        (&["pool", "resize", "--size", "4K"], 2, &["too small"]),
        (&["pool", "resize", "--size", "8M"], 1, &["free"]),
        (
            &["backup", "restore", "vm@1", "--into", "none"],
            1,
            &["'none'"],
        ),
        (
            &["backup", "restore", "vm@1", "--into", "small"],
            2,
            &["'small'", "volume resize"],
        ),
        (
            &["backup", "restore", "vm@1", "--into", "vm@one"],
            2,
            &["'vm@one' is a snapshot"],
        ),
        (&["backup", "restore", "vm@9", "--into", "vm"], 1, &["vm@9"]),
        (&["backup", "forget", "vm@9"], 1, &["vm@9"]),
        (&["backup", "remove", "none"], 1, &["'none'"]),
        (&["backup", "prune", "none"], 1, &["'none'"]),
    ];
    are_refused(&scene, refusals);
    let _daemon = scene.daemon();
    are_refused(&scene, refusals);
}

#[test]
fn a_plan_refuses_to_disconnect_clients_without_force() {
    let scene = scene();
    let _daemon = scene.daemon();
    let me = format!("process {}", std::process::id());
    let attached = ["vm", "vm@one", "idle"].map(|volume| attach(&scene, volume));
    let words: &[&str] = &["attached to", &me, "--force"];
    let rollback: &[&str] = &["snapshot", "rollback", "vm@one"];
    are_refused(
        &scene,
        &[
            (&["volume", "delete", "idle"], 1, words),
            (&["volume", "delete", "vm", "--snapshots"], 1, words),
            (&["volume", "resize", "idle", "--size", "1M"], 1, words),
            (&["snapshot", "delete", "vm@one"], 1, words),
            (rollback, 1, words),
            (
                &["backup", "restore", "vm@1", "--into", "vm"],
                1,
                &["attached by", &me],
            ),
        ],
    );
    let planned = scene.planned(&[rollback, &["--force"]].concat());
    let said = planned["plan"].to_string();
    assert!(said.contains("disconnect") && said.contains(&me), "{said}");
    drop(attached);
}

#[test]
fn what_a_plan_accepts_is_done_with_yes() {
    for has_daemon in [false, true] {
        let scene = scene();
        let _daemon = has_daemon.then(|| scene.daemon());
        are_carried_out(
            &scene,
            &[
                &["volume", "resize", "idle", "--size", "4M"],
                &["volume", "accept-loss", "idle"],
                &["volume", "delete", "idle"],
                &["snapshot", "rollback", "vm@one"],
                &["backup", "restore", "vm@1", "--into", "vm"],
                &["snapshot", "delete", "vm@one"],
                &["volume", "delete", "vm", "--snapshots"],
                &["pool", "resize", "--size", "32M"],
                &["backup", "forget", "vm@1"],
                &["backup", "remove", "small"],
            ],
        );
        assert_eq!(scene.volumes(), ["small"]);
    }
}

#[test]
fn a_plan_refuses_a_device_that_yes_would_refuse() {
    if is_left_out_in_ceph("pools of this test are in directories") {
        return;
    }
    let scene = scene();
    let Some(device) = Loop::new(&scene.file("disk", &noise(3, 5 * MIB))) else {
        println!("left out: no loop device can be made");
        return;
    };
    let device = device.0.as_str();
    let pool = scene.place();
    let other = scene.path("other");
    are_refused(
        &scene,
        &[
            (&["volume", "export", "none", device], 1, &["'none'"]),
            (
                &["volume", "export", "vm", device],
                1,
                &["5242880 bytes, fewer"],
            ),
            (&["backup", "restore", "vm@9", device], 1, &["vm@9"]),
            (
                &["backup", "restore", "vm@1", device],
                1,
                &["5242880 bytes, fewer"],
            ),
            (
                &["pool", "create", &pool, "--data", device],
                1,
                &["not empty"],
            ),
            (
                &["pool", "create", &other, "--data", device, "--size", "64M"],
                1,
                &["5242880 bytes, too few"],
            ),
            (
                &[
                    "pool",
                    "create",
                    &other,
                    "--data",
                    device,
                    "--log-size",
                    "1K",
                ],
                2,
                &["a log has"],
            ),
        ],
    );
    are_carried_out(
        &scene,
        &[
            &["volume", "export", "small", device],
            &["backup", "restore", "small@1", device],
            &["pool", "create", &other, "--data", device],
        ],
    );
    let mut daemon = Daemon::start(&mut scene.command(&["--pool", &other, "serve"]));
    daemon.wait_for_line("serving");
    let third = scene.path("third");
    are_refused(
        &scene,
        &[
            (
                &["pool", "create", &third, "--data", device],
                1,
                &["in use"],
            ),
            (&["volume", "export", "small", device], 1, &["busy"]),
        ],
    );
}

#[test]
fn a_plan_refuses_to_change_a_pool_that_takes_no_writes() {
    if is_left_out_in_ceph("it changes the file of a part") {
        return;
    }
    let scene = scene();
    scene.ok(&["volume", "clone", "vm", "equal"]);
    scene.ok(&["pool", "dedup"]);
    set_minor(&scene, "meta", 2, 200);
    let words: &[&str] = &["takes no writes", "later version"];
    are_refused(
        &scene,
        &[
            (&["volume", "delete", "idle"], 1, words),
            (&["volume", "resize", "idle", "--size", "1M"], 1, words),
            (&["snapshot", "delete", "vm@one"], 1, words),
            (&["snapshot", "rollback", "vm@one"], 1, words),
            (&["pool", "resize", "--size", "32M"], 1, words),
            (&["pool", "upgrade"], 1, words),
            (&["backup", "restore", "vm@1", "--into", "vm"], 1, words),
        ],
    );
}

#[test]
fn a_plan_refuses_to_remove_a_key_that_stays() {
    let mut scene = Scene::new();
    let repository = scene.path("repository");
    scene.set("ONEFOLD_REPOSITORY", repository);
    let passphrase = scene.secret("passphrase", b"correct horse");
    let with_key = ["--passphrase-file", passphrase.as_str()];
    scene.ok(&[&["backup", "init"], &with_key[..]].concat());
    let keys = scene.json(&[&["backup", "key", "list"], &with_key[..]].concat());
    let keys = keys["keys"].as_array().unwrap();
    let used = keys.iter().find(|key| key["kind"] == "passphrase");
    let used = used.unwrap()["key"].as_str().unwrap();
    let remove = |key| [&["backup", "key", "remove", key], &with_key[..]].concat();
    are_refused(
        &scene,
        &[
            (&remove("1"), 1, &["no key 0000000000000001"]),
            (&remove(used), 2, &[used, "opened the repository"]),
        ],
    );
}

#[test]
fn what_a_device_holds_is_named_before_it_is_overwritten() {
    if is_left_out_in_ceph("pools of this test are in directories") {
        return;
    }
    let scene = scene();
    let disk = scene.file("disk", &vec![0; 16 * MIB]);
    let Some(device) = Loop::new(&disk) else {
        println!("left out: no loop device can be made");
        return;
    };
    let device = device.0.as_str();
    let (first, second) = (scene.path("first"), scene.path("second"));
    let create = ["pool", "create", &first, "--data", device, "--yes"];
    let created = scene.json(&create);
    assert_eq!(created["overwrites"], "zeros in its first 128 KiB");
    let stat = scene.json(&["--pool", &first, "pool", "stat"]);
    let id = stat["pool_id"].as_str().unwrap();
    let commands: [&[&str]; 3] = [
        &["pool", "create", &second, "--data", device],
        &["volume", "export", "vm", device],
        &["backup", "restore", "vm@1", device],
    ];
    let all_name = |words: &[&str]| {
        for command in commands {
            let planned = scene.run(command);
            assert_eq!(planned.code, Some(2), "{planned:?}");
            let words = [words, &[device, "nothing was changed"]].concat();
            let said = words.iter().all(|word| planned.stderr.contains(word));
            assert!(said, "{words:?} in {planned:?}");
        }
    };
    all_name(&["the blocks of the onefold pool", id]);
    let write = |at: u64, bytes: &[u8]| {
        let file = File::options().write(true).open(device).unwrap();
        file.write_all_at(bytes, at).unwrap();
        file.sync_all().unwrap();
    };
    write(0, &[0; 4096]);
    write(1080, b"\x53\xef");
    all_name(&["ext4"]);
    write(0, &[0; 4096]);
    write(512, b"LABELONE");
    all_name(&["an LVM physical volume"]);
    write(0, b"LUKS\xba\xbe");
    all_name(&["a LUKS volume"]);
    write(0, &[7; 4096]);
    all_name(&["data of an unknown kind"]);
}
