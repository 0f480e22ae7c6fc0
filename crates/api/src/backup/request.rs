//! The traits that all requests at a repository have in common.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::service::RepositoryService;
use crate::error::Result;
use crate::openapi::Described;

/// How a request uses the repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepositoryUse {
    /// Reads, for a moment; an interruption ends the process.
    Read,
    /// Reads for a long time; an interruption ends the work.
    LongRead,
    /// Changes the repository; an interruption ends the work. A source that went back is refused.
    Change,
}

/// A verb of `onefold backup` with all its arguments, and its reply.
pub trait RepositoryVerb: Serialize + DeserializeOwned + Described + Send + 'static {
    /// The words of the command, such as `backup list`.
    const NAME: &'static str;

    /// The type of the reply.
    type Reply: Serialize + DeserializeOwned + Described + Send + 'static;

    /// Refuses a request that is invalid for every repository.
    ///
    /// # Errors
    /// [`Usage`](crate::ErrorKind::Usage), with the fault.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// A verb that is carried out at an open repository.
pub trait RepositoryRequest: RepositoryVerb {
    /// How the request uses the repository.
    const USE: RepositoryUse;

    /// Carries out the request, which [`RepositoryService::call`] has already checked.
    ///
    /// # Errors
    /// The operation, the source or backup, and a remedy.
    fn run(&self, at: &mut RepositoryService<'_>) -> Result<Self::Reply>;
}

/// The reply of a request that only plans until it is confirmed.
pub trait Planned {
    /// Whether nothing of the plan is left to do: it was carried out, or there was nothing to do.
    fn is_settled(&self) -> bool;
}
