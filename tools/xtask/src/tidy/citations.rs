//! Code cites the steps of a write as `step`, number and name in square brackets; the document
//! has them as headings `## NUMBER NAME`. Both must agree, so that a renumbered step can not
//! leave a comment that points to another one.

use std::path::Path;

use super::SourceFile;

const DOCUMENT: &str = "docs/life-of-a-write.md";
const OPENING: &str = "[step ";

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
    for file in files.iter().filter(|file| file.is_rust()) {
        for (index, line) in file.text.lines().enumerate() {
            for cited in cited(line) {
                let place = format!("{}:{}", file.path.display(), index + 1);
                match cited {
                    Ok(step) if steps.contains(&step) => {}
                    Ok((number, name)) => faults.push(format!(
                        "{place}: step {number} {name} is not a heading of {DOCUMENT}"
                    )),
                    Err(text) => {
                        faults.push(format!("{place}: '{text}' is not a step's number and name"))
                    }
                }
            }
        }
    }
    faults
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

    fn faults_of(code: &str) -> Vec<String> {
        // Put together here, because this file is itself looked at.
        let code = code.replace("STEP", OPENING);
        faults(&[
            file(DOCUMENT, "# x\n## 3 shape\n## 4 place\n"),
            file("a.rs", &code),
        ])
    }

    #[test]
    fn a_step_that_exists_may_be_cited() {
        assert!(faults_of("// STEP4 place] and STEP3 shape]\n").is_empty());
    }

    #[test]
    fn a_wrong_number_or_name_is_a_fault() {
        assert_eq!(
            faults_of("\n// STEP5 place]")[0].split(' ').next(),
            Some("a.rs:2:")
        );
        assert_eq!(faults_of("// STEP4 shape]").len(), 1);
        assert_eq!(faults_of("// STEPfour]").len(), 1);
        assert!(faults_of("let x = STEPas u8; 3];").is_empty());
    }

    #[test]
    fn the_document_must_exist_and_have_steps() {
        assert_eq!(faults(&[file("a.rs", "")]).len(), 1);
        assert_eq!(faults(&[file(DOCUMENT, "text")]).len(), 1);
    }
}
