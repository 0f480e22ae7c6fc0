//! The addresses at which clients connect: unix sockets, TCP, and sockets handed down by systemd.
//!
//! [`crate::unix_socket`] gives unix sockets their names and permissions.

use crate::socket::Socket;
use crate::unix_socket::{SocketName, lacks_space, listen_unix};
use std::fmt;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// An address at which to listen: `unix:PATH` or `HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// A unix stream socket of this name.
    Unix(PathBuf),
    /// A TCP port of a host name or address; port 0 takes any free one.
    Tcp(String),
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err(format!("{text:?} names no socket: write unix:PATH"));
            }
            return Ok(ListenAddress::Unix(PathBuf::from(path)));
        }
        match text.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(ListenAddress::Tcp(text.to_owned()))
            }
            _ => Err(format!(
                "{text:?} is no address: write unix:PATH or HOST:PORT"
            )),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            ListenAddress::Tcp(address) => f.write_str(address),
        }
    }
}

/// Access restrictions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenOptions {
    /// Permission bits of a unix socket, such as 0o660; write permission allows to connect.
    pub unix_mode: u32,
    /// The group id of a unix socket; by default the process's.
    pub unix_group: Option<u32>,
    /// Allow TCP addresses that other machines can reach. Nothing protects such a connection.
    pub insecure_listen: bool,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self {
            unix_mode: 0o600,
            unix_group: None,
            insecure_listen: false,
        }
    }
}

/// Why listening at an address failed. Nothing has been changed.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process accepts connections at this address.
    #[error("{0}: another server is listening there; stop it first, or choose another address")]
    InUse(ListenAddress),
    /// There is a file of that name that is not a socket.
    #[error("{0} exists and is not a socket; remove it, or choose another name")]
    NotASocket(PathBuf),
    /// Other machines can reach this address.
    #[error(
        "other machines can reach {}, and NBD connections are not protected; choose a loopback address, or allow it \
         with --insecure-listen",
        resolved_words(address, resolved)
    )]
    NotLoopback {
        /// The address as given.
        address: ListenAddress,
        /// The resolved address.
        resolved: SocketAddr,
    },
    /// The system refused.
    #[error("cannot listen at {address}: {source}")]
    Io {
        /// The address.
        address: ListenAddress,
        /// The system's error.
        source: io::Error,
    },
}

/// An address, with the socket address to which it resolves.
fn resolved_words(address: &ListenAddress, resolved: &SocketAddr) -> String {
    let (address, resolved) = (address.to_string(), resolved.to_string());
    if address == resolved {
        address
    } else {
        format!("{address} ({resolved})")
    }
}

impl ListenError {
    /// Whether the file system has no room for a socket.
    pub fn lacks_space(&self) -> bool {
        matches!(self, ListenError::Io { source, .. } if lacks_space(source))
    }
}

/// A socket that accepts connections.
#[derive(Debug)]
pub struct Listener {
    socket: ListenSocket,
    address: ListenAddress,
    /// The name of a unix socket that this process created.
    _name: Option<SocketName>,
}

#[derive(Debug)]
enum ListenSocket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// Sockets and files that a service manager passed to this process.
#[derive(Default)]
pub struct Inherited {
    /// Listening sockets.
    pub listeners: Vec<Listener>,
    /// Files and devices, with the names that the service manager gave them (`FDNAME`).
    pub files: Vec<(String, OwnedFd)>,
}

impl Listener {
    /// Begins to listen.
    ///
    /// # Errors
    /// See [`ListenError`]. A stale unix socket is not an error, it is replaced.
    pub fn bind(address: &ListenAddress, options: &ListenOptions) -> Result<Self, ListenError> {
        match address {
            ListenAddress::Unix(path) => Self::bind_unix(address, path, options),
            ListenAddress::Tcp(host) => Self::bind_tcp(address, host, options),
        }
    }

    fn bind_unix(
        address: &ListenAddress,
        path: &Path,
        options: &ListenOptions,
    ) -> Result<Self, ListenError> {
        let failed = |source| ListenError::Io {
            address: address.clone(),
            source,
        };
        match fs::symlink_metadata(path) {
            Ok(metadata) if !metadata.file_type().is_socket() => {
                return Err(ListenError::NotASocket(path.to_owned()));
            }
            Ok(_) => match UnixStream::connect(path) {
                Ok(_) => return Err(ListenError::InUse(address.clone())),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) => return Err(failed(error)),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let (listener, name) =
            listen_unix(path, options.unix_mode, options.unix_group).map_err(failed)?;
        Self::new(ListenSocket::Unix(listener), address.clone(), Some(name)).map_err(failed)
    }

    fn bind_tcp(
        address: &ListenAddress,
        host: &str,
        options: &ListenOptions,
    ) -> Result<Self, ListenError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => ListenError::InUse(address.clone()),
            _ => ListenError::Io {
                address: address.clone(),
                source,
            },
        };
        let resolved: Vec<SocketAddr> = host.to_socket_addrs().map_err(failed)?.collect();
        let exposed = resolved.iter().find(|address| !address.ip().is_loopback());
        if let (Some(resolved), false) = (exposed, options.insecure_listen) {
            let (address, resolved) = (address.clone(), *resolved);
            return Err(ListenError::NotLoopback { address, resolved });
        }
        let listener = TcpListener::bind(resolved.as_slice()).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let bound = ListenAddress::Tcp(bound.to_string());
        Self::new(ListenSocket::Tcp(listener), bound, None).map_err(failed)
    }

    /// The sockets and files that systemd, or a compatible service manager, passed to this process:
    /// `LISTEN_FDS` of them from descriptor 3 on, meant for the process `LISTEN_PID`. Empty if it
    /// was started otherwise. Their creator decides whether others can reach them.
    ///
    /// Call this once, before threads are started: it takes these variables out of the environment.
    ///
    /// # Errors
    /// If a descriptor is a socket, but not a listening stream socket.
    pub fn inherited() -> io::Result<Inherited> {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':').map(str::to_owned);
        let mut descriptors = listenfd::ListenFd::from_env();
        let (mut listeners, mut files) = (Vec::new(), Vec::new());
        for index in 0..descriptors.len() {
            let fd_name = names.next().unwrap_or_default();
            if let Some(file) = take_file(&mut descriptors, index)? {
                files.push((fd_name, file));
                continue;
            }
            refuse_connected(index)?;
            let (socket, name) = if let Ok(Some(unix)) = descriptors.take_unix_listener(index) {
                let address = unix.local_addr()?;
                let path = address
                    .as_pathname()
                    .unwrap_or(Path::new("(unnamed)"))
                    .to_owned();
                (ListenSocket::Unix(unix), ListenAddress::Unix(path))
            } else if let Some(tcp) = descriptors.take_tcp_listener(index)? {
                let address = ListenAddress::Tcp(tcp.local_addr()?.to_string());
                (ListenSocket::Tcp(tcp), address)
            } else {
                continue;
            };
            listeners.push(Self::new(socket, name, None)?);
        }
        Ok(Inherited { listeners, files })
    }

    fn new(
        socket: ListenSocket,
        address: ListenAddress,
        name: Option<SocketName>,
    ) -> io::Result<Self> {
        // The accepting thread waits in poll; a client that has gone in the meantime must not stop
        // it.
        match &socket {
            ListenSocket::Unix(listener) => listener.set_nonblocking(true)?,
            ListenSocket::Tcp(listener) => listener.set_nonblocking(true)?,
        }
        Ok(Self {
            socket,
            address,
            _name: name,
        })
    }

    /// The address at which clients connect; with the real port if port 0 was requested.
    pub fn address(&self) -> &ListenAddress {
        &self.address
    }

    /// The next client, if one is waiting.
    pub(crate) fn accept(&self) -> io::Result<Option<Socket>> {
        let accepted = match &self.socket {
            ListenSocket::Unix(listener) => listener
                .accept()
                .and_then(|(stream, _)| Socket::from_unix(stream)),
            ListenSocket::Tcp(listener) => listener
                .accept()
                .and_then(|(stream, _)| Socket::from_tcp(stream)),
        };
        match accepted {
            Ok(socket) => Ok(Some(socket)),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::Interrupted
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::NotConnected
                | io::ErrorKind::InvalidInput => Ok(None),
                _ => Err(error),
            },
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            ListenSocket::Unix(listener) => listener.as_fd(),
            ListenSocket::Tcp(listener) => listener.as_fd(),
        }
    }
}

/// Takes a descriptor that is not a socket.
fn take_file(descriptors: &mut listenfd::ListenFd, index: usize) -> io::Result<Option<OwnedFd>> {
    // `/proc` names the kind without taking the descriptor.
    let number = FIRST_INHERITED + index as RawFd;
    let kind = std::fs::metadata(format!("/proc/self/fd/{number}"))?.file_type();
    if kind.is_socket() {
        return Ok(None);
    }
    let Some(descriptor) = descriptors.take_raw_fd(index)? else {
        return Ok(None);
    };
    // SAFETY: the service manager opened it for this process (`LISTEN_PID`), and `descriptors` gives
    // each of them away once, so nothing else owns it.
    let file = unsafe { OwnedFd::from_raw_fd(descriptor) };
    rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::CLOEXEC)?;
    Ok(Some(file))
}

/// Refuses a socket that is connected to a client: nothing can be accepted from it.
fn refuse_connected(index: usize) -> io::Result<()> {
    let number = FIRST_INHERITED + index as RawFd;
    // SAFETY: the service manager passed this descriptor, and it stays open during the call.
    let socket = unsafe { BorrowedFd::borrow_raw(number) };
    if rustix::net::sockopt::socket_acceptconn(socket)? {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!(
            "descriptor {number} is a socket that does not listen, as a systemd socket with Accept=yes passes \
             it; the daemon serves all clients itself: set Accept=no"
        ),
    ))
}

/// The first descriptor that a service manager passes.
const FIRST_INHERITED: RawFd = 3;
