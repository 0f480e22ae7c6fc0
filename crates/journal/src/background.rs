//! The hook that runs background work on an executor installed by the caller, and hurries it when a
//! caller waits for it.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use onefold_metadata::sync::{AtomicU64, Mutex, lock};

/// Runs background work. A function that runs its argument is one.
pub trait BackgroundExecutor: Send + Sync {
    /// Runs `work` to its end, once, and returns.
    fn run(&self, work: &mut (dyn FnMut() + Send));

    /// Switches hurrying on or off. While on, no work waits for an idle processor, including the work
    /// in progress. This must not wait for the work.
    fn set_hurried(&self, _is_hurried: bool) {}
}

impl<F: Fn(&mut (dyn FnMut() + Send)) + Send + Sync> BackgroundExecutor for F {
    fn run(&self, work: &mut (dyn FnMut() + Send)) {
        self(work);
    }
}

/// The executor, and the work in progress.
#[derive(Default)]
pub struct BackgroundWork {
    executor: OnceLock<Box<dyn BackgroundExecutor>>,
    under_way: AtomicU64,
    /// The number of [`Hurry`] values. Held while the executor is notified that it became or ceased to be
    /// zero. Lock order: last.
    hurrying: Mutex<u64>,
}

/// Hurries background work until it is dropped, while a caller waits for that work.
#[must_use]
pub struct Hurry(Arc<BackgroundWork>);

impl Drop for Hurry {
    fn drop(&mut self) {
        let mut hurrying = lock(&self.0.hurrying);
        *hurrying -= 1;
        if *hurrying == 0 {
            self.0.set_hurried(false);
        }
    }
}

impl BackgroundWork {
    /// Installs the executor. Only the first call has an effect.
    pub fn set(&self, executor: Box<dyn BackgroundExecutor>) {
        let hurrying = lock(&self.hurrying);
        if self.executor.set(executor).is_ok() && *hurrying > 0 {
            self.set_hurried(true);
        }
    }

    /// Whether an executor is installed.
    pub(super) fn is_set(&self) -> bool {
        self.executor.get().is_some()
    }

    /// Whether background work is in progress.
    pub fn is_working(&self) -> bool {
        self.under_way.load(Relaxed) > 0
    }

    /// Hurries the work in progress, and all work that begins while the result exists.
    pub fn hurry(self: &Arc<Self>) -> Hurry {
        let mut hurrying = lock(&self.hurrying);
        *hurrying += 1;
        if *hurrying == 1 {
            self.set_hurried(true);
        }
        Hurry(Arc::clone(self))
    }

    /// Switches hurrying. The caller holds `hurrying`.
    fn set_hurried(&self, is_hurried: bool) {
        if let Some(executor) = self.executor.get() {
            executor.set_hurried(is_hurried);
        }
    }

    /// Runs work that holds nothing a guest could wait for: on the background executor, or here if
    /// none is installed.
    #[expect(
        clippy::expect_used,
        reason = "the executor that is set runs its work, see `BackgroundExecutor`"
    )]
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let Some(executor) = self.executor.get() else {
            return work();
        };
        self.under_way.fetch_add(1, Relaxed);
        let _ended = Ended(&self.under_way);
        let (mut work, mut done) = (Some(work), None);
        executor.run(&mut || {
            if let Some(work) = work.take() {
                done = Some(work());
            }
        });
        done.expect("the background executor has not run its work")
    }
}

/// Counts work as ended when dropped, even by a panic.
struct Ended<'a>(&'a AtomicU64);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::{Arc, Mutex};

    use onefold_metadata::sync::lock;

    use super::{BackgroundExecutor, BackgroundWork};

    #[test]
    fn work_counts_for_as_long_as_it_is_under_way_even_if_it_panics() {
        let background = BackgroundWork::default();
        assert!(!background.run(|| background.is_working()), "nobody is set");
        background.set(Box::new(|work: &mut (dyn FnMut() + Send)| work()));
        assert!(background.run(|| background.is_working()));
        assert!(!background.is_working());
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            background.run(|| panic!("broken work"))
        }));
        assert!(panicked.is_err() && !background.is_working());
    }

    /// An executor that records each change of urgency.
    struct Noting(Arc<Mutex<Vec<bool>>>);

    impl BackgroundExecutor for Noting {
        fn run(&self, work: &mut (dyn FnMut() + Send)) {
            work();
        }

        fn set_hurried(&self, is_hurried: bool) {
            lock(&self.0).push(is_hurried);
        }
    }

    #[test]
    fn work_is_hurried_from_the_first_who_waits_to_the_last() {
        let (background, told) = (Arc::new(BackgroundWork::default()), Arc::default());
        let early = background.hurry();
        background.set(Box::new(Noting(Arc::clone(&told))));
        let late = background.hurry();
        drop(early);
        assert_eq!(*lock(&told), [true]);
        drop(late);
        drop(background.hurry());
        assert_eq!(*lock(&told), [true, false, true, false]);
    }
}
