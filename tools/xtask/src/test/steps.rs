//! The steps, and their commands.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use onefold_harness::ceph::POOL;
use onefold_harness::command::Cmd;
use onefold_harness::packages;
use onefold_harness::pools::{CEPH_CONF, Ceph};
use onefold_harness::workspace::{BUILT_PRODUCT, PRODUCT, Workspace};

use serde_json::Value;

use super::changed;
use crate::{compiled, fuzz, mutations, tidy};

/// How long hosts and OSDs fail in CI: each kind of failure happens once, however long that takes.
const CHAOS_SECONDS: &str = "1";

/// How long no shard answers in CI.
const ISOLATED_SECONDS: &str = "10";

/// How often CI kills the daemon. More by `cargo xtask kill-loop --rounds N`.
const KILL_ROUNDS: &str = "8";

/// Rounds with in-line dedup, which wait for the finder; with answered requests, enough rounds to
/// see hits.
const INLINE_KILL_ROUNDS: &str = "2";
const INLINE_ANSWERED_ROUNDS: &str = "8";

/// How long CI runs each fuzz target. More by `cargo xtask fuzz --seconds N`.
const FUZZ_SECONDS: u32 = 2;

/// Seconds for each of the three stress tests.
const STRESS_SECONDS: &str = "10";

/// Lines of a failed command's output that are shown once more at the end.
const LAST_LINES: usize = 12;

/// Time limit of a command, above what the slowest machine needs. A command that hangs fails its step, and its output so far is
/// shown; without the limit the whole run would end without output.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(30 * 60);

/// Tests that run at a time. Many of them wait for something most of the time.
const TESTS_AT_A_TIME: &str = "8";

/// A step of CI.
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) work: Work,
    /// A test of a test: it shows that a check notices a server that forgets.
    pub(super) is_control: bool,
}

/// The work of a step, and which steps may run at the same time.
pub(super) enum Work {
    /// By itself, before all others: its time, or its result, depends on an idle machine; or it
    /// takes no time.
    Alone(fn(&Workspace) -> Result<()>),
    /// Runs sequentially with other steps of this kind. Keeps processors busy.
    Computing(fn(&Workspace) -> Result<()>),
    /// Runs in parallel with computing steps, and after the last of these with another step of this kind. Output is kept
    /// until the step ends. The steps compute while the product is being built; later they mostly wait for servers, kills,
    /// disks and the finder, which works only on an idle processor. None of them judges durations.
    Beside(fn(&Workspace, &mut String) -> Result<()>),
    /// Like `Beside`: calls of `onefold-acceptance`.
    Accepting(&'static [&'static [&'static str]]),
    /// Takes what the others leave of the processors, in parallel with them. Its builds have target directories of their
    /// own, so that no other step waits for a slow one. Output is kept until the step ends.
    Filling(fn(&Workspace, &mut String) -> Result<()>),
}

use Work::{Accepting, Alone, Beside, Computing, Filling};

/// Cheap and frequent faults first; of the steps that wait, the longest first, so that no long one is left to the end.
pub(super) const STEPS: &[Step] = &[
    step("system packages", Alone(install)),
    step("formatting", Alone(formatting)),
    step("clippy", Alone(clippy_once)),
    step("documentation", Alone(documentation)),
    step(LICENSES, Alone(licenses)),
    step("tidy", Alone(tidy::run)),
    step("mutations can be made", Alone(mutations::check)),
    step("tests and tools", Alone(build_tests)),
    step("product", Computing(build)),
    step("simulation", Computing(simulation)),
    step("schedules", Computing(schedules)),
    step("stress", Computing(stress)),
    step("benchmark of the index", Computing(index_benchmark)),
    step("sharing", Computing(sharing)),
    step("a mutation is noticed", Computing(mutation)),
    step("fuzzing", Computing(fuzzing)),
    step("fuzz targets", Filling(fuzz_targets)),
    step("model check", Filling(model_check)),
    step("unit and integration tests", Beside(unit_tests)),
    step(CEPH, Beside(ceph)),
    control(
        "guest finds a server that forgets",
        Accepting(&[&["guest", "--control"]]),
    ),
    step("guest", Accepting(&[&["guest"]])),
    step("demo", Accepting(&[&["demo"]])),
    step("documents", Accepting(&[&["docs"]])),
    step("clients", Accepting(&[&["clients"]])),
    step(
        "sharing in line",
        Accepting(&[&["sharing", "--dedup", "inline"]]),
    ),
    step("memory limit", Accepting(&[&["memory-limit"]])),
    step("metrics", Accepting(&[&["metrics"]])),
    control(
        "reconnect finds a server that forgets",
        Accepting(&[&["reconnect", "--control"]]),
    ),
    step("reconnect", Accepting(&[&["reconnect"]])),
    step("sick disk", Accepting(&[&["sick-disk"]])),
    control(
        "kill loop finds a server that forgets",
        Accepting(&[&["kill-loop", "--control"]]),
    ),
    step(
        "kill loop",
        Accepting(&[&["kill-loop", "--rounds", KILL_ROUNDS]]),
    ),
    control(
        "loop of answered requests finds a server that forgets",
        Accepting(&[&["kill-loop", "--answered", "--control"]]),
    ),
    step(
        "loop of answered requests",
        Accepting(&[&["kill-loop", "--answered", "--rounds", KILL_ROUNDS]]),
    ),
    control(
        "kill loops in line find a server that forgets",
        Accepting(&[
            &["kill-loop", "--dedup", "inline", "--control"],
            &["kill-loop", "--dedup", "inline", "--answered", "--control"],
        ]),
    ),
    step(
        "kill loop in line",
        Accepting(&[&[
            "kill-loop",
            "--dedup",
            "inline",
            "--rounds",
            INLINE_KILL_ROUNDS,
        ]]),
    ),
    step(
        "loop of answered requests in line",
        Accepting(&[&[
            "kill-loop",
            "--dedup",
            "inline",
            "--answered",
            "--rounds",
            INLINE_ANSWERED_ROUNDS,
        ]]),
    ),
];

/// The step that needs a cluster.
pub(super) const CEPH: &str = "ceph";

/// Rounds of the kill loop in it, with a move to another host and back.
const CEPH_KILL_ROUNDS: &str = "4";

/// The step that needs cargo-deny.
pub(super) const LICENSES: &str = "licenses and sources";

const fn step(name: &'static str, work: Work) -> Step {
    Step {
        name,
        work,
        is_control: false,
    }
}

const fn control(name: &'static str, work: Work) -> Step {
    Step {
        is_control: true,
        ..step(name, work)
    }
}

/// The steps of an inner loop: minutes, where most is built already.
pub(super) const CHANGED_STEPS: &[Step] = &[
    step("formatting", Alone(formatting)),
    step("clippy", Alone(clippy)),
    step("tidy", Alone(tidy::run)),
    step("tests of what the change reaches", Alone(tests_of_reached)),
    step(
        "simulation of what the change reaches",
        Alone(simulation_of_reached),
    ),
];

/// Seeds that a change is tried with before all of them are.
const CHANGED_SEEDS: &str = "300";

/// Crates that the simulation runs.
const SIMULATED: [&str; 2] = ["onefold-store", "onefold-backup"];

fn reached(workspace: &Workspace) -> Result<BTreeSet<String>> {
    changed::reached(workspace, &changed::files(workspace)?)
}

/// Builds all tests, so that Cargo selects the same features as in other builds, and runs the tests of the reached
/// crates.
fn tests_of_reached(workspace: &Workspace) -> Result<()> {
    let reached = reached(workspace)?;
    println!(
        "reached: {}",
        reached.iter().cloned().collect::<Vec<_>>().join(" ")
    );
    if reached.is_empty() {
        return Ok(());
    }
    let built = workspace
        .cargo()
        .args(["test", "--locked", "--quiet", "--no-run"])
        .args(TESTED)
        .args(["--message-format", "json-render-diagnostics"])
        .read()?;
    let mut failed = Vec::new();
    for (package, directory, executable) in built.lines().filter_map(test_executable) {
        if !reached.contains(&package) {
            continue;
        }
        let test = Cmd::new(&executable).dir(&directory);
        if test
            .env("RUST_TEST_THREADS", TESTS_AT_A_TIME)
            .show()
            .is_err()
        {
            failed.push(executable.display().to_string());
        }
    }
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// The crate, its directory and the path of a test, if this line of Cargo's is about one.
fn test_executable(line: &str) -> Option<(String, PathBuf, PathBuf)> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_test = message.pointer("/profile/test")?.as_bool()?;
    let executable = PathBuf::from(message.get("executable")?.as_str()?);
    let manifest = PathBuf::from(message.get("manifest_path")?.as_str()?);
    let directory = manifest.parent()?.to_path_buf();
    // The directory of each crate has its name; the product's is prefixed.
    let name = directory.file_name()?.to_str()?;
    let name = match directory.parent()?.file_name()?.to_str()? {
        _ if name == "xtask" || name == PRODUCT => name.to_owned(),
        _ => format!("{PRODUCT}-{name}"),
    };
    is_test.then_some((name, directory, executable))
}

fn simulation_of_reached(workspace: &Workspace) -> Result<()> {
    let reached = reached(workspace)?;
    if !SIMULATED.iter().any(|name| reached.contains(*name)) {
        println!("nothing of the simulation is reached");
        return Ok(());
    }
    let simulation = simulation_command(workspace)
        .env("ONEFOLD_SIM_RUNS", CHANGED_SEEDS)
        .args(["--", "seeded"]);
    show_counted(simulation)
}

fn install(workspace: &Workspace) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    packages::require(packages::EMULATION)?;
    packages::require(packages::SICK_DISKS)?;
    packages::require(packages::MONITORING)?;
    packages::require(packages::FUZZING)?;
    packages::require_cargo_fuzz(workspace)
}

/// Runs Cargo, shows what it prints, and counts the crates that it compiles.
fn show_counted(cargo: Cmd) -> Result<()> {
    cargo.show_noting(&mut compiled::note)
}

fn formatting(workspace: &Workspace) -> Result<()> {
    workspace.cargo().args(["fmt", "--all", "--check"]).show()
}

fn clippy(workspace: &Workspace) -> Result<()> {
    clippy_by(workspace.cargo())
}

fn clippy_once(workspace: &Workspace) -> Result<()> {
    clippy_by(cargo_once(workspace))
}

fn clippy_by(cargo: Cmd) -> Result<()> {
    let cargo = cargo
        .args(["clippy", "--workspace", "--all-targets", "--locked"])
        .args(["--", "-D", "warnings"]);
    show_counted(cargo)
}

/// Every link in the documentation leads somewhere.
fn documentation(workspace: &Workspace) -> Result<()> {
    let cargo = cargo_once(workspace)
        .args(["doc", "--workspace", "--no-deps", "--locked"])
        .env("RUSTDOCFLAGS", "-D warnings");
    show_counted(cargo)
}

/// The rules of `deny.toml` for dependencies. Not their known vulnerabilities: that list is
/// downloaded and changes, so the same commit would pass today and fail tomorrow.
fn licenses(workspace: &Workspace) -> Result<()> {
    workspace
        .cargo()
        .args(["deny", "check", "licenses", "bans", "sources"])
        .show()
}

pub(super) fn has_cargo_deny(workspace: &Workspace) -> bool {
    workspace.cargo().args(["deny", "--version"]).run().is_ok()
}

/// The arguments of every `cargo test` here. If the tests of one crate fail, the other crates' tests still run.
const CARGO_TEST: [&str; 3] = ["test", "--locked", "--no-fail-fast"];

/// All but the model, whose search has a step of its own.
const TESTED: [&str; 3] = ["--workspace", "--exclude", "onefold-model"];

fn tests(workspace: &Workspace) -> Cmd {
    cargo_once(workspace)
        .args(CARGO_TEST)
        .args(TESTED)
        .env("RUST_TEST_THREADS", TESTS_AT_A_TIME)
}

/// Cargo without incremental builds, from which a clean clone gains nothing.
fn cargo_once(workspace: &Workspace) -> Cmd {
    workspace.cargo().env("CARGO_INCREMENTAL", "0")
}

/// Builds tests and tools. All targets at once: tools alone would select other features of common dependencies,
/// which would then be compiled twice. A run builds them once, and a failed build is tried again.
fn build_tests(workspace: &Workspace) -> Result<()> {
    static IS_BUILT: Mutex<bool> = Mutex::new(false);
    // A panic while it is held leaves nothing half done.
    let mut is_built = IS_BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if !*is_built {
        let cargo = cargo_once(workspace)
            .args(["build", "--locked", "--profile", "test"])
            .args(TESTED)
            .arg("--all-targets");
        show_counted(cargo)?;
        *is_built = true;
    }
    Ok(())
}

/// A tool from the build of the tests. The product that it runs is the release build.
fn tool(workspace: &Workspace, name: &str) -> Result<Cmd> {
    build_tests(workspace)?;
    Ok(Cmd::new(workspace.target.join("debug").join(name)).cleans_up())
}

/// The checks of the product as its users see it. They get the path of the built product instead of asking Cargo, which would
/// make them wait for every concurrent build.
pub(super) fn acceptance(workspace: &Workspace) -> Result<Cmd> {
    let product = product(workspace)?;
    Ok(tool(workspace, "onefold-acceptance")?.env(BUILT_PRODUCT, product))
}

fn unit_tests(workspace: &Workspace, said: &mut String) -> Result<()> {
    keep(tests(workspace), said)
}

/// Runs a command and keeps its output, through a file: a process that outlives the command could hold a pipe open.
pub(super) fn keep(command: Cmd, said: &mut String) -> Result<()> {
    let log = tempfile::NamedTempFile::new()?;
    let mut running = command.spawn_logged(log.path())?;
    let ended = running.ask_to_end_after(COMMAND_TIME_MAX);
    let printed = std::fs::read(log.path())?;
    let printed = String::from_utf8_lossy(&printed);
    compiled::note(&printed);
    said.push_str(&printed);
    let status = ended?;
    ensure!(
        status.success(),
        "failed ({status}):\n{}",
        last_lines(&printed)
    );
    Ok(())
}

/// The end of a command's output, for the table of all steps: often nothing else is kept of a run.
fn last_lines(printed: &str) -> String {
    let lines: Vec<&str> = printed
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
}

/// Builds the shipped binary. Concurrent steps wait for it.
fn build(workspace: &Workspace) -> Result<()> {
    product(workspace).map(|_| ())
}

/// The path of the shipped binary. A run builds it once; concurrent steps wait for the build. A failed build is tried again.
fn product(workspace: &Workspace) -> Result<PathBuf> {
    static BUILT: Mutex<Option<PathBuf>> = Mutex::new(None);
    // A panic while it is held leaves nothing half done.
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = &*built {
        return Ok(path.clone());
    }
    show_counted(workspace.release_build(PRODUCT))?;
    Ok(built.insert(workspace.released(PRODUCT)).clone())
}

/// The real engine and store on a simulated disk, and backups in a folder whose host dies. Optimised, because its worth is in the
/// number of runs; the feature switches the guards' switches in. Every commit tries other seeds. One
/// test at a time: concurrent steps have finders, which work only when a processor is idle. Both packages in one
/// call: separate calls would select other features of common dependencies and compile them twice.
fn simulation(workspace: &Workspace) -> Result<()> {
    let base = simulation_base(workspace)?;
    println!("seeds from {base} + 1 on (ONEFOLD_SIM_BASE={base})");
    let simulation = simulation_command(workspace);
    show_counted(simulation.env("ONEFOLD_SIM_BASE", base.to_string()))
}

fn simulation_command(workspace: &Workspace) -> Cmd {
    workspace
        .cargo()
        .env("RUST_TEST_THREADS", "1")
        .args(CARGO_TEST)
        .args(["--profile", "simulation"])
        .args(["-p", "onefold-store", "-p", "onefold-backup"])
        .args(["--features", "onefold-store/simulation"])
        .args(["--features", "onefold-backup/simulation"])
        .args(["--test", "simulation", "--test", "groups"])
}

/// The simulation's first seed: from the environment, or else from the commit. Sources without a
/// commit try the first seeds.
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

/// The hand-synchronised structures of store and index, and the whole store with several threads, under a
/// scheduler that tries interleavings.
fn schedules(workspace: &Workspace) -> Result<()> {
    let cargo = workspace
        .cargo()
        .env("RUST_TEST_THREADS", "1")
        .args(CARGO_TEST)
        .args(["--profile", "simulation"])
        .args(["-p", "onefold-index", "-p", "onefold-metadata"])
        .args(["-p", "onefold-journal", "-p", "onefold-store"])
        .args(["--features", "shuttle,simulation"])
        .args(["--lib", "--test", "schedules"]);
    show_counted(cargo)
}

/// Real threads on real files, in the build that the other tests have. Longer by hand, with a larger
/// number of seconds.
fn stress(workspace: &Workspace) -> Result<()> {
    let cargo = tests(workspace)
        .args(["--test", "stress", "--", "--nocapture"])
        .args(["--test-threads", "1"])
        .env("ONEFOLD_STRESS_SECONDS", STRESS_SECONDS);
    show_counted(cargo)
}

/// The protocol's model, searched as far as its documentation says.
fn model_check(workspace: &Workspace, said: &mut String) -> Result<()> {
    let cargo = cargo_once(workspace)
        .args(CARGO_TEST)
        .args(["-p", "onefold-model", "--target-dir"])
        .arg(workspace.target.join("model"));
    keep(cargo, said)
}

/// Tests one mutation, which the commit selects.
fn mutation(workspace: &Workspace) -> Result<()> {
    mutations::try_one(workspace, simulation_base(workspace)? >> 20)
}

/// Fuzzing waits for it.
fn fuzz_targets(workspace: &Workspace, _said: &mut String) -> Result<()> {
    fuzz::build(workspace, None)
}

fn fuzzing(workspace: &Workspace) -> Result<()> {
    let arguments = fuzz::Arguments {
        seconds: FUZZ_SECONDS,
        target: None,
    };
    fuzz::run(workspace, &arguments, &mut |line| println!("{line}"))
}

/// The finder works only on an idle processor: next to steps that keep all processors busy this would take
/// ten times as long.
fn sharing(workspace: &Workspace) -> Result<()> {
    acceptance(workspace)?.arg("sharing").show()
}

/// Tests the library, the engine and the product on a cluster that only this step uses.
fn ceph(workspace: &Workspace, said: &mut String) -> Result<()> {
    let ceph = Ceph::start(workspace, POOL)?;
    let tests: [(&str, &[&str]); 4] = [
        ("onefold-rados", &["--test", "cluster"]),
        ("onefold-engine", &["--test", "conformance", "rados"]),
        ("onefold-engine", &["--test", "rados_cluster"]),
        ("onefold", &["--test", "cli", "groups"]),
    ];
    for (package, test) in tests {
        let test = cargo_once(workspace)
            .args(CARGO_TEST)
            .args(TESTED)
            .args(test)
            .env("ONEFOLD_TEST_CEPH_POOL", POOL);
        keep(test.env(CEPH_CONF, ceph.conf()), said).with_context(|| package.to_owned())?;
    }
    let place = format!("ceph:{POOL}");
    for call in [
        &["clients", "--pool", &place][..],
        &["kill-loop", "--pool", &place, "--rounds", CEPH_KILL_ROUNDS],
        &["ownership"],
        &["ceph-losses"],
        &["cluster"],
        &["cluster", "--chaos", CHAOS_SECONDS],
        &["cluster", "--isolate", ISOLATED_SECONDS],
    ] {
        let check = acceptance(workspace)?.args(call);
        keep(check.env(CEPH_CONF, ceph.conf()), said)
            .with_context(|| format!("cargo xtask {}", call.join(" ")))?;
    }
    Ok(())
}

/// That the benchmark runs, not how fast.
fn index_benchmark(workspace: &Workspace) -> Result<()> {
    let bench = tool(workspace, "onefold-bench")?;
    bench.args(["index", "--try-out"]).show()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_an_output_has_no_empty_lines() {
        let printed: String = (0..20).map(|n| format!("{n}\n\n")).collect();
        let expected: Vec<String> = (8..20).map(|n| n.to_string()).collect();
        assert_eq!(last_lines(&printed), expected.join("\n"));
        assert_eq!(last_lines("\n"), "");
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
        let mut names: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), STEPS.len());
    }
}
