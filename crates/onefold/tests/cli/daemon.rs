//! The daemon: its sockets, its signals, and the commands that use it.

use crate::harness::{Daemon, Outcome, PATIENCE, Scene, noise, run, wait_until};
use onefold_nbd::client::Client;
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Every verb in turn, with valid and invalid arguments, and its output.
fn a_days_work(scene: &Scene) -> Vec<(Option<i32>, Value, String)> {
    let image = scene.file("image", &noise(1, 3_000_001));
    let script: [&[&str]; 29] = [
        &["volume", "create", "a", "--size", "64M"],
        &["volume", "create", "a", "--size", "64M"],
        &["volume", "create", "b", "--size", "4097"],
        &["volume", "import", "c", &image],
        &["volume", "import", "c", &image],
        &["volume", "import", "e", &image, "--dedup", "off"],
        &["pool", "dedup"],
        &["pool", "dedup", "--volume", "e"],
        &["pool", "dedup", "--volume", "nobody"],
        &["volume", "set", "e", "--cold-passes", "3", "--verify", "on"],
        &["volume", "set", "e"],
        &["volume", "set", "nobody", "--dedup", "off"],
        &["volume", "delete", "e", "--yes"],
        &["volume", "stat", "c"],
        &["volume", "stat", "nobody"],
        &["volume", "resize", "c", "--size", "1M"],
        &["volume", "resize", "c", "--size", "1M", "--yes"],
        &["volume", "resize", "c", "--size", "100M"],
        &["volume", "rename", "c", "d"],
        &["volume", "rename", "c", "d"],
        &["volume", "list"],
        &["volume", "delete", "a"],
        &["volume", "delete", "a", "--yes"],
        &["volume", "delete", "a", "--yes"],
        &["volume", "export", "nobody", "/no/where"],
        &["pool", "set"],
        &["pool", "set", "--when-full", "fail"],
        &["pool", "stat"],
        &["pool", "check"],
    ];
    let mut results = Vec::new();
    for arguments in script {
        if *arguments == ["pool", "stat"] {
            // A daemon releases deleted blocks in the background.
            wait_until("nothing is being deleted", || {
                let stat = scene.json(&["pool", "stat"]);
                stat["being_deleted"] == serde_json::json!([])
            });
        }
        let outcome = scene.run(&[&["--format", "json"], arguments].concat());
        let mut document = if outcome.stdout.is_empty() {
            Value::Null
        } else {
            outcome.json()
        };
        forget_what_differs(&mut document);
        results.push((outcome.code, document, outcome.stderr));
    }
    assert!(scene.content("d")[..1 << 20] == noise(1, 1 << 20));
    results
}

/// Removes values that differ between pools, or that exist only while a daemon runs.
fn forget_what_differs(document: &mut Value) {
    match document {
        Value::Object(fields) => {
            for name in [
                "pool_id",
                "created_unix_seconds",
                "nbd_uri",
                "metadata_bytes_on_disk",
                "pool_bytes_on_disk",
                "host_free_bytes",
                "pages_read",
                // Direct commands close the pool each time, which frees the released blocks and returns them
                // to the host.
                "free_blocks",
                "available_blocks",
                "free_bytes_on_disk",
                "spare_blocks",
                "hole_blocks",
                "unsettled_blocks",
                "pending_free_blocks",
                // A daemon releases the references; direct commands leave them in the queue.
                "pending_release_blocks",
                "unique_blocks",
                "shared_blocks",
                "physical_blocks",
                "dedup_ratio",
                "saved_bytes",
                "index_bytes_on_disk",
                "released",
                "freed",
                "seconds",
                "bytes_per_second",
            ] {
                fields.remove(name);
            }
            fields.values_mut().for_each(forget_what_differs);
        }
        Value::Array(values) => values.iter_mut().for_each(forget_what_differs),
        _ => {}
    }
}

#[test]
fn commands_do_the_same_with_and_without_a_daemon() {
    let direct = a_days_work(&Scene::new());
    let scene = Scene::new();
    let _daemon = scene.daemon();
    let through_daemon = a_days_work(&scene);
    for (direct, through_daemon) in direct.iter().zip(&through_daemon) {
        assert_eq!(direct, through_daemon);
    }
    assert_eq!(direct.len(), through_daemon.len());
}

#[test]
fn sockets_have_the_permissions_that_were_asked_for() {
    let mode = |path: &str, scene: &Scene| {
        let metadata = fs::metadata(scene.pool().join(path)).unwrap();
        assert!(metadata.file_type().is_socket());
        metadata.permissions().mode() & 0o7777
    };
    let scene = Scene::new();
    let daemon = scene.daemon();
    assert_eq!(mode("control.sock", &scene), 0o600);
    assert_eq!(mode("nbd.sock", &scene), 0o660);
    assert!(!fs::exists(scene.pool().join("control.new")).unwrap());
    daemon.terminate();
    let _daemon = scene.daemon_with(&["--socket-mode", "0600"]);
    assert_eq!(mode("nbd.sock", &scene), 0o600);
    for mode in ["9", "7777", "rw"] {
        run(&["serve", "--pool", "/x", "--socket-mode", mode]).is_refusal(2, &["octal"]);
    }
}

#[test]
fn only_loopback_is_listened_on_unless_it_is_said() {
    let scene = Scene::new();
    scene.run(&["serve", "--nbd", "0.0.0.0:0"]).is_refusal(
        2,
        &["machines can reach 0.0.0.0:0, and", "--insecure-listen"],
    );
    scene
        .run(&["serve", "--nbd", "nonsense"])
        .is_refusal(2, &["unix:PATH or HOST:PORT"]);
    scene
        .run(&["serve", "--memory", "1M"])
        .is_refusal(2, &["--memory"]);
    scene
        .run(&["serve", "--socket-group", "no-such-group"])
        .is_refusal(1, &["no-such-group"]);
    let outcome = scene.ok(&["volume", "list"]);
    assert_eq!(outcome.stderr, "", "the pool was closed after each refusal");
}

#[test]
fn a_killed_daemon_leaves_a_pool_that_commands_can_use() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    let image = scene.file("image", &noise(1, 2 << 20));
    scene.ok(&["volume", "import", "vm", &image]);
    daemon.kill();
    assert!(
        fs::exists(scene.pool().join("control.sock")).unwrap(),
        "the socket is stale"
    );
    assert!(scene.content("vm") == noise(1, 2 << 20));
    assert_eq!(scene.json(&["pool", "check"])["findings"], 0);

    // The next daemon replaces the stale sockets, and commands go through it again.
    let daemon = scene.daemon();
    assert!(scene.json(&["pool", "stat"])["volumes"][0]["nbd_uri"].is_string());
    daemon.terminate();
}

#[test]
fn commands_wait_for_a_daemon_that_is_starting() {
    let scene = Scene::new();
    // The socket of a killed daemon must not be mistaken for the socket of the next one.
    scene.daemon().kill();
    let daemon = scene.starting_daemon(&[]);
    // Without a pause: the daemon is stopped as soon as it listens, before it has opened the pool.
    let started = Instant::now();
    while UnixStream::connect(scene.pool().join("nbd.sock")).is_err() {
        assert!(started.elapsed() < PATIENCE, "the daemon does not listen");
    }
    daemon.signal(Signal::STOP);
    let mut command = scene.command(&["pool", "stat"]).spawn().unwrap();
    thread::sleep(Duration::from_millis(300));
    assert!(command.try_wait().unwrap().is_none(), "it waits");
    daemon.signal(Signal::CONT);
    assert_eq!(Outcome::of(command).code, Some(0));
}

#[test]
fn a_pool_has_one_daemon() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    let holder = format!("process {}", daemon.pid());
    scene.run(&["serve"]).is_refusal(1, &["in use", &holder]);
    scene.ok(&["volume", "list"]);
}

#[test]
fn the_lock_and_not_the_socket_says_whether_a_daemon_runs() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    let holder = format!("process {}", daemon.pid());
    let socket = scene.pool().join("control.sock");
    fs::remove_file(&socket).unwrap();
    scene
        .run(&["volume", "list"])
        .is_refusal(1, &["in use", &holder, "control.sock"]);
    // A socket without a daemon does not block commands either.
    drop(daemon);
    let _stale = UnixListener::bind(&socket).unwrap();
    scene.ok(&["volume", "list"]);
}

#[test]
fn a_command_whose_daemon_does_not_answer_fails() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    // The daemon holds the lock, but the process that answers closes the connection.
    let socket = scene.pool().join("control.sock");
    fs::remove_file(&socket).unwrap();
    let impostor = UnixListener::bind(&socket).unwrap();
    let command = scene
        .command(&["volume", "create", "vm", "--size", "1M"])
        .spawn()
        .unwrap();
    for _ in 0..2 {
        let (mut connection, _) = impostor.accept().unwrap();
        let _ = connection.read(&mut [0; 1024]);
    }
    Outcome::of(command).is_refusal(1, &["daemon"]);
    drop(daemon);
    assert_eq!(scene.volumes(), [""; 0]);
}

#[test]
fn a_stopped_daemon_leaves_nothing_to_replay() {
    for signal in [Signal::TERM, Signal::INT] {
        let scene = Scene::new();
        let mut daemon = scene.daemon();
        let image = scene.file("image", &noise(1, 2 << 20));
        scene.ok(&["volume", "import", "vm", &image]);
        daemon.signal(signal);
        daemon.wait_for_line("pool closed");
        assert_eq!(daemon.child.wait().unwrap().code(), Some(0));
        assert!(!fs::exists(scene.pool().join("control.sock")).unwrap());
        let outcome = scene.ok(&["volume", "list"]);
        assert_eq!(outcome.stderr, "", "a clean pool opens without remarks");
        assert!(scene.content("vm") == noise(1, 2 << 20));
    }
}

pub(crate) fn attach(scene: &Scene, volume: &str) -> Client {
    let socket = scene.pool().join("nbd.sock");
    let address = format!("nbd+unix:///{volume}?socket={}", socket.display());
    Client::connect(&address.parse().unwrap()).unwrap()
}

#[test]
fn a_client_that_names_no_export_gets_the_default_one() {
    let scene = Scene::new();
    scene.ok(&["volume", "create", "only", "--size", "1M"]);
    scene.ok(&["snapshot", "create", "only@s"]);
    let socket = scene.pool().join("nbd.sock");
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let info = || {
        let mut info = Command::new("qemu-img");
        info.args(["info", &uri]).output().unwrap()
    };
    let daemon = scene.daemon();
    let found = info();
    assert!(found.status.success(), "{found:?}");
    assert_eq!(attach(&scene, "").bytes(), 1 << 20);
    scene.ok(&["volume", "create", "second", "--size", "2M"]);
    let refused = info();
    assert!(!refused.status.success(), "{refused:?}");
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("no default export"), "{said}");
    daemon.terminate();

    let mut daemon = scene.starting_daemon(&["--default-export", "second"]);
    daemon.wait_for_line("serving");
    assert_eq!(attach(&scene, "").bytes(), 2 << 20);
    let client = attach(&scene, "");
    // The client is listed under the volume's name.
    scene
        .run(&["volume", "delete", "second", "--yes"])
        .is_refusal(1, &["second", "attached to"]);
    drop(client);
    daemon.terminate();

    let mut daemon = scene.starting_daemon(&["--default-export", "third"]);
    daemon.wait_for_lines(&["'third' is not a volume yet", "serving"]);
    scene
        .run(&["serve", "--default-export", "a b"])
        .is_refusal(2, &["\"a b\""]);
}

/// Whether the server has closed the connection without an answer.
fn is_disconnected(mut client: Client) -> bool {
    let error = client.read(&mut [0; 512], 0).unwrap_err();
    let hung_up = [
        ErrorKind::UnexpectedEof,
        ErrorKind::BrokenPipe,
        ErrorKind::ConnectionReset,
    ];
    hung_up.contains(&error.kind())
}

#[test]
fn an_attached_volume_is_protected() {
    let scene = Scene::new();
    let _daemon = scene.daemon();
    scene.ok(&["volume", "create", "vm", "--size", "1M"]);
    scene.ok(&["volume", "create", "idle", "--size", "1M"]);
    let me = format!("process {}", std::process::id());
    let verbs: [&[&str]; 3] = [
        &["volume", "rename", "vm", "new"],
        &["volume", "resize", "new", "--size", "512K", "--yes"],
        &["volume", "delete", "new", "--yes"],
    ];
    for arguments in verbs {
        let client = attach(&scene, arguments[2]);
        let stat = scene.json(&["volume", "stat", arguments[2]]);
        assert_eq!(stat["clients"].as_array().unwrap().len(), 1, "{stat}");
        scene
            .run(arguments)
            .is_refusal(1, &["attached", &me, "--force"]);
        scene.ok(&["volume", "resize", "idle", "--size", "2M"]);
        scene.ok(&[arguments, &["--force"]].concat());
        assert!(is_disconnected(client), "{arguments:?}");
    }
    assert_eq!(scene.volumes(), ["idle"]);
}

#[test]
fn a_volume_grows_while_clients_are_attached() {
    let scene = Scene::new();
    let _daemon = scene.daemon();
    scene.ok(&["volume", "create", "vm", "--size", "1M"]);
    let mut before = attach(&scene, "vm");
    assert_eq!(before.bytes(), 1 << 20);
    let grown = scene.json(&["volume", "resize", "vm", "--size", "2M"]);
    assert_eq!(grown["done"], true);
    let said = grown["plan"].to_string();
    assert!(said.contains(&std::process::id().to_string()), "{said}");
    assert_eq!(attach(&scene, "vm").bytes(), 2 << 20);

    // A client that was attached before is served as before, up to the old end.
    for (offset, is_fine) in [((1 << 20) - 4096_u64, true), (1 << 20, false)] {
        match before.read(&mut [0; 4096], offset) {
            Ok(()) => assert!(is_fine, "{offset}"),
            Err(error) => assert!(!is_fine && error.raw_os_error().is_some(), "{error}"),
        }
    }
}

#[test]
fn attached_volumes_and_snapshots_are_neither_rolled_back_nor_deleted() {
    let scene = Scene::new();
    let _daemon = scene.daemon();
    scene.ok(&["volume", "create", "vm", "--size", "1M"]);
    scene.ok(&["snapshot", "create", "vm@s"]);
    let me = format!("process {}", std::process::id());
    for (attached, arguments) in [
        ("vm", &["snapshot", "rollback", "vm@s", "--yes"][..]),
        ("vm@s", &["snapshot", "delete", "vm@s", "--yes"]),
    ] {
        let client = attach(&scene, attached);
        scene
            .run(arguments)
            .is_refusal(1, &["attached", &me, "--force"]);
        // A clone is another volume.
        let clone = format!("clone-{}", scene.volumes().len());
        scene.ok(&["volume", "clone", attached, &clone]);
        scene.ok(&[arguments, &["--force"]].concat());
        assert!(is_disconnected(client), "{arguments:?}");
    }
    // Attach as a backup does.
    scene.ok(&["snapshot", "create", "vm@copied"]);
    let client = attach(&scene, "copy:vm@copied");
    let delete = ["snapshot", "delete", "vm@copied", "--yes"];
    scene
        .run(&delete)
        .is_refusal(1, &["attached", &me, "--force"]);
    scene.ok(&[&delete[..], &["--force"]].concat());
    assert!(is_disconnected(client));
    scene.ok(&["snapshot", "create", "vm@t"]);
    let client = attach(&scene, "vm@t");
    let delete = ["volume", "delete", "vm", "--snapshots", "--yes"];
    scene.run(&delete).is_refusal(1, &["vm@t", "attached", &me]);
    assert_eq!(scene.volumes(), ["clone-1", "clone-2", "vm"]);
    drop(client);
}

#[test]
fn the_control_socket_survives_nonsense() {
    let scene = Scene::new();
    let _daemon: Daemon = scene.daemon();
    for request in [
        &b"\0\x01\x02garbage\r\n\r\n"[..],
        b"GET /v1/pool/stat HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"POST /v9/other HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        b"POST /v1/volume/create HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
          Content-Length: 3\r\n\r\n{}}",
        b"POST /v1/volume/import HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
          Content-Length: 0\r\n\r\n",
    ] {
        let mut stream = UnixStream::connect(scene.pool().join("control.sock")).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 4"), "{request:?}: {answer}");
    }
    // Announce a frame of an import and disconnect.
    let mut stream = UnixStream::connect(scene.pool().join("control.sock")).unwrap();
    let head = b"POST /v1/volume/import HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\
        onefold-request: {\"name\":\"vm\",\"image_bytes\":4096}\r\n\r\n\
        5\r\nabcde\r\n";
    stream.write_all(head).unwrap();
    drop(stream);
    assert_eq!(scene.volumes(), [""; 0]);
}

#[test]
fn the_log_has_what_was_asked_for() {
    let scene = Scene::new();
    let socket = scene.pool().join("nbd.sock");
    let lines = |asked: &str| {
        let mut command = scene.command(&["serve"]);
        let daemon = Daemon::start(command.env("RUST_LOG", asked));
        let greets = |mut guest: UnixStream| guest.read_exact(&mut [0; 18]).is_ok();
        wait_until("it serves", || {
            UnixStream::connect(&socket).is_ok_and(greets)
        });
        daemon.end_and_lines()
    };
    let usual = lines("");
    assert!(usual[0].contains(" INFO "), "{usual:?}");
    assert_eq!(lines("info,onefold=warn"), [""; 0]);
    let misread = lines("onefold=loud");
    let warning = &misread[0];
    assert!(
        warning.contains("RUST_LOG is ignored: \"onefold=loud\""),
        "{warning}"
    );
    assert!(misread[1].contains(" INFO "), "{misread:?}");
}

#[test]
fn the_log_says_who_attaches_and_has_one_format() {
    let scene = Scene::new();
    scene.ok(&["volume", "create", "vm", "--size", "1M"]);
    let mut daemon = scene.daemon();
    let stat = scene.json(&["volume", "stat", "vm"]);
    let uri = stat["nbd_uri"].as_str().unwrap();
    let read = Command::new("qemu-io")
        .args(["-f", "raw", "-c", "read 0 4k", uri])
        .output();
    assert!(read.unwrap().status.success());
    daemon.wait_for_line("attached to export \"vm\"");
    daemon.wait_for_line("detached from export \"vm\"");
    daemon.signal(Signal::TERM);
    daemon.wait_for_line("SIGTERM: finishing");
    daemon.wait_for_line("pool closed");
    for line in daemon.end_and_lines() {
        let mut words = line.split_whitespace();
        let time = words.next().unwrap();
        assert!(time.starts_with("20") && time.ends_with('Z'), "{line}");
        let level = words.next();
        assert!(matches!(level, Some("INFO" | "WARN" | "ERROR")), "{line}");
    }
}

/// Starts the daemon as a service manager does, with this socket.
fn activated(scene: &Scene, socket: OwnedFd) -> Command {
    let serve = scene.command(&["serve"]);
    let mut shell = Command::new("sh");
    let script = r#"exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@""#;
    shell.args(["-c", script, "sh"]).arg(serve.get_program());
    shell.args(serve.get_args()).stdin(socket);
    for (name, value) in serve.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
}

#[test]
fn a_socket_of_a_service_manager_is_served_if_it_listens() {
    let scene = Scene::new();
    scene.ok(&["volume", "create", "a", "--size", "1M"]);
    let path = scene.path("activated");
    let listener = UnixListener::bind(&path).unwrap();
    let mut daemon = Daemon::start(activated(&scene, listener.into()).stderr(Stdio::piped()));
    daemon.wait_for_line("serving");
    let address = format!("nbd+unix:///a?socket={path}");
    Client::connect(&address.parse().unwrap()).unwrap();
    assert!(daemon.terminate().success());

    let (connected, _client) = UnixStream::pair().unwrap();
    let mut started = activated(&scene, connected.into());
    let started = started.stdout(Stdio::piped()).stderr(Stdio::piped());
    let refused = Outcome::of(started.spawn().unwrap());
    refused.is_refusal(1, &["descriptor 3", "Accept=no"]);
}

#[test]
fn a_field_that_a_request_has_not_is_refused_by_name() {
    let scene = Scene::new();
    let _daemon = scene.daemon();
    let ask = |path: &str, body: &str| {
        let mut stream = UnixStream::connect(scene.pool().join("control.sock")).unwrap();
        let len = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n"
        );
        stream.write_all((head + body).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let refused = ask(
        "/v1/volume/create",
        r#"{"name":"vm","size_bytes":1048576,"dedpu":"off"}"#,
    );
    assert!(refused.starts_with("HTTP/1.1 400 "), "{refused}");
    assert!(refused.contains("no field 'dedpu'"), "{refused}");
    assert_eq!(scene.volumes(), [""; 0]);
    let made = ask(
        "/v1/volume/create",
        r#"{"name":"vm","size_bytes":1048576,"dedup":"off"}"#,
    );
    assert!(made.starts_with("HTTP/1.1 200 "), "{made}");
    let unknown = ask("/v1/snapshot/delete", r#"{"name":"vm@none","yes":true}"#);
    assert!(unknown.starts_with("HTTP/1.1 404 "), "{unknown}");
    assert!(unknown.contains("\"kind\":\"not-found\""), "{unknown}");
    scene.ok(&["volume", "create", "other", "--size", "1M"]);
    let taken = ask("/v1/volume/rename", r#"{"name":"vm","new_name":"other"}"#);
    assert!(taken.contains("\"kind\":\"exists\""), "{taken}");
}

#[test]
fn a_daemon_of_another_version_is_named() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    let socket = scene.pool().join("control.sock");
    fs::remove_file(&socket).unwrap();
    let other = UnixListener::bind(&socket).unwrap();
    let command = scene.command(&["job", "pause"]).spawn().unwrap();
    // The first connection only checks that a server listens.
    drop(other.accept().unwrap());
    let (mut connection, _) = other.accept().unwrap();
    let _ = connection.read(&mut [0; 4096]);
    let error = r#"{"error":{"kind":"usage","message":"cannot understand the request: missing field `jobs`"}}"#;
    let len = error.len() + 1;
    let answer = format!("HTTP/1.1 400 Bad Request\r\nContent-Length: {len}\r\n\r\n{error}\n");
    connection.write_all(answer.as_bytes()).unwrap();
    Outcome::of(command).is_refusal(
        2,
        &["missing field `jobs`", "another version", "restart it"],
    );
    drop(daemon);
}
