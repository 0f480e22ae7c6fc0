//! A disk of whole sectors, but not of whole blocks, with a partition table that has a copy in its last
//! sector: moved in and out by QEMU, which refuses a target of another size.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use onefold_harness::command::Cmd;
use serde_json::{Value, json};

/// The disk: one sector more than 64 MiB.
pub(crate) const DISK_BYTES: u64 = (64 << 20) + 512;

/// The time limit of both directions on the slowest machine.
const MIRROR_TIME_MAX: Duration = Duration::from_secs(120);

/// Makes the disk, mirrors it to the export and back, and checks the copy.
pub(crate) fn there_and_back(directory: &Path, uri: &str) -> Result<()> {
    let (disk, copy) = (directory.join("gpt.raw"), directory.join("gpt-copy.raw"));
    for file in [&disk, &copy] {
        File::create(file)
            .and_then(|file| file.set_len(DISK_BYTES))
            .with_context(|| format!("cannot make {}", file.display()))?;
    }
    Cmd::new("sgdisk").arg("--new=1:2048:0").arg(&disk).run()?;
    check_partitions(&disk)?;
    let (_, socket) = uri.split_once("?socket=").context("not a Unix socket")?;
    let name = uri.trim_start_matches("nbd+unix:///");
    let (name, _) = name.split_once('?').context("no export in the address")?;
    let export = json!({
        "driver": "nbd", "export": name, "server": { "type": "unix", "path": socket },
    });
    let file =
        |path: &Path| json!({ "driver": "raw", "file": { "driver": "file", "filename": path } });
    mirror(directory, file(&disk), export.clone())?;
    mirror(directory, export, file(&copy))?;
    Cmd::new("cmp").arg(&disk).arg(&copy).run()?;
    check_partitions(&copy)
}

/// Checks that both headers of the partition table are at the places that they state.
fn check_partitions(disk: &Path) -> Result<()> {
    let said = Cmd::new("sgdisk").arg("--verify").arg(disk).read()?;
    ensure!(said.contains("No problems found"), "{said}");
    Ok(())
}

/// Runs QEMU's block job as "move disk" and `blockcopy` do.
fn mirror(directory: &Path, mut from: Value, mut to: Value) -> Result<()> {
    from["node-name"] = "from".into();
    to["node-name"] = "to".into();
    let log = directory.join("mirror.log");
    let _ = std::fs::remove_file(&log);
    let mut daemon = Cmd::new("qemu-storage-daemon")
        .args(["--chardev", "stdio,id=c", "--monitor", "chardev=c"])
        .spawn_piped(&log)?;
    let mut monitor = daemon.take_stdin()?;
    let mut ask = |command: &str, arguments: Value| {
        let request = json!({ "execute": command, "arguments": arguments });
        writeln!(monitor, "{request}").with_context(|| {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            format!("QEMU ended before it took {command}: {said}")
        })
    };
    ask("qmp_capabilities", json!({}))?;
    ask("blockdev-add", from)?;
    ask("blockdev-add", to)?;
    let job = json!({ "job-id": "m", "device": "from", "target": "to", "sync": "full" });
    ask("blockdev-mirror", job)?;
    wait_for(&log, "BLOCK_JOB_READY")?;
    ask("block-job-complete", json!({ "device": "m" }))?;
    wait_for(&log, "BLOCK_JOB_COMPLETED")?;
    // On a busy machine QEMU 7.2 may end by itself here, after its job. The copy is compared all the same.
    let asked = ask("quit", json!({}));
    let ended = daemon.wait_at_most(Duration::from_secs(30))?;
    if let Err(error) = asked {
        println!("  (QEMU was not asked to end, which it did by itself, {ended}: {error})");
        return Ok(());
    }
    ensure!(ended.success(), "qemu-storage-daemon: {ended}");
    Ok(())
}

/// Waits for an event. An error that QEMU reports first is returned.
fn wait_for(log: &Path, event: &str) -> Result<()> {
    let started = Instant::now();
    loop {
        let said = std::fs::read_to_string(log).context("cannot read QEMU's answers")?;
        if said.contains("\"error\"") {
            bail!("QEMU cannot mirror: {said}");
        }
        if said.contains(event) {
            return Ok(());
        }
        ensure!(started.elapsed() < MIRROR_TIME_MAX, "no {event}: {said}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
