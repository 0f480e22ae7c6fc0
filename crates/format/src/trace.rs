//! The unit of a trace: the chunks of a data set, without its content. A trace is a separate file,
//! not a part of a pool.
//!
//! ```text
//!  0 magic     u32   "1FTR"
//!  4 major     u8
//!  5 minor     u8
//!  6 kind      u8    of the frame, see below
//!  7 zero
//!  8 position  u64   its own address: bytes from the start of the file
//! 16 payload   u32   bytes of it
//! 20 checksum  u32   CRC-32C of header and payload with this field zero
//! 24 payload
//! ```
//!
//! The payload by kind, fields one after another, texts as `u16` length and bytes:
//!
//! ```text
//! 1 start    ways u16, then each as a text
//! 2 input    path text
//! 3 kind     name text
//! 4 file     position u64, bytes u64, input u16, name text
//! 5 chunks   position u64, input u16, kind u16, size class u8, way u8, zeros u16, then runs:
//!            count * 2 (+ 1 for zeros) varint, bytes of each varint, count fingerprints u128
//! 6 sample   way u16, zero bits u16, then units of 48 bytes: fingerprint u128, position u64, bytes u32,
//!            compressed u32, bytes of the group u32, compressed u32, zeros u64
//! 7 problem  path text, what text
//! 8 end      files u64, empty files u64, bytes u64, skipped u64, unopened disks u64, complete u8
//! ```
//!
//! Inputs and kinds are numbered in order of appearance. The frame of the end is the last one: a trace
//! without it was cut short.

use crate::bytes::{array_at, put, u32_at, u64_at};
use crate::cursor::{Cursor, impossible, put_text, put_varint};
use crate::error::FormatError;
use crate::{MAJOR_VERSION, MINOR_VERSION};

/// Bytes in a frame's header.
pub const TRACE_HEADER_BYTES: usize = 24;

/// Most bytes of payload in a frame.
pub const TRACE_PAYLOAD_MAX: usize = 1 << 20;

/// Positions and lengths stay below this.
pub const TRACE_POSITION_END: u64 = 1 << 48;

const MAGIC: u32 = u32::from_le_bytes(*b"1FTR");
const CHECKSUM_AT: usize = 20;
const UNIT_BYTES: usize = 48;

const _: () = assert!(CHECKSUM_AT + 4 == TRACE_HEADER_BYTES);

/// The content of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TraceFrame {
    /// How the data was cut; always the first frame, and only there.
    Start {
        /// Each way to cut, as on the command line.
        ways: Vec<String>,
    },
    /// An input; inputs are numbered from 0.
    Input {
        /// The input's path, as given by the user.
        path: Vec<u8>,
    },
    /// A kind of file; kinds are numbered from 0.
    Kind {
        /// The file name extension.
        name: String,
    },
    /// A file.
    File {
        /// The position of the file's first byte, in all files of the trace one after another with
        /// a gap after each.
        position: u64,
        /// The file's length.
        bytes: u64,
        /// The number of the file's input.
        input: u16,
        /// The file's path, or a hash in its place.
        name: Vec<u8>,
    },
    /// Chunks of a file that follow one another.
    Chunks(TraceChunks),
    /// Compression of a sample of chunks.
    Sample {
        /// Number of the way to cut.
        way: u16,
        /// The sample consists of chunks whose fingerprints end in this number of zero bits.
        zero_bits: u16,
        /// Some chunks of the sample.
        units: Vec<TraceUnit>,
    },
    /// A file that could not be read, or that changed while it was read.
    Problem {
        /// The file's path.
        path: Vec<u8>,
        /// The problem.
        what: String,
    },
    /// The totals: the last frame.
    End(TraceEnd),
}

/// Chunks of a file that follow one another.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TraceChunks {
    /// Position of the first chunk, counted as for files.
    pub position: u64,
    /// Number of the input.
    pub input: u16,
    /// Number of the kind of file.
    pub kind: u16,
    /// The file has at least two to the power of this number of bytes.
    pub size_class: u8,
    /// Number of the way to cut.
    pub way: u8,
    /// Runs of chunks of one length.
    pub runs: Vec<TraceRun>,
}

/// Chunks of one length that follow one another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceRun {
    /// The length of each chunk in bytes; not 0.
    pub bytes: u64,
    /// The content of the chunks.
    pub content: TraceContent,
}

/// The content of a run's chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TraceContent {
    /// The number of chunks, all zeros; not 0.
    Zeros(u64),
    /// The fingerprint of each chunk; at least one.
    Data(Vec<u128>),
}

/// A chunk in a sample, and its compressed size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceUnit {
    /// The chunk's fingerprint.
    pub fingerprint: u128,
    /// The position at which the chunk was found.
    pub position: u64,
    /// The chunk's length.
    pub bytes: u32,
    /// Compressed size, in bytes.
    pub compressed_bytes: u32,
    /// Length of the group that begins with the chunk; 0 if none was compressed.
    pub group_bytes: u32,
    /// Compressed size of the group, in bytes.
    pub compressed_group_bytes: u32,
}

/// Totals of all data that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TraceEnd {
    /// The number of files.
    pub files: u64,
    /// The number of files without content.
    pub empty_files: u64,
    /// The size of all files, in bytes.
    pub bytes: u64,
    /// Links and special files, which were not read.
    pub skipped: u64,
    /// Files that begin like qcow2 images and were read as plain files.
    pub unopened_disks: u64,
    /// Whether everything was read to its end.
    pub is_complete: bool,
}

/// A frame's header, of which only the length is trusted before [`decode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceHeader {
    /// Bytes of the payload, which follows the header.
    pub payload_bytes: usize,
}

impl TraceFrame {
    /// Appends the frame that begins at `position` of its file to `bytes`.
    ///
    /// # Panics
    ///
    /// For texts and payloads that are too long, which is the writer's mistake.
    pub fn encode(&self, position: u64, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        bytes.resize(start + TRACE_HEADER_BYTES, 0);
        let kind = self.put_payload(bytes);
        let payload = bytes.len() - start - TRACE_HEADER_BYTES;
        assert!(payload <= TRACE_PAYLOAD_MAX, "a payload of {payload} bytes");
        let frame = &mut bytes[start..];
        put(frame, 0, &MAGIC.to_le_bytes());
        put(frame, 4, &[MAJOR_VERSION, MINOR_VERSION, kind]);
        put(frame, 8, &position.to_le_bytes());
        put(frame, 16, &(payload as u32).to_le_bytes());
        let checksum = crc32c::crc32c(frame);
        put(frame, CHECKSUM_AT, &checksum.to_le_bytes());
    }

    /// Writes the payload, and returns the number of its kind.
    fn put_payload(&self, out: &mut Vec<u8>) -> u8 {
        match self {
            Self::Start { ways } => {
                out.extend((ways.len() as u16).to_le_bytes());
                ways.iter().for_each(|way| put_text(out, way.as_bytes()));
                1
            }
            Self::Input { path } => {
                put_text(out, path);
                2
            }
            Self::Kind { name } => {
                put_text(out, name.as_bytes());
                3
            }
            Self::File {
                position,
                bytes,
                input,
                name,
            } => {
                out.extend(position.to_le_bytes());
                out.extend(bytes.to_le_bytes());
                out.extend(input.to_le_bytes());
                put_text(out, name);
                4
            }
            Self::Chunks(chunks) => {
                chunks.put(out);
                5
            }
            Self::Sample {
                way,
                zero_bits,
                units,
            } => {
                out.extend(way.to_le_bytes());
                out.extend(zero_bits.to_le_bytes());
                units.iter().for_each(|unit| unit.put(out));
                6
            }
            Self::Problem { path, what } => {
                put_text(out, path);
                put_text(out, what.as_bytes());
                7
            }
            Self::End(end) => {
                for number in [
                    end.files,
                    end.empty_files,
                    end.bytes,
                    end.skipped,
                    end.unopened_disks,
                ] {
                    out.extend(number.to_le_bytes());
                }
                out.push(u8::from(end.is_complete));
                8
            }
        }
    }
}

/// Decodes a header. Uses only the fields needed to find the frame's end.
///
/// # Errors
///
/// Any [`FormatError`] but [`FormatError::Newer`]: no frame starts here.
pub fn decode_header(bytes: &[u8; TRACE_HEADER_BYTES]) -> Result<TraceHeader, FormatError> {
    let magic = u32_at(bytes, 0);
    if magic != MAGIC {
        return Err(FormatError::Magic {
            expected: MAGIC,
            found: magic,
        });
    }
    let payload_bytes = u32_at(bytes, 16) as usize;
    if payload_bytes > TRACE_PAYLOAD_MAX {
        return Err(impossible("payload", payload_bytes as u64));
    }
    Ok(TraceHeader { payload_bytes })
}

/// Reads a whole frame, which begins at `position` of its file.
///
/// # Errors
///
/// Any [`FormatError`]; [`FormatError::Newer`] has the version that can read it.
pub fn decode(
    header: &[u8; TRACE_HEADER_BYTES],
    payload: &[u8],
    position: u64,
) -> Result<TraceFrame, FormatError> {
    let head = crc32c::crc32c(&header[..CHECKSUM_AT]);
    let gap = crc32c::crc32c_append(head, &[0; 4]);
    let found = crc32c::crc32c_append(gap, payload);
    let expected = u32_at(header, CHECKSUM_AT);
    if found != expected {
        return Err(FormatError::Checksum { expected, found });
    }
    let [major, minor, kind, zero] = array_at(header, 4);
    if major > MAJOR_VERSION || major == MAJOR_VERSION && minor > MINOR_VERSION {
        return Err(FormatError::Newer { major, minor });
    }
    if major == 0 {
        return Err(impossible("major version", 0));
    }
    if zero != 0 {
        return Err(reserved());
    }
    let own = u64_at(header, 8);
    if own != position {
        return Err(FormatError::Address {
            field: "position",
            expected: position,
            found: own,
        });
    }
    let mut rest = Cursor(payload);
    let frame = rest.frame(kind)?;
    rest.finish()?;
    Ok(frame)
}

fn reserved() -> FormatError {
    FormatError::Reserved {
        structure: "trace frame",
    }
}

impl TraceChunks {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.position.to_le_bytes());
        out.extend(self.input.to_le_bytes());
        out.extend(self.kind.to_le_bytes());
        out.extend([self.size_class, self.way, 0, 0]);
        for run in &self.runs {
            let (count, is_zero) = match &run.content {
                TraceContent::Zeros(count) => (*count, 1),
                TraceContent::Data(fingerprints) => (fingerprints.len() as u64, 0),
            };
            put_varint(out, count << 1 | is_zero);
            put_varint(out, run.bytes);
            if let TraceContent::Data(fingerprints) = &run.content {
                fingerprints
                    .iter()
                    .for_each(|fingerprint| out.extend(fingerprint.to_le_bytes()));
            }
        }
    }
}

impl TraceRun {
    /// The length of all chunks of the run together.
    #[must_use]
    pub fn all_bytes(&self) -> u64 {
        let count = match &self.content {
            TraceContent::Zeros(count) => *count,
            TraceContent::Data(fingerprints) => fingerprints.len() as u64,
        };
        count * self.bytes
    }
}

impl TraceUnit {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.fingerprint.to_le_bytes());
        out.extend(self.position.to_le_bytes());
        for number in [
            self.bytes,
            self.compressed_bytes,
            self.group_bytes,
            self.compressed_group_bytes,
        ] {
            out.extend(number.to_le_bytes());
        }
        out.extend([0; 8]);
    }
}

impl Cursor<'_> {
    fn frame(&mut self, kind: u8) -> Result<TraceFrame, FormatError> {
        Ok(match kind {
            1 => {
                let count = self.u16()?;
                let ways = (0..count).map(|_| self.utf8("way to cut"));
                TraceFrame::Start {
                    ways: ways.collect::<Result<_, _>>()?,
                }
            }
            2 => TraceFrame::Input { path: self.text()? },
            3 => TraceFrame::Kind {
                name: self.utf8("kind of file")?,
            },
            4 => TraceFrame::File {
                position: self.position("position of a file")?,
                bytes: self.position("length of a file")?,
                input: self.u16()?,
                name: self.text()?,
            },
            5 => TraceFrame::Chunks(self.chunks()?),
            6 => {
                let (way, zero_bits) = (self.u16()?, self.u16()?);
                if u32::from(zero_bits) > u128::BITS {
                    return Err(impossible("zero bits", zero_bits.into()));
                }
                let mut units = Vec::with_capacity(self.0.len() / UNIT_BYTES);
                while !self.0.is_empty() {
                    units.push(self.unit()?);
                }
                TraceFrame::Sample {
                    way,
                    zero_bits,
                    units,
                }
            }
            7 => TraceFrame::Problem {
                path: self.text()?,
                what: self.utf8("text of a problem")?,
            },
            8 => TraceFrame::End(TraceEnd {
                files: self.u64()?,
                empty_files: self.u64()?,
                bytes: self.u64()?,
                skipped: self.u64()?,
                unopened_disks: self.u64()?,
                is_complete: match self.take::<1>()? {
                    [0] => false,
                    [1] => true,
                    [other] => return Err(impossible("completeness", other.into())),
                },
            }),
            other => return Err(impossible("kind", other.into())),
        })
    }

    fn chunks(&mut self) -> Result<TraceChunks, FormatError> {
        let mut chunks = TraceChunks {
            position: self.position("position of chunks")?,
            input: self.u16()?,
            kind: self.u16()?,
            ..TraceChunks::default()
        };
        [chunks.size_class, chunks.way] = self.take()?;
        if chunks.size_class >= 64 {
            return Err(impossible("size class", chunks.size_class.into()));
        }
        if self.u16()? != 0 {
            return Err(reserved());
        }
        let mut end = chunks.position;
        while !self.0.is_empty() {
            let (count, bytes) = (self.varint()?, self.varint()?);
            let (count, is_zero) = (count >> 1, count & 1 == 1);
            let long = count.saturating_mul(bytes);
            end = end.saturating_add(long);
            if long == 0 || end >= TRACE_POSITION_END {
                return Err(impossible("length of a run", long));
            }
            let content = if is_zero {
                TraceContent::Zeros(count)
            } else {
                TraceContent::Data(self.fingerprints(count)?)
            };
            chunks.runs.push(TraceRun { bytes, content });
        }
        Ok(chunks)
    }

    fn fingerprints(&mut self, count: u64) -> Result<Vec<u128>, FormatError> {
        if count > (self.0.len() / 16) as u64 {
            return Err(FormatError::Short {
                needed: usize::try_from(count.saturating_mul(16)).unwrap_or(usize::MAX),
                got: self.0.len(),
            });
        }
        let each = (0..count).map(|_| self.take().map(u128::from_le_bytes));
        each.collect()
    }

    fn unit(&mut self) -> Result<TraceUnit, FormatError> {
        let unit = TraceUnit {
            fingerprint: u128::from_le_bytes(self.take()?),
            position: self.position("position of a unit")?,
            bytes: self.u32()?,
            compressed_bytes: self.u32()?,
            group_bytes: self.u32()?,
            compressed_group_bytes: self.u32()?,
        };
        if unit.bytes == 0 {
            return Err(impossible("length of a unit", 0));
        }
        for (compressed, bytes) in [
            (unit.compressed_bytes, unit.bytes),
            (unit.compressed_group_bytes, unit.group_bytes),
        ] {
            if compressed > bytes {
                return Err(impossible("compressed length", compressed.into()));
            }
        }
        match self.u64()? {
            0 => Ok(unit),
            _ => Err(reserved()),
        }
    }

    fn position(&mut self, field: &'static str) -> Result<u64, FormatError> {
        match self.u64()? {
            position if position < TRACE_POSITION_END => Ok(position),
            position => Err(impossible(field, position)),
        }
    }
}
