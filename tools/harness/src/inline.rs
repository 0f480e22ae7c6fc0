//! Duplicates that writes find themselves, as users see and control them: `volume set --dedup` and the counts of
//! `volume stat`.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::server::Product;

/// When the duplicates among a volume's blocks are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// After the write, by the finder
    Offline,
    /// During the write
    Inline,
    /// During the write, while there are many
    Auto,
}

impl Mode {
    /// The value of `--dedup`.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Offline => "offline",
            Mode::Inline => "inline",
            Mode::Auto => "auto",
        }
    }
}

/// The results of the writes to a volume since the pool was opened, in blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Inline {
    /// All scanned blocks: the sum of the next five counts.
    pub scanned: u64,
    /// Blocks that are all zeros.
    pub zeros: u64,
    /// Blocks whose fingerprint had been found just before.
    pub recently_seen: u64,
    /// Blocks that the signatures of the index, which are in memory, exclude.
    pub absent_by_signature: u64,
    /// Blocks that are not among the rows of the index.
    pub absent: u64,
    /// Blocks that are among the rows of the index.
    pub found: u64,
    /// Blocks that were not written, because they were hits.
    pub hits: u64,
    /// Blocks that were looked up and written.
    pub misses: u64,
    /// Blocks that were found, and written all the same.
    pub refused: u64,
}

impl Inline {
    /// Parses the output of `volume stat`.
    fn of(stat: &Value) -> Result<Inline> {
        let inline = stat.get("inline").context("volume stat lacks inline")?;
        let number = |key: &str| {
            let number = inline.get(key).and_then(Value::as_u64);
            number.with_context(|| format!("volume stat lacks inline.{key}"))
        };
        let refused = inline.get("refused").and_then(Value::as_object);
        let refused = refused.context("volume stat lacks inline.refused")?;
        Ok(Inline {
            scanned: number("scanned_blocks")?,
            zeros: number("zero_blocks")?,
            recently_seen: number("recently_seen_blocks")?,
            absent_by_signature: number("absent_by_signature_blocks")?,
            absent: number("absent_blocks")?,
            found: number("found_blocks")?,
            hits: number("hit_blocks")?,
            misses: number("miss_blocks")?,
            refused: refused.values().filter_map(Value::as_u64).sum(),
        })
    }

    /// Combines each count with the other's by this function.
    fn with(self, other: Inline, each: fn(u64, u64) -> u64) -> Inline {
        Inline {
            scanned: each(self.scanned, other.scanned),
            zeros: each(self.zeros, other.zeros),
            recently_seen: each(self.recently_seen, other.recently_seen),
            absent_by_signature: each(self.absent_by_signature, other.absent_by_signature),
            absent: each(self.absent, other.absent),
            found: each(self.found, other.found),
            hits: each(self.hits, other.hits),
            misses: each(self.misses, other.misses),
            refused: each(self.refused, other.refused),
        }
    }

    /// The sum of both.
    pub fn plus(self, other: Inline) -> Inline {
        self.with(other, |one, other| one + other)
    }

    /// The counts since `earlier`.
    pub fn since(self, earlier: Inline) -> Inline {
        self.with(earlier, u64::saturating_sub)
    }
}

impl Product {
    /// The output of `volume stat`, as JSON.
    pub fn volume_stat(&self, volume: &str) -> Result<Value> {
        let text = self
            .command()
            .args(["--format", "json", "volume", "stat", volume])
            .read()?;
        serde_json::from_str(&text).context("volume stat did not print JSON")
    }

    /// The in-line counts of a volume.
    pub fn inline(&self, volume: &str) -> Result<Inline> {
        Inline::of(&self.volume_stat(volume)?).with_context(|| format!("volume {volume}"))
    }

    /// Switches the mode of a volume.
    pub fn set_mode(&self, volume: &str, mode: Mode) -> Result<()> {
        self.command()
            .args(["--quiet", "volume", "set", volume])
            .args(["--dedup", mode.name()])
            .run()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn stat() -> Value {
        json!({"inline": {"on": true, "scanned_blocks": 15, "zero_blocks": 1,
            "recently_seen_blocks": 2, "absent_by_signature_blocks": 3, "absent_blocks": 4,
            "found_blocks": 5, "hit_blocks": 6, "miss_blocks": 8,
            "refused": {"freed_blocks": 1, "bad_blocks": 2}, "last_switch": null}})
    }

    #[test]
    fn counts_are_those_of_volume_stat_and_reasons_are_added_up() {
        let inline = Inline::of(&stat()).unwrap();
        assert_eq!((inline.scanned, inline.zeros, inline.hits), (15, 1, 6));
        assert_eq!((inline.misses, inline.refused), (8, 3));
        assert_eq!(inline.plus(inline).since(inline), inline);
    }

    #[test]
    fn a_count_that_is_missing_is_an_error() {
        let mut stat = stat();
        stat["inline"]["hit_blocks"] = Value::Null;
        let error = Inline::of(&stat).unwrap_err();
        assert!(format!("{error:#}").contains("hit_blocks"), "{error:#}");
        assert!(Inline::of(&json!({})).is_err());
    }
}
