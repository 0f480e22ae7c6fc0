//! Hook that runs background work on an executor that the caller installs.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

use onefold_metadata::sync::AtomicU64;

/// Runs work to its end and returns, once.
pub type BackgroundExecutor = Box<dyn Fn(&mut (dyn FnMut() + Send)) + Send + Sync>;

/// The executor, and the work in progress.
#[derive(Default)]
pub struct BackgroundWork {
    run: OnceLock<BackgroundExecutor>,
    under_way: AtomicU64,
}

impl BackgroundWork {
    /// The first executor stays.
    pub fn set(&self, run: BackgroundExecutor) {
        let _ = self.run.set(run);
    }

    /// Whether there is an executor.
    pub(super) fn is_set(&self) -> bool {
        self.run.get().is_some()
    }

    /// Whether it has work now.
    pub fn is_working(&self) -> bool {
        self.under_way.load(Relaxed) > 0
    }

    /// Does work that holds nothing a guest could wait for: on the background executor, or here if
    /// none is installed.
    #[expect(
        clippy::expect_used,
        reason = "whoever is set runs its work, see `BackgroundExecutor`"
    )]
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
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
        done.expect("the background executor has not run its work")
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

    use super::BackgroundWork;

    #[test]
    fn work_counts_for_as_long_as_it_is_under_way_even_if_it_panics() {
        let background = BackgroundWork::default();
        assert!(!background.run(|| background.is_working()), "nobody is set");
        background.set(Box::new(|work| work()));
        assert!(background.run(|| background.is_working()));
        assert!(!background.is_working());
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            background.run(|| panic!("broken work"))
        }));
        assert!(panicked.is_err() && !background.is_working());
    }
}
