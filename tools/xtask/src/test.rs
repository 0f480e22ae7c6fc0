//! `cargo xtask test`: everything that CI runs, in order, each step with its duration.
//!
//! A step that fails does not stop the later ones, so that one run tells all there is to mend.
//! A missing tool is installed or is a failure. The one exception, cargo-deny, which takes long to build, is
//! named in a closing line where it is missing: nothing is left out silently.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::fuzz;
use crate::tidy;
use crate::tools;
use onefold_harness::command::Cmd;
use onefold_harness::packages;
use onefold_harness::workspace::Workspace;

/// How often CI kills the daemon. More by `cargo xtask kill-loop --rounds N`.
const KILL_ROUNDS: &str = "12";

/// How long CI runs each fuzz target. More by `cargo xtask fuzz --seconds N`.
const FUZZ_SECONDS: u32 = 4;

/// Seconds for each of the three stress tests.
const STRESS_SECONDS: &str = "20";

/// Tests that run at a time. Many of them wait for something most of the time.
const TESTS_AT_A_TIME: &str = "8";

/// Options of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Run only the steps whose name contains this text
    #[arg(long)]
    only: Option<String>,
}

type Work = fn(&Workspace) -> Result<()>;

/// Cheap and frequent faults first.
const STEPS: &[(&str, Work)] = &[
    ("system packages", install),
    ("formatting", |w| {
        w.cargo().args(["fmt", "--all", "--check"]).show()
    }),
    ("clippy", clippy),
    ("documentation", documentation),
    (LICENSES, licenses),
    ("tidy", tidy::run),
    ("unit and integration tests", unit_tests),
    ("simulation", simulation),
    ("schedules", schedules),
    ("stress", stress),
    ("model check", model_check),
    ("fuzzing", |w| {
        fuzz::run(
            w,
            &fuzz::Arguments {
                seconds: FUZZ_SECONDS,
                target: None,
            },
        )
    }),
    ("documents", |w| acceptance(w, &["docs"])),
    ("benchmark of the index", |w| {
        tools::bench(w)?.args(["index", "--try-out"]).show()
    }),
    ("clients", |w| acceptance(w, &["clients"])),
    ("sharing", |w| acceptance(w, &["sharing"])),
    ("memory limit", |w| acceptance(w, &["memory-limit"])),
    ("reconnect", |w| {
        acceptance(w, &["reconnect", "--control"])?;
        acceptance(w, &["reconnect"])
    }),
    ("guest", |w| {
        acceptance(w, &["guest", "--control"])?;
        acceptance(w, &["guest"])
    }),
    ("kill loop finds a server that forgets", |w| {
        acceptance(w, &["kill-loop", "--control"])
    }),
    ("kill loop", |w| {
        acceptance(w, &["kill-loop", "--rounds", KILL_ROUNDS])
    }),
    (
        "loop of answered requests finds a server that forgets",
        |w| acceptance(w, &["kill-loop", "--answered", "--control"]),
    ),
    ("loop of answered requests", |w| {
        acceptance(w, &["kill-loop", "--answered", "--rounds", KILL_ROUNDS])
    }),
    ("demo", |w| acceptance(w, &["demo"])),
];

/// A check of `onefold-acceptance`.
fn acceptance(workspace: &Workspace, arguments: &[&str]) -> Result<()> {
    tools::acceptance(workspace)?.args(arguments).show()
}

/// The step that needs cargo-deny.
const LICENSES: &str = "licenses and sources";

/// How a step ended.
struct Outcome {
    name: &'static str,
    took: Duration,
    error: Option<anyhow::Error>,
}

/// `cargo xtask test`
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let start = Instant::now();
    let wanted = |name: &str| {
        arguments
            .only
            .as_ref()
            .is_none_or(|only| name.contains(only))
    };
    let mut outcomes = Vec::new();
    let mut skipped = Vec::new();
    for (name, work) in STEPS.iter().filter(|(name, _)| wanted(name)) {
        println!("\n=== {name}");
        if *name == LICENSES && !has_cargo_deny(workspace) {
            let line = format!("skipped: {name}, because cargo-deny is not installed");
            println!("{line}");
            skipped.push(line);
            continue;
        }
        let start = Instant::now();
        let error = work(workspace).err();
        let outcome = Outcome {
            name,
            took: start.elapsed(),
            error,
        };
        if let Some(error) = &outcome.error {
            println!("{error:#}");
        }
        println!("=== {}", outcome.line());
        outcomes.push(outcome);
    }
    println!("\nAll steps, {:.0} s", start.elapsed().as_secs_f64());
    for outcome in &outcomes {
        println!("  {}", outcome.line());
        // Once more, because often only the end of the output is kept.
        if let Some(error) = &outcome.error {
            println!("{error:#}");
        }
    }
    for line in &skipped {
        println!("{line}");
    }
    let failed = outcomes
        .iter()
        .filter(|outcome| outcome.error.is_some())
        .count();
    println!("{}", closing_line(outcomes.len() - failed, failed));
    match (outcomes.len() + skipped.len(), failed) {
        (0, _) => bail!("no step has such a name"),
        (_, 0) => Ok(()),
        _ => bail!("{failed} steps failed"),
    }
}

impl Outcome {
    fn line(&self) -> String {
        let verdict = if self.error.is_none() { "ok" } else { "FAILED" };
        format!(
            "{verdict:6} {:7.1} s  {}",
            self.took.as_secs_f64(),
            self.name
        )
    }
}

fn closing_line(passed: usize, failed: usize) -> String {
    format!("{passed} passed, {failed} failed")
}

fn install(workspace: &Workspace) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    packages::require(packages::EMULATION)?;
    packages::require(packages::FUZZING)?;
    packages::require_cargo_fuzz(workspace)
}

fn clippy(workspace: &Workspace) -> Result<()> {
    workspace
        .cargo()
        .args([
            "clippy",
            "--quiet",
            "--workspace",
            "--all-targets",
            "--locked",
        ])
        .args(["--", "-D", "warnings"])
        .show()
}

/// Every link in the documentation leads somewhere.
fn documentation(workspace: &Workspace) -> Result<()> {
    workspace
        .cargo()
        .args(["doc", "--quiet", "--workspace", "--no-deps", "--locked"])
        .env("RUSTDOCFLAGS", "-D warnings")
        .show()
}

/// What `deny.toml` says of dependencies. Not their known vulnerabilities: that list is downloaded
/// and changes, so the same commit would pass today and fail tomorrow.
fn licenses(workspace: &Workspace) -> Result<()> {
    workspace
        .cargo()
        .args(["deny", "check", "licenses", "bans", "sources"])
        .show()
}

fn has_cargo_deny(workspace: &Workspace) -> bool {
    workspace.cargo().args(["deny", "--version"]).run().is_ok()
}

/// The arguments of every `cargo test` here: a crate whose tests fail does not keep those of the
/// others from running.
const CARGO_TEST: [&str; 3] = ["test", "--locked", "--no-fail-fast"];

/// All but the model, whose search wants an optimised build and has a step of its own.
fn unit_tests(workspace: &Workspace) -> Result<()> {
    workspace
        .cargo()
        .args(CARGO_TEST)
        .args(["--workspace", "--exclude", "onefold-model"])
        .env("RUST_TEST_THREADS", TESTS_AT_A_TIME)
        // A clean clone gains nothing from what incremental builds keep for the next one.
        .env("CARGO_INCREMENTAL", "0")
        .show()
}

/// The real engine and store on a simulated disk. In release mode, because its worth is in the
/// number of runs; the feature switches the guards' switches in. Every commit tries other seeds.
fn simulation(workspace: &Workspace) -> Result<()> {
    let base = simulation_base(workspace)?;
    println!("seeds from {base} + 1 on (ONEFOLD_SIM_BASE={base})");
    workspace
        .cargo()
        .env("ONEFOLD_SIM_BASE", base.to_string())
        .args(CARGO_TEST)
        .args(["--release", "-p", "onefold-store"])
        .args(["--features", "simulation", "--test", "simulation"])
        .show()
}

/// Where the simulation's seeds begin: what the environment says, or else what follows from the
/// commit. Sources without a commit try the first seeds.
fn simulation_base(workspace: &Workspace) -> Result<u64> {
    if let Ok(given) = std::env::var("ONEFOLD_SIM_BASE") {
        let parsed = given.parse();
        return parsed.with_context(|| format!("ONEFOLD_SIM_BASE is {given}, not a number"));
    }
    let git = Cmd::new("git").dir(&workspace.root);
    let commit = git.args(["rev-parse", "HEAD"]).read().ok();
    Ok(commit.and_then(|commit| base_of(&commit)).unwrap_or(0))
}

/// The first 32 bits of the commit's name, far enough apart for a million seeds each.
fn base_of(commit: &str) -> Option<u64> {
    let digits = commit.get(..8)?;
    Some(u64::from(u32::from_str_radix(digits, 16).ok()?) << 20)
}

/// The store's hand-synchronised structures, and the whole store with several threads, under a
/// scheduler that tries interleavings.
fn schedules(workspace: &Workspace) -> Result<()> {
    workspace
        .cargo()
        .args(CARGO_TEST)
        .args(["--release", "-p", "onefold-store"])
        .args(["--features", "shuttle,simulation"])
        .args(["--lib", "--test", "schedules"])
        .show()
}

/// Real threads on real files. Longer by hand, with a larger number of seconds.
fn stress(workspace: &Workspace) -> Result<()> {
    workspace
        .cargo()
        .args(CARGO_TEST)
        .args(["--release", "-p", "onefold-store"])
        .args([
            "--test",
            "stress",
            "--",
            "--nocapture",
            "--test-threads",
            "1",
        ])
        .env("ONEFOLD_STRESS_SECONDS", STRESS_SECONDS)
        .show()
}

/// The protocol's model, searched as far as its documentation says.
fn model_check(workspace: &Workspace) -> Result<()> {
    workspace
        .cargo()
        .args(CARGO_TEST)
        .args(["--release", "-p", "onefold-model"])
        .show()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_is_plain() {
        assert_eq!(closing_line(11, 1), "11 passed, 1 failed");
    }

    #[test]
    fn commits_have_seeds_of_their_own() {
        assert_eq!(base_of("00000001ffff"), Some(1 << 20));
        assert_eq!(base_of("ffffffff0000"), Some(0xffff_ffff << 20));
        assert_eq!(base_of("deadbee"), None);
        assert_eq!(base_of("not a commit"), None);
    }

    #[test]
    fn a_crate_that_fails_does_not_keep_the_others_from_running() {
        let directory = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put(
            "Cargo.toml",
            "[workspace]\nmembers = [\"a\", \"b\"]\nresolver = \"3\"\n",
        );
        let ran = directory.path().join("ran");
        let tests = [
            ("a", "panic!(\"it fails\")".to_owned()),
            ("b", format!("std::fs::write({ran:?}, \"\").unwrap()")),
        ];
        for (name, work) in tests {
            let manifest = format!("[package]\nname = \"{name}\"\nedition = \"2024\"\n");
            put(&format!("{name}/Cargo.toml"), &manifest);
            let test = format!("#[test]\nfn it() {{ {work} }}\n");
            put(&format!("{name}/src/lib.rs"), &test);
        }
        let cargo = || {
            let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
            let target = directory.path().join("target");
            let cargo = Cmd::new(program).dir(directory.path());
            cargo.env("CARGO_TARGET_DIR", target)
        };
        let made = cargo().args(["generate-lockfile", "--offline"]).output();
        assert!(made.unwrap().status.success());
        let tested = cargo().args(CARGO_TEST).args(["--workspace", "--lib"]);
        let tested = tested.output().unwrap();
        assert!(!tested.status.success());
        assert!(ran.exists(), "{}", String::from_utf8_lossy(&tested.stdout));
    }

    #[test]
    fn steps_have_different_names() {
        let mut names: Vec<_> = STEPS.iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), STEPS.len());
    }
}
