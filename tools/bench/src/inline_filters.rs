//! `cargo xtask bench inline --filters`: what each step that answers for a block before the index's rows
//! is worth, by servers that do without it (`serve --inline-without`).
//!
//! Five servers, each with a pool of its own: with all filters, without each of them, without any.
//! They are measured in turn under one load, and each slice is compared with that of the server that
//! has all of them in the same group. The load is made for it: a quarter of the blocks are zeros, a
//! quarter repeats what was found just before, a quarter was never seen, and a quarter is in the
//! index's rows. So the figures say what a filter is worth for a block that it answers, and not how many of
//! those a guest writes.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::inline::{Bench, Plan, REST_LIMIT, Slice, slice};
use crate::inline_load::{Contents, Load};
use crate::plan::SERVER_PROCESSOR;
use crate::slices::{EXPORT, Fill, Mode, fill, order};
use crate::statistics::Estimate;
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::Cmd;
use onefold_harness::inline::Inline;
use onefold_harness::workspace::Workspace;

/// Published besides the contents of the load: so many that the index `hash` has its rows on the disk, and
/// not in the changes that it keeps in memory.
const PUBLISHED_BLOCKS: u64 = 65_536;

const LOAD: Load = Load {
    duplicates: 25,
    repeats: 25,
    zeros: 25,
    blocks: 1,
    depth: 32,
};

const MODES: [Mode; 2] = [Mode::Host, Mode::Direct];

/// What a server does without.
#[derive(Debug, Clone, Copy)]
struct Without {
    name: &'static str,
    /// As `--inline-without` takes it.
    filters: &'static str,
    /// The blocks for which these answer where they are asked.
    answered: fn(&Inline) -> u64,
}

/// The first has all filters.
const SERVERS: [Without; 5] = [
    without("nothing", "", |_| 0),
    without("zero", "zero", |it| it.zeros),
    without("recent", "recent", |it| it.recently_seen),
    without("signature", "signature", |it| it.absent_by_signature),
    without("all three", "zero,recent,signature", |it| {
        it.zeros + it.recently_seen + it.absent_by_signature
    }),
];

const fn without(
    name: &'static str,
    filters: &'static str,
    answered: fn(&Inline) -> u64,
) -> Without {
    Without {
        name,
        filters,
        answered,
    }
}

/// All slices of one cache mode, in groups of one for each of [`SERVERS`].
pub(crate) struct Filters {
    mode: Mode,
    groups: Vec<[Measured; SERVERS.len()]>,
}

#[derive(Debug, Clone, Copy)]
struct Measured {
    slice: Slice,
    inline: Inline,
}

/// The modes whose name is wanted.
pub(crate) fn measure(
    workspace: &Workspace,
    plan: Plan,
    contents: &Contents,
    wanted: &dyn Fn(&str) -> bool,
) -> Result<Vec<Filters>> {
    let modes = MODES.into_iter().filter(|mode| wanted(&name(*mode)));
    let measured = modes.map(|mode| {
        let groups = measure_mode(workspace, plan, contents, mode);
        let groups = groups.with_context(|| format!("cannot measure {}", name(mode)))?;
        Ok(Filters { mode, groups })
    });
    measured.collect()
}

fn name(mode: Mode) -> String {
    format!("{} randwrite 4k depth {}, filters", mode.name(), LOAD.depth)
}

fn measure_mode(
    workspace: &Workspace,
    plan: Plan,
    contents: &Contents,
    mode: Mode,
) -> Result<Vec<[Measured; SERVERS.len()]>> {
    let mut groups = Vec::new();
    for _ in 0..plan.layouts {
        let scratch = Scratch::new(&workspace.scratch_parent(), "filters")?;
        let mut servers = start(workspace, &scratch, contents, mode)?;
        for _ in 0..plan.slices.div_ceil(plan.layouts) {
            groups.push(group(&mut servers, groups.len(), plan, contents)?);
        }
        let ended = servers.into_iter();
        ended
            .map(|server| server.ours.contender.daemon)
            .try_for_each(|daemon| daemon.kill())?;
    }
    Ok(groups)
}

fn start(
    workspace: &Workspace,
    scratch: &Scratch,
    contents: &Contents,
    mode: Mode,
) -> Result<Vec<Bench>> {
    let mut servers = Vec::new();
    for (server, number) in SERVERS.iter().zip(0..) {
        // Short: the path of a socket has little room.
        let directory: PathBuf = scratch.path().join(format!("{number}"));
        std::fs::create_dir(&directory).context("cannot make a directory")?;
        let mut options = vec!["--cache", mode.name()];
        if !server.filters.is_empty() {
            options.extend(["--inline-without", server.filters]);
        }
        let started = Bench::product(
            workspace,
            &directory,
            &options,
            (contents, PUBLISHED_BLOCKS),
        );
        servers.push(started.with_context(|| format!("without {}", server.name))?);
    }
    let filled: Vec<_> = servers.iter().map(|it| &it.ours.contender).collect();
    fill(scratch.path(), &filled, Fill::Large, 0)?;
    Ok(servers)
}

/// One slice of each.
fn group(
    servers: &mut [Bench],
    number: usize,
    plan: Plan,
    contents: &Contents,
) -> Result<[Measured; SERVERS.len()]> {
    for server in &*servers {
        let product = &server.product;
        product.wait_for_backlog(REST_LIMIT, |backlog| backlog.queued == 0)?;
    }
    Cmd::new("sync").run()?;
    let mut measured = [None; SERVERS.len()];
    for n in order(number, SERVERS.len()) {
        let (Some(server), Some(slot)) = (servers.get_mut(n), measured.get_mut(n)) else {
            continue;
        };
        let before = server.product.inline(EXPORT)?;
        let length = Duration::from_secs(plan.slice_seconds);
        let slice = slice(&mut server.ours, contents, LOAD, length)?;
        let inline = server.product.inline(EXPORT)?.since(before);
        *slot = Some(Measured { slice, inline });
    }
    let [Some(a), Some(b), Some(c), Some(d), Some(e)] = measured else {
        anyhow::bail!("a server was left out");
    };
    Ok([a, b, c, d, e])
}

impl Filters {
    /// The slices of one server over those of the first.
    fn ratio(&self, server: usize, of: fn(&Slice) -> f64) -> Option<Estimate> {
        let ratio = |group: &[Measured; SERVERS.len()]| {
            let other = group.get(server).map(|it| of(&it.slice));
            other.map_or(f64::NAN, |other| other / of(&group[0].slice))
        };
        Estimate::of(&self.groups.iter().map(ratio).collect::<Vec<_>>())
    }

    fn inline(&self, server: usize) -> Inline {
        let counts = self.groups.iter().filter_map(|group| group.get(server));
        counts.fold(Inline::default(), |sum, it| sum.plus(it.inline))
    }

    fn rows(&self, page: &mut String) {
        let all = self.inline(0);
        for (server, number) in SERVERS.iter().zip(0..) {
            let (Some(rate), Some(cpu)) = (
                self.ratio(number, |slice| slice.per_second),
                self.ratio(number, |slice| slice.cpu_us),
            ) else {
                continue;
            };
            let own = self.inline(number);
            let percent =
                |blocks: u64, of: &Inline| 100.0 * blocks as f64 / of.scanned.max(1) as f64;
            let looked_up = own.scanned - own.zeros - own.recently_seen;
            // Writing to a String can not fail.
            let _ = writeln!(
                page,
                "| {} | {} | {:.1} % | {:.1} % | {:.1} % | {:.2} | {:.2} to {:.2} | {:.2} | {:.2} to {:.2} |",
                self.mode.name(),
                server.name,
                percent((server.answered)(&all), &all),
                percent(looked_up, &own),
                percent(own.absent + own.found, &own),
                rate.median,
                rate.low,
                rate.high,
                cpu.median,
                cpu.low,
                cpu.high,
            );
        }
    }

    pub(crate) fn raw(&self) -> Value {
        let measured = |(server, it): (&Without, &Measured)| {
            json!({"without": server.name, "requests_per_second": it.slice.per_second,
                   "server_cpu_us_per_request": it.slice.cpu_us,
                   "scanned_blocks": it.inline.scanned, "zero_blocks": it.inline.zeros,
                   "recently_seen_blocks": it.inline.recently_seen,
                   "absent_by_signature_blocks": it.inline.absent_by_signature,
                   "absent_blocks": it.inline.absent, "found_blocks": it.inline.found,
                   "hit_blocks": it.inline.hits})
        };
        let groups = self.groups.iter();
        let groups = groups.map(|group| SERVERS.iter().zip(group).map(measured).collect());
        json!({"row": name(self.mode), "groups": groups.collect::<Vec<Vec<Value>>>()})
    }
}

/// The part of the page.
pub(crate) fn page(filters: &[Filters]) -> String {
    let mut page = String::new();
    if filters.is_empty() {
        return page;
    }
    // Writing to a String can not fail.
    let _ = write!(
        page,
        "\n## What each filter is worth\n\nServers that do without it (`serve --inline-without`), against one that \
         has all, in turn; all on processor {SERVER_PROCESSOR}. 4 KiB random writes at depth {}: of a hundred blocks {} \
         repeat what was found just before, {} are other duplicates, {} are zeros, the rest was never seen. \
         *Answered*: blocks for which these filters answer where nothing is left out. *Looked up*: blocks for which the \
         index was asked; *of rows*: those that its signatures did not exclude. *Rate* and *CPU*: requests per \
         second, and the server's processor time per request, over those with all filters in the same group; \
         median and 95 % interval.\n\n\
         | | without | answered | looked up | of rows | rate | 95 % | CPU | 95 % |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
        LOAD.depth, LOAD.repeats, LOAD.duplicates, LOAD.zeros,
    );
    for mode in filters {
        mode.rows(&mut page);
    }
    page.push_str(
        "\nIn kind [Meister13 table 9]: filter chains of a backup, simulated with a disk of 300 reads a second, go at 17 to \
         18.5 MB/s without, and at 366 MB/s with a block locality cache and a Bloom filter. There a question \
         that reaches the rows is a read of that disk; here the host's cache has most of them.\n",
    );
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(per_second: f64, inline: Inline) -> Measured {
        let cpu_us = 100.0 / per_second;
        let slice = Slice { per_second, cpu_us };
        Measured { slice, inline }
    }

    #[test]
    fn a_filter_is_compared_with_the_server_that_has_all() {
        let all = Inline {
            scanned: 100,
            zeros: 25,
            recently_seen: 24,
            absent_by_signature: 25,
            found: 26,
            ..Inline::default()
        };
        let without_zero = Inline {
            zeros: 0,
            absent_by_signature: 50,
            ..all
        };
        let group = [
            measured(100.0, all),
            measured(80.0, without_zero),
            measured(90.0, all),
            measured(50.0, all),
            measured(40.0, all),
        ];
        let filters = Filters {
            mode: Mode::Host,
            groups: vec![group; 3],
        };
        let page = page(&[filters]);
        for expected in [
            "| host | nothing | 0.0 % | 51.0 % | 26.0 % | 1.00 | 1.00 to 1.00 | 1.00 | 1.00 to 1.00 |",
            "| host | zero | 25.0 % | 76.0 % | 26.0 % | 0.80 | 0.80 to 0.80 | 1.25 | 1.25 to 1.25 |",
            "| host | recent | 24.0 % |",
            "| host | all three | 74.0 % |",
        ] {
            assert!(page.contains(expected), "no {expected} in\n{page}");
        }
    }
}
