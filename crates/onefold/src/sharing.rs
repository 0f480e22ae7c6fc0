//! How blocks are shared, in the words of arguments, requests and documents.

use crate::error::Result;
use crate::size;
use crate::verbs::check_domain;
use clap::builder::RangedI64ValueParser;
use clap::{ValueEnum, value_parser};
use onefold_store::{DedupMode, IndexKind, VolumeOptions};
use serde::{Deserialize, Serialize};

/// Whether and when a volume's duplicates are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Dedup {
    /// Never.
    Off,
    /// In the background, after the write.
    Offline,
}

impl Dedup {
    /// Its word.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Offline => "offline",
        }
    }
}

impl From<DedupMode> for Dedup {
    fn from(mode: DedupMode) -> Self {
        match mode {
            DedupMode::Off => Self::Off,
            DedupMode::Offline => Self::Offline,
        }
    }
}

impl From<Dedup> for DedupMode {
    fn from(dedup: Dedup) -> Self {
        match dedup {
            Dedup::Off => Self::Off,
            Dedup::Offline => Self::Offline,
        }
    }
}

/// Where a pool keeps its fingerprints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Index {
    /// On disk, made for this purpose: a few bytes of memory for each block.
    Hash,
    /// On disk, in a copy-on-write B-tree.
    Btree,
    /// In memory: fast, but only as many blocks as --memory has room for, and read anew from the
    /// pool after a crash.
    Memory,
}

impl Index {
    /// Its word.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Hash => "hash",
            Self::Btree => "btree",
            Self::Memory => "memory",
        }
    }
}

impl From<IndexKind> for Index {
    fn from(kind: IndexKind) -> Self {
        match kind {
            IndexKind::Btree => Self::Btree,
            IndexKind::Memory => Self::Memory,
            IndexKind::Hash => Self::Hash,
        }
    }
}

impl From<Index> for IndexKind {
    fn from(index: Index) -> Self {
        match index {
            Index::Btree => Self::Btree,
            Index::Memory => Self::Memory,
            Index::Hash => Self::Hash,
        }
    }
}

/// Passes that a block can be made to wait for; more would be for ever.
pub(crate) fn rounds_parser() -> RangedI64ValueParser<u8> {
    value_parser!(u8).range(1..=16)
}

/// Seconds between the beginnings of two rounds; a day at most.
pub(crate) fn interval_parser() -> RangedI64ValueParser<u32> {
    value_parser!(u32).range(1..=86_400)
}

/// How a new volume takes part in sharing.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args, Serialize, Deserialize)]
pub(crate) struct Sharing {
    /// Whether duplicates are looked for.
    #[arg(long, value_enum, default_value = "offline")]
    pub(crate) dedup: Dedup,

    /// The volumes with which this one may share blocks: those of the same domain. Stays as it is.
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub(crate) domain: String,

    /// Compare blocks byte by byte before sharing them, instead of trusting their fingerprints.
    #[arg(long)]
    pub(crate) verify: bool,

    /// Passes that a block must stay unchanged before it is looked at, 1 to 16. More spares blocks
    /// that are rewritten often.
    #[arg(long, value_parser = rounds_parser(), value_name = "N", default_value = "2")]
    pub(crate) rounds: u8,

    /// Seconds between rounds, 1 to 86400.
    #[arg(
        long = "interval",
        value_parser = interval_parser(),
        value_name = "SECONDS",
        default_value = "10"
    )]
    pub(crate) interval_seconds: u32,

    /// Memory for fingerprints made while blocks are written, so that the finder need not read them
    /// back: 24 bytes a block. All volumes together get a sixteenth of the pool's memory.
    #[arg(
        long = "hash-cache",
        value_parser = size::parse,
        value_name = "SIZE",
        default_value = "0"
    )]
    pub(crate) hash_cache_bytes: u64,

    /// The most data that the volume and its snapshots may hold, as guests see it; 0 for no bound.
    /// Writes that would exceed it fail with ENOSPC.
    #[arg(
        long = "quota",
        value_parser = size::parse,
        value_name = "SIZE",
        default_value = "0"
    )]
    pub(crate) quota_bytes: u64,

    /// Space in the pool that no other volume gets, until this one and its snapshots hold so much
    /// alone.
    #[arg(
        long = "reservation",
        value_parser = size::parse,
        value_name = "SIZE",
        default_value = "0"
    )]
    pub(crate) reservation_bytes: u64,
}

impl Sharing {
    /// What the arguments' types leave unchecked.
    pub(crate) fn check(&self) -> Result<()> {
        check_domain(&self.domain)
    }

    /// A volume of this size.
    pub(crate) fn volume_options(&self, size_bytes: u64) -> VolumeOptions {
        VolumeOptions {
            size_bytes,
            dedup: self.dedup.into(),
            domain: self.domain.clone(),
            verify: self.verify,
            rounds: self.rounds,
            interval_seconds: self.interval_seconds,
            hash_cache_bytes: self.hash_cache_bytes,
            quota_bytes: self.quota_bytes,
            reservation_bytes: self.reservation_bytes,
        }
    }
}
