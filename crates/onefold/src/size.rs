//! Sizes as people write them: `4K`, `20G`, `1T`, or plain bytes.
//!
//! Units are powers of 1024, in either case, and an `iB` or `B` after the letter is accepted.

/// The units, largest first, so that printing can take the first that fits.
const UNITS: [(char, u32); 6] = [
    ('E', 60),
    ('P', 50),
    ('T', 40),
    ('G', 30),
    ('M', 20),
    ('K', 10),
];

/// Bytes that `text` stands for, or what is wrong with it.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let unusable = || format!("'{text}' is not a size; write bytes, or for example 4K, 20G or 1T");
    let digits_end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, suffix) = text.split_at(digits_end);
    if digits.is_empty() {
        return Err(unusable());
    }
    let mut letters = suffix.chars().map(|c| c.to_ascii_uppercase());
    let shift = match letters.next() {
        None => 0,
        Some('B') if suffix.len() == 1 => 0,
        Some(unit) => {
            let rest: String = letters.collect();
            if !matches!(rest.as_str(), "" | "B" | "IB") {
                return Err(unusable());
            }
            let known = UNITS.iter().find(|(letter, _)| *letter == unit);
            known.ok_or_else(unusable)?.1
        }
    };
    let too_large = || format!("'{text}' is larger than any size that can be handled");
    let number: u64 = digits.parse().map_err(|_| too_large())?;
    number.checked_mul(1 << shift).ok_or_else(too_large)
}

/// `bytes` with at most one decimal and a binary unit, for people; never parsed again.
pub(crate) fn display(bytes: u64) -> String {
    let Some((letter, shift)) = UNITS.iter().find(|(_, shift)| bytes >> shift > 0) else {
        return format!("{bytes} B");
    };
    let unit = 1u64 << shift;
    if bytes.is_multiple_of(unit) {
        return format!("{} {letter}iB", bytes >> shift);
    }
    // Only people read this, so the rounding of f64 beyond 2^53 does no harm.
    format!("{:.1} {letter}iB", bytes as f64 / unit as f64)
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
            ("4KB", 4096),
            ("20G", 20 << 30),
            ("1T", 1 << 40),
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
            "1.5G",
            "4X",
            "4KK",
            "4 K",
            "16E",
            "18446744073709551616",
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
        assert_eq!(display(20 << 30), "20 GiB");
        assert_eq!(display((3 << 30) + (1 << 29)), "3.5 GiB");
        assert_eq!(display(u64::MAX), "16.0 EiB");
    }
}
