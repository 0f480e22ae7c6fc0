//! The store as its callers see it: on simulated machines, and on real files.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "how tests fail")]

mod accounting;
mod candidates;
mod changes;
#[path = "../common/mod.rs"]
mod common;
mod data_path;
mod deletions;
mod foreign_parts;
mod full;
mod inline;
mod locality;
mod log_end;
mod prepared;
mod prepared_reads;
mod runs;
mod semantics;
mod sharing;
mod snapshots;
mod space;
mod space_limits;
mod spare;
mod thick;
mod threads;
