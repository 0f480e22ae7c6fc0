//! Renders replies of `onefold backup`.

mod create;
mod finding;
mod forget;
mod list;
mod prune;
mod remove;
mod repair;
mod share;
mod show;

pub(crate) use finding::InWords;
