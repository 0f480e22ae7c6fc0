//! Listening, attaching, cutting off, shutting down.

use crate::client::Client;
use crate::memory::{MemoryExport, pattern};
use crate::{TestExports, TestServer};
use onefold_nbd::{
    HANDSHAKES_MAX, ListenAddress, ListenError, ListenOptions, Listener, Op, Peer, Server,
    ServerLimits, Shutdown,
};
use std::fs;
use std::io::Read;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const SIZE: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

fn bind(address: &str, options: &ListenOptions) -> Result<Listener, ListenError> {
    Listener::bind(&address.parse().unwrap(), options)
}

#[test]
fn clients_are_known_by_export_and_process() {
    let server = TestServer::start(MemoryExport::new(SIZE));
    let mut client = server.client();
    client.read(0, 4096);
    let _idle = UnixStream::connect(&server.socket).unwrap();
    let clients = server.server.clients();
    assert_eq!(clients.len(), 1);
    assert_eq!(
        (
            clients[0].export.as_str(),
            clients[0].totals.bytes[Op::Read]
        ),
        ("vol", 4096)
    );
    let Peer::Unix { pid, .. } = clients[0].peer else {
        panic!("{:?}", clients[0].peer)
    };
    assert_eq!(pid.cast_unsigned(), std::process::id());
}

#[test]
fn disconnect_waits_for_requests_under_way() {
    let export = MemoryExport {
        gated: vec![0..4096],
        ..MemoryExport::new(SIZE)
    };
    let server = TestServer::start(export);
    let mut client = server.client();
    client.send_read(1, 0, 4096);
    server.export.wait_for_waiting(1);
    server.exports.barred.store(true, Ordering::SeqCst);
    assert_eq!(server.server.disconnect("other", LONG), Ok(0));
    assert_eq!(server.server.disconnect("vol", Duration::ZERO), Err(1));
    assert!(server.exports.attached.load(Ordering::SeqCst) > 0);
    server.export.open_gate();
    assert!(server.server.disconnect("vol", LONG).is_ok());
    assert_eq!(server.exports.attached.load(Ordering::SeqCst), 0);
    assert!(client.is_closed());
    let refused = Client::try_attach(&server.socket, true).err().unwrap();
    assert_eq!(refused.to_string(), "it is being deleted");
    assert_eq!(server.server.clients(), []);
}

#[test]
fn shutdown_answers_what_was_read_and_removes_the_socket() {
    let export = MemoryExport {
        gated: vec![0..SIZE],
        ..MemoryExport::new(SIZE)
    };
    let server = TestServer::start(export);
    let mut client = server.client();
    for cookie in 0..32 {
        client.send_read(cookie, cookie * 4096, 4096);
    }
    server.export.wait_for_waiting(32);
    thread::scope(|scope| {
        let shutdown = scope.spawn(|| server.server.shutdown(LONG));
        // The end of the listening socket shows that the shutdown has begun.
        while UnixStream::connect(&server.socket).is_ok() {
            thread::yield_now();
        }
        server.export.open_gate();
        let mut cookies: Vec<u64> = (0..32)
            .map(|_| client.reply(4096).unwrap().cookie)
            .collect();
        cookies.sort_unstable();
        assert!(cookies.into_iter().eq(0..32));
        assert!(client.is_closed());
        assert_eq!(
            shutdown.join().unwrap(),
            Shutdown {
                cut_off: 0,
                quiet: true
            }
        );
    });
    assert!(!server.socket.exists());
}

#[test]
fn shutdown_cuts_off_who_does_not_take_its_replies() {
    let server = TestServer::start(MemoryExport::new(SIZE));
    let mut client = server.client();
    for cookie in 0..16 {
        client.send_read(cookie, 0, 1 << 20);
    }
    client.read_bytes(1).unwrap();
    // Whether all threads end within the time left depends on the machine.
    let shutdown = server.server.shutdown(Duration::from_millis(50));
    assert_eq!(shutdown.cut_off, 1);
    while !server.server.clients().is_empty() {
        thread::yield_now();
    }
}

/// A server for two clients.
fn for_two() -> TestServer {
    let limits = ServerLimits {
        connections: 2,
        ..ServerLimits::default()
    };
    TestServer::with_limits(MemoryExport::new(SIZE), &limits)
}

#[test]
fn clients_beyond_the_limit_are_refused() {
    let server = for_two();
    let (mut first, mut second) = (server.client(), server.client());
    assert_eq!(second.read(9, 1)[0], pattern(9));
    assert_eq!(first.read(9, 1)[0], pattern(9));
    let refused = Client::try_attach(&server.socket, true).err().unwrap();
    assert!(
        refused.to_string().contains("that is the limit"),
        "{refused}"
    );
    assert_eq!(first.read(9, 1)[0], pattern(9));
    drop(second);
    while server.server.clients().len() > 1 {
        thread::yield_now();
    }
    assert_eq!(server.client().read(9, 1)[0], pattern(9));
}

#[test]
fn silent_connections_keep_no_client_out() {
    let server = for_two();
    // More connections than places, and later ones wait to be accepted.
    let silent: Vec<UnixStream> = (0..HANDSHAKES_MAX + 10)
        .map(|_| UnixStream::connect(&server.socket).unwrap())
        .collect();
    let mut client = server.client();
    assert_eq!(client.read(9, 1)[0], pattern(9));
    // Nor do clients that attach and then send nothing, and they do not push others out.
    let mut attached = server.client();
    let mut other = server.client();
    assert_eq!(other.read(9, 1)[0], pattern(9));
    assert!(attached.is_closed());
    assert_eq!(client.read(9, 1)[0], pattern(9));
    drop(silent);
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nbd.sock");
    let address = format!("unix:{}", path.display());
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let options = ListenOptions {
        unix_mode: 0o666,
        ..ListenOptions::default()
    };
    let listener = bind(&address, &options).unwrap();
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o666
    );
    assert!(matches!(
        bind(&address, &options),
        Err(ListenError::InUse(_))
    ));
    assert!(UnixStream::connect(&path).is_ok());
    drop(listener);
    assert!(!path.exists());
    fs::write(&path, "precious").unwrap();
    assert!(matches!(
        bind(&address, &options),
        Err(ListenError::NotASocket(_))
    ));
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn a_socket_never_has_other_permissions_than_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", directory.path().join("nbd.sock").display());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        // Under any temporary name.
        let watch = scope.spawn(|| {
            let mut others = Vec::new();
            while !done.load(Ordering::Acquire) {
                let entries = fs::read_dir(directory.path()).unwrap();
                let found =
                    entries.filter_map(|entry| fs::symlink_metadata(entry.ok()?.path()).ok());
                let modes = found.map(|found| found.permissions().mode() & 0o777);
                others.extend(modes.filter(|mode| *mode != 0o600));
            }
            others
        });
        for _ in 0..1000 {
            bind(&address, &ListenOptions::default()).unwrap();
        }
        done.store(true, Ordering::Release);
        assert_eq!(watch.join().unwrap(), [0; 0]);
    });
}

#[test]
fn addresses() {
    assert_eq!("unix:/a b".parse(), Ok(ListenAddress::Unix("/a b".into())));
    assert_eq!(
        "[::1]:0".parse(),
        Ok(ListenAddress::Tcp("[::1]:0".to_owned()))
    );
    for bad in [
        "",
        "unix:",
        "localhost",
        ":10809",
        "host:port",
        "/run/nbd.sock",
    ] {
        assert!(bad.parse::<ListenAddress>().is_err(), "{bad}");
    }
}

#[test]
fn tcp_is_for_this_machine_unless_allowed() {
    let exposed = bind("0.0.0.0:0", &ListenOptions::default());
    assert!(matches!(exposed, Err(ListenError::NotLoopback { .. })));
    let allowed = ListenOptions {
        insecure_listen: true,
        ..ListenOptions::default()
    };
    assert!(bind("0.0.0.0:0", &allowed).is_ok());
    let listener = bind("127.0.0.1:0", &ListenOptions::default()).unwrap();
    let ListenAddress::Tcp(address) = listener.address().clone() else {
        panic!()
    };
    assert!(matches!(
        bind(&address, &ListenOptions::default()),
        Err(ListenError::InUse(_))
    ));
    let exports = Arc::new(TestExports::new(Arc::new(MemoryExport::new(SIZE))));
    let server = Server::start(vec![listener], exports, &ServerLimits::default()).unwrap();
    let mut greeting = [0; 18];
    TcpStream::connect(address)
        .unwrap()
        .read_exact(&mut greeting)
        .unwrap();
    assert_eq!(&greeting[..8], b"NBDMAGIC");
    drop(server);
}
