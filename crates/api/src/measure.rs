//! Figures for monitoring: cheap to collect, whatever the size of the pool.

use std::sync::Arc;

use onefold_jobs::{JobKind, JobState};
use onefold_store::{MemoryStat, PoolStat, ScrubStatus, Store};

use crate::error::Result;
use crate::health::Health;
use crate::service::Service;

/// The pool's figures at one moment.
#[derive(Debug, Clone)]
pub struct Measurements {
    /// The pool, its volumes and snapshots.
    pub pool: PoolStat,
    /// The health of the pool.
    pub health: Health,
    /// Number of volumes that lost answered writes and whose loss has not been accepted.
    pub damaged_volumes: u64,
    /// The current scrub and the results of earlier ones.
    pub scrub: ScrubStatus,
    /// When the daemon's last export of metadata ended, in seconds since the Unix epoch; 0 before the first.
    pub exported_unix_seconds: u64,
    /// Memory of the store's caches.
    pub memory: MemoryStat,
    /// Jobs of each kind; finders of all volumes are one entry.
    pub jobs: Vec<JobMeasurement>,
    /// NBD clients and their requests.
    pub nbd: NbdStatistics,
}

/// All jobs of one kind.
#[derive(Debug, Clone)]
pub struct JobMeasurement {
    /// The kind of these jobs.
    pub kind: JobKind,
    /// Number of jobs in each state.
    pub states: [u64; JobState::ALL.len()],
    /// Blocks left to scan, release or read.
    pub backlog_blocks: u64,
    /// Blocks scanned for duplicates since the daemon started.
    pub scanned_blocks: u64,
    /// Duplicates found since the daemon started.
    pub duplicate_blocks: u64,
}

/// NBD clients and their requests since the daemon started.
#[derive(Debug, Clone, Default)]
pub struct NbdStatistics {
    /// Figures by export; an export appears once it has had a client.
    pub exports: Vec<ExportStatistics>,
    /// Durations of requests over all exports, by operation.
    pub durations: Vec<OpDurations>,
    /// Requests that wait for space in the pool.
    pub waiting_requests: u64,
    /// Memory of shared request buffers.
    pub buffer_bytes: u64,
}

/// Clients of one export and their requests.
#[derive(Debug, Clone)]
pub struct ExportStatistics {
    /// The volume, or VOLUME@SNAPSHOT.
    pub name: String,
    /// Clients that are attached now.
    pub clients: u64,
    /// Requests that had to wait for a worker: no worker of the server was free, or the volume's share of
    /// workers was in use.
    pub waited_for_worker: u64,
    /// Requests by operation.
    pub ops: Vec<OpStatistics>,
}

/// Requests of one operation.
#[derive(Debug, Clone)]
pub struct OpStatistics {
    /// The operation: `read`, `write`, `flush`, `trim`, `zero`, `cache`, `status` or `other`.
    pub op: &'static str,
    /// Requests answered without an error.
    pub ok: u64,
    /// Requests that failed.
    pub error: u64,
    /// Bytes of requests that succeeded.
    pub bytes: u64,
}

/// Durations of the requests of one operation.
#[derive(Debug, Clone)]
pub struct OpDurations {
    /// The operation.
    pub op: &'static str,
    /// Upper bounds in seconds, each with the number of requests in its bucket; not cumulative. The last
    /// bound is infinite.
    pub buckets: Vec<(f64, u64)>,
    /// The sum of all durations in seconds.
    pub sum_seconds: f64,
    /// Number of requests.
    pub count: u64,
}

impl Service {
    /// Collects the figures. No map is walked, and only free-space pages are read from disk.
    ///
    /// # Errors
    /// If the host does not report how much it has allocated, or if the pool has failed.
    pub fn measure(&self) -> Result<Measurements> {
        let clients = self.clients.as_ref();
        let pool = self.stores.stat()?;
        let stores = self.stores.all();
        let damaged = stores.iter().map(|store| store.damaged_volumes().len());
        let exported = stores
            .iter()
            .map(|store| store.exporter().ended_unix_seconds());
        Ok(Measurements {
            health: self.health_of(&pool),
            pool,
            damaged_volumes: damaged.sum::<usize>() as u64,
            scrub: self.stores.scrub_status()?,
            exported_unix_seconds: exported.max().unwrap_or_default(),
            memory: memory_of(&stores)?,
            jobs: self.measure_jobs()?,
            nbd: clients
                .map(|clients| clients.statistics())
                .unwrap_or_default(),
        })
    }

    fn measure_jobs(&self) -> Result<Vec<JobMeasurement>> {
        let Some(maintenance) = &self.maintenance else {
            return Ok(Vec::new());
        };
        let mut kinds: Vec<JobMeasurement> = Vec::new();
        for job in maintenance.jobs()? {
            let known = kinds.iter().position(|known| known.kind == job.kind);
            let at = known.unwrap_or_else(|| {
                kinds.push(JobMeasurement {
                    kind: job.kind,
                    states: [0; JobState::ALL.len()],
                    backlog_blocks: 0,
                    scanned_blocks: 0,
                    duplicate_blocks: 0,
                });
                kinds.len() - 1
            });
            let Some(kind) = kinds.get_mut(at) else {
                continue;
            };
            kind.states[job.state as usize] += 1;
            kind.backlog_blocks += job.backlog_blocks;
            kind.scanned_blocks += job.counts.scanned;
            kind.duplicate_blocks += job.counts.duplicates;
        }
        Ok(kinds)
    }
}

/// The memory of all stores together.
fn memory_of(stores: &[Arc<Store>]) -> Result<MemoryStat> {
    let mut all = MemoryStat::default();
    for store in stores {
        all += store.memory_stat()?;
    }
    Ok(all)
}
