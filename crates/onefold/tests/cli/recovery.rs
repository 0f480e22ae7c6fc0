//! Restores pools from an export of their metadata, and runs the drill of docs/operating/recovery.md.

use crate::harness::{Scene, contents, is_left_out_in_ceph, noise, run};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const DOCUMENT: &str = include_str!("../../../../docs/operating/recovery.md");

/// The commands under a heading of a document, in order.
fn commands(document: &str, heading: &str) -> String {
    let section = document
        .split("\n## ")
        .find(|section| section.starts_with(heading));
    let blocks = section.unwrap().split("```sh\n").skip(1);
    blocks
        .map(|block| block.split("```").next().unwrap())
        .collect()
}

#[test]
fn the_drill_works_as_it_is_written() {
    if is_left_out_in_ceph("'pool import-metadata' is for pools in a directory") {
        return;
    }
    let script = commands(DOCUMENT, "A drill");
    assert!(script.matches("import-metadata").count() >= 4, "{script}");
    let directory = TempDir::with_prefix("onefold-drill-").unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_onefold")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-eux", "-c", &script]).env("PATH", path);
    shell.current_dir(&directory).env_remove("ONEFOLD_POOL");
    let output = shell.output().unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A pool with two volumes that share blocks, and an export of it.
fn scene() -> (Scene, String) {
    let scene = Scene::new();
    let image = scene.file("image", &noise(1, 3 << 20));
    scene.ok(&["volume", "import", "first", &image]);
    scene.ok(&["volume", "import", "second", &image]);
    let export = scene.path("export");
    scene.ok(&["pool", "export-metadata", &export]);
    (scene, export)
}

/// The content of the pool's files, except for the process id of the last lock holder.
fn parts(scene: &Scene) -> Vec<(PathBuf, Vec<u8>)> {
    let mut parts = contents(&scene.pool());
    parts.retain(|(path, _)| !path.ends_with("lock"));
    parts
}

/// A pool with commits in its log that are not in a checkpoint: the daemon was killed after it had answered.
fn killed() -> Scene {
    let scene = Scene::new();
    let daemon = scene.daemon();
    for name in ["first", "second"] {
        scene.ok(&["volume", "create", name, "--size", "1M"]);
    }
    daemon.kill();
    scene
}

/// Discards the daemon's state in the host's memory, as a power loss does.
fn forget_process(scene: &Scene) {
    fs::remove_file(scene.pool().join("tail")).unwrap();
}

#[test]
fn a_log_that_was_cut_or_is_another_pools_is_refused() {
    if is_left_out_in_ceph("it changes the file of a part") {
        return;
    }
    let (scene, other) = (killed(), killed());
    let log = scene.pool().join("log");
    let own = fs::read(&log).unwrap();
    fs::write(&log, []).unwrap();
    let says = [
        "log has 0 bytes",
        "it was cut",
        "put the pool's own log back",
    ];
    scene.run(&["volume", "list"]).is_refusal(1, &says);
    fs::copy(other.pool().join("log"), &log).unwrap();
    let says = ["log is the log of the pool", "put the pool's own log back"];
    scene.run(&["volume", "list"]).is_refusal(1, &says);
    // A pool that cannot be opened counts as one finding.
    assert_eq!(scene.run(&["pool", "check"]).code, Some(3));
    fs::write(&log, own).unwrap();
    scene.ok(&["volume", "stat", "second"]);
}

#[test]
fn a_last_commit_that_does_not_verify_is_said() {
    if is_left_out_in_ceph("it changes the file of a part") {
        return;
    }
    let scene = killed();
    let log = scene.pool().join("log");
    let mut bytes = fs::read(&log).unwrap();
    let mut heads = (0..bytes.len()).step_by(512).rev();
    let last = heads.find(|at| bytes[*at..].starts_with(b"1FLG"));
    bytes[last.unwrap() + 70] ^= 1;
    fs::write(&log, &bytes).unwrap();
    forget_process(&scene);
    let stat = scene.ok(&["--quiet", "pool", "stat"]);
    let says = "may be incomplete: up to 512 bytes of records";
    assert!(stat.stderr.contains(says), "{}", stat.stderr);
    scene.ok(&["volume", "stat", "first"]);
    let stat = scene.ok(&["pool", "stat"]);
    assert!(!stat.stderr.contains("incomplete"), "{}", stat.stderr);
    // The same plan from a daemon.
    let scene = killed();
    let log = scene.pool().join("log");
    let mut bytes = fs::read(&log).unwrap();
    bytes[last.unwrap() + 70] ^= 1;
    fs::write(&log, &bytes).unwrap();
    forget_process(&scene);
    scene.starting_daemon(&[]).wait_for_line(says);
}

#[test]
fn an_export_is_for_its_owner_alone_and_overwrites_nothing() {
    let (scene, export) = scene();
    let mode = fs::metadata(&export).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let again = scene.run(&["pool", "export-metadata", &export]);
    again.is_refusal(1, &["exists already"]);
    let piped = scene.ok(&["pool", "export-metadata", "-"]).stdout;
    assert_eq!(piped.len(), fs::read(&export).unwrap().len());
    let reply = scene.json(&["pool", "export-metadata", &scene.path("other")]);
    assert_eq!(reply["bytes"], piped.len());
}

#[test]
fn a_daemon_exports_while_it_serves() {
    if is_left_out_in_ceph("'pool import-metadata' is for pools in a directory") {
        return;
    }
    let (scene, _) = scene();
    let daemon = scene.daemon();
    let online = scene.path("online");
    scene.ok(&["pool", "export-metadata", &online]);
    let held = scene.run(&["pool", "import-metadata", &online, "--yes"]);
    held.is_refusal(1, &["in use by process"]);
    daemon.kill();
    fs::remove_file(scene.pool().join("meta")).unwrap();
    scene.ok(&["pool", "import-metadata", &online, "--yes"]);
    assert!(scene.content("second") == noise(1, 3 << 20));
    assert_eq!(scene.json(&["pool", "check"])["findings"], 0);
    assert_eq!(scene.json(&["pool", "stat"])["shared_blocks"], 768);
}

#[test]
fn a_plan_changes_nothing_and_says_what_is_there() {
    if is_left_out_in_ceph("'pool import-metadata' is for pools in a directory") {
        return;
    }
    let (scene, export) = scene();
    let before = parts(&scene);
    let plan = scene.run(&["--format", "json", "pool", "import-metadata", &export]);
    assert_eq!(plan.code, Some(2));
    let reply = plan.json();
    assert_eq!(
        (&reply["done"], &reply["is_complete"]),
        (&false.into(), &true.into())
    );
    assert_eq!(reply["volumes"], serde_json::json!(["first", "second"]));
    let text = reply["plan"].to_string();
    assert!(text.contains("may well be usable"), "{text}");
    assert!(parts(&scene) == before, "something changed");

    fs::remove_file(scene.pool().join("meta")).unwrap();
    fs::remove_file(scene.pool().join("log")).unwrap();
    let reply = scene.run(&["--format", "json", "pool", "import-metadata", &export]);
    let reply = reply.json();
    assert_eq!(reply["is_complete"], false);
    let text = reply["plan"].to_string();
    assert!(!text.contains("may well be usable"), "{text}");
    assert!(text.contains("of another volume"), "{text}");
}

#[test]
fn what_was_there_is_kept_aside() {
    if is_left_out_in_ceph("'pool import-metadata' is for pools in a directory") {
        return;
    }
    let (scene, export) = scene();
    let meta = fs::read(scene.pool().join("meta")).unwrap();
    scene.ok(&["pool", "import-metadata", &export, "--yes"]);
    let files = fs::read_dir(scene.pool()).unwrap();
    let mut names: Vec<String> = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let aside = names.iter().find(|name| name.starts_with("meta.before-"));
    assert!(fs::read(scene.pool().join(aside.unwrap())).unwrap() == meta);
    for part in ["superblock", "secret", "index"] {
        let prefix = format!("{part}.before-");
        assert!(
            names.iter().any(|name| name.starts_with(&prefix)),
            "{names:?}"
        );
    }
    assert!(!names.contains(&"new-parts".to_owned()), "{names:?}");
}

#[test]
fn what_does_not_fit_is_refused_before_anything_changes() {
    if is_left_out_in_ceph("'pool import-metadata' is for pools in a directory") {
        return;
    }
    let (scene, export) = scene();
    let (other, _) = self::scene();
    let before = parts(&other);
    other
        .run(&["pool", "import-metadata", &export, "--yes"])
        .is_refusal(1, &["does not fit", "another pool"]);
    let cut = scene.file("cut", &fs::read(&export).unwrap()[..20_000]);
    other
        .run(&["pool", "import-metadata", &cut, "--yes"])
        .is_refusal(1, &["cut", "ends early"]);
    let data = scene.pool().join("data");
    let data = data.to_str().unwrap();
    other
        .run(&["pool", "import-metadata", &export, "--data", data, "--yes"])
        .is_refusal(2, &["--data is for a pool that has them elsewhere"]);
    assert!(parts(&other) == before, "something changed");

    let nowhere = scene.path("nowhere");
    run(&[
        "--pool",
        &nowhere,
        "pool",
        "import-metadata",
        &export,
        "--yes",
    ])
    .is_refusal(1, &["data is missing", "--data says where"]);
    assert!(!Path::new(&nowhere).exists());
}
