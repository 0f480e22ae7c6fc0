//! Groups that share a pool: two stores with one owner each, a data space, and an index in shards with owners of their
//! own. Groups and shards exchange messages, which arrive late, twice or never; owners die; shards lose their index.
//!
//! [`extents`] is a second, smaller model: the extents of the data space, and owners that are fenced and still write.
//!
//! Reading order: [`guards`] (the rules), [`state`], `guests` (writes, reads, hits), `batches` (finder, collector,
//! counting, recall), `shards` (calls, holds, sessions), `rebuild`, `properties`, [`model`] (which steps there are),
//! [`config`], [`search`] and [`report`].

mod batches;
pub mod config;
pub mod extents;
pub mod few;
pub mod guards;
mod guests;
pub mod milestone;
pub mod model;
mod properties;
mod protocol;
mod rebuild;
pub mod report;
pub mod search;
mod shards;
pub mod state;
pub mod violation;
