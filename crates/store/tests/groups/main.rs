//! Several hosts share a pool: real stores in a simulated cluster, on one thread, so that a seed replays.
//!
//! Hosts die, lose power, are cut off, freeze and wake; calls to shards are lost, late or doubled; groups and shards are
//! taken by other hosts. In the end all volumes have what was written, and the pool has exactly one block for each
//! content: see `oracle.rs`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is how a test fails")]

mod census;
mod figures;
mod guards;
mod model;
mod oracle;
mod scenarios;
mod script;
mod world;

use script::{counts_of, run};

/// Seeds of the ordinary run, unless the environment says otherwise.
const SEEDS: u64 = 300;

#[test]
fn groups_share_what_they_have_in_common() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    if let Some(seed) = number("ONEFOLD_SIM_SEED") {
        return run(seed).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
    }
    let (base, runs) = (
        number("ONEFOLD_SIM_BASE").unwrap_or(0),
        number("ONEFOLD_SIM_RUNS").unwrap_or(SEEDS),
    );
    let (mut hits, mut checks) = (0, 0);
    for seed in base..base + runs {
        match counts_of(seed) {
            Ok(more) => (hits, checks) = (hits + more.0, checks + more.1),
            Err(violation) => panic!("seed {seed}: {violation}"),
        }
    }
    println!("{hits} blocks were not written because of hits; {checks} checks of the pool ended");
    assert!(hits > runs && checks > runs / 6, "they are rare");
}

#[test]
fn writes_wait_for_a_cluster_that_is_late_and_then_succeed() {
    for seed in 0..20 {
        let ended = scenarios::filled_while_the_cluster_is_late(seed);
        ended.unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
    }
}
