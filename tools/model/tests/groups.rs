//! Groups that share a pool: the protocol holds in every configuration, and every guard is needed.
//!
//! `cargo test --release -p onefold-model -- share` runs only these tests, and the model of `backup share`.

use onefold_model::groups::report::{self, Options, Report};

fn search(name: &str, options: Options<'_>) -> Report {
    report::report(name, options).unwrap_or_else(|| panic!("{name} has no search with {options:?}"))
}

/// Searches the configurations that `wanted` picks to the end of their budgets.
fn assert_holds(wanted: fn(&str) -> bool) {
    for name in report::configs().into_iter().filter(|name| wanted(name)) {
        let found = search(name, Options::default());
        println!("{name}: {} states, depth {}", found.states, found.depth);
        let steps = found.steps.join("\n");
        assert_eq!(found.broken, None, "{name}: after\n{steps}");
        let missed = found.missed;
        assert!(missed.is_empty(), "{name}: the search never {missed:?}");
    }
}

fn is_rebuilt(name: &str) -> bool {
    name.contains("rebuild")
}

#[test]
fn share_holds_for_hits_batches_and_extents() {
    assert_holds(|name| !is_rebuilt(name));
}

#[test]
fn share_holds_when_a_shard_is_lost() {
    assert_holds(is_rebuilt);
}

/// Switches off, one at a time, the guards that matter in the configurations that `wanted` picks.
fn assert_needed(wanted: fn(&str) -> bool) {
    let mut idle = Vec::new();
    for guard in report::guards() {
        if !wanted(guard.config) {
            continue;
        }
        let options = Options {
            off: Some(guard.name),
            ..Options::default()
        };
        let found = search(guard.config, options);
        match found.broken {
            Some(broken) => println!(
                "{} off, {}: {broken} in {} steps ({} states)\n  {}",
                guard.name,
                guard.config,
                found.steps.len(),
                found.states,
                found.steps.join("\n  ")
            ),
            None => idle.push(format!("{} in {}", guard.name, guard.config)),
        }
    }
    assert!(idle.is_empty(), "nothing goes wrong without {idle:#?}");
}

#[test]
fn every_share_guard_is_needed() {
    assert_needed(|config| !is_rebuilt(config));
}

#[test]
fn every_share_guard_of_a_rebuild_is_needed() {
    assert_needed(is_rebuilt);
}

#[test]
fn the_document_names_every_share_guard_and_configuration() {
    let document = include_str!("../../../docs/model.md");
    let guards = report::guards().into_iter().map(|guard| guard.name);
    let names = guards.chain(report::configs());
    let missing: Vec<_> = names
        .filter(|name| !document.contains(&format!("| `{name}` |")))
        .collect();
    assert!(
        missing.is_empty(),
        "docs/model.md does not name {missing:?}"
    );
}
