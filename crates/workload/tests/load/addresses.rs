//! Where requests go: each pattern against its definition.

use super::{DEVIATION_MAX, deviation};
use onefold_workload::{Addresses, Pattern, nurand, nurand_a};
use proptest::prelude::*;

fn counts(pattern: Pattern, slots: u64, seed: u64, draws: u64) -> Vec<u64> {
    let mut addresses = Addresses::new(pattern, slots, seed);
    let mut counts = vec![0; slots as usize];
    (0..draws).for_each(|_| counts[addresses.next_slot() as usize] += 1);
    counts
}

#[test]
fn sequential_goes_round() {
    let mut addresses = Addresses::new(Pattern::Sequential, 3, 1);
    let slots: Vec<u64> = (0..7).map(|_| addresses.next_slot()).collect();
    assert_eq!(slots, [0, 1, 2, 0, 1, 2, 0]);
}

#[test]
fn uniform_prefers_nothing() {
    for seed in 0..8 {
        let counts = counts(Pattern::Uniform, 500, seed, 100_000);
        assert!(
            deviation(&counts, |_| 200.0).abs() < DEVIATION_MAX,
            "seed {seed}"
        );
    }
}

#[test]
fn nurand_has_the_frequencies_of_its_definition() {
    let (slots, a) = (300_u64, 63_u64);
    // Every pair that can be drawn, once; C only moves them round.
    let mut exact = vec![0_u64; slots as usize];
    for random_a in 0..=a {
        for random_xy in 0..slots {
            exact[nurand(random_a, random_xy, 0, 0..=slots - 1) as usize] += 1;
        }
    }
    let all = ((a + 1) * slots) as f64;
    for seed in 0..8 {
        let counts = counts(Pattern::NuRand { a: Some(a) }, slots, seed, 200_000);
        let off = |c: usize| {
            let moved = |n: usize| exact[(n + slots as usize - c) % slots as usize];
            // Slots that are never visited are joined to one that is.
            deviation(&counts, |n| 200_000.0 * (moved(n) as f64).max(0.5) / all)
        };
        let offs: Vec<f64> = (0..=a as usize).map(off).collect();
        let right = offs.iter().filter(|off| **off < DEVIATION_MAX).count();
        assert_eq!(right, 1, "seed {seed}: one C fits");
    }
    assert_eq!(
        [0, 7, 8, 15, 16, 100_000].map(nurand_a),
        [0, 0, 1, 1, 1, 8191]
    );
    assert_eq!(nurand_a(3000), 255);
}

#[test]
fn zipf_has_the_frequencies_of_its_definition() {
    for (seed, theta) in [(1, 0.99), (2, 0.5), (3, 1.0), (4, 1.5)] {
        let (slots, draws) = (200, 200_000_u64);
        let mut counts = counts(Pattern::Zipf { theta }, slots, seed, draws);
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let weight = |n: usize| ((n + 1) as f64).powf(-theta);
        let all: f64 = (0..slots as usize).map(weight).sum();
        // By powers of two, because sorting changes the order of those that are nearly as likely.
        let ranges: Vec<_> = (0..7)
            .map(|power| (1 << power) - 1..(2 << power) - 1)
            .collect();
        let joined: Vec<u64> = ranges
            .iter()
            .map(|range| counts[range.clone()].iter().sum())
            .collect();
        let expected = |n: usize| {
            let weights: f64 = ranges[n].clone().map(weight).sum();
            draws as f64 * weights / all
        };
        let off = deviation(&joined, expected);
        assert!(off < DEVIATION_MAX, "theta {theta}: {off} {joined:?}");
    }
}

#[test]
fn likely_slots_are_scattered() {
    let counts = counts(Pattern::Zipf { theta: 0.99 }, 1000, 5, 100_000);
    let mut likely: Vec<usize> = (0..1000).collect();
    likely.sort_unstable_by_key(|slot| std::cmp::Reverse(counts[*slot]));
    let near = likely[..20]
        .windows(2)
        .filter(|two| two[0].abs_diff(two[1]) < 10);
    assert!(near.count() < 4, "{:?}", &likely[..20]);
}

#[test]
fn patterns_are_understood() {
    for text in [
        "sequential",
        "uniform",
        "nurand",
        "nurand:255",
        "zipf:0.99",
        "zipf:1.2",
    ] {
        let pattern: Pattern = text.parse().unwrap();
        assert_eq!(pattern.to_string(), text);
    }
    for text in [
        "",
        "random",
        "uniform:1",
        "nurand:",
        "nurand:x",
        "zipf:0",
        "zipf:-1",
        "zipf:nan",
    ] {
        assert!(text.parse::<Pattern>().is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn nurand_is_what_tpc_c_defines(
        random_a: u64, xy: (u64, u64), part in 0.0..1.0_f64, c: u64,
    ) {
        let (x, y) = (xy.0.min(xy.1), xy.0.max(xy.1));
        let random_xy = x + ((y - x) as f64 * part) as u64;
        let random_xy = random_xy.clamp(x, y);
        let wide = |n: u64| u128::from(n);
        let or = wide(random_a) | wide(random_xy);
        let defined = (or + wide(c)) % (wide(y) - wide(x) + 1) + wide(x);
        prop_assert_eq!(wide(nurand(random_a, random_xy, c, x..=y)), defined);
    }

    #[test]
    fn every_pattern_stays_in_its_region_and_replays(
        slots in 1..5000_u64, seed: u64, a in 0..10_000_u64, theta in 0.1..3.0_f64,
    ) {
        for pattern in [
            Pattern::Uniform,
            Pattern::NuRand { a: None },
            Pattern::NuRand { a: Some(a) },
            Pattern::Zipf { theta },
        ] {
            let mut both = [(); 2].map(|()| Addresses::new(pattern, slots, seed));
            for _ in 0..50 {
                let [one, other] = both.each_mut().map(Addresses::next_slot);
                prop_assert!(one < slots);
                prop_assert_eq!(one, other);
            }
        }
    }
}
