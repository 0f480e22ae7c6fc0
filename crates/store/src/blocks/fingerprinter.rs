//! Fingerprints of a pool's blocks: keyed, so that blocks of different domains never have the same.

use onefold_format::{DomainId, Secret};
use onefold_index::{Fingerprint, Key};

pub(crate) struct Fingerprinter {
    /// The secret that the keys of the domains are derived from.
    secret: Secret,
    block_size: usize,
}

impl Fingerprinter {
    pub(crate) fn new(secret: Secret, block_size: u32) -> Self {
        Self {
            secret,
            block_size: block_size as usize,
        }
    }

    pub(crate) fn secret(&self) -> &Secret {
        &self.secret
    }

    /// The fingerprints of whole blocks of a domain, made with the domain's `key`.
    pub(crate) fn fingerprints(
        &self,
        key: &Key,
        #[cfg_attr(not(feature = "simulation"), expect(unused_variables))] domain: DomainId,
        blocks: &[u8],
    ) -> Vec<Fingerprint> {
        let mut fingerprints = Vec::with_capacity(blocks.len() / self.block_size);
        key.fingerprints(blocks, self.block_size, &mut fingerprints);
        #[cfg(feature = "simulation")]
        make_collide(&mut fingerprints, domain);
        fingerprints
    }

    /// The key of a domain.
    pub(crate) fn key(&self, domain: DomainId) -> Key {
        Key::derive(&self.secret.0, domain.0)
    }
}

/// Keeps only as many bits as the simulation wants. Fingerprints of different domains still differ.
#[cfg(feature = "simulation")]
fn make_collide(fingerprints: &mut [Fingerprint], domain: DomainId) {
    let Some(bits) = onefold_metadata::Scarcity::now().fingerprint_bits else {
        return;
    };
    for fingerprint in fingerprints {
        let kept = u64::from(fingerprint.0[0]) & ((1 << bits) - 1);
        fingerprint.0 = [0; 16];
        fingerprint.0[0] = kept as u8;
        fingerprint.0[8..10].copy_from_slice(&domain.0.to_le_bytes());
    }
}
