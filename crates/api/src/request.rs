//! The parts of each request.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::openapi::Described;
use crate::service::Service;

/// The version of all JSON documents. A field that is removed, renamed or changes its meaning raises it;
/// a field that is added does not.
pub const SCHEMA_VERSION: u32 = 1;

/// `report(done, all)` of a long piece of work, in bytes wherever it is about data.
pub type Report<'a> = &'a mut (dyn FnMut(u64, u64) + Send);

/// One thing to do, and everything needed to do it.
pub trait Request: Serialize + DeserializeOwned + Described + Send + 'static {
    /// Where the control socket offers it.
    const PATH: &'static str;

    /// Its reply.
    type Reply: Serialize + DeserializeOwned + Described + Send + 'static;

    /// Refuses requests that every pool would refuse.
    ///
    /// # Errors
    /// [`Usage`](crate::ErrorKind::Usage), with the fault.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Carries it out. [`Service::call`] checks it first.
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
    /// A document of the present version.
    pub fn new(document: T) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            document,
        }
    }

    /// The document without its version.
    pub fn into_document(self) -> T {
        self.document
    }
}
