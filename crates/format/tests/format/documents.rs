//! The byte tables in `docs/format/` match the encoders and the sources.
//!
//! Each row of a table is tried: a structure is encoded twice with one field changed, and the
//! difference must be in the field's row. Rows of reserved bytes are tried the other way round: the
//! decoder must refuse them when they are not zero. The rows must tile the structure.

mod census;
mod log;
mod messages;
mod pages;

use std::ops::Range;

/// Fields that only reserve room so far.
const ALWAYS_ZERO: &[&str] = &["zeros", "reserved"];

/// Every byte of a number of 64 bits.
const ALL: u64 = u64::MAX;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    bytes: Range<usize>,
    field: String,
}

/// The rows of the byte table under the heading `heading`.
pub(crate) fn table(document: &str, heading: &str) -> Vec<Row> {
    let is_heading = |line: &&str| line.trim_start_matches('#').trim() == heading;
    let lines = document.lines().skip_while(|line| !is_heading(line));
    let lines = lines.skip_while(|line| !line.starts_with("| offset | bytes |"));
    let rows: Vec<Row> = lines
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let at: usize = cells[1].parse().expect("an offset");
            let len: usize = cells[2].parse().expect("a length");
            let field = cells[3].to_owned();
            let bytes = at..at + len;
            Row { bytes, field }
        })
        .collect();
    assert!(!rows.is_empty(), "no byte table under '{heading}'");
    rows
}

/// The rows of a table whose offsets and lengths are bits, the lowest first.
fn bit_table(document: &str, heading: &str) -> Vec<Row> {
    let document = document.replace("| bit | bits |", "| offset | bytes |");
    table(&document, heading)
}

/// A byte for each of these bits, the lowest first.
fn bits_of(word: u64, bits: u32) -> Vec<u8> {
    (0..bits).map(|bit| (word >> bit & 1) as u8).collect()
}

/// How a row is tried.
pub(crate) enum Trial {
    /// Two encodings with different values in every byte of this field, and nowhere else.
    Whole(Vec<u8>, Vec<u8>),
    /// Two encodings with different values in some bytes of this field, and nowhere else.
    Part(Vec<u8>, Vec<u8>),
    /// The sample's value of this field.
    Is(Vec<u8>),
    /// Another table describes the field's content.
    Elsewhere,
}

/// Tries every row of a table. `refuses` returns whether the decoder refuses the sample with a one
/// at this offset.
pub(crate) fn check(
    rows: &[Row],
    sample: &[u8],
    trials: Vec<(&str, Trial)>,
    refuses: impl Fn(usize) -> bool,
) {
    let mut end = 0;
    for row in rows {
        assert_eq!(
            row.bytes.start, end,
            "'{}' follows the row above",
            row.field
        );
        end = row.bytes.end;
        if ALWAYS_ZERO.contains(&row.field.as_str()) {
            for at in row.bytes.clone() {
                assert!(refuses(at), "byte {at} of '{}' is not checked", row.field);
            }
        }
    }
    assert_eq!(end, sample.len(), "the rows make up the structure");
    let named = |row: &&Row| !ALWAYS_ZERO.contains(&row.field.as_str());
    let fields: Vec<&str> = rows.iter().filter(named).map(|row| &*row.field).collect();
    let tried: Vec<&str> = trials.iter().map(|(field, _)| *field).collect();
    assert_eq!(fields, tried);
    for (row, (field, trial)) in rows.iter().filter(named).zip(trials) {
        match trial {
            Trial::Whole(a, b) => assert_eq!(difference(&a, &b), row.bytes, "'{field}'"),
            Trial::Part(a, b) => {
                let found = difference(&a, &b);
                let fits = row.bytes.start <= found.start && found.end <= row.bytes.end;
                assert!(fits, "'{field}' is at {found:?}, not {:?}", row.bytes);
            }
            Trial::Is(value) => assert_eq!(&sample[row.bytes.clone()], &value[..], "'{field}'"),
            Trial::Elsewhere => {}
        }
    }
}

/// The bytes from the first that differs to the last.
fn difference(a: &[u8], b: &[u8]) -> Range<usize> {
    assert_eq!(a.len(), b.len());
    let mut differing = (0..a.len()).filter(|at| a[*at] != b[*at]);
    let first = differing.next().expect("something differs");
    first..differing.next_back().unwrap_or(first) + 1
}

pub(crate) fn crc_without(bytes: &[u8], checksum: Range<usize>) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[checksum].fill(0);
    crc32c::crc32c(&bytes).to_le_bytes().to_vec()
}

/// Offset, length and name of each field that has all three in the comment of a source file.
fn fields_in(source: &str) -> Vec<Row> {
    let comment = source.lines().filter_map(|line| line.strip_prefix("//!"));
    let block = comment.skip_while(|line| line.trim() != "```text").skip(1);
    block
        .take_while(|line| line.trim() != "```")
        .filter_map(|line| {
            let columns: Vec<&str> = line.split("  ").map(str::trim).collect();
            let columns: Vec<&str> = columns.into_iter().filter(|c| !c.is_empty()).collect();
            columns.windows(2).find_map(|pair| {
                let (at, field) = pair[0].split_once(' ')?;
                let at: usize = at.parse().ok()?;
                let field = field.to_owned();
                let bytes = at..at + length(pair[1])?;
                Some(Row { bytes, field })
            })
        })
        .collect()
}

/// The length in bytes of a type, by its name in the sources.
fn length(kind: &str) -> Option<usize> {
    let mut words = kind.split([' ', ',']);
    match (words.next()?, words.next().unwrap_or("")) {
        ("u8", _) => Some(1),
        ("u16", _) => Some(2),
        ("u32", _) => Some(4),
        ("u64", _) => Some(8),
        ("tree", "root") => Some(16),
        (count, "bytes") => count.parse().ok(),
        (count, "bits") => count.parse::<usize>().ok().map(|bits| bits / 8),
        _ => None,
    }
}

#[test]
fn sources_and_documents_have_the_same_fields() {
    macro_rules! pair {
        ($name:literal, $fields:literal) => {
            (
                include_str!(concat!("../../src/", $name, ".rs")),
                include_str!(concat!("../../../../docs/format/", $name, ".md")),
                $fields,
            )
        };
    }
    let pairs = [
        pair!("page", 12),
        pair!("superblock", 5),
        pair!("root", 28),
        pair!("node", 6),
        pair!("catalogue_page", 25),
        pair!("frame", 12),
        pair!("record", 41),
        pair!("batch_page", 2),
        pair!("tail", 10),
        pair!("secret", 1),
        pair!("export", 2),
        pair!("scrub_page", 7),
        pair!("loss_page", 3),
        pair!("trace", 7),
        pair!("index_message", 24),
        pair!("census_message", 20),
    ];
    for (source, document, count) in pairs {
        let fields = fields_in(source);
        assert_eq!(fields.len(), count, "{fields:#?}");
        for Row { bytes, field } in fields {
            let row = format!("| {} | {} | {field} |", bytes.start, bytes.len());
            let is_there = document.lines().any(|line| line.starts_with(&row));
            assert!(is_there, "no row begins with '{row}'");
        }
    }
}
