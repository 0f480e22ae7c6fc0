//! The pass-through server as a process.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use onefold_nbd::client::{Address, Client};
use onefold_nbd::wire::command_flag;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

#[test]
fn sockets_handed_down_are_served() {
    let directory = tempfile::tempdir().unwrap();
    let (path, image) = (
        directory.path().join("nbd.sock"),
        directory.path().join("image"),
    );
    fs::write(&image, vec![42; 8192]).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    let script = "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" --export vol --file \"$1\" 3<&0";
    let mut child = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_onefold-passthrough")])
        .arg(&image)
        .stdin(Stdio::from(OwnedFd::from(listener)))
        .spawn()
        .unwrap();
    let address: Address = format!("nbd+unix:///vol?socket={}", path.display())
        .parse()
        .unwrap();
    let mut client = Client::connect(&address).unwrap();
    let mut found = vec![0; 4096];
    client.read(&mut found, 4096).unwrap();
    assert_eq!(found, vec![42; 4096]);
    client.write(command_flag::FUA, &[43], 5000).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(fs::read(&image).unwrap()[4999..5002], [42, 43, 42]);
}
