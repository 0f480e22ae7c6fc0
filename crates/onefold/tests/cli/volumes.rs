//! Volumes: creating, showing, resizing, renaming and deleting them, and refusals.

use crate::harness::{Scene, noise};

#[test]
fn a_volume_lives_and_dies() {
    let scene = Scene::new();
    let made = scene.json(&["volume", "create", "vm", "--size", "20M"]);
    assert_eq!(made["size_bytes"], 20 << 20);
    assert_eq!(made["logical_blocks"], 0);
    assert_eq!(scene.json(&["volume", "stat", "vm"]), made);

    scene.ok(&["volume", "rename", "vm", "vm-2"]);
    assert_eq!(scene.volumes(), ["vm-2"]);
    let grown = scene.json(&["volume", "resize", "vm-2", "--size", "30M"]);
    assert_eq!(grown["done"], true);
    assert_eq!(
        scene.json(&["volume", "stat", "vm-2"])["size_bytes"],
        30 << 20
    );

    let deleted = scene.json(&["volume", "delete", "vm-2", "--yes"]);
    assert_eq!(deleted["done"], true);
    assert_eq!(scene.volumes(), [""; 0]);
    assert_eq!(scene.json(&["pool", "check"])["findings"], 0);
}

#[test]
fn what_destroys_needs_yes() {
    let scene = Scene::new();
    let image = scene.file("image", &noise(1, 1 << 20));
    scene.ok(&["volume", "import", "vm", &image]);
    for arguments in [
        &["volume", "delete", "vm"][..],
        &["volume", "resize", "vm", "--size", "4K"],
    ] {
        let refused = scene.run(arguments);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains("--yes"), "{refused:?}");
        let plan = String::from_utf8(refused.stdout).unwrap();
        assert!(
            plan.starts_with("plan: ") && plan.contains("'vm'"),
            "{plan}"
        );
    }
    assert_eq!(scene.content("vm"), noise(1, 1 << 20));

    scene.ok(&["volume", "resize", "vm", "--size", "512K", "--yes"]);
    scene.ok(&["volume", "resize", "vm", "--size", "1M"]);
    let half = [noise(1, 512 << 10), vec![0; 512 << 10]].concat();
    assert_eq!(
        scene.content("vm"),
        half,
        "what was cut off must not come back"
    );
    assert_eq!(scene.json(&["pool", "stat"])["logical_blocks"], 128);
}

#[test]
fn bad_sizes_are_refused() {
    let scene = Scene::new();
    scene.ok(&["volume", "create", "vm", "--size", "1M"]);
    for size in [
        "0",
        "1.5",
        "-4K",
        "15E",
        "16E",
        "18446744073709551615",
        "",
        "x",
    ] {
        let size = format!("--size={size}");
        scene
            .run(&["volume", "create", "other", &size])
            .is_refusal(2, &[]);
        scene
            .run(&["volume", "resize", "vm", &size, "--yes"])
            .is_refusal(2, &[]);
    }
    assert_eq!(scene.volumes(), ["vm"]);
    assert_eq!(scene.json(&["volume", "stat", "vm"])["size_bytes"], 1 << 20);
}

#[test]
fn bad_names_are_refused() {
    let scene = Scene::new();
    scene.ok(&["volume", "create", "vm", "--size", "1M"]);
    let long = "x".repeat(64);
    for name in ["", ".hidden", "a/b", "a b", "vm@snap", "ä", "a\nb", &long] {
        scene
            .run(&["volume", "create", name, "--size", "1M"])
            .is_refusal(2, &["name"]);
        scene
            .run(&["volume", "rename", "vm", name])
            .is_refusal(2, &["name"]);
        scene
            .run(&["volume", "import", name, "/dev/null"])
            .is_refusal(2, &["name"]);
    }
    assert_eq!(scene.volumes(), ["vm"]);
}

#[test]
fn volumes_that_exist_or_do_not() {
    let scene = Scene::new();
    let image = scene.file("image", &noise(1, 8192));
    scene.ok(&["volume", "create", "vm", "--size", "1M"]);
    scene.ok(&["volume", "create", "other", "--size", "1M"]);
    for arguments in [
        &["volume", "create", "vm", "--size", "2M"][..],
        &["volume", "import", "vm", &image],
        &["volume", "rename", "other", "vm"],
    ] {
        scene.run(arguments).is_refusal(1, &["vm", "exists"]);
    }
    let target = scene.path("target");
    for arguments in [
        &["volume", "stat", "gone"][..],
        &["volume", "export", "gone", &target],
        &["volume", "resize", "gone", "--size", "1M"],
        &["volume", "rename", "gone", "new"],
        &["volume", "delete", "gone", "--yes"],
    ] {
        scene.run(arguments).is_refusal(1, &["gone"]);
    }
    assert!(!std::fs::exists(&target).unwrap());
    assert_eq!(scene.volumes(), ["other", "vm"]);
}

#[test]
fn the_data_of_a_snapshot_is_not_said_to_be_in_none() {
    let scene = Scene::new();
    let image = scene.file("image", &noise(1, 1 << 20));
    scene.ok(&["volume", "import", "vm", &image]);
    scene.ok(&["snapshot", "create", "vm@one"]);
    let text = |name: &str| String::from_utf8(scene.ok(&["volume", "stat", name]).stdout).unwrap();
    let of_volume = text("vm");
    let words = "1 MiB, 0 B of it in no snapshot of this volume";
    assert!(of_volume.contains(words), "{of_volume}");
    let of_snapshot = text("vm@one");
    let words = "1 MiB, 1 MiB of it written since the snapshot before it";
    assert!(of_snapshot.contains(words), "{of_snapshot}");
}
