//! A client that outlives the server must find the results of every answered request.
//!
//! QEMU with `reconnect-delay` waits for a server that died and continues with the next one as if nothing had happened.
//! It does not send answered requests again, flushed or not: the server must still have them, or the next FLUSH is a
//! lie. Here `qemu-io` is that client, and the server gets a SIGKILL after it has answered each kind of request without
//! a flush.
//!
//! The same script runs against `qemu-nbd`, which must pass, and against the forgetful server, which
//! must be found out.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ChildStdin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::forgetful::must_be_found_out;
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::{Cmd, Running, last_lines};
use onefold_harness::packages;
use onefold_harness::server::{Against, CACHES, Disks, Setting};
use onefold_harness::workspace::Workspace;

const VOLUME: &str = "v";
const VOLUME_BYTES: u64 = 64 << 20;

/// Commands whose results are flushed before [`UNFLUSHED`] begins.
const BEFORE: &[&str] = &["write -P 0x11 0 1M", "write -P 0x12 8M 4M", "flush"];

/// Commands that are answered and not flushed.
const UNFLUSHED: &[&str] = &[
    // New blocks, in a segment that has some and in one that has none.
    "write -P 0xaa 1M 1M",
    "write -P 0xab 32M 256k",
    // A whole block in place, and parts of several.
    "write -P 0xbb 0 4k",
    "write -P 0xbc 10000 30000",
    // Blocks that were flushed, trimmed and zeroed in both ways.
    "discard 128k 64k",
    "write -z 256k 64k",
    "write -z -u 384k 64k",
    "discard 8M 4M",
    // New blocks that are trimmed, zeroed in part and written again.
    "write -P 0xcc 4M 256k",
    "discard 4M 64k",
    "write -z 4194k 1000",
    "write -P 0xcd 4M 4k",
];

/// Reads of the expected content after [`BEFORE`] and [`UNFLUSHED`].
const AFTER: &[&str] = &[
    "read -P 0xbb 0 4k",
    "read -P 0x11 4k 5904",
    "read -P 0xbc 10000 30000",
    "read -P 0x11 40000 91072",
    "read -P 0 128k 64k",
    "read -P 0x11 192k 64k",
    "read -P 0 256k 64k",
    "read -P 0x11 320k 64k",
    "read -P 0 384k 64k",
    "read -P 0x11 448k 576k",
    "read -P 0xaa 1M 1M",
    "read -P 0 2M 2M",
    "read -P 0xcd 4M 4k",
    "read -P 0 4100k 60k",
    "read -P 0xcc 4160k 34k",
    "read -P 0 4194k 1000",
    "read -P 0xcc 4295656 160792",
    "read -P 0 8M 4M",
    "read -P 0xab 32M 256k",
];

/// The prompt of `qemu-io`: it waits for a command.
const PROMPT: &str = "qemu-io> ";

/// How long `qemu-io` may take for a command.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);

/// Options of `cargo xtask reconnect`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Which server to kill
    #[arg(long, value_enum, default_value_t = Against::Onefold)]
    against: Against,
    /// Check that this check passes a good server and finds a forgetful one
    #[arg(long, conflicts_with = "against")]
    control: bool,
}

/// `cargo xtask reconnect`
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    if arguments.control {
        return control(workspace);
    }
    match arguments.against {
        Against::Onefold => every_way(workspace),
        other => kill_and_go_on(workspace, other, &CACHES, &[]),
    }
}

fn control(workspace: &Workspace) -> Result<()> {
    kill_and_go_on(workspace, Against::QemuNbd, &CACHES, &[])
        .context("a good server was found guilty")?;
    let checked = kill_and_go_on(workspace, Against::Forgetful, &CACHES, &[]);
    must_be_found_out(checked, "Pattern verification failed")
}

/// Runs in both cache modes, with a daemon or a command as the first process to open the pool.
fn every_way(workspace: &Workspace) -> Result<()> {
    for caches in [&CACHES[..1], &CACHES[1..]] {
        for opener in [&[][..], &["volume", "list"], &["pool", "check"]] {
            kill_and_go_on(workspace, Against::Onefold, caches, opener).with_context(|| {
                format!("--cache {}, {}", caches.concat(), first_to_open(opener))
            })?;
        }
    }
    println!("every answered request was found after kill -9, in both cache modes");
    Ok(())
}

fn first_to_open(command: &[&str]) -> String {
    match command {
        [] => "opened by the daemon".to_owned(),
        _ => format!("opened by '{}' first", command.join(" ")),
    }
}

/// Kills the server behind a client and compares the client's later reads. Commands may open the
/// pool before the next daemon does.
fn kill_and_go_on(
    workspace: &Workspace,
    against: Against,
    caches: &'static [&'static str],
    opener: &[&str],
) -> Result<()> {
    let scratch = Scratch::new(&workspace.scratch_parent(), "reconnect")?;
    let volumes = [(VOLUME, VOLUME_BYTES)];
    let setting = Setting {
        caches,
        ..Setting::default()
    };
    let mut disks = Disks::new(workspace, against, scratch.path(), &volumes, setting)?;
    let mut client = Client::start(&disks.qemu_options(VOLUME)?, &scratch)?;
    client.run(BEFORE)?;
    client.run(UNFLUSHED)?;
    disks.kill()?;
    let by_command = match disks.product().filter(|_| !opener.is_empty()) {
        Some(product) => product.take_over_by(opener)?,
        None => 0,
    };
    disks.start()?;
    let taken_over = by_command + disks.records_taken_over()?;
    ensure!(
        taken_over > 0 || against != Against::Onefold,
        "the server took over nothing, so this shows nothing"
    );
    client.run(&["flush"])?;
    client.run(AFTER)?;
    drop(client);
    disks.check()?;
    disks.stop()
}

/// A running `qemu-io`, which executes one command after the other.
struct Client {
    running: Running,
    input: ChildStdin,
    log: PathBuf,
    sent: usize,
}

impl Client {
    fn start(options: &str, scratch: &Scratch) -> Result<Client> {
        let log = scratch.path().join("qemu-io.log");
        let mut running = Cmd::new("qemu-io")
            .args(["-t", "writeback", "--image-opts", options])
            .spawn_piped(&log)?;
        let input = running.take_stdin()?;
        let mut client = Client {
            running,
            input,
            log,
            sent: 0,
        };
        client.wait_for_prompt()?;
        Ok(client)
    }

    /// Runs commands, each of which is answered before the next one is sent. A failed command is an error.
    fn run(&mut self, commands: &[&str]) -> Result<()> {
        for command in commands {
            writeln!(self.input, "{command}").context("qemu-io does not listen")?;
            self.sent += 1;
            self.wait_for_prompt()?;
        }
        Ok(())
    }

    /// Waits for the prompt, which `qemu-io` prints when it has executed the last command.
    fn wait_for_prompt(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            let said = std::fs::read_to_string(&self.log).context("cannot read qemu-io's log")?;
            if let Some(line) = said.lines().find(is_complaint) {
                bail!("qemu-io: {line}\n{}", last_lines(&said));
            }
            if said.matches(PROMPT).count() > self.sent {
                return Ok(());
            }
            if self.running.try_wait()?.is_some() || start.elapsed() > ANSWER_LIMIT {
                bail!("qemu-io does not answer\n{}", last_lines(&said));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Whether a line of output is an error: a wrong pattern does not end `qemu-io`.
fn is_complaint(line: &&str) -> bool {
    let words = ["failed", "error", "Invalid", "not found"];
    words.iter().any(|word| line.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_pattern_is_a_complaint() {
        let wrong = "qemu-io> Pattern verification failed at offset 0, 4096 bytes";
        assert!(is_complaint(&wrong));
        let right = "qemu-io> read 4096/4096 bytes at offset 0";
        assert!(!is_complaint(&right));
    }
}
