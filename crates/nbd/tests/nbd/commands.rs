//! Every command, in every way in which it can be answered.

use crate::TestServer;
use crate::client::{Client, Reply};
use crate::memory::{MemoryExport, pattern};
use onefold_nbd::wire::{Errno, allocation, bitmap, command, command_flag};
use onefold_nbd::{Failure, Op, PAYLOAD_BYTES_MAX, ServerLimits, Totals};
use std::sync::atomic::Ordering;

const SIZE: u64 = 4 << 20;

/// A server without memory except its connections': large requests are served piece by piece.
fn poor() -> ServerLimits {
    ServerLimits {
        memory_bytes: 0,
        ..ServerLimits::default()
    }
}

fn expected(offset: u64, len: u32) -> Vec<u8> {
    (offset..offset + u64::from(len)).map(pattern).collect()
}

fn totals(server: &TestServer) -> Totals {
    server.server.statistics().exports["vol"].totals
}

fn requests_and_errors(totals: &Totals) -> (u64, u64) {
    let outcomes = Op::ALL.map(|op| totals.requests[op]);
    let errors = outcomes.iter().map(|outcome| outcome.error).sum();
    (
        outcomes.iter().map(|outcome| outcome.ok).sum::<u64>() + errors,
        errors,
    )
}

/// Requests the same range in all ways in which it can be answered: at once, by a worker and in the background,
/// from the pool and piece by piece, in simple and structured replies.
#[test]
fn reads_and_writes_of_all_sizes_in_all_ways() {
    let ranges = [
        (0, 1),
        (4095, 2),
        (512, 4096),
        (8192, 131_072),
        (5000, 131_073),
        (77, 3 << 20),
    ];
    for limits in [ServerLimits::default(), poor()] {
        for (waits, is_background) in [(vec![], false), (vec![0..SIZE], false), (vec![], true)] {
            for structured in [false, true] {
                let export = MemoryExport {
                    waits: waits.clone(),
                    is_background,
                    ..MemoryExport::new(SIZE)
                };
                let server = TestServer::with_limits(export, &limits);
                let mut client = Client::attach(&server.socket, structured);
                for (offset, len) in ranges {
                    assert_eq!(client.read(offset, len), expected(offset, len));
                }
                for (offset, len) in ranges {
                    let data: Vec<u8> = expected(offset + 31, len).iter().map(|b| !b).collect();
                    assert_eq!(client.write(0, offset, &data).error, 0);
                    assert_eq!(client.read(offset, len), data);
                }
                assert_eq!(server.export.flushes.load(Ordering::SeqCst), 0);
                let bytes: u64 = ranges.iter().map(|(_, len)| u64::from(*len)).sum();
                let totals = totals(&server);
                assert_eq!(requests_and_errors(&totals), (18, 0));
                assert_eq!(
                    (totals.bytes[Op::Read], totals.bytes[Op::Write]),
                    (2 * bytes, bytes)
                );
            }
        }
    }
}

#[test]
fn one_chunk_if_asked_for_even_where_the_reply_is_made_of_pieces() {
    let server = TestServer::with_limits(MemoryExport::new(SIZE), &poor());
    let mut client = server.client();
    let len = 1 << 20;
    let pieces = client.call(0, command::READ, 100, len);
    assert!(pieces.data_chunks > 1);
    let whole = client.call(command_flag::DF, command::READ, 100, len);
    assert_eq!(whole.data_chunks, 1);
    assert_eq!(whole.data, expected(100, len));
    assert_eq!(pieces.data, whole.data);
}

#[test]
fn a_failure_in_the_middle_of_a_read_in_pieces() {
    let fails = vec![(700_000..700_001, Failure::Io)];
    let export = MemoryExport {
        fails,
        ..MemoryExport::new(SIZE)
    };
    let server = TestServer::with_limits(export, &poor());
    let mut client = server.client();
    let reply = client.call(0, command::READ, 0, 1 << 20);
    assert_eq!(reply.error, Errno::Io as u32);
    assert_eq!(client.read(0, 10), expected(0, 10));
    // When a reply has begun and cannot be ended with an error, the connection must end.
    client.send(command_flag::DF, command::READ, 5, 0, 1 << 20);
    assert!(client.is_closed());
    let mut simple = Client::attach(&server.without_clients().socket, false);
    simple.send_read(5, 0, 1 << 20);
    assert!(simple.is_closed());
    // A failure in the first piece can still be reported.
    let mut simple = Client::attach(&server.without_clients().socket, false);
    assert_eq!(
        simple.call(0, command::READ, 700_000, 1 << 20).error,
        Errno::Io as u32
    );
    assert_eq!(simple.read(0, 10), expected(0, 10));
}

#[test]
fn a_failed_write_reads_over_its_payload() {
    for limits in [ServerLimits::default(), poor()] {
        let fails = vec![(100_000..100_001, Failure::NoSpace)];
        let export = MemoryExport {
            fails,
            ..MemoryExport::new(SIZE)
        };
        let server = TestServer::with_limits(export, &limits);
        let mut client = server.client();
        for len in [4096, 1 << 20] {
            let reply = client.write(0, 99_000, &vec![1; len]);
            assert_eq!(reply.error, Errno::NoSpace as u32);
            assert_eq!(client.read(7, 3), expected(7, 3));
        }
    }
}

#[test]
fn fua_flushes_before_the_reply_whoever_executes_it() {
    for waits in [vec![], vec![0..SIZE]] {
        let export = MemoryExport {
            waits,
            ..MemoryExport::new(SIZE)
        };
        let server = TestServer::start(export);
        let mut client = server.client();
        let flushes = || server.export.flushes.load(Ordering::SeqCst);
        assert_eq!(client.write(command_flag::FUA, 0, &[1; 512]).error, 0);
        assert_eq!(flushes(), 1);
        assert_eq!(client.write(command_flag::FUA, 0, &[2; 1 << 20]).error, 0);
        assert_eq!(flushes(), 2);
        assert_eq!(
            client.call(command_flag::FUA, command::TRIM, 0, 4096).error,
            0
        );
        assert_eq!(flushes(), 3);
        assert_eq!(
            client
                .call(command_flag::FUA, command::WRITE_ZEROES, 4096, 4096)
                .error,
            0
        );
        assert_eq!(flushes(), 4);
        assert_eq!(client.call(0, command::FLUSH, 0, 0).error, 0);
        assert_eq!(flushes(), 5);
        assert_eq!(client.read(0, 8192), vec![0; 8192]);
        assert_eq!(client.read(8192, 512), vec![2; 512]);
    }
}

#[test]
fn zeroes_trim_and_block_status() {
    for waits in [vec![], vec![0..SIZE]] {
        let server = TestServer::start(MemoryExport {
            waits,
            ..MemoryExport::new(SIZE)
        });
        let mut client = server.client();
        let flags = command_flag::FAST_ZERO | command_flag::NO_HOLE;
        assert_eq!(
            client.call(flags, command::WRITE_ZEROES, 4096, 8192).error,
            0
        );
        assert_eq!(client.call(0, command::TRIM, 20_480, 4096).error, 0);
        let hole = allocation::HOLE | allocation::ZERO;
        let status = client.call(0, command::BLOCK_STATUS, 0, 28_672);
        let states = [(4096, 0), (8192, hole), (8192, 0), (4096, hole), (4096, 0)];
        assert_eq!(status.descriptors, states);
        let one = client.call(command_flag::REQ_ONE, command::BLOCK_STATUS, 6000, 4096);
        assert_eq!(one.descriptors, [(4096, hole)]);
        assert_eq!(client.call(0, command::CACHE, 0, 65_536).error, 0);
        assert_eq!(server.export.prefetches.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn each_context_has_a_chunk_of_its_own() {
    let [zeroth, first] = ["qemu:dirty-bitmap:s0", "qemu:dirty-bitmap:s1"];
    for waits in [vec![], vec![0..SIZE]] {
        let server = TestServer::start(MemoryExport {
            waits,
            ..MemoryExport::new(SIZE)
        });
        let attach = |contexts: &[&str]| {
            Client::attach_selecting(&server.without_clients().socket, contexts).unwrap()
        };
        let mut client = attach(&[first, "base:allocation", zeroth]);
        let status = client.call(0, command::BLOCK_STATUS, 1000, 20_000);
        assert_eq!(status.descriptors, [(20_000, 0)]);
        let dirty = bitmap::DIRTY;
        let alternating = [
            (3096, dirty),
            (4096, 0),
            (4096, dirty),
            (4096, 0),
            (4096, dirty),
            (520, 0),
        ];
        let bitmaps = [(2, vec![(20_000, dirty)]), (3, alternating.to_vec())];
        assert_eq!(status.bitmaps, bitmaps);
        let one = client.call(command_flag::REQ_ONE, command::BLOCK_STATUS, 5000, 9000);
        let bitmaps = [(2, vec![(3192, dirty)]), (3, vec![(3192, 0)])];
        assert_eq!(
            (one.descriptors, &one.bitmaps[..]),
            (vec![(9000, 0)], &bitmaps[..])
        );
        let mut client = attach(&[first]);
        let status = client.call(0, command::BLOCK_STATUS, 0, 4096);
        assert_eq!(status.descriptors, []);
        assert_eq!(status.bitmaps, [(2, vec![(4096, dirty)])]);
        let mut client = attach(&[]);
        let refused = client.call(0, command::BLOCK_STATUS, 0, 4096);
        assert_eq!(refused.error, Errno::Inval as u32);
    }
}

#[test]
fn requests_of_no_length_are_done() {
    for structured in [false, true] {
        let server = TestServer::start(MemoryExport::new(SIZE));
        let mut client = Client::attach(&server.socket, structured);
        for command in [
            command::READ,
            command::TRIM,
            command::WRITE_ZEROES,
            command::CACHE,
        ] {
            let reply = client.call(0, command, SIZE, 0);
            assert_eq!(
                reply,
                Reply {
                    cookie: 77,
                    ..Reply::default()
                }
            );
        }
        assert_eq!(client.write(0, SIZE, &[]).error, 0);
        assert_eq!(client.read(3, 3), expected(3, 3));
    }
}

#[test]
fn unacceptable_requests_are_refused_and_the_connection_goes_on() {
    let server = TestServer::start(MemoryExport::new(SIZE));
    let mut client = server.client();
    let (inval, no_space) = (Errno::Inval as u32, Errno::NoSpace as u32);
    let cases = [
        (0, command::READ, SIZE - 1, 2, inval),
        (0, command::READ, u64::MAX, 2, inval),
        (0, command::READ, 0, PAYLOAD_BYTES_MAX + 1, inval),
        (0, command::TRIM, SIZE, 1, inval),
        (0, command::WRITE_ZEROES, SIZE, 1, no_space),
        (0, command::CACHE, SIZE, 1, inval),
        (0, command::BLOCK_STATUS, SIZE - 4096, 8192, inval),
        (0, command::BLOCK_STATUS, 0, 0, inval),
        (command_flag::REQ_ONE, command::READ, 0, 1, inval),
        (1 << 9, command::FLUSH, 0, 0, inval),
        (0, 8, 0, 0, inval),
        (0, 0xffff, 0, 0, inval),
    ];
    for (flags, command, offset, len, error) in cases {
        assert_eq!(
            client.call(flags, command, offset, len).error,
            error,
            "{command} {offset}"
        );
    }
    assert_eq!(client.write(0, SIZE - 1, &[1; 2]).error, no_space);
    assert_eq!(client.write(0, SIZE - 1, &[1; 200_000]).error, no_space);
    assert_eq!(client.write(1 << 9, 0, &[1; 2]).error, inval);
    assert_eq!(
        client
            .write(0, 0, &vec![1; PAYLOAD_BYTES_MAX as usize + 1])
            .error,
        inval
    );
    assert_eq!(client.read(0, 10), expected(0, 10));
    let totals = totals(&server);
    assert_eq!(requests_and_errors(&totals), (17, 16));
    assert_eq!(totals.bytes[Op::Read], 10);
}

#[test]
fn a_read_only_export_is_not_changed() {
    let server = TestServer::start(MemoryExport {
        read_only: true,
        ..MemoryExport::new(SIZE)
    });
    let mut client = server.client();
    let perm = Errno::Perm as u32;
    assert_eq!(client.write(0, 0, &[1; 5000]).error, perm);
    assert_eq!(client.call(0, command::TRIM, 0, 4096).error, perm);
    assert_eq!(client.call(0, command::WRITE_ZEROES, 0, 4096).error, perm);
    assert_eq!(client.call(0, command::FLUSH, 0, 0).error, 0);
    assert_eq!(client.read(0, 8192), expected(0, 8192));
}

#[test]
fn failures_of_the_export_are_told_as_they_are() {
    let failures = [
        (Failure::Io, Errno::Io),
        (Failure::LoggedIo, Errno::Io),
        (Failure::NoSpace, Errno::NoSpace),
        (Failure::ReadOnly, Errno::Perm),
        (Failure::Invalid, Errno::Inval),
        (Failure::Unsupported, Errno::NotSup),
        (Failure::Gone, Errno::Shutdown),
    ];
    for waits in [vec![], vec![0..SIZE]] {
        for (failure, errno) in failures {
            let fails = vec![(0..SIZE, failure)];
            let export = MemoryExport {
                fails,
                waits: waits.clone(),
                ..MemoryExport::new(SIZE)
            };
            let server = TestServer::start(export);
            let mut client = server.client();
            assert_eq!(client.call(0, command::READ, 0, 1).error, errno as u32);
            assert_eq!(
                client.call(0, command::READ, 0, 1 << 20).error,
                errno as u32
            );
            assert_eq!(client.write(0, 0, &[1; 10]).error, errno as u32);
            assert_eq!(client.call(0, command::TRIM, 0, 1).error, errno as u32);
            assert_eq!(
                client.call(0, command::BLOCK_STATUS, 0, 1).error,
                errno as u32
            );
        }
    }
}

#[test]
fn two_clients_see_each_others_writes() {
    let server = TestServer::start(MemoryExport::new(SIZE));
    let (mut a, mut b) = (server.client(), server.client());
    assert_eq!(a.write(0, 1000, &[9; 1000]).error, 0);
    assert_eq!(b.call(0, command::FLUSH, 0, 0).error, 0);
    assert_eq!(b.read(1000, 1000), vec![9; 1000]);
}

#[test]
fn what_was_asked_before_leaving_is_answered() {
    let export = MemoryExport {
        waits: vec![0..4096],
        ..MemoryExport::new(SIZE)
    };
    let server = TestServer::start(export);
    let mut client = server.client();
    client.send_read(1, 0, 4096);
    client.send_read(2, 4096, 4096);
    client.send(0, command::DISC, 3, 0, 0);
    let mut cookies = [
        client.reply(0).unwrap().cookie,
        client.reply(0).unwrap().cookie,
    ];
    cookies.sort_unstable();
    assert_eq!(cookies, [1, 2]);
    assert!(client.is_closed());
}
