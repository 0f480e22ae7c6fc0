//! The real store on a simulated machine that loses power, tears writes and fails.
//!
//! ```text
//! cargo test --profile simulation -p onefold-store --features simulation --test simulation
//! ONEFOLD_SIM_SEED=n      only seed n, with a trace of its requests
//! ONEFOLD_SIM_RUNS=n      n seeds
//! ONEFOLD_SIM_BASE=n      seeds from n + 1 on; the run of a seed does not depend on it
//! ```
//!
//! | file | content |
//! | --- | --- |
//! | `../common/` | pools, contents and checks, as all tests of the store have them |
//! | `model.rs` | the possible contents of the volumes |
//! | `world.rs` | the store on a simulated machine, and its model |
//! | `world/volumes.rs` `world/catalogue.rs` | requests, made to the store and to the model |
//! | `sharing.rs` | finder, collector and index, and their required results |
//! | `changes.rs` | the changes between snapshots |
//! | `crash.rs` | crash, recovery, comparison |
//! | `session.rs` | runs drawn from a seed |
//! | `session/options.rs` `session/requests.rs` | options and requests, drawn from a seed |
//! | `session/interruptions.rs` | requests in the middle of an I/O |
//! | `script.rs` | one script, stopped at each of its I/Os |
//! | `guards.rs` | the loss without each guard, and the guards' table |
//! | `guards/writes.rs` `guards/sizes.rs` | cases for the guards of blocks, and of new sizes |
//! | `guards/log.rs` `guards/lost_writes.rs` | cases for the guards of commits, and of failed syncs |
//! | `guards/sharing.rs` | cases for the guards of finder, collector and index |
//! | `interleaved.rs` | rare sequences of events, one by one |
//! | `takeover.rs` | owners of a pool in a cluster that die, and operations that arrive later |
//! | `closing.rs` | sessions that were closed, and that were not |
//! | `open_batches.rs` | batches of finder and collector that stay half done |
//! | `failures.rs` | I/Os that fail while the machine continues |
//! | `full.rs` | pools filled to the last block |
//! | `space_limits.rs` | quotas and reservations, and other volumes' writes |
//! | `damage.rs` | bytes that decayed, parts that are gone, newer versions |
//! | `index_damage.rs` | an index that decayed, is gone, or disagrees with the maps |
//! | `index_room.rs` | a host that has no room for the index for a while |
//! | `index_rows.rs` | the index, changed behind the store's back |
//! | `inline.rs` | hits in line, one by one |
//! | `repair.rs` | `check --repair` |
//! | `export.rs` | all metadata in one file, and pools made from it |
//! | `rig.rs` `scrub.rs` `scrub_guards.rs` | blocks that decay, are found, and are repaired |
//! | `coverage.rs` | events that must have happened in them |

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "how tests fail")]

mod changes;
mod closing;
#[allow(dead_code, unused_imports, reason = "the binary `store` uses the rest")]
#[path = "../common/mod.rs"]
mod common;
mod coverage;
mod crash;
mod damage;
mod export;
mod failures;
mod full;
mod guards;
mod index_damage;
mod index_room;
mod index_rows;
mod inline;
mod interleaved;
mod model;
mod open_batches;
mod panics;
mod random;
mod repair;
mod rig;
mod script;
mod scrub;
mod scrub_guards;
mod session;
mod sharing;
mod space_limits;
mod takeover;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use onefold_store::{Guard, Scarcity};

use coverage::Coverage;
use model::Violation;
use random::Random;
use world::World;

/// The least average number of recoveries of a seed.
const RECOVERIES_PER_RUN: u64 = 4;

const THREADS: u64 = 2;

/// The command that replays a seed, behind the variable with the seed.
const REPLAY: &str = "cargo test --profile simulation -p onefold-store --features simulation \
                      --test simulation -- --nocapture";

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().expect("a number"))
}

/// The kind of storage under the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Storage {
    /// A machine that loses power, and processes that die.
    Machine,
    /// A cluster: owners die, and the same host or another one takes the pool.
    Cluster,
}

impl Storage {
    /// Seeds of an ordinary run, enough for every event that is counted. Other commits try other ones.
    fn runs(self) -> u64 {
        match self {
            Storage::Machine => 2_200,
            Storage::Cluster => 800,
        }
    }

    /// The test that runs its seeds.
    fn test(self) -> &'static str {
        match self {
            Storage::Machine => "seeded_runs_on_a_machine",
            Storage::Cluster => "seeded_runs_in_a_cluster",
        }
    }

    /// Events that cannot happen there, or are too rare to be demanded of an ordinary run.
    fn excludes(self) -> &'static [&'static str] {
        match self {
            Storage::Machine => &["objects_with_late", "landed_late"],
            // Answered writes are durable there.
            Storage::Cluster => &[
                "syncs_doubted",
                "losses_found",
                "losses_told",
                "lost_blocks",
                "crashes_in_rebuild",
            ],
        }
    }
}

/// Runs one seed from beginning to end; a panic is a violation as well.
fn run_seed(storage: Storage, seed: u64, trace: bool) -> Result<Coverage, Violation> {
    let run = || {
        let mut random = Random::new(seed);
        let options = session::options(&mut random);
        let scarcity = session::scarcity(&mut random, options.index);
        scarcity.set();
        let world = match storage {
            Storage::Machine => World::new(seed, &options),
            Storage::Cluster => {
                let object_bytes = session::object_bytes(&mut random);
                let is_fenced = Guard::FencedBeforeTaken.holds();
                World::in_cluster(seed, &options, object_bytes, is_fenced)
            }
        };
        world.state().trace = trace;
        world.state().scarcity = scarcity;
        session::run(&world)?;
        let coverage = world.state().coverage.clone();
        Ok(coverage)
    };
    let ended = catch_unwind(AssertUnwindSafe(run));
    Scarcity::default().set();
    ended.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(Violation(format!("panic: {}", text.unwrap_or_default())))
    })
}

#[test]
fn seeded_runs_on_a_machine() {
    seeded_runs(Storage::Machine);
}

#[test]
fn seeded_runs_in_a_cluster() {
    seeded_runs(Storage::Cluster);
}

fn seeded_runs(storage: Storage) {
    if let Some(seed) = number("ONEFOLD_SIM_SEED") {
        let coverage =
            run_seed(storage, seed, true).unwrap_or_else(|violation| panic!("{violation}"));
        println!("{coverage:#?}");
        return;
    }
    let runs = number("ONEFOLD_SIM_RUNS").unwrap_or(storage.runs());
    let base = number("ONEFOLD_SIM_BASE").unwrap_or(0);
    let last = base.checked_add(runs).expect("no more seeds than numbers");
    let started = Instant::now();
    let next = Arc::new(AtomicU64::new(base + 1));
    let total = Arc::new(Mutex::new((Coverage::default(), Vec::new())));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (next, total) = (Arc::clone(&next), Arc::clone(&total));
            std::thread::spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed > last || total.lock().unwrap().1.len() >= 5 {
                        return;
                    }
                    let outcome = run_seed(storage, seed, false);
                    let mut total = total.lock().unwrap();
                    match outcome {
                        Ok(coverage) => total.0.add(&coverage),
                        Err(violation) => total.1.push((seed, violation)),
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let (coverage, violations) = &*total.lock().unwrap();
    println!(
        "{storage:?}: seeds {} to {last} in {:.1?}: {coverage:#?}",
        base + 1,
        started.elapsed()
    );
    for (seed, violation) in violations {
        println!("seed {seed}: {violation}");
        println!(
            "replay it with: ONEFOLD_SIM_SEED={seed} {REPLAY} {}",
            storage.test()
        );
    }
    assert!(violations.is_empty(), "violations were found");
    if runs >= storage.runs() {
        for (name, count) in coverage.counts() {
            let is_possible = !storage.excludes().contains(&name);
            assert!(count > 0 || !is_possible, "no run had any {name}");
        }
        let recoveries = coverage.recoveries;
        assert!(recoveries >= runs * RECOVERIES_PER_RUN, "{recoveries}");
    }
}
