//! The unit in which the log is written: a header and records, padded to whole sectors.
//!
//! ```text
//!  0 magic              u32     "1FLG"
//!  4 major              u8
//!  5 minor              u8
//!  6 flags              u16     bit 0: the last frame of its commit
//!  8 pool               16 bytes
//! 24 session            u64     opening of the pool that wrote it
//! 32 commit             u64     number of the commit, one higher each time
//! 40 position           u64     its own address: bytes since the log began, a multiple of 512
//! 48 payload            u32     bytes of records
//! 52 previous checksum  u32     of the frame before
//! 56 reserved           u32
//! 60 checksum           u32     CRC-32C of header and payload with this field zero
//! 64 records, then zeros to the next multiple of 512
//! ```
//!
//! The log is a ring: a frame at position p is at byte p modulo the ring's length. Bytes after the
//! newest frame are either from an earlier lap (whose positions are too low) or torn by a crash.
//! Frames of one commit may survive in any combination, because they are synced together; a frame
//! of a *later* commit proves that everything before it was durable, so a gap before such a frame
//! is damage and never the end of the log.

use crate::bytes::{array_at, put, u16_at, u32_at, u64_at};
use crate::error::FormatError;
use crate::superblock::LOG_BYTES_MIN;
use crate::units::{PoolId, SECTOR_BYTES};
use crate::{MAJOR_VERSION, MINOR_VERSION};

/// Bytes in a frame's header.
pub const FRAME_HEADER_BYTES: usize = 64;

/// Most bytes of records in a frame: bounds the buffer that recovery needs, and every frame fits
/// into the smallest ring.
pub const FRAME_PAYLOAD_MAX: usize = 128 << 10;

const MAGIC: u32 = u32::from_le_bytes(*b"1FLG");
const FLAG_LAST: u16 = 1;
const CHECKSUM_AT: usize = 60;

const _: () = assert!(
    CHECKSUM_AT + 4 == FRAME_HEADER_BYTES,
    "the checksum ends the header"
);
const _: () = assert!(
    FRAME_HEADER_BYTES as u64 <= SECTOR_BYTES,
    "no header is torn or wraps"
);
const _: () = assert!((FRAME_HEADER_BYTES + FRAME_PAYLOAD_MAX) as u64 <= LOG_BYTES_MIN);

/// A frame's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// The opening of the pool that wrote the frame.
    pub session: u64,
    /// The commit to which the frame belongs.
    pub commit: u64,
    /// The frame's address, in bytes since the log began.
    pub position: u64,
    /// Checksum of the previous frame.
    pub previous_checksum: u32,
    /// Whether this is the last frame of its commit.
    pub last: bool,
}

/// A header that was read: the frame may be trusted once [`check`] has seen its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UncheckedFrame {
    /// The header.
    pub header: FrameHeader,
    /// Bytes of records that follow.
    pub payload_bytes: usize,
    /// The expected checksum.
    pub checksum: u32,
}

/// Bytes that a frame with this payload takes in the log.
#[must_use]
pub fn frame_bytes(payload_bytes: usize) -> u64 {
    ((FRAME_HEADER_BYTES + payload_bytes) as u64).next_multiple_of(SECTOR_BYTES)
}

/// Appends a frame to `bytes` and returns its checksum.
///
/// # Panics
///
/// Where `payload` exceeds [`FRAME_PAYLOAD_MAX`]: the log's writer cuts it before.
pub fn encode(header: &FrameHeader, pool: PoolId, payload: &[u8], bytes: &mut Vec<u8>) -> u32 {
    assert!(
        payload.len() <= FRAME_PAYLOAD_MAX,
        "a frame of {} bytes",
        payload.len()
    );
    let start = bytes.len();
    bytes.resize(start + FRAME_HEADER_BYTES, 0);
    bytes.extend_from_slice(payload);
    let frame = &mut bytes[start..];
    put(frame, 0, &MAGIC.to_le_bytes());
    put(frame, 4, &[MAJOR_VERSION, MINOR_VERSION]);
    put(
        frame,
        6,
        &(if header.last { FLAG_LAST } else { 0 }).to_le_bytes(),
    );
    put(frame, 8, &pool.0);
    put(frame, 24, &header.session.to_le_bytes());
    put(frame, 32, &header.commit.to_le_bytes());
    put(frame, 40, &header.position.to_le_bytes());
    put(frame, 48, &(payload.len() as u32).to_le_bytes());
    put(frame, 52, &header.previous_checksum.to_le_bytes());
    let checksum = crc32c::crc32c(frame);
    put(frame, CHECKSUM_AT, &checksum.to_le_bytes());
    bytes.resize(start + frame_bytes(payload.len()) as usize, 0);
    checksum
}

/// Reads the header at the start of `bytes`. It uses only the fields needed to find the end of the
/// frame: no other field, the version least of all, is trusted before [`check`].
///
/// # Errors
///
/// Any [`FormatError`] but [`FormatError::Newer`]: no frame of this pool starts here.
pub fn decode_header(bytes: &[u8], pool: PoolId) -> Result<UncheckedFrame, FormatError> {
    if bytes.len() < FRAME_HEADER_BYTES {
        return Err(FormatError::Short {
            needed: FRAME_HEADER_BYTES,
            got: bytes.len(),
        });
    }
    let magic = u32_at(bytes, 0);
    if magic != MAGIC {
        return Err(FormatError::Magic {
            expected: MAGIC,
            found: magic,
        });
    }
    if PoolId(array_at(bytes, 8)) != pool {
        return Err(FormatError::Pool);
    }
    let frame = claimed(bytes);
    if frame.payload_bytes > FRAME_PAYLOAD_MAX {
        return Err(FormatError::Field {
            field: "payload",
            value: frame.payload_bytes as u64,
        });
    }
    Ok(frame)
}

/// The fields of a header, valid or not.
fn claimed(bytes: &[u8]) -> UncheckedFrame {
    UncheckedFrame {
        header: FrameHeader {
            session: u64_at(bytes, 24),
            commit: u64_at(bytes, 32),
            position: u64_at(bytes, 40),
            previous_checksum: u32_at(bytes, 52),
            last: u16_at(bytes, 6) & FLAG_LAST != 0,
        },
        payload_bytes: u32_at(bytes, 48) as usize,
        checksum: u32_at(bytes, CHECKSUM_AT),
    }
}

/// The pool in a header that has not been checked; `None` if no header starts here.
#[must_use]
pub fn claimed_pool(bytes: &[u8]) -> Option<PoolId> {
    let is_header = bytes.len() >= FRAME_HEADER_BYTES && u32_at(bytes, 0) == MAGIC;
    is_header.then(|| PoolId(array_at(bytes, 8)))
}

/// Whether these bytes look like a damaged header of a certain frame: three of magic, pool,
/// position and previous checksum match, and the payload is not longer than a frame's.
#[must_use]
pub fn resembling(
    bytes: &[u8],
    pool: PoolId,
    position: u64,
    previous_checksum: u32,
) -> Option<UncheckedFrame> {
    if bytes.len() < FRAME_HEADER_BYTES {
        return None;
    }
    let mut frame = claimed(bytes);
    frame.payload_bytes = frame.payload_bytes.min(FRAME_PAYLOAD_MAX);
    let as_expected = [
        u32_at(bytes, 0) == MAGIC,
        PoolId(array_at(bytes, 8)) == pool,
        frame.header.position == position,
        frame.header.previous_checksum == previous_checksum,
    ];
    (as_expected.into_iter().filter(|is_same| *is_same).count() >= 3).then_some(frame)
}

/// Compares the checksum over header and payload with the one in the header, then checks the
/// header's fields.
///
/// # Errors
///
/// Any [`FormatError`]; [`FormatError::Newer`] means a whole frame of a later release, all others
/// mean that there is no frame here.
pub fn check(frame: &UncheckedFrame, bytes: &[u8]) -> Result<(), FormatError> {
    let needed = FRAME_HEADER_BYTES + frame.payload_bytes;
    let Some(bytes) = bytes.get(..needed) else {
        return Err(FormatError::Short {
            needed,
            got: bytes.len(),
        });
    };
    let head = crc32c::crc32c(&bytes[..CHECKSUM_AT]);
    let gap = crc32c::crc32c_append(head, &[0; 4]);
    let found = crc32c::crc32c_append(gap, &bytes[CHECKSUM_AT + 4..]);
    if found != frame.checksum {
        return Err(FormatError::Checksum {
            expected: frame.checksum,
            found,
        });
    }
    let (major, minor) = (bytes[4], bytes[5]);
    if major > MAJOR_VERSION {
        return Err(FormatError::Newer { major, minor });
    }
    if major == 0 {
        return Err(FormatError::Field {
            field: "major version",
            value: 0,
        });
    }
    if u16_at(bytes, 6) & !FLAG_LAST != 0 || u32_at(bytes, 56) != 0 {
        return Err(FormatError::Reserved {
            structure: "frame header",
        });
    }
    Ok(())
}
