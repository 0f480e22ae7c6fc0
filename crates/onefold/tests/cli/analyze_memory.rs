//! `analyze` keeps to its memory, as the kernel counts it, whatever comes.

use crate::harness::{Outcome, noise, onefold};
use std::fs;
use std::process::Child;
use std::time::Duration;
use tempfile::TempDir;

const MEMORY_MIB: u64 = 16;

/// What the program may need besides.
const SLACK_MIB: u64 = 32;

/// Of the input: as many files, named again and again, of so many of the smallest blocks. What is kept
/// of a chunk takes 48 bytes, 32 until chunks are counted and 16 after that.
const FILES: u64 = 4;
const BLOCKS: u64 = 1 << 16;
const TIMES: u64 = 8;
const RECORD_BYTES: u64 = 48;

/// Runs until one is given up that could never be looked at.
const RUNS_MAX: u32 = 50;

/// Waits for its end. Returns what came of it, and the most memory that it had, in MiB, as far as it was seen.
pub(crate) fn outcome_and_peak(mut child: Child) -> (Outcome, u64) {
    let mut peak = 0;
    // The kernel keeps the peak, but only as long as there is a process.
    while child.try_wait().unwrap().is_none() {
        peak = peak.max(peak_mib(&child).unwrap_or(0));
        std::thread::sleep(Duration::from_millis(2));
    }
    (Outcome::of(child), peak)
}

/// The most memory that it has had, in MiB; nothing once it has ended.
fn peak_mib(child: &Child) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib >> 10)
}

#[test]
fn many_more_records_than_fit_take_no_more_memory() {
    let chunks = FILES * BLOCKS * TIMES;
    assert!(chunks * RECORD_BYTES >= 4 * (MEMORY_MIB << 20));
    let scratch = TempDir::new().unwrap();
    let paths: Vec<String> = (0..FILES)
        .map(|n| {
            let path = scratch.path().join(n.to_string());
            fs::write(&path, noise(n, BLOCKS as usize * 512)).unwrap();
            path.to_str().unwrap().to_owned()
        })
        .collect();
    let memory = format!("{MEMORY_MIB}M");
    let mut arguments = vec!["analyze", "--chunking", "fixed:512", "--memory", &memory];
    arguments.extend(["--format", "json"]);
    for _ in 0..TIMES {
        arguments.extend(paths.iter().map(String::as_str));
    }
    for _ in 0..RUNS_MAX {
        let child = onefold(&arguments).env("TMPDIR", scratch.path()).spawn();
        let (found, peak) = outcome_and_peak(child.unwrap());
        assert_eq!(found.code, Some(0), "{found:?}");
        let blocks = &found.json()["chunkings"][0];
        assert_eq!(blocks["chunks"], chunks);
        assert_eq!(blocks["distinct_chunks"], FILES * BLOCKS);
        assert!(
            peak < MEMORY_MIB + SLACK_MIB,
            "{peak} MiB with --memory {memory}"
        );
        // It must have been seen at work, with more than an empty program has. On a busy machine
        // there may be no turn to look.
        if peak > MEMORY_MIB / 2 {
            return;
        }
    }
    panic!("never seen with more than {} MiB", MEMORY_MIB / 2);
}
