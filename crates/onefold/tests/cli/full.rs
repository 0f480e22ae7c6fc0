//! A pool that fills up while clients write to it.

use crate::harness::{Outcome, Scene, is_left_out_in_ceph, noise, wait_until};
use serde_json::json;
use std::fs::{self, File};
use std::io::Write;
use std::process::{Child, Command, Stdio};

/// A pool of 8192 blocks, 64 of which are the reserve.
pub(crate) fn scene() -> Scene {
    let scene = Scene::with_pool(&["--size", "32M"]);
    for name in ["a", "b"] {
        // Without dedup, so that every written block takes space.
        scene.ok(&["volume", "create", name, "--size", "64M", "--dedup", "off"]);
    }
    scene
}

/// Starts `qemu-io` with these commands for a volume.
fn client(scene: &Scene, volume: &str, commands: &[&str]) -> Child {
    let stat = scene.json(&["volume", "stat", volume]);
    let mut client = Command::new("qemu-io");
    client.args(["-f", "raw"]);
    for command in commands {
        client.args(["-c", command]);
    }
    client
        .arg(stat["nbd_uri"].as_str().unwrap())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    client
        .spawn()
        .expect("qemu-io is needed (Debian: qemu-utils)")
}

fn io(scene: &Scene, volume: &str, commands: &[&str]) -> Outcome {
    Outcome::of(client(scene, volume, commands))
}

/// Runs `qemu-io`, which must succeed and find the expected patterns.
#[track_caller]
pub(crate) fn io_ok(scene: &Scene, volume: &str, commands: &[&str]) {
    let outcome = io(scene, volume, commands);
    let stdout = String::from_utf8_lossy(&outcome.stdout);
    let is_fine = outcome.code == Some(0) && !stdout.contains("failed");
    assert!(is_fine, "{commands:?}: {stdout} {outcome:?}");
}

/// Fills the pool from two volumes, except for 255 blocks.
pub(crate) fn fill(scene: &Scene) {
    io_ok(scene, "a", &["write -P 1 0 15M", "flush"]);
    io_ok(scene, "b", &["write -P 2 0 16M", "flush"]);
}

fn waiting(scene: &Scene) -> u64 {
    scene.json(&["pool", "stat"])["waiting_requests"]
        .as_u64()
        .unwrap()
}

#[track_caller]
fn assert_clean(scene: &Scene) {
    let check = scene.json(&["pool", "check"]);
    assert_eq!(check["findings"], 0, "{check}");
    assert_eq!(check["leaked_blocks"], 0, "{check}");
}

/// Starts clients with more writes of new data than there are workers. Each exits once its writes are
/// answered.
pub(crate) fn writers(scene: &Scene) -> Vec<Child> {
    let writers = (0..6).map(|n| {
        let place = |m: u64| 20_480 + 128 * (n * 15 + m);
        let writes = (0..15).map(|m| format!("aio_write -P 3 {}k 128k", place(m)));
        let writes: Vec<String> = writes.collect();
        let commands: Vec<&str> = writes.iter().map(String::as_str).collect();
        client(scene, "a", &commands)
    });
    writers.collect()
}

/// Reads, flushes and trims while the writers wait. It uses its own connection, because QEMU's client (7.2)
/// does not always notice the reply to a read that overtakes the replies to writes.
fn read_and_trim(scene: &Scene) {
    io_ok(scene, "a", &["read -P 1 2M 1M", "flush", "discard 0 384k"]);
    io_ok(scene, "a", &["read -P 0 0 384k"]);
}

/// Asserts that some of the client's writes failed.
fn has_failed(writer: Child) {
    let ended = Outcome::of(writer);
    let stdout = String::from_utf8_lossy(&ended.stdout);
    let said = stdout.contains("failed") || ended.stderr.contains("failed");
    assert!(said, "{stdout} {ended:?}");
}

/// Waits for more requests than five clients can have, so that the sixth is waiting as well.
pub(crate) fn wait_for_waiting(scene: &Scene) {
    wait_until("all of them wait", || waiting(scene) >= 80);
}

/// Commands that verify the clients' data, in the space of another volume.
const WRITTEN: [&str; 2] = ["read -P 3 20M 11520k", "read -P 1 1M 14M"];

#[test]
fn writes_wait_until_there_is_room_again() {
    let scene = scene();
    let mut daemon = scene.daemon();
    fill(&scene);
    let stat = scene.json(&["pool", "stat"]);
    let settings = [
        &stat["space"],
        &stat["when_full"],
        &stat["waiting_requests"],
    ];
    assert_eq!(settings, [&json!("scarce"), &json!("pause"), &json!(0)]);
    let writers = writers(&scene);
    // No level is skipped, however fast the pool fills.
    // Different threads log the lines.
    daemon.wait_for_lines(&[
        "low on space",
        "imports stop",
        "its reserve",
        "pool is full",
        "writes wait for it",
    ]);
    wait_for_waiting(&scene);
    let stat = scene.json(&["pool", "stat"]);
    assert_eq!(stat["space"], "full", "{stat}");
    assert!(stat["free_blocks"].as_u64().unwrap() > 0, "{stat}");
    read_and_trim(&scene);
    io_ok(
        &scene,
        "b",
        &["read -P 2 0 16M", "write -P 4 1M 1M", "flush"],
    );
    assert_clean(&scene);
    scene.ok(&["snapshot", "create", "b@now"]);
    scene.ok(&["pool", "dedup"]);
    scene.ok(&["snapshot", "delete", "b@now", "--yes"]);
    assert!(waiting(&scene) >= 70);

    scene.ok(&["volume", "delete", "b", "--yes"]);
    for writer in writers {
        let ended = Outcome::of(writer);
        let stdout = String::from_utf8_lossy(&ended.stdout);
        assert!(
            ended.code == Some(0) && !stdout.contains("failed"),
            "{stdout} {ended:?}"
        );
    }
    daemon.wait_for_line("no write waits for space");
    assert_eq!(waiting(&scene), 0);
    io_ok(&scene, "a", &WRITTEN);
    assert_clean(&scene);
    assert!(daemon.terminate().success());
    assert_clean(&scene);
}

#[test]
fn what_waits_ends_when_its_client_is_disconnected_or_the_daemon_stops() {
    let scene = scene();
    let daemon = scene.daemon();
    fill(&scene);
    let cut_off = writers(&scene);
    wait_for_waiting(&scene);
    scene
        .run(&["volume", "rename", "a", "c"])
        .is_refusal(1, &["attached", "--force"]);
    scene.ok(&["volume", "rename", "a", "c", "--force"]);
    scene.ok(&["volume", "rename", "c", "a"]);
    assert_eq!(waiting(&scene), 0);
    let stopped = writers(&scene);
    wait_for_waiting(&scene);
    assert!(daemon.terminate().success());
    cut_off.into_iter().chain(stopped).for_each(has_failed);
    assert_clean(&scene);
    let daemon = scene.daemon();
    let killed = writers(&scene);
    wait_for_waiting(&scene);
    daemon.kill();
    killed.into_iter().for_each(has_failed);
    assert_clean(&scene);
    let _daemon = scene.daemon();
    io_ok(&scene, "a", &["read -P 1 1M 14M"]);
    io_ok(&scene, "b", &["read -P 2 0 16M"]);
}

#[test]
fn writes_fail_where_the_pool_is_set_so() {
    let scene = scene();
    let set = ["pool", "set", "--when-full", "fail"];
    assert_eq!(
        scene.json(&set),
        json!({"schema_version": 1, "when_full": "fail"})
    );
    let daemon = scene.daemon();
    fill(&scene);
    let refused = io(&scene, "a", &["write -P 3 20M 2M"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stdout).into_owned() + &refused.stderr;
    assert!(said.contains("No space left on device"), "{refused:?}");
    io_ok(
        &scene,
        "a",
        &["read -P 1 0 15M", "write -P 1 0 1M", "flush"],
    );
    // Trimmed blocks are free after the next commit, which the write triggers.
    io_ok(&scene, "b", &["discard 0 2M"]);
    io_ok(
        &scene,
        "a",
        &["write -P 3 20M 2M", "flush", "read -P 3 20M 2M"],
    );
    daemon.kill();
    assert_clean(&scene);
    assert_eq!(scene.json(&["pool", "stat"])["when_full"], "fail");
    // A setting can be changed while clients wait, too.
    let daemon = scene.daemon();
    scene.ok(&["pool", "set", "--when-full", "pause"]);
    let writer = client(&scene, "a", &["write -P 3 24M 2M"]);
    wait_until("it waits", || waiting(&scene) == 1);
    scene.ok(&set);
    let refused = Outcome::of(writer);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(daemon.terminate().success());
}

#[test]
fn imports_stop_before_guests_have_to() {
    let scene = scene();
    let image = scene.file("image", &noise(1, 40 << 20));
    let import = ["volume", "import", "c", &image, "--dedup", "off"];
    let words = [
        "'c'",
        "the pool is full: ",
        " free, of which 1 MiB are kept",
    ];
    scene.run(&import).is_refusal(1, &words);
    let _daemon = scene.daemon();
    scene.run(&import).is_refusal(1, &words);
    assert_eq!(scene.volumes(), ["a", "b"]);
    fill(&scene);
    assert_clean(&scene);
}

#[test]
fn a_volume_at_its_quota_fails_at_once_and_others_go_on() {
    let scene = Scene::with_pool(&["--size", "32M"]);
    scene.ok(&["volume", "create", "a", "--size", "64M", "--quota", "4M"]);
    scene.ok(&["volume", "create", "b", "--size", "64M"]);
    let _daemon = scene.daemon();
    io_ok(&scene, "a", &["write -P 1 0 2M", "flush"]);
    scene.ok(&["snapshot", "create", "a@s"]);
    // The pool's writes wait for space, but in this test no space may ever become free.
    assert_eq!(scene.json(&["pool", "stat"])["when_full"], "pause");
    let beyond = ["aio_write -P 2 1M 4M", "aio_flush"];
    has_failed(client(&scene, "a", &beyond));
    assert_eq!(waiting(&scene), 0);
    let stat = scene.json(&["volume", "stat", "a"]);
    assert_eq!(
        (&stat["quota_bytes"], &stat["mapped_bytes"]),
        (&json!(4 << 20), &json!(4 << 20))
    );
    io_ok(&scene, "b", &["write -P 3 0 8M", "flush"]);
    let shown = scene.ok(&["volume", "stat", "a"]);
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(text.contains("quota      4 MiB of 4 MiB used"), "{text}");
    scene.ok(&["volume", "set", "a", "--quota", "8M"]);
    io_ok(
        &scene,
        "a",
        &["write -P 2 1M 3M", "read -P 2 1M 3M", "read -P 1 0 1M"],
    );
    let image = scene.file("image", &noise(9, 3 << 20));
    scene
        .run(&["volume", "import", "c", &image, "--quota", "1M"])
        .is_refusal(1, &["'c'", "quota", "volume set --quota"]);
    assert_eq!(scene.volumes(), ["a", "b"]);
    assert_clean(&scene);
}

#[test]
fn a_reservation_is_there_for_its_volume_alone() {
    let scene = Scene::with_pool(&["--size", "32M"]);
    scene.ok(&["pool", "set", "--when-full", "fail"]);
    let create = ["volume", "create", "a", "--size", "64M", "--dedup", "off"];
    scene.ok(&[&create[..], &["--reservation", "20M"]].concat());
    scene.ok(&["volume", "create", "b", "--size", "64M", "--dedup", "off"]);
    scene
        .run(&[
            "volume",
            "create",
            "c",
            "--size",
            "1M",
            "--reservation",
            "20M",
        ])
        .is_refusal(1, &["20 MiB cannot be kept", "reserve less"]);
    let daemon = scene.daemon();
    has_failed(client(&scene, "b", &["aio_write -P 2 0 16M", "aio_flush"]));
    let stat = scene.json(&["pool", "stat"]);
    assert_eq!(stat["reserved_unused_blocks"], 5120);
    daemon.kill();
    let _daemon = scene.daemon();
    io_ok(
        &scene,
        "a",
        &["write -P 1 0 20M", "flush", "read -P 1 0 20M"],
    );
    let stat = scene.json(&["volume", "stat", "a"]);
    assert_eq!(
        (&stat["reservation_bytes"], &stat["reserved_unused_bytes"]),
        (&json!(20 << 20), &json!(0))
    );
    assert_clean(&scene);
}

#[test]
fn zeroing_keeps_a_reservation_and_makes_none() {
    let scene = Scene::with_pool(&["--size", "32M"]);
    scene.ok(&["pool", "set", "--when-full", "fail"]);
    let create = ["volume", "create", "a", "--size", "16M"];
    scene.ok(&[&create[..], &["--reservation", "16M"]].concat());
    scene.ok(&["volume", "create", "b", "--size", "64M", "--dedup", "off"]);
    scene.ok(&["volume", "create", "c", "--size", "16M"]);
    let daemon = scene.daemon();
    // Without -u, QEMU requests that space is allocated for the zeros.
    let zero = "write -z 0 16M";
    io_ok(&scene, "a", &["write -P 1 0 8M", zero, "flush"]);
    daemon.kill();
    let _daemon = scene.daemon();
    has_failed(client(&scene, "b", &["aio_write -P 2 0 32M", "aio_flush"]));
    has_failed(client(&scene, "b", &["aio_write -P 2 0 16M", "aio_flush"]));
    io_ok(&scene, "c", &[zero, "flush"]);
    let reserved = |name| scene.json(&["volume", "stat", name])["reserved_unused_bytes"].clone();
    assert_eq!((reserved("a"), reserved("c")), (json!(16 << 20), json!(0)));
    has_failed(client(&scene, "c", &["aio_write -P 3 0 16M", "aio_flush"]));
    let writes = ["write -P 4 0 16M", "flush", "read -P 4 0 16M"];
    io_ok(&scene, "a", &writes);
    assert_clean(&scene);
}

/// Takes all free space of the host's file system, and returns the path of the file that takes it.
fn fill_host(scene: &Scene) -> String {
    let path = scene.path("filler");
    let mut file = File::create(&path).unwrap();
    for size in [1 << 20, 4096] {
        let bytes = vec![1; size];
        while file.write_all(&bytes).is_ok() {}
    }
    path
}

/// The host is full while finder and collector need space for the index. Nothing has to be restarted, with or
/// without a daemon.
fn goes_on_after_a_full_host(scene: &Scene, has_daemon: bool) {
    // Without dedup at first, so that the index has no space yet.
    const VOLUMES: [(&str, u64); 3] = [("a", 1), ("b", 1), ("c", 2)];
    for (name, seed) in VOLUMES {
        let image = scene.file("image", &noise(seed, 12 << 20));
        scene.ok(&["volume", "import", name, &image, "--dedup", "off"]);
        fs::remove_file(image).unwrap();
    }
    let filler = fill_host(scene);
    for (name, _) in VOLUMES {
        scene.ok(&["volume", "set", name, "--dedup", "offline"]);
    }
    scene
        .run(&["pool", "dedup", "--quiet"])
        .is_refusal(1, &["No space left on device"]);
    assert_clean(scene);
    fs::remove_file(filler).unwrap();
    scene.ok(&["pool", "dedup"]);
    let stat = scene.json(&["pool", "stat"]);
    assert_eq!(stat["shared_blocks"], 3072, "{stat}");
    assert_clean(scene);

    let filler = fill_host(scene);
    for name in ["b", "c"] {
        scene.ok(&["volume", "delete", name, "--yes"]);
    }
    let queued = || scene.json(&["pool", "stat"])["pending_release_blocks"].as_u64();
    if has_daemon {
        // The finder left space for this.
        wait_until("the collector releases all", || queued() == Some(0));
    }
    assert_clean(scene);
    fs::remove_file(filler).unwrap();
    scene.ok(&["pool", "dedup"]);
    assert_eq!(queued(), Some(0));
    assert_clean(scene);
    assert!(scene.content("a") == noise(1, 12 << 20));
}

#[test]
fn an_import_that_the_host_has_no_room_for_names_the_file_system() {
    if is_left_out_in_ceph("it fills the file system that the pool is on") {
        return;
    }
    let Some(scene) = Scene::on_small_host(160, &["--size", "1G"]) else {
        println!("skipped: no file system can be mounted here");
        return;
    };
    let elsewhere = tempfile::tempdir().unwrap();
    let image = elsewhere.path().join("image");
    fs::write(&image, noise(1, 12 << 20)).unwrap();
    let filler = fill_host(&scene);
    // Space for the pool's own files, but not for the image.
    let file = File::options().write(true).open(&filler).unwrap();
    let bytes = file.metadata().unwrap().len();
    file.set_len(bytes - (8 << 20)).unwrap();
    drop(file);
    let import = ["volume", "import", "vm", image.to_str().unwrap()];
    let words = [
        "'vm'",
        "the pool is full: ",
        " have no room in the file system under the pool and ",
    ];
    scene.run(&import).is_refusal(1, &words);
    fs::remove_file(filler).unwrap();
    scene.ok(&import);
}

#[test]
fn commands_work_after_a_full_host() {
    if is_left_out_in_ceph("it fills the file system that the pool is on") {
        return;
    }
    let Some(scene) = Scene::on_small_host(160, &["--size", "1G"]) else {
        println!("skipped: no file system can be mounted here");
        return;
    };
    goes_on_after_a_full_host(&scene, false);
}

#[test]
fn a_daemon_goes_on_after_a_full_host() {
    if is_left_out_in_ceph("it fills the file system that the pool is on") {
        return;
    }
    let Some(scene) = Scene::on_small_host(160, &["--size", "1G"]) else {
        println!("skipped: no file system can be mounted here");
        return;
    };
    let daemon = scene.daemon();
    goes_on_after_a_full_host(&scene, true);
    assert!(daemon.terminate().success());
    assert_clean(&scene);
}
