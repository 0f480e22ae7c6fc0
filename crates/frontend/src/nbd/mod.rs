//! The NBD protocol: what is said before and after an export is chosen.

pub mod client;
pub(crate) mod connection;
pub(crate) mod execution;
pub mod handshake;
mod input;
mod reply;
pub mod request;
mod send_queue;
pub mod wire;
