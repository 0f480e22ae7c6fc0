//! Sizes as people write them: `4K`, `1.5G`, `20GiB`, `500GB`, or plain bytes.
//!
//! A letter alone, or with `iB`, is a power of 1024: `4K` is `4KiB`, as QEMU has it. With `B` alone it is a
//! power of 1000, as disks are sold. Either case is accepted.

use onefold_store::{SIZE_UNITS, display_bytes};

/// The most digits that are read after the decimal point; a size with more is a typing error.
const DECIMALS_MAX: usize = 9;

/// Help text for commands that take sizes.
pub const HELP: &str = "Sizes are bytes, or numbers such as 1.5 with a unit: \
     K, M, G, T or KiB, MiB, ... are powers of 1024, KB, MB, GB, TB powers of 1000.";

/// Parses a size into bytes. A fraction of a byte is rounded up.
///
/// # Errors
/// The fault of the text.
pub fn parse(text: &str) -> Result<u64, String> {
    let unusable =
        || format!("'{text}' is not a size; write bytes, or for example 4K, 1.5G or 20GB");
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let number_end = text.find(|c| !is_number(c)).unwrap_or(text.len());
    let (number, unit) = text.split_at(number_end);
    let unit = unit_bytes(unit).ok_or_else(unusable)?;
    let (whole, decimals) = match number.split_once('.') {
        None => (number, ""),
        // A fraction of a byte is meaningless.
        Some(_) if unit == 1 => return Err(unusable()),
        Some((whole, decimals)) if (1..=DECIMALS_MAX).contains(&decimals.len()) => {
            (whole, decimals)
        }
        Some(_) => return Err(unusable()),
    };
    if whole.is_empty() || decimals.contains('.') {
        return Err(unusable());
    }
    let too_large = || format!("'{text}' is larger than any size that can be handled");
    let digits: u128 = format!("{whole}{decimals}")
        .parse()
        .map_err(|_| too_large())?;
    let parts = 10u128.pow(decimals.len() as u32);
    let bytes = digits
        .checked_mul(unit.into())
        .ok_or_else(too_large)?
        .div_ceil(parts);
    u64::try_from(bytes).map_err(|_| too_large())
}

/// The bytes of a unit such as `K`, `KiB` or `KB`; `None` if `unit` is not one.
fn unit_bytes(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_uppercase();
    let Some(letter) = unit.chars().next().filter(|_| unit != "B") else {
        return Some(1);
    };
    let (_, power) = SIZE_UNITS.iter().find(|(known, _)| *known == letter)?;
    match unit.get(1..)? {
        "" | "IB" => Some(1024u64.pow(*power)),
        "B" => Some(1000u64.pow(*power)),
        _ => None,
    }
}

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
    fn every_spelling_is_understood() {
        let cases = [
            ("0", 0),
            ("4096", 4096),
            ("512B", 512),
            ("4K", 4096),
            ("4k", 4096),
            ("4KiB", 4096),
            ("4KB", 4000),
            ("4kb", 4000),
            ("20G", 20 << 30),
            ("20GB", 20_000_000_000),
            ("1T", 1 << 40),
            ("1.5G", 3 << 29),
            ("1.5GB", 1_500_000_000),
            ("0.001K", 2),
            ("1.000000001G", (1 << 30) + 2),
            ("15E", 15 << 60),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_the_text_in_the_message() {
        for text in [
            "",
            "G",
            "-1",
            "1.5",
            "1.5B",
            ".5G",
            "1.G",
            "1.5.5G",
            "1.0000000001G",
            "4X",
            "4KK",
            "4 K",
            "4Ki",
            "16E",
            "15.9999999999E",
            "18446744073709551616",
            "340282366920938463463374607431768211456",
            "٣",
        ] {
            let message = parse(text).expect_err(text);
            assert!(message.contains(&format!("'{text}'")), "{message}");
        }
    }

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
