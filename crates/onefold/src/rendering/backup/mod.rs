//! Renders replies of `onefold backup`.

mod finding;
mod list;
mod remove;
mod show;

pub(crate) use finding::InWords;
