//! The health of a pool: one verdict for `/readyz`, the metrics, `pool stat` and the daemon's log.

use onefold_jobs::JobState;
use onefold_store::{PoolStat, SpaceLevel};
use serde::{Deserialize, Serialize};

use crate::service::Service;
use crate::size;

/// The health of a pool as one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum PoolState {
    /// The pool has no problem.
    Ok,
    /// Guests are served, but an operator has to act.
    Degraded,
    /// Guests get errors, or wait.
    NotReady,
}

impl PoolState {
    /// The state's word in documents.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::NotReady => "not-ready",
        }
    }
}

/// A kind of problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ProblemReason {
    /// The pool takes no writes: a sync failed or a part could not be read, or a later release wrote the pool.
    ReadOnly,
    /// A failed sync lost answered writes of volumes, and the loss is not accepted.
    LostWrites,
    /// Requests wait for space.
    WaitingForSpace,
    /// Stored blocks have decayed.
    BadBlocks,
    /// The index is damaged or missing and has to be rebuilt; no further blocks are shared until then.
    IndexDamaged,
    /// There is little space left.
    LowOnSpace,
    /// A job fails again and again.
    JobFailed,
    /// Jobs are paused.
    JobPaused,
}

impl ProblemReason {
    /// Every reason, the worst first.
    pub const ALL: [Self; 8] = [
        Self::ReadOnly,
        Self::LostWrites,
        Self::WaitingForSpace,
        Self::BadBlocks,
        Self::IndexDamaged,
        Self::LowOnSpace,
        Self::JobFailed,
        Self::JobPaused,
    ];

    /// The reason's word in documents.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadOnly => "read-only",
            Self::LostWrites => "lost-writes",
            Self::WaitingForSpace => "waiting-for-space",
            Self::BadBlocks => "bad-blocks",
            Self::IndexDamaged => "index-damaged",
            Self::LowOnSpace => "low-on-space",
            Self::JobFailed => "job-failed",
            Self::JobPaused => "job-paused",
        }
    }

    /// The state of a pool that has the problem and no worse one.
    #[must_use]
    pub fn state(self) -> PoolState {
        match self {
            Self::ReadOnly | Self::LostWrites | Self::WaitingForSpace => PoolState::NotReady,
            Self::BadBlocks
            | Self::IndexDamaged
            | Self::LowOnSpace
            | Self::JobFailed
            | Self::JobPaused => PoolState::Degraded,
        }
    }
}

/// A problem of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// The kind of problem.
    pub reason: ProblemReason,
    /// The problem and its remedy, as a sentence without its full stop.
    pub message: String,
}

/// A pool's state and its problems.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// The worst problem first; each reason at most once.
    pub problems: Vec<Problem>,
}

impl Health {
    /// The worst state that any of the problems implies.
    #[must_use]
    pub fn state(&self) -> PoolState {
        let states = self.problems.iter().map(|problem| problem.reason.state());
        states.max().unwrap_or(PoolState::Ok)
    }

    /// Whether the pool has a problem with this reason.
    #[must_use]
    pub fn has(&self, reason: ProblemReason) -> bool {
        self.problems.iter().any(|problem| problem.reason == reason)
    }

    /// The messages of the problems for which guests get errors or wait; `None` if there are no such
    /// problems.
    #[must_use]
    pub fn not_ready(&self) -> Option<String> {
        let worst = self.problems.iter();
        let worst = worst.filter(|problem| problem.reason.state() == PoolState::NotReady);
        let messages: Vec<&str> = worst.map(|problem| problem.message.as_str()).collect();
        (!messages.is_empty()).then(|| messages.join("; "))
    }

    fn add(&mut self, reason: ProblemReason, message: String) {
        self.problems.push(Problem { reason, message });
    }
}

impl Service {
    /// Determines the health of the pool. No map is walked.
    #[must_use]
    pub fn health(&self) -> Health {
        match self.stores.stat() {
            Ok(stat) => self.health_of(&stat),
            // A failed pool has already recorded the reason.
            Err(error) => {
                let mut health = self.health_of_guests();
                if health.state() != PoolState::NotReady {
                    health.add(ProblemReason::ReadOnly, error.to_string());
                }
                health
            }
        }
    }

    /// Determines the health of the pool from figures that the caller already has.
    #[must_use]
    pub fn health_of(&self, stat: &PoolStat) -> Health {
        let mut health = self.health_of_guests();
        self.add_damage(stat, &mut health);
        add_space(stat.space, &mut health);
        self.add_jobs(&mut health);
        health
    }

    /// The problems for which guests wait or get errors. Finding them does no I/O, so a hanging disk does not
    /// delay the answer.
    #[must_use]
    pub fn health_of_guests(&self) -> Health {
        let mut health = Health::default();
        let stores = self.stores.all();
        if let Some(message) = stores.iter().find_map(|store| store.read_only_reason()) {
            health.add(ProblemReason::ReadOnly, message);
        }
        let damaged: Vec<_> = stores
            .iter()
            .flat_map(|store| store.damaged_volumes())
            .collect();
        if let Some((name, _)) = damaged.first() {
            let message = format!(
                "{} lost answered writes when a sync failed, '{name}' among them; see 'onefold pool stat' \
                 and 'onefold volume accept-loss'",
                size::count(damaged.len() as u64, "volume")
            );
            health.add(ProblemReason::LostWrites, message);
        }
        let waiting = self.waiting_for_space();
        if waiting > 0 {
            let requests = size::count(waiting, "request");
            let verb = if waiting == 1 { "waits" } else { "wait" };
            let message = format!("{requests} {verb} for space in the pool");
            health.add(ProblemReason::WaitingForSpace, message);
        }
        health
    }

    fn add_damage(&self, stat: &PoolStat, health: &mut Health) {
        // An error here means that a thread has panicked; the pool is then read-only, which is reported
        // elsewhere.
        let scrubs = self.stores.all().into_iter();
        let bad = scrubs.map(|store| {
            let status = store.scrub().status();
            status.map_or(0, |status| status.bad_blocks)
        });
        let bad = bad.sum();
        if bad > 0 {
            let blocks = size::count(bad, "stored block");
            let message =
                format!("{blocks} decayed; 'onefold pool scrub --list' names the volumes");
            health.add(ProblemReason::BadBlocks, message);
        }
        if stat.index_rebuilding {
            let message = "the index has to be rebuilt, and nothing more is shared until then; see 'onefold \
                           job list'";
            health.add(ProblemReason::IndexDamaged, message.to_owned());
        }
    }

    fn add_jobs(&self, health: &mut Health) {
        let jobs = self.maintenance.as_ref().map(|jobs| jobs.jobs());
        let Some(Ok(jobs)) = jobs else {
            return;
        };
        let failed = jobs.iter().find(|job| job.state == JobState::Failed);
        if let Some(job) = failed {
            let why = job.message.as_deref().unwrap_or("the log says why");
            let message = format!("the job '{}' fails again and again: {why}", job.kind.name());
            health.add(ProblemReason::JobFailed, message);
        }
        let paused = jobs.iter().filter(|job| job.state == JobState::Paused);
        let mut paused: Vec<&str> = paused.map(|job| job.kind.name()).collect();
        paused.dedup();
        if !paused.is_empty() {
            let message = format!(
                "jobs are paused: {}; 'onefold job resume' lets them work",
                paused.join(", ")
            );
            health.add(ProblemReason::JobPaused, message);
        }
    }
}

fn add_space(level: SpaceLevel, health: &mut Health) {
    let free = match level {
        SpaceLevel::Ok => return,
        SpaceLevel::Low => "space is low",
        SpaceLevel::Scarce => "space is scarce, and imports fail",
        SpaceLevel::Reserve => "only writes over existing data find space",
        SpaceLevel::Full => "the pool is full",
    };
    let message = format!("{free}; delete volumes or snapshots, or grow the pool");
    health.add(ProblemReason::LowOnSpace, message);
}
