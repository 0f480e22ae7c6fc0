//! A process that changes a source: the sealed chunk of the object in its holder's folder.
//!
//! ```text
//!  0 boot       16 bytes   identifies the boot of the holder's machine
//! 16 namespace  u64        of the process's number
//! 24 process    u64        its number
//! 32 started    u64        when it started: ticks of the kernel since the boot
//! 40 since      u64        seconds since the Unix epoch
//! 48 host       text
//!    doing      text       the holder's operation, for messages
//! ```

use crate::cursor::{Cursor, put_text};
use crate::error::FormatError;

/// Identifies a process across all machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessId {
    /// Identifies the boot of the process's machine.
    pub boot: [u8; 16],
    /// The namespace of the process's number.
    pub namespace: u64,
    /// The process's number.
    pub process: u64,
    /// When the process started: ticks of the kernel since the boot.
    pub started: u64,
}

/// The holder of a source's lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The process.
    pub holder: ProcessId,
    /// When the lease was taken: seconds since the Unix epoch.
    pub since_unix_seconds: u64,
    /// The name of the holder's machine, for messages.
    pub host: String,
    /// The holder's operation, for messages.
    pub doing: String,
}

impl Lease {
    /// The chunk's content.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let ProcessId {
            boot,
            namespace,
            process,
            started,
        } = self.holder;
        let mut out = boot.to_vec();
        for number in [namespace, process, started, self.since_unix_seconds] {
            out.extend(number.to_le_bytes());
        }
        put_text(&mut out, self.host.as_bytes());
        put_text(&mut out, self.doing.as_bytes());
        out
    }

    /// Decodes the chunk's content.
    ///
    /// # Errors
    ///
    /// Any [`FormatError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut rest = Cursor(bytes);
        let holder = ProcessId {
            boot: rest.take()?,
            namespace: rest.u64()?,
            process: rest.u64()?,
            started: rest.u64()?,
        };
        let since_unix_seconds = rest.u64()?;
        let (host, doing) = (rest.utf8("host")?, rest.utf8("doing")?);
        rest.finish()?;
        Ok(Self {
            holder,
            since_unix_seconds,
            host,
            doing,
        })
    }
}
