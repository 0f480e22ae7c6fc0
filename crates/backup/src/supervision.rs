//! What work on a repository tells its caller while it runs: notes, warnings and progress; and how the caller interrupts
//! it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::create::Report;
use crate::error::{BackupError, Result};

/// The unit in which progress is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressUnit {
    /// Bytes of data.
    Bytes,
    /// Steps of equal size, which mean nothing to the user.
    Steps,
}

/// Shows the progress of one stage: how much is done, and how much there is. Dropping it ends the stage.
pub type ShowProgress = Box<dyn Fn(u64, u64) + Send + Sync>;

/// Receives notes, warnings and progress. The library itself prints nothing.
pub trait Observer: Send + Sync {
    /// A remark that is not part of the result.
    fn note(&self, message: &dyn fmt::Display);

    /// A warning that the user must not miss.
    fn warn(&self, message: &dyn fmt::Display);

    /// Begins a stage, whose progress the caller may show.
    fn begin(&self, label: &str, unit: ProgressUnit) -> ShowProgress;
}

/// A stage of long work.
#[derive(Debug, Clone, Copy)]
pub struct Stage<'a> {
    /// The label of the stage for people.
    pub label: &'a str,
    /// The unit of its progress.
    pub unit: ProgressUnit,
    /// The state of the repository if the stage is interrupted, for the message.
    pub if_interrupted: &'a str,
}

/// The caller of a piece of work: who observes it, and whether it was interrupted.
#[derive(Clone)]
pub struct Supervision {
    observer: Arc<dyn Observer>,
    interrupted: Arc<AtomicBool>,
}

impl fmt::Debug for Supervision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Supervision");
        shown
            .field("interrupted", &self.interrupted)
            .finish_non_exhaustive()
    }
}

impl Supervision {
    /// The work ends soon after `interrupted` becomes true.
    pub fn new(observer: Arc<dyn Observer>, interrupted: Arc<AtomicBool>) -> Self {
        Self {
            observer,
            interrupted,
        }
    }

    /// Passes on a remark that is not part of the result.
    pub fn note(&self, message: impl fmt::Display) {
        self.observer.note(&message);
    }

    /// Passes on a warning that the user must not miss.
    pub fn warn(&self, message: impl fmt::Display) {
        self.observer.warn(&message);
    }

    /// Begins a stage, whose progress the caller may show.
    #[must_use]
    pub fn begin(&self, label: &str, unit: ProgressUnit) -> ShowProgress {
        self.observer.begin(label, unit)
    }

    /// Whether the user wants the work to end.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// The flag that becomes true when the user interrupts the work.
    #[must_use]
    pub fn interrupted(&self) -> &Arc<AtomicBool> {
        &self.interrupted
    }

    /// Fails after an interruption. `state` describes the repository's state then.
    ///
    /// # Errors
    /// If the user has interrupted the work.
    pub fn check(&self, state: &str) -> Result<()> {
        if self.is_interrupted() {
            Err(BackupError::Receiver(format!("interrupted; {state}")))
        } else {
            Ok(())
        }
    }

    /// Does a stage of the work, shows its progress, and stops it when the user interrupts.
    ///
    /// # Errors
    /// The errors of the work, and the interruption.
    pub fn stage<T>(
        &self,
        stage: Stage<'_>,
        work: impl FnOnce(Report<'_>) -> Result<T>,
    ) -> Result<T> {
        let show = self.begin(stage.label, stage.unit);
        work(&mut |done, all| {
            show(done, all);
            self.check(stage.if_interrupted)
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A caller that keeps the warnings.
    pub(crate) struct Heard {
        pub(crate) supervision: Supervision,
        observer: Arc<Ears>,
    }

    #[derive(Default)]
    struct Ears {
        warnings: Mutex<Vec<String>>,
    }

    pub(crate) fn heard() -> Heard {
        let observer = Arc::new(Ears::default());
        Heard {
            supervision: Supervision::new(observer.clone(), Arc::default()),
            observer,
        }
    }

    impl Heard {
        pub(crate) fn warnings(&self) -> Vec<String> {
            self.observer.warnings.lock().unwrap().clone()
        }
    }

    impl Observer for Ears {
        fn note(&self, _message: &dyn fmt::Display) {}

        fn warn(&self, message: &dyn fmt::Display) {
            self.warnings.lock().unwrap().push(message.to_string());
        }

        fn begin(&self, _label: &str, _unit: ProgressUnit) -> ShowProgress {
            Box::new(|_, _| ())
        }
    }

    #[test]
    fn an_interruption_ends_a_stage_with_the_state() {
        let heard = heard();
        let stage = Stage {
            label: "working",
            unit: ProgressUnit::Steps,
            if_interrupted: "nothing was changed",
        };
        let work = |report: Report<'_>| report(1, 2);
        assert!(heard.supervision.stage(stage, work).is_ok());
        heard
            .supervision
            .interrupted()
            .store(true, Ordering::Relaxed);
        let error = heard.supervision.stage(stage, work).unwrap_err();
        assert_eq!(error.to_string(), "interrupted; nothing was changed");
    }
}
