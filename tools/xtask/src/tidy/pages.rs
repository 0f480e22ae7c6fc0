//! The age of pages with measurements: commits to the measured folders since the page's commit.
//!
//! A page names its commit and its folders in its table of conditions. The age is printed. It is a fault only of the page that README
//! quotes: a run takes an hour or more, and most commits change nothing that a page measures.

use std::path::Path;

use onefold_harness::command::Cmd;

use super::SourceFile;

/// The page that README quotes, and the most commits to what it measures that it may lack.
const QUOTED: (&str, u64) = ("docs/benchmarks.md", 40);

/// The page that README quotes is too old. Its age is unknown in a clone without the page's commit.
pub(super) fn faults(root: &Path, files: &[SourceFile]) -> Vec<String> {
    let (quoted, most) = QUOTED;
    let is_quoted = |file: &&SourceFile| file.path == Path::new(quoted);
    let page = files.iter().find(is_quoted).map(|file| &*file.text);
    let age = page.and_then(Measured::of).and_then(|page| page.age(root));
    let is_old = age.filter(|age| *age > most);
    is_old
        .map(|age| {
            format!(
                "{quoted}: {age} commits to what it measures since then, {most} may: run `cargo xtask bench` on a quiet machine"
            )
        })
        .into_iter()
        .collect()
}

/// A line for each page with measurements, the oldest page first.
pub(super) fn remarks(root: &Path, files: &[SourceFile]) -> Vec<String> {
    let pages = files
        .iter()
        .filter_map(|file| Some((file, Measured::of(&file.text)?)));
    let mut ages: Vec<(Option<u64>, String)> = pages
        .map(|(file, measured)| {
            let age = measured.age(root);
            let behind = age.map_or("unknown".to_owned(), |age| age.to_string());
            let folders = measured.folders.join(" ");
            let line = format!(
                "{}: {behind} commits to {folders} since it was measured",
                file.path.display()
            );
            (age, line)
        })
        .collect();
    ages.sort_by(|one, other| other.cmp(one));
    ages.into_iter().map(|(_, line)| line).collect()
}

/// The source of a page.
#[derive(Debug, PartialEq, Eq)]
struct Measured<'a> {
    commit: &'a str,
    folders: Vec<&'a str>,
}

impl<'a> Measured<'a> {
    /// Nothing if the text is no page with measurements.
    fn of(text: &'a str) -> Option<Self> {
        let row = |name: &str| {
            let begin = format!("| {name} | ");
            let row = text.lines().find_map(|line| line.strip_prefix(&begin))?;
            row.strip_suffix(" |")
        };
        let commit = row("commit")?.split([',', ' ']).next()?;
        let folders = row("measures")?.split_whitespace().collect();
        Some(Self { commit, folders })
    }

    /// Nothing without Git, or in a clone that does not have the commit.
    fn age(&self, root: &Path) -> Option<u64> {
        let range = format!("{}..HEAD", self.commit);
        let git = Cmd::new("git").dir(root).args(["-c", "safe.directory=*"]);
        let count = git
            .args(["rev-list", "--count", &range, "--"])
            .args(&self.folders);
        count.read().ok()?.trim().parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_names_its_commit_and_its_folders() {
        let page = "# A\n\n| | |\n| --- | --- |\n| commit | 52d2246, with changes |\n| measures | crates/a crates/b |\n";
        let expected = Measured {
            commit: "52d2246",
            folders: vec!["crates/a", "crates/b"],
        };
        assert_eq!(Measured::of(page), Some(expected));
        assert_eq!(Measured::of("| commit | 52d2246 |\n"), None);
        assert_eq!(Measured::of("# Another page\n"), None);
    }
}
