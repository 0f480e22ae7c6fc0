//! A client that sends exactly the bytes that a test specifies.

pub(crate) use onefold_nbd::client::{option_bytes, request_bytes, string_bytes};
use onefold_nbd::wire::{self, chunk, command, option, option_reply};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub(crate) struct Client {
    pub(crate) stream: UnixStream,
    structured: bool,
    /// Replies with chunks still to come, and where they continue.
    begun: Vec<(Reply, Option<u64>)>,
}

/// A whole reply, whatever its form.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Reply {
    pub(crate) cookie: u64,
    pub(crate) error: u32,
    /// Data of a READ, in order.
    pub(crate) data: Vec<u8>,
    /// Number of chunks with data.
    pub(crate) data_chunks: usize,
    /// Length and state.
    pub(crate) descriptors: Vec<(u32, u32)>,
    /// Length and state in dirty bitmaps, by number.
    pub(crate) bitmaps: Vec<(u32, Vec<(u32, u32)>)>,
}

pub(crate) fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}

pub(crate) fn be64(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes[..8].try_into().unwrap())
}

/// The data of SET_META_CONTEXT and LIST_META_CONTEXT.
pub(crate) fn meta_context_bytes(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut bytes = string_bytes(name);
    bytes.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    for query in queries {
        bytes.extend(string_bytes(query));
    }
    bytes
}

/// The data of INFO and GO.
pub(crate) fn info_bytes(name: &str) -> Vec<u8> {
    [&string_bytes(name)[..], &0_u16.to_be_bytes()].concat()
}

impl Client {
    /// Connects and attaches to "vol".
    pub(crate) fn attach(socket: &Path, structured: bool) -> Self {
        Self::try_attach(socket, structured).unwrap()
    }

    pub(crate) fn try_attach(socket: &Path, structured: bool) -> io::Result<Self> {
        if structured {
            Self::attach_selecting(socket, &["base:allocation"])
        } else {
            Self::connect(socket, None)
        }
    }

    /// Connects and attaches with these metadata contexts.
    pub(crate) fn attach_selecting(socket: &Path, contexts: &[&str]) -> io::Result<Self> {
        Self::connect(socket, Some(contexts))
    }

    fn connect(socket: &Path, contexts: Option<&[&str]>) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        // A server that does not answer must fail a test, not hang it.
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut client = Self {
            stream,
            structured: contexts.is_some(),
            begun: Vec::new(),
        };
        client.read_bytes(18)?;
        client.stream.write_all(&3_u32.to_be_bytes())?;
        if let Some(contexts) = contexts {
            client.option(option::STRUCTURED_REPLY, &[])?;
            let contexts = meta_context_bytes("vol", contexts);
            client.option(option::SET_META_CONTEXT, &contexts)?;
        }
        client.option(option::GO, &info_bytes("vol"))?;
        Ok(client)
    }

    /// Sends an option and expects it to be acknowledged.
    fn option(&mut self, number: u32, data: &[u8]) -> io::Result<()> {
        self.stream.write_all(&option_bytes(number, data))?;
        loop {
            let header = self.read_bytes(20)?;
            let text = self.read_bytes(be32(&header[16..]) as usize)?;
            match be32(&header[12..]) {
                option_reply::ACK => return Ok(()),
                kind if kind >> 31 == 1 => {
                    return Err(io::Error::other(
                        String::from_utf8_lossy(&text).into_owned(),
                    ));
                }
                _ => {}
            }
        }
    }

    pub(crate) fn read_bytes(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn send(&mut self, flags: u16, command: u16, cookie: u64, offset: u64, len: u32) {
        self.stream
            .write_all(&request_bytes(flags, command, cookie, offset, len))
            .unwrap();
    }

    pub(crate) fn send_write(&mut self, flags: u16, cookie: u64, offset: u64, data: &[u8]) {
        self.send(flags, command::WRITE, cookie, offset, data.len() as u32);
        self.stream.write_all(data).unwrap();
    }

    /// Two writes that arrive together, with the cookies 0 and 1.
    pub(crate) fn send_two_writes(&mut self, first: (u64, &[u8]), second: (u64, &[u8])) {
        let mut bytes = Vec::new();
        for ((offset, data), cookie) in [first, second].into_iter().zip(0..) {
            let len = data.len() as u32;
            bytes.extend(request_bytes(0, command::WRITE, cookie, offset, len));
            bytes.extend(data);
        }
        self.stream.write_all(&bytes).unwrap();
    }

    pub(crate) fn send_read(&mut self, cookie: u64, offset: u64, len: u32) {
        self.send(0, command::READ, cookie, offset, len);
    }

    /// The next reply that is complete: chunks of several may be interleaved. `read_len`: the
    /// length of data of a simple reply without an error.
    pub(crate) fn reply(&mut self, read_len: usize) -> io::Result<Reply> {
        self.reply_where(|_| read_len)
    }

    /// The next reply, if only the reply with this cookie has data.
    pub(crate) fn reply_to(&mut self, read_cookie: u64, read_len: usize) -> Reply {
        self.reply_where(|cookie| if cookie == read_cookie { read_len } else { 0 })
            .unwrap()
    }

    fn reply_where(&mut self, read_len: impl Fn(u64) -> usize) -> io::Result<Reply> {
        loop {
            let magic = be32(&self.read_bytes(4)?);
            if magic == wire::SIMPLE_REPLY_MAGIC {
                let rest = self.read_bytes(12)?;
                let (error, cookie) = (be32(&rest), be64(&rest[4..]));
                let has_data = error == 0 && !self.structured;
                let data = self.read_bytes(if has_data { read_len(cookie) } else { 0 })?;
                return Ok(Reply {
                    cookie,
                    error,
                    data,
                    ..Reply::default()
                });
            }
            assert_eq!(magic, wire::STRUCTURED_REPLY_MAGIC);
            if let Some(reply) = self.chunk()? {
                return Ok(reply);
            }
        }
    }

    /// Reads a chunk after its magic number; returns the reply that it completes.
    fn chunk(&mut self) -> io::Result<Option<Reply>> {
        let header = self.read_bytes(16)?;
        let flags = u16::from_be_bytes([header[0], header[1]]);
        let kind = u16::from_be_bytes([header[2], header[3]]);
        let cookie = be64(&header[4..]);
        let payload = self.read_bytes(be32(&header[12..]) as usize)?;
        let begun = self
            .begun
            .iter()
            .position(|(reply, _)| reply.cookie == cookie);
        let begun = begun.map(|at| self.begun.swap_remove(at));
        let (mut reply, mut next_offset) = begun.unwrap_or((
            Reply {
                cookie,
                ..Reply::default()
            },
            None,
        ));
        match kind {
            chunk::NONE => assert!(payload.is_empty()),
            chunk::OFFSET_DATA => {
                assert!(payload.len() > 8);
                let offset = be64(&payload);
                assert_eq!(offset, next_offset.unwrap_or(offset));
                next_offset = Some(offset + payload.len() as u64 - 8);
                reply.data.extend_from_slice(&payload[8..]);
                reply.data_chunks += 1;
            }
            chunk::BLOCK_STATUS => {
                let descriptors = payload[4..].chunks(8);
                let descriptors = descriptors.map(|d| (be32(d), be32(&d[4..]))).collect();
                match be32(&payload) {
                    wire::BASE_ALLOCATION_ID => reply.descriptors = descriptors,
                    bitmap => reply.bitmaps.push((bitmap, descriptors)),
                }
            }
            chunk::ERROR => reply.error = be32(&payload),
            _ => panic!("unknown chunk {kind}"),
        }
        if flags & chunk::DONE != 0 {
            return Ok(Some(reply));
        }
        self.begun.push((reply, next_offset));
        Ok(None)
    }

    /// Sends a request without a payload and waits for its reply.
    pub(crate) fn call(&mut self, flags: u16, command: u16, offset: u64, len: u32) -> Reply {
        self.send(flags, command, 77, offset, len);
        let read_len = if command == command::READ {
            len as usize
        } else {
            0
        };
        let reply = self.reply(read_len).unwrap();
        assert_eq!(reply.cookie, 77);
        reply
    }

    pub(crate) fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> Reply {
        self.send_write(flags, 78, offset, data);
        let reply = self.reply(0).unwrap();
        assert_eq!(reply.cookie, 78);
        reply
    }

    pub(crate) fn read(&mut self, offset: u64, len: u32) -> Vec<u8> {
        let reply = self.call(0, command::READ, offset, len);
        assert_eq!(reply.error, 0);
        reply.data
    }

    /// Whether the server has closed the connection, after at most a few bytes.
    pub(crate) fn is_closed(&mut self) -> bool {
        match self.stream.read_to_end(&mut Vec::new()) {
            Ok(_) => true,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }
}
