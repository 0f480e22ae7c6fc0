//! Renders replies of `onefold backup`.

mod finding;
mod forget;
mod list;
mod remove;
mod show;

pub(crate) use finding::InWords;
