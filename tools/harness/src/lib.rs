//! The common parts of checks and benchmarks: running programs and servers, real input, and cleaning up.
//!
//! May use: the system's programs (apt, fio, QEMU, cargo), and the product only as its binary, as a user does. Must
//! not: use any crate of the product, because a check must not rely on the code that it checks. The other tools use it;
//! the product does not.
//!
//! Reading order: `command` (running programs), `usage` (their processor time), `cleanup` (cleaning up), `workspace`
//! (paths), `packages` and `images` (real input), `server` and `fio` (the two ends of a test), `fuse` (an export as a
//! file), `loop_device` (a file as a device), `background` (the product's finder and collector), `inline` (duplicates
//! found by writes), `distinct` (the number of blocks that they must find), `ceph` (a cluster to store pools in),
//! `pools` (in a directory or in a cluster).

pub mod background;
pub mod ceph;
pub mod cleanup;
pub mod command;
pub mod distinct;
pub mod fio;
pub mod fuse;
pub mod images;
pub mod inline;
pub mod loop_device;
pub mod packages;
pub mod pools;
pub mod server;
pub mod usage;
pub mod workspace;
