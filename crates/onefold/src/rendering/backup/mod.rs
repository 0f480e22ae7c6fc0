//! Renders replies of `onefold backup`.

mod create;
mod diff;
mod finding;
mod forget;
mod init;
mod key;
mod list;
mod prune;
mod remove;
mod rename;
mod repair;
mod restore;
mod share;
mod show;
mod stat;
mod verify;

pub(crate) use finding::InWords;
pub(crate) use restore::{losses, map};
