//! The host's memory of a pool: records that no commit has made durable yet, and the syncs of the
//! data that are in progress. It outlives the process but not the host.
//!
//! It begins with the ledger, of 64 KiB, which counts the syncs of the data and notes the volumes
//! that wrote in place. Two bit sets of 512 KiB follow: the marks of new blocks that were rewritten
//! in place, for each half. The two halves of 8 MiB have the records.
//!
//! A half:
//!
//! ```text
//!  0 magic              u32     "2FTL"
//!  4 major              u8
//!  5 minor              u8
//!  6 reserved           u16
//!  8 pool               16 bytes
//! 24 boot               16 bytes   the kernel's id of the boot in which it was written
//! 40 position           u64     of the first record's frame in the log
//! 48 reserved           12 bytes
//! 60 checksum           u32     CRC-32C of the 60 bytes before
//! 64 end                u64     bytes of entries
//! 72 entries
//! ```
//!
//! The ledger:
//!
//! ```text
//!  0 magic              u32     "1FSL"
//!  4 to 39              as in a half
//! 40 reserved           20 bytes
//! 60 checksum           u32     as in a half
//! 64 begun              u64     syncs of the data that have begun
//! 72 ended              u64     syncs that have succeeded
//! 80 good               u64     number of the last sync that has succeeded, counted from 1
//! 88 failed             u64     1: a sync has failed
//! 96 + 16 n             slot n: label u64, volume u64
//! ```
//!
//! An entry has the records that one request appended to one frame of the log:
//!
//! ```text
//!  0 checksum           u32     CRC-32C of the header's checksum and all bytes of the entry after this field
//!  4 length             u32     bytes of records
//!  8 position           u64     position of the frame that will have these records
//! 16 sums               u32     how many checksums of blocks follow
//! 20 records
//!    checksums          u32     CRC-32C of each new block of these records, in their order; or none
//! ```
//!
//! A word is written whole or not at all. The first word of a header is written last, and *end* after
//! the entries that it covers: so a process that dies leaves a header or none, and whole entries.

use crate::bytes::{array_at, is_zero, put, u32_at, u64_at};
use crate::error::FormatError;
use crate::units::{PoolId, SECTOR_BYTES, VolumeId};
use crate::{MAJOR_VERSION, MINOR_VERSION};

/// Bytes in a header, of the ledger and of a half.
pub const TAIL_HEADER_BYTES: usize = 64;

/// Where a half's word *end* is.
pub const TAIL_END_AT: usize = 64;

/// Where a half's entries begin.
pub const TAIL_ENTRIES_AT: usize = 72;

/// Bytes of an entry before its records.
pub const TAIL_ENTRY_BYTES: usize = 20;

/// Bytes of the ledger.
pub const LEDGER_BYTES: usize = 64 << 10;

/// Where the ledger's words begin: begun, ended, good, failed.
pub const LEDGER_WORDS_AT: usize = 64;

/// Where the ledger's slots begin.
pub const LEDGER_SLOTS_AT: usize = 96;

/// Bytes of a slot.
pub const LEDGER_SLOT_BYTES: usize = 16;

/// Slots of the ledger. The last one stands for all volumes without a slot.
pub const LEDGER_SLOTS: usize = (LEDGER_BYTES - LEDGER_SLOTS_AT) / LEDGER_SLOT_BYTES;

/// The volume of the slot that stands for every volume without one.
pub const OTHER_VOLUMES: VolumeId = VolumeId(u64::MAX);

const LEDGER_MAGIC: u32 = u32::from_le_bytes(*b"1FSL");
const TAIL_MAGIC: u32 = u32::from_le_bytes(*b"2FTL");
/// The magic number of a half in the first layout, which had no ledger.
const OLD_TAIL_MAGIC: u32 = u32::from_le_bytes(*b"1FTL");
const CHECKSUM_AT: usize = 60;

/// The owner of the memory: a pool, in one boot of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TailOwner {
    /// The pool.
    pub pool: PoolId,
    /// The boot. In another boot the data that this memory describes may be gone.
    pub boot: [u8; 16],
}

impl TailOwner {
    /// Whether a header claims this owner, whatever else is wrong with it.
    fn is_claimed(&self, bytes: &[u8]) -> bool {
        array_at(bytes, 8) == self.pool.0 && array_at(bytes, 24) == self.boot
    }

    fn put(&self, bytes: &mut [u8]) {
        put(bytes, 8, &self.pool.0);
        put(bytes, 24, &self.boot);
    }
}

/// The ledger's header.
#[must_use]
pub fn encode_ledger(owner: &TailOwner) -> [u8; TAIL_HEADER_BYTES] {
    let mut bytes = [0; TAIL_HEADER_BYTES];
    owner.put(&mut bytes);
    seal(&mut bytes, LEDGER_MAGIC);
    bytes
}

/// The syncs of a process, and the volumes whose rewrites in place it may have left unsynced.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ledger {
    /// Syncs that have begun.
    pub begun: u64,
    /// Syncs that have succeeded.
    pub ended: u64,
    /// Whether a sync has failed.
    pub has_failed: bool,
    /// Volumes that were written in place since the last sync that succeeded.
    pub unsynced: Vec<VolumeId>,
}

impl Ledger {
    /// Reads the ledger that this owner wrote; `None` if there is none.
    ///
    /// # Errors
    ///
    /// Any [`FormatError`]: this owner wrote it, and it cannot be decoded.
    pub fn decode(bytes: &[u8], owner: &TailOwner) -> Result<Option<Self>, FormatError> {
        if bytes.len() < LEDGER_BYTES {
            return short(LEDGER_BYTES, bytes.len());
        }
        if check_header(bytes, LEDGER_MAGIC, owner)?.is_none() {
            return Ok(None);
        }
        if !is_zero(&bytes[40..CHECKSUM_AT]) {
            return Err(FormatError::Reserved {
                structure: "ledger of syncs",
            });
        }
        let [begun, ended, good, failed] = [64, 72, 80, 88].map(|at| u64_at(bytes, at));
        if ended > begun || good > begun {
            return Err(FormatError::Field {
                field: "syncs that succeeded",
                value: ended.max(good),
            });
        }
        let slots = bytes[LEDGER_SLOTS_AT..].chunks_exact(LEDGER_SLOT_BYTES);
        let unsynced = slots
            .map(|slot| (u64_at(slot, 0), u64_at(slot, 8)))
            .filter(|(label, volume)| *volume != 0 && *label >= good);
        Ok(Some(Self {
            begun,
            ended,
            has_failed: failed != 0,
            unsynced: unsynced.map(|(_, volume)| VolumeId(volume)).collect(),
        }))
    }

    /// Whether a sync began that has not succeeded.
    #[must_use]
    pub fn is_unsettled(&self) -> bool {
        self.begun != self.ended
    }
}

/// A half's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TailHeader {
    /// The owner of the records.
    pub owner: TailOwner,
    /// Position of the first frame: bytes since the log began.
    pub position: u64,
}

impl TailHeader {
    /// The header, and the checksum that the checksums of its entries continue.
    #[must_use]
    pub fn encode(&self) -> ([u8; TAIL_HEADER_BYTES], u32) {
        let mut bytes = [0; TAIL_HEADER_BYTES];
        self.owner.put(&mut bytes);
        put(&mut bytes, 40, &self.position.to_le_bytes());
        let checksum = seal(&mut bytes, TAIL_MAGIC);
        (bytes, checksum)
    }

    /// Reads the header that this owner wrote, with the checksum that the checksums of its entries
    /// continue; `None` if there is none of this owner.
    ///
    /// # Errors
    ///
    /// Any [`FormatError`]: this owner wrote it, and it cannot be decoded.
    pub fn decode(bytes: &[u8], owner: &TailOwner) -> Result<Option<(Self, u32)>, FormatError> {
        let Some(checksum) = check_header(bytes, TAIL_MAGIC, owner)? else {
            return Ok(None);
        };
        if !is_zero(&bytes[48..CHECKSUM_AT]) {
            return Err(FormatError::Reserved {
                structure: "tail header",
            });
        }
        let position = u64_at(bytes, 40);
        if !position.is_multiple_of(SECTOR_BYTES) {
            return Err(FormatError::Field {
                field: "log position",
                value: position,
            });
        }
        let header = Self {
            owner: *owner,
            position,
        };
        Ok(Some((header, checksum)))
    }
}

/// Adds magic, version and checksum; returns the checksum.
fn seal(bytes: &mut [u8; TAIL_HEADER_BYTES], magic: u32) -> u32 {
    put(bytes, 0, &magic.to_le_bytes());
    put(bytes, 4, &[MAJOR_VERSION, MINOR_VERSION]);
    let checksum = crc32c::crc32c(&bytes[..CHECKSUM_AT]);
    put(bytes, CHECKSUM_AT, &checksum.to_le_bytes());
    checksum
}

/// The checksum of this owner's header; `None` if this owner has written none here.
fn check_header(bytes: &[u8], magic: u32, owner: &TailOwner) -> Result<Option<u32>, FormatError> {
    if bytes.len() < TAIL_HEADER_BYTES {
        return short(TAIL_HEADER_BYTES, bytes.len());
    }
    let found = u32_at(bytes, 0);
    if ![magic, OLD_TAIL_MAGIC].contains(&found) || !owner.is_claimed(bytes) {
        return Ok(None);
    }
    if found == OLD_TAIL_MAGIC {
        return Err(FormatError::Magic {
            expected: magic,
            found,
        });
    }
    let (expected, found) = (
        u32_at(bytes, CHECKSUM_AT),
        crc32c::crc32c(&bytes[..CHECKSUM_AT]),
    );
    if found != expected {
        return Err(FormatError::Checksum { expected, found });
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
    if !is_zero(&bytes[6..8]) {
        return Err(FormatError::Reserved {
            structure: "tail header",
        });
    }
    Ok(Some(expected))
}

fn short<T>(needed: usize, got: usize) -> Result<T, FormatError> {
    Err(FormatError::Short { needed, got })
}

/// The bytes before the records of an entry; the checksums of blocks follow the records. `seed` is
/// the header's checksum.
#[must_use]
pub fn encode_entry(
    seed: u32,
    position: u64,
    records: &[u8],
    sums: &[u8],
) -> [u8; TAIL_ENTRY_BYTES] {
    let mut bytes = [0; TAIL_ENTRY_BYTES];
    put(&mut bytes, 4, &(records.len() as u32).to_le_bytes());
    put(&mut bytes, 8, &position.to_le_bytes());
    put(&mut bytes, 16, &(sums.len() as u32 / 4).to_le_bytes());
    let checksum = [&bytes[4..], records, sums]
        .into_iter()
        .fold(seed, crc32c::crc32c_append);
    put(&mut bytes, 0, &checksum.to_le_bytes());
    bytes
}

/// The checksum of a new block in an entry.
#[must_use]
pub fn block_sum(block: &[u8]) -> u32 {
    crc32c::crc32c(block)
}

/// The entries of a half.
#[derive(Debug, Clone)]
pub struct TailEntries<'a> {
    seed: u32,
    rest: &'a [u8],
}

impl<'a> TailEntries<'a> {
    /// The entries in `bytes`, which is all space after the header whose checksum is `seed`.
    #[must_use]
    pub fn new(seed: u32, bytes: &'a [u8]) -> Self {
        Self { seed, rest: bytes }
    }

    fn take(&mut self) -> Result<TailEntry<'a>, FormatError> {
        let all = std::mem::take(&mut self.rest);
        let Some((head, behind)) = all.split_at_checked(TAIL_ENTRY_BYTES) else {
            return short(TAIL_ENTRY_BYTES, all.len());
        };
        let (len, count) = (u32_at(head, 4) as usize, u32_at(head, 16) as usize);
        let needed = len.saturating_add(count.saturating_mul(4));
        let Some((body, rest)) = behind.split_at_checked(needed) else {
            return short(needed, behind.len());
        };
        let (records, sums) = body.split_at(len);
        let position = u64_at(head, 8);
        let encoded = encode_entry(self.seed, position, records, sums);
        if head != encoded {
            return Err(FormatError::Checksum {
                expected: u32_at(head, 0),
                found: u32_at(&encoded, 0),
            });
        }
        self.rest = rest;
        Ok(TailEntry {
            position,
            records,
            sums,
        })
    }
}

/// Records of one request for one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TailEntry<'a> {
    /// The position of the frame that will have them.
    pub position: u64,
    /// Encoded records, as in a frame's payload.
    pub records: &'a [u8],
    /// A checksum of 4 bytes for each new block of the records, or nothing.
    pub sums: &'a [u8],
}

impl<'a> Iterator for TailEntries<'a> {
    type Item = Result<TailEntry<'a>, FormatError>;

    /// Iteration ends at an entry that cannot be decoded.
    fn next(&mut self) -> Option<Self::Item> {
        (!self.rest.is_empty()).then(|| self.take())
    }
}
