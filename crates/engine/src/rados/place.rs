//! How a part is laid out in objects: the pieces of a range.

use std::ops::Range;

/// The size of an object; it may end earlier.
pub(super) const OBJECT_BYTES: u64 = 4 << 20;

/// The longest part: more than the blocks that a pool can address.
pub(super) const PART_BYTES_MAX: u64 = 1 << 60;

/// A range of one object, and the bytes of a request that belong there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) object: u64,
    pub(super) offset: u64,
    pub(super) bytes: Range<usize>,
}

impl Piece {
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether the piece is a whole object.
    pub(super) fn is_whole(&self) -> bool {
        self.len() as u64 == OBJECT_BYTES
    }
}

/// The pieces of a range that [fits](end).
pub(super) fn pieces(offset: u64, len: u64) -> impl Iterator<Item = Piece> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at == end {
            return None;
        }
        let (object, within) = (at / OBJECT_BYTES, at % OBJECT_BYTES);
        let from = at;
        at = end.min(from - within + OBJECT_BYTES);
        Some(Piece {
            object,
            offset: within,
            bytes: (from - offset) as usize..(at - offset) as usize,
        })
    })
}

/// A piece of one of several requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) request: usize,
    pub(super) piece: Piece,
}

/// Splits ranges, each an offset and a length, into pieces, and groups the pieces by object: at least one and at most
/// `places_max` in a group.
pub(super) fn by_object(
    requests: impl IntoIterator<Item = (u64, u64)>,
    places_max: usize,
) -> Vec<Vec<Place>> {
    let of_one =
        |(request, (offset, len))| pieces(offset, len).map(move |piece| Place { request, piece });
    let mut all: Vec<Place> = (0..).zip(requests).flat_map(of_one).collect();
    all.sort_by_key(|place| place.piece.object);
    let objects = all.chunk_by(|a, b| a.piece.object == b.piece.object);
    let operations = objects.flat_map(|places| places.chunks(places_max));
    operations.map(<[Place]>::to_vec).collect()
}

/// The end of a range, unless it is beyond the longest part.
pub(super) fn end(offset: u64, len: u64) -> Option<u64> {
    let end = offset.checked_add(len)?;
    (end <= PART_BYTES_MAX).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_range_and_each_is_in_one_object() {
        let whole = |object| Piece {
            object,
            offset: 0,
            bytes: 0..OBJECT_BYTES as usize,
        };
        assert_eq!(pieces(0, 0).count(), 0);
        assert_eq!(pieces(0, OBJECT_BYTES).collect::<Vec<_>>(), [whole(0)]);
        let across = pieces(OBJECT_BYTES - 5, 5 + OBJECT_BYTES + 7).collect::<Vec<_>>();
        let len = OBJECT_BYTES as usize;
        let expected = [
            (0, OBJECT_BYTES - 5, 0..5),
            (1, 0, 5..5 + len),
            (2, 0, 5 + len..12 + len),
        ];
        let expected = expected.map(|(object, offset, bytes)| Piece {
            object,
            offset,
            bytes,
        });
        assert_eq!(across, expected);
        assert!(across[1].is_whole() && !across[0].is_whole());
    }

    #[test]
    fn what_is_in_one_object_goes_together() {
        let requests = [
            (5, 10),
            (OBJECT_BYTES - 1, 2),
            (7, 0),
            (OBJECT_BYTES + 9, 1),
            (0, 3),
        ];
        let together = |places_max| {
            let operations = by_object(requests, places_max);
            let places = |operation: Vec<Place>| {
                operation
                    .into_iter()
                    .map(|place| (place.piece.object, place.request, place.piece.bytes))
                    .collect::<Vec<_>>()
            };
            operations.into_iter().map(places).collect::<Vec<_>>()
        };
        let (first, second) = (
            [(0, 0, 0..10), (0, 1, 0..1), (0, 4, 0..3)],
            [(1, 1, 1..2), (1, 3, 0..1)],
        );
        assert_eq!(together(3), [&first[..], &second]);
        assert_eq!(together(2), [&first[..2], &first[2..], &second]);
    }

    #[test]
    fn ranges_end_within_a_part() {
        assert_eq!(end(0, PART_BYTES_MAX), Some(PART_BYTES_MAX));
        assert_eq!(end(1, PART_BYTES_MAX), None);
        assert_eq!(end(u64::MAX, 1), None);
    }
}
