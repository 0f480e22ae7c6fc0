//! The promises of the on-disk structures, from the outside: written structures are read back,
//! changed ones are refused, version 1 stays readable, and the documents agree with the code.

#![allow(
    clippy::expect_used,
    reason = "a test ends where an expectation does not hold"
)]

mod backup;
mod census;
mod damage;
mod damage_records;
mod documents;
mod golden;
mod messages;
mod round_trip;
mod samples;
