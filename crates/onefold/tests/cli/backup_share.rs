//! Sharing content among sources that were backed up separately.

use crate::harness::{Scene, noise};
use serde_json::json;

const MIB: usize = 1 << 20;

#[test]
fn what_several_sources_have_is_stored_once_after_share_and_prune() {
    let mut scene = Scene::new();
    scene.use_open_repository("repository");
    scene.ok(&["backup", "init"]);
    let disk = |own: u64| [noise(1, 2 * MIB), noise(own, MIB)].concat();
    let guests = [("a", 2), ("b", 3), ("c", 4)];
    for (name, own) in guests {
        let image = scene.file(name, &disk(own));
        scene.ok(&["backup", "create", &format!("{name}={image}")]);
    }
    let stored = |scene: &Scene| {
        let stat = scene.json(&["backup", "stat"]);
        (
            stat["content_bytes"].clone(),
            stat["shareable_bytes"].clone(),
        )
    };
    assert_eq!(stored(&scene), (json!(9 * MIB), json!(4 * MIB)));

    let plan = scene.planned(&["backup", "share"]);
    let domain = json!({
        "domain": "default",
        "sources": 3,
        "copied_bytes": 2 * MIB,
        "movable_bytes": 6 * MIB,
        "stored_bytes": null,
        "damaged": [],
    });
    assert_eq!(
        (&plan["is_done"], &plan["domains"]),
        (&json!(false), &json!([domain]))
    );
    let told = scene.run(&["backup", "share", "--domain", "default"]);
    assert!(told.stderr.contains("--yes"), "{told:?}");
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(told.contains("2 MiB would become popular"), "{told}");
    scene
        .run(&["backup", "share", "--domain", "other", "--yes"])
        .is_refusal(1, &["no source of domain 'other'"]);
    assert_eq!(stored(&scene).0, 9 * MIB);

    let done = scene.json(&["backup", "share", "--yes", "--memory", "1M"]);
    let done = &done["domains"][0];
    assert_eq!(
        (&done["copied_bytes"], &done["movable_bytes"]),
        (&json!(2 * MIB), &json!(6 * MIB))
    );
    assert!(done["stored_bytes"].as_u64().unwrap() > 2 * MIB as u64);
    let pruned = scene.json(&["backup", "prune", "--wasted", "0%", "--yes"]);
    assert_eq!(pruned["sources"][0]["movable_bytes"], 2 * MIB);
    assert_eq!(stored(&scene), (json!(5 * MIB), json!(0)));
    let again = scene.json(&["backup", "share", "--yes"]);
    assert_eq!(again["domains"][0]["copied_bytes"], 0);
    for (name, own) in guests {
        let restored = scene.ok(&["backup", "restore", &format!("{name}@1"), "-"]);
        assert!(restored.stdout == disk(own), "{name}");
    }
    let verified = scene.json(&["backup", "verify", "--data"]);
    assert_eq!(verified["findings"], json!([]));
}
