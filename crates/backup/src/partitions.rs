//! Fixed-length records, partitioned on disk: more records than fit into memory are added, and then one partition at a
//! time is read back. All partitions share one temporary file, so there may be thousands.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use crate::records::Place;

/// The least bytes of a buffer.
const BUFFER_BYTES_MIN: usize = 1024;

/// Partitions of records of `N` bytes.
pub(crate) struct Partitions<const N: usize> {
    file: File,
    /// Bytes of a full buffer, and so of each piece written to the file.
    piece_bytes: usize,
    pieces: u64,
    partitions: Vec<Partition>,
}

#[derive(Default)]
struct Partition {
    /// Records that are not in the file yet.
    buffer: Vec<u8>,
    /// Numbers of the pieces of the file that belong to this partition.
    pieces: Vec<u64>,
}

impl<const N: usize> Partitions<N> {
    /// Creates partitions whose buffers take `buffer_bytes` in all.
    pub(crate) fn new(partitions: usize, buffer_bytes: usize) -> io::Result<Self> {
        let each = (buffer_bytes / partitions.max(1)).max(BUFFER_BYTES_MIN);
        Ok(Self {
            file: tempfile::tempfile()?,
            piece_bytes: each / N * N,
            pieces: 0,
            partitions: (0..partitions).map(|_| Partition::default()).collect(),
        })
    }

    pub(crate) fn count(&self) -> usize {
        self.partitions.len()
    }

    pub(crate) fn push(&mut self, partition: usize, record: [u8; N]) -> io::Result<()> {
        let Some(into) = self.partitions.get_mut(partition) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        into.buffer.extend(record);
        if into.buffer.len() >= self.piece_bytes {
            // Pieces are appended, so their numbers give their offsets.
            self.file.write_all(&into.buffer)?;
            into.buffer.clear();
            into.pieces.push(self.pieces);
            self.pieces += 1;
        }
        Ok(())
    }

    /// The number of records in a partition.
    pub(crate) fn records(&self, partition: usize) -> u64 {
        self.partitions.get(partition).map_or(0, |partition| {
            let bytes = partition.pieces.len() * self.piece_bytes + partition.buffer.len();
            (bytes / N) as u64
        })
    }

    /// Takes all records out of a partition, in no particular order.
    pub(crate) fn take(&mut self, partition: usize) -> io::Result<Vec<[u8; N]>> {
        let mut records = vec![[0; N]; self.records(partition) as usize];
        let Some(from) = self.partitions.get_mut(partition) else {
            return Ok(records);
        };
        let Partition { buffer, pieces } = std::mem::take(from);
        let bytes = records.as_flattened_mut();
        let (in_file, in_buffer) = bytes.split_at_mut(pieces.len() * self.piece_bytes);
        for (piece, bytes) in pieces.iter().zip(in_file.chunks_mut(self.piece_bytes)) {
            self.file
                .read_exact_at(bytes, piece * self.piece_bytes as u64)?;
        }
        in_buffer.copy_from_slice(&buffer);
        Ok(records)
    }
}

/// A fingerprint, and the place of its block.
pub(crate) const ROW_BYTES: usize = 24;

pub(crate) fn row(fingerprint: [u8; 16], place: Place) -> [u8; ROW_BYTES] {
    let mut row = [0; ROW_BYTES];
    row[..16].copy_from_slice(&fingerprint);
    row[16..].copy_from_slice(&place.0.to_le_bytes());
    row
}

pub(crate) fn of_row(row: &[u8; ROW_BYTES]) -> ([u8; 16], Place) {
    let (mut fingerprint, mut place) = ([0; 16], [0; 8]);
    fingerprint.copy_from_slice(&row[..16]);
    place.copy_from_slice(&row[16..]);
    (fingerprint, Place(u64::from_le_bytes(place)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out_of_its_partition() {
        const COUNT: usize = 700;
        let mut partitions = Partitions::<16>::new(COUNT, 1 << 16).unwrap();
        let mut random = fastrand::Rng::with_seed(1);
        let mut expected = vec![Vec::new(); COUNT];
        for round in 0..3 {
            for _ in 0..50_000 {
                // Skewed, so that few partitions get most records.
                let most = random.usize(..COUNT);
                let partition = random.usize(..=most);
                let record = random.u128(..).to_le_bytes();
                partitions.push(partition, record).unwrap();
                expected[partition].push(record);
            }
            for partition in (round..COUNT).step_by(2) {
                let records = expected[partition].len() as u64;
                assert_eq!(partitions.records(partition), records);
                let mut taken = partitions.take(partition).unwrap();
                taken.sort_unstable();
                expected[partition].sort_unstable();
                assert!(taken == expected[partition], "partition {partition}");
                expected[partition].clear();
            }
        }
        assert!(partitions.push(COUNT, [0; 16]).is_err());
    }
}
