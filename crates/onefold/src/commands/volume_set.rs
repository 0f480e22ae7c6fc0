//! `onefold volume set`

use super::Context;
use crate::error::Result;
use crate::sharing::{Dedup, interval_parser, rounds_parser};
use crate::size;
use crate::verbs::volume::VolumeSet;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("change").required(true).multiple(true))]
pub(super) struct Args {
    /// The volume's name.
    name: String,

    /// Whether duplicates are looked for. What is shared already stays shared.
    #[arg(long, value_enum, group = "change")]
    dedup: Option<Dedup>,

    /// Whether blocks are compared byte by byte before they are shared.
    #[arg(long, value_enum, group = "change")]
    verify: Option<Switch>,

    /// Passes that a block must stay unchanged before it is looked at, 1 to 16.
    #[arg(long, value_parser = rounds_parser(), value_name = "N", group = "change")]
    rounds: Option<u8>,

    /// Seconds between rounds, 1 to 86400.
    #[arg(long, value_parser = interval_parser(), value_name = "SECONDS", group = "change")]
    interval: Option<u32>,

    /// Memory for fingerprints made while blocks are written; 0 for none.
    #[arg(long, value_parser = size::parse, value_name = "SIZE", group = "change")]
    hash_cache: Option<u64>,

    /// The most data that the volume and its snapshots may hold, as guests see it; 0 for no bound.
    #[arg(long, value_parser = size::parse, value_name = "SIZE", group = "change")]
    quota: Option<u64>,

    /// Space in the pool that no other volume gets; 0 for none.
    #[arg(long, value_parser = size::parse, value_name = "SIZE", group = "change")]
    reservation: Option<u64>,
}

/// A yes or no that can also be left as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Switch {
    On,
    Off,
}

pub(super) fn run(context: &Context, args: Args) -> Result<ExitCode> {
    context.call(&VolumeSet {
        name: args.name,
        dedup: args.dedup,
        verify: args.verify.map(|verify| verify == Switch::On),
        rounds: args.rounds,
        interval_seconds: args.interval,
        hash_cache_bytes: args.hash_cache,
        quota_bytes: args.quota,
        reservation_bytes: args.reservation,
    })
}
