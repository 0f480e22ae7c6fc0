//! Each rule between groups is necessary: without it the simulation finds a loss.

use std::panic::{AssertUnwindSafe, catch_unwind};

use onefold_store::Guard;

use crate::bad_blocks;
use crate::scenarios::{released_by_a_dying_host, released_while_read};
use crate::script::run;
use crate::world::Step;

/// A rule, events in which it matters, and the seeds within which these find a loss without it.
type Rule = (Guard, fn(u64) -> Step, u64);

const RULES: [Rule; 11] = [
    (
        Guard::ReadersDrainedBeforeRelease,
        released_while_read,
        SEEDS,
    ),
    (Guard::RecallBeforeRepeat, released_by_a_dying_host, SEEDS),
    (Guard::NumberKeptByShard, run, SEEDS),
    (Guard::HeldBeforeAnswered, run, SEEDS),
    (Guard::HeldNotFreed, run, SEEDS),
    (Guard::HoldersListed, run, SEEDS),
    (Guard::OwingFreesNothing, run, SEEDS),
    (Guard::HoldsEndAfterCount, run, SEEDS),
    (Guard::ExtentNumberRecorded, run, SEEDS),
    (Guard::ExchangeDurableBeforeNext, run, SEEDS),
    (Guard::BadBlocksMarked, bad_blocks::met_again, SEEDS),
];

/// Seeds that are tried for each rule.
const SEEDS: u64 = 120;

#[test]
fn every_rule_is_needed() {
    let mut missed = Vec::new();
    for (guard, events, seeds) in RULES {
        let found = (0..seeds).find_map(|seed| {
            Guard::turn_off(Some(guard));
            let ended = catch_unwind(AssertUnwindSafe(|| events(seed)));
            Guard::turn_off(None);
            match ended {
                Ok(Ok(())) => None,
                Ok(Err(violation)) => Some((seed, violation)),
                Err(_) => Some((seed, "a panic".to_owned())),
            }
        });
        match found {
            Some((seed, violation)) => println!("{guard:?}: seed {seed} of {seeds}: {violation}"),
            None => missed.push(guard),
        }
    }
    assert!(missed.is_empty(), "nothing is lost without {missed:?}");
}

#[test]
fn with_all_rules_nothing_is_lost() {
    // The random events are those of `groups_share_what_they_have_in_common`.
    let stories: [fn(u64) -> Step; 3] = [
        released_while_read,
        released_by_a_dying_host,
        bad_blocks::met_again,
    ];
    for (n, events) in stories.iter().enumerate() {
        for seed in 0..SEEDS {
            let ended = events(seed);
            ended.unwrap_or_else(|violation| panic!("story {n}, seed {seed}: {violation}"));
        }
    }
}
