//! A real guest that outlives its server: Linux in QEMU, whose disks are volumes.
//!
//! The guest is emulated, so no KVM is needed. It has a disk without a file system, which fio uses, and one with ext4.
//! QEMU waits while the server is gone, so the guest sees only a slow disk when the server gets a SIGKILL and is
//! started again:
//! 1. while fio writes blocks of 4 KiB at random, unflushed;
//! 2. when fio has written everything, unflushed, before it reads and compares in the guest;
//! 3. while files are copied to the ext4 file system and older ones discarded.
//!
//! In the end another guest runs on a backup of the files, which is served from its repository.
//!
//! Every byte is compared in the guest: each block holds the round's number and its own offset, and
//! copied files are compared with their originals after `e2fsck` has found nothing. The server's
//! cache mode changes with each start, and each of the kills meets both in two rounds.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ChildStdin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::forgetful::must_be_found_out;
use crate::guest_backup;
use crate::guest_image::GuestImage;
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::{Cmd, Running, last_lines};
use onefold_harness::packages;
use onefold_harness::pools::{PoolArguments, Pools};
use onefold_harness::server::{Against, Disks, STOP_LIMIT, Setting, VolumeSpec};
use onefold_harness::workspace::Workspace;

/// The guest's disks, in the order of their names there: `vda` and `vdb`.
const DISKS: [VolumeSpec; 2] = [("blocks", 64 << 20), ("files", 256 << 20)];

/// How much the guest has written when a kill comes in the middle.
const BLOCKS_KILL_BYTES: u64 = 8 << 20;
const FILES_KILL_BYTES: u64 = 24 << 20;

/// The files that the guest boots with, of a few hundred different sizes.
pub(crate) const FILES: &str = "/bin /lib";

/// The second round reads the data of the first, in the other cache mode.
const ROUNDS: u64 = 2;

/// The time limit of a guest, after which it counts as hung.
const TIME_LIMIT: Duration = Duration::from_secs(900);

/// Printed on the console at the end of each command, before its status.
const STATUS: &str = "guest: status ";

/// Printed on the console when a command has written enough for the kill.
const WRITING: &str = "guest: writing";

/// Options of `cargo xtask guest`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// How often to kill the server in each of three ways
    #[arg(long, default_value_t = ROUNDS)]
    rounds: u64,
    /// Which server to kill
    #[arg(long, value_enum, default_value_t = Against::Onefold)]
    against: Against,
    /// Check that this check finds a server that forgets
    #[arg(long, conflicts_with = "against")]
    control: bool,
    #[command(flatten)]
    pools: PoolArguments,
}

/// `cargo xtask guest`
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    if arguments.control {
        return control(workspace);
    }
    let pools = arguments.pools.open(workspace)?;
    outlive(workspace, arguments.against, pools, arguments.rounds)
}

fn control(workspace: &Workspace) -> Result<()> {
    let checked = outlive(workspace, Against::Forgetful, Pools::default(), 1);
    must_be_found_out(checked, "verify failed at")
}

fn outlive(workspace: &Workspace, against: Against, pools: Pools, rounds: u64) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    packages::require(packages::EMULATION)?;
    let image = GuestImage::make(workspace)?;
    let scratch = Scratch::new(&workspace.scratch_parent(), "guest")?;
    let setting = Setting {
        pools,
        ..Setting::default()
    };
    let mut disks = Disks::new(workspace, against, scratch.path(), &DISKS, setting)?;
    let start = Instant::now();
    let mut guest = Guest::boot(
        &image,
        &[
            ("blocks", disks.qemu_options("blocks")?),
            ("files", disks.qemu_options("files")?),
        ],
        &scratch.path().join("console.log"),
    )?;
    guest.run("mkfs.ext4 -q /dev/vdb")?;
    for round in 0..rounds {
        one_round(&mut guest, &mut disks, round)
            .with_context(|| format!("in round {round} of the guest"))?;
    }
    guest.power_off()?;
    if let Some(product) = disks.product() {
        guest_backup::run(product, "files", &image, &scratch)
            .context("a guest on a backup of the files")?;
    }
    disks.check().context("check after the guest")?;
    disks.stop()?;
    println!(
        "a guest outlived {} kills of its server in {:.0} s and found every block and every file",
        3 * rounds,
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

fn one_round(guest: &mut Guest, disks: &mut Disks, round: u64) -> Result<()> {
    guest.begin_writing("vda", BLOCKS_KILL_BYTES, &fio(round, "--do_verify=0"))?;
    kill_and_start(disks)?;
    guest.finish().context("fio, killed in the middle")?;
    kill_and_start(disks)?;
    guest
        .run(&fio(round, "--verify_only=1"))
        .context("what fio wrote is not there")?;
    let mount = "mount -t ext4 -o discard /dev/vdb /mnt";
    guest.run(mount)?;
    let copy = format!("rm -rf /mnt/*; cp -r {FILES} /mnt/");
    guest.begin_writing("vdb", FILES_KILL_BYTES, &format!("{{ {copy} && sync; }}"))?;
    kill_and_start(disks)?;
    guest.finish().context("copying, killed in the middle")?;
    guest.run("umount /mnt && e2fsck -f -n /dev/vdb")?;
    guest.run(mount)?;
    for directory in FILES.split_whitespace() {
        guest.run(&format!("diff -r {directory} /mnt{directory}"))?;
    }
    guest.run("umount /mnt")
}

fn kill_and_start(disks: &mut Disks) -> Result<()> {
    disks.kill()?;
    disks.start().context("cannot start again after the kill")
}

/// Runs fio on the first disk. Each block holds its offset and the round's number, so that an older round's block
/// cannot be mistaken for this one's.
fn fio(round: u64, mode: &str) -> String {
    format!(
        "fio --name=blocks --filename=/dev/vda --thread --ioengine=libaio --direct=1 --iodepth=16 \
         --rw=randwrite --bs=4k --size=32m --randseed={} --verify=pattern \
         --verify_pattern='\"r{round:05}\"%o' --verify_interval=4096 --verify_fatal=1 \
         --verify_state_save=0 --output=/dev/null {mode}",
        1 + round
    )
}

/// A running guest, controlled over its console.
pub(crate) struct Guest {
    running: Running,
    console: ChildStdin,
    log: PathBuf,
    started: Instant,
    /// Commands given so far, and waits for [`WRITING`] so far.
    commands: usize,
    signs: usize,
}

impl Guest {
    /// Boots a guest with these disks, which become `vda` and so on. Each has a name and QEMU's block device options.
    pub(crate) fn boot(image: &GuestImage, disks: &[(&str, String)], log: &Path) -> Result<Guest> {
        let mut command = Cmd::new("qemu-system-x86_64")
            .args(["-accel", "tcg", "-m", "512", "-nodefaults", "-no-reboot"])
            .args(["-display", "none", "-serial", "stdio"])
            .arg("-kernel")
            .arg(&image.kernel)
            .arg("-initrd")
            .arg(&image.initramfs)
            .args(["-append", "console=ttyS0 quiet panic=-1"]);
        for (name, options) in disks {
            let disk = format!("{options},node-name={name},discard=unmap");
            command = command
                .args(["-blockdev", &disk, "-device"])
                .arg(format!("virtio-blk-pci,drive={name}"));
        }
        let mut running = command.spawn_piped(log)?;
        let console = running.take_stdin()?;
        let mut guest = Guest {
            running,
            console,
            log: log.to_path_buf(),
            started: Instant::now(),
            commands: 0,
            signs: 0,
        };
        guest.finish().context("the guest does not boot")?;
        for (letter, _) in ('a'..).zip(disks) {
            guest.run(&format!("test -b /dev/vd{letter}"))?;
        }
        Ok(guest)
    }

    /// Runs a command in the guest's shell. A failed command is an error.
    pub(crate) fn run(&mut self, command: &str) -> Result<()> {
        self.begin(command)?;
        self.finish().with_context(|| format!("guest: {command}"))
    }

    /// Starts a command, and returns when it has written this many bytes to a disk, or has ended. [`Guest::finish`]
    /// waits for its end.
    fn begin_writing(&mut self, disk: &str, bytes: u64, command: &str) -> Result<()> {
        let sectors = format!("read -r _ _ _ _ _ _ sectors _ </sys/block/{disk}/stat");
        let target = bytes / 512;
        self.begin(&format!(
            "{sectors}; end=$((sectors + {target})); {command} & \
             while kill -0 $! && {sectors} && test $sectors -lt $end; do sleep 0.05; done; \
             echo '{WRITING}'; wait $!"
        ))?;
        self.signs += 1;
        self.wait_until(|guest, said| said.matches(WRITING).count() == guest.signs)
            .map(drop)
    }

    fn begin(&mut self, command: &str) -> Result<()> {
        self.commands += 1;
        writeln!(self.console, "{command}").context("the guest's console is gone")
    }

    /// Waits for the end of the last command. Before the first, the guest reports that it is ready.
    fn finish(&mut self) -> Result<()> {
        let said = self.wait_until(|guest, said| said.matches(STATUS).count() > guest.commands)?;
        let status = said.rsplit(STATUS).next().unwrap_or_default().trim();
        ensure!(
            status == "0",
            "a command ended with status {status}\n{}",
            last_lines(&said)
        );
        Ok(())
    }

    pub(crate) fn power_off(mut self) -> Result<()> {
        self.begin("poweroff -f")?;
        self.running.wait_at_most(STOP_LIMIT).map(drop)
    }

    /// Waits for a text on the console, and returns all output until then.
    fn wait_until(&mut self, is_said: impl Fn(&Guest, &str) -> bool) -> Result<String> {
        loop {
            let said = std::fs::read(&self.log).context("cannot read the guest's console")?;
            let said = String::from_utf8_lossy(&said).into_owned();
            // The last line may still be incomplete.
            let whole = said.rfind('\n').map_or("", |end| said.split_at(end).0);
            if is_said(self, whole) {
                return Ok(whole.to_owned());
            }
            if let Some(status) = self.running.try_wait()? {
                bail!("QEMU ended ({status})\n{}", last_lines(&said));
            }
            if self.started.elapsed() > TIME_LIMIT {
                bail!("the guest hangs\n{}", last_lines(&said));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
