//! English: habits of comments, texts and documents that a native engineer does not have, and doc comments that lean
//! on their neighbours.
//!
//! Certain words are counted per 10,000 words ([`ALONE`], [`PAIRS`], [`AFTER_WHAT`], [`AMOUNTS`]): relative clauses without a
//! head, adverbs where a conjunction belongs, verbs of hearing and telling for calls and replies. None of them is wrong; many of
//! them make a dialect. The limit is no aim: a sentence that avoids the list by odder words is worse.
//!
//! A doc comment leans if its first line begins with a word of [`LEANING`]. Editors, rustdoc, `--help` and OpenAPI show a
//! doc comment without the item before it.

use std::path::Path;
use std::str::FromStr as _;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::SourceFile;

/// Words of habit that a group of files may have in 10,000 words.
const HABITS_MAX: usize = 25;

/// Limit for documents that are not for operators: the count when the rule was added. May only go down.
const OTHER_DOCUMENTS_MAX: usize = 33;

/// Doc comments in a hundred that may lean.
const LEANING_MAX: usize = 1;

/// A group with fewer words has no ratio worth a limit.
const WORDS_MIN: usize = 1000;

/// A shorter string is no sentence.
const TEXT_WORDS_MIN: usize = 4;

/// Words after "what" that make it the subject or object of a sentence.
const AFTER_WHAT: [&str; 17] = [
    "is", "was", "has", "had", "they", "it", "a", "the", "no", "others", "several", "waits",
    "stays", "goes", "comes", "follows", "remains",
];

/// Words and pairs of words, and what may not follow.
const ALONE: [&str; 11] = [
    "whoever",
    "nobody",
    "somebody",
    "meanwhile",
    "beside",
    "hear",
    "hears",
    "tells",
    "told",
    "anew",
    "lately",
];
const PAIRS: [(&str, &str); 9] = [
    ("goes", "on"),
    ("go", "on"),
    ("went", "on"),
    ("going", "on"),
    ("those", "of"),
    ("that", "of"),
    ("under", "way"),
    ("by", "then"),
    ("need", "not"),
];
const AMOUNTS: [&str; 5] = ["many", "much", "few", "long", "large"];
const AFTER_AMOUNT: [&str; 3] = ["that", "as", "more"];

/// How a doc comment begins that leans.
const LEANING: [&str; 44] = [
    "Its",
    "Their",
    "Those",
    "Such",
    "Also",
    "Likewise",
    "The same",
    "The others",
    "So many",
    "So much",
    "So few",
    "So long",
    "So large",
    "So are",
    "Of",
    "In its",
    "In the same",
    "As above",
    "Does so",
    "Does it",
    "Sets it",
    "Makes it",
    "Ends it",
    "Takes it",
    "Whether it",
    "Whether they",
    "It",
    "They",
    "One",
    "Another",
    "Another's",
    "That of",
    "Not so",
    "None",
    "All of it",
    "All of them",
    "Only to",
    "Where it",
    "Which of",
    "Theirs",
    "Itself",
    "Them",
    "This one",
    "That one",
];

/// A group of files, and its counts.
#[derive(Debug, Default)]
struct Group {
    name: String,
    habits_max: usize,
    words: usize,
    habits: usize,
    doc_comments: usize,
    leaning: usize,
    /// The first of them, to be found.
    example: Option<String>,
}

/// Prints the figures of each group, and returns a fault for each figure above its limit.
pub(super) fn faults(files: &[SourceFile]) -> Vec<String> {
    let mut groups: Vec<Group> = Vec::new();
    for file in files {
        let Some((name, habits_max)) = group_of(&file.path) else {
            continue;
        };
        add(&mut groups, &name, habits_max).read(file);
        if file.is_rust() && name.starts_with("crates/") && !is_of_tests(&file.path) {
            add(&mut groups, "texts of the product", HABITS_MAX).count(&texts(&file.text));
        }
    }
    groups.iter().for_each(|group| println!("{}", group.line()));
    groups.iter().flat_map(Group::faults).collect()
}

fn add<'a>(groups: &'a mut Vec<Group>, name: &str, habits_max: usize) -> &'a mut Group {
    let at = groups.iter().position(|group| group.name == name);
    let at = at.unwrap_or_else(|| {
        groups.push(Group {
            name: name.to_owned(),
            habits_max,
            ..Group::default()
        });
        groups.len() - 1
    });
    &mut groups[at]
}

/// The group that a file belongs to, and its limit.
fn group_of(path: &Path) -> Option<(String, usize)> {
    let parts: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
    let name = parts.last()?;
    let extension = path.extension()?.to_str()?;
    match (&parts[..], extension) {
        (["crates" | "tools", of, ..], "rs" | "md") => {
            Some((format!("{}/{of}", parts[0]), HABITS_MAX))
        }
        (["crates", "api", "openapi.json"], _) => Some(("OpenAPI".to_owned(), HABITS_MAX)),
        (["docs", "operating", ..], "md") => Some(("docs/operating".to_owned(), HABITS_MAX)),
        (["docs", _], "md") if name.starts_with("benchmarks") || name.starts_with("evaluation") => {
            Some(("pages of measurements".to_owned(), HABITS_MAX))
        }
        (_, "md") => Some(("other documents".to_owned(), OTHER_DOCUMENTS_MAX)),
        _ => None,
    }
}

fn is_of_tests(path: &Path) -> bool {
    path.iter()
        .any(|part| part == "tests" || part == "examples")
}

impl Group {
    fn read(&mut self, file: &SourceFile) {
        let text = match file.path.extension().and_then(|end| end.to_str()) {
            Some("rs") => {
                if !is_of_tests(&file.path) {
                    self.count_leaning(file);
                }
                comments(&file.text)
            }
            Some("json") => descriptions(&file.text),
            _ => without_code(&file.text),
        };
        self.count(&text);
    }

    fn count(&mut self, text: &str) {
        self.words += text.split_whitespace().count();
        self.habits += habits(text);
    }

    fn count_leaning(&mut self, file: &SourceFile) {
        let mut is_inside = false;
        for (line, number) in file.text.lines().zip(1..) {
            let doc = line.trim_start().strip_prefix("///");
            if let Some(doc) = doc.filter(|_| !is_inside) {
                self.doc_comments += 1;
                if leans(doc.trim_start()) {
                    self.leaning += 1;
                    let place = file.path.display();
                    self.example
                        .get_or_insert_with(|| format!("{place}:{number}:{doc}"));
                }
            }
            is_inside = doc.is_some();
        }
    }

    fn per_10_000(&self) -> usize {
        (self.habits * 10_000).div_ceil(self.words.max(1))
    }

    fn line(&self) -> String {
        let mut line = format!(
            "{}: {} habits in 10,000 words",
            self.name,
            self.per_10_000()
        );
        if self.doc_comments > 0 {
            let (leaning, all) = (self.leaning, self.doc_comments);
            line.push_str(&format!(", {leaning} of {all} doc comments lean"));
        }
        line
    }

    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let (name, habits, max) = (&self.name, self.per_10_000(), self.habits_max);
        if habits > max && self.words >= WORDS_MIN {
            faults.push(format!(
                "{name}: {habits} habits in 10,000 words, {max} may: see tidy/prose.rs, and write what the code does"
            ));
        }
        if self.leaning * 100 > self.doc_comments.max(100) * LEANING_MAX {
            let (leaning, all) = (self.leaning, self.doc_comments);
            let example = self.example.as_deref().unwrap_or_default();
            faults.push(format!(
                "{name}: {leaning} of {all} doc comments lean on the item before them, the first: {example}"
            ));
        }
        faults
    }
}

/// Lines that hold nothing but a comment.
fn comments(text: &str) -> String {
    let lines = text.lines().map(str::trim_start);
    let comments = lines.filter_map(|line| line.strip_prefix("//"));
    let texts = comments.map(|comment| comment.trim_start_matches(['/', '!']));
    texts.collect::<Vec<_>>().join(" ")
}

/// A document without its blocks of code.
fn without_code(text: &str) -> String {
    let mut is_code = false;
    let prose = text.lines().filter(|line| {
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    });
    prose.collect::<Vec<_>>().join(" ")
}

/// The descriptions of an OpenAPI document.
fn descriptions(text: &str) -> String {
    let of_line = |line: &str| {
        let text = line.trim_start().strip_prefix("\"description\": \"")?;
        Some(text.replace("\\n", " "))
    };
    text.lines()
        .filter_map(of_line)
        .collect::<Vec<_>>()
        .join(" ")
}

/// The sentences among the string literals of a file, without its tests.
fn texts(text: &str) -> String {
    let text = text
        .split("#[cfg(test)]\nmod tests")
        .next()
        .unwrap_or_default();
    let mut found = Vec::new();
    if let Ok(tokens) = TokenStream::from_str(text) {
        collect_texts(tokens, &mut found);
    }
    found.join(" ")
}

fn collect_texts(tokens: TokenStream, found: &mut Vec<String>) {
    let mut is_attribute = false;
    for token in tokens {
        match token {
            TokenTree::Punct(mark) => {
                is_attribute = mark.as_char() == '#' || is_attribute && mark.as_char() == '!';
                continue;
            }
            // Doc comments are attributes, too.
            TokenTree::Group(group) if is_attribute && group.delimiter() == Delimiter::Bracket => {}
            TokenTree::Group(group) => collect_texts(group.stream(), found),
            TokenTree::Literal(literal) => {
                let literal = literal.to_string();
                let is_text = literal.starts_with('"') && !literal.contains("\\n| ");
                if is_text && literal.split_whitespace().count() >= TEXT_WORDS_MIN {
                    found.push(literal.trim_matches('"').replace("\\\n", " "));
                }
            }
            TokenTree::Ident(_) => {}
        }
        is_attribute = false;
    }
}

/// Words of habit in a text.
fn habits(text: &str) -> usize {
    let words = words(text);
    let word = |at: usize| words.get(at).map_or("", String::as_str);
    let is_habit = |at: usize| {
        let (this, next, third) = (word(at), word(at + 1), word(at + 2));
        ALONE.contains(&this)
            || PAIRS.contains(&(this, next))
            || this == "what" && AFTER_WHAT.contains(&next)
            || this == "so" && AMOUNTS.contains(&next) && !AFTER_AMOUNT.contains(&third)
            || ["is", "are"].contains(&this) && next == "to" && third == "be"
    };
    (0..words.len()).filter(|at| is_habit(*at)).count()
}

/// Lower-case words, with an empty one wherever more than a blank parts two of them.
fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut gap = String::new();
    for letter in text.chars() {
        if letter.is_alphanumeric() || letter == '_' {
            if !gap.is_empty() && gap != " " {
                words.push(String::new());
            }
            if !gap.is_empty() {
                words.push(String::new());
                gap.clear();
            }
            if let Some(word) = words.last_mut() {
                word.extend(letter.to_lowercase());
            }
        } else if !(gap.ends_with(' ') && letter == ' ') {
            gap.push(letter);
        }
    }
    words
}

/// Whether the first line of a doc comment leans on something before it.
fn leans(line: &str) -> bool {
    LEANING.iter().any(|begin| {
        let rest = line.strip_prefix(begin);
        rest.is_some_and(|rest| !rest.starts_with(|letter: char| letter.is_alphanumeric()))
    })
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::*;

    #[test]
    fn habits_are_words_and_not_parts_of_words() {
        for (text, count) in [
            (
                "Whoever reads it, what is damaged and what the disk has.",
                3,
            ),
            (
                "so many requests a second; so long as it lasts, so many that it fails",
                1,
            ),
            ("Meanwhile nobody hears of it. That. Of course.", 3),
            ("It goes on, and those of others are to be read anew", 4),
            ("besides, what a b", 1),
            ("somebody is told", 2),
            ("A block is read while another client writes to it.", 0),
        ] {
            assert_eq!(habits(text), count, "{text}");
        }
    }

    #[test]
    fn a_doc_comment_leans_on_what_comes_before_it() {
        for (line, leaning) in [
            ("Its number.", true),
            ("The same in bytes.", true),
            ("So many requests a second.", true),
            ("Of zstd.", true),
            ("Offset in bytes.", false),
            ("Item of a list.", false),
            ("The number of the pool.", false),
        ] {
            assert_eq!(leans(line), leaning, "{line}");
        }
    }

    #[test]
    fn comments_texts_and_descriptions_are_read_and_code_is_not() {
        let source = "//! So much.\n/// Its size.\nfn f() { // whoever\n let x = \"whoever reads this text\"; }\n";
        assert_eq!(habits(&comments(source)), 1);
        assert_eq!(habits(&texts(source)), 1);
        assert_eq!(habits(&texts("/// whoever reads this text\nfn f() {}")), 0);
        assert_eq!(
            habits(&texts(
                "#[cfg(test)]\nmod tests { const T: &str = \"whoever reads this text\"; }"
            )),
            0
        );
        assert_eq!(habits(&without_code("whoever\n```\nwhoever\n```\n")), 1);
        assert_eq!(
            habits(&descriptions(
                "  \"description\": \"whoever\",\n  \"whoever\": 1"
            )),
            1
        );
    }

    #[test]
    fn a_group_above_its_limit_is_a_fault() {
        let words = |habits: usize| {
            format!(
                "// {}{}",
                "whoever ".repeat(habits),
                "word ".repeat(2000 - habits)
            )
        };
        for (habits, faults) in [(5, 0), (6, 1)] {
            let source = file("crates/a/src/lib.rs", &words(habits));
            assert_eq!(super::faults(&[source]).len(), faults, "{habits}");
        }
        let docs = |leaning: usize| {
            let lines = (0..200).map(|n| {
                if n < leaning {
                    "/// Its size.\nfn f() {}\n"
                } else {
                    "/// The size.\nfn f() {}\n"
                }
            });
            file("crates/a/src/lib.rs", &lines.collect::<String>())
        };
        assert_eq!(super::faults(&[docs(2)]).len(), 0);
        assert_eq!(super::faults(&[docs(3)]).len(), 1);
    }
}
