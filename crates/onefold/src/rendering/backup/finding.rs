//! Renders damage of a repository.

use std::fmt;

use onefold_api::size;
use onefold_backup::{AffectedRun, Finding, NeededBy};

/// Damage of a repository in words, on one line.
pub(crate) struct InWords<'a, T>(pub(crate) &'a T);

impl fmt::Display for InWords<'_, Finding> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.needed_by.iter();
        let names = names.map(|backup| InWords(backup).to_string());
        let names: Vec<_> = names.collect();
        if names.is_empty() {
            f.write_str(&self.0.message)
        } else {
            write!(f, "{}; needed by {}", self.0.message, names.join(", "))
        }
    }
}

impl fmt::Display for InWords<'_, AffectedRun> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.blocks {
            1 => write!(f, "{}", self.0.first_block),
            blocks => write!(
                f,
                "{}-{}",
                self.0.first_block,
                self.0.first_block + blocks - 1
            ),
        }
    }
}

impl fmt::Display for InWords<'_, NeededBy> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.name)?;
        if self.0.places.is_empty() {
            return Ok(());
        }
        let places = self.0.places.iter();
        let places: Vec<_> = places.map(|run| InWords(run).to_string()).collect();
        let named: u64 = self.0.places.iter().map(|place| place.blocks).sum();
        let more = if named < self.0.blocks { ", ..." } else { "" };
        write!(
            f,
            " ({} at {}{more})",
            size::count(self.0.blocks, "block"),
            places.join(", ")
        )
    }
}
