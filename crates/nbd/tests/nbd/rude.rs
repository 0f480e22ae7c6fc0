//! Misbehaving clients, and requests that panic, do not affect others.

use crate::TestServer;
use crate::client::{Client, request_bytes};
use crate::memory::{MemoryExport, pattern};
use onefold_nbd::wire::command;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

const SIZE: u64 = 4 << 20;

/// Waits for all clients to be gone: a rude one must leave nothing behind.
fn assert_all_gone(server: &TestServer) {
    assert!(
        server
            .server
            .disconnect("vol", Duration::from_secs(60))
            .is_ok()
    );
    assert_eq!(server.server.clients(), []);
    assert_eq!(server.exports.attached.load(Ordering::SeqCst), 0);
}

#[test]
fn closing_in_mid_reply() {
    for waits in [vec![], vec![0..SIZE]] {
        let server = TestServer::start(MemoryExport {
            waits,
            ..MemoryExport::new(SIZE)
        });
        let mut good = server.client();
        for taken in [0, 1, 5, 20, 100_000] {
            let mut rude = server.client();
            for cookie in 0..20 {
                rude.send_read(cookie, 0, 1 << 20);
            }
            rude.read_bytes(taken).unwrap();
            drop(rude);
            assert_eq!(good.read(5, 1)[0], pattern(5));
        }
        drop(good);
        assert_all_gone(&server);
    }
}

#[test]
fn half_a_request_or_half_a_payload() {
    let server = TestServer::start(MemoryExport::new(SIZE));
    for len in [100, 1 << 20] {
        let mut whole = request_bytes(0, command::WRITE, 1, 0, len);
        whole.resize(whole.len() + len as usize / 2, 7);
        for cut in [1, 27, 28, 29, whole.len()] {
            let mut rude = server.client();
            rude.stream.write_all(&whole[..cut]).unwrap();
            rude.stream.shutdown(Shutdown::Write).unwrap();
            assert!(rude.is_closed());
        }
    }
    // A small write is done whole or not at all.
    assert_eq!(server.export.byte(0), pattern(0));
    assert_all_gone(&server);
}

#[test]
fn what_was_asked_before_half_a_request_is_answered() {
    let export = MemoryExport {
        gated: vec![0..4096],
        ..MemoryExport::new(SIZE)
    };
    let server = TestServer::start(export);
    let mut client = server.client();
    client.send_read(1, 0, 4096);
    client.send(0, command::WRITE, 2, 4096, 4096);
    client.stream.shutdown(Shutdown::Write).unwrap();
    server.export.wait_for_waiting(1);
    server.export.open_gate();
    assert_eq!(client.reply(0).unwrap().cookie, 1);
    assert!(client.is_closed());
}

#[test]
fn garbage_after_and_in_place_of_the_handshake() {
    let server = TestServer::start(MemoryExport::new(SIZE));
    let mut rude = server.client();
    rude.stream.write_all(&[0xee; 4096]).unwrap();
    assert!(rude.is_closed());
    let mut silent = UnixStream::connect(&server.socket).unwrap();
    silent
        .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    assert_eq!(server.client().read(1, 1)[0], pattern(1));
    assert_all_gone(&server);
}

#[test]
fn a_panic_ends_its_connection_and_no_other() {
    for waits in [vec![], vec![0..SIZE]] {
        let panics = vec![1000..1001];
        let export = MemoryExport {
            waits,
            panics,
            ..MemoryExport::new(SIZE)
        };
        let server = TestServer::start(export);
        let mut good = server.client();
        let requests: [&dyn Fn(&mut Client); 5] = [
            &|client| client.send_read(1, 1000, 1),
            &|client| client.send_read(1, 0, 1 << 20),
            &|client| client.send_write(0, 1, 0, &[1; 4096]),
            &|client| client.send(0, command::TRIM, 1, 0, 4096),
            &|client| client.send(0, command::BLOCK_STATUS, 1, 0, 4096),
        ];
        for request in requests {
            let mut unlucky = server.client();
            request(&mut unlucky);
            assert!(unlucky.is_closed());
            assert_eq!(good.read(5, 1)[0], pattern(5));
        }
        drop(good);
        assert_all_gone(&server);
    }
}
