//! Helpers for commands that do long work in their own process: a progress bar, and stopping on a signal.

use crate::output::Output;
use crate::progress::Progress;
use onefold_api::{Error, Result};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// The interval at which the bar is updated.
const BAR_INTERVAL: Duration = Duration::from_millis(200);

/// Calls `stop` on SIGINT, SIGTERM or SIGHUP. `stop` returns whether the work was already stopping; then the
/// process exits.
pub(crate) fn stop_when_interrupted(stop: impl Fn() -> bool + Send + 'static) -> Result<()> {
    let failed = |e: io::Error| Error::io("cannot listen for signals", &e);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    let signals = runtime.block_on(async {
        Ok((
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            // Under nohup the work outlives the terminal.
            if is_ignored(SignalKind::hangup()) {
                None
            } else {
                Some(signal(SignalKind::hangup())?)
            },
        ))
    });
    let (mut interrupt, mut terminate, mut hangup) = signals.map_err(failed)?;
    thread::spawn(move || {
        runtime.block_on(async {
            loop {
                let hung_up = async {
                    match &mut hangup {
                        Some(hangup) => hangup.recv().await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hung_up => {}
                }
                if stop() {
                    std::process::exit(130);
                }
            }
        });
    });
    Ok(())
}

/// Ends the process on SIGINT, SIGTERM or SIGHUP, with a note on what happens to the unfinished work.
pub(crate) fn end_when_interrupted(output: &Output, rest: &'static str) -> Result<()> {
    let output = *output;
    stop_when_interrupted(move || {
        if output.shows_progress() {
            // Keep the bar's line.
            eprintln!();
        }
        output.note(format_args!("interrupted: {rest}"));
        true
    })
}

/// Whether this process was started with the signal ignored.
fn is_ignored(signal: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.unwrap_or(0) >> (signal.as_raw_value() - 1) & 1 == 1
}

/// A flag that becomes true when the user interrupts the work.
pub(crate) fn interruption() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    interrupt_by(&interrupted)?;
    Ok(interrupted)
}

/// Makes the flag true when the user interrupts the work.
pub(crate) fn interrupt_by(interrupted: &Arc<AtomicBool>) -> Result<()> {
    let told = Arc::clone(interrupted);
    stop_when_interrupted(move || told.swap(true, Ordering::Relaxed))
}

/// Runs `work`, and updates the bar from `state`, which returns the amount done and the total.
pub(crate) fn with_bar<T>(
    bar: &Progress,
    state: impl Fn() -> (u64, u64) + Send,
    work: impl FnOnce() -> T,
) -> T {
    let (done, ended) = channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            while ended.recv_timeout(BAR_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let (done, all) = state();
                bar.set(done, all);
            }
        });
        let result = work();
        drop(done);
        result
    })
}

pub(crate) fn random_seed() -> u64 {
    RandomState::new().hash_one(0)
}
