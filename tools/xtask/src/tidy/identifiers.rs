//! Names in backticks in comments and documents exist.
//!
//! A token is taken for a name in the code if it can hardly be anything else: a path with `::`, a
//! call `name()`, a word with an underscore or with a capital inside; and for a file if it ends as
//! Rust or Markdown does. A name exists if code of the workspace defines or uses it, whether it is
//! ours or a dependency's. `FOREIGN` has names of other programs that the code does not use.

use std::collections::BTreeSet;
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};

use super::SourceFile;

/// Names of kernels, protocols and programs that no code of ours uses.
const FOREIGN: &[&str] = &["ReadWritePaths", "st_blocks", "wmem_max"];

/// Documents that describe the present code. Decisions also describe rejected alternatives.
const DOCUMENTS: &[&str] = &[
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "README.md",
    "STYLE.md",
];

/// A name in backticks.
#[derive(Debug, PartialEq, Eq)]
enum Named<'a> {
    /// The parts of a path, or one name.
    Code(Vec<&'a str>),
    File(&'a str),
}

pub(super) fn faults(files: &[SourceFile]) -> Vec<String> {
    let mut names: BTreeSet<String> = BTreeSet::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        if let Ok(tokens) = file.text.parse::<TokenStream>() {
            collect(tokens, &mut names);
        }
    }
    for file in files.iter().filter(|file| is_list_of_names(&file.path)) {
        collect_words(&file.text, &mut names);
    }
    let is_missing = |token: &str| match named(token) {
        Some(Named::Code(parts)) => parts
            .iter()
            .any(|part| !names.contains(*part) && !FOREIGN.contains(part)),
        Some(Named::File(name)) => !exists(name, files),
        None => false,
    };
    let mut faults = Vec::new();
    for file in files {
        for (index, line) in checked_lines(file) {
            for token in backticked(line).filter(|token| is_missing(token)) {
                let place = file.path.display();
                faults.push(format!("{place}:{}: there is no `{token}`", index + 1));
            }
        }
    }
    faults
}

/// The lines of a file whose names must exist, by their indices. Tests of the product and tools are
/// left out.
fn checked_lines(file: &SourceFile) -> Vec<(usize, &str)> {
    let lines = file.text.lines().enumerate();
    if is_product(&file.path) {
        without_fences(lines.map(|(index, line)| (index, comment(line))))
    } else if is_document(&file.path) {
        without_fences(lines)
    } else {
        Vec::new()
    }
}

fn is_product(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "rs")
        && path.starts_with("crates")
        && path.iter().any(|part| part == "src")
}

fn is_document(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md")
        && (path.starts_with("docs") && !path.starts_with("docs/decisions")
            || DOCUMENTS.iter().any(|document| path == Path::new(document)))
}

/// Whether the file lists names that are not code: names of alerts and metrics.
fn is_list_of_names(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    match extension {
        Some("yml") => path.starts_with("packaging"),
        Some("txt") => path.iter().any(|part| part == "tests"),
        _ => false,
    }
}

fn collect_words(text: &str, names: &mut BTreeSet<String>) {
    names.extend(text.split(|c| !is_part_of_name(c)).map(str::to_owned));
}

/// Every identifier in code and every word in its strings: keys of JSON, variables of the
/// environment.
fn collect(tokens: TokenStream, names: &mut BTreeSet<String>) {
    let mut doc = false;
    for token in tokens {
        match token {
            TokenTree::Ident(name) => {
                doc = name == "doc";
                names.insert(name.to_string());
            }
            TokenTree::Group(group) => collect(group.stream(), names),
            // A comment is `doc = "text"` here.
            TokenTree::Literal(literal) if !doc => {
                collect_words(&literal.to_string(), names);
            }
            TokenTree::Literal(_) | TokenTree::Punct(_) => {}
        }
    }
}

/// The text of a comment that has a line of its own.
fn comment(line: &str) -> &str {
    let comment = line.trim_start().strip_prefix("//");
    comment.map_or("", |text| text.trim_start_matches(['/', '!']))
}

/// Leaves out examples, which are code.
fn without_fences<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<(usize, &'a str)> {
    let mut is_fenced = false;
    let outside = lines.filter(|(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        !is_fenced && !is_fence
    });
    outside.collect()
}

/// The text between single backticks that close on the same line.
fn backticked(line: &str) -> impl Iterator<Item = &str> {
    let parts: Vec<&str> = line.split('`').collect();
    let closed = parts.len().saturating_sub(1) / 2;
    parts.into_iter().skip(1).step_by(2).take(closed)
}

fn named(token: &str) -> Option<Named<'_>> {
    if let Some((stem, "rs" | "md")) = token.rsplit_once('.')
        && stem
            .chars()
            .all(|c| is_part_of_name(c) || "-/.".contains(c))
        && stem.ends_with(is_part_of_name)
    {
        return Some(Named::File(token));
    }
    let called = token.strip_suffix("()");
    let parts: Vec<&str> = called.unwrap_or(token).split("::").collect();
    let are_names = parts.iter().all(|part| {
        part.chars().all(is_part_of_name) && !part.starts_with(|c: char| c.is_ascii_digit())
    });
    let is_of_code = parts.len() > 1 || called.is_some() || is_joined(token);
    (are_names && is_of_code && !parts.contains(&"")).then_some(Named::Code(parts))
}

fn is_part_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Joined of words, as no word of English is: `snake_case` or `CamelCase`.
fn is_joined(name: &str) -> bool {
    let has_inner_capital = name.chars().skip(1).any(|c| c.is_ascii_uppercase());
    name.contains('_') || has_inner_capital && name.chars().any(|c| c.is_ascii_lowercase())
}

/// Whether a file has this name, or this path's end.
fn exists(name: &str, files: &[SourceFile]) -> bool {
    files
        .iter()
        .any(|file| file.path.ends_with(name.trim_start_matches("../")))
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::*;

    const CODE: &str = "
        struct Pool; impl Pool { fn open(&self) { std::env::var(\"ONEFOLD_POOL\"); } }
        const BLOCK_BYTES: u64 = 1;
        /// Only a comment has `InComment` and `in_comment`.
        #[serde(rename = \"free_blocks\")] struct S;
    ";

    fn missing(path: &str, text: &str) -> Vec<String> {
        let files = [file("tools/a/src/pool.rs", CODE), file(path, text)];
        let found = faults(&files).into_iter();
        found
            .map(|fault| fault.split('`').nth(1).unwrap_or_default().to_owned())
            .collect()
    }

    #[test]
    fn what_code_has_may_be_named() {
        let text = "// `Pool::open` `open()` `BLOCK_BYTES` `std::env::var()` `ONEFOLD_POOL` \
                    `free_blocks` `pool.rs` `a/src/pool.rs` `../src/pool.rs` `st_blocks`";
        assert!(missing("crates/b/src/lib.rs", text).is_empty());
        assert!(missing("README.md", text).is_empty());
    }

    #[test]
    fn what_no_code_has_is_a_fault() {
        let tokens = [
            "Pool::close",
            "Gone::open",
            "close()",
            "BLOCK_COUNT",
            "InComment",
            "in_comment",
            "gone.rs",
            "b/src/pool.rs",
            "docs/gone.md",
        ];
        for token in tokens {
            for path in ["crates/b/src/lib.rs", "docs/x.md"] {
                assert_eq!(missing(path, &format!("/// Like `{token}`.")), [token]);
            }
        }
        let text = "fn f() {}\n    //! `a` and `b_c`";
        let files = [file("crates/b/src/lib.rs", text)];
        assert_eq!(faults(&files), ["crates/b/src/lib.rs:2: there is no `b_c`"]);
    }

    #[test]
    fn what_may_be_something_else_is_left_alone() {
        let tokens = [
            "gone",
            "Gone",
            "--gone_x",
            "gone x::y",
            "<x::y>",
            "a_b=1",
            ".rs",
            "*.rs",
            "GONE",
            "/x_y",
            "1_000",
        ];
        for token in tokens {
            assert!(
                missing("docs/x.md", &format!("a `{token}`")).is_empty(),
                "{token}"
            );
        }
        assert!(missing("docs/x.md", "an `open_end").is_empty());
    }

    #[test]
    fn examples_tests_tools_and_decisions_are_left_alone() {
        let token = "// `Gone::open`";
        for path in [
            "crates/b/tests/t.rs",
            "tools/b/src/lib.rs",
            "docs/decisions/1.md",
        ] {
            assert!(missing(path, token).is_empty(), "{path}");
        }
        let fenced = "//! ```\n//! `Gone::open`\n//! ```\n//! `Gone::too`";
        assert_eq!(missing("crates/b/src/lib.rs", fenced), ["Gone::too"]);
        assert!(missing("crates/b/src/lib.rs", "let text = \"`Gone::open`\";").is_empty());
    }
}
