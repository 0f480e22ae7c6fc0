//! Analyses against the truth.

#![allow(clippy::unwrap_used, reason = "how tests fail")]

mod exact;
mod harnik;
mod traces;
mod trees;
