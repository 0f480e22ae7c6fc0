//! Runs drawn from the seed: sessions on one pool, each of which ends in a crash or a close.

mod interruptions;
mod options;
mod requests;

use std::sync::Arc;

use onefold_engine::simulated::{CrashKind, FailureRates};
use onefold_engine::{Engine, Part};
use onefold_store::{Blocking, VolumeOptions, VolumeSettings};

use crate::common::MIB;
use crate::crash::Recovery;
use crate::model::Violation;
use crate::random::Random;
use crate::world::{Fill, Step, Stop, World};

pub(crate) use options::{object_bytes, options, scarcity};

/// One run: a few sessions on one pool, with a crash or a close after each.
pub(crate) fn run(world: &Arc<World>) -> Result<(), Violation> {
    let sessions = world.draw(|random| random.between(3, 6));
    let engine = world.engine();
    if world.draw(|random| random.one_in(3)) && !engine.is_of_cluster() {
        world.go_direct();
    }
    let prepare = world.draw(|random| random.below(20));
    let memory_bytes = if prepare < 2 { 64 * MIB } else { 8 * MIB };
    let opened = world.open(memory_bytes);
    opened.map_err(|error| Violation(error.to_string()))?;
    for n in 0..sessions {
        let prepared = match prepare {
            0..2 if n == 0 => world.spread(),
            2 if n == 0 => world.fill_log(),
            _ => Ok(()),
        };
        let ended = prepared.and_then(|()| world.session());
        match ended.and_then(|()| world.found()) {
            Ok(()) | Err(Stop::Crashed) => {}
            Err(Stop::Violation(violation)) => return Err(violation),
        }
        match world.recover() {
            Ok(()) if world.state().is_beyond_model => return Ok(()),
            Ok(()) => {}
            Err(Stop::Crashed) => return Err(Violation("a crash nobody ordered".into())),
            Err(Stop::Violation(violation)) => return Err(violation),
        }
    }
    world.cover_log();
    match world.settle() {
        Err(Stop::Violation(violation)) => Err(violation),
        Err(Stop::Crashed) => Err(Violation("a crash nobody ordered".into())),
        Ok(()) => Ok(()),
    }
}

impl World {
    pub(crate) fn draw<T>(&self, draw: impl FnOnce(&mut Random) -> T) -> T {
        draw(&mut self.state().random)
    }

    fn session(self: &Arc<Self>) -> Step {
        self.inject_faults();
        if self.draw(|random| random.one_in(2)) {
            let n = self.draw(|random| random.between(1, 150));
            self.trace(|| format!("crash after {n} I/Os"));
            self.engine().crash_after(n);
        }
        let requests = self.draw(|random| random.between(5, 60));
        for _ in 0..requests {
            self.request()?;
            self.found()?;
            if self.state().must_reopen {
                return Ok(());
            }
        }
        if self.draw(|random| random.one_in(4)) && !self.state().faulty {
            let memory_bytes = self.draw_memory();
            self.close_and_open(memory_bytes)?;
        }
        Ok(())
    }

    /// Brings the log to where its ring ends soon.
    fn fill_log(&self) -> Step {
        let block_size = self.state().block_size;
        let len = (256 * block_size).min(MIB);
        self.create_volume_as(&VolumeOptions::new(len).with(VolumeSettings {
            verify: self.must_verify(),
            ..VolumeSettings::default()
        }))?;
        let id = self.volume_ids()[0];
        let rounds = 256 * 1024 / (len / block_size / 2 * 48 + 600);
        for _ in 0..rounds + 2 {
            self.trim(id, 0, len, Blocking::Yes)?;
            self.write(id, 0, len, Fill::Comb, Blocking::Yes)?;
            self.flush(id)?;
        }
        Ok(())
    }

    /// Changes more segments than an opening with less memory may keep.
    fn spread(&self) -> Step {
        let block_size = self.state().block_size;
        self.create_volume_as(
            &VolumeOptions::new(512 * 512 * block_size).with(VolumeSettings {
                verify: self.must_verify(),
                ..VolumeSettings::default()
            }),
        )?;
        let id = self.volume_ids()[0];
        for n in 0..self.draw(|random| random.between(250, 500)) {
            self.write(
                id,
                n * 512 * block_size,
                block_size,
                Fill::Data,
                Blocking::Yes,
            )?;
        }
        self.flush(id)
    }

    /// In one session of three, I/Os fail.
    fn inject_faults(&self) {
        let engine = self.engine();
        let mut rates = FailureRates::default();
        match self.draw(|random| random.below(18)) {
            0 => rates.read = 0.03,
            1 => rates.write = 0.03,
            2 => rates.sync = 0.05,
            3 => rates.discard = 0.3,
            4 => {
                rates = FailureRates {
                    read: 0.01,
                    write: 0.01,
                    sync: 0.01,
                    discard: 0.1,
                }
            }
            5 => self.limit(Part::Data),
            6 => self.limit(Part::Meta),
            7 => self.limit(Part::Index),
            _ => {}
        }
        engine.set_failure_rates(rates);
        let orphans = self.draw(|random| *random.pick(&[0.0, 0.0, 0.0, 0.7]));
        engine.set_orphan_failure_rate(orphans);
        engine.set_discard_ignored_rate(if self.draw(|random| random.one_in(3)) {
            0.3
        } else {
            0.0
        });
        engine.set_cold_rate(if self.draw(|random| random.one_in(3)) {
            0.3
        } else {
            0.0
        });
        if rates.sync > 0.0 || orphans > 0.0 {
            let rate = self.draw(|random| *random.pick(&[0.0, 0.5, 1.0]));
            engine.set_eviction_rate(Part::Data, rate);
        }
        let mut state = self.state();
        state.faulty |= rates != FailureRates::default();
        state.sync_failed |= rates.sync > 0.0;
    }

    /// The host has little room left.
    fn limit(&self, part: Part) {
        let disk = self.engine().open(part).expect("the part exists");
        let allocated = disk.allocated_bytes().expect("the machine runs");
        let more = self.draw(|random| random.below(2 * MIB));
        self.engine().set_capacity(part, Some(allocated + more));
        self.state().faulty = true;
    }

    fn draw_memory(&self) -> u64 {
        self.draw(|random| *random.pick(&[8, 8, 8, 64])) * MIB
    }

    fn recover(&self) -> Step {
        let mut again = self.draw(|random| random.one_in(3));
        loop {
            // After a failed sync above all the death of the process: the next one must not trust
            // the host's cache.
            let sync_failed = self.state().sync_failed;
            let power_loss = self.draw(|random| random.one_in(3)) == sync_failed;
            let recovery = Recovery {
                kind: if power_loss {
                    CrashKind::PowerLoss
                } else {
                    CrashKind::ProcessKilled
                },
                crash_at: again.then(|| self.draw(|random| random.between(1, 30))),
                memory_bytes: self.draw_memory(),
            };
            let before = self.state().coverage.recoveries;
            if self.crash_and_open(recovery)? {
                self.verify()?;
                debug_assert!(self.state().coverage.recoveries > before);
                break;
            }
            again = self.draw(|random| random.one_in(3));
        }
        match self.draw(|random| random.below(4)) {
            0 => Ok(()),
            _ if self.state().is_beyond_model => Ok(()),
            1 => self.settle(),
            _ => self.check(),
        }
    }
}
