//! A decision record is short enough to be read whole. Tables and series of measurements have a page of their own,
//! `docs/evaluation-decisions.md`.

use std::path::Path;

use super::SourceFile;

/// Words that a record may have, separated by white space as `wc -w` counts them: three minutes of reading.
const WORDS_MAX: usize = 700;

pub(super) fn faults(files: &[SourceFile]) -> Vec<String> {
    files.iter().filter_map(fault).collect()
}

fn fault(file: &SourceFile) -> Option<String> {
    let is_record = file.path.parent() == Some(Path::new("docs/decisions"))
        && file.path.extension().is_some_and(|end| end == "md");
    let words = file.text.split_whitespace().count();
    (is_record && words > WORDS_MAX).then(|| {
        let place = file.path.display();
        format!(
            "{place}: {words} words, {WORDS_MAX} may: measurements go to docs/evaluation-decisions.md"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::*;

    #[test]
    fn a_record_with_too_many_words_is_a_fault() {
        let text = |words: usize| "word\n".repeat(words);
        let long = text(WORDS_MAX + 1);
        assert_eq!(faults(&[file("docs/decisions/0001-a.md", &long)]).len(), 1);
        for (path, text) in [
            ("docs/decisions/0001-a.md", text(WORDS_MAX)),
            ("docs/evaluation-decisions.md", long.clone()),
            ("docs/decisions/figure.svg", long.clone()),
        ] {
            assert!(faults(&[file(path, &text)]).is_empty(), "{path}");
        }
    }
}
