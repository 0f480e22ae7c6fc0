//! Analyses of traces, compared with analyses of the data.

use std::fs;
use std::path::{Path, PathBuf};

use fastrand::Rng;
use onefold_analyze::{
    Analysis, AnalyzeError, Chunking, Progress, Source, TraceOptions, analyze, trace_ways,
};
use tempfile::TempDir;

use crate::trees::{MEMORIES, options, tree};

fn ways() -> Vec<Chunking> {
    ["file", "fixed:4K", "fixed:12K", "content:1K"]
        .map(|way| way.parse().unwrap())
        .to_vec()
}

/// Analyses paths, and writes a trace.
fn traced(paths: &[PathBuf], path: &Path, hides_names: bool) -> Analysis {
    let mut options = options(ways(), MEMORIES[0]);
    options.trace = Some(TraceOptions {
        path: path.to_owned(),
        hides_names,
    });
    let source = Source::Paths { paths, disks: None };
    analyze(source, &options, &Progress::default()).unwrap()
}

fn from_traces(
    traces: &[PathBuf],
    ways: Vec<Chunking>,
    memory_bytes: usize,
) -> Result<Analysis, AnalyzeError> {
    let options = options(ways, memory_bytes);
    analyze(Source::Traces(traces), &options, &Progress::default())
}

#[test]
fn a_trace_says_the_same_as_the_data() {
    let mut random = Rng::with_seed(21);
    let (scratch, mut inputs) = tree(&mut random);
    // Holes, and parts that different workers read.
    let sparse = scratch.path().join("a/sparse.img");
    fs::write(&sparse, [5; 70_000]).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&sparse).unwrap();
    file.set_len(300 << 20).unwrap();
    inputs.push(scratch.path().join("nothing"));
    let traces = [scratch.path().join("trace")];
    let expected = traced(&inputs, &traces[0], false);
    assert_eq!(expected.problems.len(), 1);
    let compressed = expected.chunkings[1].compression.unwrap();
    assert!(compressed.chunks.sampled > 100 && compressed.groups.sampled > 0);
    assert_eq!(trace_ways(&traces).unwrap(), ways());
    for memory in MEMORIES {
        let found = from_traces(&traces, ways(), memory).unwrap();
        assert_eq!(found, expected);
    }
    let some = from_traces(&traces, vec![ways()[2]], MEMORIES[0]).unwrap();
    assert_eq!(some.chunkings, expected.chunkings[2..3]);
}

#[test]
fn traces_of_several_hosts_are_analysed_together() {
    let mut random = Rng::with_seed(22);
    let (scratch, inputs) = tree(&mut random);
    let traces = ["one", "two"].map(|name| scratch.path().join(name));
    for (input, trace) in inputs.iter().zip(&traces) {
        traced(std::slice::from_ref(input), trace, false);
    }
    let expected = traced(&inputs, &scratch.path().join("both"), false);
    assert_eq!(from_traces(&traces, ways(), 0).unwrap(), expected);
}

#[test]
fn hidden_names_are_not_in_the_trace_and_change_no_figure() {
    let mut random = Rng::with_seed(23);
    let (scratch, inputs) = tree(&mut random);
    let traces = [scratch.path().join("trace")];
    let expected = traced(&inputs, &traces[0], true);
    let bytes = fs::read(&traces[0]).unwrap();
    for name in ["one", "three", "deep", "same"] {
        let is_there = bytes
            .windows(name.len())
            .any(|window| window == name.as_bytes());
        assert!(!is_there, "{name}");
    }
    let found = from_traces(&traces, ways(), 0).unwrap();
    assert_ne!(found.inputs, expected.inputs);
    assert_eq!(found.chunkings, expected.chunkings);
}

#[test]
fn what_is_cut_or_damaged_or_goes_on_names_file_and_offset() {
    let scratch = TempDir::new().unwrap();
    let input = scratch.path().join("input");
    fs::write(&input, [3; 9000]).unwrap();
    let traces = [scratch.path().join("trace")];
    traced(&[input], &traces[0], false);
    let whole = fs::read(&traces[0]).unwrap();
    let refusal = |bytes: &[u8]| {
        fs::write(&traces[0], bytes).unwrap();
        let message = from_traces(&traces, ways(), 0).unwrap_err().to_string();
        assert!(
            message.contains("trace\", byte ") && message.contains("trace"),
            "{message}"
        );
        message
    };
    for len in 0..whole.len() {
        assert!(refusal(&whole[..len]).contains("is cut"), "at {len}");
    }
    for byte in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[byte] ^= 4;
        refusal(&damaged);
    }
    let longer = [&whole[..], &[0]].concat();
    assert!(refusal(&longer).contains("there is more"));
    let twice = [&whole[..], &whole[..]].concat();
    assert!(refusal(&twice).contains("there is more"));
    // Frames that are missing, or there twice.
    let (mut frames, mut rest) = (Vec::new(), &whole[..]);
    while !rest.is_empty() {
        let payload = u32::from_le_bytes(rest[16..20].try_into().unwrap());
        let (frame, after) = rest.split_at(24 + payload as usize);
        frames.push(frame);
        rest = after;
    }
    for n in 0..frames.len() - 1 {
        let without = [&frames[..n], &frames[n + 1..]].concat().concat();
        assert!(refusal(&without).contains("position"), "without frame {n}");
        let twice = [&frames[..=n], &frames[n..]].concat().concat();
        assert!(refusal(&twice).contains("position"), "frame {n} twice");
    }
    fs::write(&traces[0], &whole).unwrap();
    assert!(from_traces(&traces, ways(), 0).is_ok());
}

#[test]
fn traces_that_do_not_belong_together_are_refused() {
    let scratch = TempDir::new().unwrap();
    let traces = ["one", "two"].map(|name| scratch.path().join(name));
    traced(&[], &traces[0], false);
    let mut other = options(vec!["fixed:8K".parse().unwrap()], 0);
    other.trace = Some(TraceOptions {
        path: traces[1].clone(),
        hides_names: false,
    });
    let nothing = Source::Paths {
        paths: &[],
        disks: None,
    };
    analyze(nothing, &other, &Progress::default()).unwrap();
    let refused = from_traces(&traces, ways(), 0).unwrap_err().to_string();
    assert!(refused.contains("were cut in the same ways"), "{refused}");
    let refused = from_traces(&traces[..1], vec!["fixed:8K".parse().unwrap()], 0);
    assert!(refused.unwrap_err().to_string().contains("fixed:8192"));
    assert!(
        analyze(nothing, &other, &Progress::default()).is_err(),
        "the trace exists"
    );
    let sizes = (1..=257).map(|n| Chunking::content(64, 256, 1024 + 2 * n).unwrap());
    let mut many = options(sizes.collect(), 0);
    many.trace = Some(TraceOptions {
        path: scratch.path().join("many"),
        hides_names: false,
    });
    let refused = analyze(nothing, &many, &Progress::default()).unwrap_err();
    assert!(refused.to_string().contains("256 ways"), "{refused}");
    let again = analyze(Source::Traces(&traces[..1]), &other, &Progress::default());
    assert!(again.is_err(), "a trace of a trace");
}
