//! `serve --metrics`: figures for monitoring.

use super::full::{fill, scene, wait_for_waiting, writers};
use super::harness::{Daemon, Scene, is_in_ceph, run, wait_until};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

/// A daemon whose metrics are served at the address.
fn monitored(scene: &Scene) -> (Daemon, String) {
    let mut daemon = scene.starting_daemon(&["--metrics", "127.0.0.1:0"]);
    let line = daemon.wait_for_line("metrics on");
    daemon.wait_for_line("serving");
    let address = line.split("http://").nth(1).unwrap();
    let address = address.strip_suffix("/metrics").unwrap().to_owned();
    (daemon, address)
}

/// The status and body of a response.
fn ask(address: &str, method: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nHost: onefold\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

/// The value of each sample. The label `pool`, which every sample has, is removed.
fn samples(address: &str) -> BTreeMap<String, f64> {
    let (status, body) = ask(address, "GET", "/metrics");
    assert_eq!(status, 200, "{body}");
    let lines = body.lines().filter(|line| !line.starts_with('#'));
    let samples = lines.map(|line| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        let (start, label) = name.split_once("pool=\"").expect(line);
        let (_, end) = label.split_once('"').unwrap();
        let name = format!("{start}{}", end.strip_prefix(',').unwrap_or(end));
        (name.replace("{}", ""), value.parse().unwrap())
    });
    samples.collect()
}

#[test]
fn every_figure_is_there_and_true() {
    let scene = Scene::new();
    scene.ok(&["volume", "create", "vm", "--size", "8M"]);
    let (_daemon, address) = monitored(&scene);
    let uri = scene.json(&["volume", "stat", "vm"])["nbd_uri"]
        .as_str()
        .unwrap()
        .to_owned();
    let done = Command::new("qemu-io")
        .args([
            "-f",
            "raw",
            "-c",
            "write -P 1 0 1M",
            "-c",
            "read 0 2M",
            "-c",
            "read 0 4k",
        ])
        .args(["-c", "discard 4M 64k", &uri])
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    scene.ok(&["volume", "stat", "vm", "--exact"]);
    scene.ok(&["pool", "scrub"]);
    scene.ok(&["pool", "export-metadata", &scene.path("export")]);
    wait_until("the client is gone", || {
        samples(&address)["onefold_volume_clients{volume=\"vm\"}"] == 0.0
    });
    let found = samples(&address);
    let is = |name: &str, value: f64| assert_eq!(found.get(name), Some(&value), "{name}");
    is("onefold_pool_size_bytes", f64::from(1 << 30) * 4.0);
    let build = found
        .keys()
        .find(|key| key.starts_with("onefold_build_info{"));
    let labels = ["version=\"", "commit=\"", "pool_format=\"1.2\""];
    let repository = "repository_format=\"2.0\"";
    let has = |label: &&str| build.is_some_and(|build| build.contains(*label));
    assert!(labels.iter().chain([&repository]).all(has), "{build:?}");
    is("onefold_pool_logical_bytes", f64::from(1 << 20));
    is("onefold_pool_space_level{level=\"ok\"}", 1.0);
    is("onefold_pool_waiting_requests", 0.0);
    is(
        "onefold_volume_size_bytes{volume=\"vm\"}",
        f64::from(8 << 20),
    );
    is(
        "onefold_volume_mapped_bytes{volume=\"vm\"}",
        f64::from(1 << 20),
    );
    is(
        "onefold_volume_exclusive_bytes{volume=\"vm\"}",
        f64::from(1 << 20),
    );
    let requests = |op: &str, outcome: &str, count: f64| {
        is(
            &format!(
                "onefold_nbd_requests_total{{volume=\"vm\",op=\"{op}\",outcome=\"{outcome}\"}}"
            ),
            count,
        );
    };
    requests("write", "ok", 1.0);
    requests("read", "ok", 2.0);
    requests("trim", "ok", 1.0);
    requests("write", "error", 0.0);
    is(
        "onefold_nbd_bytes_total{volume=\"vm\",op=\"write\"}",
        f64::from(1 << 20),
    );
    is(
        "onefold_nbd_bytes_total{volume=\"vm\",op=\"read\"}",
        f64::from((2 << 20) + 4096),
    );
    is(
        "onefold_nbd_request_duration_seconds_count{op=\"read\"}",
        2.0,
    );
    is(
        "onefold_nbd_request_duration_seconds_bucket{op=\"read\",le=\"+Inf\"}",
        2.0,
    );
    is("onefold_scrub_bad_blocks", 0.0);
    let names: BTreeSet<&str> = found
        .keys()
        .map(|name| name.split('{').next().unwrap())
        .map(|name| name.strip_prefix("onefold_").unwrap())
        .collect();
    let mut agreed: BTreeSet<&str> = include_str!("metrics.txt").lines().collect();
    if is_in_ceph() {
        // A pool in a cluster has no figure for the host's free space.
        agreed.remove("pool_host_free_bytes");
    }
    assert_eq!(
        names, agreed,
        "names are a contract: dashboards and alerts use them"
    );
}

/// Refused hits are counted by reason. The label is not `job`, which Prometheus uses itself.
#[test]
fn what_is_found_in_line_is_counted() {
    let scene = Scene::new();
    scene.ok(&[
        "volume", "create", "vm", "--size", "8M", "--dedup", "inline",
    ]);
    let (_daemon, address) = monitored(&scene);
    let uri = scene.json(&["volume", "stat", "vm"])["nbd_uri"]
        .as_str()
        .unwrap()
        .to_owned();
    let write = |what: &str| {
        let mut io = Command::new("qemu-io");
        let done = io.args(["-f", "raw", "-c", what, &uri]).output();
        assert!(done.unwrap().status.success());
    };
    write("write -P 1 0 4k");
    write("write -P 2 64k 4k");
    scene.ok(&["pool", "dedup"]);
    write("write -P 1 128k 4k");
    let found = samples(&address);
    let inline = |outcome: &str| {
        let labels = format!("volume=\"vm\",outcome=\"{outcome}\"");
        found[&format!("onefold_inline_blocks_total{{{labels}}}")]
    };
    assert_eq!(
        (inline("hit"), inline("miss"), inline("zeros")),
        (1.0, 2.0, 0.0)
    );
    let full = "onefold_inline_refused_blocks_total{volume=\"vm\",reason=\"claims-full\"}";
    assert_eq!(found[full], 0.0);
    assert!(found.contains_key("onefold_job_state{task=\"finder\",state=\"idle\"}"));
    assert!(found.keys().all(|name| !name.contains("job=")));
}

#[test]
fn a_daemon_whose_clients_wait_for_space_is_not_ready() {
    let scene = scene();
    let (_daemon, address) = monitored(&scene);
    assert_eq!(
        ask(&address, "GET", "/healthz"),
        (200, "alive\n".to_owned())
    );
    assert_eq!(ask(&address, "GET", "/readyz"), (200, "ready\n".to_owned()));
    fill(&scene);
    let writers = writers(&scene);
    wait_for_waiting(&scene);
    let (status, body) = ask(&address, "GET", "/readyz");
    assert!(
        status == 503 && body.contains("wait for space"),
        "{status} {body}"
    );
    assert_eq!(ask(&address, "GET", "/healthz").0, 200);
    let found = samples(&address);
    assert!(found["onefold_pool_waiting_requests"] > 0.0);
    assert_eq!(found["onefold_pool_ready"], 0.0);
    let waiting = "onefold_pool_problem{reason=\"waiting-for-space\"}";
    assert_eq!(found[waiting], 1.0);
    let stat = scene.json(&["pool", "stat"]);
    assert_eq!(stat["state"], "not-ready");
    assert_eq!(stat["problems"][0]["reason"], "waiting-for-space");
    assert_eq!(stat["problems"][0]["message"], body.trim_end());
    let text = String::from_utf8(scene.ok(&["pool", "stat"]).stdout).unwrap();
    let first = text.lines().next().unwrap();
    assert_eq!(
        first.split_whitespace().collect::<Vec<_>>(),
        ["state", "not-ready"]
    );
    assert!(text.contains(body.trim_end()), "{text}");
    scene.ok(&["volume", "delete", "b", "--yes"]);
    for writer in writers {
        assert!(writer.wait_with_output().unwrap().status.success());
    }
    assert_eq!(ask(&address, "GET", "/readyz").0, 200);
}

#[test]
fn metrics_only_answer_and_only_on_loopback() {
    let scene = Scene::new();
    let (_daemon, address) = monitored(&scene);
    for method in ["POST", "PUT", "DELETE"] {
        assert_eq!(ask(&address, method, "/metrics").0, 405, "{method}");
    }
    assert_eq!(ask(&address, "GET", "/v1/pool/stat").0, 404);
    let other = Scene::new();
    other
        .run(&["serve", "--metrics", "0.0.0.0:0"])
        .is_refusal(2, &["--insecure-listen"]);
    run(&["serve", "--metrics", "nowhere"]).is_refusal(2, &["--metrics"]);
}
