//! Load: the contents dealt, their addresses, the bytes of a block, and that every fault is
//! detected.

#![allow(clippy::unwrap_used, reason = "how tests fail")]

mod addresses;
mod content;
mod dealing;
mod running;

/// Chi-square of counts against their expected values, with one degree of freedom fewer than there are
/// counts, as the number of standard deviations from its mean (Wilson and Hilferty 1931).
fn deviation(counts: &[u64], expected: impl Fn(usize) -> f64) -> f64 {
    let terms = counts.iter().enumerate().map(|(n, count)| {
        let expected = expected(n);
        (*count as f64 - expected).powi(2) / expected
    });
    let freedom = (counts.len() - 1) as f64;
    let spread = 2.0 / (9.0 * freedom);
    ((terms.sum::<f64>() / freedom).cbrt() - (1.0 - spread)) / spread.sqrt()
}

/// Seeds are fixed, so a test that passes once passes always; one in thousands of seeds would fail.
const DEVIATION_MAX: f64 = 3.5;

#[test]
fn the_statistic_tells_chance_from_pattern() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut counts = [0; 100];
    (0..10_000).for_each(|_| counts[random.usize(..100)] += 1);
    assert!(deviation(&counts, |_| 100.0).abs() < DEVIATION_MAX);
    counts[7] += 100;
    assert!(
        deviation(&counts, |_| 100.0) > DEVIATION_MAX,
        "one of a hundred is off"
    );
    assert!(
        deviation(&[100; 100], |_| 100.0) < -DEVIATION_MAX,
        "too even to be drawn"
    );
}
