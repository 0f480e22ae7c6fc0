//! The interval of log lines about events that clients can cause at will.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lines come back at this rate once the first ones are used up.
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// Lets a few lines through at once, and then one a second.
#[derive(Debug)]
pub(crate) struct LogLimit {
    lines_max: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    lines: u32,
    /// When `lines` last changed by time.
    since: Instant,
    left_out: u64,
}

impl LogLimit {
    /// A limit that lets `lines_max` lines through at once.
    pub(crate) fn new(lines_max: u32) -> Self {
        Self {
            lines_max,
            state: Mutex::new(State {
                lines: lines_max,
                since: Instant::now(),
                left_out: 0,
            }),
        }
    }

    /// Lets `log` write a line if the limit allows one, and passes the number of lines left out
    /// before.
    pub(crate) fn line(&self, log: impl FnOnce(Option<u64>)) {
        if let Some(left_out) = self.admits_at(Instant::now()) {
            log((left_out > 0).then_some(left_out));
        }
    }

    /// Whether another line may be written now, and if so the number of lines left out before it.
    fn admits_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let earned = now.duration_since(state.since).as_secs() / LINE_INTERVAL.as_secs();
        if earned > 0 {
            let earned = u32::try_from(earned).unwrap_or(u32::MAX);
            state.lines = state.lines.saturating_add(earned).min(self.lines_max);
            state.since = now;
        }
        if state.lines == 0 {
            state.left_out += 1;
            return None;
        }
        state.lines -= 1;
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_one_a_second_are_counted() {
        let limit = LogLimit::new(2);
        let start = Instant::now();
        let at = |millis| limit.admits_at(start + Duration::from_millis(millis));
        let millis = [0, 1, 2, 3, 1500, 1600, 2600, 60_000, 60_001, 60_002];
        let expected = [
            Some(0),
            Some(0),
            None,
            None,
            Some(2),
            None,
            Some(1),
            Some(0),
            Some(0),
            None,
        ];
        assert_eq!(millis.map(at), expected);
    }
}
