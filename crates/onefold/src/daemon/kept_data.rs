//! A description of the pool's data that outlives this process.
//!
//! The kernel reports data that it could not write once to each open description, and to none that is
//! opened later if a process has heard of it, be it one that died at once. A service manager that keeps
//! a description over restarts (systemd, with `FileDescriptorStoreMax=` of 1 or more) lets the next
//! process ask what this one could not act on.

use std::env;
use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use onefold_engine::embedded::{CacheMode, EmbeddedEngine};
use onefold_nbd::Inherited;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sendmsg_addr, socket_with,
};

use crate::pool::place::PoolPlace;

/// The name under which the service manager keeps it.
const NAME: &str = "onefold-data";

/// Where the service manager listens for notifications.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// The description that an earlier process gave the service manager.
pub(super) fn inherited(inherited: &mut Inherited) -> Option<File> {
    let at = inherited.files.iter().position(|(name, _)| name == NAME)?;
    Some(File::from(inherited.files.swap_remove(at).1))
}

/// Gives one to the service manager, if there is one. Without it, or if it keeps none, the next
/// process knows less: see docs/operating/recovery.md.
pub(super) fn keep(pool: &PoolPlace) {
    let (PoolPlace::Directory(directory), Some(socket)) = (pool, env::var_os(NOTIFY_SOCKET)) else {
        return;
    };
    let engine = EmbeddedEngine::new(directory, CacheMode::Host);
    let kept = engine
        .describe_data()
        .and_then(|data| send(socket.as_encoded_bytes(), &data));
    if let Err(error) = kept {
        tracing::warn!("the service manager cannot keep the pool's data open: {error}");
    }
}

fn send(socket: &[u8], data: &File) -> io::Result<()> {
    let address = match socket.strip_prefix(b"@") {
        Some(name) => SocketAddrUnix::new_abstract_name(name)?,
        None => SocketAddrUnix::new(socket)?,
    };
    let sender = socket_with(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [data.as_fd()];
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("no room for one descriptor"));
    }
    let message = format!("FDSTORE=1\nFDNAME={NAME}\n");
    let parts = [IoSlice::new(message.as_bytes())];
    sendmsg_addr(sender, &address, &parts, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}
