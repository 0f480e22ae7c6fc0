//! The bytes and the meaning of each version's structures: files of every release open for ever.
//!
//! `testdata` has a folder for each version, with a `.bin` and a `.txt` for each structure: the bytes,
//! and the fields that this build reads from them. The folder of groups has only the structures in which
//! a group differs from a pool with one owner. `ONEFOLD_WRITE_GOLDEN=1 cargo test -p onefold-format
//! golden` rewrites both of this version, and the texts of the earlier ones; that is only for structures
//! which no release has written yet, and for texts to which fields were added or in which they were grouped.

use std::fmt::Write as _;
use std::path::PathBuf;

use onefold_format::census_message::{
    CENSUS_REPLY_HEADER_BYTES, CENSUS_REQUEST_HEADER_BYTES, CensusReply, CensusRequest,
};
use onefold_format::frame;
use onefold_format::index_message::{IndexReply, IndexRequest};
use onefold_format::node::Node;
use onefold_format::page::{self, PageBytes};
use onefold_format::superblock::check_data_label;
use onefold_format::trace::{self, TraceFrame};
use onefold_format::{
    Entry, ExportMark, LossPage, PageNumber, PoolId, Record, Root, ScrubPage, Secret, Superblock,
    record,
};
use onefold_format::{batch_page, catalogue_page, map_page, queue_page, space_page};

use crate::census;
use crate::messages;
use crate::samples::{self, POOL, PageSample, page};

/// The version that this build writes, except the superblock and the roots of a group.
const NEWEST: &str = "v1.2";

/// The version of the superblock and the roots of a group.
const OF_GROUPS: &str = "v1.3";

/// Versions that it reads.
const EARLIER: &[&str] = &["v1", "v1.1"];

/// Whether a version has a structure.
fn has(version: &str, name: &str) -> bool {
    match version {
        OF_GROUPS => return ["record", "root", "superblock"].contains(&name),
        "v1" if name == "loss_page" => return false,
        _ => {}
    }
    match name {
        "census_message" | "index_message" => version == NEWEST,
        _ => true,
    }
}

fn path(version: &str, name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("testdata")
        .join(version)
        .join(name)
}

/// Compares with the golden files, or writes them, and returns the bytes of the `.bin`.
fn golden(name: &str, bytes: &[u8], dump: impl Fn(&[u8]) -> String) -> Vec<u8> {
    for version in EARLIER.iter().filter(|version| has(version, name)) {
        meaning(version, name, &dump);
    }
    golden_of(NEWEST, name, bytes, dump)
}

/// Compares with the golden files of a version that this build writes, or writes them, and returns the
/// bytes of the `.bin`.
fn golden_of(version: &str, name: &str, bytes: &[u8], dump: impl Fn(&[u8]) -> String) -> Vec<u8> {
    if writes_golden() {
        let bin = path(version, &format!("{name}.bin"));
        std::fs::write(bin, bytes).expect("the golden bytes can be written");
    }
    let kept = meaning(version, name, &dump);
    let differs = kept.iter().zip(bytes).position(|(kept, now)| kept != now);
    assert_eq!(
        differs, None,
        "first byte of {name} that is written otherwise"
    );
    assert_eq!(kept.len(), bytes.len(), "length of {name}");
    kept
}

fn writes_golden() -> bool {
    std::env::var_os("ONEFOLD_WRITE_GOLDEN").is_some_and(|set| set == "1")
}

/// The bytes of a version's golden file, whose meaning must match its golden text.
fn meaning(version: &str, name: &str, dump: &impl Fn(&[u8]) -> String) -> Vec<u8> {
    let kept = std::fs::read(path(version, &format!("{name}.bin")));
    let kept = kept.expect("the golden bytes are there");
    let txt = path(version, &format!("{name}.txt"));
    if writes_golden() {
        std::fs::write(&txt, dump(&kept)).expect("the golden text can be written");
    }
    let text = std::fs::read_to_string(&txt).expect("the golden text is there");
    assert_eq!(dump(&kept), text, "what {name} of {version} means");
    kept
}

/// Like [`golden`], for a page, which is also opened as a reader does.
fn golden_page(name: &str, dump: impl Fn(&PageBytes) -> String) -> Box<PageBytes> {
    let sample = page(name);
    let kept = golden(name, &sample.page[..], |bytes| dump_page(bytes, &dump));
    opened(kept, &sample)
}

/// Like [`golden_page`], for a page of a group.
fn golden_page_of_group(name: &str, dump: impl Fn(&PageBytes) -> String) -> Box<PageBytes> {
    let sample = page(&format!("{name}_of_group"));
    let bytes = &sample.page[..];
    let kept = golden_of(OF_GROUPS, name, bytes, |bytes| dump_page(bytes, &dump));
    opened(kept, &sample)
}

fn opened(kept: Vec<u8>, sample: &PageSample) -> Box<PageBytes> {
    let page: Box<PageBytes> = kept.try_into().expect("a page");
    let opened = page::open(&page, &sample.header).map(|(sequence, _)| sequence);
    assert_eq!(opened, Ok(sample.header.sequence));
    page
}

fn dump_page(bytes: &[u8], dump: &impl Fn(&PageBytes) -> String) -> String {
    let page = bytes.try_into().expect("a page");
    dump_header(page) + &dump(page)
}

fn field(bytes: &[u8], at: usize, len: usize) -> u64 {
    let mut value = [0; 8];
    value[..len].copy_from_slice(&bytes[at..at + len]);
    u64::from_le_bytes(value)
}

fn dump_header(page: &PageBytes) -> String {
    let magic = String::from_utf8_lossy(&page[..4]);
    let pool = PoolId(page[8..24].try_into().expect("sixteen bytes"));
    format!(
        "page header\n    magic: {magic}\n    kind: {}\n    version: {}.{}\n    level: {}\n    \
         pool: {pool}\n    page: {}\n    owner: {:#x}\n    index: {}\n    sequence: {}\n    \
         checksum: {:#010x}\n",
        page[4],
        page[5],
        page[6],
        page[7],
        field(page, 24, 8),
        field(page, 32, 8),
        field(page, 40, 8),
        field(page, 48, 8),
        field(page, 60, 4),
    )
}

#[test]
fn golden_superblock() {
    let dump = |page: &PageBytes| format!("{:#?}\n", Superblock::decode(page).expect("it opens"));
    let kept = golden_page("superblock", dump);
    assert_eq!(Superblock::decode(&kept), Ok(samples::superblock()));
    let of_group = golden_page_of_group("superblock", dump);
    let read = Superblock::decode(&of_group);
    assert_eq!(read, Ok(samples::superblock_of_group()));
}

/// The plainest page, only a header, which also stands for `page`.
#[test]
fn golden_data_label() {
    let kept = golden_page("data_label", |_| "body of zeros\n".to_owned());
    assert_eq!(check_data_label(&kept, POOL), Ok(()));
}

#[test]
fn golden_root() {
    let slot = PageNumber(1);
    let decode = |page: &PageBytes| Root::decode(page, POOL, slot);
    let dump = |page: &PageBytes| format!("{:#?}\n", decode(page).expect("it opens"));
    let kept = golden_page("root", dump);
    assert_eq!(decode(&kept), Ok(samples::root()));
    let of_group = golden_page_of_group("root", dump);
    assert_eq!(decode(&of_group), Ok(samples::root_of_group()));
}

#[test]
fn golden_node() {
    let kept = golden_page("node", |page| {
        let node = Node::decode(page).expect("it opens");
        let mut text = String::from("node\n");
        for (slot, child) in node.children.iter().enumerate() {
            if let Some(child) = child {
                let (page, info, checksum) = (child.page, child.info, child.checksum);
                let line = format!("page {page}, info {info}, checksum {checksum:#010x}");
                writeln!(text, "    pointer {slot}: {line}").expect("text grows");
            }
        }
        text
    });
    assert_eq!(Node::decode(&kept), Ok(samples::node()));
}

#[test]
fn golden_map_page() {
    let kept = golden_page("map_page", |page| {
        let segment = map_page::decode(page).expect("it opens");
        let mut text = String::from("map page\n");
        for (slot, entry) in segment.iter().enumerate() {
            if *entry != Entry::ABSENT {
                let bits = entry.to_bits();
                writeln!(text, "    entry {slot}: {bits:#016x} {entry:?}").expect("text grows");
            }
        }
        text
    });
    assert_eq!(map_page::decode(&kept), Ok(samples::segment()));
    assert_eq!(map_page::mapped(&samples::segment()), 6);
    assert_eq!(map_page::publishable(&samples::segment()), 3);
}

#[test]
fn golden_space_page() {
    let kept = golden_page("space_page", |page| {
        let bitmap = space_page::decode(page).expect("it opens");
        let mut text = String::from("space page\n");
        for (word, bits) in bitmap.iter().enumerate() {
            if *bits != 0 {
                writeln!(text, "    word {word}: {bits:#066b}").expect("text grows");
            }
        }
        text
    });
    assert_eq!(space_page::decode(&kept), Ok(samples::bitmap()));
    assert_eq!(space_page::allocated(&samples::bitmap()), 66);
}

#[test]
fn golden_catalogue_page() {
    let kept = golden_page("catalogue_page", |page| {
        let slots = catalogue_page::decode(page).expect("it opens");
        let mut text = String::from("catalogue page\n");
        for (slot, volume) in slots.iter().enumerate() {
            if let Some(volume) = volume {
                writeln!(text, "slot {slot}: {volume:#?}").expect("text grows");
            }
        }
        text
    });
    assert_eq!(catalogue_page::decode(&kept), Ok(samples::volumes()));
}

#[test]
fn golden_queue_page() {
    let kept = golden_page("queue_page", |page| {
        let elements = queue_page::decode(page).expect("it opens");
        let mut text = String::from("queue page\n");
        for (place, element) in elements.iter().enumerate() {
            if let Some(element) = element {
                writeln!(text, "    place {place}: {element:?}").expect("text grows");
            }
        }
        text
    });
    assert_eq!(queue_page::decode(&kept), Ok(samples::elements()));
}

#[test]
fn golden_batch_page() {
    let kept = golden_page("batch_page", |page| {
        let items = batch_page::decode(page).expect("it opens");
        let mut text = String::from("batch page\n");
        for (place, item) in items.iter().enumerate() {
            writeln!(text, "    item {place}: {item:?}").expect("text grows");
        }
        text
    });
    assert_eq!(batch_page::decode(&kept), Ok(samples::items()));
}

/// The text next to the bytes shows how a message or a log would print a secret.
#[test]
fn golden_secret() {
    let kept = golden_page("secret", |page| {
        format!("{:#?}\n", Secret::decode(page, POOL).expect("it opens"))
    });
    assert_eq!(Secret::decode(&kept, POOL), Ok(samples::secret()));
    assert_eq!(format!("{:?}", samples::secret()), "Secret(..)");
}

#[test]
fn golden_export() {
    let place = samples::export_mark().place;
    let kept = golden_page("export", |page| {
        format!(
            "{:#?}\n",
            ExportMark::decode(page, place).expect("it opens")
        )
    });
    assert_eq!(ExportMark::decode(&kept, place), Ok(samples::export_mark()));
}

#[test]
fn golden_scrub_page() {
    let decoded = |page: &PageBytes| ScrubPage::decode(page, POOL, PageNumber(64));
    let kept = golden_page("scrub_page", |page| {
        format!("{:#?}\n", decoded(page).expect("it opens"))
    });
    let page = decoded(&kept).expect("it opens");
    assert_eq!(page.progress, samples::scrub_progress());
    assert_eq!(page.listed, samples::bad_blocks());
}

#[test]
fn golden_loss_page() {
    let decoded = |page: &PageBytes| LossPage::decode(page, POOL, PageNumber(1));
    let kept = golden_page("loss_page", |page| {
        format!("{:#?}\n", decoded(page).expect("it opens"))
    });
    assert_eq!(decoded(&kept).expect("it opens").part, samples::losses());
}

#[test]
fn golden_frame() {
    let kept = golden("frame", &samples::frame(), |bytes| {
        let frame = frame::decode_header(bytes, POOL).expect("it opens");
        format!("{frame:#?}\nand the records of record.txt\n")
    });
    let read = samples::read_frame(&kept);
    assert_eq!(read, Ok((samples::frame_header(), samples::payload())));
}

#[test]
fn golden_trace() {
    let mut written = Vec::new();
    for frame in samples::trace_frames() {
        let position = written.len() as u64;
        frame.encode(position, &mut written);
    }
    let read = |bytes: &[u8]| -> Vec<TraceFrame> {
        let (mut frames, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            let payload = field(bytes, at + 16, 4) as usize;
            let frame = &bytes[at..][..trace::TRACE_HEADER_BYTES + payload];
            frames.push(samples::read_trace_frame(frame, at as u64).expect("it opens"));
            at += frame.len();
        }
        frames
    };
    let kept = golden("trace", &written, |bytes| {
        let frames = read(bytes).into_iter();
        frames.map(|frame| format!("{frame:#?}\n")).collect()
    });
    assert_eq!(read(&kept), samples::trace_frames());
}

/// Requests, then replies, one after the other.
#[test]
fn golden_index_message() {
    let requests = messages::requests();
    let replies = messages::replies();
    let messages = requests.iter().map(IndexRequest::encode);
    let written: Vec<u8> = messages
        .chain(replies.iter().map(IndexReply::encode))
        .flatten()
        .collect();
    let read = |bytes: &[u8]| -> (Vec<IndexRequest>, Vec<IndexReply>) {
        let (mut requests, mut replies, mut at) = (Vec::new(), Vec::new(), 0);
        while at < bytes.len() {
            let is_request = bytes[at..].starts_with(b"1FIQ");
            let (header, length_at) = if is_request { (64, 56) } else { (32, 20) };
            let end = at + header + field(bytes, at + length_at, 4) as usize;
            let message = &bytes[at..end];
            if is_request {
                requests.push(IndexRequest::decode(message).expect("it opens"));
            } else {
                let reply = IndexReply::decode(message, messages::INDEX_REQUEST);
                replies.push(reply.expect("it opens"));
            }
            at = end;
        }
        (requests, replies)
    };
    let kept = golden("index_message", &written, |bytes| {
        let (requests, replies) = read(bytes);
        let requests = requests.iter().map(|request| format!("{request:#?}\n"));
        requests
            .chain(replies.iter().map(|reply| format!("{reply:#?}\n")))
            .collect()
    });
    assert_eq!(read(&kept), (requests, replies));
}

/// Requests, then replies, one after the other.
#[test]
fn golden_census_message() {
    let (requests, replies) = (census::requests(), census::replies());
    let messages = requests.iter().map(CensusRequest::encode);
    let written: Vec<u8> = messages
        .chain(replies.iter().map(CensusReply::encode))
        .flatten()
        .collect();
    let read = |bytes: &[u8]| -> (Vec<CensusRequest>, Vec<CensusReply>) {
        let (mut requests, mut replies, mut at) = (Vec::new(), Vec::new(), 0);
        while at < bytes.len() {
            if bytes[at..].starts_with(b"1FNQ") {
                let end = at + CENSUS_REQUEST_HEADER_BYTES + field(bytes, at + 56, 4) as usize;
                let request = CensusRequest::decode(&bytes[at..end]);
                requests.push(request.expect("it opens"));
                at = end;
            } else {
                let end = at + CENSUS_REPLY_HEADER_BYTES + field(bytes, at + 20, 4) as usize;
                let reply = CensusReply::decode(&bytes[at..end], census::CENSUS_REQUEST);
                replies.push(reply.expect("it opens"));
                at = end;
            }
        }
        (requests, replies)
    };
    let kept = golden("census_message", &written, |bytes| {
        let (requests, replies) = read(bytes);
        let requests = requests.iter().map(|request| format!("{request:#?}\n"));
        requests
            .chain(replies.iter().map(|reply| format!("{reply:#?}\n")))
            .collect()
    });
    assert_eq!(read(&kept), (requests, replies));
}

#[test]
fn golden_record() {
    let dump = |bytes: &[u8]| {
        let records = record::decode_all(bytes).map(|record| record.expect("it opens"));
        records.map(|record| format!("{record:#?}\n")).collect()
    };
    let read = |bytes: &[u8]| record::decode_all(bytes).collect::<Result<Vec<Record>, _>>();
    let kept = golden("record", &samples::payload(), dump);
    assert_eq!(read(&kept), Ok(samples::records()));
    let of_group = samples::payload_of(&samples::records_of_group());
    let kept = golden_of(OF_GROUPS, "record", &of_group, dump);
    assert_eq!(read(&kept), Ok(samples::records_of_group()));
}

/// Entries as in records, eight bytes each; a map page has the lower seven.
#[test]
fn golden_entry() {
    let segment = samples::segment();
    let entries = [2, 1, 0, 3, 511, 4, 5].map(|slot| segment[slot]);
    let bytes: Vec<u8> = entries
        .iter()
        .flat_map(|entry| entry.to_bits().to_le_bytes())
        .collect();
    let decode = |bytes: &[u8]| -> Vec<Entry> {
        let words = bytes.chunks_exact(8).map(|word| field(word, 0, 8));
        words
            .map(|bits| Entry::from_bits(bits).expect("it opens"))
            .collect()
    };
    let kept = golden("entry", &bytes, |bytes| {
        let lines = decode(bytes).into_iter();
        lines
            .map(|entry| format!("{:#016x} {entry:?}\n", entry.to_bits()))
            .collect()
    });
    assert_eq!(decode(&kept), entries);
}

/// A golden file that no test reads would rot.
#[test]
fn every_golden_file_is_read_by_a_test() {
    let names = |version| {
        let files = std::fs::read_dir(path(version, "")).expect("the golden files are there");
        let name = |file: std::io::Result<std::fs::DirEntry>| {
            let name = file.expect("a name").file_name();
            name.to_string_lossy().into_owned()
        };
        let mut names: Vec<String> = files.map(name).collect();
        names.sort();
        names
    };
    let structures = [
        "batch_page",
        "catalogue_page",
        "census_message",
        "data_label",
        "entry",
        "export",
        "frame",
        "index_message",
        "loss_page",
        "map_page",
        "node",
        "queue_page",
        "record",
        "root",
        "scrub_page",
        "secret",
        "space_page",
        "superblock",
        "trace",
    ];
    for version in EARLIER.iter().chain([&NEWEST, &OF_GROUPS]) {
        let written = structures.iter().filter(|name| has(version, name));
        let expected: Vec<String> = written
            .flat_map(|name| [format!("{name}.bin"), format!("{name}.txt")])
            .collect();
        assert_eq!(names(version), expected, "{version}");
    }
}
