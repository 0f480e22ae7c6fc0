//! A bar on a terminal for work that takes a while; nothing anywhere else.

use crate::output::Output;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How far a long piece of work has come.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar that counts bytes, with rate and remaining time.
    pub(crate) fn bytes(output: &Output, what: &str) -> Self {
        Self::new(
            output,
            what,
            "{msg} [{bar:30}] {bytes}/{total_bytes} {binary_bytes_per_sec} {eta} left",
        )
    }

    /// A bar that counts blocks, with rate and remaining time.
    pub(crate) fn blocks(output: &Output, what: &str) -> Self {
        Self::new(
            output,
            what,
            "{msg} [{bar:30}] {human_pos}/{human_len} blocks {per_sec} {eta} left",
        )
    }

    /// A bar that counts steps of equal size.
    pub(crate) fn steps(output: &Output, what: &str) -> Self {
        Self::new(output, what, "{msg} [{bar:30}] {percent} % {eta} left")
    }

    fn new(output: &Output, what: &str, template: &str) -> Self {
        let target = if output.shows_progress() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        // The templates are constants of this file; should one be wrong, a plain bar will do.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(what.to_owned());
        Self { bar }
    }

    /// `done` of `all` units are finished.
    pub(crate) fn set(&self, done: u64, all: u64) {
        if self.bar.length() != Some(all) {
            self.bar.set_length(all);
        }
        self.bar.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
