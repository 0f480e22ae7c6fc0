//! `cargo xtask tidy`: the rules of the house that a program can check.
//!
//! | file | fails on |
//! | --- | --- |
//! | `floors.rs` | a crate that uses a crate on its own floor or above, or has no floor; a meaningless name; a feature of the shipped crate |
//! | `charters.rs` | a crate that does not state which crates it may use |
//! | `cycles.rs` | files of a crate that import each other or call each other's methods, if they are too many |
//! | `methods.rs` | a type whose methods stand in too many files |
//! | `sizes.rs` | a largest file, or a number of long functions, that grew; a limit looser than the measurement; a long test file |
//! | `citations.rs` | a step of a write that is cited wrong, out of order or nowhere |
//! | `identifiers.rs` | a name in backticks that does not exist |
//! | `decisions.rs` | a decision record that is too long |
//! | `format_pages.rs` | a format without its page, or the other way round |
//! | `paths.rs` | a path of one machine |
//! | `prose.rs` | a dialect in comments, texts and documents; doc comments that lean on others |
//!
//! Prints without failing: the sizes of crates, files and functions, and which are long; the age of pages with measurements
//! (`pages.rs`).

mod charters;
mod citations;
mod crates;
mod cycles;
mod decisions;
mod floors;
mod format_pages;
mod identifiers;
mod measures;
mod methods;
mod pages;
mod paths;
mod prose;
mod sizes;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use onefold_harness::command::Cmd;
use onefold_harness::packages;
use onefold_harness::workspace::Workspace;

use crates::Parsed;
use methods::Methods;
use sizes::Sizes;

/// A text file of the repository.
struct SourceFile {
    /// Relative to the repository.
    path: PathBuf,
    text: String,
}

impl SourceFile {
    fn is_rust(&self) -> bool {
        self.path
            .extension()
            .is_some_and(|extension| extension == "rs")
    }
}

/// `cargo xtask tidy`
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    packages::require(&["git"])?;
    let files = source_files(workspace)?;
    let mut faults = floors::faults(&workspace.metadata)?;
    faults.extend(charters::faults(&files));
    faults.extend(citations::faults(&files));
    faults.extend(decisions::faults(&files));
    faults.extend(format_pages::faults(&files));
    faults.extend(pages::faults(&workspace.root, &files));
    faults.extend(identifiers::faults(&files));
    faults.extend(paths::faults(&files, std::env::var("HOME").ok().as_deref()));
    faults.extend(prose::faults(&files));
    faults.extend(sizes::test_file_faults(&files));
    let parsed = crates::parse(&files, &mut faults);
    let remarks = pages::remarks(&workspace.root, &files);
    for remark in remarks.into_iter().chain(sizes::remarks(&parsed)) {
        println!("{remark}");
    }
    measure(&parsed, &mut faults);
    for fault in &faults {
        eprintln!("tidy: {fault}");
    }
    match faults.len() {
        0 => {
            println!("tidy: {} files, nothing wrong", files.len());
            Ok(())
        }
        count => bail!("tidy found {count} faults"),
    }
}

/// Prints how large everything is and which files import each other.
fn measure(parsed: &[Parsed], faults: &mut Vec<String>) {
    let crates = crates::crates(parsed, faults);
    let methods = Methods::of(&crates);
    for (krate, methods) in crates.iter().zip(&methods) {
        let cycle = cycles::largest(krate, methods);
        if !cycle.is_empty() {
            let (name, shown) = (&krate.name, cycles::shown(&cycle));
            println!("{name}: {} files import each other: {shown}", cycle.len());
        }
        faults.extend(cycles::fault(&krate.name, &cycle));
        if let Some(remark) = methods.remark(&krate.name) {
            println!("{remark}");
        }
        faults.extend(methods.faults(&krate.name));
    }
    let of = |is_product: bool| -> Vec<Sizes> {
        let both = crates.iter().zip(&methods);
        let wanted = both.filter(|(krate, _)| krate.is_product == is_product);
        wanted
            .map(|(krate, methods)| Sizes::of(krate, methods))
            .collect()
    };
    let (product, tools) = (of(true), of(false));
    let total = Sizes::sum("product", &product);
    let rows: Vec<&Sizes> = product.iter().chain([&total]).chain(&tools).collect();
    for line in sizes::table(&rows) {
        println!("{line}");
    }
    faults.extend(sizes::faults(&total));
}

/// Files that git tracks, and new files that it does not ignore.
fn source_files(workspace: &Workspace) -> Result<Vec<SourceFile>> {
    let list = Cmd::new("git")
        // The tree may belong to another user, as it does in containers.
        .args(["-c", "safe.directory=*"])
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .dir(&workspace.root)
        .read()?;
    let mut files = Vec::new();
    for name in list.split('\0').filter(|name| !name.is_empty()) {
        let path = workspace.root.join(name);
        // Tracked but removed in the working tree, or a link to a directory.
        if !path.is_file() {
            continue;
        }
        let bytes =
            std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        // Binary files have no lines to look at.
        if let Ok(text) = String::from_utf8(bytes) {
            files.push(SourceFile {
                path: PathBuf::from(name),
                text,
            });
        }
    }
    Ok(files)
}

#[cfg(test)]
fn file(path: &str, text: &str) -> SourceFile {
    SourceFile {
        path: PathBuf::from(path),
        text: text.to_owned(),
    }
}
