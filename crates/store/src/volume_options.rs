//! The options of a new volume, and changes of its settings.

use std::ops::RangeInclusive;

use onefold_format::catalogue_page::{COLD_PASSES, HASH_CACHE_BYTES, INTERVAL_SECONDS, MIN_RUN};
use onefold_format::{DedupMode, VolumeSettings};
#[cfg(feature = "api")]
use onefold_metadata::parse_bytes;
use onefold_metadata::{Result, StoreError, StoreErrorKind};

/// The default domain.
pub const DEFAULT_DOMAIN: &str = "default";

/// The options of a new volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeOptions {
    /// Size in bytes, a multiple of a sector.
    pub size_bytes: u64,
    /// Blocks are shared only inside a domain (P11); a new name makes a new domain. The same rules
    /// apply to it as to a volume's name.
    pub domain: String,
    /// The settings that the volume starts with.
    pub settings: VolumeSettings,
}

impl VolumeOptions {
    /// A volume of this size that shares its blocks in the default domain.
    #[must_use]
    pub fn new(size_bytes: u64) -> Self {
        Self {
            size_bytes,
            domain: DEFAULT_DOMAIN.to_owned(),
            settings: VolumeSettings::default(),
        }
    }

    /// The same volume with these settings.
    #[must_use]
    pub fn with(self, settings: VolumeSettings) -> Self {
        Self { settings, ..self }
    }
}

/// Changes of a volume's settings; settings without a new value stay as they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "api",
    derive(clap::Args, serde::Serialize, serde::Deserialize),
    group(id = "change", required = true, multiple = true)
)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SettingsChange {
    /// Whether and when blocks are deduplicated. Blocks that are already shared stay shared.
    #[cfg_attr(feature = "api", arg(long, value_enum))]
    pub dedup: Option<DedupMode>,
    /// Whether blocks are compared byte by byte before they are shared.
    #[cfg_attr(
        feature = "api",
        arg(long, value_parser = parse_switch, value_name = "on|off")
    )]
    pub verify: Option<bool>,
    /// Passes of the finder for which a block must stay unchanged before it is scanned, 1 to 16.
    #[cfg_attr(
        feature = "api",
        arg(long, value_parser = range_parser(COLD_PASSES), value_name = "N")
    )]
    pub cold_passes: Option<u8>,
    /// Seconds between two passes of the finder, 1 to 86400.
    #[cfg_attr(
        feature = "api",
        arg(long = "interval", value_parser = range_parser(INTERVAL_SECONDS), value_name = "SECONDS")
    )]
    pub interval_seconds: Option<u32>,
    /// Keep duplicates private if their run is shorter than this many blocks, 1 to 256.
    #[cfg_attr(
        feature = "api",
        arg(long, value_parser = range_parser(MIN_RUN), value_name = "BLOCKS")
    )]
    pub min_run: Option<u16>,
    /// Memory for fingerprints computed during writes; 0 for none.
    #[cfg_attr(
        feature = "api",
        arg(long = "hash-cache", value_parser = parse_bytes, value_name = "SIZE")
    )]
    pub hash_cache_bytes: Option<u64>,
    /// The most data that the volume and its snapshots may hold, as guests see it; 0 for no limit.
    #[cfg_attr(
        feature = "api",
        arg(long = "quota", value_parser = parse_bytes, value_name = "SIZE")
    )]
    pub quota_bytes: Option<u64>,
    /// Pool space set aside for this volume; other volumes cannot use it. 0 for none.
    #[cfg_attr(
        feature = "api",
        arg(long = "reservation", value_parser = parse_bytes, value_name = "SIZE")
    )]
    pub reservation_bytes: Option<u64>,
}

impl SettingsChange {
    /// Makes the changes. With another mode, cold passes, interval and hash cache that have the old mode's
    /// defaults get the defaults of the new one.
    pub fn apply(&self, settings: &mut VolumeSettings) {
        let old = settings.in_mode(self.dedup.unwrap_or(settings.dedup));
        *settings = VolumeSettings {
            dedup: old.dedup,
            verify: self.verify.unwrap_or(old.verify),
            cold_passes: self.cold_passes.unwrap_or(old.cold_passes),
            interval_seconds: self.interval_seconds.unwrap_or(old.interval_seconds),
            min_run: self.min_run.unwrap_or(old.min_run),
            hash_cache_bytes: self.hash_cache_bytes.unwrap_or(old.hash_cache_bytes),
            quota_bytes: self.quota_bytes.unwrap_or(old.quota_bytes),
            reservation_bytes: self.reservation_bytes.unwrap_or(old.reservation_bytes),
        };
    }

    /// Refuses values that no pool takes, wherever they come from.
    ///
    /// # Errors
    ///
    /// `Invalid`, with the setting and its range.
    pub fn check(&self) -> Result<()> {
        let mut settings = VolumeSettings::default();
        self.apply(&mut settings);
        check_settings(&settings)
    }
}

/// Refuses settings that no pool takes.
pub(crate) fn check_settings(settings: &VolumeSettings) -> Result<()> {
    check_range("cold passes", settings.cold_passes, COLD_PASSES, "")?;
    let min_run = settings.min_run;
    check_range("the shortest shared run", min_run, MIN_RUN, " blocks")?;
    let interval = settings.interval_seconds;
    check_range("the interval", interval, INTERVAL_SECONDS, " seconds")?;
    let (bytes, most) = (settings.hash_cache_bytes, HASH_CACHE_BYTES.end());
    if !HASH_CACHE_BYTES.contains(&bytes) {
        let message = format!("a hash cache of {bytes} bytes exceeds {most}");
        return Err(StoreError::new(StoreErrorKind::Invalid, message));
    }
    Ok(())
}

fn check_range<N>(what: &str, value: N, range: RangeInclusive<N>, unit: &str) -> Result<()>
where
    N: PartialOrd + std::fmt::Display,
{
    if range.contains(&value) {
        return Ok(());
    }
    let (first, last) = range.into_inner();
    let message = format!("{what} must be {first} to {last}{unit}");
    Err(StoreError::new(StoreErrorKind::Invalid, message))
}

/// A parser of arguments that takes the numbers of this range.
#[cfg(feature = "api")]
#[must_use]
pub fn range_parser<N>(range: RangeInclusive<N>) -> clap::builder::RangedI64ValueParser<N>
where
    N: TryFrom<i64> + Into<i64> + Clone + Send + Sync,
{
    let (first, last) = range.into_inner();
    clap::builder::RangedI64ValueParser::new().range(first.into()..=last.into())
}

/// Parses `on` or `off`.
#[cfg(feature = "api")]
fn parse_switch(text: &str) -> std::result::Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("use on or off".to_owned()),
    }
}
