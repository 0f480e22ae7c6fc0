//! The protocol holds in every configuration, and every guard is needed.

use onefold_model::configs;
use onefold_model::guards::{Guard, Guards};
use onefold_model::search::search;
use onefold_model::state::Config;
use onefold_model::{history, identity, popular, share};

fn config(name: &str) -> Config {
    configs::by_name(name).unwrap_or_else(|| panic!("there is no configuration {name}"))
}

/// Searches configurations to the end of their budgets.
fn assert_holds(names: &[&str]) {
    for name in names {
        let config = config(name);
        let found = search(&config, None);
        println!("{name}: {} states, depth {}", found.states, found.depth);
        if let Some((violation, steps)) = found.counterexample {
            panic!("{name}: {} after {steps:#?}", violation.name());
        }
        assert!(
            found.missed.is_empty(),
            "{name}: the search never {:?}",
            found.missed
        );
    }
}

const WRITES: &[&str] = &["write-path", "reads", "checkpoint"];
const FINDER: &[&str] = &[
    "finder",
    "finder-ahead",
    "finder-batch",
    "finder-verify",
    "finder-full",
    "replay",
];
const COLLECTOR: &[&str] = &["collector", "collector-batch", "reads-shared"];
const RECOVERY: &[&str] = &["recovery", "checkpoint-jobs"];
const REBUILD: &[&str] = &["memory-index", "memory-batch", "index-damage", "repair"];
const LAYERS: &[&str] = &[
    "snapshot",
    "snapshots",
    "snapshot-shared",
    "snapshot-memory",
    "clone",
    "clone-shared",
    "clone-reads",
];
const INLINE: &[&str] = &["inline", "inline-reuse", "inline-batch"];
const INLINE_REBUILD: &[&str] = &[
    "inline-rebuild",
    "inline-announced",
    "inline-repair",
    "inline-damage",
];
const INLINE_LAYERS: &[&str] = &["inline-snapshot", "inline-checkpoint"];

#[test]
fn holds_for_writes_reads_and_checkpoints() {
    assert_holds(WRITES);
}

#[test]
fn holds_for_the_finder() {
    assert_holds(FINDER);
}

#[test]
fn holds_for_the_collector() {
    assert_holds(COLLECTOR);
}

#[test]
fn holds_over_crashes_in_recovery() {
    assert_holds(RECOVERY);
}

#[test]
fn holds_when_the_index_is_lost_or_damaged() {
    assert_holds(REBUILD);
}

#[test]
fn holds_for_snapshots_clones_and_merges() {
    assert_holds(LAYERS);
}

/// `cargo test --release -p onefold-model -- inline` runs only the tests of in-line hits.
#[test]
fn inline_hits_hold_beside_finder_and_collector() {
    assert_holds(INLINE);
}

#[test]
fn inline_hits_hold_when_the_index_is_lost_or_damaged() {
    assert_holds(INLINE_REBUILD);
}

#[test]
fn inline_hits_hold_for_snapshots_and_checkpoints() {
    assert_holds(INLINE_LAYERS);
}

#[test]
fn every_configuration_is_searched() {
    let mut tested = [WRITES, FINDER, COLLECTOR, RECOVERY, REBUILD, LAYERS].concat();
    tested.extend([INLINE, INLINE_REBUILD, INLINE_LAYERS].concat());
    let mut all: Vec<_> = configs::all().iter().map(|config| config.name).collect();
    tested.sort_unstable();
    all.sort_unstable();
    assert_eq!(tested, all);
}

#[test]
fn every_guard_is_needed() {
    assert_needed(|config| !config.starts_with("inline"));
}

#[test]
fn every_inline_guard_is_needed() {
    assert_needed(|config| config.starts_with("inline"));
}

/// Switches off, one at a time, the guards that matter in the configurations that `wanted` picks.
fn assert_needed(wanted: fn(&str) -> bool) {
    let mut idle = Vec::new();
    for guard in Guard::ALL {
        let name = configs::where_it_matters(*guard);
        if !wanted(name) {
            continue;
        }
        let mut config = config(name);
        config.guards = Guards::without(*guard);
        let found = search(&config, None);
        match found.counterexample {
            Some((violation, steps)) => println!(
                "{} off, {name}: {} in {} steps ({} states)",
                guard.name(),
                violation.name(),
                steps.len(),
                found.states
            ),
            None => idle.push(format!(
                "{} in {name} ({} states)",
                guard.name(),
                found.states
            )),
        }
    }
    assert!(idle.is_empty(), "nothing goes wrong without {idle:#?}");
}

#[test]
fn the_document_names_every_guard_and_configuration() {
    let document = include_str!("../../../docs/model.md");
    let named = |name: &str| document.contains(&format!("`{name}`"));
    let guards = Guard::ALL.iter().map(|guard| guard.name());
    let configs: Vec<_> = configs::all().iter().map(|config| config.name).collect();
    let missing: Vec<_> = guards.chain(configs).filter(|name| !named(name)).collect();
    assert!(
        missing.is_empty(),
        "docs/model.md does not name {missing:?}"
    );
}

#[test]
fn the_document_names_every_guard_of_the_repository() {
    let document = include_str!("../../../docs/model.md");
    let rows: Vec<&str> = document
        .lines()
        .filter(|line| line.starts_with("| `"))
        .collect();
    let popular = popular::Guard::ALL.map(|guard| format!("{guard:?}"));
    let share = share::Guard::ALL.map(|guard| format!("{guard:?}"));
    let history = history::Guard::ALL.map(|guard| format!("{guard:?}"));
    let identity = identity::Guard::ALL.map(|guard| format!("{guard:?}"));
    for model in [&popular[..], &share, &history, &identity] {
        // Each model has one table, in this order.
        let is_table = |rows: &[&str]| {
            let mut both = rows.iter().zip(model);
            both.all(|(row, name)| row.starts_with(&format!("| `{name}` |")))
        };
        let mut tables = rows.windows(model.len());
        assert!(
            tables.any(is_table),
            "docs/model.md has no table of {model:?}"
        );
    }
}
