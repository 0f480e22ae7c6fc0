//! What the on-disk structures promise, from the outside: what is written is read back, what was
//! changed since is refused, what version 1 wrote stays readable, and the documents agree with
//! the code.

#![allow(
    clippy::expect_used,
    reason = "a test ends where an expectation does not hold"
)]

mod damage;
mod documents;
mod golden;
mod round_trip;
mod samples;
