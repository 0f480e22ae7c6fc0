//! Options of pools and volumes, drawn from the seed.

use onefold_store::{
    CreateOptions, DedupMode, IndexKind, Provisioning, Scarcity, VolumeOptions, VolumeSettings,
};

use crate::common::{KINDS, MIB};
use crate::model::SECTOR;
use crate::random::Random;
use crate::world::World;

/// A volume with many segments, hardly any of which are used.
const WIDE_BYTES: u64 = 1536 * MIB;

/// Bytes of a small hash cache: the slots of two segments.
pub(super) const HASH_CACHE_BYTES: u64 = 24 << 10;

/// A small pool, so that blocks are reused and the log goes round.
pub(crate) fn options(random: &mut Random) -> CreateOptions {
    let block_size = *random.pick(&[4096, 4096, 4096, 4096, 8192, 16384, 65536]);
    CreateOptions {
        block_size,
        size_bytes: random.between(4, 32) * MIB,
        log_bytes: *random.pick(&[256 << 10, 256 << 10, 256 << 10, 384 << 10]),
        index: *random.pick(&KINDS),
        provisioning: if random.one_in(8) {
            Provisioning::Thick
        } else {
            Provisioning::Thin
        },
    }
}

/// In most runs so small that the log and the metadata have several, as large pools have.
pub(crate) fn object_bytes(random: &mut Random) -> u64 {
    *random.pick(&[16 << 10, 64 << 10, 64 << 10, MIB, 4 * MIB])
}

/// In some runs fingerprints collide; in some the index has no room for all, or has to merge often.
pub(crate) fn scarcity(random: &mut Random, index: IndexKind) -> Scarcity {
    match random.below(8) {
        0 => Scarcity {
            fingerprint_bits: Some(random.between(1, 4) as u32),
            ..Scarcity::default()
        },
        1..=3 if index == IndexKind::Hash => Scarcity {
            index_bytes: Some(random.between(0, 4) as usize * 1024),
            ..Scarcity::default()
        },
        1 if index == IndexKind::Memory => Scarcity {
            index_bytes: Some(random.between(1, 64) as usize * 1024),
            ..Scarcity::default()
        },
        _ => Scarcity::default(),
    }
}

impl World {
    pub(super) fn draw_volume(&self) -> VolumeOptions {
        let (other_domain, verify) = self.draw(|random| (random.one_in(4), random.one_in(3)));
        let has_hash_cache = self.draw(|random| random.one_in(2));
        let verify = verify || self.must_verify();
        let settings = VolumeSettings {
            dedup: self.draw_mode(),
            min_run: self.draw_min_run(),
            verify,
            cold_passes: self.draw(|random| random.between(1, 3)) as u8,
            hash_cache_bytes: if has_hash_cache { HASH_CACHE_BYTES } else { 0 },
            ..VolumeSettings::default()
        };
        VolumeOptions {
            domain: if other_domain { "other" } else { "default" }.to_owned(),
            ..VolumeOptions::new(self.draw_size()).with(settings)
        }
    }

    /// In line more often than not, so that most runs have such a volume.
    pub(super) fn draw_mode(&self) -> DedupMode {
        let modes = [
            DedupMode::Inline,
            DedupMode::Inline,
            DedupMode::Auto,
            DedupMode::Offline,
            DedupMode::Off,
        ];
        self.draw(|random| *random.pick(&modes))
    }

    /// Seldom above 1, for the same reason as in [`World::unshare_some`].
    pub(super) fn draw_min_run(&self) -> u16 {
        let is_wanted = self.draw(|random| random.one_in(32));
        self.state().has_own_copies |= is_wanted;
        if is_wanted {
            self.draw(|random| random.between(2, 8)) as u16
        } else {
            1
        }
    }

    /// One in three ends inside a block.
    pub(super) fn draw_size(&self) -> u64 {
        self.draw(|random| {
            let size = if random.one_in(5) {
                WIDE_BYTES
            } else {
                random.between(1, 48) * (128 << 10)
            };
            if random.one_in(3) {
                size - random.between(1, 127) * SECTOR
            } else {
                size
            }
        })
    }

    /// If fingerprints collide, only comparing the bytes distinguishes contents.
    pub(super) fn must_verify(&self) -> bool {
        self.state().scarcity.fingerprint_bits.is_some()
    }
}
