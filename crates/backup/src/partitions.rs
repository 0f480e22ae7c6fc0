//! Fixed-length records, sorted into temporary files by a key: more than memory can hold go in, and one
//! file's come out at a time.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};

/// Temporary files of records of `N` bytes.
pub(crate) struct Partitions<const N: usize> {
    files: Vec<BufWriter<File>>,
    records: Vec<u64>,
}

impl<const N: usize> Partitions<N> {
    /// So many files, with buffers of so many bytes in all.
    pub(crate) fn new(files: usize, buffer_bytes: usize) -> io::Result<Self> {
        let each = (buffer_bytes / files.max(1)).max(4096);
        let files = (0..files).map(|_| Ok(BufWriter::with_capacity(each, tempfile::tempfile()?)));
        let files: Vec<_> = files.collect::<io::Result<_>>()?;
        Ok(Self {
            records: vec![0; files.len()],
            files,
        })
    }

    pub(crate) fn count(&self) -> usize {
        self.files.len()
    }

    pub(crate) fn push(&mut self, partition: usize, record: [u8; N]) -> io::Result<()> {
        let Some(file) = self.files.get_mut(partition) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        file.write_all(&record)?;
        self.records[partition] += 1;
        Ok(())
    }

    /// Records of a partition.
    pub(crate) fn records(&self, partition: usize) -> u64 {
        self.records.get(partition).copied().unwrap_or(0)
    }

    /// Takes the records out of a partition, in no order.
    pub(crate) fn take(&mut self, partition: usize) -> io::Result<Vec<[u8; N]>> {
        let mut records = vec![[0; N]; self.records(partition) as usize];
        let Some(file) = self.files.get_mut(partition) else {
            return Ok(records);
        };
        file.flush()?;
        let file = file.get_mut();
        file.seek(SeekFrom::Start(0))?;
        file.read_exact(records.as_flattened_mut())?;
        file.set_len(0)?;
        file.seek(SeekFrom::Start(0))?;
        self.records[partition] = 0;
        Ok(records)
    }
}
