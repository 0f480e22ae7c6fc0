//! Commands that run while requests do: snapshots, clones, sizes, and the search for duplicates.

use std::sync::Arc;

use anyhow::{Context, Result, bail};

use onefold_harness::command::last_lines;
use onefold_harness::inline::Mode;
use onefold_harness::server::Product;

use super::Round;
use super::volume::{Volume, read_all, same};

/// The most snapshots and clones that exist at a time.
const FROZEN_MAX: usize = 6;

/// Sizes that a volume may be given, in MiB.
const SIZES_MIB: std::ops::RangeInclusive<u64> = 8..=16;

/// Runs commands during the load, and keeps track of the snapshots and clones that they made.
pub(super) struct Commands {
    product: Product,
    frozen: Vec<Frozen>,
    made: u64,
    /// Whether volumes are switched between in line, auto and off-line.
    switches: bool,
    /// The number of commands that were carried out.
    pub(super) done: u64,
}

/// A snapshot, or a clone that is never written.
struct Frozen {
    export: String,
    bytes: Arc<Vec<u8>>,
    /// False if a command that makes or deletes it was killed before it returned.
    is_certain: bool,
}

impl Commands {
    pub(super) fn new(product: Product, switches: bool) -> Commands {
        Commands {
            product,
            frozen: Vec::new(),
            made: 0,
            switches,
            done: 0,
        }
    }

    /// Runs commands at random until the round is over.
    pub(super) fn go_on(
        &mut self,
        round: &Round,
        volumes: &[Volume],
        mut random: fastrand::Rng,
    ) -> Result<()> {
        while !round.is_over() {
            let volume = random.choice(volumes).context("there is no volume")?;
            match random.u8(..if self.switches { 10 } else { 8 }) {
                0..3 if self.frozen.len() < FROZEN_MAX => self.snapshot(volume)?,
                3 if self.frozen.len() < FROZEN_MAX => self.clone_snapshot(&mut random)?,
                0..5 => self.delete(&mut random)?,
                5 => self.resize(volume, &mut random)?,
                6 => self.roll_back(volume, &mut random)?,
                8.. => self.switch(volume, &mut random)?,
                _ => self.run(&["pool", "dedup"])?,
            }
        }
        Ok(())
    }

    fn run(&mut self, arguments: &[&str]) -> Result<()> {
        let command = self.product.command().arg("--quiet").args(arguments);
        let output = command.output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            bail!("{arguments:?} fails\n{}", last_lines(&said));
        }
        self.done += 1;
        Ok(())
    }

    /// Switches the volume's mode, to in line in half of the cases.
    fn switch(&mut self, volume: &Volume, random: &mut fastrand::Rng) -> Result<()> {
        let modes = [Mode::Inline, Mode::Inline, Mode::Auto, Mode::Offline];
        let mode = random.choice(&modes).unwrap_or(&Mode::Inline);
        self.run(&["volume", "set", &volume.name, "--dedup", mode.name()])
    }

    fn snapshot(&mut self, volume: &Volume) -> Result<()> {
        let Some((_gate, state)) = volume.rest() else {
            return Ok(());
        };
        self.made += 1;
        let export = format!("{}@s{}", volume.name, self.made);
        self.make(
            export.clone(),
            &state.bytes,
            &["snapshot", "create", &export],
        )
    }

    fn clone_snapshot(&mut self, random: &mut fastrand::Rng) -> Result<()> {
        let Some(source) = random.choice(&self.frozen) else {
            return Ok(());
        };
        let (source, bytes) = (source.export.clone(), Arc::clone(&source.bytes));
        self.made += 1;
        let name = format!("c{}", self.made);
        self.make(name.clone(), &bytes, &["volume", "clone", &source, &name])
    }

    fn make(&mut self, export: String, bytes: &Arc<Vec<u8>>, command: &[&str]) -> Result<()> {
        let at = self.frozen.len();
        self.frozen.push(Frozen {
            export,
            bytes: Arc::clone(bytes),
            is_certain: false,
        });
        self.run(command)?;
        self.frozen[at].is_certain = true;
        Ok(())
    }

    fn delete(&mut self, random: &mut fastrand::Rng) -> Result<()> {
        if self.frozen.is_empty() {
            return Ok(());
        }
        let at = random.usize(..self.frozen.len());
        self.frozen[at].is_certain = false;
        let export = self.frozen[at].export.clone();
        let kind = if export.contains('@') {
            "snapshot"
        } else {
            "volume"
        };
        self.run(&[kind, "delete", &export, "--yes"])?;
        self.frozen.swap_remove(at);
        Ok(())
    }

    fn resize(&mut self, volume: &Volume, random: &mut fastrand::Rng) -> Result<()> {
        let mib = random.u64(SIZES_MIB);
        let size = format!("{mib}M");
        let command = ["volume", "resize", &volume.name, "--size", &size];
        self.change(volume, &command, |bytes| {
            let mut bytes = bytes.to_vec();
            bytes.resize((mib << 20) as usize, 0);
            Arc::new(bytes)
        })
    }

    fn roll_back(&mut self, volume: &Volume, random: &mut fastrand::Rng) -> Result<()> {
        let prefix = format!("{}@", volume.name);
        let snapshots = self
            .frozen
            .iter()
            .filter(|frozen| frozen.export.starts_with(&prefix));
        let Some(snapshot) = random.choice(snapshots.collect::<Vec<_>>()) else {
            return Ok(());
        };
        let (export, bytes) = (snapshot.export.clone(), Arc::clone(&snapshot.bytes));
        self.change(volume, &["snapshot", "rollback", &export], |_| bytes)
    }

    /// Runs a command that gives a volume other content and disconnects its clients.
    fn change(
        &mut self,
        volume: &Volume,
        command: &[&str],
        change: impl FnOnce(&[u8]) -> Arc<Vec<u8>>,
    ) -> Result<()> {
        let Some((_gate, mut state)) = volume.rest() else {
            return Ok(());
        };
        let other = change(&state.bytes);
        state.other = Some(Arc::clone(&other));
        self.run(&[command, &["--yes", "--force"]].concat())?;
        state.other = None;
        state.bytes = other;
        state.generation += 1;
        Ok(())
    }

    /// Compares every snapshot and clone. The ones that a killed command was making or deleting may be gone.
    pub(super) fn compare(&mut self, server: &Volume) -> Result<()> {
        let mut kept = Vec::new();
        for mut frozen in self.frozen.drain(..) {
            let mut client = match server.connect_to(&frozen.export) {
                Ok(client) => client,
                Err(_) if !frozen.is_certain => continue,
                Err(error) => return Err(error),
            };
            same(&frozen.export, &read_all(&mut client)?, &frozen.bytes)?;
            frozen.is_certain = true;
            kept.push(frozen);
        }
        self.frozen = kept;
        Ok(())
    }
}
