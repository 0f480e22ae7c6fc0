//! How often each of our crates was compiled, from the lines that Cargo prints.
//!
//! Cargo prints one line for each crate that it compiles in a call, whether as a library, for tests, or both. What it
//! compiles in a call with `--quiet` is not counted.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Verbs of Cargo's lines about compiling. A crate whose documentation is made is not compiled.
const VERBS: [&str; 2] = ["Compiling", "Checking"];

/// Counts of this process, by crate. Steps add to it at any time.
static COMPILED: Mutex<Counts> = Mutex::new(Counts(BTreeMap::new()));

/// Adds the crates that Cargo compiled, if this is its output.
pub(crate) fn note(output: &str) {
    // The counts are valid after any panic.
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    compiled.add(output);
}

/// One line about all crates so far, if there are any.
pub(crate) fn line() -> Option<String> {
    let compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    compiled.line()
}

#[derive(Debug, Default)]
struct Counts(BTreeMap<String, u64>);

impl Counts {
    fn add(&mut self, output: &str) {
        for name in output.lines().filter_map(crate_of) {
            *self.0.entry(name.to_owned()).or_default() += 1;
        }
    }

    /// The most frequent first.
    fn line(&self) -> Option<String> {
        let mut counts: Vec<(&String, &u64)> = self.0.iter().collect();
        counts.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
        let counts: Vec<String> = counts
            .iter()
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        (!counts.is_empty()).then(|| format!("compiled: {}", counts.join(", ")))
    }
}

/// The crate in a line like `   Compiling onefold-store v0.1.0 (/path)`, with or without colours. Only crates of a
/// workspace have a path.
fn crate_of(line: &str) -> Option<&str> {
    let (before, after) = VERBS.iter().find_map(|verb| line.split_once(verb))?;
    // The word may stand between escape sequences, which begin and end like this.
    let before = before.trim();
    let is_status = before.is_empty() || before.starts_with('\u{1b}') && before.ends_with('m');
    let mut words = after.trim_start_matches("\u{1b}[0m").split_whitespace();
    let (name, version, path) = (words.next()?, words.next()?, words.next()?);
    (is_status && version.starts_with('v') && path.starts_with("(/")).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_of_the_workspace_are_counted_in_cargos_output() {
        let mut counts = Counts::default();
        assert_eq!(counts.line(), None);
        counts.add(
            "   Compiling libc v0.2.191\n   Compiling onefold-store v0.1.0 (/a/crates/store)\n    \
             Checking onefold-index v0.1.0 (/a/crates/index)\n Documenting onefold-nbd v0.1.0 (/x)\n",
        );
        counts.add("test a ... ok\n   Compiling onefold-store v0.1.0 (/a/crates/store)\n");
        counts.add("    Finished `test` profile [optimized] target(s) in 1s\n");
        let expected = "compiled: onefold-store 2, onefold-index 1";
        assert_eq!(counts.line().as_deref(), Some(expected));
    }

    #[test]
    fn colours_and_other_texts_do_not_matter() {
        let coloured = "\u{1b}[1m\u{1b}[92m   Compiling\u{1b}[0m onefold v0.1.0 (/a/onefold)";
        assert_eq!(crate_of(coloured), Some("onefold"));
        for other in [
            "Compiling",
            "error: Compiling onefold v0.1.0 (/x)",
            "   Compiling serde v1.0.228",
            "   Compiling onefold without a version (/x)",
        ] {
            assert_eq!(crate_of(other), None, "{other}");
        }
    }
}
