//! Amounts of data as people read them.

/// Letters of binary units and their powers of 1024, largest first, so that the first that fits is taken.
pub const SIZE_UNITS: [(char, u32); 6] =
    [('E', 6), ('P', 5), ('T', 4), ('G', 3), ('M', 2), ('K', 1)];

/// `bytes` with at most one decimal and a binary unit, for people; never parsed again.
#[must_use]
pub fn display_bytes(bytes: u64) -> String {
    let mut units = SIZE_UNITS
        .iter()
        .map(|(letter, power)| (letter, 1024u64.pow(*power)));
    let Some((letter, unit)) = units.find(|(_, unit)| bytes >= *unit) else {
        return format!("{bytes} B");
    };
    // Only people read this, so the rounding of f64 beyond 2^53 does no harm.
    let number = format!("{:.1}", bytes as f64 / unit as f64);
    format!("{} {letter}iB", number.trim_end_matches(".0"))
}
