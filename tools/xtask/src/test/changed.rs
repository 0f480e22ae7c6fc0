//! What differs from main, and the crates that it reaches.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use onefold_harness::command::Cmd;
use onefold_harness::workspace::Workspace;
use serde_json::Value;

/// Where the tests of the tests look: a fault in one of these could make a check pass that should fail.
const CHECKS: [&str; 2] = ["tools/acceptance", "tools/harness"];

/// Branches that are main, the first that exists.
const MAIN: [&str; 2] = ["origin/main", "main"];

/// Paths, below the repository, that differ from the merge base with main, committed or not.
pub(super) fn files(workspace: &Workspace) -> Result<BTreeSet<PathBuf>> {
    let git = |arguments: &[&str]| {
        let git = Cmd::new("git").dir(&workspace.root);
        // The tree may belong to another user, as it does in containers.
        git.args(["-c", "safe.directory=*"]).args(arguments).read()
    };
    let mut bases = MAIN.iter().map(|main| git(&["merge-base", "HEAD", main]));
    let base = bases.find_map(Result::ok);
    let base = base.context("there is no Git repository with a branch main to compare with")?;
    let changed = git(&["diff", "--name-only", "-z", base.trim()])?;
    let new = git(&["ls-files", "-z", "--others", "--exclude-standard"])?;
    let names = changed.split('\0').chain(new.split('\0'));
    Ok(names
        .filter(|name| !name.is_empty())
        .map(PathBuf::from)
        .collect())
}

/// Whether the tests of the tests have to run: their subject differs from main, or nothing is known of main.
pub(super) fn reaches_checks(workspace: &Workspace) -> bool {
    files(workspace).map_or(true, |files| {
        files
            .iter()
            .any(|file| CHECKS.iter().any(|check| file.starts_with(check)))
    })
}

/// A crate of the workspace.
struct Crate {
    name: String,
    /// The directory of the crate, relative to the repository.
    directory: PathBuf,
    /// The crates of the workspace that it uses.
    uses: Vec<String>,
}

/// The names of the crates that have some of these files, and of those that use them; all of them where a
/// file belongs to no crate and may change every build.
pub(super) fn reached(
    workspace: &Workspace,
    files: &BTreeSet<PathBuf>,
) -> Result<BTreeSet<String>> {
    Ok(reached_among(&crates(workspace)?, files))
}

fn reached_among(crates: &[Crate], files: &BTreeSet<PathBuf>) -> BTreeSet<String> {
    let is_of_all = |file: &PathBuf| {
        let is_cargo = ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml"].map(Path::new);
        is_cargo.contains(&file.as_path()) || file.starts_with(".cargo")
    };
    let is_changed = |krate: &&Crate| files.iter().any(|file| file.starts_with(&krate.directory));
    let names = |krate: &Crate| krate.name.clone();
    let mut reached: BTreeSet<String> = if files.iter().any(is_of_all) {
        crates.iter().map(names).collect()
    } else {
        crates.iter().filter(is_changed).map(names).collect()
    };
    loop {
        let users = crates
            .iter()
            .filter(|krate| krate.uses.iter().any(|used| reached.contains(used)));
        let users: Vec<String> = users
            .map(names)
            .filter(|name| !reached.contains(name))
            .collect();
        if users.is_empty() {
            return reached;
        }
        reached.extend(users);
    }
}

fn crates(workspace: &Workspace) -> Result<Vec<Crate>> {
    let text = |value: &Value, key: &str| {
        let text = value.get(key).and_then(Value::as_str);
        text.map(str::to_owned)
            .with_context(|| format!("cargo metadata has no {key}"))
    };
    let list = |value: &Value, key: &str| {
        let list = value.get(key).and_then(Value::as_array);
        list.cloned()
            .with_context(|| format!("cargo metadata has no {key}"))
    };
    let mut crates = Vec::new();
    for package in list(&workspace.metadata, "packages")? {
        let manifest = PathBuf::from(text(&package, "manifest_path")?);
        let directory = manifest.parent().unwrap_or(Path::new(""));
        let mut uses = Vec::new();
        for dependency in list(&package, "dependencies")? {
            if dependency.get("path").is_some_and(Value::is_string) {
                uses.push(text(&dependency, "name")?);
            }
        }
        crates.push(Crate {
            name: text(&package, "name")?,
            directory: directory.strip_prefix(&workspace.root)?.to_path_buf(),
            uses,
        });
    }
    Ok(crates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_reaches_the_crates_that_use_the_changed_one() {
        let krate = |name: &str, uses: &[&str]| Crate {
            name: name.to_owned(),
            directory: Path::new("crates").join(name),
            uses: uses.iter().map(|used| (*used).to_owned()).collect(),
        };
        let crates = [
            krate("format", &[]),
            krate("index", &["format"]),
            krate("nbd", &[]),
            krate("store", &["index"]),
        ];
        for (file, expected) in [
            ("crates/index/src/lib.rs", &["index", "store"][..]),
            ("crates/format/Cargo.toml", &["format", "index", "store"]),
            ("crates/store/tests/a.rs", &["store"]),
            ("docs/testing.md", &[]),
            ("crates/nbdx/src/lib.rs", &[]),
            ("Cargo.lock", &["format", "index", "nbd", "store"]),
        ] {
            let reached = reached_among(&crates, &BTreeSet::from([PathBuf::from(file)]));
            assert_eq!(reached.into_iter().collect::<Vec<_>>(), expected, "{file}");
        }
    }
}
