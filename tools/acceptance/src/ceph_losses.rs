//! A cluster that loses objects, is full, or refuses rights: the product reports each of these, and users can make room
//! without the cluster's administrator.
//!
//! 1. Objects of the data are removed below a volume. Each block either has the content last written or gives an error
//!    that names the object, also after guests have written to its neighbours; none reads as zeros. A backup of the
//!    volume fails.
//! 2. The cluster is full. Guests trim, snapshots are made and deleted, volumes are deleted, the daemon is killed and
//!    started, and another host takes the pool.
//! 3. A user without the right to fence a dead host can neither make nor open a pool.
//! 4. The Ceph pool is deleted below a daemon: its guests get errors, and it ends.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use onefold_nbd::client::Client;
use rustix::process::Signal;
use serde_json::Value;

use crate::ceph_faults::set_full;
use onefold_harness::ceph::{Cluster, POOL};
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::{Cmd, last_lines};
use onefold_harness::packages;
use onefold_harness::pools::{Ceph, Pools};
use onefold_harness::server::{Address, Daemon, Product};
use onefold_harness::workspace::Workspace;

const BLOCK_BYTES: usize = 4096;

/// The size of a volume: three objects, and parts of others.
const VOLUME_BYTES: u64 = 16 << 20;

/// The Ceph pool that is deleted.
const GONE: &str = "onefold-gone";

/// A user without the right to change the blocklist.
const NO_FENCE: &str = "onefold-no-fence";

/// How long a cluster may take to notice that it is full, or a daemon that its pool is gone.
const NOTICE_LIMIT: Duration = Duration::from_secs(60);

/// How many seconds a command may take in a full cluster, where it must not wait.
const FULL_LIMIT: &str = "60";

/// `cargo xtask ceph-losses`
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    let pools = Pools::Ceph(Ceph::open(workspace, POOL)?.into());
    let ceph = pools.ceph().context("no cluster")?;
    let cluster = ceph.must_be_throw_away()?;
    let scratch = Scratch::new(&workspace.scratch_parent(), "losses")?;
    let product = Product::build_in(workspace, &pools, scratch.path())?;
    product.create_pool("4G")?;
    let bench = Bench {
        product,
        cluster,
        scratch,
    };
    let steps: [(&str, Step); 4] = [
        ("objects are lost", lost_objects),
        ("the cluster is full", full),
        ("a right is missing", no_right),
        ("the Ceph pool is deleted", deleted),
    ];
    for (title, step) in steps {
        let start = Instant::now();
        let said = step(&bench).with_context(|| format!("ceph-losses: {title}"))?;
        println!("  {:6.1} s  {title}: {said}", start.elapsed().as_secs_f64());
    }
    Ok(())
}

struct Bench<'a> {
    // Dropped before the cluster and the directory that the pool is in.
    product: Product,
    cluster: &'a Cluster,
    scratch: Scratch,
}

type Step = fn(&Bench<'_>) -> Result<String>;

impl Bench<'_> {
    /// Runs a command on the pool, which must end although the cluster is full.
    fn command(&self, product: &Product, arguments: &[&str]) -> Result<()> {
        let command = Cmd::new("timeout").arg(FULL_LIMIT).arg(product.binary());
        let command = command.arg("--pool").arg(product.place().name());
        let command = product.place().found_by(command);
        let ended = command.arg("--quiet").args(arguments).run();
        ended.with_context(|| format!("{arguments:?} does not end well"))
    }

    fn rados(&self, arguments: &[&str]) -> Result<String> {
        let name = self.product.place().name();
        let (_, namespace) = name.rsplit_once('/').context("the pool has no name")?;
        let rados = self.cluster.client("rados").args(["--pool", POOL]);
        rados
            .args(["--namespace", namespace])
            .args(arguments)
            .read()
    }
}

fn connect(address: &Address, volume: &str) -> Result<Client> {
    let uri = address.uri(volume).parse();
    let address = uri.map_err(|error: String| anyhow!(error))?;
    Ok(Client::connect(&address)?)
}

/// Makes a volume of distinct blocks, and flushes it.
fn filled(product: &Product, volume: &str) -> Result<Client> {
    let size = VOLUME_BYTES.to_string();
    let create = ["--quiet", "volume", "create", volume, "--size", &size];
    product.command().args(create).run()?;
    let mut client = connect(&product.default_address(), volume)?;
    for at in (0..VOLUME_BYTES).step_by(1 << 20) {
        let piece: Vec<u8> = (0..1_u64 << 20)
            .step_by(BLOCK_BYTES)
            .flat_map(|within| block(volume, at + within))
            .collect();
        client.write(0, &piece, at)?;
    }
    client.flush()?;
    Ok(client)
}

/// The content of the block at this place of a volume.
fn block(volume: &str, at: u64) -> Vec<u8> {
    let words = format!("{volume} {at} ").into_bytes();
    words.into_iter().cycle().take(BLOCK_BYTES).collect()
}

fn lost_objects(bench: &Bench<'_>) -> Result<String> {
    let product = &bench.product;
    let daemon = product.serve(&[], &[])?;
    let mut client = filled(product, "lost")?;
    bench.command(product, &["snapshot", "create", "lost@before"])?;
    let objects = bench.rados(&["ls"])?;
    let mut data: Vec<&str> = objects
        .lines()
        .filter(|name| name.starts_with("d."))
        .collect();
    data.sort_unstable();
    // The first one has the label of the data, without which no daemon starts.
    let removed = data.get(1..3).context("the data has too few objects")?;
    for object in removed {
        bench.rados(&["rm", object])?;
    }
    let missing = errors_of(&mut client, "lost")?;
    ensure!(missing > 0, "no read missed the objects {removed:?}");
    let said = daemon.said();
    // At least one of them: many failures of a volume in a short time are counted instead of logged.
    ensure!(
        removed.iter().any(|object| said.contains(object)),
        "the log names none of the objects {removed:?}\n{}",
        last_lines(&said)
    );
    backup_fails(bench)?;
    // Write every sixteenth block again, which creates its object again.
    for at in (0..VOLUME_BYTES).step_by(16 * BLOCK_BYTES) {
        client.write(0, &block("lost", at), at)?;
    }
    client.flush()?;
    let still = errors_of(&mut client, "lost")?;
    ensure!(
        0 < still && still < missing,
        "of {missing} blocks that were lost, {still} are after writes to some of them"
    );
    drop(client);
    for name in ["lost@before", "lost"] {
        let kind = if name.contains('@') {
            "snapshot"
        } else {
            "volume"
        };
        bench.command(product, &[kind, "delete", "--yes", name])?;
    }
    daemon.stop()?;
    Ok(format!(
        "{missing} blocks were errors, and {still} after writes to their neighbours"
    ))
}

/// Counts the blocks that cannot be read. Every other block must have the content written.
fn errors_of(client: &mut Client, volume: &str) -> Result<u64> {
    let mut errors = 0;
    let mut found = vec![0; BLOCK_BYTES];
    for at in (0..VOLUME_BYTES).step_by(BLOCK_BYTES) {
        match client.read(&mut found, at) {
            Err(_) => errors += 1,
            Ok(()) => ensure!(
                found == block(volume, at),
                "the block at {at} is not what was written, without an error"
            ),
        }
    }
    Ok(errors)
}

fn backup_fails(bench: &Bench<'_>) -> Result<()> {
    let repository = bench.scratch.path().join("repository");
    let backup = |arguments: &[&str]| {
        let command = bench.product.command().arg("backup").args(arguments);
        let command = command.env("ONEFOLD_REPOSITORY", &repository);
        command.env("ONEFOLD_NO_ENCRYPTION", "1").output()
    };
    let made = backup(&["init"])?;
    ensure!(made.status.success(), "no repository was made");
    let ended = backup(&["create", "lost@before"])?;
    ensure!(
        !ended.status.success(),
        "a backup of what was lost ended well"
    );
    Ok(())
}

fn full(bench: &Bench<'_>) -> Result<String> {
    let product = &bench.product;
    let daemon = product.serve(&[], &[])?;
    let mut client = filled(product, "kept")?;
    drop(filled(product, "first")?);
    drop(filled(product, "second")?);
    set_full(bench.cluster, true)?;
    let ended = notice_full(bench.cluster)
        .and_then(|()| make_room(bench, daemon, &mut client))
        .and_then(|daemon| take_full(bench, daemon));
    // Undone in any case, because the cluster may not be a throw-away one.
    set_full(bench.cluster, false)?;
    let (daemon, second) = ended?;
    let mut client = connect(&second.default_address(), "kept")?;
    for at in (VOLUME_BYTES / 2..VOLUME_BYTES).step_by(BLOCK_BYTES) {
        let mut found = vec![0; BLOCK_BYTES];
        client.read(&mut found, at)?;
        ensure!(found == block("kept", at), "the block at {at} is another");
    }
    drop(client);
    daemon.stop()?;
    second.check()?;
    Ok("trims, snapshots, deletions, a restart and a take-over".to_owned())
}

fn notice_full(cluster: &Cluster) -> Result<()> {
    let start = Instant::now();
    loop {
        let pools = cluster.ceph(&["osd", "pool", "ls", "detail", "--format", "json"])?;
        let pools: Value = serde_json::from_str(&pools).context("ceph printed no JSON")?;
        let of_ours = pools.as_array().and_then(|pools| {
            let mut pools = pools.iter();
            pools.find(|pool| pool["pool_name"] == POOL)
        });
        let flags = of_ours.and_then(|pool| pool["flags_names"].as_str());
        if flags.is_some_and(|flags| flags.split(',').any(|flag| flag == "full")) {
            return Ok(());
        }
        ensure!(
            start.elapsed() < NOTICE_LIMIT,
            "the cluster does not notice that it is full"
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Runs the operations that make room, and a restart of the daemon, in a full cluster. Returns the new daemon.
fn make_room(bench: &Bench<'_>, daemon: Daemon, client: &mut Client) -> Result<Daemon> {
    let product = &bench.product;
    client.trim(0, (VOLUME_BYTES / 4) as usize)?;
    client.flush()?;
    for command in [
        &["snapshot", "create", "kept@full"][..],
        &["volume", "delete", "--yes", "first"],
        &["snapshot", "delete", "--yes", "kept@full"],
    ] {
        bench.command(product, command)?;
    }
    daemon.kill()?;
    product.serve(&[], &[])
}

/// Has a second host take the pool from a frozen one, in a full cluster.
fn take_full(bench: &Bench<'_>, daemon: Daemon) -> Result<(Daemon, Product)> {
    daemon.signal(Signal::STOP)?;
    let second = bench.product.on_host("second")?;
    let taken = second.serve(&["--patience", "1s"], &[]);
    drop(daemon);
    let taken = taken?;
    let mut client = connect(&second.default_address(), "kept")?;
    client.trim(VOLUME_BYTES / 4, (VOLUME_BYTES / 4) as usize)?;
    client.flush()?;
    bench.command(&second, &["volume", "delete", "--yes", "second"])?;
    Ok((taken, second))
}

fn no_right(bench: &Bench<'_>) -> Result<String> {
    let user = format!("client.{NO_FENCE}");
    let caps = ["mon", "allow r", "osd", "allow rwx pool=onefold"];
    let key = ["auth", "get-or-create", &user];
    let key = bench.cluster.ceph(&[&key[..], &caps].concat())?;
    let keyring = bench.scratch.path().join("no-fence.keyring");
    std::fs::write(&keyring, key).context("cannot write a keyring")?;
    let conf = std::fs::read_to_string(bench.cluster.conf()).context("cannot read ceph.conf")?;
    let lines = conf.lines().map(|line| {
        if line.starts_with("keyring = ") {
            format!("keyring = {}\n", keyring.display())
        } else {
            format!("{line}\n")
        }
    });
    let conf = bench.scratch.path().join("no-fence.conf");
    std::fs::write(&conf, lines.collect::<String>()).context("cannot write a ceph.conf")?;
    let new = format!("ceph:{POOL}/refused");
    let ours = bench.product.place().name();
    let refused = refused(bench, &conf, &["pool", "create", &new, "--size", "1G"])
        .and_then(|_| refused(bench, &conf, &["--pool", &ours, "serve"]));
    bench.cluster.ceph(&["auth", "rm", &user])?;
    let sentence = refused?;
    let objects = bench.cluster.client("rados");
    let objects = objects.args(["--pool", POOL, "--namespace", "refused", "ls"]);
    ensure!(objects.read()?.is_empty(), "a pool was made all the same");
    Ok(sentence)
}

fn refused(bench: &Bench<'_>, conf: &Path, arguments: &[&str]) -> Result<String> {
    let run = bench.scratch.path().join("refused");
    let command = Cmd::new(bench.product.binary()).args(arguments);
    let command = command.arg("--run").arg(run).arg("--ceph-conf").arg(conf);
    let output = command.args(["--ceph-user", NO_FENCE]).output()?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    ensure!(
        output.status.code() == Some(1) && said.contains("mon 'profile rbd'"),
        "{arguments:?} ended with {}: {said}",
        output.status
    );
    Ok(said.lines().last().unwrap_or_default().to_owned())
}

fn deleted(bench: &Bench<'_>) -> Result<String> {
    let cluster = bench.cluster;
    cluster.ceph(&["osd", "pool", "create", GONE, "1", "1"])?;
    let run = bench.scratch.path().join("gone");
    let place = format!("ceph:{GONE}/x");
    let found = |command: Cmd| {
        (command.arg("--run").arg(&run))
            .arg("--ceph-conf")
            .arg(cluster.conf())
    };
    let onefold = || Cmd::new(bench.product.binary());
    let create = onefold().args(["--quiet", "pool", "create", &place]);
    found(create).args(["--size", "1G"]).run()?;
    let on_pool = || found(onefold().args(["--pool", &place]));
    let address = Address::Unix(run.join("nbd.sock"));
    let log = bench.scratch.path().join("gone.log");
    let mut daemon = Daemon::start(on_pool().arg("serve"), std::slice::from_ref(&address), &log)?;
    let create = ["--quiet", "volume", "create", "v", "--size", "16M"];
    on_pool().args(create).run()?;
    let mut client = connect(&address, "v")?;
    client.write(0, &block("v", 0), 0)?;
    client.flush()?;
    let delete = [
        "osd",
        "pool",
        "delete",
        GONE,
        GONE,
        "--yes-i-really-really-mean-it",
    ];
    cluster.ceph(&delete)?;
    let start = Instant::now();
    let mut found = vec![0; BLOCK_BYTES];
    while client.read(&mut found, 0).is_ok() {
        ensure!(
            found == block("v", 0),
            "the block is not what was written, without an error"
        );
        ensure!(
            start.elapsed() < NOTICE_LIMIT,
            "a guest still reads from a Ceph pool that is gone"
        );
    }
    let status = daemon.wait_for_end(NOTICE_LIMIT)?;
    let said = daemon.said();
    ensure!(
        status.code() == Some(1) && said.contains("no more: its head is gone"),
        "the daemon ended with {status}\n{}",
        last_lines(&said)
    );
    Ok("an error for the guest, and the end of the daemon".to_owned())
}
