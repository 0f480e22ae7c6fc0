//! Work that no guest waits for, done by whoever the pool's user has set for it.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

use crate::sync::AtomicU64;

/// Runs work to its end and returns, once.
pub type Aside = fn(&mut (dyn FnMut() + Send));

/// Who does it, and how much of it is under way.
#[derive(Default)]
pub(crate) struct AsideWork {
    run: OnceLock<Aside>,
    under_way: AtomicU64,
}

impl AsideWork {
    /// Whoever is set first stays.
    pub(crate) fn set(&self, run: Aside) {
        let _ = self.run.set(run);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.run.get().is_some()
    }

    pub(crate) fn is_working(&self) -> bool {
        self.under_way.load(Relaxed) > 0
    }

    /// Does work that holds nothing that a guest could wait for: aside, or here where nobody is
    /// set for it.
    #[expect(
        clippy::expect_used,
        reason = "whoever is set runs its work, see `Aside`"
    )]
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let Some(run) = self.run.get() else {
            return work();
        };
        self.under_way.fetch_add(1, Relaxed);
        let _ended = Ended(&self.under_way);
        let (mut work, mut done) = (Some(work), None);
        run(&mut || {
            if let Some(work) = work.take() {
                done = Some(work());
            }
        });
        done.expect("work set aside was not run")
    }
}

/// Counts work as ended, even by a panic.
struct Ended<'a>(&'a AtomicU64);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::AsideWork;

    #[test]
    fn work_counts_for_as_long_as_it_is_under_way_even_if_it_panics() {
        let aside = AsideWork::default();
        assert!(!aside.run(|| aside.is_working()), "nobody is set");
        aside.set(|work| work());
        assert!(aside.run(|| aside.is_working()));
        assert!(!aside.is_working());
        let panicked = catch_unwind(AssertUnwindSafe(|| aside.run(|| panic!("broken work"))));
        assert!(panicked.is_err() && !aside.is_working());
    }
}
