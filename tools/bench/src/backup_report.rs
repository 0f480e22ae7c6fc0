//! The page of `cargo xtask bench backup`.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::backup::{Beside, GUEST_IOPS, Guest, TOOLS, Taken, Tool, WINDOW, raw_of};
use crate::goals::{self, Goal};
use crate::report::{self, Conditions};
use crate::statistics::Estimate;

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
        let ratios: Vec<_> = windows.map(Beside::ratio).collect();
        Estimate::of(&ratios)
    }

    pub(crate) fn raw(&self) -> Value {
        let tools = TOOLS.map(|tool| {
            let rounds = self.of(tool).iter().map(raw_of).collect::<Vec<_>>();
            json!({"tool": format!("{tool:?}").to_lowercase(), "rounds": rounds})
        });
        let windows = |windows: &[Beside]| {
            let each = windows.iter();
            each.map(|window| {
                json!({"before": window.before, "beside": window.beside, "after": window.after})
            })
            .collect::<Vec<_>>()
        };
        let guest = self.guest.iter().map(|guest| {
            json!({"backups": windows(&guest.backups), "nothing": windows(&guest.nothing),
                   "hashing": windows(&guest.hashing), "images": windows(&guest.images),
                   "backup_mb_per_second": guest.backup_mb_per_second})
        });
        json!({"disk_bytes": self.disk_bytes, "data_bytes": self.data_bytes, "tools": tools,
               "created": self.created, "restored": self.restored, "shown": self.shown,
               "mounted_read_us": self.mounted, "guest_p99_us": guest.collect::<Vec<_>>()})
    }

    fn of(&self, tool: Tool) -> &[Taken] {
        &self.taken[tool as usize]
    }

    /// The median over the rounds of one figure of a tool.
    fn median(&self, tool: Tool, of: impl Fn(&Taken) -> f64) -> Option<f64> {
        let values: Vec<_> = self.of(tool).iter().map(of).collect();
        Some(Estimate::of(&values)?.median)
    }

    /// The median over the rounds of a ratio within a round.
    fn ratio(&self, of: impl Fn([&Taken; 3]) -> f64) -> Option<f64> {
        let [ours, restic, borg] = &self.taken;
        let rounds = ours.iter().zip(restic).zip(borg);
        let ratios: Vec<_> = rounds.map(|((a, b), c)| of([a, b, c])).collect();
        Some(Estimate::of(&ratios)?.median)
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

pub(crate) fn page(conditions: &Conditions, figures: &Figures) -> String {
    let raw = Some("benchmarks-backup.json");
    let mut page = report::heading("Benchmarks of backup", raw, conditions);
    // Writing to a `String` cannot fail.
    let _ = write!(
        page,
        "\nA disk of {} MiB, of which {} MiB hold data, over {} days. onefold: a volume that a daemon serves, zstd \
         1, encrypted, the daemon's processor time included. restic: its defaults, encrypted. borg: its defaults, \
         not encrypted. Everything is in the page cache; each restore was compared with the disk. Medians of {} \
         rounds, in which the tools take turns.\n\n\
         | | first day, s | following days, s | processor, s | repository, MB | restore, s |\n\
         | --- | --- | --- | --- | --- | --- |\n",
        figures.disk_bytes >> 20,
        figures.data_bytes >> 20,
        figures.days,
        figures.of(Tool::Onefold).len(),
    );
    for tool in TOOLS {
        let median = |of: &dyn Fn(&Taken) -> f64| {
            let median = figures.median(tool, of);
            median.map_or("-".to_owned(), |median| format!("{median:.2}"))
        };
        let days = (1..figures.days).map(|day| {
            median(&move |taken: &Taken| taken.seconds.get(day).copied().unwrap_or(f64::NAN))
        });
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {} | {} |",
            format!("{tool:?}").to_lowercase(),
            median(&|taken| taken.seconds.first().copied().unwrap_or(f64::NAN)),
            days.collect::<Vec<_>>().join(", "),
            median(&|taken| taken.cpu_seconds),
            median(&|taken| taken.repository_bytes as f64 / 1e6),
            median(&|taken| taken.restore_seconds),
        );
    }
    page.push('\n');
    write_guest(&mut page, figures);
    goals::table(&mut page, &figures.goals());
    page
}

/// A load next to the guest, by name, and its windows in a round.
type GuestRow = (&'static str, fn(&Guest) -> &[Beside]);

/// Writes the table of how much other loads slow a guest down.
fn write_guest(page: &mut String, figures: &Figures) {
    let rates = figures.guest.iter().map(|guest| guest.backup_mb_per_second);
    let Some(rate) = Estimate::of(&rates.collect::<Vec<_>>()) else {
        return;
    };
    let _ = write!(
        page,
        "The guest makes {GUEST_IOPS} requests of 4 KiB per second all the time. The other load is stopped \
         (SIGSTOP) and continued (SIGCONT) in turn every {} s; the guest's 99th percentile with the load is \
         compared with the geometric mean of the ones without it, just before and after. Backups of the volume read \
         {:.0} MB/s.\n\n\
         | other load | windows | 99th percentile, relative to no load | 95 % interval of this median |\n\
         | --- | --- | --- | --- |\n",
        WINDOW.as_secs(),
        rate.median,
    );
    let rows: [GuestRow; 4] = [
        ("backups of a volume", |guest| &guest.backups),
        ("nothing", |guest| &guest.nothing),
        ("`chrt --idle 0 sha256sum` of a file", |guest| {
            &guest.hashing
        }),
        ("backups of an image, which no daemon paces", |guest| {
            &guest.images
        }),
    ];
    for (name, of) in rows {
        if let Some(Estimate { median, low, high }) = figures.guest_ratio(of) {
            let windows: usize = figures.guest.iter().map(|guest| of(guest).len()).sum();
            let _ = writeln!(
                page,
                "| {name} | {windows} | {median:.2} | {low:.2} to {high:.2} |"
            );
        }
    }
    page.push('\n');
}
