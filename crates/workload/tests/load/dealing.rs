//! A dealer deals exactly the distribution that was requested, in a random order.

use super::{DEVIATION_MAX, deviation};
use onefold_analyze::RunClass;
use onefold_workload::{ContentId, Dealer, Permutation, Scaled, Share, UNIQUE};
use onefold_workload::{CopyCount, Distribution, shipped_distributions};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};

/// As many runs of both classes, of several lengths.
const EVEN: &str = "onefold distribution 1
block 4096
copies 1 7000
copies 2 900
copies 3 200
copies 10 60
runs unique 1 300 300
runs unique 2 200 500
runs unique 4 200 1200
runs unique 16 250 5000
runs redundant 1 200 200
runs redundant 2 590 1600
runs redundant 4 100 400
runs redundant 8 60 800
";

const WHOLE: Share = Share { index: 0, count: 1 };

fn even() -> Distribution {
    Distribution::parse(EVEN).unwrap()
}

/// The next `blocks` contents of a dealer.
fn dealt(dealer: &Dealer, blocks: u64) -> Vec<ContentId> {
    let mut all = Vec::new();
    while (all.len() as u64) < blocks {
        let mut run = dealer.deal(blocks - all.len() as u64);
        assert!(run.blocks() > 0);
        while let Some(id) = run.take_first() {
            all.push(id);
        }
    }
    all
}

/// How many contents occur how often.
fn copies(ids: &[ContentId]) -> Vec<CopyCount> {
    let mut counts: HashMap<ContentId, u64> = HashMap::new();
    ids.iter()
        .for_each(|id| *counts.entry(*id).or_default() += 1);
    let mut copies: BTreeMap<u64, u64> = BTreeMap::new();
    counts
        .values()
        .for_each(|count| *copies.entry(*count).or_default() += 1);
    let copies = copies.into_iter();
    copies
        .map(|(copies, contents)| CopyCount { copies, contents })
        .collect()
}

/// Lengths of runs of one class, and how many there are of each.
fn runs(ids: &[ContentId], class: RunClass) -> BTreeMap<usize, u64> {
    let mut runs = BTreeMap::new();
    let is_redundant = |id: &ContentId| id & UNIQUE == 0;
    for run in ids.chunk_by(|a, b| is_redundant(a) == is_redundant(b)) {
        if is_redundant(&run[0]) == (class == RunClass::Redundant) {
            *runs.entry(run.len()).or_default() += 1;
        }
    }
    runs
}

#[test]
fn every_content_is_dealt_as_often_as_it_is_to_occur() {
    for (seed, blocks) in [
        (1, 10_000),
        (2, 10_000),
        (3, 20_000),
        (4, 5000),
        (5, 777),
        (6, 1),
    ] {
        let scaled = Scaled::new(&even(), blocks);
        let ids = dealt(&Dealer::new(&scaled, WHOLE, seed), blocks);
        assert_eq!(copies(&ids), scaled.copies(), "{blocks} blocks");
        let all: u64 = scaled
            .copies()
            .iter()
            .map(|count| count.copies * count.contents)
            .sum();
        assert_eq!(all, blocks);
    }
    let same = Scaled::new(&even(), 10_000);
    assert_eq!(same.copies(), even().copies());
    let twice = Scaled::new(&even(), 20_000).copies();
    let doubled = even().copies().to_vec().into_iter().map(|count| CopyCount {
        contents: count.contents * 2,
        ..count
    });
    assert!(twice.into_iter().eq(doubled));
}

#[test]
fn runs_have_the_lengths_that_were_asked_for() {
    let scaled = Scaled::new(&even(), 10_000);
    let ids = dealt(&Dealer::new(&scaled, WHOLE, 7), 10_000);
    // Of each class the mean of each power of two, as whole numbers next to it.
    let unique = BTreeMap::from([(1, 300), (2, 100), (3, 100), (6, 200), (20, 250)]);
    assert_eq!(runs(&ids, RunClass::Unique), unique);
    let redundant = BTreeMap::from([(1, 200), (2, 170), (3, 420), (4, 100), (13, 40), (14, 20)]);
    assert_eq!(runs(&ids, RunClass::Redundant), redundant);
}

/// Wherever the numbers let them, runs are such that all of their contents occur together again.
#[test]
fn most_redundant_runs_occur_as_a_whole() {
    let scaled = Scaled::new(&even(), 100_000);
    let ids = dealt(&Dealer::new(&scaled, WHOLE, 12), 100_000);
    let is_redundant = |id: &ContentId| id & UNIQUE == 0;
    let runs = ids.chunk_by(|a, b| is_redundant(a) == is_redundant(b));
    let mut counts: HashMap<&[ContentId], u64> = HashMap::new();
    for run in runs.filter(|run| is_redundant(&run[0])) {
        *counts.entry(run).or_default() += 1;
    }
    let all: u64 = counts.values().sum();
    let again: u64 = counts.values().filter(|count| **count > 1).sum();
    assert_eq!(all, 9500);
    assert!(again > all * 8 / 10, "{again} of {all}");
}

/// How well the shipped distributions can be dealt in targets of 4 MiB to 1.1 GiB: for each power of
/// two, the number of runs dealt against the number requested.
#[test]
fn shipped_distributions_are_dealt_with_their_runs() {
    let sizes = [1024, 16_384, 300_000];
    let shipped = shipped_distributions().into_iter();
    for ((name, text), blocks) in shipped.flat_map(|named| sizes.map(|blocks| (named, blocks))) {
        let distribution = Distribution::parse(text).unwrap();
        let scaled = Scaled::new(&distribution, blocks);
        let ids = dealt(&Dealer::new(&scaled, WHOLE, 8), blocks);
        assert_eq!(copies(&ids), scaled.copies(), "{name}");
        let saved = |all: u64, different: u64| 1.0 - different as f64 / all as f64;
        let asked = saved(distribution.blocks(), distribution.contents());
        let off = saved(blocks, scaled.contents()) - asked;
        assert!(off.abs() < 0.003, "{name}: {off} more than {asked}");
        for class in [RunClass::Unique, RunClass::Redundant] {
            let found = runs(&ids, class);
            for (power, asked) in distribution.runs(class).iter().enumerate() {
                let lengths = 1_usize << power..2 << power;
                let found: u64 = found.range(lengths.clone()).map(|(_, runs)| runs).sum();
                let asked = asked.runs as f64 * blocks as f64 / distribution.blocks() as f64;
                let off = (found as f64 - asked).abs();
                assert!(
                    off <= 2.0 + asked / 50.0,
                    "{name}, {blocks} blocks: {found} {class:?} runs of {lengths:?}, {asked} asked"
                );
            }
        }
    }
}

#[test]
fn another_epoch_has_the_same_redundant_contents_and_new_unique_ones() {
    let scaled = Scaled::new(&even(), 3000);
    let dealer = Dealer::new(&scaled, WHOLE, 9);
    let (first, second) = (dealt(&dealer, 3000), dealt(&dealer, 3000));
    let both: Vec<_> = first.iter().chain(&second).copied().collect();
    let doubled = scaled.copies().into_iter().map(|count| match count.copies {
        1 => CopyCount {
            contents: count.contents * 2,
            ..count
        },
        _ => CopyCount {
            copies: count.copies * 2,
            ..count
        },
    });
    assert!(copies(&both).into_iter().eq(doubled));
    assert_ne!(first, second);
}

#[test]
fn shares_together_have_the_distribution_and_no_unique_content_in_common() {
    let scaled = Scaled::new(&even(), 30_000);
    let share = |index| dealt(&Dealer::new(&scaled, Share { index, count: 3 }, 10), 10_000);
    let shares = [share(0), share(1), share(2)];
    assert_eq!(copies(&shares.concat()), scaled.copies());
    let redundant = |ids: &[ContentId]| {
        let ids = ids.iter().filter(|id| **id & UNIQUE == 0);
        ids.copied().collect::<std::collections::HashSet<_>>()
    };
    let common = redundant(&shares[0])
        .intersection(&redundant(&shares[1]))
        .count();
    assert!(common > 500, "{common}");
}

/// Whichever job gets the next runs, they have no neighbour of their own class.
#[test]
fn jobs_that_take_turns_get_runs_of_the_lengths_that_were_asked_for() {
    let distribution = even();
    let scaled = Scaled::new(&distribution, 100_000);
    let dealer = Dealer::new(&scaled, WHOLE, 13);
    let mut random = fastrand::Rng::with_seed(2);
    let mut jobs = vec![Vec::new(); 4];
    let mut left = 100_000;
    while left > 0 {
        let mut run = dealer.deal(left);
        left -= run.blocks();
        let job: &mut Vec<ContentId> = random.choice(&mut jobs).unwrap();
        while let Some(id) = run.take_first() {
            job.push(id);
        }
    }
    let count = |class| {
        jobs.iter()
            .flat_map(|ids| runs(ids, class).into_values())
            .sum::<u64>()
    };
    assert_eq!(count(RunClass::Redundant), 9500);
    assert_eq!(count(RunClass::Unique), 9500);
}

#[test]
fn jobs_that_take_turns_get_everything_once() {
    let scaled = Scaled::new(&even(), 10_000);
    let dealer = Dealer::new(&scaled, WHOLE, 11);
    let mut random = fastrand::Rng::with_seed(1);
    let mut left = [2000_u64, 5000, 3000];
    let mut all = Vec::new();
    while left.iter().any(|left| *left > 0) {
        let job = random.usize(..3);
        if left[job] > 0 {
            let mut run = dealer.deal(left[job]);
            left[job] -= run.blocks();
            while let Some(id) = run.take_first() {
                all.push(id);
            }
        }
    }
    assert_eq!(copies(&all), scaled.copies());
}

#[test]
fn the_order_of_dealing_is_random() {
    for seed in 0..8 {
        let scaled = Scaled::new(&even(), 100_000);
        let ids = dealt(&Dealer::new(&scaled, WHOLE, seed), 100_000);
        // Contents in ten copies, by where they are: as many in each of a hundred parts.
        let first = scaled
            .copies()
            .iter()
            .take(2)
            .map(|count| count.contents)
            .sum::<u64>();
        assert!(first > 0);
        let mut counts: HashMap<ContentId, u64> = HashMap::new();
        ids.iter()
            .for_each(|id| *counts.entry(*id).or_default() += 1);
        let mut places = vec![0; 50];
        // Compare one pair per run, because the contents of a run stay together.
        for (at, pair) in ids.windows(2).enumerate() {
            if counts[&pair[1]] == 10 && counts[&pair[0]] != 10 {
                places[at * 50 / ids.len()] += 1;
            }
        }
        let mean = places.iter().sum::<u64>() as f64 / 50.0;
        assert!(mean > 10.0, "{mean}");
        let off = deviation(&places, |_| mean);
        assert!(off < DEVIATION_MAX, "seed {seed}: {off}");
    }
}

#[test]
fn a_permutation_is_a_random_bijection() {
    for bound in [1, 2, 3, 5, 64, 100, 1000, 4097] {
        let permutation = Permutation::new(bound, 3);
        let mut seen: Vec<u64> = (0..bound).map(|at| permutation.at(at)).collect();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..bound), "{bound}");
    }
    // Where the first place goes, and the second relative to it, over many seeds.
    let bound = 100;
    let (mut first, mut distance) = (vec![0; 100], vec![0; 99]);
    for seed in 0..20_000 {
        let permutation = Permutation::new(bound, seed);
        let (one, two) = (permutation.at(0), permutation.at(1));
        first[one as usize] += 1;
        distance[((two + bound - one) % bound - 1) as usize] += 1;
    }
    assert!(deviation(&first, |_| 200.0).abs() < DEVIATION_MAX);
    assert!(deviation(&distance, |_| 20_000.0 / 99.0).abs() < DEVIATION_MAX);
    // Neighbours within one order, by where they are in a square of ten times ten parts.
    for seed in 0..20 {
        let permutation = Permutation::new(100_000, seed);
        let mut pairs = vec![0; 100];
        for at in 0..50_000 {
            let part = |at| (permutation.at(at) / 10_000) as usize;
            pairs[part(2 * at) * 10 + part(2 * at + 1)] += 1;
        }
        let off = deviation(&pairs, |_| 500.0);
        assert!(off.abs() < DEVIATION_MAX, "seed {seed}: {off}");
    }
}

/// Any distribution: contents by copies, and runs of any lengths that have as many blocks.
fn distribution() -> impl Strategy<Value = Distribution> {
    let copies = prop::collection::btree_map(1..300_u64, 1..200_u64, 1..8);
    (copies, 1..40_u64, 1..40_u64).prop_map(|(copies, unique, redundant)| {
        let mut text = "onefold distribution 1\nblock 512\n".to_owned();
        let mut blocks = [0, 0];
        for (copies, contents) in copies {
            text.push_str(&format!("copies {copies} {contents}\n"));
            blocks[usize::from(copies > 1)] += copies * contents;
        }
        for ((class, blocks), length) in ["unique", "redundant"]
            .iter()
            .zip(blocks)
            .zip([unique, redundant])
        {
            // Runs of one length, and one run of the remaining blocks.
            let mut by_power = BTreeMap::new();
            let mut add = |length: u64, runs: u64| {
                if length > 0 && runs > 0 {
                    let sums = by_power.entry(length.ilog2()).or_insert((0, 0));
                    *sums = (sums.0 + runs, sums.1 + runs * length);
                }
            };
            add(length, blocks / length);
            add(blocks % length, 1);
            for (power, (runs, blocks)) in by_power {
                text.push_str(&format!("runs {class} {} {runs} {blocks}\n", 1 << power));
            }
        }
        Distribution::parse(&text).unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_distribution_is_dealt_exactly(
        distribution in distribution(), blocks in 1..3000_u64, seed: u64, count in 1..4_u64,
    ) {
        let scaled = Scaled::new(&distribution, blocks * count);
        let share = |index| dealt(&Dealer::new(&scaled, Share { index, count }, seed), blocks);
        let ids: Vec<_> = (0..count).flat_map(share).collect();
        prop_assert_eq!(copies(&ids), scaled.copies());
        let class = |id: &ContentId| id & UNIQUE == 0;
        let mut counts: HashMap<ContentId, u64> = HashMap::new();
        ids.iter().for_each(|id| *counts.entry(*id).or_default() += 1);
        prop_assert!(counts.iter().all(|(id, count)| class(id) == (*count > 1)));
    }

    #[test]
    fn scaling_to_the_same_size_changes_no_copies(distribution in distribution()) {
        let same = Scaled::new(&distribution, distribution.blocks());
        prop_assert_eq!(same.copies(), distribution.copies());
    }
}
