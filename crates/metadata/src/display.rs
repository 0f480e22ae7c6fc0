//! Amounts of data as people read and write them: `4K`, `1.5G`, `20GiB`, `500GB`, or plain bytes.
//!
//! A letter alone, or with `iB`, is a power of 1024: `4K` is `4KiB`, as QEMU has it. With `B` alone it is a
//! power of 1000, as disks are sold. Either case is accepted.

/// Unit letters and their powers of 1024 or 1000, the largest first, so that the first that fits is taken.
const UNITS: [(char, u32); 6] = [('E', 6), ('P', 5), ('T', 4), ('G', 3), ('M', 2), ('K', 1)];

/// The most digits that are read after the decimal point; a size with more is a typing error.
const DECIMALS_MAX: usize = 9;

/// `bytes` with at most one decimal and a binary unit, for people; never parsed again.
#[must_use]
pub fn display_bytes(bytes: u64) -> String {
    let mut units = UNITS
        .iter()
        .map(|(letter, power)| (letter, 1024u64.pow(*power)));
    let Some((letter, unit)) = units.find(|(_, unit)| bytes >= *unit) else {
        return format!("{bytes} B");
    };
    // Only people read this, so the rounding of f64 beyond 2^53 does no harm.
    let number = format!("{:.1}", bytes as f64 / unit as f64);
    format!("{} {letter}iB", number.trim_end_matches(".0"))
}

/// Parses a size into bytes. A fraction of a byte is rounded up.
///
/// # Errors
///
/// The fault of the text.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
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
    let (_, power) = UNITS.iter().find(|(known, _)| *known == letter)?;
    match unit.get(1..)? {
        "" | "IB" => Some(1024u64.pow(*power)),
        "B" => Some(1000u64.pow(*power)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::parse_bytes as parse;

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
}
