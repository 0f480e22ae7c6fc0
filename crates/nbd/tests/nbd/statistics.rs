//! Every request is counted once, whichever thread answers it and however it ends.

use crate::TestServer;
use crate::client::Client;
use crate::memory::MemoryExport;
use onefold_nbd::wire::command;
use onefold_nbd::{DURATION_BUCKETS, Failure, Op, Outcomes, PerOp, ServerLimits, Totals};
use std::io::Write;
use std::net::Shutdown as Direction;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

const SIZE: u64 = 8 << 20;
const MIB: u32 = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

/// Offsets at which requests succeed at once, or on a worker; fail at once, or on a worker; wait for
/// space; and panic.
const OK: u64 = 0;
const OK_WAITING: u64 = 2 << 20;
const FAILS: u64 = 3 << 20;
const FAILS_WAITING: u64 = 4 << 20;
const FULL: u64 = 5 << 20;
const PANICS: u64 = 6 << 20;
const PANICS_WAITING: u64 = 7 << 20;

fn export() -> MemoryExport {
    let from = |offset| offset..offset + u64::from(MIB);
    MemoryExport {
        waits: [OK_WAITING, FAILS_WAITING, PANICS_WAITING]
            .map(from)
            .to_vec(),
        fails: [FAILS, FAILS_WAITING]
            .map(|offset| (from(offset), Failure::Io))
            .to_vec(),
        new: vec![from(FULL)],
        panics: [PANICS, PANICS_WAITING].map(from).to_vec(),
        ..MemoryExport::new(SIZE)
    }
}

/// Makes a request and expects it to succeed, or to fail, and the totals to agree.
struct Tally {
    expected: Totals,
}

impl Tally {
    fn expect(&mut self, op: Op, bytes: u32, error: bool) {
        let outcomes = &mut self.expected.requests[op];
        if error {
            outcomes.error += 1;
        } else {
            outcomes.ok += 1;
            self.expected.bytes[op] += u64::from(bytes);
        }
    }

    fn call(&mut self, client: &mut Client, op: Op, offset: u64, len: u32, error: bool) {
        let reply = match op {
            Op::Write => client.write(0, offset, &vec![9; len as usize]),
            _ => client.call(0, command_of(op), offset, len),
        };
        assert_eq!(
            reply.error != 0,
            error,
            "{op:?} at {offset}: {}",
            reply.error
        );
        let has_bytes = !matches!(op, Op::Flush | Op::Cache | Op::Status | Op::Other);
        self.expect(op, if has_bytes { len } else { 0 }, error);
    }

    fn check(&self, server: &TestServer) {
        let statistics = server.server.statistics();
        assert_eq!(statistics.exports["vol"].totals, self.expected);
        for op in Op::ALL {
            let Outcomes { ok, error } = self.expected.requests[op];
            assert_eq!(statistics.durations[op].count(), ok + error, "{op:?}");
        }
    }
}

fn command_of(op: Op) -> u16 {
    match op {
        Op::Read => command::READ,
        Op::Write => command::WRITE,
        Op::Flush => command::FLUSH,
        Op::Trim => command::TRIM,
        Op::Zero => command::WRITE_ZEROES,
        Op::Cache => command::CACHE,
        Op::Status => command::BLOCK_STATUS,
        Op::Other => 99,
    }
}

const WITH_RANGE: [Op; 6] = [
    Op::Read,
    Op::Write,
    Op::Trim,
    Op::Zero,
    Op::Cache,
    Op::Status,
];

/// Sends requests that are answered at once, by workers, and by a connection that has no memory for
/// more.
fn ask_everything(tally: &mut Tally, client: &mut Client) {
    for op in WITH_RANGE {
        for len in [512, 4096, MIB / 2] {
            tally.call(client, op, OK, len, false);
            tally.call(client, op, OK_WAITING, len, false);
            tally.call(client, op, FAILS, len, true);
            tally.call(client, op, FAILS_WAITING, len, true);
            tally.call(client, op, SIZE, len, true);
        }
    }
    tally.call(client, Op::Flush, 0, 0, false);
    tally.call(client, Op::Other, 0, 4096, true);
    tally.call(client, Op::Read, OK, 0, false);
    tally.call(client, Op::Write, OK, 0, false);
}

#[test]
fn every_request_is_counted_once_with_its_outcome() {
    let poor = ServerLimits {
        memory_bytes: 0,
        ..ServerLimits::default()
    };
    for (limits, structured) in [
        (ServerLimits::default(), true),
        (ServerLimits::default(), false),
        (poor.clone(), true),
        (poor, false),
    ] {
        let server = TestServer::with_limits(export(), &limits);
        let mut tally = Tally {
            expected: Totals::default(),
        };
        for _ in 0..3 {
            let mut client = Client::attach(&server.without_clients().socket, true);
            ask_everything(&mut tally, &mut client);
            assert_eq!(server.server.clients()[0].export, "vol");
            tally.check(&server);
        }
        if !structured {
            let mut client = Client::attach(&server.without_clients().socket, false);
            tally.call(&mut client, Op::Status, OK, 4096, true);
            tally.call(&mut client, Op::Read, OK, MIB, false);
            tally.call(&mut client, Op::Read, OK_WAITING, MIB / 2, false);
        }
        tally.check(&server);
        server.without_clients();
        tally.check(&server);
        assert_eq!(server.server.statistics().exports["vol"].clients, 0);
    }
}

#[test]
fn requests_that_panic_are_errors() {
    for memory_bytes in [0, 64 << 20] {
        let limits = ServerLimits {
            memory_bytes,
            ..ServerLimits::default()
        };
        let server = TestServer::with_limits(export(), &limits);
        let mut tally = Tally {
            expected: Totals::default(),
        };
        for offset in [PANICS, PANICS_WAITING] {
            for op in WITH_RANGE {
                for len in [4096, MIB / 2] {
                    let mut client = Client::attach(&server.without_clients().socket, true);
                    client.send(0, command_of(op), 1, offset, len);
                    if op == Op::Write {
                        // The client may be cut off before all of it is taken.
                        let _ = client.stream.write_all(&vec![9; len as usize]);
                    }
                    assert!(client.is_closed());
                    tally.expect(op, 0, true);
                }
            }
        }
        server.without_clients();
        tally.check(&server);
    }
}

#[test]
fn requests_beyond_the_workers_of_their_volume_are_counted() {
    const READS: u64 = 96;
    // One volume has seven eighths of the 64 workers.
    const AT_A_TIME: usize = 56;
    let export = MemoryExport {
        gated: vec![0..SIZE],
        ..MemoryExport::new(SIZE)
    };
    let server = TestServer::start(export);
    let waited = || {
        let statistics = server.server.statistics();
        statistics.exports["vol"].totals.waited_for_worker
    };
    let mut client = server.client();
    (0..READS).for_each(|cookie| client.send_read(cookie, 0, 512));
    server.export.wait_for_waiting(AT_A_TIME);
    let start = Instant::now();
    while waited() < READS - AT_A_TIME as u64 && start.elapsed() < LONG {
        thread::sleep(Duration::from_millis(5));
    }
    server.export.open_gate();
    for _ in 0..READS {
        assert_eq!(client.reply(512).unwrap().error, 0);
    }
    assert_eq!(waited(), READS - AT_A_TIME as u64);
}

#[test]
fn what_waited_for_space_is_counted_by_how_it_ended() {
    for memory_bytes in [0, 64 << 20] {
        let limits = ServerLimits {
            memory_bytes,
            ..ServerLimits::default()
        };
        let server = TestServer::with_limits(export(), &limits);
        let mut tally = Tally {
            expected: Totals::default(),
        };
        for ends_well in [true, false] {
            for op in [Op::Write, Op::Zero, Op::Trim] {
                server.export.is_full.store(true, Ordering::SeqCst);
                let mut client = Client::attach(&server.without_clients().socket, true);
                match op {
                    Op::Write => client.send_write(0, 1, FULL, &[9; 4096]),
                    _ => client.send(0, command_of(op), 1, FULL, 4096),
                }
                while server.server.requests_waiting_for_space() != 1 {
                    thread::sleep(Duration::from_millis(5));
                }
                tally.check(&server);
                if ends_well {
                    server.export.is_full.store(false, Ordering::SeqCst);
                } else {
                    client.stream.shutdown(Direction::Write).unwrap();
                }
                assert_eq!(client.reply(0).unwrap().error != 0, !ends_well);
                tally.expect(op, 4096, !ends_well);
                tally.check(&server);
            }
        }
        let total = server.server.statistics().durations[Op::Write];
        assert!(total.sum > DURATION_BUCKETS[0] && total.buckets[0] < 2);
    }
}

#[test]
fn connections_at_a_time_are_added_up_and_a_deleted_export_is_forgotten() {
    const CLIENTS: u64 = 4;
    const READS: u64 = 500;
    let server = TestServer::start(export());
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| server.client()).collect();
    thread::scope(|scope| {
        let mut asking = Vec::new();
        for client in &mut clients {
            asking.push(scope.spawn(move || {
                for cookie in 0..READS {
                    let offset = if cookie % 2 == 0 { OK } else { OK_WAITING };
                    client.send_read(cookie, offset, 512);
                }
                for _ in 0..READS {
                    assert_eq!(client.reply(512).unwrap().error, 0);
                }
            }));
        }
        let mut last = 0;
        while asking.iter().any(|client| !client.is_finished()) {
            let now = server.server.statistics().exports["vol"].totals;
            assert!(now.requests[Op::Read].ok >= last);
            last = now.requests[Op::Read].ok;
        }
    });
    let reads = CLIENTS * READS;
    let of_export = || server.server.statistics().exports["vol"];
    // Half of the reads need a worker; the scheduler decides how many of them find none.
    let waited_for_worker = of_export().totals.waited_for_worker;
    assert!(waited_for_worker <= reads / 2);
    let expected = |clients| onefold_nbd::ExportStatistics {
        clients,
        totals: Totals {
            requests: with(
                Op::Read,
                Outcomes {
                    ok: reads,
                    error: 0,
                },
            ),
            bytes: with(Op::Read, reads * 512),
            waited_for_worker,
        },
    };
    assert_eq!(of_export(), expected(clients.len()));
    clients.pop();
    // Only whole requests are counted, and a disconnect request is not.
    let mut last = clients.pop().unwrap();
    last.send(0, command::WRITE, 1, 0, 4096);
    last.stream.shutdown(Direction::Write).unwrap();
    assert!(last.is_closed());
    let mut last = clients.pop().unwrap();
    last.send(0, command::DISC, 1, 0, 0);
    assert!(last.is_closed());
    server.server.disconnect("vol", LONG).unwrap();
    assert_eq!(of_export(), expected(0));
    server.server.forget_statistics("vol");
    let statistics = server.server.statistics();
    assert!(statistics.exports.is_empty());
    assert_eq!(statistics.durations[Op::Read].count(), reads);
}

fn with<T: Default>(op: Op, value: T) -> PerOp<T> {
    let mut values = PerOp::default();
    values[op] = value;
    values
}
