//! Peers that connect and then send nothing or only half a request, and a daemon with few descriptors.

use crate::full::io_ok;
use crate::harness::{Outcome, PATIENCE, Scene, WAITS, wait_until};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

/// More connections than the daemon serves concurrently; each sends only these bytes.
fn half_sent(scene: &Scene, bytes: &[u8]) -> Vec<UnixStream> {
    let connect = |_| {
        let mut stream = UnixStream::connect(scene.pool().join("control.sock")).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    };
    (0..100).map(connect).collect()
}

/// Runs a command that must succeed, and kills it if it never ends.
#[track_caller]
fn answers(scene: &Scene, arguments: &[&str]) -> Outcome {
    let mut child = scene.command(arguments).spawn().unwrap();
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("{arguments:?} does not end: {:?}", Outcome::of(child));
        }
        thread::yield_now();
    }
    let outcome = Outcome::of(child);
    assert_eq!(outcome.code, Some(0), "{arguments:?}: {outcome:?}");
    outcome
}

#[test]
fn half_sent_requests_keep_no_command_out() {
    let scene = Scene::new();
    scene.ok(&["volume", "create", "vm", "--size", "1M"]);
    let _daemon = scene.daemon();
    let import = b"POST /v1/volume/import HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\
        onefold-request: {\"name\":\"half\",\"image_bytes\":4096,\"sharing\":{\"dedup\":\"offline\",\
        \"domain\":\"default\",\"verify\":false,\"rounds\":2,\"interval_seconds\":10,\
        \"hash_cache_bytes\":0,\"quota_bytes\":0,\"reservation_bytes\":0}}\r\n\r\n5\r\nabc";
    for bytes in [
        &b""[..],
        b"POST /v1/volume/li",
        b"POST /v1/volume/create HTTP/1.1\r\nHost: x\r\nContent-Length: 30\r\n\r\n{\"name\":",
        import,
    ] {
        let streams = half_sent(&scene, bytes);
        let list = answers(&scene, &["volume", "list"]);
        assert!(String::from_utf8_lossy(&list.stdout).contains("vm"));
        drop(streams);
    }
}

#[test]
fn a_command_says_what_it_waits_for() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    daemon.signal(Signal::STOP);
    let mut command = scene.command(&["volume", "list"]).spawn().unwrap();
    let mut stderr = BufReader::new(command.stderr.take().unwrap());
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        sender.send(line)
    });
    let line = lines.recv_timeout(PATIENCE);
    if line.is_err() {
        command.kill().unwrap();
    }
    let line = line.expect("it says what it waits for");
    let process = format!("{WAITS}{}", daemon.pid());
    assert!(line.starts_with(&process), "{line}");
    daemon.signal(Signal::CONT);
    assert_eq!(Outcome::of(command).code, Some(0));
}

/// Reconnects until `count` sockets that send nothing are open.
fn silent(scene: &Scene, count: usize) -> Vec<UnixStream> {
    let connect = |_| UnixStream::connect(scene.pool().join("nbd.sock")).unwrap();
    (0..count).map(connect).collect()
}

#[test]
fn silent_sockets_keep_no_guest_from_coming_back() {
    let scene = Scene::new();
    scene.ok(&["volume", "create", "vm", "--size", "1M"]);
    let daemon = scene.daemon();
    let first = silent(&scene, 300);
    io_ok(&scene, "vm", &["write -P 1 0 4k"]);
    assert!(daemon.terminate().success());
    drop(first);
    let _daemon = scene.daemon();
    let _second = silent(&scene, 300);
    io_ok(&scene, "vm", &["read -P 1 0 4k"]);
    answers(&scene, &["volume", "list"]);
}

#[test]
fn a_limit_on_open_files_that_is_too_low_is_an_error() {
    let scene = Scene::new();
    for limit in [8, 30] {
        let script = format!("ulimit -n {limit} && exec \"$@\"");
        let mut daemon = Command::new("sh")
            .args(["-c", &script, "sh", env!("CARGO_BIN_EXE_onefold"), "serve"])
            .env("ONEFOLD_POOL", scene.place())
            .env("ONEFOLD_RUN", scene.pool())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stderr = BufReader::new(daemon.stderr.take().unwrap());
        stderr.read_line(&mut line).unwrap();
        let is_refused = line.contains(&format!("(RLIMIT_NOFILE) is {limit},"));
        if !is_refused {
            daemon.kill().unwrap();
        }
        let status = daemon.wait().unwrap();
        assert!(is_refused, "{line}");
        assert_eq!(status.code(), Some(1));
    }
}

#[test]
fn a_daemon_without_descriptors_answers_commands_and_says_so_seldom() {
    let scene = Scene::new();
    scene.ok(&["volume", "create", "vm", "--size", "1M"]);
    let mut daemon = scene.daemon();
    // The current number of descriptors plus two.
    let descriptors = format!("/proc/{}/fd", daemon.pid());
    let open = fs::read_dir(&descriptors).unwrap().count() as u64 + 2;
    let limit = Rlimit {
        current: Some(open),
        maximum: Some(open),
    };
    let pid = Pid::from_raw(i32::try_from(daemon.pid()).unwrap());
    prlimit(pid, Resource::Nofile, limit).unwrap();
    let sockets = silent(&scene, 100);
    for _ in 0..5 {
        answers(&scene, &["volume", "list"]);
    }
    daemon.wait_for_line("cannot accept");
    drop(sockets);
    wait_until("guests are let in again", || {
        let stat = answers(&scene, &["--format", "json", "volume", "stat", "vm"]).json();
        let uri = stat["nbd_uri"].as_str().unwrap().to_owned();
        let read = Command::new("qemu-io")
            .args(["-f", "raw", "-c", "read 0 4k", &uri])
            .output();
        read.unwrap().status.success()
    });
    let started = daemon.started();
    let lines = daemon.end_and_lines();
    let told = lines.iter().filter(|line| line.contains("cannot accept"));
    let seconds = started.elapsed().as_secs() as usize;
    assert!(told.count() <= 2 * (seconds + 2), "{lines:?}");
}
