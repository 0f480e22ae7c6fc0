//! Limits the connections to the control socket, and chooses which one to close when there are too many.
//!
//! A connection first *asks*, until its request is complete. Imports and exports then *wait* for one of
//! [`TRANSFERS_MAX`] permits; other commands take one of [`CONTROL_COMMANDS_MAX`]. With a permit, a command
//! *works*. Finally the connection *takes* the answer.
//!
//! A peer decides how long it asks and takes, and may never finish. So there are more connections than can
//! wait and work, and when there are too many, the oldest one that asks or takes is closed: idle peers keep
//! no command out.

use crate::limits::{
    CONTROL_COMMANDS_MAX, CONTROL_CONNECTIONS_MAX, TRANSFERS_MAX, TRANSFERS_WAITING_MAX,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{AbortHandle, JoinSet};

const ASKS: u8 = 0;
const WORKS: u8 = 1;
const TAKES: u8 = 2;
const WAITS: u8 = 3;

/// The stage of a connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Stage(Arc<AtomicU8>);

impl Stage {
    fn is(&self, stage: u8) -> bool {
        self.0.load(Ordering::Acquire) == stage
    }

    fn set(&self, stage: u8) {
        self.0.store(stage, Ordering::Release);
    }
}

/// The right to carry out a command, held until the command ends.
pub(super) struct Permit {
    stage: Stage,
    _one_of: OwnedSemaphorePermit,
}

impl Permit {
    fn new(one_of: OwnedSemaphorePermit, stage: &Stage) -> Self {
        stage.set(WORKS);
        Self {
            stage: stage.clone(),
            _one_of: one_of,
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.stage.set(TAKES);
    }
}

/// The permits of a daemon.
pub(super) struct Permits {
    commands: Arc<Semaphore>,
    /// Permits for imports and exports, which also bound their memory.
    transfers: Arc<Semaphore>,
    waiting: Semaphore,
}

impl Permits {
    pub(super) fn new() -> Self {
        Self {
            commands: Arc::new(Semaphore::new(CONTROL_COMMANDS_MAX)),
            transfers: Arc::new(Semaphore::new(TRANSFERS_MAX)),
            waiting: Semaphore::new(TRANSFERS_WAITING_MAX),
        }
    }

    /// Returns a permit for a connection's command, if one is left.
    pub(super) fn for_command(&self, stage: &Stage) -> Option<Permit> {
        let one_of = Arc::clone(&self.commands).try_acquire_owned().ok()?;
        Some(Permit::new(one_of, stage))
    }

    /// Waits for a permit for an import or export; returns `None` if too many wait already.
    pub(super) async fn for_transfer(&self, stage: &Stage) -> Option<Permit> {
        let _waiting = self.waiting.try_acquire().ok()?;
        stage.set(WAITS);
        let one_of = Arc::clone(&self.transfers).acquire_owned().await.ok()?;
        Some(Permit::new(one_of, stage))
    }
}

struct Entry {
    task: AbortHandle,
    stage: Stage,
    since: Instant,
}

/// All connections, in order of arrival.
#[derive(Default)]
pub(super) struct Connections {
    tasks: JoinSet<()>,
    entries: VecDeque<Entry>,
}

impl Connections {
    pub(super) fn add(&mut self, stage: Stage, task: impl Future<Output = ()> + Send + 'static) {
        self.entries.push_back(Entry {
            task: self.tasks.spawn(task),
            stage,
            since: Instant::now(),
        });
    }

    /// Waits until a connection has ended; for ever if there is none.
    pub(super) async fn one_ended(&mut self) {
        if self.tasks.join_next().await.is_none() {
            std::future::pending::<()>().await;
        }
        self.entries.retain(|entry| !entry.task.is_finished());
    }

    /// Makes room for a connection that has been accepted. Calling this earlier would close a connection
    /// without need.
    pub(super) async fn make_room(&mut self) {
        while self.tasks.len() >= CONTROL_CONNECTIONS_MAX {
            self.drop_idle(Duration::ZERO);
            self.one_ended().await;
        }
    }

    /// Closes the oldest connection that asks or takes and is at least `age_min` old; returns whether there
    /// was one.
    pub(super) fn drop_idle(&mut self, age_min: Duration) -> bool {
        let is_idle = |Entry { stage, since, .. }: &Entry| {
            (stage.is(ASKS) || stage.is(TAKES)) && since.elapsed() >= age_min
        };
        let idle = self.entries.iter().position(is_idle);
        let idle = idle.and_then(|at| self.entries.remove(at));
        if let Some(entry) = &idle {
            tracing::debug!("a control connection is closed in favour of another");
            entry.task.abort();
        }
        idle.is_some()
    }
}
