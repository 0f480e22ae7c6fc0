//! `analyze` stays within its memory limit, as the kernel counts it, for any input.

use crate::harness::{Outcome, noise, onefold};
use std::fs;
use std::process::Child;
use std::time::Duration;
use tempfile::TempDir;

const MEMORY_MIB: u64 = 16;

/// Memory that the program may need in addition to `--memory`.
const SLACK_MIB: u64 = 32;

/// The input: `FILES` files of `BLOCKS` blocks of the smallest size, each named `TIMES` times. A chunk takes 48
/// bytes of memory: 32 until chunks are counted, and 16 afterwards.
const FILES: u64 = 4;
const BLOCKS: u64 = 1 << 16;
const TIMES: u64 = 8;
const RECORD_BYTES: u64 = 48;

/// Runs after which the test gives up trying to observe a process.
const RUNS_MAX: u32 = 50;

/// Waits for the end of the process. Returns its outcome and the highest memory observed, in MiB.
pub(crate) fn outcome_and_peak(mut child: Child) -> (Outcome, u64) {
    let mut peak = 0;
    // The kernel reports the peak only while the process exists.
    while child.try_wait().unwrap().is_none() {
        peak = peak.max(peak_mib(&child).unwrap_or(0));
        std::thread::sleep(Duration::from_millis(2));
    }
    (Outcome::of(child), peak)
}

/// The highest memory of the process, in MiB; `None` once it has ended.
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
        // The process must have been observed at work, with more memory than an empty program has. On a busy
        // machine the test may not get to observe it.
        if peak > MEMORY_MIB / 2 {
            return;
        }
    }
    panic!("never seen with more than {} MiB", MEMORY_MIB / 2);
}
