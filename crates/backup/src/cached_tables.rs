//! A file of the cache of tables: reading it, finding contents in it, and writing one from others.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::iter::Peekable;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use onefold_format::backup::cache::{CACHE_HEADER_BYTES, CACHED_PACK_BYTES, CACHED_ROW_BYTES};
use onefold_format::backup::pack::{BLOCKS_PER_PACK, PackTable};
use onefold_format::backup::{
    CacheHeader, CachedPack, CachedRow, RepositoryId, Slot, SourceId, StoredGroup, TAG_BYTES,
};
use rustc_hash::FxHashSet;

use crate::cache::INCOMPLETE;

/// Rows read at a time when few of them are wanted.
const PAGE_ROWS: u64 = 1024;

/// Pages next to the expected one that are tried before the binary search: words of rows are as good as random, so an
/// interpolated position is close.
const NEIGHBOURS: u32 = 4;

/// The most bytes of a table without fingerprints: every block was moved, each into a popular pack of its own.
const TABLE_BYTES_MAX: usize = 64 * BLOCKS_PER_PACK as usize;

const BUFFER_BYTES: usize = 1 << 18;

const HEADERS_BYTES: u64 = CACHE_HEADER_BYTES as u64;

fn impossible(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// An open file of cached tables.
#[derive(Debug)]
pub(crate) struct CachedTables {
    path: PathBuf,
    file: File,
    packs: Vec<CachedPack>,
    rows_at: u64,
    rows: u64,
}

impl CachedTables {
    /// # Errors
    ///
    /// If the file cannot be read, is damaged, or is of another store or repository.
    pub(crate) fn open(
        path: PathBuf,
        repository: RepositoryId,
        store: SourceId,
    ) -> io::Result<Self> {
        let file = File::open(&path)?;
        let bytes = file.metadata()?.len();
        let mut header_bytes = [0; CACHE_HEADER_BYTES];
        file.read_exact_at(&mut header_bytes, 0)?;
        let header = CacheHeader::decode(&header_bytes).map_err(impossible)?;
        if (header.repository, header.store) != (repository, store) {
            return Err(impossible("it is of another store"));
        }
        let packs_bytes = u64::from(header.packs) * CACHED_PACK_BYTES as u64;
        let rows_bytes = header.rows.checked_mul(CACHED_ROW_BYTES as u64);
        let rows_at = rows_bytes.and_then(|rows| bytes.checked_sub(rows));
        let rows_at = rows_at.filter(|at| *at >= HEADERS_BYTES + packs_bytes);
        let rows_at = rows_at.ok_or_else(|| impossible("it is cut"))?;
        let mut packs = vec![0; packs_bytes as usize];
        file.read_exact_at(&mut packs, HEADERS_BYTES)?;
        CacheHeader::check(&header_bytes, &packs).map_err(impossible)?;
        let packs = packs.as_chunks().0.iter().map(CachedPack::decode);
        Ok(Self {
            path,
            file,
            packs: packs.collect::<Result<_, _>>().map_err(impossible)?,
            rows_at,
            rows: header.rows,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn packs(&self) -> &[CachedPack] {
        &self.packs
    }

    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// The table of a pack, with zeros for fingerprints and with empty groups; `None` if it cannot be read.
    pub(crate) fn table(&self, pack: &CachedPack) -> Option<PackTable> {
        let compressed = self.compressed_table(pack).ok()?;
        let table = zstd::bulk::decompress(&compressed, TABLE_BYTES_MAX).ok()?;
        let table = PackTable::decode(&table).ok()?;
        (table.witness == pack.pack.witness).then_some(table)
    }

    fn compressed_table(&self, pack: &CachedPack) -> io::Result<Vec<u8>> {
        if pack.table_bytes as usize > TABLE_BYTES_MAX {
            return Err(impossible("a table is too long"));
        }
        let mut bytes = vec![0; pack.table_bytes as usize];
        self.file.read_exact_at(&mut bytes, pack.table_at)?;
        pack.check_table(&bytes).map_err(impossible)?;
        Ok(bytes)
    }

    /// For each pack, whether it has any of some contents. `words` are the first bytes of their fingerprints, in
    /// ascending order.
    ///
    /// # Errors
    ///
    /// Any failure of reading.
    pub(crate) fn find(&self, words: &[u64]) -> io::Result<Vec<bool>> {
        let mut found = vec![false; self.packs.len()];
        let mut search = Search {
            tables: self,
            first: 0,
            page: Vec::new(),
        };
        let mut at = 0;
        for word in words {
            at = search.first_from(at, *word)?;
            while at < self.rows {
                let row = search.row(at)?;
                if row.word != *word {
                    break;
                }
                if let Some(found) = found.get_mut(row.pack as usize) {
                    *found = true;
                }
                at += 1;
            }
        }
        Ok(found)
    }

    fn all_rows(&self) -> io::Result<impl Iterator<Item = io::Result<CachedRow>> + use<>> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.rows_at))?;
        let mut rows =
            BufReader::with_capacity(BUFFER_BYTES, file).take(self.rows * CACHED_ROW_BYTES as u64);
        let rows = (0..self.rows).map(move |_| {
            let mut bytes = [0; CACHED_ROW_BYTES];
            rows.read_exact(&mut bytes)?;
            Ok(CachedRow::decode(&bytes))
        });
        Ok(rows)
    }
}

/// Rows of a file, one page of which is in memory.
struct Search<'a> {
    tables: &'a CachedTables,
    /// The first row of the page.
    first: u64,
    page: Vec<CachedRow>,
}

impl Search<'_> {
    fn row(&mut self, at: u64) -> io::Result<CachedRow> {
        let is_in = |search: &Self| at.wrapping_sub(search.first) < search.page.len() as u64;
        if !is_in(self) {
            self.read(at / PAGE_ROWS * PAGE_ROWS)?;
        }
        let row = self.page.get(at.wrapping_sub(self.first) as usize);
        row.copied()
            .ok_or_else(|| impossible("there is no such row"))
    }

    fn read(&mut self, first: u64) -> io::Result<()> {
        let rows = PAGE_ROWS.min(self.tables.rows.saturating_sub(first));
        let mut bytes = vec![0; rows as usize * CACHED_ROW_BYTES];
        let at = self.tables.rows_at + first * CACHED_ROW_BYTES as u64;
        self.tables.file.read_exact_at(&mut bytes, at)?;
        let (rows, _) = bytes.as_chunks();
        self.page.clear();
        self.page.extend(rows.iter().map(CachedRow::decode));
        self.first = first;
        Ok(())
    }

    /// The first row from row `from` on whose word is not less than `word`; the number of rows if there is none.
    fn first_from(&mut self, from: u64, word: u64) -> io::Result<u64> {
        let (mut low, mut high) = (from, self.tables.rows);
        let mut tried = 0;
        while low < high {
            let expected = (u128::from(word) * u128::from(self.tables.rows)) >> 64;
            let at = match tried {
                0 => (expected as u64).clamp(low, high - 1),
                // The page next to the one tried last.
                1..=NEIGHBOURS if (expected as u64) < low => low,
                1..=NEIGHBOURS => high - 1,
                _ => low + (high - low) / 2,
            };
            tried += 1;
            self.row(at)?;
            let start = low.saturating_sub(self.first) as usize;
            let end = (high - self.first).min(self.page.len() as u64) as usize;
            let page = self.page.get(start..end).unwrap_or_default();
            let less = page.partition_point(|row| row.word < word);
            let first = self.first + start as u64;
            match less {
                0 => high = first,
                less if less == page.len() => low = first + less as u64,
                less => return Ok(first + less as u64),
            }
        }
        Ok(low)
    }
}

/// For each pack of a part, its place in the new file; `None` if the pack is left out.
type Places = Vec<Option<u32>>;

/// An input of a new file: newly read tables, or an existing file.
struct Part<'a> {
    packs: &'a [CachedPack],
    rows: Peekable<Box<dyn Iterator<Item = io::Result<CachedRow>> + 'a>>,
    tables: Tables<'a>,
}

/// Where the compressed tables of a part are stored.
enum Tables<'a> {
    File(&'a CachedTables),
    Memory(&'a [u8]),
}

impl Tables<'_> {
    fn read(&self, pack: &CachedPack) -> io::Result<Vec<u8>> {
        match self {
            Self::File(file) => file.compressed_table(pack),
            Self::Memory(bytes) => {
                let bytes = bytes.get(pack.table_at as usize..).unwrap_or_default();
                let bytes = bytes.get(..pack.table_bytes as usize);
                bytes
                    .map(<[u8]>::to_vec)
                    .ok_or_else(|| impossible("a table is cut"))
            }
        }
    }
}

/// The inputs of a new file.
pub(crate) struct NewTables<'a> {
    parts: Vec<Part<'a>>,
    rows: u64,
}

impl<'a> NewTables<'a> {
    /// Starts with newly read tables: their packs, the compressed tables one after the other, and `count` rows in
    /// ascending order.
    pub(crate) fn new(
        packs: &'a [CachedPack],
        tables: &'a [u8],
        rows: impl Iterator<Item = io::Result<CachedRow>> + 'a,
        count: u64,
    ) -> Self {
        let rows: Box<dyn Iterator<Item = _>> = Box::new(rows);
        let part = Part {
            packs,
            rows: rows.peekable(),
            tables: Tables::Memory(tables),
        };
        Self {
            parts: vec![part],
            rows: count,
        }
    }

    /// The most rows that the new file can have.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Adds the packs and rows of an existing file.
    pub(crate) fn merge(&mut self, file: &'a CachedTables) -> io::Result<()> {
        let rows: Box<dyn Iterator<Item = _>> = Box::new(file.all_rows()?);
        self.parts.push(Part {
            packs: file.packs(),
            rows: rows.peekable(),
            tables: Tables::File(file),
        });
        self.rows += file.rows();
        Ok(())
    }

    /// Writes the file, with the packs that `is_wanted` selects. It appears once it is complete and durable.
    pub(crate) fn write(
        mut self,
        path: &Path,
        repository: RepositoryId,
        store: SourceId,
        is_wanted: impl Fn(&CachedPack) -> bool,
    ) -> io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("."));
        let file = tempfile::Builder::new()
            .prefix(INCOMPLETE)
            .tempfile_in(folder)?;
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, file);
        let (mut packs, places) = self.places(is_wanted);
        out.seek(SeekFrom::Start(
            HEADERS_BYTES + (packs.len() * CACHED_PACK_BYTES) as u64,
        ))?;
        for (pack, part) in &mut packs {
            let table = self.parts[*part].tables.read(pack)?;
            pack.table_at = out.stream_position()?;
            out.write_all(&table)?;
        }
        let rows = self.write_rows(&mut out, &places)?;
        let packs: Vec<u8> = packs.iter().flat_map(|(pack, _)| pack.encode()).collect();
        let header = CacheHeader {
            repository,
            store,
            rows,
            packs: (packs.len() / CACHED_PACK_BYTES) as u32,
        };
        out.seek(SeekFrom::Start(0))?;
        out.write_all(&header.encode(&packs))?;
        out.write_all(&packs)?;
        let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.as_file().sync_data()?;
        file.persist(path)?;
        Ok(())
    }

    /// The wanted packs, each once and with the part that has it; and, for each part, the places of its packs among
    /// them.
    fn places(
        &self,
        is_wanted: impl Fn(&CachedPack) -> bool,
    ) -> (Vec<(CachedPack, usize)>, Vec<Places>) {
        let (mut packs, mut taken) = (Vec::new(), FxHashSet::default());
        let places = self.parts.iter().enumerate().map(|(part, of)| {
            let places = of.packs.iter().map(|pack| {
                let key = (pack.pack.number, pack.generation);
                (is_wanted(pack) && taken.insert(key)).then(|| {
                    packs.push((*pack, part));
                    packs.len() as u32 - 1
                })
            });
            places.collect()
        });
        let places = places.collect();
        (packs, places)
    }

    fn write_rows(&mut self, out: &mut impl Write, places: &[Places]) -> io::Result<u64> {
        let mut written = 0;
        loop {
            let mut least: Option<(u64, usize)> = None;
            for (n, part) in self.parts.iter_mut().enumerate() {
                let word = match part.rows.peek() {
                    None => continue,
                    Some(Ok(row)) => row.word,
                    // Takes this row next, which returns the error.
                    Some(Err(_)) => 0,
                };
                if least.is_none_or(|(least, _)| word < least) {
                    least = Some((word, n));
                }
            }
            let Some((_, n)) = least else {
                return Ok(written);
            };
            let Some(row) = self.parts[n].rows.next() else {
                return Ok(written);
            };
            let CachedRow { word, pack } = row?;
            if let Some(Some(pack)) = places[n].get(pack as usize) {
                let row = CachedRow { word, pack: *pack };
                out.write_all(&row.encode())?;
                written += 1;
            }
        }
    }
}

/// Encodes and compresses the table of a pack as the cache stores it.
pub(crate) fn compressed(pack: &PackTable) -> io::Result<Vec<u8>> {
    let slots = pack.slots.iter().map(|slot| match slot {
        Slot::Gone => Slot::Gone,
        Slot::Stored(_) => Slot::Stored([0; 16]),
        Slot::Lost(_) => Slot::Lost([0; 16]),
        Slot::Moved { number, .. } => Slot::Moved {
            fingerprint: [0; 16],
            number: *number,
        },
    });
    let empty = StoredGroup {
        bytes: TAG_BYTES as u32,
        is_compressed: false,
    };
    let table = PackTable {
        groups: vec![empty; pack.groups.len()],
        slots: slots.collect(),
        popular_packs: pack.popular_packs.clone(),
        ..*pack
    };
    zstd::bulk::compress(&table.encode(), 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_format::backup::{PackReference, Witness};

    const ID: RepositoryId = RepositoryId([3; 16]);
    const STORE: SourceId = SourceId(5);

    fn pack(number: u64, generation: u32) -> CachedPack {
        CachedPack {
            pack: PackReference {
                number,
                witness: Witness([number as u8; 16]),
            },
            generation,
            stored_bytes: 100,
            table_at: number,
            table_bytes: 1,
            table_checksum: CachedPack::checksum_of(&[number as u8]),
        }
    }

    /// Words that are evenly spread, clustered, or equal.
    fn rows(random: &mut fastrand::Rng, packs: u32) -> Vec<CachedRow> {
        let mut rows = Vec::new();
        for _ in 0..random.usize(..6000) {
            let word = match random.u8(..4) {
                0 => random.u64(..3000),
                1 => u64::MAX - random.u64(..10),
                _ => random.u64(..),
            };
            rows.push(CachedRow {
                word,
                pack: random.u32(..packs),
            });
        }
        rows.sort_unstable();
        rows
    }

    type Read = (Vec<CachedPack>, Vec<CachedRow>);

    fn write(path: &Path, (packs, rows): &Read, merged: &[&CachedTables]) {
        let tables: Vec<u8> = (0..100).collect();
        let of_rows = rows.iter().map(|row| Ok(*row));
        let mut new = NewTables::new(packs, &tables, of_rows, rows.len() as u64);
        for file in merged {
            new.merge(file).unwrap();
        }
        // Packs with odd numbers are no longer listed.
        new.write(path, ID, STORE, |pack| pack.pack.number % 2 == 0)
            .unwrap();
    }

    #[test]
    fn packs_are_found_by_all_words_that_they_have_and_by_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let mut random = fastrand::Rng::with_seed(1);
        for round in 0..60 {
            let path = |n: u64| folder.path().join(format!("{round}-{n}"));
            let older = (
                vec![pack(0, 0), pack(1, 0), pack(2, 0)],
                rows(&mut random, 3),
            );
            write(&path(0), &older, &[]);
            let first = CachedTables::open(path(0), ID, STORE).unwrap();
            // Both files have pack 2, and different generations of pack 4.
            let newer = (
                vec![pack(4, 0), pack(4, 1), pack(2, 0)],
                rows(&mut random, 3),
            );
            write(&path(1), &newer, &[&first]);
            let tables = CachedTables::open(path(1), ID, STORE).unwrap();
            let known = |cached: &CachedPack| (cached.pack.number, cached.generation);
            let packs: Vec<_> = tables.packs().iter().map(known).collect();
            assert_eq!(packs, [(4, 0), (4, 1), (2, 0), (0, 0)]);
            assert_eq!(tables.compressed_table(&tables.packs()[3]).unwrap(), [0]);

            let wanted = (0..random.usize(..300)).map(|_| match random.u8(..4) {
                0 => random.u64(..3000),
                1 => u64::MAX - random.u64(..10),
                2 => newer.1.get(random.usize(..6000)).map_or(7, |row| row.word),
                _ => random.u64(..),
            });
            let mut wanted: Vec<_> = wanted.collect();
            wanted.sort_unstable();
            wanted.dedup();
            let has = |rows: &[CachedRow], pack: u32| {
                let mut rows = rows.iter().filter(|row| row.pack == pack);
                rows.any(|row| wanted.binary_search(&row.word).is_ok())
            };
            let expected = [0, 1, 2].map(|pack| has(&newer.1, pack));
            let found = tables.find(&wanted).unwrap();
            assert_eq!(found[..3], expected, "round {round}");
            assert_eq!(found[3], has(&older.1, 0), "round {round}");
        }
    }

    #[test]
    fn a_file_of_another_store_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1");
        write(&path, &(vec![pack(0, 0)], Vec::new()), &[]);
        let open = |id, store| CachedTables::open(path.clone(), id, store);
        open(ID, STORE).unwrap();
        open(RepositoryId([4; 16]), STORE).unwrap_err();
        open(ID, SourceId(6)).unwrap_err();
    }
}
