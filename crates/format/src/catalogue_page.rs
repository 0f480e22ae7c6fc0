//! Leaf of the catalogue: fifteen records of 256 bytes, one for each volume and each snapshot.
//!
//! ```text
//! page     64 + 256 n   record n, 15 of them, then zeros; a record of zeros is a free slot
//! record    0 kind      u8      1 volume, with its live layer; 2 snapshot, with its frozen layer
//!           1 state     u8      1 importing, 2 ready, 3 deleting
//!           2 dedup     u8      0 off, 1 offline, 2 inline, 3 auto
//!           3 name len  u8      bytes
//!           4 domain    u32     below 65536
//!           8 volume    u64
//!          16 layer     u64     the live one
//!          24 size      u64     bytes, a multiple of 512
//!          32 created   u64     seconds since the Unix epoch
//!          40 map       tree root of the live layer; empty in a log record
//!          56 flags     u8      bit 0: bytes are compared before blocks are shared
//!          57 domain name len  u8  bytes
//!          58 cold passes  u8  1 to 16
//!          59 min run   u8      blocks of the shortest run of duplicates that is shared, less 1
//!          60 interval  u32     seconds, 1 to 86400
//!          64 private   u64     entries of the live layer that are private
//!          72 unshareable  u64  private for good
//!          80 shared    u64     that are shared
//!          88 cache     u64     bytes of the hash cache, 0 to 2^40
//!          96 below     u64     the layer below, or 0
//!         104 snapshot of  u64  the volume, 0 for a volume
//!         112 quota     u64     bytes, 0 for none, to 2^60
//!         120 reservation  u64  bytes, 0 for none, to 2^60
//!         128 name      64 bytes, zero-padded
//!         192 domain name  64 bytes, zero-padded
//! ```

use std::ops::RangeInclusive;

use crate::bytes::{is_zero, put, u32_at, u64_at};
use crate::error::FormatError;
use crate::node::TreeRoot;
use crate::page::{BODY, PAGE_BYTES, PageBytes};
use crate::units::{
    BLOCK_SIZES, DomainId, LayerId, SECTOR_BYTES, VOLUME_BLOCKS_MAX, VolumeId, is_id,
};

/// Records in a page.
pub const RECORDS_PER_PAGE: usize = 15;

/// Bytes in a record.
pub const VOLUME_RECORD_BYTES: usize = 256;

/// Longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 63;

/// Allowed values of [`VolumeSettings::cold_passes`].
pub const COLD_PASSES: RangeInclusive<u8> = 1..=16;

/// Allowed values of [`VolumeSettings::interval_seconds`], up to a day.
pub const INTERVAL_SECONDS: RangeInclusive<u32> = 1..=86_400;

/// Allowed values of [`VolumeSettings::min_run`], which has a byte in the record.
pub const MIN_RUN: RangeInclusive<u16> = 1..=256;

/// Allowed values of [`VolumeSettings::hash_cache_bytes`], up to more than a machine has memory.
pub const HASH_CACHE_BYTES: RangeInclusive<u64> = 0..=1 << 40;

/// Allowed quotas and reservations in bytes, up to more than a pool can have. The store takes only
/// multiples of the pool's block size.
pub const SPACE_LIMIT_BYTES: RangeInclusive<u64> = 0..=1 << 60;

/// The default hash cache of an in-line volume: the slots of 2.6 GiB of blocks of 4 KiB.
const INLINE_HASH_CACHE_BYTES: u64 = 16 << 20;

const KIND_VOLUME: u8 = 1;
const KIND_SNAPSHOT: u8 = 2;
const FLAG_VERIFY: u8 = 1;

/// Largest volume of any pool, in bytes.
const SIZE_BYTES_MAX: u64 = VOLUME_BLOCKS_MAX * BLOCK_SIZES[BLOCK_SIZES.len() - 1] as u64;

const _: () = assert!(BODY + RECORDS_PER_PAGE * VOLUME_RECORD_BYTES <= PAGE_BYTES);
const _: () = assert!(128 + NAME_BYTES_MAX < 192, "a name is followed by a zero");
const _: () = assert!(
    *MIN_RUN.start() == 1 && *MIN_RUN.end() == 256,
    "less 1, every byte is valid"
);
const _: () = assert!(192 + NAME_BYTES_MAX < VOLUME_RECORD_BYTES, "likewise");

/// The stage of a volume's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum VolumeState {
    /// Being loaded: recovery removes it.
    Importing = 1,
    /// In use.
    Ready = 2,
    /// Being removed: recovery finishes that.
    Deleting = 3,
}

/// Whether and when a volume's blocks are deduplicated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    feature = "api",
    derive(clap::ValueEnum, serde::Serialize, serde::Deserialize)
)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "api", serde(rename_all = "lowercase"))]
#[repr(u8)]
pub enum DedupMode {
    /// Never: blocks written from now on stay private.
    Off = 0,
    /// In the background, some time after the write.
    Offline = 1,
    /// When it is written, if a block with the same content is published; otherwise in the
    /// background.
    Inline = 2,
    /// As `inline` while many writes are duplicates, and otherwise as `offline`.
    Auto = 3,
}

impl DedupMode {
    /// Whether the finder shares the volume's blocks.
    #[must_use]
    pub fn is_on(self) -> bool {
        self != Self::Off
    }
}

/// The settings of a volume, which can be changed while it is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "api", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VolumeSettings {
    /// Whether and when the volume's blocks are deduplicated.
    pub dedup: DedupMode,
    /// Whether blocks are compared byte by byte before they are shared.
    pub verify: bool,
    /// Passes of the finder for which a block must stay unchanged before it is scanned.
    pub cold_passes: u8,
    /// Seconds between two passes of the finder.
    pub interval_seconds: u32,
    /// Duplicates in runs of fewer blocks than this stay private.
    pub min_run: u16,
    /// Memory for fingerprints made while blocks are written; 0 for none.
    pub hash_cache_bytes: u64,
    /// The most data that the volume and its snapshots may hold; 0 for no limit.
    pub quota_bytes: u64,
    /// Pool space reserved for the volume and its snapshots.
    pub reservation_bytes: u64,
}

impl Default for VolumeSettings {
    fn default() -> Self {
        Self::of_mode(DedupMode::Offline)
    }
}

impl VolumeSettings {
    /// The defaults of a mode. An in-line volume has made the fingerprints already, and the sooner the
    /// finder publishes a block, the more hits there are.
    #[must_use]
    pub fn of_mode(dedup: DedupMode) -> Self {
        let (cold_passes, interval_seconds, hash_cache_bytes) = match dedup {
            DedupMode::Off | DedupMode::Offline => (2, 10, 0),
            DedupMode::Inline | DedupMode::Auto => (1, 1, INLINE_HASH_CACHE_BYTES),
        };
        Self {
            dedup,
            verify: false,
            cold_passes,
            interval_seconds,
            min_run: 1,
            hash_cache_bytes,
            quota_bytes: 0,
            reservation_bytes: 0,
        }
    }

    /// These settings in another mode. Settings with the old mode's defaults get the defaults of the new
    /// one.
    #[must_use]
    pub fn in_mode(self, mode: DedupMode) -> Self {
        let (old, new) = (Self::of_mode(self.dedup), Self::of_mode(mode));
        Self {
            dedup: mode,
            cold_passes: moved(self.cold_passes, old.cold_passes, new.cold_passes),
            interval_seconds: moved(
                self.interval_seconds,
                old.interval_seconds,
                new.interval_seconds,
            ),
            hash_cache_bytes: moved(
                self.hash_cache_bytes,
                old.hash_cache_bytes,
                new.hash_cache_bytes,
            ),
            ..self
        }
    }
}

/// The new default in place of the old one; any other value stays.
fn moved<T: PartialEq>(value: T, old_default: T, new_default: T) -> T {
    if value == old_default {
        new_default
    } else {
        value
    }
}

/// Entries of a layer that refer to a block, by their state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LayerCounts {
    /// Private entries, pending dedup.
    pub private: u64,
    /// Unshareable entries.
    pub unshareable: u64,
    /// Shared entries.
    pub shared: u64,
}

/// The catalogue's record of a volume, or of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeRecord {
    /// The volume's id, which is never reused.
    pub id: VolumeId,
    /// The volume's live layer, or the snapshot's frozen one.
    pub layer: LayerId,
    /// The frozen layer below this one.
    pub below: Option<LayerId>,
    /// For a snapshot, its volume; `None` for a volume.
    pub snapshot_of: Option<VolumeId>,
    /// The stage of the volume's life.
    pub state: VolumeState,
    /// Size in bytes, a multiple of [`SECTOR_BYTES`]. The last block holds zeros beyond it.
    pub size_bytes: u64,
    /// When it was created, in seconds since the Unix epoch.
    pub created_unix_seconds: u64,
    /// The live layer's map; empty in a log record.
    pub map: TreeRoot,
    /// The volume's name: see [`name_is_valid`].
    pub name: String,
    /// The domain inside which the volume's blocks are shared.
    pub domain: DomainId,
    /// The domain's name for users: same rules as a volume's name.
    pub domain_name: String,
    /// The volume's settings. A snapshot keeps those that its volume had, except for the hash cache and
    /// the limits on space, of which it has none.
    pub settings: VolumeSettings,
    /// Entries of the live layer, as its map on disk has them; zeros in a log record.
    pub counts: LayerCounts,
}

/// Whether `name` is valid for a volume or a domain: a letter or digit, then up to 62 letters,
/// digits and `.`, `_`, `-`.
#[must_use]
pub fn name_is_valid(name: &str) -> bool {
    let starts_well = name
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_alphanumeric());
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    starts_well && name.len() <= NAME_BYTES_MAX && name.bytes().all(allowed)
}

impl VolumeRecord {
    /// Writes the record into 256 bytes of zeros at `at`.
    pub(crate) fn put(&self, bytes: &mut [u8], at: usize) {
        debug_assert!(name_is_valid(&self.name), "volume name {:?}", self.name);
        debug_assert!(
            name_is_valid(&self.domain_name),
            "domain name {:?}",
            self.domain_name
        );
        let name_len = self.name.len() as u8;
        let kind = match self.snapshot_of {
            None => KIND_VOLUME,
            Some(_) => KIND_SNAPSHOT,
        };
        let settings = &self.settings;
        let head = [kind, self.state as u8, settings.dedup as u8, name_len];
        put(bytes, at, &head);
        put(bytes, at + 4, &u32::from(self.domain.0).to_le_bytes());
        put(bytes, at + 8, &self.id.0.to_le_bytes());
        put(bytes, at + 16, &self.layer.0.to_le_bytes());
        put(bytes, at + 24, &self.size_bytes.to_le_bytes());
        put(bytes, at + 32, &self.created_unix_seconds.to_le_bytes());
        self.map.put(bytes, at + 40);
        let flags = if settings.verify { FLAG_VERIFY } else { 0 };
        put(
            bytes,
            at + 56,
            &[
                flags,
                self.domain_name.len() as u8,
                settings.cold_passes,
                (settings.min_run.clamp(*MIN_RUN.start(), *MIN_RUN.end()) - 1) as u8,
            ],
        );
        put(bytes, at + 60, &settings.interval_seconds.to_le_bytes());
        self.counts.put(bytes, at + 64);
        put(bytes, at + 88, &settings.hash_cache_bytes.to_le_bytes());
        let below = self.below.map_or(0, |layer| layer.0);
        put(bytes, at + 96, &below.to_le_bytes());
        let snapshot_of = self.snapshot_of.map_or(0, |volume| volume.0);
        put(bytes, at + 104, &snapshot_of.to_le_bytes());
        put(bytes, at + 112, &settings.quota_bytes.to_le_bytes());
        put(bytes, at + 120, &settings.reservation_bytes.to_le_bytes());
        put(bytes, at + 128, self.name.as_bytes());
        put(bytes, at + 192, self.domain_name.as_bytes());
    }

    /// Reads the record in `bytes`, which are [`VOLUME_RECORD_BYTES`] long.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Self>, FormatError> {
        if is_zero(bytes) {
            return Ok(None);
        }
        let field = |field, value| Err(FormatError::Field { field, value });
        if ![KIND_VOLUME, KIND_SNAPSHOT].contains(&bytes[0]) {
            return field("catalogue record kind", u64::from(bytes[0]));
        }
        let state = match bytes[1] {
            1 => VolumeState::Importing,
            2 => VolumeState::Ready,
            3 => VolumeState::Deleting,
            other => return field("volume state", u64::from(other)),
        };
        let (id, layer, size_bytes) = (u64_at(bytes, 8), u64_at(bytes, 16), u64_at(bytes, 24));
        if !is_id(id) {
            return field("volume id", id);
        }
        if !is_id(layer) {
            return field("layer id", layer);
        }
        let is_whole = size_bytes.is_multiple_of(SECTOR_BYTES);
        if !is_whole || !(1..=SIZE_BYTES_MAX).contains(&size_bytes) {
            return field("volume size", size_bytes);
        }
        if bytes[56] & !FLAG_VERIFY != 0 {
            return Err(FormatError::Reserved {
                structure: "volume record",
            });
        }
        let map = TreeRoot::at(bytes, 40)?;
        Ok(Some(Self {
            id: VolumeId(id),
            layer: LayerId(layer),
            below: id_or_none(bytes, 96, "layer below")?.map(LayerId),
            snapshot_of: snapshot_of_at(bytes)?,
            state,
            size_bytes,
            created_unix_seconds: u64_at(bytes, 32),
            name: name_in(&bytes[128..192], bytes[3], "volume name")?,
            domain: domain_at(bytes)?,
            domain_name: name_in(&bytes[192..256], bytes[57], "domain name")?,
            settings: VolumeSettings::in_record(bytes)?,
            counts: LayerCounts::at(bytes, &map, size_bytes)?,
            map,
        }))
    }
}

impl VolumeSettings {
    /// Reads the settings of a volume record.
    fn in_record(bytes: &[u8]) -> Result<Self, FormatError> {
        Ok(Self {
            dedup: dedup_at(bytes)?,
            verify: bytes[56] & FLAG_VERIFY != 0,
            cold_passes: within(bytes[58], COLD_PASSES, "cold passes")?,
            interval_seconds: within(u32_at(bytes, 60), INTERVAL_SECONDS, "interval")?,
            min_run: u16::from(bytes[59]) + 1,
            hash_cache_bytes: within(u64_at(bytes, 88), HASH_CACHE_BYTES, "hash cache")?,
            quota_bytes: within(u64_at(bytes, 112), SPACE_LIMIT_BYTES, "quota")?,
            reservation_bytes: within(u64_at(bytes, 120), SPACE_LIMIT_BYTES, "reservation")?,
        })
    }
}

/// The id at `at`; `None` if it is zero.
fn id_or_none(bytes: &[u8], at: usize, field: &'static str) -> Result<Option<u64>, FormatError> {
    match u64_at(bytes, at) {
        0 => Ok(None),
        id if is_id(id) => Ok(Some(id)),
        value => Err(FormatError::Field { field, value }),
    }
}

/// The volume of a snapshot; a volume must have none.
fn snapshot_of_at(bytes: &[u8]) -> Result<Option<VolumeId>, FormatError> {
    let field = "volume of a snapshot";
    let volume = id_or_none(bytes, 104, field)?;
    if volume.is_some() == (bytes[0] == KIND_SNAPSHOT) {
        Ok(volume.map(VolumeId))
    } else {
        let value = u64_at(bytes, 104);
        Err(FormatError::Field { field, value })
    }
}

/// The value, if it is in this range.
fn within<N>(value: N, range: RangeInclusive<N>, field: &'static str) -> Result<N, FormatError>
where
    N: Copy + PartialOrd + Into<u64>,
{
    if range.contains(&value) {
        Ok(value)
    } else {
        let value = value.into();
        Err(FormatError::Field { field, value })
    }
}

/// The name of this length at the start of `bytes`; the rest must be zeros.
fn name_in(bytes: &[u8], len: u8, field: &'static str) -> Result<String, FormatError> {
    let impossible = FormatError::Field {
        field,
        value: u64::from(len),
    };
    let Some((name, rest)) = bytes.split_at_checked(usize::from(len)) else {
        return Err(impossible);
    };
    let name = String::from_utf8_lossy(name).into_owned();
    if !name_is_valid(&name) {
        return Err(impossible);
    }
    if !is_zero(rest) {
        return Err(FormatError::Reserved {
            structure: "volume record",
        });
    }
    Ok(name)
}

fn dedup_at(bytes: &[u8]) -> Result<DedupMode, FormatError> {
    match bytes[2] {
        0 => Ok(DedupMode::Off),
        1 => Ok(DedupMode::Offline),
        2 => Ok(DedupMode::Inline),
        3 => Ok(DedupMode::Auto),
        other => Err(FormatError::Field {
            field: "deduplication mode",
            value: u64::from(other),
        }),
    }
}

fn domain_at(bytes: &[u8]) -> Result<DomainId, FormatError> {
    let domain = u32_at(bytes, 4);
    u16::try_from(domain)
        .map(DomainId)
        .map_err(|_| FormatError::Field {
            field: "domain id",
            value: u64::from(domain),
        })
}

impl LayerCounts {
    fn put(&self, bytes: &mut [u8], at: usize) {
        put(bytes, at, &self.private.to_le_bytes());
        put(bytes, at + 8, &self.unshareable.to_le_bytes());
        put(bytes, at + 16, &self.shared.to_le_bytes());
    }

    /// Reads the counts of a volume record. An empty map has no entries, and no map has more than
    /// one for each block of the volume, whatever the pool's block size.
    fn at(bytes: &[u8], map: &TreeRoot, size_bytes: u64) -> Result<Self, FormatError> {
        let counts = Self {
            private: u64_at(bytes, 64),
            unshareable: u64_at(bytes, 72),
            shared: u64_at(bytes, 80),
        };
        let most = map
            .top
            .map_or(0, |_| size_bytes.div_ceil(BLOCK_SIZES[0].into()));
        let sum = counts
            .private
            .saturating_add(counts.unshareable)
            .saturating_add(counts.shared);
        if sum > most {
            return Err(FormatError::Field {
                field: "number of the layer's entries",
                value: sum,
            });
        }
        Ok(counts)
    }
}

/// Writes the body of `page`. Records beyond the fifteenth are ignored.
pub fn encode(records: &[Option<VolumeRecord>], page: &mut PageBytes) {
    for (slot, record) in records.iter().take(RECORDS_PER_PAGE).enumerate() {
        if let Some(record) = record {
            record.put(page, BODY + slot * VOLUME_RECORD_BYTES);
        }
    }
}

/// Reads the body of a page that has been checked: always [`RECORDS_PER_PAGE`] slots.
///
/// # Errors
///
/// [`FormatError`] for fields and reserved bytes that no release writes.
pub fn decode(page: &PageBytes) -> Result<Vec<Option<VolumeRecord>>, FormatError> {
    let (records, rest) = page[BODY..].split_at(RECORDS_PER_PAGE * VOLUME_RECORD_BYTES);
    if !is_zero(rest) {
        return Err(FormatError::Reserved {
            structure: "catalogue page",
        });
    }
    records
        .chunks_exact(VOLUME_RECORD_BYTES)
        .map(VolumeRecord::decode)
        .collect()
}
