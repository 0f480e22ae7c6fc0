//! Load whose duplicates follow a distribution: writes contents, reads them, compares every byte, and
//! measures how long that takes; and the distributions, which are counted in real data.
//!
//! May use: `onefold-analyze`, for counts of chunks and runs, and `onefold-image` and `onefold-format`, to
//! recognise a target's content. May not use the store or the NBD server: a load knows files, devices and
//! memory, and any other target is given to it as a [`Target`]. No crate of the product but the
//! binary uses this one.
//!
//! Each job has a contiguous part of the target's region. One dealer deals contents to all jobs, a
//! run at a time, so that together they write the distribution. A job keeps eight bytes in memory
//! for each block of its part, the number of the content that it has written there last, and makes
//! that content again to compare it with the data it reads.
//!
//! | file | purpose |
//! | --- | --- |
//! | `distribution.rs` | how often contents occur, and how long runs are, as a text |
//! | `dedisbench.rs` | a distribution from a file in DEDISbench's format |
//! | `run.rs` | a load and its phases, one after another |
//! | `job.rs` | requests, one after another, and their comparison |
//! | `addresses.rs` | the order of addresses: sequential, uniform, NURand, Zipf |
//! | `deal.rs` | the contents: every run as often as it should occur, in a random order |
//! | `scale.rs` | scaling a distribution to a number of blocks |
//! | `permutation.rs` | a random order without a list |
//! | `content.rs` | a content as bytes |
//! | `measure.rs` | latencies, and the progress over time |
//! | `target.rs` | files, devices and memory |
//! | `inspection.rs` | the content of a target before the load |

mod addresses;
mod content;
mod deal;
mod dedisbench;
mod distribution;
mod error;
mod inspection;
mod job;
mod measure;
mod permutation;
mod run;
mod scale;
mod target;

pub use addresses::{Addresses, Pattern, nurand, nurand_a};
pub use content::Contents;
pub use deal::{ContentId, Dealer, Run, Share, UNIQUE};
pub use distribution::{CopyCount, Distribution, DistributionError, shipped_distributions};
pub use error::WorkloadError;
pub use inspection::{MARKS_BYTES, inspect, known_content};
pub use job::{Found, Mismatch};
pub use measure::{Measured, Measurement, Operation, Timeline};
pub use permutation::Permutation;
pub use run::{Load, LoadProgress, LoadReport, Mode, PhaseReport, Region, run, scaled};
pub use scale::{Cell, Runs, Scaled};
pub use target::{Connection, FileTarget, MemoryTarget, Target};
