//! Each crate states in its first lines which crates it may use.

use std::path::{Path, PathBuf};

use super::SourceFile;
use super::crates::crate_of_root;

/// Words that such a sentence begins with.
const WORDS: &str = "May use";

/// The place where readers look for it.
const LINES: usize = 10;

pub(super) fn faults(files: &[SourceFile]) -> Vec<String> {
    let is_there = |path: &Path| files.iter().any(|file| file.path == path);
    let mut faults = Vec::new();
    for file in files {
        let Some(directory) = crate_of_root(&file.path) else {
            continue;
        };
        // A library speaks for its binaries.
        let root = ["src/lib.rs", "src/main.rs"].map(|name| directory.join(name));
        let root: Option<&PathBuf> = root.iter().find(|path| is_there(path));
        let is_root = root.is_some_and(|root| *root == file.path);
        if is_root
            && !file
                .text
                .lines()
                .take(LINES)
                .any(|line| line.contains(WORDS))
        {
            let place = file.path.display();
            faults.push(format!(
                "{place}: its first {LINES} lines do not say what the crate may use: '{WORDS} ...'"
            ));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::*;

    #[test]
    fn the_root_of_each_crate_says_what_it_may_use() {
        let said = "//! It.\n//!\n//! May use: nothing.\n";
        let late = format!("{}{said}", "//!\n".repeat(LINES));
        assert!(faults(&[file("crates/a/src/lib.rs", said)]).is_empty());
        assert_eq!(faults(&[file("crates/a/src/lib.rs", &late)]).len(), 1);
        assert_eq!(faults(&[file("tools/a/src/main.rs", "")]).len(), 1);
        assert!(faults(&[file("crates/a/src/other.rs", "")]).is_empty());
    }

    #[test]
    fn a_library_speaks_for_its_binaries() {
        let files = [
            file("crates/a/src/lib.rs", "//! May use: nothing."),
            file("crates/a/src/main.rs", ""),
            file("crates/a/src/bin/b.rs", ""),
        ];
        assert!(faults(&files).is_empty());
        assert_eq!(faults(&files[1..]).len(), 1);
    }
}
