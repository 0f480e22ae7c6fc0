//! Options of volumes, as command-line arguments and in JSON.

use onefold_store::{
    COLD_PASSES, DEFAULT_DOMAIN, DedupMode, INTERVAL_SECONDS, MIN_RUN, SettingsChange,
    VolumeOptions, VolumeSettings, range_parser,
};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::service::check_domain;
use crate::size;

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
    #[arg(long, value_parser = range_parser(COLD_PASSES), value_name = "N")]
    pub cold_passes: Option<u8>,

    /// Seconds between two passes of the finder, 1 to 86400. [default: 10; 1 if inline or auto]
    #[arg(long = "interval", value_parser = range_parser(INTERVAL_SECONDS), value_name = "SECONDS")]
    pub interval_seconds: Option<u32>,

    /// Keep duplicates private if their run is shorter than this many blocks, 1 to 256. Higher values give
    /// longer sequential reads and save less space.
    #[arg(long, value_parser = range_parser(MIN_RUN), value_name = "BLOCKS", default_value = "1")]
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
        let VolumeSettings {
            dedup,
            verify,
            min_run,
            quota_bytes,
            reservation_bytes,
            ..
        } = VolumeSettings::default();
        Self {
            dedup,
            domain: DEFAULT_DOMAIN.to_owned(),
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
    /// The settings that these options choose; the mode has defaults for the others.
    fn chosen(&self) -> SettingsChange {
        let Self {
            cold_passes,
            interval_seconds,
            hash_cache_bytes,
            ..
        } = *self;
        SettingsChange {
            dedup: Some(self.dedup),
            verify: Some(self.verify),
            cold_passes,
            interval_seconds,
            min_run: Some(self.min_run),
            hash_cache_bytes,
            quota_bytes: Some(self.quota_bytes),
            reservation_bytes: Some(self.reservation_bytes),
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_domain(&self.domain)?;
        Ok(self.chosen().check()?)
    }

    /// The store's options for a volume of this size.
    pub(crate) fn volume_options(&self, size_bytes: u64) -> VolumeOptions {
        let mut options = VolumeOptions::new(size_bytes);
        self.domain.clone_into(&mut options.domain);
        self.chosen().apply(&mut options.settings);
        options
    }
}

#[cfg(test)]
mod tests {
    use std::ops::RangeInclusive;

    use clap::{Args as _, FromArgMatches as _};

    use super::*;

    /// The help texts of an argument, one for each command that has it.
    fn help_of(id: &str) -> Vec<String> {
        let commands = [
            NewVolumeOptions::augment_args(clap::Command::new("create")),
            SettingsChange::augment_args(clap::Command::new("set")),
        ];
        let arguments = commands.iter().flat_map(clap::Command::get_arguments);
        let found = arguments.filter(|argument| argument.get_id() == id);
        found
            .filter_map(|argument| Some(argument.get_help()?.to_string()))
            .collect()
    }

    #[test]
    fn the_help_states_the_ranges_that_are_checked() {
        fn stated<N: std::fmt::Display>(range: &RangeInclusive<N>) -> String {
            format!(", {} to {}.", range.start(), range.end())
        }
        for (id, range) in [
            ("cold_passes", stated(&COLD_PASSES)),
            ("interval_seconds", stated(&INTERVAL_SECONDS)),
            ("min_run", stated(&MIN_RUN)),
        ] {
            let help = help_of(id);
            assert_eq!(help.len(), 2, "{id}");
            for text in help {
                assert!(format!("{text}.").contains(&range), "{id}: {text}");
            }
        }
    }

    #[test]
    fn the_help_states_the_defaults_that_are_used() {
        let [offline, inline] =
            [DedupMode::Offline, DedupMode::Inline].map(VolumeSettings::of_mode);
        let bytes = |bytes: u64| size::display(bytes).replace(" MiB", "M").replace(" B", "");
        for (id, usual, in_line) in [
            (
                "cold_passes",
                offline.cold_passes.to_string(),
                inline.cold_passes.to_string(),
            ),
            (
                "interval_seconds",
                offline.interval_seconds.to_string(),
                inline.interval_seconds.to_string(),
            ),
            (
                "hash_cache_bytes",
                bytes(offline.hash_cache_bytes),
                bytes(inline.hash_cache_bytes),
            ),
        ] {
            let stated = format!("[default: {usual}; {in_line} if inline or auto]");
            let help = help_of(id);
            assert!(help[0].contains(&stated), "{stated}: {}", help[0]);
        }
    }

    #[test]
    fn arguments_and_json_have_the_same_defaults() {
        let command = NewVolumeOptions::augment_args(clap::Command::new("create"));
        let matches = command.get_matches_from(["create"]);
        let arguments = NewVolumeOptions::from_arg_matches(&matches).unwrap();
        assert_eq!(arguments, NewVolumeOptions::default());
    }
}
