//! Tests of the built program from a user's view: arguments in; documents, messages and exit codes out.

// Clippy exempts only functions marked as tests, not the helpers that they call.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod analyze;
mod analyze_memory;
mod backup;
mod backup_copying;
mod backup_damage;
mod backup_golden;
mod backup_host;
mod backup_identity;
mod backup_keys;
mod backup_memory;
mod backup_night;
mod backup_pruning;
mod backup_removal;
mod backup_repair;
mod backup_salvage;
mod backup_share;
mod backup_together;
mod bench;
mod clones;
mod contract;
mod daemon;
mod full;
mod full_host;
mod groups;
mod harness;
mod help;
mod images;
mod jobs;
mod locality;
mod metrics;
mod peers;
mod plans;
mod pools;
mod recovery;
mod resizing;
mod scrub;
mod sharing;
mod sizes;
mod snapshots;
mod thick;
mod transfers;
mod volumes;
