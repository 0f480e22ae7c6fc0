//! Writes the figures as CSV tables, one file each.

use super::reply::{Reply, WayReply};
use onefold_analyze::Category;
use onefold_api::{Error, Result};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// A new folder for tables, which is removed if no table is written.
pub(super) struct TableFolder(PathBuf);

impl TableFolder {
    /// Creates the folder before any long work, so that a failure shows early.
    pub(super) fn create(path: &Path) -> Result<Self> {
        fs::create_dir(path).map_err(|e| Error::io(format_args!("cannot make {path:?}"), &e))?;
        Ok(Self(path.to_owned()))
    }

    /// Writes one file for each table.
    pub(super) fn write(self, reply: &Reply) -> Result<()> {
        write(reply, &self.0)
    }
}

impl Drop for TableFolder {
    fn drop(&mut self) {
        // This removes the folder only if it is empty.
        let _ = fs::remove_dir(&self.0);
    }
}

/// Writes one file for each table. Every row begins with the chunking method.
fn write(reply: &Reply, folder: &Path) -> Result<()> {
    let table = |name: &str, columns: &[&str], rows: fn(&WayReply) -> Vec<Vec<String>>| {
        let path = folder.join(name);
        let failed = |e: csv::Error| Error::failed(format!("cannot write {path:?}: {e}"));
        let file = File::create_new(&path);
        let file = file.map_err(|e| Error::io(format_args!("cannot make {path:?}"), &e))?;
        let mut out = csv::Writer::from_writer(file);
        out.write_field("chunking").map_err(failed)?;
        out.write_record(columns).map_err(failed)?;
        for way in &reply.chunkings {
            for row in rows(way) {
                out.write_field(&way.chunking).map_err(failed)?;
                out.write_record(row).map_err(failed)?;
            }
        }
        out.flush().map_err(|e| failed(e.into()))
    };
    table("totals.csv", &TOTALS, totals)?;
    table("inputs.csv", &INPUTS, inputs)?;
    table("copies.csv", &["copies", "chunks", "bytes"], copies)?;
    table(
        "kinds.csv",
        &["kind", "chunks", "bytes", "stored_bytes"],
        kinds,
    )?;
    table(
        "sizes.csv",
        &["from_bytes", "chunks", "bytes", "stored_bytes"],
        sizes,
    )?;
    table("runs.csv", &["class", "from_bytes", "runs"], runs)?;
    table("compression.csv", &COMPRESSION, compression)
}

const TOTALS: [&str; 10] = [
    "chunks",
    "bytes",
    "zero_chunks",
    "zero_bytes",
    "distinct_chunks",
    "distinct_bytes",
    "single_chunks",
    "duplicate_within_bytes",
    "duplicate_across_bytes",
    "saved_ratio",
];

fn totals(way: &WayReply) -> Vec<Vec<String>> {
    let totals = &way.totals;
    let mut row = numbers([
        totals.chunks,
        totals.bytes,
        totals.zero_chunks,
        totals.zero_bytes,
        way.distinct_chunks,
        way.distinct_bytes,
        way.single_chunks,
        way.duplicate_within_bytes,
        way.duplicate_across_bytes,
    ]);
    row.push(way.saved_ratio.to_string());
    vec![row]
}

const INPUTS: [&str; 9] = [
    "path",
    "bytes",
    "zero_bytes",
    "distinct_chunks",
    "distinct_bytes",
    "shared_chunks",
    "shared_bytes",
    "new_chunks",
    "new_bytes",
];

fn inputs(way: &WayReply) -> Vec<Vec<String>> {
    let row = |input: &super::reply::InputReply| {
        let mut row = vec![input.path.to_string_lossy().into_owned()];
        row.extend(numbers([
            input.totals.bytes,
            input.totals.zero_bytes,
            input.share.distinct_chunks,
            input.share.distinct_bytes,
            input.share.shared_chunks,
            input.share.shared_bytes,
            input.share.new_chunks,
            input.share.new_bytes,
        ]));
        row
    };
    way.inputs.iter().map(row).collect()
}

fn copies(way: &WayReply) -> Vec<Vec<String>> {
    let rows = way.copies.iter();
    rows.map(|row| numbers([row.copies, row.chunks, row.bytes]))
        .collect()
}

fn kinds(way: &WayReply) -> Vec<Vec<String>> {
    let rows = way.kinds.iter();
    rows.map(|row| category(row.kind.clone(), &row.share))
        .collect()
}

fn sizes(way: &WayReply) -> Vec<Vec<String>> {
    let rows = way.sizes.iter();
    rows.map(|row| category(row.from_bytes.to_string(), &row.share))
        .collect()
}

fn category(name: String, share: &Category) -> Vec<String> {
    let mut row = vec![name];
    row.extend(numbers([share.chunks, share.bytes]));
    row.push(share.stored_bytes.to_string());
    row
}

fn runs(way: &WayReply) -> Vec<Vec<String>> {
    let of_class = |(class, runs): (&str, &onefold_analyze::RunLengths)| {
        let counts = (0..).zip(&runs.by_power_of_two);
        let rows = counts.filter(|(_, count)| **count > 0);
        let row = |(power, count): (u32, &u64)| {
            let mut row = vec![class.to_owned()];
            row.extend(numbers([1 << power, *count]));
            row
        };
        rows.map(row).collect::<Vec<_>>()
    };
    let both = ["unique", "redundant"].into_iter().zip(&way.runs);
    both.flat_map(of_class).collect()
}

const COMPRESSION: [&str; 5] = [
    "unit",
    "sampled",
    "bytes",
    "compressed_bytes",
    "standard_error",
];

fn compression(way: &WayReply) -> Vec<Vec<String>> {
    let Some(found) = &way.compression else {
        return Vec::new();
    };
    let units = [("chunk", &found.chunks), ("group", &found.groups)];
    let row = |(unit, found): (&str, &onefold_analyze::Compressed)| {
        let mut row = vec![unit.to_owned()];
        row.extend(numbers([
            found.sampled,
            found.bytes,
            found.compressed_bytes,
        ]));
        row.push(found.standard_error.to_string());
        row
    };
    units.map(row).to_vec()
}

fn numbers<const N: usize>(numbers: [u64; N]) -> Vec<String> {
    numbers.map(|number| number.to_string()).to_vec()
}
