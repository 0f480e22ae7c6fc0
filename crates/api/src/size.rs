//! Sizes as people read and write them.

use onefold_store::display_bytes;

pub use onefold_store::parse_bytes as parse;

/// Help text for commands that take sizes.
pub const HELP: &str = "Sizes are bytes, or numbers such as 1.5 with a unit: \
     K, M, G, T or KiB, MiB, ... are powers of 1024, KB, MB, GB, TB powers of 1000.";

/// Formats `bytes` with at most one decimal and a binary unit, for people; the result is never parsed.
#[must_use]
pub fn display(bytes: u64) -> String {
    display_bytes(bytes)
}

/// Formats a change of size, such as `from 1 GiB to 2 GiB`; in bytes if both would look the same.
#[must_use]
pub fn change(from_bytes: u64, to_bytes: u64) -> String {
    match (display(from_bytes), display(to_bytes)) {
        (from, to) if from == to => format!("from {from_bytes} B to {to_bytes} B"),
        (from, to) => format!("from {from} to {to}"),
    }
}

/// Formats a number and its noun, such as `1 block` or `2 blocks`.
#[must_use]
pub fn count(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_see_short_sizes() {
        assert_eq!(display(0), "0 B");
        assert_eq!(display(1023), "1023 B");
        assert_eq!(display(4096), "4 KiB");
        assert_eq!(display(4097), "4 KiB");
        assert_eq!(display(20 << 30), "20 GiB");
        assert_eq!(display((3 << 30) + (1 << 29)), "3.5 GiB");
        assert_eq!(display(u64::MAX), "16 EiB");
    }

    #[test]
    fn a_change_can_be_seen() {
        assert_eq!(change(1 << 30, 2 << 30), "from 1 GiB to 2 GiB");
        let (a, b) = (1 << 30, (1 << 30) + 4096);
        assert_eq!(change(a, b), "from 1073741824 B to 1073745920 B");
    }

    #[test]
    fn one_has_no_plural() {
        assert_eq!(count(0, "block"), "0 blocks");
        assert_eq!(count(1, "block"), "1 block");
        assert_eq!(count(2, "block"), "2 blocks");
    }
}
