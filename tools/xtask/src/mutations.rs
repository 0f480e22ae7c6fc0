//! `cargo xtask mutations`: breaks the product in one place at a time, and expects a test to notice.
//!
//! Each file in `tools/xtask/mutations` is one mutation: two lines of text, and a patch with little context.
//!
//! ```text
//! Breaks: the promise that is broken, as one sentence.
//! Noticed by: the arguments of the `cargo test` that must fail
//! --- a/crates/...
//! ```
//!
//! A mutation that no test can notice has `Equivalent:` and the argument instead of the second line. Then it
//! only has to apply.
//!
//! The mutations are made in a copy of the sources, which has a target directory of its own: a run that is
//! interrupted leaves nothing broken, and the next run compiles only what differs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use anyhow::{Context, Result, bail, ensure};
use onefold_harness::command::Cmd;
use onefold_harness::workspace::Workspace;

use crate::compiled;

/// Where the mutations are, below the repository.
const DIRECTORY: &str = "tools/xtask/mutations";

/// Fewer say little about the tests as a whole.
const MUTATIONS_MIN: usize = 40;

/// Every crate of which some mutation must break something.
const CRATES: [&str; 9] = [
    "backup",
    "engine",
    "format",
    "index",
    "journal",
    "metadata",
    "nbd",
    "repository",
    "store",
];

/// Crates with few dependencies: in CI, where nothing is compiled yet, one of these is broken.
const QUICK: [&str; 3] = ["engine", "format", "metadata"];

/// Time limit of a test, in seconds. A test that exceeds it counts as failed.
const SECONDS_MAX: &str = "900";

/// The status of `timeout` when the time is over.
const TIMED_OUT: i32 = 124;

/// Options of `cargo xtask mutations`.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Arguments {
    /// Only check that every mutation can be made
    #[arg(long)]
    check: bool,
    /// Only mutations whose name contains this
    #[arg(value_name = "TEXT")]
    only: Option<String>,
}

/// A mutation: a patch that breaks the product in one place.
#[derive(Debug)]
struct Mutation {
    name: String,
    path: PathBuf,
    noticed_by: NoticedBy,
    /// The crates that it changes.
    crates: BTreeSet<String>,
    /// Files that it changes, below the repository.
    files: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum NoticedBy {
    /// Arguments of `cargo test`.
    Test(String),
    /// Nothing, for the reason that its file gives.
    Nothing,
}

/// `cargo xtask mutations`
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let mutations = checked(workspace)?;
    let wanted: Vec<&Mutation> = mutations
        .iter()
        .filter(|mutation| arguments.wants(mutation))
        .collect();
    ensure!(!wanted.is_empty(), "no mutation has such a name");
    println!("{} mutations can be made", wanted.len());
    if arguments.check {
        return Ok(());
    }
    let sources = Sources::copy(workspace)?;
    sources.test_unbroken(&wanted)?;
    let mut unnoticed = Vec::new();
    for mutation in wanted {
        let noticed = sources.is_noticed(mutation);
        if let Err(error) = &noticed {
            println!("{error:#}");
        }
        if !noticed.unwrap_or(false) {
            unnoticed.push(mutation.name.as_str());
        }
    }
    ensure!(
        unnoticed.is_empty(),
        "not noticed: {}",
        unnoticed.join(", ")
    );
    Ok(())
}

/// Every mutation can be made: a step of CI.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    checked(workspace).map(|_| ())
}

/// A step of CI: a test notices one of the mutations, which the commit selects.
pub(crate) fn try_one(workspace: &Workspace, number: u64) -> Result<()> {
    let mutations = checked(workspace)?;
    let quick: Vec<&Mutation> = mutations
        .iter()
        .filter(|mutation| mutation.is_quick())
        .collect();
    ensure!(!quick.is_empty(), "no mutation is tested quickly");
    let mutation = quick[(number % quick.len() as u64) as usize];
    let sources = Sources::copy(workspace)?;
    println!("mutation {}", mutation.name);
    ensure!(
        sources.is_noticed(mutation)?,
        "no test notices mutation {}",
        mutation.name
    );
    Ok(())
}

/// All mutations, each of which can be made.
fn checked(workspace: &Workspace) -> Result<Vec<Mutation>> {
    let mutations = read_all(&workspace.root.join(DIRECTORY))?;
    ensure!(
        mutations.len() >= MUTATIONS_MIN,
        "{DIRECTORY} has {} mutations, and is to have {MUTATIONS_MIN}",
        mutations.len()
    );
    for name in CRATES {
        ensure!(
            mutations
                .iter()
                .any(|mutation| mutation.crates.contains(name)),
            "no mutation breaks anything in crates/{name}"
        );
    }
    for mutation in &mutations {
        apply(&workspace.root, mutation, &["--check"])?;
    }
    Ok(mutations)
}

fn read_all(directory: &Path) -> Result<Vec<Mutation>> {
    let listed =
        fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))?;
    let mut paths = Vec::new();
    for entry in listed {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "patch") {
            paths.push(path);
        }
    }
    paths.sort();
    paths.iter().map(|path| Mutation::read(path)).collect()
}

/// Changes the sources below this directory as the mutation says.
fn apply(root: &Path, mutation: &Mutation, options: &[&str]) -> Result<()> {
    let git = Cmd::new("git").dir(root).args(["apply", "--unidiff-zero"]);
    // The copy is inside a repository, to which the patch would be applied otherwise.
    let git = git.env("GIT_CEILING_DIRECTORIES", parent_of(root));
    git.args(options)
        .arg(&mutation.path)
        .run()
        .with_context(|| format!("mutation {} cannot be made", mutation.name))
}

fn parent_of(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

impl Arguments {
    fn wants(&self, mutation: &Mutation) -> bool {
        let only = self.only.as_ref();
        only.is_none_or(|text| mutation.name.contains(text.as_str()))
    }
}

impl Mutation {
    fn read(path: &Path) -> Result<Mutation> {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let name = path.file_stem().unwrap_or_default();
        Self::parse(path, &name.to_string_lossy(), &text)
            .with_context(|| format!("mutation {}", path.display()))
    }

    fn parse(path: &Path, name: &str, text: &str) -> Result<Mutation> {
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            line.map(str::trim).filter(|value| !value.is_empty())
        };
        ensure!(
            value("Breaks: ").is_some(),
            "it does not say what it breaks"
        );
        let noticed_by = match (value("Noticed by: "), value("Equivalent: ")) {
            (Some(test), None) => NoticedBy::Test(test.to_owned()),
            (None, Some(_)) => NoticedBy::Nothing,
            _ => bail!("it needs either a line `Noticed by: ` or a line `Equivalent: `"),
        };
        let files: Vec<String> = text
            .lines()
            .filter_map(|line| line.strip_prefix("--- a/"))
            .map(str::to_owned)
            .collect();
        let of_crate = |file: &String| {
            let (name, _) = file.strip_prefix("crates/")?.split_once('/')?;
            Some(name.to_owned())
        };
        let crates: BTreeSet<String> = files.iter().filter_map(of_crate).collect();
        ensure!(!crates.is_empty(), "it changes nothing below crates/");
        Ok(Mutation {
            name: name.to_owned(),
            path: path.to_owned(),
            noticed_by,
            crates,
            files,
        })
    }

    /// Whether the mutation's test compiles without the larger crates and without optimisation.
    fn is_quick(&self) -> bool {
        let NoticedBy::Test(arguments) = &self.noticed_by else {
            return false;
        };
        let words: Vec<&str> = arguments.split_whitespace().collect();
        let is_of = |name: &&str| words.contains(&format!("onefold-{name}").as_str());
        QUICK.iter().any(is_of) && !words.contains(&"--release")
    }
}

/// A copy of the sources.
struct Sources<'a> {
    workspace: &'a Workspace,
    root: PathBuf,
    target: PathBuf,
}

impl Sources<'_> {
    /// Leaves files alone that are as they should be, so that they are not compiled again.
    fn copy(workspace: &Workspace) -> Result<Sources<'_>> {
        let parent = workspace.cache("mutations")?;
        let sources = Sources {
            workspace,
            root: parent.join("sources"),
            target: parent.join("target"),
        };
        let git = Cmd::new("git").dir(&workspace.root).arg("ls-files");
        let listed = git
            .args(["--cached", "--others", "--exclude-standard"])
            .read()?;
        let names: BTreeSet<&str> = listed.lines().collect();
        for name in &names {
            sources.restore(name)?;
        }
        remove_others(&sources.root, &sources.root, &names)?;
        Ok(sources)
    }

    /// Makes a file as it is in the workspace; removes it if it is not there.
    fn restore(&self, name: &str) -> Result<()> {
        let (from, to) = (self.workspace.root.join(name), self.root.join(name));
        if !from.is_file() {
            let _ = fs::remove_file(&to);
            return Ok(());
        }
        let wanted = fs::read(&from).with_context(|| format!("cannot read {name}"))?;
        if fs::read(&to).is_ok_and(|present| present == wanted) {
            return Ok(());
        }
        fs::create_dir_all(parent_of(&to))?;
        fs::write(&to, wanted).with_context(|| format!("cannot write {}", to.display()))
    }

    /// Without a mutation all of these tests pass.
    fn test_unbroken(&self, mutations: &[&Mutation]) -> Result<()> {
        let tests: BTreeSet<&str> = mutations
            .iter()
            .filter_map(|mutation| match &mutation.noticed_by {
                NoticedBy::Test(arguments) => Some(arguments.as_str()),
                NoticedBy::Nothing => None,
            })
            .collect();
        for test in tests {
            let (status, said) = self.test(test, &[])?;
            ensure!(
                status.success(),
                "without a mutation this fails: cargo test {test}\n{said}"
            );
            ensure!(
                said.lines()
                    .any(|line| line.starts_with("running ") && line != "running 0 tests"),
                "this runs no test: cargo test {test}"
            );
        }
        Ok(())
    }

    /// Applies a mutation and returns whether its test fails. A mutation without a test counts as noticed.
    fn is_noticed(&self, mutation: &Mutation) -> Result<bool> {
        let name = &mutation.name;
        let NoticedBy::Test(test) = &mutation.noticed_by else {
            println!("{name}: equivalent");
            return Ok(true);
        };
        apply(&self.root, mutation, &[])?;
        let tried = self.try_out(name, test);
        for file in &mutation.files {
            self.restore(file)?;
        }
        tried
    }

    fn try_out(&self, name: &str, test: &str) -> Result<bool> {
        let (built, said) = self.test(test, &["--no-run"])?;
        ensure!(built.success(), "mutation {name} does not compile:\n{said}");
        let (status, _) = self.test(test, &[])?;
        let result = match status.code() {
            Some(0) => "NOT NOTICED",
            Some(TIMED_OUT) => "noticed: the test hangs",
            _ => "noticed",
        };
        println!("{name}: {result}");
        Ok(!status.success())
    }

    /// Runs `cargo test` with these arguments, and `options` before the arguments of the test binaries.
    fn test(&self, arguments: &str, options: &[&str]) -> Result<(ExitStatus, String)> {
        let words: Vec<&str> = arguments.split_whitespace().collect();
        let end = words.iter().position(|word| *word == "--");
        let (of_cargo, of_tests) = words.split_at(end.unwrap_or(words.len()));
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let command = Cmd::new("timeout").args(["--kill-after=5", SECONDS_MAX]);
        let output = command
            .arg(cargo)
            .args(["test", "--locked"])
            .args(of_cargo)
            .args(options)
            .args(of_tests)
            .env("CARGO_TARGET_DIR", &self.target)
            .env_remove("CARGO_MANIFEST_DIR")
            .env_remove("CARGO_PKG_NAME")
            .dir(&self.root)
            .output()?;
        let said = [&output.stdout, &output.stderr].map(|part| String::from_utf8_lossy(part));
        compiled::note(&said[1]);
        Ok((output.status, said.concat()))
    }
}

/// Removes files below the directory that the workspace does not have.
fn remove_others(root: &Path, directory: &Path, names: &BTreeSet<&str>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            remove_others(root, &path, names)?;
        } else if let Ok(name) = path.strip_prefix(root)
            && !name.to_str().is_some_and(|name| names.contains(name))
        {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATCH: &str = "--- a/crates/engine/src/lib.rs\n+++ b/crates/engine/src/lib.rs\n";

    fn parse(head: &str) -> Result<Mutation> {
        Mutation::parse(Path::new("x.patch"), "x", &format!("{head}{PATCH}"))
    }

    #[test]
    fn a_mutation_says_what_it_breaks_and_what_notices_it() {
        let test = "Noticed by: -p onefold-engine --lib ring\n";
        let mutation = parse(&format!("Breaks: a rule.\n{test}")).unwrap();
        let expected = NoticedBy::Test("-p onefold-engine --lib ring".to_owned());
        assert_eq!(mutation.noticed_by, expected);
        assert_eq!(mutation.files, ["crates/engine/src/lib.rs"]);
        assert!(mutation.crates.contains("engine") && mutation.is_quick());
        let argued = parse("Breaks: a rule.\nEquivalent: for a reason.\n").unwrap();
        assert!(argued.noticed_by == NoticedBy::Nothing && !argued.is_quick());
        assert!(parse(test).is_err(), "it does not say what it breaks");
        assert!(parse("Breaks: a rule.\n").is_err(), "nothing notices it");
        let both = format!("Breaks: a rule.\n{test}Equivalent: for a reason.\n");
        assert!(parse(&both).is_err());
    }

    #[test]
    fn a_slow_test_is_not_for_every_commit() {
        for test in [
            "-p onefold-store --lib",
            "--release -p onefold-format --lib",
        ] {
            let mutation = parse(&format!("Breaks: a rule.\nNoticed by: {test}\n")).unwrap();
            assert!(!mutation.is_quick(), "{test}");
        }
    }
}
