//! A client: one request at a time on each connection.
//!
//! The fixed newstyle handshake with GO, simple replies, and the requests that change or read data:
//! enough for a load or a test.

use std::fmt;
use std::io::{self, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;

use super::wire::{self, command, handshake_flag, info, option, option_reply, transmission_flag};

/// NBD's default port.
const PORT: u16 = 10809;

/// The request size that a server accepts by default, per the specification.
const REQUEST_BYTES: (u32, u32) = (1, 32 << 20);

/// The longest answer to an option that is read; the specification has strings of 4096 bytes at most.
const ANSWER_BYTES_MAX: u32 = 64 << 10;

/// The server and name of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    server: Server,
    export: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Server {
    Tcp(String, u16),
    Unix(PathBuf),
}

impl Address {
    /// The address of another export of the same server.
    #[must_use]
    pub fn with_export(&self, export: &str) -> Self {
        Self {
            server: self.server.clone(),
            export: export.to_owned(),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    /// Parses the URIs that the NBD project defines, without user, TLS and options.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let unusable = || {
            format!(
                "'{text}' is no NBD export: nbd://HOST[:PORT]/EXPORT and \
                 nbd+unix:///EXPORT?socket=PATH are"
            )
        };
        if let Some(rest) = text.strip_prefix("nbd+unix:///") {
            let (export, socket) = rest.split_once("?socket=").ok_or_else(unusable)?;
            let socket = unescaped(socket).ok_or_else(unusable)?;
            return Ok(Self {
                server: Server::Unix(socket.into()),
                export: unescaped(export).ok_or_else(unusable)?,
            });
        }
        let rest = text.strip_prefix("nbd://").ok_or_else(unusable)?;
        let (server, export) = rest.split_once('/').unwrap_or((rest, ""));
        // The colons of an IPv6 address are inside its brackets.
        let port_at = server.rfind(':').filter(|at| !server[*at..].contains(']'));
        let (host, port) = match port_at {
            Some(at) => (
                &server[..at],
                server[at + 1..].parse().map_err(|_| unusable())?,
            ),
            None => (server, PORT),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(unusable());
        }
        Ok(Self {
            server: Server::Tcp(host.to_owned(), port),
            export: unescaped(export).ok_or_else(unusable)?,
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.server {
            Server::Tcp(host, port) => write!(f, "export {:?} of {host}:{port}", self.export),
            Server::Unix(path) => write!(f, "export {:?} of {path:?}", self.export),
        }
    }
}

/// Replaces escapes such as `%20` in a text.
fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                (digit()? * 16 + digit()?) as u8
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

/// A server's description of an export.
#[derive(Debug, Clone, Copy, Default)]
struct Export {
    bytes: u64,
    flags: u16,
    /// Sizes of requests, least and most, if the server gives any.
    request_bytes: Option<(u32, u32)>,
}

impl Export {
    fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// A connection that is attached to an export.
pub struct Client {
    input: BufReader<Box<dyn Read + Send>>,
    output: Box<dyn Write + Send>,
    export: Export,
    cookie: u64,
    request: Vec<u8>,
}

#[allow(clippy::big_endian_bytes, reason = "the protocol is big-endian")]
impl Client {
    /// Attaches to an export.
    ///
    /// # Errors
    ///
    /// If there is no such server, or if it has no such export.
    pub fn connect(address: &Address) -> io::Result<Self> {
        let (input, output): (Box<dyn Read + Send>, Box<dyn Write + Send>) = match &address.server {
            Server::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port))?;
                stream.set_nodelay(true)?;
                (Box::new(stream.try_clone()?), Box::new(stream))
            }
            Server::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                (Box::new(stream.try_clone()?), Box::new(stream))
            }
        };
        let mut stream = Self {
            input: BufReader::new(input),
            output,
            export: Export::default(),
            cookie: 0,
            request: Vec::new(),
        };
        stream.attach(&address.export)?;
        Ok(stream)
    }

    fn attach(&mut self, export: &str) -> io::Result<()> {
        let greeting = (self.u64()?, self.u64()?);
        if greeting != (wire::NBDMAGIC, wire::IHAVEOPT) {
            return Err(invalid("it is no NBD server of the newstyle"));
        }
        let flags = self.u16()?;
        if flags & handshake_flag::FIXED_NEWSTYLE == 0 {
            return Err(invalid("its server does not know the fixed newstyle"));
        }
        let flags = handshake_flag::FIXED_NEWSTYLE | flags & handshake_flag::NO_ZEROES;
        self.output.write_all(&u32::from(flags).to_be_bytes())?;
        // The name with its length, and a request for one piece of information: sizes of requests.
        let name = string_bytes(export);
        let asked = [1_u16.to_be_bytes(), info::BLOCK_SIZE.to_be_bytes()].concat();
        let data = [name, asked].concat();
        self.output.write_all(&option_bytes(option::GO, &data))?;
        loop {
            let (magic, _, kind, len) = (self.u64()?, self.u32()?, self.u32()?, self.u32()?);
            if magic != wire::OPTION_REPLY_MAGIC || len > ANSWER_BYTES_MAX {
                return Err(invalid("its server does not answer as the protocol has it"));
            }
            let mut data = vec![0; len as usize];
            self.input.read_exact(&mut data)?;
            match kind {
                option_reply::ACK => return Ok(()),
                option_reply::INFO => self.learn(&data),
                option_reply::ERR_UNKNOWN => return Err(invalid("there is no such export")),
                kind if kind >> 31 == 1 => {
                    let words = String::from_utf8_lossy(&data);
                    return Err(invalid(format!("refused with {kind:#x} {words}")));
                }
                _ => {}
            }
        }
    }

    /// Stores one piece of information about the export.
    fn learn(&mut self, data: &[u8]) {
        let Some((kind, mut rest)) = data.split_first_chunk() else {
            return;
        };
        match u16::from_be_bytes(*kind) {
            info::EXPORT => {
                if let (Some(bytes), Some(flags)) = (take(&mut rest), take(&mut rest)) {
                    self.export.bytes = u64::from_be_bytes(bytes);
                    self.export.flags = u16::from_be_bytes(flags);
                }
            }
            info::BLOCK_SIZE => {
                let sizes = [take(&mut rest), take(&mut rest), take(&mut rest)];
                if let [Some(least), Some(_), Some(most)] = sizes {
                    let sizes = (u32::from_be_bytes(least), u32::from_be_bytes(most));
                    self.export.request_bytes = Some(sizes);
                }
            }
            _ => {}
        }
    }

    /// Makes one request and waits for the head of its reply.
    fn call(
        &mut self,
        command: u16,
        flags: u16,
        at: u64,
        len: usize,
        data: &[u8],
    ) -> io::Result<()> {
        self.cookie += 1;
        self.request.clear();
        let header = request_bytes(flags, command, self.cookie, at, len as u32);
        self.request.extend(header);
        self.request.extend(data);
        self.output.write_all(&self.request)?;
        if command == command::DISC {
            return Ok(());
        }
        let (magic, error, cookie) = (self.u32()?, self.u32()?, self.u64()?);
        if magic != wire::SIMPLE_REPLY_MAGIC || cookie != self.cookie {
            return Err(invalid("its server does not answer as the protocol has it"));
        }
        match error {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error.cast_signed())),
        }
    }

    fn u16(&mut self) -> io::Result<u16> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    fn u32(&mut self) -> io::Result<u32> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    fn u64(&mut self) -> io::Result<u64> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut array = [0; N];
        self.input.read_exact(&mut array)?;
        Ok(array)
    }
}

/// The requests. Each call returns when its request is answered.
impl Client {
    /// The export's size.
    pub fn bytes(&self) -> u64 {
        self.export.bytes
    }

    /// Whether the export has one of [`transmission_flag`].
    pub fn has(&self, flag: u16) -> bool {
        self.export.has(flag)
    }

    /// The least and the most bytes that a request may have.
    pub fn request_bytes(&self) -> (u32, u32) {
        self.export.request_bytes.unwrap_or(REQUEST_BYTES)
    }

    /// Fills all of `bytes` with the data at `at`.
    ///
    /// # Errors
    ///
    /// If the server refuses the request, or is gone; the same holds for every request.
    pub fn read(&mut self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.call(command::READ, 0, at, bytes.len(), &[])?;
        self.input.read_exact(bytes)
    }

    /// Writes all of `bytes` to `at`; `flags` are of [`wire::command_flag`].
    ///
    /// # Errors
    ///
    /// See [`read`](Self::read).
    pub fn write(&mut self, flags: u16, bytes: &[u8], at: u64) -> io::Result<()> {
        self.call(command::WRITE, flags, at, bytes.len(), bytes)
    }

    /// Writes `len` zeros; `flags` are of [`wire::command_flag`].
    ///
    /// # Errors
    ///
    /// See [`read`](Self::read).
    pub fn write_zeroes(&mut self, flags: u16, at: u64, len: usize) -> io::Result<()> {
        self.call(command::WRITE_ZEROES, flags, at, len, &[])
    }

    /// Releases a range that is no longer needed.
    ///
    /// # Errors
    ///
    /// See [`read`](Self::read).
    pub fn trim(&mut self, at: u64, len: usize) -> io::Result<()> {
        self.call(command::TRIM, 0, at, len, &[])
    }

    /// Makes answered requests durable, on any connection, if the server supports it.
    ///
    /// # Errors
    ///
    /// See [`read`](Self::read).
    pub fn flush(&mut self) -> io::Result<()> {
        if self.export.has(transmission_flag::SEND_FLUSH) {
            self.call(command::FLUSH, 0, 0, 0, &[])
        } else {
            Ok(())
        }
    }
}

impl Drop for Client {
    /// Disconnects, so that the server does not log a lost client.
    fn drop(&mut self) {
        let _ = self.call(command::DISC, 0, 0, 0, &[]);
    }
}

/// Encodes an option of the handshake.
#[allow(clippy::big_endian_bytes, reason = "the protocol is big-endian")]
pub fn option_bytes(number: u32, data: &[u8]) -> Vec<u8> {
    [
        &wire::IHAVEOPT.to_be_bytes()[..],
        &number.to_be_bytes(),
        &(data.len() as u32).to_be_bytes(),
        data,
    ]
    .concat()
}

/// Encodes a request, without the data of a WRITE.
#[allow(clippy::big_endian_bytes, reason = "the protocol is big-endian")]
pub fn request_bytes(flags: u16, command: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    [
        &wire::REQUEST_MAGIC.to_be_bytes()[..],
        &flags.to_be_bytes(),
        &command.to_be_bytes(),
        &cookie.to_be_bytes(),
        &offset.to_be_bytes(),
        &len.to_be_bytes(),
    ]
    .concat()
}

/// Encodes a string with its length. No server accepts a name whose length does not fit its field.
#[allow(clippy::big_endian_bytes, reason = "the protocol is big-endian")]
pub fn string_bytes(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::other(what.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "how tests fail")]
mod tests {
    use super::*;

    #[test]
    fn uris_are_understood() {
        let tcp = |host: &str, port| Server::Tcp(host.to_owned(), port);
        for (uri, server, export) in [
            ("nbd://localhost/vol", tcp("localhost", 10809), "vol"),
            ("nbd://10.0.0.1:99/a%20b", tcp("10.0.0.1", 99), "a b"),
            ("nbd://[::1]:99/v", tcp("::1", 99), "v"),
            ("nbd://[::1]/", tcp("::1", 10809), ""),
            (
                "nbd+unix:///v@s?socket=/run/x%2Fy",
                Server::Unix("/run/x/y".into()),
                "v@s",
            ),
        ] {
            let address: Address = uri.parse().unwrap();
            assert_eq!(address.server, server, "{uri}");
            assert_eq!(address.export, export, "{uri}");
        }
        for uri in [
            "nbd://",
            "nbd://:99/x",
            "nbd://host:port/x",
            "nbd+unix:///x",
            "nbd://h/%zz",
            "nbd://h/%2",
            "nbd+unix://x?socket=y",
        ] {
            assert!(uri.parse::<Address>().is_err(), "{uri}");
        }
    }
}
