//! Hand-written synchronisation under shuttle: the engine's own files, compiled against primitives that
//! try one interleaving after another.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../src/embedded/dirty.rs"]
mod dirty;
#[path = "../src/embedded/handoff.rs"]
mod handoff;

/// Stands in for the engine's module of this name.
mod sync {
    pub(super) use shuttle::sync::Mutex;
    pub(super) use shuttle::sync::MutexGuard;
    pub(super) use shuttle::sync::atomic::{AtomicU64, Ordering};

    pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap()
    }
}

use dirty::Dirty;
use handoff::Handoff;
use shuttle::sync::{Condvar, Mutex};
use shuttle::thread;
use std::sync::Arc;

const ITERATIONS: usize = 3000;

#[test]
fn every_mark_is_taken_and_nothing_else() {
    let scenario = || {
        // Two marks in one word, set twice; one in another word.
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

/// The alarm that wakes the taker: it counts, as an eventfd does.
#[derive(Default)]
struct Alarm {
    rung: Mutex<u64>,
    changed: Condvar,
}

impl Alarm {
    fn ring(&self) {
        *self.rung.lock().unwrap() += 1;
        self.changed.notify_all();
    }

    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while *rung == 0 {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung = 0;
    }
}

/// Shuttle itself fails if the taker sleeps for ever.
#[test]
fn everything_that_is_handed_over_is_taken() {
    let scenario = || {
        let shared: Arc<(Handoff<u32>, Alarm)> = Arc::new((Handoff::new(), Alarm::default()));
        let taking = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (handoff, alarm) = &*shared;
                let mut taken = Vec::new();
                while !handoff.take_before_sleep(&mut taken) {
                    alarm.wait();
                    handoff.awake();
                }
                taken
            })
        };
        let putting = [[1, 2], [3, 4]].map(|numbers| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (handoff, alarm) = &*shared;
                for number in numbers {
                    handoff.put(number);
                    if number % 2 == 0 && handoff.is_taker_to_wake() {
                        alarm.ring();
                    }
                }
            })
        });
        for thread in putting {
            thread.join().unwrap();
        }
        let (handoff, alarm) = &*shared;
        handoff.close();
        if handoff.is_taker_to_wake() {
            alarm.ring();
        }
        let mut taken = taking.join().unwrap();
        taken.sort_unstable();
        assert_eq!(taken, [1, 2, 3, 4]);
    };
    shuttle::check_random(scenario, ITERATIONS);
    shuttle::check_pct(scenario, ITERATIONS, 3);
}
