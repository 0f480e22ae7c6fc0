//! Keys, and the chunks that they protect.
//!
//! Every object with chunks has a key of its own, derived from the master key and the object's header, which
//! names the object and has a random salt; the number of a chunk is its nonce. So no nonce is used twice with a key,
//! despite crashes and concurrent writers, even if a copy of the host draws the same salt for another object.
//! The header is also authenticated with each chunk: a chunk of another object, or another chunk of this one, is
//! refused.
//!
//! A repository without encryption has the same layout: a keyed hash takes the place of the cipher's tag,
//! and its master key follows from the repository's id.

use std::fmt;

use onefold_format::backup::object::{OBJECT_HEADER_BYTES, salt_of};
use onefold_format::backup::{RepositoryId, Sealing, Source, SourceId, TAG_BYTES, Witness};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

const CHUNK_CONTEXT: &str = "onefold 2026-11-28 chunks of one object of a repository";
const FINGERPRINT_CONTEXT: &str = "onefold 2026-11-25 fingerprints of a repository";
const POPULAR_CONTEXT: &str = "onefold 2026-11-26 ids of the popular blocks of a repository";
const PLAIN_CONTEXT: &str = "onefold 2026-11-25 master key of a repository without encryption";

/// The key from which all others of a repository are derived.
#[derive(Clone)]
pub(crate) struct MasterKey(pub(crate) [u8; 32]);

/// Redacts the key.
impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey(..)")
    }
}

impl MasterKey {
    /// The master key of a repository without encryption, which is public.
    pub(crate) fn plain(repository: RepositoryId) -> Self {
        Self(blake3::derive_key(PLAIN_CONTEXT, &repository.0))
    }

    /// The secret from which the keys of fingerprints are derived.
    pub(crate) fn fingerprint_secret(&self) -> [u8; 32] {
        blake3::derive_key(FINGERPRINT_CONTEXT, &self.0)
    }

    /// The id of the store of popular blocks that a source shares with others.
    pub(crate) fn popular_id(&self, source: &Source) -> SourceId {
        let mut hasher = blake3::Hasher::new_derive_key(POPULAR_CONTEXT);
        hasher.update(&self.0);
        hasher.update(&source.block_size.to_le_bytes());
        hasher.update(source.domain.as_bytes());
        let mut id = [0; 8];
        hasher.finalize_xof().fill(&mut id);
        SourceId(u64::from_le_bytes(id).max(1))
    }

    /// The key of the chunks of the object with this header.
    pub(crate) fn chunks(&self, sealing: Sealing, header: [u8; OBJECT_HEADER_BYTES]) -> ChunkKey {
        let mut hasher = blake3::Hasher::new_derive_key(CHUNK_CONTEXT);
        hasher.update(&self.0);
        hasher.update(&header);
        let bytes = *hasher.finalize().as_bytes();
        let cipher = match sealing {
            Sealing::Authenticated => Cipher::Hash(bytes),
            Sealing::Encrypted => Cipher::Aes(aes(&bytes).map(Box::new)),
        };
        ChunkKey { cipher, header }
    }
}

/// AES-256-GCM with a key of the right length.
pub(crate) fn aes(key: &[u8; 32]) -> Option<LessSafeKey> {
    UnboundKey::new(&AES_256_GCM, key)
        .ok()
        .map(LessSafeKey::new)
}

/// Seals and opens the chunks of one object.
pub(crate) struct ChunkKey {
    cipher: Cipher,
    header: [u8; OBJECT_HEADER_BYTES],
}

enum Cipher {
    /// `None` only if the library refuses a key of the right length, which it never does: then no chunk
    /// is sealed or opened.
    Aes(Option<Box<LessSafeKey>>),
    Hash([u8; 32]),
}

/// The error for a chunk that is not authentic.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("its content is not authentic")]
pub(crate) struct NotAuthentic;

impl ChunkKey {
    /// The header of the object.
    pub(crate) fn header(&self) -> [u8; OBJECT_HEADER_BYTES] {
        self.header
    }

    /// The object's salt, which distinguishes it from every other object that ever has its name.
    pub(crate) fn witness(&self) -> Witness {
        Witness(salt_of(&self.header))
    }

    /// Seals chunk `number`, which becomes [`TAG_BYTES`] longer.
    pub(crate) fn seal(&self, number: u32, chunk: &mut Vec<u8>) -> Result<(), NotAuthentic> {
        match &self.cipher {
            Cipher::Aes(key) => {
                let key = key.as_ref().ok_or(NotAuthentic)?;
                let aad = Aad::from(&self.header);
                key.seal_in_place_append_tag(nonce(number), aad, chunk)
                    .map_err(|_| NotAuthentic)
            }
            Cipher::Hash(key) => {
                let tag = self.hash(key, number, chunk);
                chunk.extend(tag);
                Ok(())
            }
        }
    }

    /// Opens chunk `number`, which becomes [`TAG_BYTES`] shorter.
    pub(crate) fn open(&self, number: u32, chunk: &mut Vec<u8>) -> Result<(), NotAuthentic> {
        let content_bytes = chunk.len().checked_sub(TAG_BYTES).ok_or(NotAuthentic)?;
        match &self.cipher {
            Cipher::Aes(key) => {
                let key = key.as_ref().ok_or(NotAuthentic)?;
                let aad = Aad::from(&self.header);
                key.open_in_place(nonce(number), aad, chunk)
                    .map_err(|_| NotAuthentic)?;
            }
            Cipher::Hash(key) => {
                let (content, tag) = chunk.split_at(content_bytes);
                if self.hash(key, number, content) != tag {
                    return Err(NotAuthentic);
                }
            }
        }
        chunk.truncate(content_bytes);
        Ok(())
    }

    fn hash(&self, key: &[u8; 32], number: u32, content: &[u8]) -> [u8; TAG_BYTES] {
        let mut hasher = blake3::Hasher::new_keyed(key);
        hasher.update(&self.header);
        hasher.update(&number.to_le_bytes());
        hasher.update(content);
        let mut tag = [0; TAG_BYTES];
        hasher.finalize_xof().fill(&mut tag);
        tag
    }
}

fn nonce(number: u32) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}
