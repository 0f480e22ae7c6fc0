//! Short times as people write them: `2ms`, `500us`, `1s`.

use std::time::Duration;

/// The units, each with its nanoseconds.
const UNITS: [(&str, u64); 4] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
];

/// The time that `text` stands for, above 0, or what is wrong with it.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let unusable = || format!("'{text}' is not a time; write for example 500us, 2ms or 1s");
    let digits_end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, suffix) = text.split_at(digits_end);
    let unit = UNITS.iter().find(|(name, _)| *name == suffix);
    let (_, unit_nanoseconds) = unit.ok_or_else(unusable)?;
    let number: u64 = digits.parse().map_err(|_| unusable())?;
    let nanoseconds = number
        .checked_mul(*unit_nanoseconds)
        .ok_or_else(|| format!("'{text}' is longer than any time that can be handled"))?;
    if nanoseconds == 0 {
        return Err("the time must be above 0".to_owned());
    }
    Ok(Duration::from_nanos(nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_understood() {
        assert_eq!(parse("7ns"), Ok(Duration::from_nanos(7)));
        assert_eq!(parse("500us"), Ok(Duration::from_micros(500)));
        assert_eq!(parse("2ms"), Ok(Duration::from_millis(2)));
        assert_eq!(parse("10s"), Ok(Duration::from_secs(10)));
    }

    #[test]
    fn nonsense_is_refused_with_the_text_in_the_message() {
        for text in [
            "",
            "2",
            "ms",
            "-2ms",
            "1.5ms",
            "2 ms",
            "2m",
            "18446744073709551616s",
            "18446744073s0",
            "18446744074s",
        ] {
            let message = parse(text).expect_err(text);
            assert!(message.contains(&format!("'{text}'")), "{message}");
        }
        assert!(parse("0ms").is_err());
    }
}
