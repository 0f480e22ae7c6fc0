//! Passphrases and key files, and the master key that they unwrap.

use std::fmt::{self, Write as _};

use argon2::{Algorithm, Argon2, Params, Version};
use onefold_format::backup::key::WRAPPED_BYTES;
use onefold_format::backup::{Derivation, WrappedKey};
use ring::aead::{Aad, NONCE_LEN, Nonce};

use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::folder::fill_random;
use crate::seal::{MasterKey, aes};

const KEY_FILE_CONTEXT: &str = "onefold 2026-11-25 wrapping key from a key file";

/// Argon2id with 64 MiB and three passes: RFC 9106's choice for machines with little memory, with one
/// lane, because one thread computes it.
const DERIVATION: Derivation = Derivation::Passphrase {
    memory_kib: 64 << 10,
    passes: 3,
    lanes: 1,
};

/// The secret that opens a repository.
#[derive(Clone)]
pub enum Access {
    /// A passphrase.
    Passphrase(Vec<u8>),
    /// The content of a key file: any bytes.
    KeyFile(Vec<u8>),
    /// No secret, because the repository is not encrypted.
    Open,
}

/// Redacts the secret.
impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Passphrase(_) => "Passphrase(..)",
            Self::KeyFile(_) => "KeyFile(..)",
            Self::Open => "Open",
        })
    }
}

/// A key for the case that all others are lost: the content of a key file, which the user prints once.
pub struct RecoveryKey(pub(crate) [u8; 32]);

/// Redacts the key.
impl fmt::Debug for RecoveryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecoveryKey(..)")
    }
}

/// Groups of hexadecimal digits, as people copy them.
impl fmt::Display for RecoveryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, pair) in self.0.chunks(2).enumerate() {
            if n > 0 {
                f.write_char('-')?;
            }
            pair.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        }
        Ok(())
    }
}

impl RecoveryKey {
    /// Creates a recovery key, which no repository knows yet.
    ///
    /// # Errors
    ///
    /// If the system has no random numbers.
    pub fn new() -> Result<Self> {
        let mut bytes = [0; 32];
        fill_random(&mut bytes).map_err(|e| RepositoryError::io("no random numbers", &e))?;
        Ok(Self(bytes))
    }

    /// The access that the key gives: its text opens the repository as a key file.
    #[must_use]
    pub fn access(&self) -> Access {
        Access::KeyFile(self.to_string().into_bytes())
    }
}

/// Wraps the master key.
pub(crate) fn wrap(
    master: &MasterKey,
    access: &Access,
    is_recovery: bool,
    created_unix_seconds: u64,
) -> Result<WrappedKey> {
    let mut random = [0; 24];
    fill_random(&mut random).map_err(|e| RepositoryError::io("no random numbers", &e))?;
    let [salt @ .., _, _, _, _, _, _, _, _] = random;
    let mut number = [0; 8];
    number.copy_from_slice(&random[16..]);
    let mut key = WrappedKey {
        number: u64::from_le_bytes(number),
        derivation: match access {
            Access::Passphrase(_) => DERIVATION,
            Access::KeyFile(_) | Access::Open => Derivation::KeyFile,
        },
        salt,
        is_recovery,
        created_unix_seconds,
        wrapped: [0; WRAPPED_BYTES],
    };
    let failed = || RepositoryError::new(RepositoryErrorKind::Invalid, "the key cannot be wrapped");
    let wrapping = derive(&key, access)?.and_then(|bytes| aes(&bytes));
    let mut wrapped = master.0.to_vec();
    wrapping
        .ok_or_else(failed)?
        .seal_in_place_append_tag(nonce(), Aad::empty(), &mut wrapped)
        .map_err(|_| failed())?;
    key.wrapped.copy_from_slice(&wrapped);
    Ok(key)
}

/// Unwraps the master key; `None` if `access` does not open this key.
pub(crate) fn unwrap(key: &WrappedKey, access: &Access) -> Result<Option<MasterKey>> {
    let Some(wrapping) = derive(key, access)?.and_then(|bytes| aes(&bytes)) else {
        return Ok(None);
    };
    let mut wrapped = key.wrapped;
    let Ok(opened) = wrapping.open_in_place(nonce(), Aad::empty(), &mut wrapped) else {
        return Ok(None);
    };
    Ok(<[u8; 32]>::try_from(&*opened).ok().map(MasterKey))
}

/// The wrapping key; `None` if this key is not wrapped by this kind of secret. Its salt is used once, so a constant
/// nonce suffices.
fn derive(key: &WrappedKey, access: &Access) -> Result<Option<[u8; 32]>> {
    match (key.derivation, access) {
        (
            Derivation::Passphrase {
                memory_kib,
                passes,
                lanes,
            },
            Access::Passphrase(passphrase),
        ) => {
            let failed = |error: argon2::Error| {
                let message = format!("the passphrase cannot be tried: {error}");
                RepositoryError::new(RepositoryErrorKind::Invalid, message)
            };
            let params = Params::new(memory_kib, passes, lanes, Some(32)).map_err(failed)?;
            let mut bytes = [0; 32];
            Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
                .hash_password_into(passphrase, &key.salt, &mut bytes)
                .map_err(failed)?;
            Ok(Some(bytes))
        }
        (Derivation::KeyFile, Access::KeyFile(content)) => {
            let mut hasher = blake3::Hasher::new_derive_key(KEY_FILE_CONTEXT);
            hasher.update(&key.salt);
            hasher.update(content.trim_ascii());
            Ok(Some(*hasher.finalize().as_bytes()))
        }
        _ => Ok(None),
    }
}

fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}
