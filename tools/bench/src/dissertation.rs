//! `cargo xtask study PATH...`: the redundancy study of João Paulo's dissertation, with other data.
//!
//! Its chapter 3 counts how often whole files and blocks of 4, 8 and 12 KiB occur in the files of a research group, and
//! the metadata that deduplicating them would need. Here `onefold analyze` counts the same in the files below some
//! paths, and the tables show the dissertation's figures next to ours.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::table::{Row, Table};
use onefold_harness::command::Cmd;
use onefold_harness::workspace::Workspace;

/// Options of `cargo xtask study`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Folders with real files; nothing in them is changed
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

/// The result of one chunking method.
struct Found {
    /// Files or blocks that were scanned, including those that are all zeros.
    scanned: u64,
    /// Items that are all zeros, if they are counted separately.
    zeros: Option<u64>,
    /// Items that occur once.
    single: u64,
    /// Distinct items.
    unique: u64,
    /// Items that repeat another one that is kept.
    duplicates: u64,
    /// The size of the duplicates, in bytes.
    saved: f64,
    /// All data, in bytes.
    bytes: f64,
    /// The metadata of a onefold pool with blocks of this size, if it supports that size.
    pool: Option<Pool>,
}

/// Metadata of a pool, in bytes.
struct Pool {
    map: f64,
    index: f64,
    /// The savings that remain after metadata, with short blocks padded.
    left: f64,
}

/// A chunking method: its name in a table, its argument for `analyze`, and the dissertation's
/// figures [Paulo, tables 3.1 to 3.3].
struct Way {
    title: &'static str,
    argument: &'static str,
    then: Found,
}

const GIB: f64 = (1 << 30) as f64;
const MIB: f64 = (1 << 20) as f64;

/// Bytes of a physical address: an entry of the translation table.
const ADDRESS_BYTES: u64 = 8;

/// Bytes of a SHA-1, a physical address and a count: an entry of the table from hashes to addresses.
const HASH_ENTRY_BYTES: u64 = 20 + ADDRESS_BYTES + 4;

const WAYS: [Way; 4] = [
    Way {
        title: "files",
        argument: "file",
        then: then(1_676_046, 536_418, 765_594, 910_452, 13.37),
    },
    Way {
        title: "4 KiB",
        argument: "fixed:4K",
        then: then(29_530_586, 22_610_369, 24_449_410, 5_081_176, 16.75),
    },
    Way {
        title: "8 KiB",
        argument: "fixed:8K",
        then: then(15_461_284, 11_581_715, 12_584_335, 2_876_949, 16.31),
    },
    Way {
        title: "12 KiB",
        argument: "fixed:12K",
        then: then(10_794_932, 7_912_071, 8_632_784, 2_162_148, 16.01),
    },
];

/// The dissertation's figures for one method. Its units are powers of two, as its tables of metadata show.
const fn then(scanned: u64, single: u64, unique: u64, duplicates: u64, saved_gib: f64) -> Found {
    Found {
        scanned,
        zeros: None,
        single,
        unique,
        duplicates,
        saved: saved_gib * GIB,
        bytes: 108.11 * GIB,
        pool: None,
    }
}

/// `cargo xtask study`
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let program = workspace.build_release("onefold")?;
    let mut command = Cmd::new(&program).args(["--quiet", "--format", "json", "analyze"]);
    for way in &WAYS {
        command = command.args(["--chunking", way.argument]);
    }
    // The reply names unreadable files, and the exit code reflects them; here they are not a failure.
    let output = command.args(&arguments.paths).output()?;
    let reply: Value = serde_json::from_slice(&output.stdout).with_context(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        format!("analyze did not print JSON: {said}")
    })?;
    ensure!(
        reply.get("is_complete") == Some(&Value::Bool(true)),
        "the analysis was stopped"
    );
    let ways = (0..WAYS.len()).map(|n| {
        let way = reply.pointer(&format!("/chunkings/{n}"));
        way.and_then(Found::of)
            .context("a figure is missing in what analyze printed")
    });
    let found: Vec<Found> = ways.collect::<Result<_>>()?;
    println!("{}", conditions(workspace, &program, &reply)?);
    println!("{}", tables(&found));
    Ok(())
}

fn conditions(workspace: &Workspace, program: &Path, reply: &Value) -> Result<Table> {
    let line = |program: &Path, arguments: &[&str]| -> Result<String> {
        let text = Cmd::new(program)
            .args(arguments)
            .dir(&workspace.root)
            .read();
        Ok(text?.trim().to_owned())
    };
    let number = |field: &str| {
        let number = reply.get(field).and_then(Value::as_u64);
        number.with_context(|| format!("analyze says no {field}"))
    };
    let problems = reply.get("problems").and_then(Value::as_array);
    let commit = line(Path::new("git"), &["rev-parse", "--short", "HEAD"]);
    let files = format!(
        "{}, {} of them empty; {} links and special files left out; {} could not be read",
        number("files")?,
        number("empty_files")?,
        number("skipped_files")?,
        problems.map_or(0, Vec::len),
    );
    let data = format!("{:.2} GiB", number("found_bytes")? as f64 / GIB);
    Ok(Table::new("| | |").with([
        Row::of("date").text(line(Path::new("date"), &["-u", "+%Y-%m-%d"])?),
        Row::of("version").text(line(program, &["--version"])?),
        Row::of("commit").text(commit.unwrap_or_else(|_| "none".to_owned())),
        Row::of("command").text("cargo xtask study PATH"),
        Row::of("files").text(files),
        Row::of("data").text(data),
    ]))
}

impl Found {
    /// Reads one chunking method from the output of `analyze`.
    fn of(way: &Value) -> Option<Found> {
        let number = |pointer: &str| way.pointer(pointer).and_then(Value::as_u64);
        let advised = |field: &str| way.pointer(&format!("/advice/{field}"))?.as_f64();
        let pool = || {
            Some(Pool {
                map: advised("map_bytes")?,
                index: advised("index_bytes")?,
                left: advised("saved_bytes")?,
            })
        };
        Some(Found {
            scanned: number("/chunks")?,
            zeros: Some(number("/zero_chunks")?),
            single: number("/single_chunks")?,
            unique: number("/distinct_chunks")?,
            duplicates: number("/duplicate_chunks")?,
            saved: number("/duplicate_bytes")? as f64,
            bytes: number("/bytes")? as f64,
            pool: pool(),
        })
    }

    /// Items that count as data: without zeros, where they are counted separately.
    fn counted(&self) -> u64 {
        self.scanned - self.zeros.unwrap_or(0)
    }

    fn translation(&self) -> f64 {
        (self.scanned * ADDRESS_BYTES) as f64
    }

    fn hash_to_address(&self) -> f64 {
        (self.unique * HASH_ENTRY_BYTES) as f64
    }
}

/// The name of a row of the first table, and its figure for each method.
type Figure = (&'static str, fn(&Found) -> String);

const ROWS: [Figure; 9] = [
    ("scanned", |found| grouped(found.scanned)),
    ("of these zeros", |found| {
        found.zeros.map_or("-".to_owned(), grouped)
    }),
    ("without duplicates", |found| grouped(found.single)),
    ("unique", |found| grouped(found.unique)),
    ("to eliminate", |found| grouped(found.duplicates)),
    ("saved, GiB", |found| gib(found.saved)),
    ("saved, % of all", |found| {
        format!("{:.1}", 100.0 * found.saved / found.bytes)
    }),
    ("items with a duplicate, of all", |found| {
        ratio(found.counted() - found.single, found.counted())
    }),
    ("copies besides the first, of those", |found| {
        ratio(found.duplicates, found.unique - found.single)
    }),
];

fn ratio(of: u64, all: u64) -> String {
    format!("{:.2}", of as f64 / all.max(1) as f64)
}

/// Formats GiB with two digits, as the dissertation does, or with three where there is little.
fn gib(bytes: f64) -> String {
    let digits = if bytes.abs() < 10.0 * GIB { 3 } else { 2 };
    format!("{:.digits$}", bytes / GIB)
}

/// Formats a number with a comma before every third digit from the end.
fn grouped(number: u64) -> String {
    match number / 1000 {
        0 => number.to_string(),
        thousands => format!("{},{:03}", grouped(thousands), number % 1000),
    }
}

fn tables(found: &[Found]) -> String {
    let columns = WAYS
        .each_ref()
        .map(|way| format!("{}, his | ours", way.title));
    let counts = Table::new(&format!("| | {} |", columns.join(" | ")));
    let counts = counts.with(ROWS.map(|(title, cell)| {
        let both = WAYS.iter().zip(found);
        let cells = both.flat_map(|(way, now)| [cell(&way.then), cell(now)]);
        Row::of(title).texts(cells)
    }));
    let sizes = Table::new(
        "| | translation table | hash to address | both | left | onefold's maps | its index | both | left |",
    );
    let sizes = sizes.with(WAYS.iter().zip(found).flat_map(|(way, now)| {
        let row = |whose, found| metadata_row(&format!("{}, {whose}", way.title), found);
        [row("his", &way.then), row("ours", now)]
    }));
    format!(
        "\nTable 3.1, his figure and ours:\n\n{counts}\n\n\
         Tables 3.2 and 3.3, in MiB, and in GiB the savings that are left:\n\n{sizes}"
    )
}

fn metadata_row(title: &str, found: &Found) -> Row {
    let (translation, hashes) = (found.translation(), found.hash_to_address());
    let both = translation + hashes;
    let in_mib = |bytes: [f64; 3]| bytes.map(|bytes| bytes / MIB);
    let row = Row::of(title).numbers(in_mib([translation, hashes, both]), 2);
    let row = row.text(gib(found.saved - both));
    match &found.pool {
        Some(pool) => row
            .numbers(in_mib([pool.map, pool.index, pool.map + pool.index]), 2)
            .text(gib(pool.left)),
        None => row.texts(["-"; 4]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_the_dissertation_derives_follows_from_its_counts() {
        let cells = |row: usize| WAYS.each_ref().map(|way| ROWS[row].1(&way.then));
        assert_eq!(
            cells(0),
            ["1,676,046", "29,530,586", "15,461,284", "10,794,932"]
        );
        assert_eq!(cells(7), ["0.68", "0.23", "0.25", "0.27"]);
        assert_eq!(cells(8), ["3.97", "2.76", "2.87", "3.00"]);
        assert_eq!(cells(6), ["12.4", "15.5", "15.1", "14.8"]);
        let rows = |title: &str| {
            let way = WAYS.iter().find(|way| way.title == title).unwrap();
            format!("{}\n", metadata_row(title, &way.then))
        };
        // The dissertation has 225.3, 746.14 and 15.8; 12.79, 23.36 and 13.33.
        assert_eq!(
            rows("4 KiB"),
            "| 4 KiB | 225.30 | 746.14 | 971.44 | 15.80 | - | - | - | - |\n"
        );
        assert_eq!(
            rows("files"),
            "| files | 12.79 | 23.36 | 36.15 | 13.33 | - | - | - | - |\n"
        );
    }

    #[test]
    fn figures_are_taken_from_a_reply() {
        let mut way = json!({"chunks": 10, "bytes": 40960, "zero_chunks": 2, "single_chunks": 3,
                             "distinct_chunks": 4, "duplicate_chunks": 4, "duplicate_bytes": 16384,
                             "advice": {"map_bytes": 1048576, "index_bytes": 2097152,
                                        "saved_bytes": -1073741824}});
        let found = Found::of(&way).unwrap();
        let cells: Vec<_> = ROWS.iter().map(|(_, cell)| cell(&found)).collect();
        assert_eq!(
            cells,
            ["10", "2", "3", "4", "4", "0.000", "40.0", "0.62", "4.00"]
        );
        let page = format!("{}\n", metadata_row("x", &found));
        assert!(
            page.ends_with("| 1.00 | 2.00 | 3.00 | -1.000 |\n"),
            "{page}"
        );
        way["chunks"] = Value::Null;
        assert!(Found::of(&way).is_none());
    }
}
