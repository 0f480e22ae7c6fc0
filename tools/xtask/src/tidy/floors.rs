//! The house of floors: a crate uses only floors below its own.

use anyhow::{Context, Result};
use serde_json::Value;

/// Each crate's floor. A new crate gets its line here with its first working test.
const FLOORS: &[(&str, u8)] = &[
    ("onefold-format", 1),
    ("onefold-image", 1),
    ("onefold-rados", 1),
    ("onefold-retention", 1),
    ("onefold-sorter", 1),
    ("onefold-engine", 2),
    ("onefold-index", 3),
    ("onefold-repository", 3),
    ("onefold-metadata", 4),
    ("onefold-backup", 5),
    ("onefold-journal", 5),
    ("onefold-store", 6),
    ("onefold-nbd", 7),
    ("onefold-jobs", 7),
    ("onefold-analyze", 7),
    ("onefold-workload", 8),
    ("onefold-api", 8),
    ("onefold", 9),
];

/// Shared by the tools, and usable by all of them.
const HARNESS: &str = "onefold-harness";

/// Tools that may use no floor: [`HARNESS`] uses the product only as its binary, and the tool that
/// every check waits for must build in seconds.
const WITHOUT_PRODUCT: &[&str] = &[HARNESS, "onefold-model", "xtask"];

/// Tools that may use every floor. No floor uses any tool.
const WITH_PRODUCT: &[&str] = &["onefold-acceptance", "onefold-bench"];

/// The crate whose binary users get.
const SHIPPED: &str = "onefold";

fn is_tool(name: &str) -> bool {
    WITHOUT_PRODUCT.contains(&name) || WITH_PRODUCT.contains(&name)
}

/// Words that do not describe the purpose of a crate.
const EMPTY_WORDS: &[&str] = &[
    "common", "util", "utils", "helper", "helpers", "manager", "misc", "shared",
];

fn floor(name: &str) -> Option<u8> {
    FLOORS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, floor)| *floor)
}

/// Checks every arrow between the workspace's crates; dev- and build-dependencies too.
pub(super) fn faults(metadata: &Value) -> Result<Vec<String>> {
    let packages = metadata
        .get("packages")
        .and_then(Value::as_array)
        .context("no packages")?;
    let mut faults = Vec::new();
    for package in packages {
        let name = package
            .get("name")
            .and_then(Value::as_str)
            .context("a crate has no name")?;
        faults.extend(name_fault(name));
        faults.extend(feature_fault(name, package));
        if floor(name).is_none() && !is_tool(name) {
            faults.push(format!(
                "crate {name} has no floor: give it one in xtask's tidy/floors.rs"
            ));
        }
        let dependencies = package.get("dependencies").and_then(Value::as_array);
        for dependency in dependencies.context("a crate has no list of dependencies")? {
            // Crates of the workspace are the ones with a path.
            if dependency.get("path").and_then(Value::as_str).is_none() {
                continue;
            }
            let used = dependency.get("name").and_then(Value::as_str);
            faults.extend(arrow_fault(name, used.context("a dependency has no name")?));
        }
    }
    Ok(faults)
}

fn name_fault(name: &str) -> Option<String> {
    let word = name
        .split(['-', '_'])
        .find(|word| EMPTY_WORDS.contains(word))?;
    Some(format!(
        "crate {name}: '{word}' says nothing; name it after what it does"
    ))
}

/// Packagers build with `--all-features`, and that must be the product as it is.
fn feature_fault(name: &str, package: &Value) -> Option<String> {
    let features = package.get("features")?.as_object()?;
    (name == SHIPPED && !features.is_empty()).then(|| {
        let names: Vec<&str> = features.keys().map(String::as_str).collect();
        format!(
            "crate {name} has the feature {}, which --all-features would ship: use a --cfg for a test",
            names.join(", ")
        )
    })
}

fn arrow_fault(user: &str, used: &str) -> Option<String> {
    // A crate may be its own dev-dependency: that is how its tests switch its features on.
    if user == used {
        return None;
    }
    if is_tool(used) {
        return (used != HARNESS || !is_tool(user))
            .then(|| format!("{user} uses {used}, which is outside the house"));
    }
    if WITHOUT_PRODUCT.contains(&user) {
        return Some(format!("{user} uses {used}, a crate of the product"));
    }
    if WITH_PRODUCT.contains(&user) {
        return None;
    }
    let (user_floor, used_floor) = (floor(user)?, floor(used)?);
    (used_floor >= user_floor).then(|| {
        format!("{user} (floor {user_floor}) uses {used} (floor {used_floor}): arrows point down")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(arrows: &[(&str, &str, Option<&str>)]) -> Value {
        let packages: Vec<Value> = arrows
            .iter()
            .map(|(user, used, kind)| {
                serde_json::json!({"name": user, "dependencies": [
                    {"name": used, "path": "somewhere", "kind": kind},
                    {"name": "serde", "kind": null},
                ]})
            })
            .collect();
        serde_json::json!({ "packages": packages })
    }

    fn faults_of(arrow: (&str, &str, Option<&str>)) -> Vec<String> {
        faults(&metadata(&[arrow])).unwrap()
    }

    #[test]
    fn what_is_shipped_has_no_features() {
        let with = |name: &str, features: Value| {
            let package =
                serde_json::json!({"name": name, "dependencies": [], "features": features});
            faults(&serde_json::json!({ "packages": [package] })).unwrap()
        };
        let switch = || serde_json::json!({"without-fencing": []});
        assert_eq!(with("onefold", switch()).len(), 1);
        assert!(with("onefold", serde_json::json!({})).is_empty());
        assert!(with("onefold-engine", switch()).is_empty());
    }

    #[test]
    fn arrows_that_point_down_are_fine() {
        assert!(faults_of(("onefold-store", "onefold-format", None)).is_empty());
        assert!(faults_of(("onefold", "onefold-nbd", None)).is_empty());
        assert!(faults_of(("onefold-bench", "onefold-nbd", None)).is_empty());
        assert!(faults_of(("onefold-engine", "onefold-engine", Some("dev"))).is_empty());
    }

    #[test]
    fn arrows_up_and_sideways_are_faults_of_every_kind() {
        for kind in [None, Some("dev"), Some("build")] {
            assert_eq!(
                faults_of(("onefold-engine", "onefold-store", kind)).len(),
                1
            );
            assert_eq!(faults_of(("onefold-nbd", "onefold-jobs", kind)).len(), 1);
        }
    }

    #[test]
    fn nothing_may_use_the_tools() {
        assert_eq!(
            faults_of(("onefold-store", "onefold-model", Some("dev"))).len(),
            1
        );
        assert_eq!(faults_of(("xtask", "onefold-model", None)).len(), 1);
        assert_eq!(
            faults_of(("onefold-acceptance", "onefold-bench", None)).len(),
            1
        );
        assert_eq!(faults_of(("onefold-store", HARNESS, Some("dev"))).len(), 1);
    }

    #[test]
    fn tools_may_use_the_harness_and_only_some_the_product() {
        for tool in WITH_PRODUCT.iter().chain(&["xtask"]) {
            assert!(faults_of((tool, HARNESS, None)).is_empty());
        }
        for tool in WITHOUT_PRODUCT {
            assert_eq!(faults_of((tool, "onefold-format", None)).len(), 1);
        }
    }

    #[test]
    fn unknown_crates_and_empty_names_are_faults() {
        assert_eq!(
            faults_of(("onefold-attic", "onefold-format", None)).len(),
            1
        );
        // No floor, and an empty name.
        assert_eq!(
            faults_of(("onefold-common", "onefold-format", None)).len(),
            2
        );
        assert!(name_fault("onefold-utility").is_none());
    }
}
