//! Several hosts share a pool: real stores in a simulated cluster, on one thread, so that a seed replays.
//!
//! Hosts die, lose power, are cut off, freeze and wake; calls to shards are lost, late or doubled; groups and shards are
//! taken by other hosts. In the end all volumes have what was written, and the pool has exactly one block for each
//! content: see `oracle.rs`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is how a test fails")]

mod bad_blocks;
mod census;
mod conversion;
mod figures;
mod frozen;
mod guards;
mod model;
mod oracle;
mod scenarios;
mod script;
mod world;

use std::ops::Range;

use script::{Counts, counts_of};
use world::Origin;

/// Seeds of the ordinary run, of the one in which shards are lost, and of the one in which pools are converted, unless the environment says otherwise.
const SEEDS: u64 = 300;
const SEEDS_WITH_LOSSES: u64 = 100;
const SEEDS_OF_CONVERSIONS: u64 = 60;

#[test]
fn groups_share_what_they_have_in_common() {
    let (runs, counts) = run_all(SEEDS, |_| false, Origin::New);
    assert!(
        runs == 1 || counts.hits > runs && counts.checks > runs / 6,
        "hits or checks are rare"
    );
}

#[test]
fn an_index_that_is_lost_is_counted_again() {
    let (runs, counts) = run_all(SEEDS_WITH_LOSSES, |_| true, Origin::New);
    assert!(
        runs == 1 || counts.rebuilds > runs && counts.hits > runs / 2,
        "rebuilds or hits are rare"
    );
}

#[test]
fn a_pool_that_had_one_owner_becomes_a_group() {
    let loses_shards = |seed| seed % 2 == 0;
    let (runs, counts) = run_all(SEEDS_OF_CONVERSIONS, loses_shards, Origin::Converted);
    assert!(runs == 1 || counts.hits > runs, "hits are rare");
}

#[test]
fn what_a_lost_index_answered_is_decided() {
    for events in [
        scenarios::aliased_by_a_lost_index,
        scenarios::released_by_a_lost_index,
        scenarios::freed_by_a_lost_index,
    ] {
        let reached = (0..20).filter(|seed| {
            let reached = events(*seed);
            reached.unwrap_or_else(|violation| panic!("seed {seed}: {violation}"))
        });
        assert!(reached.count() > 2, "a loss of answers is rare");
    }
}

/// The seeds that the environment says, or this many.
fn chosen(seeds: u64) -> Range<u64> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let (base, runs) = match number("ONEFOLD_SIM_SEED") {
        Some(seed) => (seed, 1),
        None => (
            number("ONEFOLD_SIM_BASE").unwrap_or(0),
            number("ONEFOLD_SIM_RUNS").unwrap_or(seeds),
        ),
    };
    base..base + runs
}

/// Runs the seeds that the environment says, or this many, and returns how many.
fn run_all(seeds: u64, loses_shards: fn(u64) -> bool, origin: Origin) -> (u64, Counts) {
    let seeds = chosen(seeds);
    let runs = seeds.end - seeds.start;
    let mut all = Counts::default();
    for seed in seeds {
        match counts_of(seed, loses_shards(seed), origin) {
            Ok(Counts {
                hits,
                checks,
                rebuilds,
                given_back,
            }) => {
                all.hits += hits;
                all.checks += checks;
                all.rebuilds += rebuilds;
                all.given_back += given_back;
            }
            Err(violation) => panic!("seed {seed}: {violation}"),
        }
    }
    println!("{runs} seeds: {all:?}");
    (runs, all)
}

#[test]
fn writes_wait_for_a_cluster_that_is_late_and_then_succeed() {
    for seed in 0..20 {
        let ended = scenarios::filled_while_the_cluster_is_late(seed);
        ended.unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
    }
}
