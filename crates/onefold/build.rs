//! Passes the commit that the program is built from to the compiler.
//!
//! Release builds only: a debug build would otherwise be rebuilt at every commit. `ONEFOLD_COMMIT` in the
//! environment replaces the commit, for builds from an archive.

use std::env;
use std::path::Path;
use std::process::Command;

/// `git rev-parse` option: hexadecimal digits of a commit.
const DIGITS: &str = "--short=12";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=ONEFOLD_COMMIT");
    let given = env::var("ONEFOLD_COMMIT").ok();
    let commit = given.filter(|text| !text.is_empty()).unwrap_or_else(|| {
        let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
        if is_release {
            commit().unwrap_or_else(|| "unknown".to_owned())
        } else {
            "development".to_owned()
        }
    });
    println!("cargo::rustc-env=ONEFOLD_COMMIT={commit}");
}

/// The current commit, and whether the sources differ from it; `None` without Git.
fn commit() -> Option<String> {
    // An archive unpacked inside another repository must not report that repository's commit.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    let commit = git(&["rev-parse", DIGITS, "HEAD"])?;
    let crates = git(&["rev-parse", "--show-toplevel"])? + "/crates";
    for name in ["HEAD", "packed-refs", "logs/HEAD"] {
        let path = git(&["rev-parse", "--path-format=absolute", "--git-path", name])?;
        // Cargo treats a missing file as one that has changed.
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    println!("cargo::rerun-if-changed={crates}");
    let changed = git(&[
        "status",
        "--porcelain",
        "--untracked-files=no",
        "--",
        &crates,
    ]);
    match changed.as_deref() {
        Some("") => Some(commit),
        _ => Some(commit + "-modified"),
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
