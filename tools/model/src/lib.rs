//! The protocol of onefold as an explicit-state model: write, hit, commit, checkpoint, finder, collector, counting,
//! layers, crash and recovery, searched exhaustively for every order of steps that a small pool and a bounded number of
//! events allow. `docs/model.md` describes the protocol, the purpose of each rule, and the omissions of the model.
//!
//! May use: no other crate of onefold. It repeats the product's protocol in a shorter form.
//!
//! Reading order: [`guards`] (the rules), [`image`] (the state that the log describes, and `apply`), [`index`],
//! [`state`] (disk, memory, promises), `volume_steps`, `hits`, `commit`, `batch`, `finder`, `collector`, `counting`,
//! `layers`, [`recovery`], `rebuild`, [`properties`] (the invariants), [`milestones`] (events that a search must
//! reach), [`model`] (which step is possible when), [`configs`] and [`search`]. [`groups`] is a separate model of stores
//! that share a pool; [`popular`], [`share`], [`history`] and [`identity`] are models of the repository of backups.
//!
//! Invariants of the model itself: a step that is not possible changes nothing; a state with a violation has no
//! successors.

mod batch;
pub mod bits;
mod collector;
mod commit;
pub mod configs;
mod counting;
mod finder;
pub mod groups;
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
