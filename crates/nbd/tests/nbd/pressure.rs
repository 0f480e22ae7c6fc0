//! Waiting requests, bounded memory, clients that do not take their replies.

use crate::TestServer;
use crate::client::{Client, Reply};
use crate::memory::{MemoryExport, pattern};
use onefold_nbd::ServerLimits;
use onefold_nbd::wire::{command, command_flag};
use std::sync::atomic::Ordering;
use std::thread;

const SIZE: u64 = 4 << 20;

#[test]
fn requests_that_wait_are_overtaken_by_later_ones() {
    let export = MemoryExport {
        gated: vec![0..4096],
        ..MemoryExport::new(SIZE)
    };
    let server = TestServer::start(export);
    let mut client = server.client();
    client.send_read(100, 0, 4096);
    for cookie in 1..=16 {
        client.send_read(cookie, cookie * 4096, 4096);
    }
    // The gate opens only when all others are answered: if they waited for it, nothing would come.
    for cookie in 1..=16 {
        assert_eq!(client.reply(4096).unwrap().cookie, cookie);
    }
    server.export.open_gate();
    assert_eq!(client.reply(4096).unwrap().cookie, 100);
}

#[test]
fn waiting_writes_and_flushes_are_overtaken_too() {
    let export = MemoryExport {
        gated: vec![0..4096],
        ..MemoryExport::new(SIZE)
    };
    let server = TestServer::start(export);
    let mut client = server.client();
    client.send_write(0, 100, 0, &[7; 4096]);
    client.send_write(0, 101, 100, &[8; 1 << 20]);
    client.send(0, command::TRIM, 102, 0, 4096);
    client.send(0, command::BLOCK_STATUS, 103, 0, 4096);
    for cookie in 1..=4 {
        client.send_write(0, cookie, cookie * 4096, &[9; 4096]);
        assert_eq!(client.reply(0).unwrap().cookie, cookie);
    }
    server.export.wait_for_waiting(4);
    server.export.open_gate();
    let mut cookies: Vec<u64> = (0..4).map(|_| client.reply(0).unwrap().cookie).collect();
    cookies.sort_unstable();
    assert_eq!(cookies, [100, 101, 102, 103]);
}

#[test]
fn replies_of_workers_to_a_client_that_takes_its_time() {
    // 96 replies of 64 KiB are far more than the socket holds, so that most of them pass through
    // the queue and the writer thread.
    let export = MemoryExport {
        gated: vec![0..SIZE],
        ..MemoryExport::new(SIZE)
    };
    let server = TestServer::start(export);
    let mut client = server.client();
    let offset_of = |cookie: u64| cookie * 11_000;
    for cookie in 0..96 {
        client.send_read(cookie, offset_of(cookie), 65_536);
    }
    // One volume has seven eighths of the 64 workers.
    server.export.wait_for_waiting(56);
    server.export.open_gate();
    let mut seen = [false; 96];
    for _ in 0..96 {
        let reply = client.reply(65_536).unwrap();
        let offset = offset_of(reply.cookie);
        assert!(
            reply
                .data
                .iter()
                .zip(offset..)
                .all(|(byte, at)| *byte == pattern(at))
        );
        assert!(!std::mem::replace(&mut seen[reply.cookie as usize], true));
    }
    assert!(server.export.gated.len() == 1 && seen.iter().all(|seen| *seen));
}

#[test]
fn replies_of_workers_do_not_get_into_one_that_is_sent_in_pieces() {
    let limits = ServerLimits {
        memory_bytes: 0,
        ..ServerLimits::default()
    };
    let export = MemoryExport {
        waits: vec![0..SIZE],
        ..MemoryExport::new(SIZE)
    };
    let server = TestServer::with_limits(export, &limits);
    for flags in [0, command_flag::DF] {
        let mut client = Client::attach(&server.without_clients().socket, flags != 0);
        for _ in 0..50 {
            // Flushes need no buffer and are handed over; the read is done piece by piece.
            for cookie in 0..8 {
                client.send(0, command::FLUSH, cookie, 0, 0);
            }
            client.send(flags, command::READ, 100, 7, 3 << 20);
            let replies: Vec<Reply> = (0..9).map(|_| client.reply_to(100, 3 << 20)).collect();
            let read = replies.iter().find(|reply| reply.cookie == 100).unwrap();
            assert!(
                read.data
                    .iter()
                    .zip(7..)
                    .all(|(byte, at)| *byte == pattern(at))
            );
        }
    }
}

#[test]
fn memory_stays_within_its_limit_and_everything_is_answered() {
    let limits = ServerLimits {
        memory_bytes: 32 << 20,
        ..ServerLimits::default()
    };
    let export = MemoryExport {
        waits: vec![0..SIZE],
        ..MemoryExport::new(SIZE)
    };
    let server = TestServer::with_limits(export, &limits);
    thread::scope(|scope| {
        for number in 0..8_u64 {
            let mut client = server.client();
            scope.spawn(move || {
                for cookie in 0..128 {
                    client.send_read(cookie, number * 100_000 + cookie, 1 << 20);
                }
                for _ in 0..128 {
                    let reply = client.reply(1 << 20).unwrap();
                    assert_eq!(reply.data[0], pattern(number * 100_000 + reply.cookie));
                }
            });
        }
    });
    let peak = server.server.shared_memory_peak_bytes();
    assert!(peak > 0 && peak <= 32 << 20, "{peak}");
}

#[test]
fn clients_that_stop_reading_starve_nobody() {
    let limits = ServerLimits {
        memory_bytes: 32 << 20,
        ..ServerLimits::default()
    };
    let export = MemoryExport {
        waits: vec![0..1 << 20],
        ..MemoryExport::new(SIZE)
    };
    let server = TestServer::with_limits(export, &limits);
    let mut stuck: Vec<_> = (0..40).map(|_| server.client()).collect();
    for client in &mut stuck {
        for cookie in 0..64 {
            client.send_read(cookie, (1 << 20) - 4096, 1 << 20);
        }
    }
    let mut client = server.client();
    for round in 0..50 {
        let at = round * 4096;
        assert_eq!(client.read(at, 4096)[0], pattern(at));
        assert_eq!(
            client.read((2 << 20) + at, 4096)[0],
            pattern((2 << 20) + at)
        );
        assert_eq!(client.read(at, 1 << 20)[0], pattern(at));
        assert_eq!(client.write(0, 3 << 20, &[5; 300_000]).error, 0);
        assert_eq!(client.call(0, command::FLUSH, 0, 0).error, 0);
    }
    assert!(server.server.shared_memory_peak_bytes() <= 32 << 20);
}

#[test]
fn prefetches_have_no_memory_but_what_requests_have() {
    let limits = ServerLimits {
        memory_bytes: 2 << 20,
        worker_threads: 64,
        ..ServerLimits::default()
    };
    let export = MemoryExport {
        gated: vec![0..SIZE],
        ..MemoryExport::new(SIZE)
    };
    let server = TestServer::with_limits(export, &limits);
    let mut client = server.client();
    for cookie in 0..100 {
        client.send(0, command::CACHE, cookie, 0, 1 << 20);
    }
    // The share of one connection is in use, and its thread waits for one more itself.
    server.export.wait_for_waiting(2);
    server.export.open_gate();
    let mut cookies: Vec<u64> = (0..100).map(|_| client.reply(0).unwrap().cookie).collect();
    cookies.sort_unstable();
    assert!(cookies.into_iter().eq(0..100));
    let peak = server.export.scratch_peak.load(Ordering::SeqCst);
    assert!(0 < peak && peak <= limits.memory_bytes, "{peak}");
    assert_eq!(server.export.prefetches.load(Ordering::SeqCst), 100);
}
