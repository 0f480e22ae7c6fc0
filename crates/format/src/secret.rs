//! The pool's secret: one page, written once when the pool is created.
//!
//! ```text
//! 64 secret   32 bytes   random
//! 96 zeros
//! ```
//!
//! The keys of all fingerprints are derived from the secret, one for each domain. It is a separate
//! part, so that copies of metadata, made for inspection or to be sent elsewhere, do not include
//! the secret by accident.

use std::fmt;

use crate::bytes::{array_at, is_zero, put};
use crate::error::FormatError;
use crate::page::{self, BODY, PageBytes, PageHeader, PageKind};
use crate::units::{PageNumber, PoolId};

/// Bytes in a secret.
pub const SECRET_BYTES: usize = 32;

/// A secret, which only readers of the pool's files may know.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub [u8; SECRET_BYTES]);

/// Prints nothing of the secret, because others read messages and logs.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// The page that holds the secret.
    #[must_use]
    pub fn encode(&self, pool: PoolId) -> Box<PageBytes> {
        let mut page = page::blank();
        put(&mut *page, BODY, &self.0);
        page::seal(&mut page, &header(pool));
        page
    }

    /// Decodes a secret.
    ///
    /// # Errors
    ///
    /// Any [`FormatError`]; [`FormatError::Field`] for a secret of zeros, which no working
    /// generator of random numbers returns.
    pub fn decode(page: &PageBytes, pool: PoolId) -> Result<Self, FormatError> {
        page::open(page, &header(pool))?;
        if !is_zero(&page[BODY + SECRET_BYTES..]) {
            return Err(FormatError::Reserved {
                structure: "secret",
            });
        }
        let secret: [u8; SECRET_BYTES] = array_at(page, BODY);
        if is_zero(&secret) {
            return Err(FormatError::Field {
                field: "secret",
                value: 0,
            });
        }
        Ok(Self(secret))
    }
}

fn header(pool: PoolId) -> PageHeader {
    PageHeader {
        kind: PageKind::Secret,
        level: 0,
        pool,
        page: PageNumber(0),
        owner: 0,
        index: 0,
        sequence: 0,
    }
}
