//! `bench`: its writes, verification, refusals and output.

use crate::analyze::interrupted;
use crate::harness::{Outcome, Scene, is_left_out_in_ceph, onefold, run, wait_until};
use serde_json::{Value, json};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Command;
use tempfile::TempDir;

/// Equal numbers of runs of both classes, each with one length for each number of copies.
const DISTRIBUTION: &str = "onefold distribution 1
block 4096
copies 1 600
copies 2 200
copies 4 50
runs unique 1 104 104
runs unique 4 124 496
runs redundant 2 204 408
runs redundant 8 24 192
";

struct Bench {
    scratch: TempDir,
}

impl Bench {
    fn new() -> Self {
        let scratch = TempDir::with_prefix("onefold-bench-").unwrap();
        fs::write(scratch.path().join("distribution"), DISTRIBUTION).unwrap();
        Self { scratch }
    }

    fn path(&self, name: &str) -> String {
        let path = self.scratch.path().join(name);
        path.to_str().unwrap().to_owned()
    }

    /// The arguments that write this distribution to a target.
    fn arguments(&self, target: &str, more: &[&str]) -> Vec<String> {
        let distribution = self.path("distribution");
        let all = [
            "bench",
            target,
            "--distribution",
            &distribution,
            "--format",
            "json",
        ];
        all.iter()
            .chain(more)
            .map(|argument| (*argument).to_owned())
            .collect()
    }

    fn run(&self, target: &str, more: &[&str]) -> Outcome {
        let arguments = self.arguments(target, more);
        run(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    #[track_caller]
    fn ok(&self, target: &str, more: &[&str]) -> Value {
        let done = self.run(target, more);
        assert_eq!(done.code, Some(0), "{done:?}");
        done.json()
    }
}

#[track_caller]
fn analysed(inputs: &[&str], more: &[&str]) -> Value {
    let found = run(&[&["analyze", "--format", "json"], inputs, more].concat());
    assert_eq!(found.code, Some(0), "{found:?}");
    found.json()["chunkings"][0].clone()
}

/// The number of contents for each number of copies.
fn copies(way: &Value) -> Vec<(u64, u64)> {
    let copies = way["copies"].as_array().unwrap().iter();
    let number = |row: &Value, field: &str| row[field].as_u64().unwrap();
    copies
        .map(|row| (number(row, "copies"), number(row, "chunks")))
        .collect()
}

#[test]
fn what_it_wrote_has_the_distribution_and_the_runs() {
    let bench = Bench::new();
    let (target, found) = (bench.path("target"), bench.path("found"));
    let done = bench.ok(&target, &["--size", "4800K", "--seed", "7"]);
    assert_eq!(done["verified_blocks"], 1200);
    assert_eq!(done["content"]["distinct_blocks"], 850);
    let way = analysed(&[&target], &["--distribution", &found]);
    assert_eq!(way["zero_chunks"], 0);
    assert_eq!(copies(&way), [(1, 600), (2, 200), (4, 50)]);
    // The measured distribution equals the requested one to the last run, and can be used for another load.
    let found = fs::read_to_string(found).unwrap();
    assert_eq!(found, DISTRIBUTION);
    // A target of twice the size has twice as many contents with the same numbers of copies.
    let larger = bench.path("larger");
    bench.ok(&larger, &["--size", "9600K", "--request", "64K"]);
    assert_eq!(
        copies(&analysed(&[&larger], &[])),
        [(1, 1200), (2, 400), (4, 100)]
    );
}

#[test]
fn jobs_and_instances_share_one_distribution() {
    let bench = Bench::new();
    let [jobs, one, two, other] = ["jobs", "one", "two", "other"].map(|name| bench.path(name));
    bench.ok(&jobs, &["--size", "4800K", "--jobs", "3", "--seed", "7"]);
    let shared = [(1, 600), (2, 200), (4, 50)];
    assert_eq!(copies(&analysed(&[&jobs], &[])), shared);
    for (target, instance) in [(&one, "1/2"), (&two, "2/2")] {
        let half = ["--size", "2400K", "--seed", "7", "--instance", instance];
        bench.ok(target, &half);
    }
    let way = analysed(&[&one, &two], &[]);
    assert_eq!(copies(&way), shared);
    assert!(way["duplicate_across_bytes"].as_u64().unwrap() > 50 * 4096);
    // With another seed no content is the same.
    bench.ok(&other, &["--size", "4800K", "--seed", "8"]);
    let way = analysed(&[&jobs, &other], &[]);
    assert_eq!(way["duplicate_across_bytes"], 0);
    let refused = ["--size", "1M", "--instance", "1/2"];
    bench
        .run(&bench.path("no"), &refused)
        .is_refusal(2, &["--seed"]);
}

#[test]
fn a_target_that_changes_is_found_out() {
    let bench = Bench::new();
    let target = bench.path("target");
    let arguments = bench.arguments(
        &target,
        &[
            "--size",
            "1M",
            "--mode",
            "read",
            "--pattern",
            "uniform",
            "--seconds",
            "600",
        ],
    );
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let child = onefold(&arguments).spawn().unwrap();
    // The last bytes are written when the load is complete.
    let mut last = [0; 64];
    wait_until("it is filled", || {
        let file = File::open(&target);
        let read = |file: File| file.read_exact_at(&mut last, (1 << 20) - 64).is_ok();
        file.is_ok_and(read) && last != [0; 64]
    });
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&target)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 70_000).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 70_000).unwrap();
    let found = Outcome::of(child);
    let words = [
        "target",
        "in the block at byte 69632",
        "1 bytes differ",
        "byte 70000",
    ];
    found.is_refusal(1, &words);
}

#[test]
fn what_a_target_holds_is_kept_without_yes() {
    let bench = Bench::new();
    let target = bench.path("target");
    let file = File::create(&target).unwrap();
    file.set_len(1 << 20).unwrap();
    file.write_all_at(b"mine", 800_000).unwrap();
    let before = fs::read(&target).unwrap();
    let refused = bench.run(&target, &[]);
    refused.is_refusal(2, &["data at byte 800000", "nothing was changed", "--yes"]);
    assert_eq!(fs::read(&target).unwrap(), before);
    // The part of the target beyond `--size` is not touched.
    bench.ok(&target, &["--size", "400K"]);
    assert_eq!(fs::read(&target).unwrap()[400 << 10..], before[400 << 10..]);
    bench
        .run(&target, &["--size", "400K"])
        .is_refusal(2, &["data at byte"]);
    bench.ok(&target, &["--yes"]);
    file.write_all_at(&[0; 2048], 0).unwrap();
    file.write_all_at(b"\x53\xef", 1080).unwrap();
    bench.run(&target, &[]).is_refusal(2, &["ext4"]);
    // This file system's signature is beyond the used part.
    let btrfs = bench.path("btrfs");
    let file = File::create(&btrfs).unwrap();
    file.set_len(1 << 20).unwrap();
    file.write_all_at(b"_BHRfS_M", 0x10040).unwrap();
    bench
        .run(&btrfs, &["--size", "8K"])
        .is_refusal(2, &["btrfs"]);
}

#[test]
fn an_export_is_written_and_verified() {
    if is_left_out_in_ceph("its pool has no file that could be benchmarked") {
        return;
    }
    let scene = Scene::new();
    let bench = Bench::new();
    scene.ok(&["volume", "create", "vol", "--size", "8M"]);
    let socket = format!("unix:{}", scene.path("nbd"));
    let daemon = scene.daemon_with(&["--nbd", &socket]);
    let uri = scene.json(&["volume", "stat", "vol"])["nbd_uri"].clone();
    let uri = uri.as_str().unwrap();
    let two = ["--jobs", "2", "--request", "16K", "--seed", "1"];
    let done = bench.ok(uri, &[&["--size", "4800K"][..], &two].concat());
    assert_eq!(
        (&done["verified_blocks"], &done["jobs"]),
        (&json!(1200), &json!(2))
    );
    let mixed = [
        "--mode",
        "mixed:30",
        "--pattern",
        "zipf",
        "--yes",
        "--requests",
        "500",
    ];
    bench.ok(uri, &mixed);
    bench.run(uri, &[]).is_refusal(2, &["vol", "holds"]);
    let large = ["--request", "64M"];
    scene.ok(&["volume", "create", "large", "--size", "1G"]);
    let large_uri = uri.replace("/vol?", "/large?");
    bench
        .run(&large_uri, &large)
        .is_refusal(2, &["takes requests of"]);
    scene.ok(&["snapshot", "create", "vol@s"]);
    let snapshot = uri.replace("/vol?", "/vol@s?");
    bench
        .run(&snapshot, &["--yes"])
        .is_refusal(2, &["read-only"]);
    let gone = uri.replace("/vol?", "/gone?");
    bench
        .run(&gone, &[])
        .is_refusal(1, &["\"gone\"", "no such export"]);
    let data = scene.pool().join("data");
    let in_use = bench.run(data.to_str().unwrap(), &["--yes"]);
    in_use.is_refusal(2, &["data", "is in use"]);
    assert!(daemon.terminate().success());
    bench.run(uri, &[]).is_refusal(1, &["cannot attach"]);
    scene.ok(&["pool", "check"]);
}

/// A foreign server that accepts one connection at a time.
#[test]
fn another_server_is_written_and_verified() {
    let bench = Bench::new();
    let [disk, socket] = ["disk", "socket"].map(|name| bench.path(name));
    File::create(&disk).unwrap().set_len(5 << 20).unwrap();
    let mut server = Command::new("qemu-nbd")
        .args([
            "--format",
            "raw",
            "--persistent",
            "--socket",
            &socket,
            &disk,
        ])
        .spawn()
        .expect("qemu-nbd is needed (Debian: qemu-utils)");
    wait_until("it listens", || fs::exists(&socket).unwrap());
    let uri = format!("nbd+unix:///?socket={socket}");
    let two = bench.run(&uri, &["--jobs", "2"]);
    let done = bench.run(&uri, &["--size", "4800K", "--request", "32K"]);
    server.kill().unwrap();
    server.wait().unwrap();
    two.is_refusal(2, &["several connections", "--jobs 1"]);
    assert_eq!(done.json()["verified_blocks"], 1200);
    let shared = [(1, 600), (2, 200), (4, 50)];
    assert_eq!(copies(&analysed(&[&disk], &[])), shared);
}

#[test]
fn a_table_and_a_page_say_what_was_measured() {
    let bench = Bench::new();
    let page = bench.path("page.html");
    let memory = [
        "bench",
        "memory:2M",
        "--mode",
        "mixed",
        "--seed",
        "3",
        "--html",
        &page,
    ];
    let done = run(&memory);
    assert_eq!(done.code, Some(0), "{done:?}");
    let text = String::from_utf8(done.stdout).unwrap();
    for words in [
        "memory: 2 MiB of it, mixed:50 sequential, requests of 4 KiB, jobs: 1",
        "content: guests in 512 blocks of 4 KiB",
        "seed 3, instance 1 of 1",
        "p99.9",
        "fill write               512      2 MiB",
        "read-back read           512      2 MiB",
        "all are equal",
    ] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    let drawn = fs::read_to_string(&page).unwrap();
    assert_eq!(drawn.matches("<svg").count(), 4);
    for words in [
        "<!DOCTYPE html>",
        "<h1>",
        " requests a second, 99 of 100 within ",
        "<dt>command</dt><dd>onefold bench memory:2M --mode mixed --seed 3 --html ",
        "<td data-column=\"requests\">512</td>",
        "Latency by part",
        "Throughput of mixed",
        "all are equal",
    ] {
        assert!(drawn.contains(words), "no {words:?}");
    }
    run(&memory).is_refusal(1, &["page.html", "File exists"]);
    let done = bench.ok("memory:2M", &["--mode", "mixed:80", "--requests", "1000"]);
    let mixed = &done["phases"][1];
    let number = |value: &Value| value.as_u64().unwrap();
    let [read, written] = [0, 1].map(|n| number(&mixed["operations"][n]["requests"]));
    assert_eq!((read + written, &mixed["phase"]), (1000, &json!("mixed")));
    assert!(read > 4 * written / 2, "{read}, {written}");
    let latency = &mixed["operations"][0]["latency_ns"];
    let all = ["p50", "p90", "p99", "p99_9", "max"].map(|name| number(&latency[name]));
    assert!(all.is_sorted() && all[0] > 0, "{latency}");
    let timeline = mixed["timeline"].as_array().unwrap().iter();
    let bytes = timeline
        .map(|interval| number(&interval["read_bytes"]) + number(&interval["written_bytes"]));
    assert_eq!(bytes.sum::<u64>(), 1000 * 4096);
}

#[test]
fn an_interrupt_ends_it_with_what_was_measured() {
    let bench = Bench::new();
    let more = [
        "--seconds",
        "3600",
        "--pattern",
        "nurand",
        "--mode",
        "mixed",
    ];
    let arguments = bench.arguments("memory:1M", &more);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let found = interrupted(onefold(&arguments).spawn().unwrap());
    assert_eq!(found.code, Some(1), "{found:?}");
    assert!(found.stderr.contains("stopped"), "{found:?}");
    assert_eq!(found.json()["is_complete"], json!(false));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let bench = Bench::new();
    let wrong = bench.path("wrong");
    fs::write(&wrong, DISTRIBUTION.replace("copies 2 200", "copies 2 x")).unwrap();
    let words = ["wrong\", line 4: 'x' is not a number"];
    run(&["bench", "memory:1M", "--distribution", &wrong]).is_refusal(2, &words);
    let none = bench.path("none");
    let words = ["none", "guests, dedis, paulo09"];
    run(&["bench", "memory:1M", "--distribution", &none]).is_refusal(1, &words);
    let new = bench.path("new");
    for (arguments, words) in [
        (&[&*new][..], "--size"),
        (&[&new, "--size", "1M", "--request", "6K"], "whole blocks"),
        (&[&new, "--size", "1K"], "no room"),
        (&["memory:1M", "--size", "2M"], "has 1048576 bytes"),
        (&["memory:1M", "--direct"], "--direct"),
        (&["memory:1M", "--block-size", "1000"], "multiples of 512"),
        (&["/dev/null"], "neither a file nor a block device"),
    ] {
        run(&[&["bench"], arguments].concat()).is_refusal(2, &[words]);
    }
    for arguments in [
        &["memory:1M", "--mode", "erase"][..],
        &["memory:1M", "--pattern", "zipf:0"],
        &["memory:1M", "--rate", "0"],
        &["memory:1M", "--instance", "3/2"],
        &["memory:1M", "--compressible", "101"],
        &["memory:lots"],
        &["nbd://"],
    ] {
        let refused = run(&[&["bench"], arguments].concat());
        assert_eq!(refused.code, Some(2), "{arguments:?}: {refused:?}");
    }
    assert!(
        !fs::exists(&new).unwrap(),
        "nothing is made by a load that is refused"
    );
    // Chunking methods for which no distribution can be written.
    let input = bench.path("distribution");
    let analyze = ["analyze", &input, "--distribution", &new, "--chunking"];
    run(&[&analyze[..], &["content:8K"]].concat()).is_refusal(2, &["fixed:SIZE, once"]);
    let both = ["fixed:4K", "--chunking", "fixed:8K"];
    run(&[&analyze[..], &both].concat()).is_refusal(2, &["fixed:SIZE, once"]);
}
