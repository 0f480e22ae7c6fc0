//! The background work of a pool: its schedule, its share of time, and pausing it.
//!
//! May use: the store. Must not: read or write a pool's files itself.
//!
//! The store can share a batch of duplicates and release a batch of dropped references; this crate
//! decides which batch is next and how long to rest after it. Five threads, for all stores of the process:
//!
//! - The **finder** scans every volume whose dedup is offline, in passes.
//! - The **collector** rebuilds the index if that is needed, and then releases dropped references;
//!   its thread also does the deletions of volumes and snapshots, step by step.
//! - **Counting** has the index count the claims of writes in line.
//! - The **accountant** scans all maps periodically, to find out what each volume holds alone.
//! - The **scrub** reads the stored blocks on request, and finds those that have decayed.
//!
//! The threads of backup clients read snapshots; `copying` decides when.
//!
//! Stores are added and removed while the threads run. Each thread keeps a little state for each store, gives the stores
//! turns, a batch each, and holds a store only during its turn. Idle threads wake up at the same intervals whatever the
//! number of stores, and look at all of them then. A store that fails is left alone for some time, and delays no other; a
//! call of the store that does not return delays all.
//!
//! Guests come first (P10): all threads measure the latency of requests, and give way when it
//! exceeds the budget. Processors, and often the device, are the host's, so the pace is one for all stores. Nothing here ends the process: a batch that fails makes its job fail, with a
//! message in the list of jobs, and is retried later.
//!
//! | module | purpose, in reading order |
//! | --- | --- |
//! | `job` | the state of a job, and which jobs can be paused |
//! | `maintenance` | starting, stopping, listing, pausing; adding and removing stores |
//! | `handle` | one job: begins and ends batches, pauses, fails, counts |
//! | `thread` | the threads, and the signal that they wait for |
//! | `specs` | the constants of each kind of job |
//! | `store_jobs` | the jobs of one store |
//! | `registry` | the stores and all their jobs; pausing and resuming them |
//! | `finder`, `collector`, `counting`, `accounting`, `scrub` | the threads |
//! | `deletion` | deletions, on the collector's thread |
//! | `copying` | reads of snapshots for backups |
//! | `passes` | which volume is next |
//! | `free_space`, `spare` | free space given back to the host or preallocated; how much is kept ready |
//! | `pacing` | which share of time work may take: control logic without a clock |
//! | `latency` | how guests fare, over all stores |
//! | `foreground` | the clock for it: measuring guests' requests, and resting |
//! | `flushes` | turns in which batches may flush the device |
//! | `strain` | whether guests lack processor time, for `--dedup auto` |
//! | `background` | running work on processors that are otherwise idle |
//! | `rate` | bytes per second |
//! | `dedup` | all present duplicates, at once |
//! | `shrink` | making the pool smaller |
//! | `grow` | making the pool larger |
//! | `trim` | giving all free space back to the host |
//! | `unshare` | giving a volume blocks of its own |
//! | `limits` | every bound, with its reason |

mod accounting;
mod background;
mod collector;
mod copying;
mod counting;
mod dedup;
mod deletion;
mod finder;
mod flushes;
mod foreground;
mod free_space;
mod grow;
mod handle;
mod job;
mod latency;
mod limits;
mod maintenance;
mod pacing;
mod passes;
mod rate;
mod registry;
#[cfg(test)]
mod scene;
mod scrub;
mod shrink;
mod spare;
mod specs;
mod store_jobs;
mod strain;
mod thread;
mod trim;
mod unshare;

pub use background::enter_idle_class;
pub use copying::SnapshotReads;
pub use dedup::{DedupTotals, dedup_now};
pub use grow::grow_to;
pub use job::{JobCounts, JobKind, JobSelection, JobState, JobStatus, SteerError};
pub use maintenance::{Maintenance, MaintenanceOptions};
pub use scrub::scrub_now;
pub use shrink::{Shrunk, keeps_its_size, shrink_to};
pub use trim::trim_now;
pub use unshare::{Unshared, unshare_now};
