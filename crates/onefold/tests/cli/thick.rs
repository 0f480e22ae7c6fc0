//! Thick pools: all of their space is allocated, and stays so.

use crate::harness::{Scene, is_in_ceph, noise, run};
use std::fs;
use std::os::unix::fs::MetadataExt;

const SIZE: u64 = 64 << 20;

fn scene() -> Scene {
    Scene::with_pool_options(&["--size", "64M", "--allocate"])
}

/// Bytes that the host has allocated for the pool's data.
fn allocated(scene: &Scene) -> u64 {
    fs::metadata(scene.pool().join("data")).unwrap().blocks() * 512
}

#[test]
fn a_thick_pool_keeps_its_space() {
    if is_in_ceph() {
        let place = Scene::new().place() + "-thick";
        run(&["pool", "create", &place, "--allocate"]).is_refusal(2, &["--allocate", "directory"]);
        return;
    }
    for options in [&[][..], &["--cache", "direct"]] {
        let scene = scene();
        let stat = |field: &str| scene.json(&["pool", "stat"])[field].clone();
        assert_eq!(stat("provisioning"), "thick");
        assert!(stat("host_free_bytes").is_null());
        assert!(allocated(&scene) >= SIZE);
        let daemon = scene.daemon_with(options);
        let image = scene.file("image", &noise(1, 16 << 20));
        scene.ok(&["volume", "import", "a", &image]);
        assert_eq!(scene.content("a"), noise(1, 16 << 20));
        scene.ok(&["--quiet", "volume", "delete", "a", "--yes"]);
        scene.ok(&["pool", "dedup"]);
        assert_eq!(stat("physical_blocks"), 0);
        scene
            .run(&["pool", "trim"])
            .is_refusal(2, &["keeps all of its space", "--allocate"]);
        assert!(allocated(&scene) >= SIZE);

        scene.ok(&["pool", "resize", "--size", "96M"]);
        assert!(allocated(&scene) >= SIZE * 3 / 2);
        scene.ok(&["volume", "import", "b", &image]);
        scene.ok(&["pool", "resize", "--size", "64M", "--yes"]);
        assert!((SIZE..SIZE + (1 << 20)).contains(&allocated(&scene)));
        daemon.terminate();
        assert!(
            allocated(&scene) >= SIZE,
            "nothing is given back at the end"
        );
        assert_eq!(scene.content("b"), noise(1, 16 << 20));
        assert_eq!(scene.json(&["pool", "check"])["findings"], 0);
    }
}

#[test]
fn a_host_without_room_gets_no_thick_pool() {
    if is_in_ceph() {
        return;
    }
    let Some(scene) = Scene::on_small_host(160, &["--size", "32M", "--allocate"]) else {
        return;
    };
    assert!(allocated(&scene) >= 32 << 20);
    let new = format!("{}-new", scene.place());
    run(&["pool", "create", &new, "--size", "128M", "--allocate"])
        .is_refusal(1, &["allocating space", "free"]);
    assert!(!fs::exists(&new).unwrap());
    // A pool that cannot grow keeps its size.
    scene
        .run(&["pool", "resize", "--size", "256M"])
        .is_refusal(1, &["free"]);
    assert_eq!(scene.json(&["pool", "stat"])["pool_blocks"], 8192);
    assert!(allocated(&scene) < 33 << 20);
    // Others fill the host, and guests do not notice.
    let filler = scene.pool().parent().unwrap().join("filler");
    let _ = fs::write(filler, noise(2, 160 << 20));
    let stat = scene.json(&["pool", "stat"]);
    assert_eq!(
        (&stat["space"], &stat["available_blocks"]),
        (&"ok".into(), &8191.into())
    );
}

#[test]
fn thick_pools_are_shown_as_such() {
    if is_in_ceph() {
        return;
    }
    let scene = scene();
    let text = scene.ok(&["pool", "stat"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("thick, "), "{text}");
    let thin = Scene::new();
    assert_eq!(thin.json(&["pool", "stat"])["provisioning"], "thin");
}
