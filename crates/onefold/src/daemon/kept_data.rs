//! An open file description of the pool's data that outlives this process.
//!
//! The kernel reports a failed write-back once to each open file description, and not to descriptions opened
//! after any process, even one that died at once, has received the report. A service manager that keeps a
//! description across restarts (systemd, with `FileDescriptorStoreMax=` of 1 or more) lets the next process
//! receive reports that this one could not act on.

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

/// The name of the description at the service manager.
const NAME: &str = "onefold-data";

/// The environment variable with the service manager's notification socket.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// Takes over the description that an earlier process left with the service manager.
pub(super) fn inherited(inherited: &mut Inherited) -> Option<File> {
    let at = inherited.files.iter().position(|(name, _)| name == NAME)?;
    Some(File::from(inherited.files.swap_remove(at).1))
}

/// Passes a description to the service manager, if there is one. If none is kept, the next process can detect
/// fewer losses: see docs/operating/recovery.md.
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
