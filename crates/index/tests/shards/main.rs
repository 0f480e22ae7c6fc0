//! The shards of a shared pool's index: parts of batches, calls that are lost, late or doubled, and owners that die.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is how a test fails")]

mod calls;
mod hosts;
mod parts;
mod serving;
mod story;
