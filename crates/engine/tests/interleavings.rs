//! Hand-written synchronisation under shuttle: the engine's own file, compiled against atomics that
//! try one interleaving after another.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../src/embedded/dirty.rs"]
mod dirty;

/// Stands in for the engine's module of this name.
mod sync {
    pub(super) use shuttle::sync::atomic::{AtomicU64, Ordering};
}

use dirty::Dirty;
use shuttle::thread;
use std::sync::Arc;

const ITERATIONS: usize = 3000;

#[test]
fn every_mark_is_taken_and_nothing_else() {
    let scenario = || {
        // Two of them in one word, set twice; one in a word of its own.
        let dirty = Arc::new(Dirty::new(128));
        let marking = [[3, 64], [5, 3]].map(|numbers| {
            let dirty = Arc::clone(&dirty);
            thread::spawn(move || numbers.iter().for_each(|number| dirty.mark(*number)))
        });
        let mut taken = Vec::new();
        dirty.take(|number| taken.push(number));
        for thread in marking {
            thread.join().unwrap();
        }
        dirty.take(|number| taken.push(number));
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken, [3, 5, 64]);
        dirty.take(|number| panic!("{number} was taken before"));
    };
    shuttle::check_random(scenario, ITERATIONS);
    shuttle::check_pct(scenario, ITERATIONS, 3);
}
