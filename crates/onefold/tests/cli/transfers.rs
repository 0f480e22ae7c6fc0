//! Images through pipes, and interrupted transfers.

use crate::analyze::interrupted;
use crate::harness::{Daemon, Loop, Outcome, Scene, noise, wait_until};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

/// Runs an import that reads `bytes` from a pipe.
fn import_through_pipe(scene: &Scene, bytes: &[u8], options: &[&str]) -> Outcome {
    let arguments = [&["volume", "import", "vm", "-"], options].concat();
    let mut child = scene
        .command(&arguments)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let bytes = bytes.to_owned();
    // A command that refuses its input closes the pipe, which is not an error here.
    let writer = thread::spawn(move || drop(pipe.write_all(&bytes)));
    let outcome = Outcome::of(child);
    writer.join().unwrap();
    outcome
}

#[test]
fn a_pipe_can_be_imported() {
    for through_daemon in [false, true] {
        let scene = Scene::new();
        let _daemon: Option<Daemon> = through_daemon.then(|| scene.daemon());
        let bytes = noise(1, 5_000_000);
        let outcome = import_through_pipe(&scene, &bytes, &[]);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        assert!(scene.content("vm")[..bytes.len()] == bytes);
        scene.ok(&["volume", "delete", "vm", "--yes"]);

        let outcome = import_through_pipe(&scene, &bytes, &["--size", "5000000"]);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        assert!(scene.content("vm")[..bytes.len()] == bytes);
    }
}

#[test]
fn a_pipe_must_keep_the_promised_size() {
    for through_daemon in [false, true] {
        let scene = Scene::new();
        let _daemon: Option<Daemon> = through_daemon.then(|| scene.daemon());
        let bytes = noise(1, 5_000_000);
        for (size, word) in [("4999999", "continues"), ("5000001", "ended before")] {
            import_through_pipe(&scene, &bytes, &["--size", size]).is_refusal(1, &[word]);
            assert_eq!(scene.volumes(), [""; 0]);
        }
        let qcow2 = import_through_pipe(&scene, &bytes, &["--image-format", "qcow2"]);
        qcow2.is_refusal(2, &["must be a file"]);
    }
}

#[test]
fn a_file_given_as_standard_input_is_a_file() {
    let scene = Scene::new();
    let image = scene.file("image", &noise(1, 1 << 20));
    let mut command = scene.command(&["volume", "import", "vm", "-"]);
    command.stdin(std::fs::File::open(image).unwrap());
    let outcome = Outcome::of(command.spawn().unwrap());
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    assert!(scene.content("vm") == noise(1, 1 << 20));
}

/// Waits until an import has stored some blocks.
fn wait_for_stored_blocks(scene: &Scene) {
    wait_until("the import stores blocks", || {
        scene.json(&["pool", "stat"])["free_blocks"] != scene.json(&["pool", "stat"])["pool_blocks"]
    });
}

#[test]
fn a_killed_import_leaves_nothing() {
    let scene = Scene::new();
    let (mut import, pipe) = scene.import_from_open_pipe("vm", &noise(1, 8 << 20));
    import.kill().unwrap();
    import.wait().unwrap();
    drop(pipe);
    assert_eq!(scene.volumes(), [""; 0]);
    assert_eq!(scene.json(&["pool", "check"])["findings"], 0);
    scene.ok(&["pool", "dedup"]);
    assert_eq!(scene.json(&["pool", "stat"])["physical_blocks"], 0);
}

#[test]
fn a_killed_import_through_a_daemon_leaves_nothing() {
    let scene = Scene::new();
    let _daemon = scene.daemon();
    let (mut import, pipe) = scene.import_from_open_pipe("vm", &noise(1, 8 << 20));
    wait_for_stored_blocks(&scene);
    assert_eq!(
        scene.volumes(),
        [""; 0],
        "a volume appears when it is complete"
    );
    import.kill().unwrap();
    import.wait().unwrap();
    drop(pipe);
    // The name is free again as soon as the daemon notices the interruption.
    wait_until("the name is free", || {
        scene.run(&["volume", "create", "vm", "--size", "1M"]).code == Some(0)
    });
    assert_eq!(scene.json(&["volume", "stat", "vm"])["logical_blocks"], 0);
    assert_eq!(scene.json(&["pool", "check"])["findings"], 0);
}

#[test]
fn an_import_whose_daemon_dies_fails_and_leaves_nothing() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    let (import, mut pipe) = scene.import_from_open_pipe("vm", &noise(1, 8 << 20));
    wait_for_stored_blocks(&scene);
    daemon.kill();
    // The command may notice only when it sends more; if it noticed before, the pipe is closed.
    let _ = pipe.write_all(&noise(2, 8 << 20));
    drop(pipe);
    Outcome::of(import).is_refusal(1, &["daemon"]);
    assert_eq!(scene.volumes(), [""; 0]);
    assert_eq!(scene.json(&["pool", "check"])["findings"], 0);
}

#[test]
fn an_import_that_is_refused_says_why_while_it_still_sends() {
    let scene = Scene::new();
    let _daemon = scene.daemon();
    scene.ok(&["volume", "create", "vm", "--size", "1M"]);
    let outcome = import_through_pipe(&scene, &noise(1, 64 << 20), &["--size", "64M"]);
    outcome.is_refusal(1, &["exists"]);
}

#[test]
fn an_export_whose_daemon_dies_leaves_no_file() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    let image = scene.file("image", &noise(1, 64 << 20));
    scene.ok(&["volume", "import", "vm", &image]);
    // Into a pipe without a reader, so that the export cannot end before the daemon does.
    let mut child = scene
        .command(&["volume", "export", "vm", "-"])
        .spawn()
        .unwrap();
    let mut pipe = child.stdout.take().unwrap();
    pipe.read_exact(&mut [0; 4096]).unwrap();
    daemon.kill();
    let reader = thread::spawn(move || pipe.read_to_end(&mut Vec::new()).unwrap());
    let outcome = Outcome::of(child);
    reader.join().unwrap();
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("interrupted"), "{outcome:?}");
}

#[test]
fn an_export_that_is_interrupted_leaves_nothing() {
    let scene = Scene::new();
    scene.ok(&[
        "volume",
        "import",
        "vm",
        &scene.file("image", &noise(1, 64 << 20)),
    ]);
    let (image, partial) = (scene.path("copy"), scene.path("copy.onefold-partial"));
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        // The export may end before the signal arrives; then remove the image and retry.
        wait_until("an export is interrupted", || {
            let export = scene
                .command(&["volume", "export", "vm", &image])
                .spawn()
                .unwrap();
            while !fs::exists(&partial).unwrap() && !fs::exists(&image).unwrap() {
                thread::yield_now();
            }
            let _ = kill_process(Pid::from_child(&export), signal);
            let outcome = Outcome::of(export);
            assert!(!fs::exists(&partial).unwrap(), "{outcome:?}");
            let is_complete = fs::exists(&image).unwrap();
            if is_complete {
                assert_eq!(outcome.code, Some(0), "{outcome:?}");
                fs::remove_file(&image).unwrap();
            } else {
                outcome.is_refusal(1, &["interrupted"]);
            }
            !is_complete
        });
    }
}

#[test]
fn an_import_that_is_interrupted_says_what_becomes_of_it() {
    let scene = Scene::new();
    let mut import = scene.command(&["volume", "import", "vm", "-", "--size", "1M"]);
    let mut import = import.stdin(Stdio::piped()).spawn().unwrap();
    let pipe = import.stdin.take();
    let outcome = interrupted(import);
    assert_eq!(outcome.code, Some(130), "{outcome:?}");
    assert!(
        outcome.stderr.contains("interrupted: ") && outcome.stderr.contains("pool dedup"),
        "{outcome:?}"
    );
    drop(pipe);
    assert!(scene.volumes().is_empty());
}

#[test]
fn an_export_under_nohup_outlives_the_terminal() {
    let scene = Scene::new();
    let bytes = noise(1, 64 << 20);
    scene.ok(&["volume", "import", "vm", &scene.file("image", &bytes)]);
    let (image, partial) = (scene.path("copy"), scene.path("copy.onefold-partial"));
    let export = Command::new("nohup")
        .arg(env!("CARGO_BIN_EXE_onefold"))
        .args(["volume", "export", "vm", &image, "--pool"])
        .arg(scene.place())
        .env("ONEFOLD_RUN", scene.pool())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while !fs::exists(&partial).unwrap() && !fs::exists(&image).unwrap() {
        thread::yield_now();
    }
    let _ = kill_process(Pid::from_child(&export), Signal::HUP);
    let outcome = Outcome::of(export);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(fs::read(&image).unwrap() == bytes);
}

#[test]
fn what_a_killed_export_left_is_in_nobodys_way() {
    let scene = Scene::new();
    scene.ok(&[
        "volume",
        "import",
        "vm",
        &scene.file("image", &noise(1, 1 << 20)),
    ]);
    let image = scene.path("copy");
    let partial = scene.file("copy.onefold-partial", b"half of it");
    let other = scene.path("other");
    fs::hard_link(&partial, &other).unwrap();
    let writing = File::open(&partial).unwrap();
    flock(&writing, FlockOperation::LockExclusive).unwrap();
    let export = ["volume", "export", "vm", image.as_str()];
    scene.run(&export).is_refusal(1, &["another process"]);
    drop(writing);
    scene.ok(&export);
    assert!(fs::read(&image).unwrap() == noise(1, 1 << 20));
    assert!(!fs::exists(&partial).unwrap());
    // The foreign file was not written to.
    assert_eq!(fs::read(&other).unwrap(), b"half of it");

    fs::remove_file(&image).unwrap();
    std::os::unix::fs::symlink(&other, &partial).unwrap();
    scene.run(&export).is_refusal(1, &["copy.onefold-partial"]);
    assert_eq!(fs::read(&other).unwrap(), b"half of it");
}

#[test]
fn a_device_is_overwritten_if_the_user_says_so() {
    let scene = Scene::new();
    let data = [noise(1, 1 << 20), vec![0; 2 << 20], noise(2, 1 << 20)].concat();
    scene.ok(&["volume", "import", "vm", &scene.file("image", &data)]);
    let before = noise(3, 5 << 20);
    let Some(device) = Loop::new(&scene.file("disk", &before)) else {
        return;
    };
    let export = ["volume", "export", "vm", device.0.as_str()];
    scene.run(&export).is_refusal(2, &["--yes", "overwrites"]);
    let to_device = |volume| scene.run(&["volume", "export", volume, &device.0, "--yes"]);
    scene.ok(&["volume", "create", "large", "--size", "6M"]);
    to_device("large").is_refusal(1, &["5242880 bytes, fewer"]);
    assert!(fs::read(&device.0).unwrap() == before);
    assert_eq!(to_device("vm").code, Some(0));
    let after = fs::read(&device.0).unwrap();
    assert!(after[..data.len()] == data, "zeros included");
    assert!(after[data.len()..] == before[data.len()..]);
    assert!(Path::new(&device.0).exists());
}
