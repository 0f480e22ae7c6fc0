//! A connected stream socket, unix or TCP: the system calls of the data path and nothing else.

use crate::export::Peer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, sockopt};
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Replies that the kernel may buffer for a slow client: then a thread with a large one can
/// continue instead of being woken for each piece. The kernel's own limit (`wmem_max`) counts. TCP
/// tunes itself.
const SEND_BUFFER_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    peer: Peer,
    draining: AtomicBool,
}

impl Socket {
    pub(crate) fn from_unix(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        let fd = OwnedFd::from(stream);
        sockopt::set_socket_send_buffer_size(&fd, SEND_BUFFER_BYTES)?;
        let peer = unix_peer(fd.as_fd()).unwrap_or(Peer::Unknown);
        Ok(Self {
            fd,
            peer,
            draining: AtomicBool::new(false),
        })
    }

    /// Wraps a TCP stream. Replies are sent in batches, so waiting to fill a packet would only cost
    /// time; and a client whose machine has vanished is detected, if slowly.
    pub(crate) fn from_tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        let peer = stream.peer_addr().map_or(Peer::Unknown, Peer::Tcp);
        let fd = OwnedFd::from(stream);
        sockopt::set_socket_keepalive(&fd, true)?;
        Ok(Self {
            fd,
            peer,
            draining: AtomicBool::new(false),
        })
    }

    pub(crate) fn peer(&self) -> Peer {
        self.peer
    }

    /// Waits for input; 0 is the end of the stream.
    pub(crate) fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        let (_, len) =
            retry_on_intr(|| rustix::net::recv(&self.fd, &mut *buf, RecvFlags::empty()))?;
        Ok(len)
    }

    /// Polls for input for `time`, which must be short, without sleeping; `None` if none arrived.
    /// It does not yield to other threads: a thread that computes would keep the processor for a
    /// whole time slice, hundreds of times as long.
    pub(crate) fn recv_within(&self, buf: &mut [u8], time: Duration) -> io::Result<Option<usize>> {
        let started = Instant::now();
        loop {
            match rustix::net::recv(&self.fd, &mut *buf, RecvFlags::DONTWAIT) {
                Ok((_, len)) => return Ok(Some(len)),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if started.elapsed() >= time {
                return Ok(None);
            }
            std::hint::spin_loop();
        }
    }

    /// Fills `buf` with input.
    pub(crate) fn recv_exact(&self, mut buf: &mut [u8]) -> io::Result<()> {
        while !buf.is_empty() {
            let len = self.recv(buf)?;
            if len == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            buf = buf.get_mut(len..).unwrap_or_default();
        }
        Ok(())
    }

    /// Sends everything, waiting for the client as long as it takes.
    pub(crate) fn send_all(&self, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        // Without slices of length zero at its front, a send of nothing cannot loop for ever.
        IoSlice::advance_slices(&mut slices, 0);
        while !slices.is_empty() {
            let sent = self.sendmsg(slices, SendFlags::NOSIGNAL)?;
            IoSlice::advance_slices(&mut slices, sent);
        }
        Ok(())
    }

    /// Sends as much as the socket takes without blocking, and returns that amount.
    pub(crate) fn try_send(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.sendmsg(slices, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Err(Errno::AGAIN) => Ok(0),
            sent => Ok(sent?),
        }
    }

    fn sendmsg(&self, slices: &[IoSlice<'_>], flags: SendFlags) -> Result<usize, Errno> {
        retry_on_intr(|| {
            rustix::net::sendmsg(&self.fd, slices, &mut SendAncillaryBuffer::default(), flags)
        })
    }

    /// Ends the connection in both directions; threads that block in a call above return.
    pub(crate) fn close(&self) {
        // It fails only if the peer was faster.
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Both);
    }

    /// Lets the connection finish the requests that it has read, and read no more.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Read);
    }

    /// Whether [`Socket::drain`] was called.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Whether the client has gone, was cut off, or should send nothing more.
    pub(crate) fn has_ended(&self) -> bool {
        let mut polled = [PollFd::new(&self.fd, PollFlags::RDHUP)];
        let now = Timespec::default();
        let ready = retry_on_intr(|| poll(&mut polled, Some(&now)));
        ready.is_ok_and(|ready| ready > 0)
    }

    /// A stream that fails once `time_max` has passed.
    pub(crate) fn with_deadline(&self, time_max: Duration) -> DeadlineStream<'_> {
        DeadlineStream {
            socket: self,
            deadline: Instant::now() + time_max,
        }
    }

    /// Lets calls wait for ever again after [`Socket::with_deadline`].
    pub(crate) fn without_deadline(&self) -> io::Result<()> {
        sockopt::set_socket_timeout(&self.fd, sockopt::Timeout::Recv, None)?;
        sockopt::set_socket_timeout(&self.fd, sockopt::Timeout::Send, None)?;
        Ok(())
    }
}

/// A socket as a stream with a deadline for all of its calls together, so that a client cannot hold
/// a connection by sending a byte now and then.
pub(crate) struct DeadlineStream<'a> {
    socket: &'a Socket,
    deadline: Instant,
}

impl DeadlineStream<'_> {
    fn set_timeout(&self, id: sockopt::Timeout) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(sockopt::set_socket_timeout(
            &self.socket.fd,
            id,
            Some(left),
        )?)
    }
}

impl Read for DeadlineStream<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.set_timeout(sockopt::Timeout::Recv)?;
        self.socket.recv(buf)
    }
}

impl Write for DeadlineStream<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.set_timeout(sockopt::Timeout::Send)?;
        Ok(self
            .socket
            .sendmsg(&[IoSlice::new(buf)], SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The process that connected. Not through rustix: its type cannot hold the process id 0, which the
/// kernel reports for a peer in a process name space that this process cannot see.
fn unix_peer(fd: BorrowedFd<'_>) -> Option<Peer> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = libc::socklen_t::try_from(size_of::<libc::ucred>()).ok()?;
    // SAFETY: `credentials` and `len` are valid for writes during the call, and `len` is the size
    // of `credentials`, which has no padding and for which any bytes are valid.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len,
        )
    };
    let libc::ucred { pid, uid, gid } = credentials;
    (result == 0).then_some(Peer::Unix { pid, uid, gid })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_for_input_does_not_wait_for_it() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let socket = Socket::from_unix(ours).unwrap();
        let look = || {
            socket
                .recv_within(&mut [0; 8], Duration::from_micros(1))
                .unwrap()
        };
        assert_eq!(look(), None);
        theirs.write_all(&[1, 2, 3]).unwrap();
        assert_eq!(look(), Some(3));
        drop(theirs);
        assert_eq!(look(), Some(0));
    }

    #[test]
    fn a_stream_with_a_deadline_fails_after_it_and_one_without_does_not() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let socket = Socket::from_unix(ours).unwrap();
        let mut late = socket.with_deadline(Duration::ZERO);
        assert_eq!(
            late.read(&mut [0]).unwrap_err().kind(),
            io::ErrorKind::TimedOut
        );
        assert_eq!(
            late.write(&[0]).unwrap_err().kind(),
            io::ErrorKind::TimedOut
        );
        let mut soon = socket.with_deadline(Duration::from_millis(1));
        assert!(soon.read(&mut [0]).is_err());
        let mut filled = socket.with_deadline(Duration::from_millis(1));
        assert!(filled.write_all(&vec![0; 16 << 20]).is_err());
        socket.without_deadline().unwrap();
        assert!(
            sockopt::socket_timeout(&socket.fd, sockopt::Timeout::Recv)
                .unwrap()
                .is_none()
        );
        theirs.write_all(&[7]).unwrap();
        let mut byte = [0];
        socket.recv_exact(&mut byte).unwrap();
        assert_eq!(byte, [7]);
    }
}
