//! Foreign clients against the server: QEMU's tools, libnbd's tools, fio, and an ext4 file
//! system made and used through a client.
//!
//! Our own tests share our own assumptions; these programs know only the protocol. Each check also
//! runs against `qemu-nbd` (`--against qemu-nbd`), which distinguishes a fault of ours from one of
//! the check.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use onefold_harness::cleanup::Scratch;
use onefold_harness::command::Cmd;
use onefold_harness::fio::{Fio, Section};
use onefold_harness::fuse::Fused;
use onefold_harness::images::{self, Image};
use onefold_harness::packages;
use onefold_harness::pools::{PoolArguments, Pools};
use onefold_harness::server::{Against, Disks, Product, Setting};
use onefold_harness::workspace::Workspace;

use crate::mirror;

/// The volume on which odd requests and an ext4 file system are tried.
const SMALL_BYTES: u64 = 128 << 20;

/// Options of `cargo xtask clients`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The server to check
    #[arg(long, value_enum, default_value_t = Against::Onefold)]
    against: Against,
    #[command(flatten)]
    pools: PoolArguments,
}

/// The environment of every check.
struct Table {
    against: Against,
    // Dropped before the directory that it works in.
    disks: Disks,
    scratch: Scratch,
    image: Image,
}

/// `cargo xtask clients`
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let pools = arguments.pools.open(workspace)?;
    check(workspace, arguments.against, pools)
}

/// Runs every check against a fresh server. The first that fails is an error.
fn check(workspace: &Workspace, against: Against, pools: Pools) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    packages::require(packages::EMULATION)?;
    let image = images::make(workspace)?
        .into_iter()
        .next()
        .context("there is no image")?;
    let scratch = Scratch::new(&workspace.scratch_parent(), "clients")?;
    let volumes = [
        ("image", image.size_bytes),
        ("copy", image.size_bytes),
        ("odd", SMALL_BYTES),
        ("ext4", SMALL_BYTES),
        ("history", SMALL_BYTES),
        ("gpt", mirror::DISK_BYTES),
    ];
    let setting = Setting {
        pools,
        ..Setting::default()
    };
    let disks = Disks::new(workspace, against, scratch.path(), &volumes, setting)?;
    let mut table = Table {
        against,
        disks,
        scratch,
        image,
    };
    let checks: [(&str, Check); 10] = [
        ("nbdinfo tells size, exports and abilities", abilities),
        ("qemu-img convert in, compare, convert out", qemu_img),
        ("nbdcopy in, across and out; nbdinfo --map", nbdcopy),
        (
            "qemu-io: odd ranges, FUA, zeroes, discard, refusal",
            qemu_io,
        ),
        (
            "QEMU mirrors a disk of whole sectors in and out",
            mirror_of_sectors,
        ),
        ("two clients on one export, on both addresses", two_clients),
        ("rude clients harm only themselves", rude_clients),
        ("ext4 made and used through nbdfuse", ext4),
        (
            "an increment copied by a dirty bitmap of a snapshot",
            increment,
        ),
        (
            "all of it is there after kill -9 and after a clean stop",
            after_restarts,
        ),
    ];
    for (title, check) in checks {
        let start = Instant::now();
        check(&mut table).with_context(|| format!("clients: {title}"))?;
        println!("  {:6.1} s  {title}", start.elapsed().as_secs_f64());
    }
    table.disks.check().context("check after all clients")?;
    table.disks.stop()
}

type Check = fn(&mut Table) -> Result<()>;

fn abilities(table: &mut Table) -> Result<()> {
    for (volume, size_bytes) in [("image", table.image.size_bytes), ("odd", SMALL_BYTES)] {
        for uri in [table.disks.uri(volume), table.disks.second_uri(volume)] {
            let size = Cmd::new("nbdinfo").args(["--size", &uri]).read()?;
            ensure!(size.trim() == size_bytes.to_string(), "{uri}: size {size}");
        }
    }
    let uri = table.disks.uri("odd");
    let list = nbdinfo_json(&["--list", &uri])?;
    let exports = list
        .get("exports")
        .and_then(Value::as_array)
        .context("no exports")?;
    let names: Vec<&str> = exports
        .iter()
        .filter_map(|export| export.get("export-name")?.as_str())
        .collect();
    ensure!(names.contains(&"odd"), "exports: {names:?}");
    if table.against != Against::Onefold {
        return Ok(());
    }
    ensure!(names.len() == 6, "every volume is an export, got {names:?}");
    ensure!(
        list.get("structured") == Some(&Value::Bool(true)),
        "no structured replies: {list}"
    );
    let odd = exports
        .iter()
        .find(|export| export.get("export-name") == Some(&"odd".into()));
    let odd = odd.context("no export odd")?;
    for ability in [
        "can_cache",
        "can_df",
        "can_fast_zero",
        "can_flush",
        "can_fua",
        "can_multi_conn",
    ]
    .into_iter()
    .chain(["can_trim", "can_zero"])
    {
        ensure!(
            odd.get(ability) == Some(&Value::Bool(true)),
            "{ability} is missing: {odd}"
        );
    }
    let contexts = odd.get("contexts").and_then(Value::as_array);
    let has_allocation = contexts.is_some_and(|all| all.contains(&"base:allocation".into()));
    ensure!(has_allocation, "no base:allocation: {odd}");
    for (key, bytes) in [("block_size_minimum", 1), ("block_size_preferred", 4096)] {
        let told = odd.get(key).map(without_comment);
        ensure!(told.as_deref() == Some(&bytes.to_string()), "{key}: {odd}");
    }
    let unknown = Cmd::new("nbdinfo")
        .arg(uri.replace("///odd", "///no-such-volume"))
        .output()?;
    ensure!(
        !unknown.status.success(),
        "an export that does not exist was opened"
    );
    Ok(())
}

/// nbdinfo prints numbers as such or, in some versions, as text with a remark.
fn without_comment(value: &Value) -> String {
    let text = value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned);
    text.split_whitespace()
        .next()
        .unwrap_or_default()
        .to_owned()
}

fn nbdinfo_json(arguments: &[&str]) -> Result<Value> {
    let text = Cmd::new("nbdinfo").arg("--json").args(arguments).read()?;
    serde_json::from_str(&text).context("nbdinfo did not print JSON")
}

fn qemu_img(table: &mut Table) -> Result<()> {
    let uri = table.disks.uri("image");
    Cmd::new("qemu-img")
        .args(["convert", "-n", "-f", "raw", "-O", "raw"])
        .arg(&table.image.path)
        .arg(&uri)
        .run()?;
    compare(&table.image.path, &table.disks.second_uri("image"))?;
    let out = table.scratch.path().join("converted-out.raw");
    Cmd::new("qemu-img")
        .args([
            "convert",
            "-f",
            "raw",
            "-O",
            "raw",
            &table.disks.uri("image"),
        ])
        .arg(&out)
        .run()?;
    same_files(&table.image.path, &out)?;
    std::fs::remove_file(&out).context("cannot remove the exported image")
}

/// `qemu-img compare` of an image file with an export.
pub(crate) fn compare(image: &Path, uri: &str) -> Result<()> {
    Cmd::new("qemu-img")
        .args(["compare", "-f", "raw", "-F", "raw"])
        .arg(image)
        .arg(uri)
        .run()
        .with_context(|| format!("{} and {uri} differ", image.display()))
}

fn same_files(a: &Path, b: &Path) -> Result<()> {
    Cmd::new("cmp").arg(a).arg(b).run()
}

fn nbdcopy(table: &mut Table) -> Result<()> {
    let (copy, out) = (
        table.disks.uri("copy"),
        table.scratch.path().join("copied-out.raw"),
    );
    Cmd::new("nbdcopy")
        .args(["--flush"])
        .arg(&table.image.path)
        .arg(&copy)
        .run()?;
    compare(&table.image.path, &copy)?;
    // The image is mostly holes: the allocated size must be close to the size of its data, and both holes and data must
    // be reported.
    let map = Cmd::new("nbdinfo")
        .args(["--map", "--json", &copy])
        .read()?;
    let map: Value = serde_json::from_str(&map).context("nbdinfo did not print JSON")?;
    let (data, all) = map_totals(&map).context("nbdinfo --map printed something unknown")?;
    ensure!(all == table.image.size_bytes, "the map covers {all} bytes");
    let expected = table.image.data_bytes;
    ensure!(
        data >= expected / 2 && data <= expected + expected / 4,
        "{data} bytes are allocated, where the image holds {expected}"
    );
    Cmd::new("nbdcopy").arg(&copy).arg(&out).run()?;
    same_files(&table.image.path, &out)?;
    std::fs::remove_file(&out).context("cannot remove the copied image")?;
    // Copy to an export with other content, which must disappear where the source has holes.
    let odd = table.disks.uri("odd");
    fill(&odd, 0xAA)?;
    fill(&table.disks.uri("ext4"), 0xBB)?;
    Cmd::new("nbdcopy")
        .args(["--flush", &table.disks.uri("ext4"), &odd])
        .run()?;
    qemu_io_run(&odd, &[format!("read -P 0xBB 0 {SMALL_BYTES}")])
}

fn fill(uri: &str, pattern: u8) -> Result<()> {
    qemu_io_run(
        uri,
        &[
            format!("write -P {pattern} 0 {SMALL_BYTES}"),
            "flush".to_owned(),
        ],
    )
}

/// Bytes with data, and all bytes, of a map by `nbdinfo`.
fn map_totals(map: &Value) -> Option<(u64, u64)> {
    let (mut data, mut all) = (0, 0);
    for extent in map.as_array()? {
        let length = extent.get("length")?.as_u64()?;
        // base:allocation: bit 0 is a hole, bit 1 reads as zeros.
        if extent.get("type")?.as_u64()? & 3 == 0 {
            data += length;
        }
        all += length;
    }
    Some((data, all))
}

/// Requests that begin and end within blocks; each is compared with the expected surroundings.
const ODD_REQUESTS: &[&str] = &[
    "write -P 0x11 0 1M",
    "write -P 0x22 1000 3000",
    "read -P 0x11 0 1000",
    "read -P 0x22 1000 3000",
    "read -P 0x11 4000 96",
    // One byte, at the end of one block and of one segment.
    "write -P 0x33 65535 1",
    "write -P 0x34 2097151 2",
    "read -P 0x11 65534 1",
    "read -P 0x33 65535 1",
    "read -P 0x11 65536 1",
    "read -P 0x34 2097151 2",
    // Zeroes and discards that cut blocks at both ends.
    "write -z 100001 50001",
    "read -P 0x11 100000 1",
    "read -P 0 100001 50001",
    "read -P 0x11 150002 1000",
    "write -z -u 200k 64k",
    "read -P 0 200k 64k",
    "discard 512k 128k",
    "read -P 0 512k 128k",
    "read -P 0x11 640k 4k",
    // Writes that are forced to stable storage, and requests that overtake each other.
    "write -f -P 0x44 300001 12345",
    "read -P 0x44 300001 12345",
    "aio_write -P 0x55 4M 1M",
    "aio_write -P 0x66 5M 1M",
    "aio_flush",
    "read -P 0x55 4M 1M",
    "read -P 0x66 5M 1M",
    "flush",
];

/// The result of [`ODD_REQUESTS`], which must be the same after a restart.
const ODD_CONTENT: &[&str] = &[
    "read -P 0x11 0 1000",
    "read -P 0x22 1000 3000",
    "read -P 0x33 65535 1",
    "read -P 0 100001 50001",
    "read -P 0 200k 64k",
    "read -P 0 512k 128k",
    "read -P 0x44 300001 12345",
    "read -P 0x34 2097151 2",
    "read -P 0x55 4M 1M",
    "read -P 0x66 5M 1M",
];

fn qemu_io(table: &mut Table) -> Result<()> {
    let uri = table.disks.uri("odd");
    // The first requests rely on zeros.
    qemu_io_run(
        &uri,
        &[
            format!("discard 0 {SMALL_BYTES}"),
            format!("read -P 0 0 {SMALL_BYTES}"),
        ],
    )?;
    qemu_io_run(&uri, &to_strings(ODD_REQUESTS))?;
    qemu_io_run(&table.disks.second_uri("odd"), &to_strings(ODD_CONTENT))?;
    // A check that cannot fail would be worth nothing.
    let wrong = qemu_io_run(&uri, &to_strings(&["read -P 0x12 0 1000"]));
    ensure!(wrong.is_err(), "qemu-io did not notice a wrong pattern");
    // The last byte, and beyond the end.
    let (last, end) = (SMALL_BYTES - 1, SMALL_BYTES);
    qemu_io_run(
        &uri,
        &[
            format!("write -P 0x77 {last} 1"),
            format!("read -P 0x77 {last} 1"),
        ],
    )?;
    let beyond = qemu_io_run(&uri, &[format!("write -P 0x77 {end} 1")]);
    ensure!(beyond.is_err(), "a write beyond the end was accepted");
    Ok(())
}

fn to_strings(requests: &[&str]) -> Vec<String> {
    requests.iter().map(ToString::to_string).collect()
}

/// Runs requests in turn. qemu-io's exit status alone does not reveal a wrong pattern.
fn qemu_io_run(uri: &str, requests: &[String]) -> Result<()> {
    let mut command = Cmd::new("qemu-io").args(["-f", "raw", "-t", "writeback"]);
    for request in requests {
        command = command.arg("-c").arg(request);
    }
    let said = command.arg(uri).read()?;
    let complaint = said.lines().find(|line| {
        ["failed", "verification", "error", "Invalid"]
            .iter()
            .any(|word| line.contains(word))
    });
    match complaint {
        Some(complaint) => bail!("qemu-io {uri}: {complaint}\n{said}"),
        None => Ok(()),
    }
}

fn mirror_of_sectors(table: &mut Table) -> Result<()> {
    mirror::there_and_back(table.scratch.path(), &table.disks.uri("gpt"))
}

fn two_clients(table: &mut Table) -> Result<()> {
    let half = SMALL_BYTES / 2;
    let job = |name: &str, uri: &str, offset: u64| {
        Section::new(name, uri)
            .set("rw", "randrw")
            .set("bsrange", "512-64k")
            .set("iodepth", 16)
            .set("offset", offset)
            .set("size", half / 2)
            .set("verify", "crc32c")
            .set("verify_fatal", 1)
            .set("end_fsync", 1)
    };
    Fio::new(table.scratch.path(), "two-clients")
        .job(job("first", &table.disks.uri("ext4"), 0))
        .job(job("second", &table.disks.second_uri("ext4"), half))
        .run()
        .map(drop)
}

fn rude_clients(table: &mut Table) -> Result<()> {
    let uri = table.disks.uri("odd");
    let (_, socket) = uri.split_once("?socket=").context("not a unix socket")?;
    let attempts: [&[u8]; 4] = [
        b"",
        b"GET / HTTP/1.0\r\n\r\n",
        // The client's flags, then half of an option's header.
        b"\0\0\0\x03IHAVEOPT\0\0",
        // An option that claims to be 4 GiB long.
        b"\0\0\0\x03IHAVEOPT\0\0\0\x07\xff\xff\xff\xff",
    ];
    for attempt in attempts {
        let mut stream = UnixStream::connect(socket).context("the server accepts nobody")?;
        // The server may close before it has read everything; both outcomes are right.
        let _ = stream.write_all(attempt);
        let mut greeting = [0; 18];
        let _ = stream.read_exact(&mut greeting);
    }
    // A client that dies while many large replies are in flight.
    let dying = Fio::new(table.scratch.path(), "dying").job(
        Section::new("dying", &table.disks.uri("image"))
            .set("rw", "read")
            .set("bs", "1m")
            .set("iodepth", 32)
            .set("time_based", 1)
            .set("runtime", 60),
    );
    let mut dying = dying.spawn()?;
    std::thread::sleep(Duration::from_millis(700));
    ensure!(dying.is_running()?, "fio ended too early\n{}", dying.said());
    drop(dying);
    qemu_io_run(&uri, &to_strings(ODD_CONTENT))
}

/// Mounts a volume as a file.
fn fused(table: &Table, volume: &str) -> Result<Fused> {
    Fused::new(table.scratch.path(), &table.disks.uri(volume))
}

fn ext4(table: &mut Table) -> Result<()> {
    let fused = fused(table, "ext4")?;
    Cmd::new("mkfs.ext4")
        .args(["-q", "-F"])
        .arg(&fused.disk)
        .run()?;
    // debugfs writes into the file system without a mount, which would need root.
    let script = table.scratch.path().join("debugfs.script");
    let mut text = String::from("mkdir /files\n");
    for (index, file) in real_files()?.iter().enumerate() {
        text.push_str(&format!("write {} /files/{index}\n", file.display()));
    }
    text.push_str("rm /files/0\nmkdir /files/deep\nsymlink /files/link deep\n");
    std::fs::write(&script, text).context("cannot write the script for debugfs")?;
    Cmd::new("debugfs")
        .args(["-w", "-f"])
        .arg(&script)
        .arg(&fused.disk)
        .run()?;
    check_ext4(table, &fused)?;
    fused.finish()
}

/// Files that every Debian machine has, and that differ in size.
fn real_files() -> Result<Vec<PathBuf>> {
    let directory = Path::new("/usr/bin");
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory)
        .and_then(Iterator::collect::<std::io::Result<Vec<_>>>)
        .context("cannot list /usr/bin")?
        .into_iter()
        .map(|entry| entry.path())
        .filter(|path| {
            path.symlink_metadata()
                .is_ok_and(|m| m.is_file() && m.len() < 1 << 20)
        })
        .filter(|path| std::fs::File::open(path).is_ok())
        .collect();
    files.sort();
    files.truncate(100);
    ensure!(files.len() > 1, "there are no files in /usr/bin");
    Ok(files)
}

fn check_ext4(table: &Table, fused: &Fused) -> Result<()> {
    Cmd::new("e2fsck")
        .args(["-f", "-n"])
        .arg(&fused.disk)
        .run()?;
    let out = table.scratch.path().join("dumped");
    std::fs::create_dir_all(&out).context("cannot make a directory")?;
    let dump = format!("rdump /files {}", out.display());
    Cmd::new("debugfs")
        .args(["-R", &dump])
        .arg(&fused.disk)
        .run()?;
    for (index, file) in real_files()?.iter().enumerate().skip(1) {
        same_files(file, &out.join("files").join(index.to_string()))?;
    }
    ensure!(!out.join("files/0").exists(), "a removed file is back");
    std::fs::remove_dir_all(&out).context("cannot remove the dumped files")
}

/// Makes a full copy of a snapshot, and updates it to the next snapshot with the dirty blocks of the bitmap.
fn increment(table: &mut Table) -> Result<()> {
    let Some(product) = table.disks.product() else {
        return Ok(());
    };
    let snapshot = |name| product.command().args(["snapshot", "create", name]).run();
    let uri = table.disks.uri("history");
    fill(&uri, 0x11)?;
    snapshot("history@one")?;
    let backup = backup(table);
    Cmd::new("nbdcopy")
        .arg(table.disks.uri("history@one"))
        .arg(&backup)
        .run()?;
    let edge = SMALL_BYTES - 5000;
    let last = format!("write -P 0x33 {edge} 5000");
    let mut changes = to_strings(&["write -P 0x22 1000 300k", "write -z 8M 1M"]);
    changes.extend(to_strings(&["discard 20M 64k", &last, "flush"]));
    qemu_io_run(&uri, &changes)?;
    snapshot("history@two")?;
    qemu_io_run(&uri, &to_strings(&["write -P 0x44 40M 1M", "flush"]))?;
    let target = table.disks.uri("history@two");
    ensure!(
        compare(&backup, &target).is_err(),
        "nothing changed, so there is nothing to copy"
    );
    let dirty = dirty_ranges(&target, SMALL_BYTES)?;
    let told = diff_ranges(product)?;
    ensure!(dirty == told, "bitmap {dirty:?}, snapshot diff {told:?}");
    let by_qemu = dirty_ranges_by_qemu(table)?;
    ensure!(dirty == by_qemu, "nbdinfo {dirty:?}, QEMU {by_qemu:?}");
    let bytes: u64 = dirty.iter().map(|(_, length)| length).sum();
    ensure!(bytes < 2 << 20, "{bytes} bytes are told to have changed");
    let fused = fused(table, "history@two")?;
    for (offset, length) in dirty {
        Cmd::new("dd")
            .arg(format!("if={}", fused.disk.display()))
            .arg(format!("of={}", backup.display()))
            .args(["iflag=skip_bytes,count_bytes", "oflag=seek_bytes"])
            .arg(format!("skip={offset}"))
            .arg(format!("seek={offset}"))
            .arg(format!("count={length}"))
            .args(["bs=1M", "conv=notrunc", "status=none"])
            .run()?;
    }
    fused.finish()?;
    compare(&backup, &target)
}

fn backup(table: &Table) -> PathBuf {
    table.scratch.path().join("backup.raw")
}

/// Offsets and lengths of the changes since snapshot `one`.
type Ranges = Vec<(u64, u64)>;

fn dirty_ranges(uri: &str, size_bytes: u64) -> Result<Ranges> {
    let map = nbdinfo_json(&["--map=qemu:dirty-bitmap:one", uri])?;
    let ranges = ranges(&map, |extent| extent.get("type") == Some(&1.into()))?;
    let everything = self::ranges(&map, |_| true)?;
    ensure!(
        everything == [(0, size_bytes)],
        "the map covers {everything:?}"
    );
    Ok(ranges)
}

/// Reads the dirty ranges with QEMU, which shows them as if they had no data.
fn dirty_ranges_by_qemu(table: &Table) -> Result<Ranges> {
    let uri = table.disks.uri("history@two");
    let (_, socket) = uri.split_once("?socket=").context("not a unix socket")?;
    let options = format!(
        "driver=nbd,server.type=unix,server.path={socket},export=history@two,\
         x-dirty-bitmap=qemu:dirty-bitmap:one"
    );
    let map = Cmd::new("qemu-img")
        .args(["map", "--output=json", "--image-opts", &options])
        .read()?;
    let map = serde_json::from_str(&map).context("qemu-img did not print JSON")?;
    ranges(&map, |extent| {
        extent.get("data") == Some(&Value::Bool(false))
    })
}

fn diff_ranges(product: &Product) -> Result<Ranges> {
    let diff = product
        .command()
        .args(["--format", "json", "snapshot", "diff"])
        .args(["history@one", "history@two"])
        .read()?;
    let diff: Value = serde_json::from_str(&diff).context("snapshot diff did not print JSON")?;
    ranges(diff.get("extents").unwrap_or(&Value::Null), |_| true)
}

/// The wanted extents of a list, in order, neighbours joined.
fn ranges(list: &Value, is_wanted: impl Fn(&Value) -> bool) -> Result<Ranges> {
    let mut ranges = Ranges::new();
    let list = list.as_array().context("not a list of extents")?;
    for extent in list.iter().filter(|extent| is_wanted(extent)) {
        // QEMU uses `start` where the others use `offset`.
        let number = |key| extent.get(key).and_then(Value::as_u64);
        let offset = number("offset").filter(|_| extent.get("start").is_none());
        let (Some(offset), Some(length)) = (offset.or(number("start")), number("length")) else {
            bail!("an extent without offset or length: {extent}");
        };
        match ranges.last_mut() {
            Some((start, len)) if *start + *len == offset => *len += length,
            _ => ranges.push((offset, length)),
        }
    }
    Ok(ranges)
}

fn after_restarts(table: &mut Table) -> Result<()> {
    // Every client above ended with a flush, so a kill must lose nothing of it.
    table.disks.kill()?;
    table.disks.start()?;
    everything_is_there(table).context("after kill -9")?;
    table.disks.stop()?;
    table.disks.start()?;
    let replayed = table.disks.records_replayed()?;
    ensure!(
        replayed == 0,
        "{replayed} records were replayed after a clean stop"
    );
    everything_is_there(table).context("after a clean stop")
}

fn everything_is_there(table: &Table) -> Result<()> {
    for volume in ["image", "copy"] {
        compare(&table.image.path, &table.disks.uri(volume))?;
    }
    qemu_io_run(&table.disks.uri("odd"), &to_strings(ODD_CONTENT))?;
    if table.against == Against::Onefold {
        compare(&backup(table), &table.disks.uri("history@two"))?;
    }
    let fused = fused(table, "ext4")?;
    check_ext4(table, &fused)?;
    fused.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_totals_counts_holes_and_zeros_as_no_data() {
        let map = serde_json::json!([
            {"offset": 0, "length": 4096, "type": 0, "description": "data"},
            {"offset": 4096, "length": 100, "type": 3, "description": "hole,zero"},
            {"offset": 4196, "length": 10, "type": 2, "description": "zero"},
        ]);
        assert_eq!(map_totals(&map), Some((4096, 4206)));
        assert_eq!(map_totals(&serde_json::json!([{"length": 1}])), None);
    }
}
