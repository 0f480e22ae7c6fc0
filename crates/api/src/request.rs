//! The traits and types that all requests have in common.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::openapi::Described;
use crate::service::Service;

/// The version of all JSON documents. Removing or renaming a field, or changing its meaning, raises the
/// version; adding a field does not.
pub const SCHEMA_VERSION: u32 = 1;

/// A progress callback, `report(done, all)`, in bytes wherever the work is about data.
pub type Report<'a> = &'a mut (dyn FnMut(u64, u64) + Send);

/// A request: an operation and all its arguments.
pub trait Request: Serialize + DeserializeOwned + Described + Send + 'static {
    /// The path of the request on the control socket.
    const PATH: &'static str;

    /// The type of the request's reply.
    type Reply: Serialize + DeserializeOwned + Described + Send + 'static;

    /// Refuses a request that is invalid for every pool.
    ///
    /// # Errors
    /// [`Usage`](crate::ErrorKind::Usage), with the fault.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Carries out the request, which [`Service::call`] has already checked.
    ///
    /// # Errors
    /// The operation, the volume or address, and a remedy.
    fn run(&self, service: &Service, report: Report<'_>) -> Result<Self::Reply>;
}

/// A JSON document with the version of its schema.
#[derive(Debug, Serialize, Deserialize)]
pub struct Versioned<T> {
    schema_version: u32,
    #[serde(flatten)]
    document: T,
}

impl<T> Versioned<T> {
    /// Wraps a document with the current schema version.
    pub fn new(document: T) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            document,
        }
    }

    /// Returns the document without its version.
    pub fn into_document(self) -> T {
        self.document
    }
}
