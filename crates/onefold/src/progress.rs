//! A progress bar on a terminal for long work. Elsewhere nothing is printed, except a line if the work seems
//! to wait for a pool's jobs.
//!
//! The bar never moves back. When work starts counting from zero again, that is its next step, with a bar of
//! its own. At the end of a step, while the rest cannot be counted, a spinner replaces the full bar.

use crate::output::Output;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use onefold_backup::{Observer, ProgressUnit, ShowProgress};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Template of a bar whose units are bytes; the rate is in MB/s, as for disks and networks.
const BYTES: &str =
    "{msg} [{wide_bar}] {bytes} of {total_bytes}, {decimal_bytes_per_sec}, {eta} left";

/// Template of a bar whose units mean nothing to the user.
const STEPS: &str = "{msg} [{wide_bar}] {percent} %, {eta} left";

const FINISHING: &str = "{msg}: finishing {spinner} {elapsed}";

/// Time without progress after which a line reports that work on a pool may be waiting. Most work makes
/// progress sooner.
const PATIENCE: Duration = Duration::from_millis(1500);

/// The interval at which the spinner turns.
const TURN: Duration = Duration::from_millis(250);

/// The progress of a long piece of work.
pub(crate) struct Progress {
    bar: ProgressBar,
    what: String,
    template: &'static str,
    shown: Mutex<Shown>,
    /// Set while work that may have to wait for a pool's jobs has made no progress.
    silence: Mutex<Option<Silence>>,
}

/// A timer: after [`PATIENCE`] a thread reports that nothing is done yet, unless this is dropped before.
struct Silence {
    _broken: Sender<()>,
}

impl Silence {
    fn begin(patience: Duration, say: impl FnOnce() + Send + 'static) -> Self {
        let (broken, breaks) = channel();
        // The work continues even if the thread cannot be started.
        let _ = thread::Builder::new().spawn(move || {
            if breaks.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                say();
            }
        });
        Self { _broken: broken }
    }
}

/// The state that the bar shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Shown {
    done: u64,
    all: u64,
    /// Steps that have been completed.
    steps: u32,
}

/// How the bar changes when more is done.
#[derive(Debug, PartialEq, Eq)]
enum Turn {
    Stay,
    Advance,
    NextStep,
    Finish,
}

impl Progress {
    /// Creates a bar that counts bytes, with rate and remaining time.
    pub(crate) fn bytes(output: &Output, what: &str) -> Self {
        Self::new(output, what, BYTES)
    }

    /// Creates a bar that counts steps of equal size.
    pub(crate) fn steps(output: &Output, what: &str) -> Self {
        Self::new(output, what, STEPS)
    }

    fn new(output: &Output, what: &str, template: &'static str) -> Self {
        let target = if output.shows_progress() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        bar.set_message(what.to_owned());
        let progress = Self {
            bar,
            what: what.to_owned(),
            template,
            shown: Mutex::default(),
            silence: Mutex::new(None),
        };
        progress.set_style(template);
        progress
    }

    /// Marks work that may have to wait for a pool's jobs: if nothing is done after [`PATIENCE`], a line says
    /// so.
    pub(crate) fn of_pool(self, output: &Output) -> Self {
        let (output, what) = (*output, self.what.clone());
        let silence = Silence::begin(PATIENCE, move || {
            output.note(format_args!(
                "{what}: nothing is done yet; it may be waiting for a job of the pool (`onefold job list`) \
                 or for another command"
            ));
        });
        *self.silence.lock().unwrap_or_else(PoisonError::into_inner) = Some(silence);
        self
    }

    fn set_style(&self, template: &str) {
        // The templates are constants of this file; if one is wrong, a plain bar is good enough.
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style.progress_chars("=> "));
        }
    }

    /// Reports that `done` of `all` units are finished.
    pub(crate) fn set(&self, done: u64, all: u64) {
        if done > 0 {
            let mut silence = self.silence.lock().unwrap_or_else(PoisonError::into_inner);
            drop(silence.take());
        }
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        match shown.turn(done, all) {
            Turn::Stay => return,
            Turn::Advance => {}
            Turn::NextStep => {
                let step = shown.steps + 1;
                self.bar.disable_steady_tick();
                self.bar.reset();
                self.set_style(self.template);
                self.bar.set_message(format!("{}, step {step}", self.what));
            }
            Turn::Finish => {
                self.set_style(FINISHING);
                self.bar.reset_elapsed();
                self.bar.enable_steady_tick(TURN);
            }
        }
        self.bar.set_length(all);
        self.bar.set_position(done);
    }
}

impl Shown {
    fn turn(&mut self, done: u64, all: u64) -> Turn {
        let has_ended = self.all > 0 && self.done >= self.all;
        let (new_share, share) = (
            u128::from(done) * u128::from(self.all),
            u128::from(self.done) * u128::from(all),
        );
        let turn = match () {
            () if done < self.done && has_ended => Turn::NextStep,
            // The total turned out larger: the bar waits until the true share exceeds the one shown.
            () if all == 0 || has_ended || (self.all > 0 && new_share <= share) => Turn::Stay,
            () if done >= all => Turn::Finish,
            () => Turn::Advance,
        };
        match turn {
            Turn::Stay => {}
            _ => {
                (self.done, self.all) = (done, all);
                self.steps += u32::from(turn == Turn::NextStep);
            }
        }
        turn
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Shows what work on a repository tells its caller.
impl Observer for Output {
    fn note(&self, message: &dyn std::fmt::Display) {
        Output::note(self, message);
    }

    fn warn(&self, message: &dyn std::fmt::Display) {
        Output::warn(self, message);
    }

    fn begin(&self, label: &str, unit: ProgressUnit) -> ShowProgress {
        let progress = match unit {
            ProgressUnit::Bytes => Progress::bytes(self, label),
            ProgressUnit::Steps => Progress::steps(self, label),
        };
        Box::new(move |done, all| progress.set(done, all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_never_goes_back_and_ends_once() {
        let mut shown = Shown::default();
        for (done, all, turn) in [
            (0, 0, Turn::Stay),
            (1, 10, Turn::Advance),
            (1, 10, Turn::Stay),
            (5, 10, Turn::Advance),
            (4, 10, Turn::Stay),
            // Half of it, and then less than half of twice the total.
            (6, 20, Turn::Stay),
            (11, 20, Turn::Advance),
            (20, 20, Turn::Finish),
            (20, 20, Turn::Stay),
            (21, 20, Turn::Stay),
            (1, 7, Turn::NextStep),
            (7, 7, Turn::Finish),
        ] {
            assert_eq!(shown.turn(done, all), turn, "{done} of {all}");
        }
        assert_eq!(shown.steps, 1);
    }

    #[test]
    fn work_that_does_nothing_for_a_while_says_so_and_other_work_does_not() {
        let (said, hears) = channel();
        let told = said.clone();
        let waits = Silence::begin(Duration::ZERO, move || told.send("waits").unwrap());
        assert_eq!(hears.recv(), Ok("waits"));
        drop(waits);
        let works = Silence::begin(Duration::from_secs(3600), move || {
            said.send("waits").unwrap();
        });
        drop(works);
        assert!(hears.recv().is_err(), "it has nothing to say any more");
    }

    #[test]
    fn a_step_that_is_broken_off_does_not_hide_the_next() {
        let mut shown = Shown::default();
        assert_eq!(shown.turn(5, 10), Turn::Advance);
        assert_eq!(shown.turn(1, 100), Turn::Stay);
        assert_eq!(shown.turn(60, 100), Turn::Advance);
    }
}
