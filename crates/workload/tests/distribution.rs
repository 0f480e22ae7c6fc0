//! The text of a distribution: it can be read again after it was written, and errors name the
//! fault.

#![allow(clippy::unwrap_used, reason = "how tests fail")]

use onefold_analyze::RunClass;
use onefold_workload::{CopyCount, Distribution, shipped_distributions};
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

#[test]
fn distributions_of_dedisbench_are_read() {
    let found = Distribution::parse("# any order\n5 10\n0 1000\n\n1 250\n7 0\n1 250").unwrap();
    assert_eq!(found.block_bytes(), 4096);
    let copies = [(1, 1000), (2, 500), (6, 10)];
    let copies = copies.map(|(copies, contents)| CopyCount { copies, contents });
    assert_eq!(found.copies(), copies);
    // As in a random order: as many runs of each class as there are places where it changes.
    for (class, blocks) in [(RunClass::Unique, 1000), (RunClass::Redundant, 1060)] {
        assert_eq!(run_count(&found, class), 1000 * 1060 / 2060);
        let in_runs: u64 = found.runs(class).iter().map(|count| count.chunks).sum();
        assert_eq!(in_runs, blocks);
    }
    let single = found.runs(RunClass::Unique)[0].runs;
    assert!((240..=290).contains(&single), "{single} of 514: about half");
    for (line, text, words) in [
        (2, "0 10\n1", "1 fields"),
        (1, "0 10 3", "3 fields"),
        (2, "# a\n3 x", "'x' is not a number"),
        (1, "1 -4", "'-4' is not a number"),
        (3, "0 1\n1 1\n18446744073709551615 1", "2^48"),
        (2, "0 281474976710655\n0 2", "2^48"),
        (1, "3 0", "no line has contents"),
    ] {
        let error = Distribution::parse(text).unwrap_err();
        assert_eq!(error.line, line, "{text}: {error}");
        assert!(error.to_string().contains(words), "{text}: {error}");
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

    /// The runs of a parsed DEDISbench file, too, can be written as a valid text.
    #[test]
    fn any_distribution_of_dedisbench_is_whole(
        counts in prop::collection::vec(
            (
                prop_oneof![0..4_u64, 0..1000_u64, 0..1_u64 << 30],
                prop_oneof![1..5_u64, 1..1000_u64, 1..1_u64 << 18],
            ),
            1..20,
        ),
    ) {
        let text: String = counts.iter().map(|(a, b)| format!("{a} {b}\n")).collect();
        if let Ok(found) = Distribution::parse(&text) {
            let blocks: u64 = counts.iter().map(|(duplicates, contents)| (duplicates + 1) * contents).sum();
            prop_assert_eq!(found.blocks(), blocks);
            prop_assert_eq!(Distribution::parse(&found.to_string()), Ok(found));
        }
    }

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

fn run_count(distribution: &Distribution, class: RunClass) -> u64 {
    let runs = distribution.runs(class).iter();
    runs.map(|count| count.runs).sum()
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
    // Four of the numbers of copies, as DEDISbench has them.
    for (copies, contents) in [(2, 1_144_196), (3, 221_686), (8, 18_587), (7173, 1)] {
        assert!(found.copies().contains(&CopyCount { copies, contents }));
    }
    for class in [RunClass::Unique, RunClass::Redundant] {
        assert_eq!(run_count(&found, class), 536_418);
    }
}

#[test]
fn dedis_has_what_was_published() {
    let found = shipped("dedis");
    assert_eq!(found.blocks(), 400_599_152);
    assert_eq!(found.unique_blocks(), 274_550_471);
    assert_eq!(found.blocks() - found.contents(), 100_199_335);
    let most = found.copies().last().unwrap();
    assert_eq!((most.copies, most.contents), (64_309_767 + 1, 1));
    let [unique, redundant] =
        [RunClass::Unique, RunClass::Redundant].map(|class| run_count(&found, class));
    assert_eq!((unique, redundant), (9_770_616, 9_770_616));
}

#[test]
fn guests_has_what_was_measured() {
    let found = shipped("guests");
    assert_eq!(found.blocks(), 1_885_298);
    assert_eq!(found.contents(), 923_332);
    assert_eq!(found.unique_blocks(), 630_997);
    assert_eq!(found.copies().last().unwrap().copies, 567);
    let runs = [RunClass::Unique, RunClass::Redundant].map(|class| run_count(&found, class));
    assert_eq!(runs, [25_621, 25_623]);
}
