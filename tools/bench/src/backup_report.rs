//! The page of `cargo xtask bench backup`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::backup::{Beside, GUEST_IOPS, Guest, TOOLS, Taken, Tool};
use crate::goals::{self, Goal};
use crate::page::{Conditions, Page};
use crate::statistics::Estimate;
use crate::table::{Row, Table};
use crate::windows::WINDOW;

/// All results of the benchmark.
pub(crate) struct Figures {
    disk_bytes: u64,
    data_bytes: u64,
    days: usize,
    taken: [Vec<Taken>; 3],
    /// The reply to each `backup create`: blocks changed, read and new, and bytes added to the repository.
    created: Vec<Value>,
    restored: Vec<Value>,
    shown: Vec<Value>,
    /// Mean times of random reads through `backup mount`, in microseconds.
    mounted: Vec<f64>,
    guest: Vec<Guest>,
}

impl Figures {
    pub(crate) fn new(days: &[PathBuf]) -> Result<Figures> {
        use std::os::unix::fs::MetadataExt;
        let first = days.first().context("there is no day")?;
        let metadata = std::fs::metadata(first).context("cannot read the first day")?;
        Ok(Figures {
            disk_bytes: metadata.len(),
            data_bytes: metadata.blocks() * 512,
            days: days.len(),
            taken: [const { Vec::new() }; 3],
            created: Vec::new(),
            restored: Vec::new(),
            shown: Vec::new(),
            mounted: Vec::new(),
            guest: Vec::new(),
        })
    }

    pub(crate) fn add(&mut self, tool: Tool, taken: Taken) {
        self.taken[tool as usize].push(taken);
    }

    pub(crate) fn created(&mut self, reply: &Value) {
        self.created.push(reply.clone());
    }

    pub(crate) fn restored(&mut self, reply: &Value) {
        self.restored.push(reply.clone());
    }

    pub(crate) fn shown(&mut self, reply: &Value) {
        self.shown.push(reply.clone());
    }

    pub(crate) fn mounted(&mut self, us: f64) {
        self.mounted.push(us);
    }

    pub(crate) fn guest(&mut self, round: Guest) {
        self.guest.push(round);
    }

    /// The median over all windows of a guest's 99th percentile next to a load, relative to the one without it.
    fn guest_ratio(&self, beside: impl Fn(&Guest) -> &[Beside]) -> Option<Estimate> {
        let windows = self.guest.iter().flat_map(beside);
        Estimate::over(windows.map(Beside::ratio))
    }

    pub(crate) fn raw(&self) -> Value {
        let tools = TOOLS.map(|tool| {
            let name = format!("{tool:?}").to_lowercase();
            json!({"tool": name, "rounds": self.of(tool)})
        });
        json!({"disk_bytes": self.disk_bytes, "data_bytes": self.data_bytes, "tools": tools,
               "created": self.created, "restored": self.restored, "shown": self.shown,
               "mounted_read_us": self.mounted, "guest_p99_us": self.guest})
    }

    fn of(&self, tool: Tool) -> &[Taken] {
        &self.taken[tool as usize]
    }

    /// The median over the rounds of one figure of a tool.
    fn median(&self, tool: Tool, of: impl Fn(&Taken) -> f64) -> Option<f64> {
        Some(Estimate::over(self.of(tool).iter().map(of))?.median)
    }

    /// The median over the rounds of a ratio within a round.
    fn ratio(&self, of: impl Fn([&Taken; 3]) -> f64) -> Option<f64> {
        let [ours, restic, borg] = &self.taken;
        let rounds = ours.iter().zip(restic).zip(borg);
        Some(Estimate::over(rounds.map(|((a, b), c)| of([a, b, c])))?.median)
    }

    fn goals(&self) -> Vec<Goal> {
        let first = self.median(Tool::Onefold, |taken| {
            self.disk_bytes as f64 / 1e6 / taken.seconds.first().copied().unwrap_or(f64::NAN)
        });
        let later = |taken: &Taken| taken.seconds.iter().skip(1).sum::<f64>();
        let recipe = self.shown.last().and_then(|shown| {
            let blocks = shown["size_bytes"].as_f64()? / 4096.0;
            Some(shown["recipe_bytes"].as_f64()? / blocks)
        });
        let reads = self.restored.last().and_then(|restored| {
            Some(restored["pack_reads"].as_f64()? / (restored["written_bytes"].as_f64()? / 1e9))
        });
        let mounted = Estimate::of(&self.mounted).map(|estimate| estimate.median);
        let guest = self
            .guest_ratio(|guest| &guest.backups)
            .map(|estimate| estimate.median);
        vec![
            Goal::at_least("first backup, MB/s of the disk", first, 600.0, 1000.0),
            Goal::at_most(
                "following days, wall time, relative to restic",
                self.ratio(|[ours, restic, _]| later(ours) / later(restic)),
                0.2,
                0.1,
            ),
            Goal::at_most(
                "processor time of all days, relative to restic",
                self.ratio(|[ours, restic, _]| ours.cpu_seconds / restic.cpu_seconds),
                0.33,
                0.17,
            ),
            Goal::at_most(
                "repository, relative to restic",
                self.ratio(|[ours, restic, _]| {
                    ours.repository_bytes as f64 / restic.repository_bytes as f64
                }),
                0.87,
                0.8,
            ),
            Goal::at_most(
                "restore of the last day, wall time, relative to the faster of restic and borg",
                self.ratio(|[ours, restic, borg]| {
                    ours.restore_seconds / restic.restore_seconds.min(borg.restore_seconds)
                }),
                1.0,
                0.6,
            ),
            Goal::at_most("reads of packs per GB restored", reads, 300.0, 150.0),
            Goal::at_most("recipe, bytes per 4 KiB of the disk", recipe, 0.5, 0.25),
            Goal::at_most(
                "guest's 99th percentile during backups, relative to no load",
                guest,
                1.3,
                1.1,
            ),
            Goal::at_most("random 4 KiB read through mount, us", mounted, 50.0, 20.0),
        ]
    }
}

/// The page's name in `docs/`, and that of its raw results.
pub(crate) const NAME: &str = "benchmarks-backup";

pub(crate) fn page(conditions: &Conditions, figures: &Figures) -> String {
    let mut page = Page::new("Benchmarks of backup", Some(NAME), conditions);
    page.add(format!(
        "A disk of {} MiB, of which {} MiB hold data, over {} days. onefold: a volume that a daemon serves, zstd \
         1, encrypted, the daemon's processor time included. restic: its defaults, encrypted. borg: its defaults, \
         not encrypted. Everything is in the page cache; each restore was compared with the disk. Medians of {} \
         rounds, in which the tools take turns.",
        figures.disk_bytes >> 20,
        figures.data_bytes >> 20,
        figures.days,
        figures.of(Tool::Onefold).len(),
    ));
    let table = Table::new(
        "| | first day, s | following days, s | processor, s | repository, MB | restore, s |",
    );
    page.add(table.with(TOOLS.map(|tool| tool_row(figures, tool))));
    add_guest(&mut page, figures);
    page.add(goals::table(figures.goals()));
    page.to_string()
}

fn tool_row(figures: &Figures, tool: Tool) -> Row {
    let day = |day: usize| {
        figures.median(tool, |taken| {
            taken.seconds.get(day).copied().unwrap_or(f64::NAN)
        })
    };
    let following = (1..figures.days).map(|n| {
        let median = day(n);
        median.map_or("-".to_owned(), |median| format!("{median:.2}"))
    });
    let others: [fn(&Taken) -> f64; 3] = [
        |taken| taken.cpu_seconds,
        |taken| taken.repository_bytes as f64 / 1e6,
        |taken| taken.restore_seconds,
    ];
    Row::of(format!("{tool:?}").to_lowercase())
        .number(day(0), 2)
        .text(following.collect::<Vec<_>>().join(", "))
        .numbers(others.map(|of| figures.median(tool, of)), 2)
}

/// A load next to the guest, by name, and its windows in a round.
type GuestRow = (&'static str, fn(&Guest) -> &[Beside]);

/// Adds the table of how much other loads slow a guest down.
fn add_guest(page: &mut Page, figures: &Figures) {
    let rates = figures.guest.iter().map(|guest| guest.backup_mb_per_second);
    let Some(rate) = Estimate::over(rates) else {
        return;
    };
    page.add(format!(
        "The guest makes {GUEST_IOPS} requests of 4 KiB per second all the time. The other load is stopped \
         (SIGSTOP) and continued (SIGCONT) in turn every {} s; the guest's 99th percentile with the load is \
         compared with the geometric mean of the ones without it, just before and after. Backups of the volume read \
         {:.0} MB/s.",
        WINDOW.as_secs(),
        rate.median,
    ));
    let loads: [GuestRow; 4] = [
        ("backups of a volume", |guest| &guest.backups),
        ("nothing", |guest| &guest.nothing),
        ("`chrt --idle 0 sha256sum` of a file", |guest| {
            &guest.hashing
        }),
        ("backups of an image, which no daemon paces", |guest| {
            &guest.images
        }),
    ];
    let rows = loads.into_iter().filter_map(|(name, of)| {
        let windows: usize = figures.guest.iter().map(|guest| of(guest).len()).sum();
        let ratio = figures.guest_ratio(of)?;
        Some(Row::of(name).text(windows).estimate(ratio, 2))
    });
    let table = Table::new(
        "| other load | windows | 99th percentile, relative to no load | 95 % interval of this median |",
    );
    page.add(table.with(rows));
}
