//! The background work of a pool: when it is done, how much of it, and who may stop it.
//!
//! The store knows how a batch of duplicates is shared and how a batch of given-up references is
//! released; here is decided which batch is next and how long to rest after it. Four threads:
//!
//! - The **finder** goes over every volume whose dedup is offline, in rounds.
//! - The **collector** rebuilds the index if that is needed, and then releases what is given up; its
//!   thread also does, a little at a time, what deletions of volumes and snapshots leave to do.
//! - The **accountant** goes through all maps now and then, to say what each volume holds alone.
//! - The **scrub** reads what is stored, when it is asked to, and finds what has decayed.
//!
//! Guests come first (P10): all threads watch how long requests take, and give way when that
//! exceeds the budget. Nothing here ends the process: a batch that fails makes its job fail, with a
//! message for whoever lists the jobs, and is tried again later.
//!
//! | module | what it is for, in reading order |
//! | --- | --- |
//! | `job` | what can be said of a job, and which jobs can be paused |
//! | `maintenance` | starting, stopping, listing, pausing |
//! | `registry` | what the threads and their callers tell each other |
//! | `finder`, `collector`, `accounting`, `scrub` | the threads |
//! | `rounds` | which volume is next |
//! | `pacing` | which share of time work may take: control logic without a clock |
//! | `foreground` | the clock for it: measuring guests' requests, and resting |
//! | `background` | the processor for it, when nobody else wants it |
//! | `rate` | bytes per second |
//! | `dedup` | all that is there now, at once |
//! | `shrink` | making the pool smaller |
//! | `trim` | giving all free space back to the host |
//! | `limits` | every bound, with its reason |

mod accounting;
mod background;
mod collector;
mod dedup;
mod finder;
mod foreground;
mod job;
mod limits;
mod maintenance;
mod pacing;
mod passes;
mod rate;
mod registry;
mod scrub;
mod shrink;
mod trim;

pub use dedup::{DedupTotals, dedup_now};
pub use job::{JobCounts, JobKind, JobSelection, JobState, JobStatus, SteerError};
pub use maintenance::{Maintenance, MaintenanceOptions};
pub use scrub::scrub_now;
pub use shrink::{Shrunk, keeps_its_size, shrink_to};
pub use trim::trim_now;
