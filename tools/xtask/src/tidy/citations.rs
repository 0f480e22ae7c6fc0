//! Code cites the steps of a write as `step`, number and name in square brackets; the document has
//! them as headings `## NUMBER NAME`. Both must agree, so that a renumbered step cannot leave a
//! comment that points to another one. Every step is cited by the product's code, and in the file
//! of the write path the steps are cited once and in order, so that it can be read next to the
//! document.

use std::collections::BTreeSet;
use std::path::Path;

use super::SourceFile;

const DOCUMENT: &str = "docs/life-of-a-write.md";
const OPENING: &str = "[step ";

/// The file of the write path.
const WRITE_PATH: &str = "crates/store/src/volume/write.rs";

/// A step by number and name.
type Step = (u32, String);

pub(super) fn faults(files: &[SourceFile]) -> Vec<String> {
    let Some(document) = files.iter().find(|file| file.path == Path::new(DOCUMENT)) else {
        return vec![format!("{DOCUMENT} is missing")];
    };
    let steps = headings(&document.text);
    let mut faults = Vec::new();
    if steps.is_empty() {
        faults.push(format!(
            "{DOCUMENT} has no heading of the form '## 4 place'"
        ));
    }
    if !files.iter().any(|file| file.path == Path::new(WRITE_PATH)) {
        faults.push(format!(
            "{WRITE_PATH} is missing: say in tidy/citations.rs where the write path is now"
        ));
    }
    let mut cited = BTreeSet::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let mut before = 0;
        for (index, found) in citations(&file.text) {
            let place = format!("{}:{}", file.path.display(), index + 1);
            let step = match found {
                Ok(step) => step,
                Err(text) => {
                    faults.push(format!("{place}: '{text}' is not a step's number and name"));
                    continue;
                }
            };
            let (number, name) = &step;
            if !steps.contains(&step) {
                faults.push(format!(
                    "{place}: step {number} {name} is not a heading of {DOCUMENT}"
                ));
            }
            if file.path == Path::new(WRITE_PATH) && *number <= before {
                faults.push(format!(
                    "{place}: step {number} is cited behind step {before}: here each is cited \
                     once and in order"
                ));
            }
            before = *number;
            if file.path.starts_with("crates") {
                cited.insert(step);
            }
        }
    }
    let uncited = steps.iter().filter(|step| !cited.contains(step));
    faults.extend(uncited.map(|(number, name)| {
        format!("{DOCUMENT}: step {number} {name} is cited by no code of the product")
    }));
    faults
}

/// The steps that a text cites, with the indices of their lines.
fn citations(text: &str) -> impl Iterator<Item = (usize, Result<Step, String>)> + '_ {
    let lines = text.lines().enumerate();
    lines.flat_map(|(index, line)| cited(line).map(move |found| (index, found)))
}

fn headings(text: &str) -> Vec<Step> {
    text.lines()
        .filter_map(|line| step(line.strip_prefix("## ")?))
        .collect()
}

/// "4 place" or "4. place"
fn step(text: &str) -> Option<Step> {
    let (number, name) = text.trim().split_once(' ')?;
    let number = number.strip_suffix('.').unwrap_or(number).parse().ok()?;
    Some((number, name.trim().to_owned()))
}

/// Outside comments, `step` may be the name of a variable.
fn cited(line: &str) -> impl Iterator<Item = Result<Step, String>> + '_ {
    let comment = line.split_once("//").map_or("", |(_, comment)| comment);
    comment.split(OPENING).skip(1).map(|after| {
        let inside = after.split(']').next().unwrap_or_default();
        step(inside).ok_or_else(|| inside.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::*;

    /// Put together, because this file itself is scanned.
    fn code(path: &str, text: &str) -> SourceFile {
        file(path, &text.replace("STEP", OPENING))
    }

    fn document() -> SourceFile {
        file(DOCUMENT, "# x\n## 3 shape\n## 4 place\n")
    }

    /// The faults of a file, where another file cites all steps.
    fn faults_of(path: &str, text: &str) -> Vec<String> {
        let citing = code("crates/a/src/lib.rs", "// STEP4 place] and STEP3 shape]\n");
        faults(&[document(), citing, code(path, text), code(WRITE_PATH, "")])
    }

    #[test]
    fn a_step_that_exists_may_be_cited() {
        assert!(faults_of("a.rs", "// STEP4 place] and STEP3 shape]\n").is_empty());
    }

    #[test]
    fn a_wrong_number_or_name_is_a_fault() {
        assert_eq!(
            faults_of("a.rs", "\n// STEP5 place]")[0].split(' ').next(),
            Some("a.rs:2:")
        );
        assert_eq!(faults_of("a.rs", "// STEP4 shape]").len(), 1);
        assert_eq!(faults_of("a.rs", "// STEPfour]").len(), 1);
        assert!(faults_of("a.rs", "let x = STEPas u8; 3];").is_empty());
    }

    #[test]
    fn the_write_path_cites_each_step_once_and_in_order() {
        assert!(faults_of(WRITE_PATH, "// STEP3 shape]\n// STEP4 place]").is_empty());
        assert!(faults_of(WRITE_PATH, "// STEP4 place]").is_empty());
        for text in [
            "// STEP4 place]\n// STEP3 shape]",
            "// STEP3 shape] STEP3 shape]",
        ] {
            let found = faults_of(WRITE_PATH, text);
            assert_eq!(found.len(), 1, "{found:?}");
        }
    }

    #[test]
    fn every_step_is_cited_by_the_product() {
        let write_path = || code(WRITE_PATH, "");
        let of = |path: &str| faults(&[document(), code(path, "// STEP3 shape]"), write_path()]);
        assert_eq!(of("crates/a/src/lib.rs").len(), 1);
        assert_eq!(of("tools/a/src/lib.rs").len(), 2);
    }

    #[test]
    fn the_document_must_exist_and_have_steps_and_so_must_the_write_path() {
        assert_eq!(faults(&[file("a.rs", "")]).len(), 1);
        assert_eq!(
            faults(&[file(DOCUMENT, "text"), file(WRITE_PATH, "")]).len(),
            1
        );
        assert_eq!(faults(&[file(DOCUMENT, "text")]).len(), 2);
    }
}
