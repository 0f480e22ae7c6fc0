//! The counts of an analysis, compared with counting whole contents in memory.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use fastrand::Rng;
use onefold_analyze::{
    Analysis, Chunking, ChunkingReport, Copies, Options, Progress, Source, analyze, survey,
};
use tempfile::TempDir;

use crate::trees::{MEMORIES, content, options, tree};

fn ways() -> Vec<Chunking> {
    [
        "file",
        "fixed:512",
        "fixed:4K",
        "fixed:12K",
        "content:1K",
        "content:2K,8K,64K",
    ]
    .map(|way| way.parse().unwrap())
    .to_vec()
}

fn run(paths: &[PathBuf], chunkings: Vec<Chunking>, memory_bytes: usize) -> Analysis {
    let options = options(chunkings, memory_bytes);
    analyze(from(paths), &options, &Progress::default()).unwrap()
}

fn from(paths: &[PathBuf]) -> Source<'_> {
    Source::Paths { paths, disks: None }
}

fn files_below(path: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    let below = |path: PathBuf| {
        if path.is_dir() {
            files_below(&path)
        } else {
            vec![path]
        }
    };
    entries.into_iter().flat_map(below).collect()
}

/// The chunks of a file, with their content.
fn cut(way: Chunking, content: &[u8]) -> Vec<Vec<u8>> {
    match way {
        Chunking::WholeFile if content.is_empty() => Vec::new(),
        Chunking::WholeFile => vec![content.to_vec()],
        Chunking::Fixed { bytes } => content.chunks(bytes).map(<[u8]>::to_vec).collect(),
        Chunking::Content { min, average, max } => {
            let cutter = fastcdc::v2020::FastCDC::new(content, min, average, max);
            cutter
                .map(|chunk| content[chunk.offset..chunk.offset + chunk.length].to_vec())
                .collect()
        }
    }
}

/// Compares all figures with the contents held in memory.
fn compare(report: &ChunkingReport, inputs: &[PathBuf]) {
    let way = report.chunking;
    // Nonzero chunks, file by file, with their input; zero ones as `None`.
    let mut files: Vec<(usize, Vec<Option<Vec<u8>>>)> = Vec::new();
    for (n, input) in inputs.iter().enumerate() {
        for file in files_below(input) {
            let chunks = cut(way, &fs::read(file).unwrap()).into_iter();
            let data = chunks.map(|chunk| chunk.iter().any(|byte| *byte != 0).then_some(chunk));
            files.push((n, data.collect()));
        }
    }
    let mut counts: HashMap<&[u8], Vec<u64>> = HashMap::new();
    for (input, chunks) in &files {
        for chunk in chunks.iter().flatten() {
            counts.entry(chunk).or_insert_with(|| vec![0; inputs.len()])[*input] += 1;
        }
    }
    let found = &report.redundancy;
    let mut copies: BTreeMap<u64, Copies> = BTreeMap::new();
    for (chunk, counts) in &counts {
        let count = counts.iter().sum();
        let entry = copies.entry(count).or_default();
        *entry = Copies {
            copies: count,
            chunks: entry.chunks + 1,
            bytes: entry.bytes + chunk.len() as u64,
        };
    }
    assert_eq!(
        found.copies,
        copies.into_values().collect::<Vec<_>>(),
        "{way}"
    );
    let len = |chunks: &mut dyn Iterator<Item = &&[u8]>| -> u64 {
        chunks.map(|chunk| chunk.len() as u64).sum()
    };
    assert_eq!(found.distinct_chunks, counts.len() as u64, "{way}");
    assert_eq!(found.distinct_bytes, len(&mut counts.keys()), "{way}");
    for n in 0..inputs.len() {
        let mut own = counts.iter().filter(|(_, counts)| counts[n] > 0);
        let elsewhere = |counts: &[u64], from: std::ops::Range<usize>| {
            from.into_iter()
                .any(|other| other != n && counts[other] > 0)
        };
        let share = &found.inputs[n];
        let mut count = (0, 0, 0, 0);
        for (chunk, counts) in &mut own {
            count.0 += 1;
            count.1 += chunk.len() as u64;
            count.2 += u64::from(elsewhere(counts, 0..inputs.len()));
            count.3 += u64::from(!elsewhere(counts, 0..n));
        }
        let counted = (
            share.distinct_chunks,
            share.distinct_bytes,
            share.shared_chunks,
            share.new_chunks,
        );
        assert_eq!(counted, count, "{way}, input {n}");
        let of_input = files.iter().filter(|(input, _)| *input == n);
        let chunks: Vec<&Option<Vec<u8>>> = of_input.flat_map(|(_, chunks)| chunks).collect();
        let totals = &report.inputs[n];
        assert_eq!(totals.chunks, chunks.len() as u64, "{way}");
        let zero = chunks.iter().filter(|chunk| chunk.is_none()).count();
        assert_eq!(totals.zero_chunks, zero as u64, "{way}");
    }
    assert_eq!(
        found.within_bytes() + found.across_bytes(),
        found.bytes - found.distinct_bytes
    );
    // Runs end at zeros, at the end of a file, and where the class changes.
    let mut runs = [0, 0];
    for (_, chunks) in &files {
        let class = |chunk: &Option<Vec<u8>>| {
            let chunk = chunk.as_ref()?;
            Some(counts[chunk.as_slice()].iter().sum::<u64>() > 1)
        };
        let classes: Vec<Option<bool>> = chunks.iter().map(class).collect();
        for run in classes.chunk_by(|a, b| a == b) {
            if let Some(is_redundant) = run[0] {
                runs[usize::from(is_redundant)] += 1;
            }
        }
    }
    assert_eq!(
        report.runs.each_ref().map(|lengths| lengths.runs),
        runs,
        "{way}"
    );
    let stored: f64 = report.kinds.values().map(|kind| kind.stored_bytes).sum();
    assert!((stored - found.distinct_bytes as f64).abs() < 1.0, "{way}");
}

#[test]
fn everything_is_counted_as_if_all_of_it_were_in_memory() {
    for seed in 0..6 {
        let mut random = Rng::with_seed(seed);
        let (_scratch, inputs) = tree(&mut random);
        for memory in MEMORIES {
            let analysis = run(&inputs, ways(), memory);
            assert_eq!(analysis.problems, []);
            assert!(analysis.is_complete && analysis.survey.files == 14);
            for report in &analysis.chunkings {
                compare(report, &inputs);
            }
        }
    }
}

#[test]
fn large_files_are_cut_the_same_in_parts_and_with_holes() {
    let scratch = TempDir::new().unwrap();
    let path = scratch.path().join("disk.raw");
    let file = fs::File::create(&path).unwrap();
    file.set_len(150 << 20).unwrap();
    let mut random = Rng::with_seed(7);
    for at in [0, (5 << 20) + 700, (64 << 20) - 4096, 130 << 20] {
        file.write_all_at(&content(&mut random, 9000, 300), at)
            .unwrap();
    }
    drop(file);
    for ways in [
        vec!["fixed:4K".parse().unwrap(), "fixed:12K".parse().unwrap()],
        vec!["fixed:4K".parse().unwrap(), "content:64K".parse().unwrap()],
    ] {
        let analysis = run(std::slice::from_ref(&path), ways, MEMORIES[0]);
        for report in &analysis.chunkings {
            assert_eq!(report.total.bytes, 150 << 20);
            compare(report, &[scratch.path().to_owned()]);
        }
    }
}

#[test]
fn kinds_and_sizes_of_files_are_told_apart() {
    let mut random = Rng::with_seed(3);
    let (_scratch, inputs) = tree(&mut random);
    let analysis = run(&inputs, vec!["fixed:4K".parse().unwrap()], MEMORIES[0]);
    let report = &analysis.chunkings[0];
    let kinds: Vec<&str> = report.kinds.keys().map(String::as_str).collect();
    assert_eq!(
        kinds,
        ["", "c", "img", "log"],
        "a dot at the start begins no kind"
    );
    let image = &report.kinds["img"];
    assert!(image.stored_bytes <= image.bytes as f64 / 2.0);
    assert!(report.sizes.contains_key(&0) && report.sizes.contains_key(&21));
}

#[test]
fn links_are_not_followed_and_what_cannot_be_read_is_listed() {
    let scratch = TempDir::new().unwrap();
    let root = scratch.path();
    fs::create_dir(root.join("in")).unwrap();
    fs::write(root.join("in/file"), [1; 5000]).unwrap();
    fs::write(root.join("outside"), [2; 5000]).unwrap();
    symlink(root.join("outside"), root.join("in/link")).unwrap();
    symlink(root, root.join("in/loop")).unwrap();
    symlink(root.join("in"), root.join("named")).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(root.join("in/socket")).unwrap();
    let paths = ["named", "gone", "in/socket"].map(|name| root.join(name));
    let analysis = run(&paths, vec!["fixed:4K".parse().unwrap()], MEMORIES[0]);
    assert_eq!((analysis.survey.files, analysis.survey.skipped), (1, 3));
    assert_eq!(analysis.chunkings[0].total.bytes, 5000);
    let problems: Vec<&Path> = analysis
        .problems
        .iter()
        .map(|problem| problem.path.as_path())
        .collect();
    assert_eq!(problems, [&paths[1], &paths[2]]);
    assert!(analysis.problems[1].what.contains("neither a file"));
    let found = survey(&paths, None);
    assert_eq!((found.files, found.bytes, found.skipped), (1, 5000, 3));
    assert_eq!(found, analysis.survey);
    drop(socket);
}

#[test]
fn a_file_that_changes_meanwhile_is_listed() {
    let scratch = TempDir::new().unwrap();
    let path = scratch.path().join("log");
    let file = fs::File::create(&path).unwrap();
    file.write_all_at(&vec![7; 96 << 20], 0).unwrap();
    let is_done = AtomicBool::new(false);
    let analysis = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                file.write_all_at(&[1], 0).unwrap();
            }
        });
        let analysis = run(
            std::slice::from_ref(&path),
            vec!["fixed:4K".parse().unwrap()],
            MEMORIES[0],
        );
        is_done.store(true, Ordering::Relaxed);
        analysis
    });
    assert_eq!(analysis.problems.len(), 1);
    assert!(
        analysis.problems[0]
            .what
            .contains("changed while it was read")
    );
    assert!(analysis.is_complete);
}

#[test]
fn an_analysis_that_is_stopped_says_so() {
    let mut random = Rng::with_seed(5);
    let (_scratch, inputs) = tree(&mut random);
    let progress = Progress::default();
    progress.stop();
    let options = options(ways(), MEMORIES[0]);
    let analysis = analyze(from(&inputs), &options, &progress).unwrap();
    assert!(!analysis.is_complete);
    assert_eq!(analysis.chunkings[0].total.bytes, 0);
}

#[test]
fn a_temporary_file_that_cannot_be_written_ends_it() {
    let scratch = TempDir::new().unwrap();
    let mut random = Rng::with_seed(9);
    // More files than the queue between walk and workers has places for.
    for n in 0..400 {
        let path = scratch.path().join(n.to_string());
        fs::write(path, content(&mut random, 200, 0)).unwrap();
    }
    let options = Options {
        temporary: PathBuf::from("/nonexistent/place"),
        ..options(vec!["fixed:512".parse().unwrap()], 0)
    };
    let ended = analyze(
        from(&[scratch.path().to_owned()]),
        &options,
        &Progress::default(),
    );
    assert!(ended.unwrap_err().to_string().contains("temporary file"));
}

#[test]
fn sizes_without_a_small_common_multiple_are_refused() {
    let sizes = ["fixed:15872", "fixed:16896", "fixed:1M"].map(|way| way.parse().unwrap());
    let options = options(sizes.to_vec(), 0);
    assert!(analyze(from(&[]), &options, &Progress::default()).is_err());
    let options = Options {
        chunkings: vec!["fixed:4K".parse().unwrap()],
        temporary: PathBuf::from("/nonexistent/place"),
        ..options
    };
    // Nothing has to be written there.
    assert!(analyze(from(&[]), &options, &Progress::default()).is_ok());
}
