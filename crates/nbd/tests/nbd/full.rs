//! Requests that wait for space: they do not delay others, and end when their client does.

use crate::TestServer;
use crate::client::Client;
use crate::memory::{MemoryExport, pattern};
use onefold_nbd::ServerLimits;
use onefold_nbd::wire::{Errno, command, command_flag};
use std::net::Shutdown as Direction;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

const SIZE: u64 = 4 << 20;
const HALF: u64 = SIZE / 2;
const LONG: Duration = Duration::from_secs(60);

/// New data in the first half has to wait for space; nothing else has to, but workers answer all of
/// the second half.
fn full() -> MemoryExport {
    let export = MemoryExport {
        new: vec![0..HALF],
        waits: vec![HALF..SIZE],
        ..MemoryExport::new(SIZE)
    };
    export.is_full.store(true, Ordering::SeqCst);
    export
}

fn two_workers() -> ServerLimits {
    ServerLimits {
        worker_threads: 2,
        ..ServerLimits::default()
    }
}

fn wait_for_waiting(server: &TestServer, count: usize) {
    while server.server.requests_waiting_for_space() != count {
        thread::sleep(Duration::from_millis(5));
    }
}

/// Reads, flushes and trims continue.
fn works(client: &mut Client) {
    assert_eq!(client.read(HALF + 5, 1)[0], pattern(HALF + 5));
    assert_eq!(client.call(0, command::FLUSH, 0, 0).error, 0);
    assert_eq!(client.call(0, command::TRIM, SIZE - 4096, 4096).error, 0);
    assert_eq!(client.write(0, SIZE - 8192, &[3; 4096]).error, 0);
}

#[test]
fn however_many_wait_there_are_workers_for_the_rest() {
    let server = TestServer::with_limits(full(), &two_workers());
    let mut client = server.client();
    let large = vec![8; 1 << 20];
    for cookie in 1000..1100 {
        client.send_write(command_flag::FUA, cookie, cookie * 512, &[7; 512]);
    }
    client.send_write(0, 1100, HALF - large.len() as u64, &large);
    client.send(0, command::WRITE_ZEROES, 1101, 0, 4096);
    wait_for_waiting(&server, 102);
    works(&mut client);
    works(&mut server.client());
    assert_eq!(server.server.requests_waiting_for_space(), 102);
    assert_eq!(server.export.byte(1000 * 512), pattern(1000 * 512));

    server.export.is_full.store(false, Ordering::SeqCst);
    let mut cookies = Vec::new();
    for _ in 1000..1102 {
        let reply = client.reply(0).unwrap();
        assert_eq!(reply.error, 0);
        cookies.push(reply.cookie);
    }
    cookies.sort_unstable();
    assert!(cookies.into_iter().eq(1000..1102));
    let seen = [0, 1000 * 512, HALF - 1].map(|at| server.export.byte(at));
    assert_eq!(seen, [0, 7, 8]);
    wait_for_waiting(&server, 0);
}

/// A connection without memory for a request blocks itself.
#[test]
fn a_connection_that_waits_itself_holds_up_no_other() {
    // Enough for two connections and their small requests.
    let poor = ServerLimits {
        memory_bytes: 1_200_000,
        ..two_workers()
    };
    let server = TestServer::with_limits(full(), &poor);
    let mut client = server.client();
    // Most of it stays in the socket, so that the client waits, too.
    let writer = thread::spawn(move || client.write(0, 0, &vec![7; 1 << 20]));
    wait_for_waiting(&server, 1);
    works(&mut server.client());
    server.export.is_full.store(false, Ordering::SeqCst);
    assert_eq!(writer.join().unwrap().error, 0);
    assert_eq!(server.export.byte((1 << 20) - 1), 7);
}

#[test]
fn what_waits_ends_with_its_client() {
    let poor = ServerLimits {
        memory_bytes: 0,
        ..two_workers()
    };
    for limits in [two_workers(), poor] {
        let server = TestServer::with_limits(full(), &limits);
        let waits = |count: usize| {
            // The poor server has room for one client.
            while !server.server.clients().is_empty() {
                thread::sleep(Duration::from_millis(5));
            }
            let mut client = server.client();
            for cookie in 0..count as u64 {
                client.send_write(0, cookie, cookie * 4096, &[7; 4096]);
            }
            // A connection that blocks itself reads no more.
            wait_for_waiting(&server, if limits.memory_bytes == 0 { 1 } else { count });
            client
        };
        // The client goes without a word.
        drop(waits(9));
        wait_for_waiting(&server, 0);
        // The client announces that nothing more will come.
        let mut client = waits(1);
        client.stream.shutdown(Direction::Write).unwrap();
        assert_eq!(client.reply(0).unwrap().error, Errno::Shutdown as u32);
        assert!(client.is_closed());
        // The client is cut off.
        let mut client = waits(9);
        assert!(server.server.disconnect("vol", LONG).is_ok());
        assert!(client.is_closed());
        // The server stops.
        let mut client = waits(1);
        let shutdown = server.server.shutdown(LONG);
        assert!(shutdown.quiet && shutdown.cut_off == 0, "{shutdown:?}");
        assert!(client.reply(0).is_err(), "an error would be the guest's");
        assert_eq!(server.export.byte(0), pattern(0));
        assert_eq!(server.exports.attached.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn a_client_that_takes_its_leave_does_not_wait_for_what_waits() {
    let server = TestServer::start(full());
    let mut client = server.client();
    client.send_write(0, 1, 0, &[7; 4096]);
    wait_for_waiting(&server, 1);
    client.send(0, command::DISC, 2, 0, 0);
    assert_eq!(client.reply(0).unwrap().error, Errno::Shutdown as u32);
    assert!(client.is_closed());
}

/// A client that reconnects repeats requests that got no reply, and there is space then. Answered requests
/// are done.
#[test]
fn a_server_that_stops_answers_all_but_what_waits_for_space() {
    let server = TestServer::start(full());
    let mut client = server.client();
    client.send_write(0, 1, 0, &[7; 4096]);
    wait_for_waiting(&server, 1);
    for cookie in 2..100 {
        client.send_write(0, cookie, HALF + cookie * 4096, &[8; 4096]);
    }
    // The last of them has been read.
    assert_eq!(client.reply(0).unwrap().error, 0);
    let before = server.exports.attached.load(Ordering::SeqCst);
    assert_eq!(before, 1);
    let shutdown = server.server.shutdown(LONG);
    assert!(shutdown.quiet && shutdown.cut_off == 0, "{shutdown:?}");
    while let Ok(reply) = client.reply(0) {
        assert!(reply.error == 0 && reply.cookie != 1, "{reply:?}");
    }
    assert!(client.is_closed());
    assert_eq!(server.export.byte(0), pattern(0));
}
