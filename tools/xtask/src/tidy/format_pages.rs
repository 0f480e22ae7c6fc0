//! One on-disk structure is one file in the format crate and one page in `docs/format/`.

use std::path::Path;

use super::SourceFile;

/// Folders of sources, and of their pages.
const FOLDERS: [(&str, &str); 2] = [
    ("crates/format/src", "docs/format"),
    ("crates/format/src/backup", "docs/format/backup"),
];

/// Files of the format crate that are not a structure on disk.
const NOT_STRUCTURES: &[&str] = &["bytes", "cursor", "error", "lib", "message", "mod", "units"];

/// Pages without a file of that crate: the overview, and the layout of the index crate.
const NOT_ABOUT_ONE: &[&str] = &["README", "index"];

pub(super) fn faults(files: &[SourceFile]) -> Vec<String> {
    let mut faults = Vec::new();
    for (sources, documents) in FOLDERS {
        let structures = names(files, sources, "rs", NOT_STRUCTURES);
        let pages = names(files, documents, "md", NOT_ABOUT_ONE);
        let without_page = structures
            .iter()
            .filter(|name| !pages.contains(name))
            .map(|name| format!("{sources}/{name}.rs has no page {documents}/{name}.md"));
        let without_structure = pages
            .iter()
            .filter(|name| !structures.contains(name))
            .map(|name| format!("{documents}/{name}.md is about no file {sources}/{name}.rs"));
        faults.extend(without_page.chain(without_structure));
    }
    faults
}

/// The stems of the files directly in a directory.
fn names<'a>(
    files: &'a [SourceFile],
    directory: &str,
    extension: &str,
    except: &[&str],
) -> Vec<&'a str> {
    files
        .iter()
        .filter(|file| file.path.parent() == Some(Path::new(directory)))
        .filter(|file| {
            file.path
                .extension()
                .is_some_and(|found| found == extension)
        })
        .filter_map(|file| file.path.file_stem()?.to_str())
        .filter(|stem| !except.contains(stem))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::*;

    #[test]
    fn every_structure_has_its_page_and_the_other_way_round() {
        let mut files = vec![
            file("crates/format/src/lib.rs", ""),
            file("crates/format/src/page.rs", ""),
            file("crates/format/src/deep/inner.rs", ""),
            file("docs/format/README.md", ""),
            file("docs/format/page.md", ""),
        ];
        assert!(faults(&files).is_empty());
        files.push(file("crates/format/src/frame.rs", ""));
        files.push(file("docs/format/root.md", ""));
        let found = faults(&files);
        assert_eq!(found.len(), 2);
        assert!(found[0].contains("frame.rs has no page"), "{found:?}");
        assert!(found[1].contains("root.md is about no file"), "{found:?}");
    }
}
