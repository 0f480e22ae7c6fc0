//! Options of volumes, as arguments and in JSON.

use clap::builder::RangedI64ValueParser;
use clap::value_parser;
use onefold_store::{DedupMode, VolumeOptions};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::{Error, Result};
use crate::service::check_domain;
use crate::size;

const COLD_PASSES: std::ops::RangeInclusive<i64> = 1..=16;

/// A day at most.
const INTERVAL_SECONDS: std::ops::RangeInclusive<i64> = 1..=86_400;

pub(crate) fn cold_passes_parser() -> RangedI64ValueParser<u8> {
    value_parser!(u8).range(COLD_PASSES)
}

pub(crate) fn interval_parser() -> RangedI64ValueParser<u32> {
    value_parser!(u32).range(INTERVAL_SECONDS)
}

/// `on` or `off`.
pub(crate) fn parse_switch(text: &str) -> std::result::Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("use on or off".to_owned()),
    }
}

/// How a new volume takes part in deduplication, and its share of the pool.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NewVolumeOptions {
    /// Whether and when blocks are deduplicated.
    #[arg(long, value_enum, default_value = "offline")]
    pub dedup: DedupMode,

    /// Share blocks with volumes of this domain only. It cannot be changed later.
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub domain: String,

    /// Compare blocks byte by byte before sharing them, instead of trusting their fingerprints.
    #[arg(long)]
    pub verify: bool,

    /// Passes of the finder for which a block must stay unchanged before it is scanned, 1 to 16. More
    /// passes spare blocks that are rewritten often.
    #[arg(long, value_parser = cold_passes_parser(), value_name = "N", default_value = "2")]
    pub cold_passes: u8,

    /// Seconds between two passes of the finder, 1 to 86400.
    #[arg(
        long = "interval",
        value_parser = interval_parser(),
        value_name = "SECONDS",
        default_value = "10"
    )]
    pub interval_seconds: u32,

    /// Memory for fingerprints made while blocks are written, so that the finder need not read them
    /// back: 24 bytes a block. All volumes together get a sixteenth of the pool's memory.
    #[arg(
        long = "hash-cache",
        value_parser = size::parse,
        value_name = "SIZE",
        default_value = "0"
    )]
    pub hash_cache_bytes: u64,

    /// The most data that the volume and its snapshots may hold, as guests see it; 0 for no limit.
    /// Writes beyond it fail with ENOSPC.
    #[arg(long = "quota", value_parser = size::parse, value_name = "SIZE", default_value = "0")]
    pub quota_bytes: u64,

    /// Pool space that no other volume gets, until this one and its snapshots own so much.
    #[arg(
        long = "reservation",
        value_parser = size::parse,
        value_name = "SIZE",
        default_value = "0"
    )]
    pub reservation_bytes: u64,
}

impl Default for NewVolumeOptions {
    fn default() -> Self {
        let VolumeOptions {
            dedup,
            domain,
            verify,
            cold_passes,
            interval_seconds,
            hash_cache_bytes,
            quota_bytes,
            reservation_bytes,
            ..
        } = VolumeOptions::new(0);
        Self {
            dedup,
            domain,
            verify,
            cold_passes,
            interval_seconds,
            hash_cache_bytes,
            quota_bytes,
            reservation_bytes,
        }
    }
}

impl NewVolumeOptions {
    pub(crate) fn check(&self) -> Result<()> {
        check_domain(&self.domain)?;
        check_cold_passes(self.cold_passes)?;
        check_interval(self.interval_seconds)
    }

    /// The store's options of a volume of this size.
    pub(crate) fn volume_options(&self, size_bytes: u64) -> VolumeOptions {
        VolumeOptions {
            size_bytes,
            dedup: self.dedup,
            domain: self.domain.clone(),
            verify: self.verify,
            cold_passes: self.cold_passes,
            interval_seconds: self.interval_seconds,
            hash_cache_bytes: self.hash_cache_bytes,
            quota_bytes: self.quota_bytes,
            reservation_bytes: self.reservation_bytes,
        }
    }
}

/// Requests over the control socket have not passed the command line's parsers.
pub(crate) fn check_cold_passes(cold_passes: u8) -> Result<()> {
    match COLD_PASSES.contains(&cold_passes.into()) {
        true => Ok(()),
        false => Err(Error::usage("cold passes must be 1 to 16")),
    }
}

pub(crate) fn check_interval(seconds: u32) -> Result<()> {
    match INTERVAL_SECONDS.contains(&seconds.into()) {
        true => Ok(()),
        false => Err(Error::usage("the interval must be 1 to 86400 seconds")),
    }
}
