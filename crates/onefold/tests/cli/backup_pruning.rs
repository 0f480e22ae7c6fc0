//! Forgetting backups, and freeing their space.

use crate::backup::backups;
use crate::harness::{Scene, noise};
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

const MIB: usize = 1 << 20;

/// A repository with `days` backups of an image, each with one unique quarter; and the images.
fn repository(scene: &mut Scene, days: u8) -> Vec<Vec<u8>> {
    scene.use_open_repository("repository");
    scene.ok(&["backup", "init"]);
    let mut disk = noise(1, 4 * MIB);
    let days = (1..=days).map(|day| {
        let at = usize::from(day) % 4 * MIB;
        disk[at..at + MIB].copy_from_slice(&noise(day.into(), MIB));
        let image = scene.file("disk", &disk);
        let tag = format!("day{day}");
        scene.ok(&["backup", "create", &format!("vm={image}"), "--tag", &tag]);
        disk.clone()
    });
    days.collect()
}

/// The kept backups of a reply, with the rules that keep them.
fn kept(reply: &Value) -> Value {
    let backups = reply["backups"].as_array().unwrap().iter();
    let kept = backups.filter(|backup| backup["is_kept"] == true);
    kept.map(|backup| json!([backup["name"], backup["kept_by"]]))
        .collect()
}

#[track_caller]
fn assert_whole(scene: &Scene, days: &[Vec<u8>]) {
    for name in backups(scene) {
        let day: usize = name.rsplit('@').next().unwrap().parse().unwrap();
        let restored = scene.ok(&["backup", "restore", &name, "-"]);
        assert!(restored.stdout == days[day - 1], "{name}");
    }
    let verified = scene.json(&["backup", "verify", "--data"]);
    assert_eq!(verified["findings"], json!([]));
}

#[test]
fn rules_and_names_say_what_is_forgotten() {
    let mut scene = Scene::new();
    let days = repository(&mut scene, 6);
    let rules = ["backup", "forget", "--keep-last", "2", "--keep-tag", "day1"];
    scene.ok(&["backup", "protect", "vm@3"]);
    let expected = json!([
        ["vm@1", ["tag"]],
        ["vm@3", ["protected"]],
        ["vm@5", ["last"]],
        ["vm@6", ["last"]]
    ]);
    let plan = scene.planned(&rules);
    assert_eq!(
        (kept(&plan), &plan["is_done"]),
        (expected.clone(), &json!(false))
    );
    assert_eq!(backups(&scene).len(), 6);
    let done = scene.json(&[&rules[..], &["--yes"]].concat());
    assert_eq!(kept(&done), expected);
    assert_eq!(backups(&scene), ["vm@1", "vm@3", "vm@5", "vm@6"]);
    scene
        .run(&["backup", "forget", "vm@3", "--yes"])
        .is_refusal(2, &["protected", "unprotect"]);
    scene.ok(&["backup", "unprotect", "vm@3"]);
    // The last backup is named twice.
    scene.ok(&["backup", "forget", "vm@3", "vm@latest", "vm@6", "--yes"]);
    assert_eq!(backups(&scene), ["vm@1", "vm@5"]);
    assert_whole(&scene, &days);
    for (wrong, says) in [
        (&["backup", "forget"][..], "which backups"),
        (&["backup", "forget", "vm"], "SOURCE@N"),
        (&["backup", "forget", "--keep-last", "0"], "0"),
        (&["backup", "prune", "--wasted", "101%"], "percentage"),
    ] {
        scene.run(wrong).is_refusal(2, &[says]);
    }
    scene
        .run(&["backup", "forget", "vm@3", "--yes"])
        .is_refusal(1, &["no backup vm@3"]);
    scene
        .run(&["backup", "prune", "web"])
        .is_refusal(1, &["no source 'web'"]);
}

#[test]
fn pruning_gives_back_what_no_backup_needs() {
    let mut scene = Scene::new();
    let days = repository(&mut scene, 6);
    scene.ok(&["backup", "forget", "--keep-last", "2", "--yes"]);
    let plan = scene.planned(&["backup", "prune", "--wasted", "0%"]);
    // Five quarters are needed: four of the last day, and the one that it replaced.
    let source = &plan["sources"][0];
    assert_eq!(source["needed_bytes"], 5 * MIB);
    assert_eq!(source["given_back_bytes"], source["wasted_bytes"]);
    let size = || {
        let files = walk(scene.path("repository").as_ref());
        files
            .iter()
            .map(|file| fs::metadata(file).unwrap().len())
            .sum::<u64>()
    };
    let before = size();
    let done = scene.json(&["backup", "prune", "--wasted", "0%", "--yes"]);
    let freed = done["sources"][0]["freed_bytes"].as_u64().unwrap();
    assert!(
        before - size() >= freed && freed > 3 * MIB as u64,
        "{freed} of {before}"
    );
    assert_whole(&scene, &days);
    let again = scene.json(&["backup", "prune", "--wasted", "0%", "--yes"]);
    let again = &again["sources"][0];
    assert_eq!(
        (&again["wasted_bytes"], &again["freed_bytes"]),
        (&json!(0), &json!(0))
    );
}

#[test]
fn a_prune_that_is_killed_leaves_all_backups_and_is_done_again() {
    let mut scene = Scene::new();
    let mut days = repository(&mut scene, 8);
    for round in 0..14_u64 {
        let keep = if round % 2 == 0 { "3" } else { "2" };
        scene.ok(&["backup", "forget", "--keep-last", keep, "--yes"]);
        let prune = ["backup", "prune", "--wasted", "0%", "--yes"];
        let mut child = scene.command(&prune).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(round * 3 % 29));
        let _ = child.kill();
        child.wait().unwrap();
        assert_whole(&scene, &days);
        // The lease of a dead process is not waited for.
        let mut disk = days[days.len() - 1].clone();
        let at = round as usize % 4 * MIB;
        disk[at..at + MIB].copy_from_slice(&noise(100 + round, MIB));
        let image = scene.file("disk", &disk);
        let made = scene.json(&["backup", "create", &format!("vm={image}")]);
        days.push(disk);
        assert_eq!(made["backups"][0]["name"], format!("vm@{}", days.len()));
        assert_whole(&scene, &days);
    }
    scene.ok(&["backup", "prune", "--wasted", "0%", "--yes"]);
    let left = scene.json(&["backup", "prune", "--wasted", "0%"]);
    assert_eq!(left["sources"][0]["wasted_bytes"], 0);
    assert_whole(&scene, &days);
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(walk(&path));
        } else {
            files.push(path);
        }
    }
    files
}
