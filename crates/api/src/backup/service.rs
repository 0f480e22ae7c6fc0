//! An open repository, at which requests are carried out.

use std::fmt;
use std::sync::Arc;

use onefold_backup::{DiskHost, Opened, Supervision};
use onefold_repository::{Access, Repository};

use super::request::RepositoryRequest;
use super::restore::RestoreTarget;
use crate::error::{Error, Result};

/// How completely a request was carried out, apart from its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Nothing is left to do, and nothing is wrong.
    Complete,
    /// Damage was found.
    Damaged,
    /// A part of the request failed, for which warnings give the reasons.
    Incomplete,
}

/// A reply, and how completely the request was carried out.
#[derive(Debug)]
pub struct Answer<T> {
    /// The reply.
    pub reply: T,
    /// How completely the request was carried out.
    pub outcome: Outcome,
}

/// Reads the key that a request adds, from where the user keeps it; `None` if none was given.
pub type ReadNewKey<'a> = &'a dyn Fn() -> Result<Option<Access>>;

/// An open repository, and the caller that observes the work.
pub struct RepositoryService<'a> {
    opened: &'a Opened,
    disks: Option<&'a dyn DiskHost>,
    outcome: Outcome,
    read_new_key: Option<ReadNewKey<'a>>,
    restore_target: Option<&'a dyn RestoreTarget>,
}

impl<'a> RepositoryService<'a> {
    /// A service for one request.
    #[must_use]
    pub fn new(opened: &'a Opened) -> Self {
        Self {
            opened,
            disks: None,
            outcome: Outcome::Complete,
            read_new_key: None,
            restore_target: None,
        }
    }

    /// Lets the request add a key.
    #[must_use]
    pub fn with_new_key(self, read: ReadNewKey<'a>) -> Self {
        Self {
            read_new_key: Some(read),
            ..self
        }
    }

    /// The same service with a host that opens disks to back up.
    #[must_use]
    pub fn with_disks(self, disks: &'a dyn DiskHost) -> Self {
        Self {
            disks: Some(disks),
            ..self
        }
    }

    /// Lets the request restore to this target.
    #[must_use]
    pub fn with_restore_target(self, target: &'a dyn RestoreTarget) -> Self {
        Self {
            restore_target: Some(target),
            ..self
        }
    }

    /// Checks a request and carries it out.
    ///
    /// # Errors
    /// The request's own errors.
    pub fn call<R: RepositoryRequest>(mut self, request: &R) -> Result<Answer<R::Reply>> {
        request.check()?;
        let reply = request.run(&mut self)?;
        let outcome = self.outcome;
        Ok(Answer { reply, outcome })
    }

    /// The host that opens disks to back up.
    pub(crate) fn disks(&self) -> Result<&'a dyn DiskHost> {
        let disks = self.disks;
        disks.ok_or_else(|| Error::failed("no disk can be opened here"))
    }

    /// The repository with this host's memory of it.
    pub(crate) fn opened(&self) -> &'a Opened {
        self.opened
    }

    /// The key to add; `None` if the caller gave none.
    pub(crate) fn new_key(&self) -> Result<Option<Access>> {
        self.read_new_key.map_or(Ok(None), |read| read())
    }

    /// The target to restore to.
    pub(crate) fn restore_target(&self) -> Result<&'a dyn RestoreTarget> {
        self.restore_target
            .ok_or_else(|| Error::failed("the caller gave no target to restore to"))
    }

    /// The repository.
    pub(crate) fn repository(&self) -> &'a Arc<Repository> {
        self.opened.repository()
    }

    /// The caller that observes and may interrupt the work.
    pub(crate) fn supervision(&self) -> &'a Supervision {
        self.opened.supervision()
    }

    /// Warns the caller.
    pub(crate) fn warn(&self, message: impl fmt::Display) {
        self.supervision().warn(message);
    }

    /// Warns of objects that cannot be read, and records that damage was found if there are any.
    pub(crate) fn found_damaged(&mut self, damaged: &[impl fmt::Display]) {
        for error in damaged {
            self.warn(error);
        }
        if !damaged.is_empty() {
            self.found(Outcome::Damaged);
        }
    }

    /// Records an outcome. The worst one stays.
    pub(crate) fn found(&mut self, outcome: Outcome) {
        self.outcome = self.outcome.max(outcome);
    }
}
