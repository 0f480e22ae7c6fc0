//! The protocol of onefold as an explicit-state model.

pub mod bits;
mod collector;
mod commit;
pub mod configs;
mod finder;
pub mod guards;
pub mod image;
pub mod index;
mod layers;
pub mod model;
pub mod properties;
pub mod recovery;
pub mod search;
pub mod state;
mod volume_steps;
