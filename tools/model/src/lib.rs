//! The protocol of onefold as an explicit-state model: write, commit, checkpoint, finder,
//! collector, layers, crash and recovery, searched to the end for every order of steps that a small
//! pool and a bounded number of events allow. `docs/model.md` says which protocol that is, what
//! each rule is for, and what the model leaves out.
//!
//! May use: no other crate of onefold. It says a second time, and shorter, what the product does.
//!
//! Reading order: [`guards`] (the rules), [`image`] (what the log describes, and `apply`),
//! [`index`], [`state`] (disk, memory, promises), `volume_steps`, `commit`, `batch`, `finder`,
//! `collector`, `layers`, [`recovery`], `rebuild`, [`properties`] (what must hold), [`model`]
//! (which step is possible when), [`configs`] and [`search`].
//!
//! Invariants of the model itself: a step that is not possible changes nothing; a state with a
//! violation has no successors.

mod batch;
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
mod rebuild;
pub mod recovery;
pub mod search;
pub mod state;
mod volume_steps;
