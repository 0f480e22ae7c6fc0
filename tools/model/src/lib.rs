//! The protocol of onefold as an explicit-state model: write, hit, commit, checkpoint, finder,
//! collector, counting, layers, crash and recovery, searched to the end for every order of steps
//! that a small pool and a bounded number of events allow. `docs/model.md` says which protocol that
//! is, what each rule is for, and what the model leaves out.
//!
//! May use: no other crate of onefold. It says a second time, and shorter, what the product does.
//!
//! Reading order: [`guards`] (the rules), [`image`] (what the log describes, and `apply`),
//! [`index`], [`state`] (disk, memory, promises), `volume_steps`, `hits`, `commit`, `batch`,
//! `finder`, `collector`, `counting`, `layers`, [`recovery`], `rebuild`, [`properties`] (what must
//! hold), [`milestones`] (what a search must come across), [`model`] (which step is possible when),
//! [`configs`] and [`search`]. [`popular`], [`share`], [`history`] and [`identity`] are models of
//! their own: of the repository of backups.
//!
//! Invariants of the model itself: a step that is not possible changes nothing; a state with a
//! violation has no successors.

mod batch;
pub mod bits;
mod collector;
mod commit;
pub mod configs;
mod counting;
mod finder;
pub mod guards;
pub mod history;
mod hits;
pub mod identity;
pub mod image;
pub mod index;
mod layers;
pub mod milestone;
pub mod milestones;
pub mod model;
pub mod popular;
pub mod properties;
mod rebuild;
pub mod recovery;
pub mod search;
pub mod share;
pub mod state;
mod volume_steps;
