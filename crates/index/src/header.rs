//! The first sector of the part: whose index it is, of which kind, and whether it can be trusted.
//!
//! It is synced before anything relies on it, and a sector is written whole or not at all. So it is
//! the switch: the body is valid only while the header says [`Content::Whole`].

use onefold_engine::Disk;
use onefold_format::{IndexKind, PoolId};

use crate::{IndexError, Result};

/// Bytes of the header: one sector.
const HEADER_BYTES: usize = 512;

/// Start of the rest of the part: a multiple of every page size there is.
pub(crate) const BODY_OFFSET: u64 = 4096;

const MAGIC: [u8; 4] = *b"1FLI";
const VERSION: u16 = 1;
const CHECKSUM_OFFSET: usize = 508;

/// Whether the body holds the pool's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// The body holds the rows.
    Whole(Extent),
    /// The body is not valid, whatever it contains: the rows have to be counted from the maps.
    Void,
}

impl Content {
    /// The body of an index that needs no extent.
    pub(crate) const WHOLE: Content = Content::Whole(Extent {
        stream_bytes: 0,
        rows: 0,
        hash: [0; 32],
    });
}

/// The content of a closed memory index; zeros for other kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Extent {
    /// Bytes of the streams, which come first.
    pub(crate) stream_bytes: u64,
    /// The number of rows, which follow the streams.
    pub(crate) rows: u64,
    /// BLAKE3 of streams and rows.
    pub(crate) hash: [u8; 32],
}

const WHOLE: u8 = 1;
const VOID: u8 = 2;

/// Writes the header and makes it durable. Its statement about the body must be true already,
/// except for a body whose hash it has: that may become durable with it.
pub(crate) fn write(
    disk: &dyn Disk,
    kind: IndexKind,
    pool: PoolId,
    content: Content,
) -> Result<()> {
    disk.write_at(&encode(kind, pool, content), 0)
        .map_err(IndexError::of_write)?;
    Ok(disk.sync()?)
}

fn encode(kind: IndexKind, pool: PoolId, content: Content) -> [u8; HEADER_BYTES] {
    let (state, extent) = match content {
        Content::Whole(extent) => (WHOLE, extent),
        Content::Void => (VOID, Extent::default()),
    };
    let mut bytes = [0; HEADER_BYTES];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes[6] = kind as u8;
    bytes[7] = state;
    bytes[8..24].copy_from_slice(&pool.0);
    bytes[24..32].copy_from_slice(&extent.stream_bytes.to_le_bytes());
    bytes[32..40].copy_from_slice(&extent.rows.to_le_bytes());
    bytes[40..72].copy_from_slice(&extent.hash);
    let checksum = crc32c::crc32c(&bytes);
    bytes[CHECKSUM_OFFSET..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// The kind in a header, if there is one of this pool.
pub(crate) fn kind(disk: &dyn Disk, pool: PoolId) -> Result<Option<IndexKind>> {
    let mut bytes = [0; HEADER_BYTES];
    match disk.read_at(&mut bytes, 0) {
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let kinds = [IndexKind::Btree, IndexKind::Memory, IndexKind::Hash];
    let mut kinds = kinds.into_iter();
    Ok(kinds.find(|kind| decode(&bytes, *kind, pool).is_ok()))
}

/// Reads the header from the medium.
///
/// # Errors
/// [`IndexError::Damaged`] if there is no header, or one of another kind; [`IndexError::OtherPool`];
/// [`IndexError::Newer`].
pub(crate) fn read(disk: &dyn Disk, kind: IndexKind, pool: PoolId) -> Result<Content> {
    // Data that survived only in the host's cache must be durable before anything relies on it, and
    // data that a failed sync left there must not be mistaken for the medium's.
    disk.sync()?;
    disk.forget_cached()?;
    let mut bytes = [0; HEADER_BYTES];
    disk.read_at(&mut bytes, 0)?;
    decode(&bytes, kind, pool)
}

fn decode(bytes: &[u8; HEADER_BYTES], kind: IndexKind, pool: PoolId) -> Result<Content> {
    let damaged = |what: String| Err(IndexError::Damaged(what));
    if bytes[..4] != MAGIC {
        return damaged(format!(
            "it begins with {:02x?}, not with {MAGIC:02x?}",
            &bytes[..4]
        ));
    }
    let mut blank = *bytes;
    blank[CHECKSUM_OFFSET..].fill(0);
    if crc32c::crc32c(&blank).to_le_bytes() != bytes[CHECKSUM_OFFSET..] {
        return damaged("its header fails the checksum".into());
    }
    let version = u16::from_le_bytes(field(bytes, 4));
    if version > VERSION {
        return Err(IndexError::Newer(version));
    }
    let found = PoolId(field(bytes, 8));
    if found != pool {
        return Err(IndexError::OtherPool {
            expected: pool,
            found,
        });
    }
    if bytes[6] != kind as u8 {
        return damaged(format!("it is of kind {}, not {kind:?}", bytes[6]));
    }
    let extent = Extent {
        stream_bytes: u64::from_le_bytes(field(bytes, 24)),
        rows: u64::from_le_bytes(field(bytes, 32)),
        hash: field(bytes, 40),
    };
    match bytes[7] {
        _ if version == 0 || bytes[72..CHECKSUM_OFFSET].iter().any(|byte| *byte != 0) => {
            damaged("its header has impossible values".into())
        }
        WHOLE if kind == IndexKind::Memory || extent == Extent::default() => {
            Ok(Content::Whole(extent))
        }
        VOID if extent == Extent::default() => Ok(Content::Void),
        _ => damaged("its header has impossible values".into()),
    }
}

fn field<const N: usize>(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: PoolId = PoolId([5; 16]);

    fn contents(kind: IndexKind) -> Vec<Content> {
        let extent = match kind {
            IndexKind::Btree | IndexKind::Hash => Extent::default(),
            IndexKind::Memory => Extent {
                stream_bytes: 1 << 33,
                rows: 77,
                hash: [9; 32],
            },
        };
        vec![Content::Whole(extent), Content::Void]
    }

    fn resealed(mut bytes: [u8; HEADER_BYTES]) -> [u8; HEADER_BYTES] {
        bytes[CHECKSUM_OFFSET..].fill(0);
        let checksum = crc32c::crc32c(&bytes);
        bytes[CHECKSUM_OFFSET..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    #[test]
    fn headers_survive_encoding() {
        for kind in [IndexKind::Btree, IndexKind::Memory, IndexKind::Hash] {
            for content in contents(kind) {
                let bytes = encode(kind, POOL, content);
                assert_eq!(decode(&bytes, kind, POOL).unwrap(), content);
            }
        }
    }

    #[test]
    fn every_flipped_bit_is_damage() {
        let bytes = encode(IndexKind::Memory, POOL, contents(IndexKind::Memory)[0]);
        for bit in 0..HEADER_BYTES * 8 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            let error = decode(&bytes, IndexKind::Memory, POOL).unwrap_err();
            assert!(matches!(error, IndexError::Damaged(_)), "{bit}: {error}");
        }
        let blank = decode(&[0; HEADER_BYTES], IndexKind::Memory, POOL);
        assert!(matches!(blank, Err(IndexError::Damaged(_))));
    }

    #[test]
    fn what_is_whole_but_not_ours_is_refused() {
        let bytes = encode(IndexKind::Btree, POOL, Content::Void);
        let error = decode(&bytes, IndexKind::Btree, PoolId([6; 16])).unwrap_err();
        assert!(
            matches!(error, IndexError::OtherPool { found: POOL, .. }),
            "{error}"
        );
        let error = decode(&bytes, IndexKind::Memory, POOL).unwrap_err();
        assert!(matches!(error, IndexError::Damaged(_)), "{error}");
        let mut newer = bytes;
        newer[4] = 2;
        let error = decode(&resealed(newer), IndexKind::Btree, POOL).unwrap_err();
        assert!(matches!(error, IndexError::Newer(2)), "{error}");
    }

    #[test]
    fn impossible_values_under_a_right_checksum_are_damage() {
        let bytes = encode(IndexKind::Btree, POOL, Content::Void);
        for (at, value) in [
            (4, 0),
            (6, 3),
            (7, 0),
            (7, 3),
            (24, 1),
            (32, 1),
            (40, 1),
            (507, 1),
        ] {
            let mut bytes = bytes;
            bytes[at] = value;
            let error = decode(&resealed(bytes), IndexKind::Btree, POOL).unwrap_err();
            assert!(
                matches!(error, IndexError::Damaged(_)),
                "{at} {value}: {error}"
            );
        }
    }
}
