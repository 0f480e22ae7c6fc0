//! Options of volumes, as command-line arguments and in JSON.

use clap::builder::RangedI64ValueParser;
use clap::value_parser;
use onefold_store::{DedupMode, VolumeOptions};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::service::check_domain;
use crate::size;

const COLD_PASSES: std::ops::RangeInclusive<i64> = 1..=16;

/// Allowed values of `min_run`, in blocks.
const MIN_RUN: std::ops::RangeInclusive<i64> = 1..=256;

/// Allowed values of `interval_seconds`: up to a day.
const INTERVAL_SECONDS: std::ops::RangeInclusive<i64> = 1..=86_400;

pub(crate) fn cold_passes_parser() -> RangedI64ValueParser<u8> {
    value_parser!(u8).range(COLD_PASSES)
}

pub(crate) fn min_run_parser() -> RangedI64ValueParser<u16> {
    value_parser!(u16).range(MIN_RUN)
}

pub(crate) fn interval_parser() -> RangedI64ValueParser<u32> {
    value_parser!(u32).range(INTERVAL_SECONDS)
}

/// Parses `on` or `off`.
pub(crate) fn parse_switch(text: &str) -> std::result::Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("use on or off".to_owned()),
    }
}

/// How a new volume takes part in deduplication, and its share of the pool.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
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

    /// Passes of the finder for which a block must stay unchanged before it is scanned, 1 to 16. Higher
    /// values skip blocks that are rewritten often. [default: 2; 1 if inline or auto]
    #[arg(long, value_parser = cold_passes_parser(), value_name = "N")]
    pub cold_passes: Option<u8>,

    /// Seconds between two passes of the finder, 1 to 86400. [default: 10; 1 if inline or auto]
    #[arg(long = "interval", value_parser = interval_parser(), value_name = "SECONDS")]
    pub interval_seconds: Option<u32>,

    /// Keep duplicates private if their run is shorter than this many blocks, 1 to 256. Higher values give
    /// longer sequential reads and save less space.
    #[arg(long, value_parser = min_run_parser(), value_name = "BLOCKS", default_value = "1")]
    pub min_run: u16,

    /// Memory for fingerprints computed during writes, which saves the finder from reading the blocks back:
    /// 24 bytes a block. All volumes together get a sixteenth of the pool's memory. [default: 0; 16M if
    /// inline or auto]
    #[arg(long = "hash-cache", value_parser = size::parse, value_name = "SIZE")]
    pub hash_cache_bytes: Option<u64>,

    /// The most data that the volume and its snapshots may hold, as guests see it; 0 for no limit. Writes
    /// beyond the quota fail with ENOSPC.
    #[arg(long = "quota", value_parser = size::parse, value_name = "SIZE", default_value = "0")]
    pub quota_bytes: u64,

    /// Pool space set aside for this volume and its snapshots; other volumes cannot use it.
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
            min_run,
            quota_bytes,
            reservation_bytes,
            ..
        } = VolumeOptions::new(0);
        Self {
            dedup,
            domain,
            verify,
            cold_passes: None,
            interval_seconds: None,
            min_run,
            hash_cache_bytes: None,
            quota_bytes,
            reservation_bytes,
        }
    }
}

impl NewVolumeOptions {
    pub(crate) fn check(&self) -> Result<()> {
        check_domain(&self.domain)?;
        self.cold_passes.map_or(Ok(()), check_cold_passes)?;
        check_min_run(self.min_run)?;
        self.interval_seconds.map_or(Ok(()), check_interval)
    }

    /// The store's options for a volume of this size.
    pub(crate) fn volume_options(&self, size_bytes: u64) -> VolumeOptions {
        let usual = VolumeOptions::with_mode(size_bytes, self.dedup);
        VolumeOptions {
            domain: self.domain.clone(),
            verify: self.verify,
            cold_passes: self.cold_passes.unwrap_or(usual.cold_passes),
            interval_seconds: self.interval_seconds.unwrap_or(usual.interval_seconds),
            min_run: self.min_run,
            hash_cache_bytes: self.hash_cache_bytes.unwrap_or(usual.hash_cache_bytes),
            quota_bytes: self.quota_bytes,
            reservation_bytes: self.reservation_bytes,
            ..usual
        }
    }
}

/// Checks the range again, because requests from the control socket bypass the command line's parsers.
pub(crate) fn check_cold_passes(cold_passes: u8) -> Result<()> {
    if COLD_PASSES.contains(&cold_passes.into()) {
        Ok(())
    } else {
        Err(Error::usage("cold passes must be 1 to 16"))
    }
}

pub(crate) fn check_min_run(blocks: u16) -> Result<()> {
    if MIN_RUN.contains(&blocks.into()) {
        Ok(())
    } else {
        Err(Error::usage(
            "the shortest shared run must be 1 to 256 blocks",
        ))
    }
}

pub(crate) fn check_interval(seconds: u32) -> Result<()> {
    if INTERVAL_SECONDS.contains(&seconds.into()) {
        Ok(())
    } else {
        Err(Error::usage("the interval must be 1 to 86400 seconds"))
    }
}
