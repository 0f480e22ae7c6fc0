//! `analyze`: its output and its exit.

use crate::harness::{Outcome, noise, onefold, qemu_img, run, wait_until};
use serde_json::json;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Child, Stdio};
use tempfile::TempDir;

/// Two inputs of 100 blocks: 40 are the same in both, 10 are zeros, the rest are unique, and the last block
/// of each occurs twice.
fn inputs() -> (TempDir, [String; 2]) {
    let scratch = TempDir::new().unwrap();
    let names = ["a.raw", "b.raw"].map(|name| {
        let path = scratch.path().join(name);
        path.to_str().unwrap().to_owned()
    });
    for (n, name) in (1..).zip(&names) {
        let mut image = noise(7, 40 << 12);
        image.extend(vec![0; 10 << 12]);
        image.extend(noise(n, 49 << 12));
        image.extend_from_within(98 << 12..);
        fs::write(name, image).unwrap();
    }
    (scratch, names)
}

#[test]
fn figures_are_exact_and_in_one_document() {
    let (_scratch, [a, b]) = inputs();
    let ways = ["--chunking", "fixed:4K", "--chunking", "file"];
    let found = run(&[&["analyze", &a, &b, "--format", "json"][..], &ways].concat());
    assert_eq!(found.code, Some(0), "{found:?}");
    let found = found.json();
    assert_eq!(
        (&found["files"], &found["is_complete"]),
        (&json!(2), &json!(true))
    );
    let blocks = &found["chunkings"][0];
    for (field, value) in [
        ("chunking", json!("fixed:4096")),
        ("chunks", json!(200)),
        ("zero_chunks", json!(20)),
        ("data_chunks", json!(180)),
        ("distinct_chunks", json!(40 + 2 * 49)),
        ("single_chunks", json!(2 * 48)),
        ("duplicate_chunks", json!(42)),
        ("duplicate_within_bytes", json!(2 << 12)),
        ("duplicate_across_bytes", json!(40 << 12)),
        (
            "copies",
            json!([{"copies": 1, "chunks": 96, "bytes": 96 << 12},
                   {"copies": 2, "chunks": 42, "bytes": 42 << 12}]),
        ),
    ] {
        assert_eq!(blocks[field], value, "{field} in {blocks}");
    }
    let second = &blocks["inputs"][1];
    assert_eq!(second["path"], json!(b));
    assert_eq!(
        (&second["shared_chunks"], &second["new_chunks"]),
        (&json!(40), &json!(49))
    );
    // 40 equal blocks, and the repeated block at the end: 80 and 2 blocks in runs of redundant data.
    assert_eq!(blocks["runs"][1]["runs"], 4);
    assert_eq!(blocks["runs"][1]["longest_bytes"], 40 << 12);
    // 180 blocks of 8 bytes and a 256th in maps, 138 rows of 51 bytes.
    let advice = &blocks["advice"];
    assert_eq!(
        (&advice["map_bytes"], &advice["index_bytes"]),
        (&json!(1446), &json!(7038))
    );
    assert_eq!(advice["saved_bytes"], (42 << 12) - 1446 - 7038);
    assert_eq!(advice["memory_bytes"], 512 << 20);
    assert_eq!(found["chunkings"][1]["advice"], json!(null));
    let files = &found["chunkings"][1];
    assert_eq!(
        (&files["distinct_chunks"], &files["data_bytes"]),
        (&json!(2), &json!(200 << 12))
    );
}

#[test]
fn an_estimate_says_what_it_may_be_off() {
    let (_scratch, [a, b]) = inputs();
    let harnik = [
        "--method",
        "harnik",
        "--error",
        "5",
        "--confidence",
        "99",
        "--seed",
        "4",
    ];
    let json = [&["analyze", &a, &b, "--format", "json"][..], &harnik].concat();
    let found = run(&json).json();
    let off = found["saved_ratio"].as_f64().unwrap() - 42.0 / 180.0;
    assert!(off.abs() <= found["error"].as_f64().unwrap(), "{found}");
    assert_eq!(
        (&found["data_bytes"], &found["seed"]),
        (&json!(180 << 12), &json!(4))
    );
    assert_eq!(found, run(&json).json(), "the same seed, the same estimate");
    let text = run(&[&["analyze", &a, &b][..], &harnik].concat());
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.contains("would not be stored") && text.contains("seed 4"),
        "{text}"
    );
}

#[test]
fn a_table_has_the_same_for_people() {
    let (_scratch, [a, b]) = inputs();
    let found = run(&["analyze", &a, &b, "--generations"]);
    let text = String::from_utf8(found.stdout).unwrap();
    for words in [
        "2 files, 0 of them empty",
        "cut as fixed:4096",
        "180 chunks",
        "8 KiB within inputs, 160 KiB across them",
        "adds  input",
        "zeros                  20 chunks       80 KiB   10.00 % of all",
        "duplicate              42 chunks      168 KiB   23.33 % of data",
        "--memory 512M or more",
        "720 KiB - 552 KiB stored",
        "onefold saves",
        &b,
    ] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
}

#[test]
fn tables_and_a_page_have_the_figures_too() {
    let (scratch, [a, b]) = inputs();
    let [tables, page] = ["tables", "page.html"].map(|name| {
        let path = scratch.path().join(name);
        path.to_str().unwrap().to_owned()
    });
    let arguments = ["analyze", &a, &b, "--csv", &tables, "--html", &page];
    assert_eq!(run(&arguments).code, Some(0));
    let table = |name: &str| fs::read_to_string(format!("{tables}/{name}.csv")).unwrap();
    assert_eq!(
        table("copies"),
        "chunking,copies,chunks,bytes\nfixed:4096,1,96,393216\nfixed:4096,2,42,172032\n"
    );
    assert_eq!(
        table("runs").lines().nth(1),
        Some("fixed:4096,unique,131072,2"),
        "48 blocks each: {}",
        table("runs")
    );
    for name in ["totals", "inputs", "kinds", "sizes"] {
        let lines = table(name).lines().count();
        assert!((2..=3).contains(&lines), "{name}");
    }
    let html = fs::read_to_string(&page).unwrap();
    for words in [
        "<!DOCTYPE html>",
        "<h1>23.3 % would not be stored</h1>",
        "name=\"viewport\"",
        "<dt>date</dt><dd>20",
        "<dt>host</dt>",
        "<dt>version</dt><dd>onefold ",
        "<dt>command</dt><dd>onefold analyze ",
        "Cut as fixed:4096",
        "onefold saves",
        "a.raw",
    ] {
        assert!(html.contains(words), "no {words:?}");
    }
    assert_eq!(html.matches("<svg").count(), 5);
    let refers = html.contains("href") || html.contains("src=") || html.contains("@import");
    assert!(!refers, "it needs nothing else");
    // Existing files are not overwritten; the command checks this before it reads anything.
    run(&arguments).is_refusal(1, &["page.html", "File exists"]);
    run(&["analyze", &a, "--csv", &tables]).is_refusal(1, &["tables", "File exists"]);
    let both = ["analyze", &a, "--method", "harnik", "--html", "x.html"];
    run(&both).is_refusal(2, &["only with --method exact"]);
}

#[test]
fn a_qcow2_image_counts_as_the_disk_inside_it() {
    let (scratch, [a, b]) = inputs();
    let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let found = |arguments: &[&str]| {
        let common = ["analyze", "--format", "json", "--image-format", "qcow2"];
        run(&[&common[..], arguments].concat())
    };
    let chunkings = |arguments: &[&str]| {
        let found = found(arguments);
        assert_eq!((found.code, &*found.stderr), (Some(0), ""), "{found:?}");
        let mut ways = found.json()["chunkings"].take();
        for way in ways.as_array_mut().unwrap() {
            for input in way["inputs"].as_array_mut().unwrap() {
                input["path"] = json!("");
            }
            way["kinds"] = json!([]);
        }
        ways
    };
    let ways = [
        "--chunking",
        "fixed:4K",
        "--chunking",
        "content:8K",
        "--quiet",
    ];
    let raw = chunkings(&[&ways[..], &[&a, &b]].concat());
    for (name, options) in [("plain", &[][..]), ("compressed", &["-c"])] {
        let images = [(&a, "a"), (&b, "b")].map(|(raw, input)| {
            let image = path(&format!("{input}-{name}.qcow2"));
            let convert = ["convert", "-f", "raw", "-O", "qcow2"];
            qemu_img(&[&convert, options, &[raw, &image]].concat());
            image
        });
        let disks = chunkings(&[&ways[..], &[&images[0], &images[1]]].concat());
        assert_eq!(disks, raw, "{name}");
    }
    let plain = path("a-plain.qcow2");
    let as_it_is = run(&["analyze", &plain, "--format", "json"]);
    assert!(
        as_it_is.stderr.contains("1 files look like qcow2 images"),
        "{as_it_is:?}"
    );

    // The backing file counts only if that is requested.
    let overlay = path("overlay.qcow2");
    qemu_img(&[
        "create", "-f", "qcow2", "-b", &plain, "-F", "qcow2", &overlay,
    ]);
    let own = found(&[&overlay]).json();
    assert_eq!(own["chunkings"][0]["zero_chunks"], 100);
    let all = found(&[&overlay, "--allow-backing"]).json();
    assert_eq!(all["chunkings"][0]["zero_chunks"], 10);
    let estimate = found(&[&overlay, "--allow-backing", "--method", "harnik"]).json();
    assert_eq!(estimate["zero_chunks"], 10);

    let cut = path("cut.qcow2");
    let bytes = fs::read(&plain).unwrap();
    fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    let refused = found(&[&cut, &a]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("is cut"), "{refused:?}");
    assert_eq!(refused.json()["chunkings"][0]["inputs"][1]["chunks"], 100);
}

#[test]
fn a_trace_is_analysed_like_the_data() {
    let (scratch, [a, b]) = inputs();
    let trace = scratch.path().join("a.trace");
    let trace = trace.to_str().unwrap();
    let ways = ["--chunking", "fixed:4K", "--chunking", "file"];
    let all = ["analyze", &a, &b, "--format", "json", "--trace", trace];
    let data = run(&[&all[..], &ways].concat());
    assert_eq!(data.code, Some(0), "{data:?}");
    let replayed = run(&["analyze", "--from-traces", trace, "--format", "json"]);
    assert_eq!(replayed.code, Some(0), "{replayed:?}");
    assert_eq!(replayed.json(), data.json());
    let estimate = [
        "--method",
        "harnik",
        "--chunking",
        "fixed:4K",
        "--format",
        "json",
    ];
    let estimate = run(&[&["analyze", "--from-traces", trace][..], &estimate].concat());
    assert_eq!(estimate.json()["chunks"], 200, "{estimate:?}");

    let hidden = format!("{trace}.hidden");
    let hide = ["analyze", &a, "--trace", &hidden, "--hide-names"];
    assert_eq!(run(&hide).code, Some(0));
    let text = String::from_utf8_lossy(&fs::read(&hidden).unwrap()).into_owned();
    assert!(!text.contains("a.raw") && text.contains("raw"));

    run(&hide).is_refusal(1, &["cannot write the trace", "File exists"]);
    run(&["analyze", "--from-traces", &a]).is_refusal(1, &["a.raw", "byte 0", "magic"]);
    let other = ["analyze", "--from-traces", trace, "--chunking", "fixed:8K"];
    run(&other).is_refusal(2, &["fixed:8192"]);
    let bytes = fs::read(trace).unwrap();
    fs::write(trace, &bytes[..bytes.len() - 1]).unwrap();
    run(&["analyze", "--from-traces", trace]).is_refusal(1, &["a.trace", "byte", "is cut"]);
}

#[test]
fn what_cannot_be_read_is_named_and_the_rest_is_counted() {
    let (scratch, [a, _]) = inputs();
    symlink("/", scratch.path().join("link")).unwrap();
    let folder = scratch.path().to_str().unwrap();
    let gone = format!("{folder}/gone");
    let found = run(&["analyze", folder, &gone, &a, "--format", "json", "--quiet"]);
    assert_eq!(found.code, Some(1), "{found:?}");
    assert!(found.stderr.contains("gone"), "{found:?}");
    assert_eq!(found.stderr.lines().count(), 1);
    let found = found.json();
    assert_eq!(found["problems"][0]["path"], json!(gone));
    assert_eq!(
        (&found["files"], &found["skipped_files"]),
        (&json!(3), &json!(1))
    );
    assert_eq!(found["chunkings"][0]["chunks"], 300);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let (_scratch, [a, _]) = inputs();
    for arguments in [
        &["analyze"][..],
        &["analyze", &a, "--chunking", "fixed:4000"],
        &["analyze", &a, "--chunking", "content:8K,4K,64K"],
        &["analyze", &a, "--memory", "lots"],
        &["analyze", &a, "--method", "guess"],
        &["analyze", &a, "--method", "harnik", "--chunking", "file"],
        &["analyze", &a, "--method", "harnik", "--error", "0"],
        &["analyze", &a, "--method", "harnik", "--confidence", "100"],
        &["analyze", &a, "--method", "harnik", "--trace", "t"],
        &["analyze", &a, "--method", "sample"],
        &["analyze", &a, "--hide-names"],
        &["analyze", &a, "--from-traces", "--trace", "t"],
        &["analyze", &a, "--from-traces", "--allow-backing"],
    ] {
        let refused = run(arguments);
        assert_eq!(refused.code, Some(2), "{arguments:?}: {refused:?}");
        assert!(refused.stdout.is_empty(), "{refused:?}");
    }
    let ways = [
        "--chunking",
        "fixed:15872",
        "--chunking",
        "fixed:16896",
        "--chunking",
        "fixed:1M",
    ];
    run(&[&["analyze", &a][..], &ways].concat()).is_refusal(2, &["common multiple"]);
}

#[test]
fn an_interrupt_ends_it_with_what_is_known() {
    let scratch = TempDir::new().unwrap();
    let path = scratch.path().join("large");
    fs::File::create(&path).unwrap().set_len(1 << 42).unwrap();
    let path = path.to_str().unwrap();
    // With content-defined chunking, holes are read like all other data: this would take hours.
    let child = onefold(&[
        "analyze",
        path,
        "--chunking",
        "content:8K",
        "--format",
        "json",
    ])
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    let found = interrupted(child);
    assert_eq!(found.code, Some(1), "{found:?}");
    assert!(found.stderr.contains("stopped"), "{found:?}");
    let found = found.json();
    assert_eq!(found["is_complete"], json!(false));
    assert!(found["chunkings"][0]["zero_bytes"].as_u64().unwrap() < 1 << 42);
}

#[test]
fn an_interrupted_estimate_is_none_and_no_distribution_is_left() {
    let scratch = TempDir::new().unwrap();
    let path = scratch.path().join("large");
    fs::File::create(&path).unwrap().set_len(1 << 42).unwrap();
    let path = path.to_str().unwrap();
    let start = |arguments: &[&str]| {
        let command = [&["analyze", path][..], arguments].concat();
        interrupted(onefold(&command).spawn().unwrap())
    };
    start(&["--method", "harnik", "--chunking", "fixed:512"])
        .is_refusal(1, &["interrupted", "there is none"]);
    let distribution = scratch.path().join("distribution");
    let found = start(&[
        "--chunking",
        "content:8K",
        "--chunking",
        "fixed:4K",
        "--distribution",
        distribution.to_str().unwrap(),
    ]);
    assert_eq!(found.code, Some(1), "{found:?}");
    assert!(found.stderr.contains("no distribution"), "{found:?}");
    let left = fs::read_dir(scratch.path()).unwrap().count();
    assert_eq!(left, 1, "only the data");
}

#[test]
fn outputs_that_are_there_are_refused_before_the_work() {
    let (scratch, [a, _]) = inputs();
    let there = scratch.path().join("there");
    fs::write(&there, "mine").unwrap();
    let there = there.to_str().unwrap();
    let page = scratch.path().join("page").to_str().unwrap().to_owned();
    for output in ["--csv", "--distribution", "--html", "--trace"] {
        // The missing input would be reported if the work had begun.
        let refused = run(&["analyze", "nosuch", &a, output, there]);
        refused.is_refusal(1, &["there"]);
    }
    run(&["analyze", &a, "--html", &page, "--csv", there]).is_refusal(1, &["there"]);
    assert!(!fs::exists(&page).unwrap());
    assert_eq!(fs::read(there).unwrap(), b"mine");
}

#[test]
fn without_anything_readable_there_are_no_figures() {
    let scratch = TempDir::new().unwrap();
    let page = scratch.path().join("page");
    let tables = scratch.path().join("tables");
    let [page, tables] = [&page, &tables].map(|path| path.to_str().unwrap());
    for method in ["exact", "harnik"] {
        run(&["analyze", "nosuch", "--method", method])
            .is_refusal(1, &["nothing could be read", "nosuch"]);
    }
    run(&["analyze", "nosuch", "--html", page, "--csv", tables])
        .is_refusal(1, &["nothing could be read"]);
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    // Reading an empty folder succeeds.
    let empty = scratch.path().to_str().unwrap();
    assert_eq!(run(&["analyze", empty]).code, Some(0));
}

#[test]
fn an_estimate_takes_no_more_memory_than_it_may() {
    let (_scratch, [a, _]) = inputs();
    let harnik = |options: &[&str]| {
        let command = [&["analyze", &a, "--method", "harnik"][..], options].concat();
        run(&command)
    };
    harnik(&["--error", "0.1"]).is_refusal(2, &["--error 0.1", "--memory 256 MiB"]);
    assert_eq!(harnik(&["--error", "0.1", "--memory", "2G"]).code, Some(0));
    harnik(&["--memory", "4M"]).is_refusal(2, &["--error 1", "--memory 4 MiB"]);
    harnik(&["--error", "0"]).is_refusal(2, &["error of 0 %", "above 0 %"]);
}

#[test]
fn names_have_no_control_characters_for_a_terminal() {
    let scratch = TempDir::new().unwrap();
    let name = scratch.path().join("a\n\x1b[2Jb");
    fs::write(&name, noise(1, 8192)).unwrap();
    let found = run(&["analyze", name.to_str().unwrap(), "nosuch\x1b[2J"]);
    let text = String::from_utf8(found.stdout).unwrap();
    assert!(text.contains("a\\n\\u{1b}[2Jb"), "{text}");
    assert!(!text.contains('\x1b') && !found.stderr.contains('\x1b'));
}

/// Interrupts the command once it handles signals, and waits for its end.
pub(crate) fn interrupted(child: Child) -> Outcome {
    let pid = rustix::process::Pid::from_child(&child);
    wait_until("it catches SIGINT", || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        u64::from_str_radix(caught.unwrap().trim(), 16).unwrap() & 0b10 != 0
    });
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    Outcome::of(child)
}
