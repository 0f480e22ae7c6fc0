//! The text of a distribution: what is written is read, and what is wrong is named.

#![allow(clippy::unwrap_used, reason = "how tests fail")]

use onefold_study::{Distribution, RunClass, shipped_distributions};
use proptest::prelude::*;

const SMALL: &str = "onefold distribution 1
# twelve blocks, three of them duplicates
block 4096

copies 1 7
copies 2 1
copies 3 1
runs unique 1 1 1
runs unique 4 1 6
runs redundant 1 5 5
";

#[test]
fn what_is_written_is_read() {
    let small = Distribution::parse(SMALL).unwrap();
    assert_eq!((small.blocks(), small.contents()), (12, 9));
    assert_eq!(small.unique_blocks(), 7);
    assert_eq!(small.runs(RunClass::Unique)[2].chunks, 6);
    let canonical = SMALL
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let canonical: String = canonical.map(|line| format!("{line}\n")).collect();
    assert_eq!(small.to_string(), canonical);
    assert_eq!(Distribution::parse(&canonical), Ok(small));
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    for (line, from, to, words) in [
        (1, "distribution 1", "distribution 2", "first line"),
        (3, "block 4096", "block 1000", "1000 bytes"),
        (3, "block 4096", "block 4K", "'4K' is not a number"),
        (3, "block 4096", "block 33554432", "33554432 bytes"),
        (4, "\n\n", "\nblock 512\n", "before"),
        (5, "copies 1 7", "copies 0 7", "ascend"),
        (5, "copies 1 7", "copies 1", "'copies' with 1 fields"),
        (5, "copies 1 7", "copy 1 7", "'copy' with 2 fields"),
        (5, "copies 1 7", "copies 1 +7", "'+7' is not a number"),
        (5, "copies 1 7", "copies 1 0", "at least one"),
        (6, "copies 2 1", "copies 1 1", "ascend"),
        (6, "copies 2 1", "copies 2 18446744073709551615", "2^48"),
        (6, "copies 2 1", "copies 2 281474976710656", "2^48"),
        (8, "unique 1 1 1", "single 1 1 1", "'single' runs"),
        (8, "unique 1 1 1", "unique 1 1 2", "from 1 to 1"),
        (8, "unique 1 1 1", "unique 3 1 3", "power of two"),
        (8, "unique 1 1 1", "unique 0 1 0", "power of two"),
        (9, "unique 4 1 6", "unique 1 1 1", "ascend"),
        (9, "unique 4 1 6", "unique 4 1 8", "from 4 to 7"),
        (9, "unique 4 1 6", "unique 4 0 0", "from 4 to 7"),
        (
            10,
            "redundant 1 5 5",
            "redundant 1 4 4",
            "4 blocks together, and the copies 5",
        ),
        (
            10,
            "unique 4 1 6",
            "unique 4 1 5",
            "6 blocks together, and the copies 7",
        ),
        (
            10,
            "redundant 1 5 5",
            "redundant 1 6 6",
            "6 blocks together, and the copies 5",
        ),
    ] {
        let text = SMALL.replacen(from, to, 1);
        assert_ne!(text, SMALL, "{from}");
        let error = Distribution::parse(&text).unwrap_err();
        assert_eq!(error.line, line, "{to}: {error}");
        assert!(error.to_string().contains(words), "{to}: {error}");
    }
    for (text, words) in [
        ("", "size of blocks"),
        ("onefold distribution 1", "size of blocks"),
        ("onefold distribution 1\nblock 512", "no line has copies"),
        (
            "onefold distribution 1\nblock 512\ncopies 1 1",
            "0 blocks together",
        ),
    ] {
        let error = Distribution::parse(text).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}

/// Lines that are nearly right.
fn line() -> impl Strategy<Value = String> {
    let number = prop_oneof![
        (0..70_u64).prop_map(|n| n.to_string()),
        (0..64_u32).prop_map(|power| (1_u64 << power).to_string()),
        any::<u64>().prop_map(|n| n.to_string()),
        "[-+a-z0-9. ]{0,5}",
    ];
    let word = prop_oneof![
        Just("block"),
        Just("copies"),
        Just("runs unique"),
        Just("runs redundant"),
        Just("runs"),
        Just("#"),
        Just("")
    ];
    (word, prop::collection::vec(number, 0..4))
        .prop_map(|(word, numbers)| format!("{word} {}", numbers.join(" ")))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn nothing_makes_it_panic(lines in prop::collection::vec(line(), 0..8), noise in any::<Vec<u8>>()) {
        let _ = Distribution::parse(&String::from_utf8_lossy(&noise));
        let text = format!("onefold distribution 1\n{}", lines.join("\n"));
        if let Ok(found) = Distribution::parse(&text) {
            prop_assert_eq!(Distribution::parse(&found.to_string()), Ok(found));
        }
    }
}

fn shipped(name: &str) -> Distribution {
    let mut all = shipped_distributions().into_iter();
    let (_, text) = all.find(|(known, _)| *known == name).unwrap();
    Distribution::parse(text).unwrap()
}

/// Different contents that occur more often than once.
fn duplicated(distribution: &Distribution) -> u64 {
    distribution.contents() - distribution.unique_blocks()
}

#[test]
fn paulo09_has_the_figures_of_its_table() {
    let found = shipped("paulo09");
    assert_eq!(found.block_bytes(), 4096);
    assert_eq!(found.blocks(), 29_530_586);
    assert_eq!(found.unique_blocks(), 22_610_369);
    assert_eq!(found.contents(), 24_449_410);
    let to_eliminate = found.blocks() - found.contents();
    assert_eq!(to_eliminate, 5_081_176);
    let per_duplicated = to_eliminate as f64 / duplicated(&found) as f64;
    assert_eq!(format!("{per_duplicated:.2}"), "2.76");
    let most = found.copies().last().unwrap();
    assert_eq!((most.copies, most.contents), (225_165 + 1, 1));
    for class in [RunClass::Unique, RunClass::Redundant] {
        let runs: u64 = found.runs(class).iter().map(|count| count.runs).sum();
        assert_eq!(runs, 536_418);
    }
}

#[test]
fn dedis_has_a_quarter_of_duplicates_in_about_a_terabyte_and_a_half() {
    let found = shipped("dedis");
    assert_eq!(found.blocks() * 4096, 3 << 39);
    assert_eq!(found.blocks() - found.contents(), found.blocks() / 4);
    let per_duplicated = (found.blocks() / 4) as f64 / duplicated(&found) as f64;
    assert_eq!(format!("{per_duplicated:.2}"), "2.76", "as Paulo09 has it");
}

#[test]
fn guests_has_what_was_measured() {
    let found = shipped("guests");
    assert_eq!(found.blocks(), 1_885_298);
    assert_eq!(found.contents(), 923_332);
    assert_eq!(found.unique_blocks(), 630_997);
    assert_eq!(found.copies().last().unwrap().copies, 567);
    let runs = [RunClass::Unique, RunClass::Redundant].map(|class| {
        found
            .runs(class)
            .iter()
            .map(|count| count.runs)
            .sum::<u64>()
    });
    assert_eq!(runs, [25_621, 25_623]);
}
