//! Throughput rows: short slices of load on each server in turn, compared pair by pair.
//!
//! A machine's speed changes from minute to minute by more than the servers differ. Slices that follow each other
//! directly see nearly the same machine, so the ratio of each such group is taken first and the median of the ratios
//! afterwards. The order within a group rotates, so that no server always follows the same one.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::plan::{CLIENT_PROCESSOR, Plan, SERVER_PROCESSOR};
use crate::results::read;
use crate::statistics::{Estimate, Verdict, median};
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::Cmd;
use onefold_harness::fio::{Fio, Section};
use onefold_harness::server::{Address, Daemon, Product, QemuMode, qemu_nbd};
use onefold_harness::workspace::Workspace;

/// The size of each server's data: small enough to stay in the page cache, large enough for random requests to hit a
/// new place each time.
pub(crate) const DATA_BYTES: u64 = 512 << 20;

/// The number of pieces in which the data is first written.
const FILL_PIECES: usize = 32;
pub(crate) const EXPORT: &str = "bench";

/// How the servers reach their data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    Host,
    Direct,
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Host => "host",
            Mode::Direct => "direct",
        }
    }
}

/// The request size with which a server's data is first written. The host's page cache keeps a file that was written in
/// large requests in large folios, in which small writes cost several times as much. A raw file that one program copied
/// is in large folios; one that an installer wrote is in small ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fill {
    Large,
    Small,
}

impl Fill {
    pub(crate) fn request(self) -> &'static str {
        match self {
            Fill::Large => "1m",
            Fill::Small => "64k",
        }
    }
}

/// A load, its servers, and the numbers that it must and should reach.
pub(crate) struct Row {
    pub(crate) mode: Mode,
    pub(crate) fill: Fill,
    rw: &'static str,
    block: &'static str,
    depth: u32,
    /// The goals against the pass-through: must, aim.
    passthrough: (f64, f64),
    /// The goals against the best `qemu-nbd`, in rows that have such goals.
    qemu: Option<(f64, f64)>,
}

const fn row(
    (mode, fill): (Mode, Fill),
    rw: &'static str,
    block: &'static str,
    depth: u32,
    passthrough: (f64, f64),
    qemu: Option<(f64, f64)>,
) -> Row {
    Row {
        mode,
        fill,
        rw,
        block,
        depth,
        passthrough,
        qemu,
    }
}

const SMALL: (f64, f64) = (0.90, 0.97);
const LARGE: (f64, f64) = (0.85, 0.95);
const QEMU: Option<(f64, f64)> = Some((1.3, 2.0));
const DIRECT: (f64, f64) = (0.95, 1.0);

/// The way of filling a file makes no difference where the host's page cache is not used.
const IN_LARGE_FOLIOS: (Mode, Fill) = (Mode::Host, Fill::Large);
const IN_SMALL_FOLIOS: (Mode, Fill) = (Mode::Host, Fill::Small);
const PAST_CACHE: (Mode, Fill) = (Mode::Direct, Fill::Large);

/// The settings, in the order in which they are measured.
pub(crate) const SETTINGS: [(Mode, Fill); 3] = [IN_LARGE_FOLIOS, IN_SMALL_FOLIOS, PAST_CACHE];

pub(crate) const ROWS: [Row; 18] = [
    row(IN_LARGE_FOLIOS, "randwrite", "4k", 1, SMALL, QEMU),
    row(IN_LARGE_FOLIOS, "randwrite", "4k", 32, SMALL, QEMU),
    row(IN_LARGE_FOLIOS, "randread", "4k", 1, SMALL, QEMU),
    row(IN_LARGE_FOLIOS, "randread", "4k", 32, SMALL, QEMU),
    row(IN_LARGE_FOLIOS, "write", "1m", 4, LARGE, None),
    row(IN_LARGE_FOLIOS, "read", "1m", 4, LARGE, None),
    row(IN_SMALL_FOLIOS, "randwrite", "4k", 1, SMALL, QEMU),
    row(IN_SMALL_FOLIOS, "randwrite", "4k", 32, SMALL, QEMU),
    row(IN_SMALL_FOLIOS, "randread", "4k", 1, SMALL, QEMU),
    row(IN_SMALL_FOLIOS, "randread", "4k", 32, SMALL, QEMU),
    row(IN_SMALL_FOLIOS, "write", "1m", 4, LARGE, None),
    row(IN_SMALL_FOLIOS, "read", "1m", 4, LARGE, None),
    row(PAST_CACHE, "randwrite", "4k", 1, DIRECT, Some(DIRECT)),
    row(PAST_CACHE, "randwrite", "4k", 32, DIRECT, Some(DIRECT)),
    row(PAST_CACHE, "randread", "4k", 1, DIRECT, Some(DIRECT)),
    row(PAST_CACHE, "randread", "4k", 32, DIRECT, Some(DIRECT)),
    row(PAST_CACHE, "write", "1m", 4, DIRECT, Some(DIRECT)),
    row(PAST_CACHE, "read", "1m", 4, DIRECT, Some(DIRECT)),
];

impl Row {
    pub(crate) fn name(&self) -> String {
        let fill = match self.mode {
            Mode::Host => format!(", filled in {}", self.fill.request()),
            Mode::Direct => String::new(),
        };
        format!("{} {}{fill}", self.mode.name(), self.load())
    }

    /// The load, as it is called in the row's name.
    pub(crate) fn load(&self) -> String {
        format!("{} {} depth {}", self.rw, self.block, self.depth)
    }

    /// The load in plain words.
    pub(crate) fn in_words(&self) -> String {
        let order = if self.rw.starts_with("rand") {
            "random"
        } else {
            "sequential"
        };
        let (rw, depth) = (self.rw.trim_start_matches("rand"), self.depth);
        let block = self.block.replace('k', " KiB").replace('m', " MiB");
        format!("{order} {rw}s of {block}, {depth} at a time")
    }

    fn job(&self, uri: &str) -> Section {
        Section::new("slice", uri)
            .set("rw", self.rw)
            .set("bs", self.block)
            .set("iodepth", self.depth)
            .set("size", DATA_BYTES)
            .set("norandommap", 1)
            .set("randrepeat", 0)
            .set("time_based", 1)
    }
}

/// The product, the pass-through, and `qemu-nbd` in two modes.
const SERVERS: usize = 4;

/// The fastest modes of `qemu-nbd` for a file.
fn qemu_modes(mode: Mode) -> [(&'static str, QemuMode); 2] {
    match mode {
        Mode::Host => [
            ("qemu-nbd, threads", QemuMode::WritebackThreads),
            ("qemu-nbd, io_uring", QemuMode::WritebackIoUring),
        ],
        Mode::Direct => [
            ("qemu-nbd, native", QemuMode::NoneNative),
            ("qemu-nbd, io_uring", QemuMode::NoneIoUring),
        ],
    }
}

/// The running servers of one setting.
pub(crate) struct Contenders {
    scratch: Scratch,
    servers: [Contender; SERVERS],
}

/// A server that is being measured.
pub(crate) struct Contender {
    name: &'static str,
    pub(crate) daemon: Daemon,
    pub(crate) uri: String,
}

impl Contenders {
    /// Starts the servers and fills their data, so that every write is a rewrite.
    pub(crate) fn start(
        workspace: &Workspace,
        plan: &Plan,
        (mode, requests): (Mode, Fill),
    ) -> Result<Contenders> {
        let scratch = Scratch::new(&workspace.scratch_parent(), "bench")?;
        let directory = scratch.path();
        let [first, second] = qemu_modes(mode);
        let qemu = |file, (name, way)| start_qemu(directory, name, file, way);
        let servers = if plan.control {
            // The same server everywhere: every ratio must come out as 1 within its interval.
            [
                qemu("a", ("onefold", first.1))?,
                qemu("b", ("pass-through", first.1))?,
                qemu("c", first)?,
                qemu("d", (second.0, first.1))?,
            ]
        } else {
            [
                start_product(workspace, directory, mode)?,
                start_passthrough(workspace, directory, mode)?,
                qemu("qemu-a", first)?,
                qemu("qemu-b", second)?,
            ]
        };
        fill(directory, &servers.each_ref(), requests, 0)?;
        Ok(Contenders { scratch, servers })
    }

    /// Ends the servers, all of which must still run. The pass-through has no clean end.
    pub(crate) fn end(self) -> Result<()> {
        self.servers
            .into_iter()
            .try_for_each(|server| server.daemon.kill())
    }

    /// Measures a number of groups of one row, each with the next order of servers.
    pub(crate) fn measure(&self, row: &Row, plan: &Plan, measured: &mut Measured) -> Result<()> {
        let first = measured.groups.len();
        for group in first..first + plan.slices.div_ceil(plan.layouts) {
            let mut slices = [None; SERVERS];
            // Rows without a goal against qemu-nbd need no slices of it.
            let count = if row.qemu.is_some() { SERVERS } else { 2 };
            for index in order(group, count) {
                let (Some(server), Some(slot)) = (self.servers.get(index), slices.get_mut(index))
                else {
                    continue;
                };
                *slot = Some(self.slice(row, server, plan)?);
            }
            measured.groups.push(slices);
        }
        Ok(())
    }

    fn slice(&self, row: &Row, server: &Contender, plan: &Plan) -> Result<Slice> {
        let before = server.daemon.cpu_seconds()?;
        let results = Fio::new(self.scratch.path(), "slice")
            .pin(Some(CLIENT_PROCESSOR))
            .job(row.job(&server.uri).set("runtime", plan.slice_seconds))
            .run()
            .with_context(|| format!("{} failed under load", server.name))?;
        let cpu = server.daemon.cpu_seconds()? - before;
        let result = results.first().context("fio reported no job")?;
        let busy = if row.rw.ends_with("write") {
            &result.write
        } else {
            &result.read
        };
        Ok(Slice {
            iops: busy.iops,
            mean_us: busy.mean_us,
            p99_us: busy.p99_us,
            cpu_us: cpu * 1e6 / result.requests().max(1) as f64,
        })
    }
}

/// The order of a group's servers. If their number is even, each follows every other once in as many groups as there
/// are servers, because a disk that was idle for a while is faster for the next server.
pub(crate) fn order(group: usize, count: usize) -> impl Iterator<Item = usize> {
    let zigzag = (0..count).map(move |turn| match turn % 2 {
        0 => (count - turn / 2) % count,
        _ => turn.div_ceil(2),
    });
    zigzag.map(move |index| (index + group) % count)
}

/// Writes the data of all servers, in turn and a piece at a time: the first writer gets the larger pieces of the host's
/// memory for its page cache, which affects the cost of rewriting them. `duplicates` is in percent.
pub(crate) fn fill(
    directory: &Path,
    servers: &[&Contender],
    requests: Fill,
    duplicates: u32,
) -> Result<()> {
    for piece in 0..FILL_PIECES {
        for turn in 0..servers.len() {
            let Some(server) = servers.get((piece + turn) % servers.len()) else {
                continue;
            };
            let bytes = DATA_BYTES / FILL_PIECES as u64;
            let job = Section::new("fill", &server.uri)
                .set("rw", "write")
                .set("bs", requests.request())
                .set("iodepth", 4)
                .set("offset", piece as u64 * bytes)
                .set("size", bytes)
                .set("end_fsync", 1);
            let job = match duplicates {
                0 => job,
                _ => job
                    .set("refill_buffers", 1)
                    .set("dedupe_percentage", duplicates)
                    .set("randrepeat", 0),
            };
            Fio::new(directory, "fill")
                .job(job)
                .run()
                .with_context(|| format!("cannot fill the data of {}", server.name))?;
        }
    }
    Ok(())
}

fn start_product(workspace: &Workspace, directory: &Path, mode: Mode) -> Result<Contender> {
    let product = Product::build(workspace, directory)?.pin(Some(SERVER_PROCESSOR));
    product.create_pool("8G")?;
    let size = DATA_BYTES.to_string();
    product
        .command()
        .args(["volume", "create", EXPORT, "--size", &size])
        .run()?;
    let daemon = product.serve(&["--cache", mode.name()], &[])?;
    // The volume takes part in sharing, but these rows are about its private blocks.
    product.pause_jobs()?;
    Ok(Contender::product(&product, daemon))
}

impl Contender {
    /// The product, with its volume [`EXPORT`].
    pub(crate) fn product(product: &Product, daemon: Daemon) -> Contender {
        Contender {
            name: "onefold",
            daemon,
            uri: product.default_address().uri(EXPORT),
        }
    }
}

pub(crate) fn start_passthrough(
    workspace: &Workspace,
    directory: &Path,
    mode: Mode,
) -> Result<Contender> {
    start_passthrough_of(DATA_BYTES, workspace, directory, mode)
}

/// Starts the pass-through on a file of this size.
pub(crate) fn start_passthrough_of(
    bytes: u64,
    workspace: &Workspace,
    directory: &Path,
    mode: Mode,
) -> Result<Contender> {
    let binary = workspace.build_release("onefold-passthrough")?;
    let (file, socket) = raw_file(directory, "pass", bytes)?;
    let mut command = pinned(Cmd::new("taskset"))
        .arg(binary)
        .arg("--file")
        .arg(&file)
        .arg("--socket")
        .arg(&socket)
        .args(["--export", EXPORT]);
    if mode == Mode::Direct {
        command = command.arg("--direct");
    }
    contender("pass-through", command, socket, &directory.join("pass.log"))
}

fn start_qemu(
    directory: &Path,
    name: &'static str,
    file_name: &str,
    mode: QemuMode,
) -> Result<Contender> {
    let (file, socket) = raw_file(directory, file_name, DATA_BYTES)?;
    let command = qemu_nbd(
        pinned(Cmd::new("taskset")).arg("qemu-nbd"),
        &file,
        &socket,
        EXPORT,
        mode,
    );
    contender(
        name,
        command,
        socket,
        &directory.join(format!("{file_name}.log")),
    )
}

fn pinned(taskset: Cmd) -> Cmd {
    taskset.arg("-c").arg(SERVER_PROCESSOR.to_string())
}

fn raw_file(
    directory: &Path,
    name: &str,
    bytes: u64,
) -> Result<(std::path::PathBuf, std::path::PathBuf)> {
    let file = directory.join(format!("{name}.raw"));
    std::fs::File::create(&file)
        .and_then(|made| made.set_len(bytes))
        .with_context(|| format!("cannot make {}", file.display()))?;
    Ok((file, directory.join(format!("{name}.sock"))))
}

fn contender(
    name: &'static str,
    command: Cmd,
    socket: std::path::PathBuf,
    log: &Path,
) -> Result<Contender> {
    let address = Address::Unix(socket);
    let daemon = Daemon::start(command, std::slice::from_ref(&address), log)?;
    Ok(Contender {
        name,
        daemon,
        uri: address.uri(EXPORT),
    })
}

/// The results of one server in one slice.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Slice {
    iops: f64,
    mean_us: f64,
    p99_us: f64,
    #[serde(rename = "server_cpu_us_per_request")]
    cpu_us: f64,
}

/// All slices of a row, in groups of one slice per server.
#[derive(Default)]
pub(crate) struct Measured {
    groups: Vec<[Option<Slice>; SERVERS]>,
}

/// A row compared with one baseline.
pub(crate) struct Comparison {
    pub(crate) row: String,
    pub(crate) baseline: &'static str,
    pub(crate) ratio: Estimate,
    pub(crate) iops: f64,
    pub(crate) baseline_iops: f64,
    pub(crate) cpu_us: f64,
    pub(crate) baseline_cpu_us: f64,
    pub(crate) must: f64,
    pub(crate) aim: f64,
    pub(crate) must_verdict: Verdict,
    pub(crate) aim_verdict: Verdict,
}

impl Measured {
    /// Compares the row with each of its baselines: the pass-through, and the faster mode of `qemu-nbd`.
    pub(crate) fn compare(&self, row: &Row) -> Result<Vec<Comparison>> {
        let against_passthrough = Some(("pass-through", 1, row.passthrough));
        let against_qemu = row.qemu.map(|numbers| {
            let [first, second] = [2, 3].map(|server| self.median(server, |slice| slice.iops));
            let better = usize::from(second > first);
            (qemu_modes(row.mode)[better].0, 2 + better, numbers)
        });
        let cpu_ratio = self.ratios(1, |slice| slice.cpu_us);
        [against_passthrough, against_qemu]
            .into_iter()
            .flatten()
            .map(|(baseline, index, (must, aim))| {
                let ratio = self.ratios(index, |slice| slice.iops);
                let ratio = ratio.with_context(|| format!("{}: no slices", row.name()))?;
                Ok(Comparison {
                    row: row.name(),
                    baseline,
                    ratio,
                    iops: self.median(0, |slice| slice.iops),
                    baseline_iops: self.median(index, |slice| slice.iops),
                    cpu_us: self.median(0, |slice| slice.cpu_us),
                    baseline_cpu_us: self.median(index, |slice| slice.cpu_us),
                    must,
                    aim,
                    must_verdict: Verdict::of(ratio, cpu_ratio, must),
                    aim_verdict: Verdict::of(ratio, cpu_ratio, aim),
                })
            })
            .collect()
    }

    fn ratios(&self, baseline: usize, value: impl Fn(&Slice) -> f64) -> Option<Estimate> {
        Estimate::over(self.groups.iter().filter_map(|group| {
            let base = group.get(baseline)?.as_ref()?;
            Some(value(group.first()?.as_ref()?) / value(base))
        }))
    }

    fn median(&self, server: usize, value: impl Fn(&Slice) -> f64) -> f64 {
        let slices = self.groups.iter();
        let slices = slices.filter_map(|group| group.get(server)?.as_ref());
        median(slices.map(value))
    }

    /// Every slice, for readers who compute other statistics from them.
    pub(crate) fn raw(&self, row: &Row) -> Value {
        let groups = self.groups.iter().map(|group| {
            let named = server_names(row.mode).into_iter().zip(group);
            let named = named.map(|(name, slice)| (name.to_owned(), json!(slice)));
            named.collect::<Map<_, _>>()
        });
        json!({"row": row.name(), "groups": groups.collect::<Vec<_>>()})
    }

    /// The slices of a row in [`Measured::raw`].
    pub(crate) fn of_raw(row: &Row, raw: &Value) -> Result<Measured> {
        let groups = raw["groups"].as_array().context("no groups")?.iter();
        let groups = groups.map(|group| {
            let mut slices = [None; SERVERS];
            for (slice, name) in slices.iter_mut().zip(server_names(row.mode)) {
                *slice = read(&group[name])?;
            }
            Ok(slices)
        });
        Ok(Measured {
            groups: groups.collect::<Result<_>>()?,
        })
    }
}

/// The names of the servers in raw results.
fn server_names(mode: Mode) -> [&'static str; SERVERS] {
    let [(first, _), (second, _)] = qemu_modes(mode);
    ["onefold", "pass-through", first, second]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(iops: f64, cpu_us: f64) -> Option<Slice> {
        Some(Slice {
            iops,
            mean_us: 1.0,
            p99_us: 1.0,
            cpu_us,
        })
    }

    #[test]
    fn ratios_are_taken_within_a_group() {
        // The machine doubles its speed from group to group, and the ratio stays the same.
        let groups = (0..8)
            .map(|n| {
                let speed = f64::from(1 << n);
                [
                    slice(90.0 * speed, 2.0),
                    slice(100.0 * speed, 2.0),
                    slice(50.0 * speed, 8.0),
                    slice(60.0 * speed, 9.0),
                ]
            })
            .collect();
        let compared = Measured { groups }.compare(&ROWS[0]).unwrap();
        let [passthrough, qemu] = compared.as_slice() else {
            panic!("two baselines")
        };
        assert_eq!(
            passthrough.ratio,
            Estimate {
                median: 0.9,
                low: 0.9,
                high: 0.9
            }
        );
        assert_eq!(passthrough.must_verdict.text(), "met");
        assert_eq!(passthrough.aim_verdict.text(), "missed");
        assert_eq!(qemu.baseline, "qemu-nbd, io_uring", "the better one");
        assert_eq!(qemu.ratio.median, 1.5);
        assert_eq!((qemu.cpu_us, qemu.baseline_cpu_us), (2.0, 9.0));
    }

    #[test]
    fn raw_results_can_be_read_again() {
        let groups = vec![[slice(90.0, 2.0), slice(100.0, 2.0), None, None]];
        let raw = Measured { groups }.raw(&ROWS[4]);
        assert_eq!(raw["groups"][0]["pass-through"]["iops"], 100.0);
        let again = Measured::of_raw(&ROWS[4], &raw).unwrap();
        assert_eq!(again.raw(&ROWS[4]), raw);
    }

    #[test]
    fn a_row_without_slices_is_an_error() {
        assert!(Measured { groups: Vec::new() }.compare(&ROWS[0]).is_err());
    }

    #[test]
    fn every_server_follows_every_other_equally_often() {
        for count in [2, 4] {
            let mut followed = std::collections::BTreeMap::new();
            for group in 0..count {
                let order: Vec<_> = order(group, count).collect();
                for pair in order.windows(2) {
                    *followed.entry((pair[0], pair[1])).or_insert(0) += 1;
                }
            }
            assert_eq!(followed.len(), count * (count - 1), "{followed:?}");
            assert!(followed.values().all(|times| *times == 1), "{followed:?}");
        }
    }

    #[test]
    fn every_setting_has_its_rows() {
        for setting in SETTINGS {
            let rows = ROWS.iter();
            let rows = rows.filter(|row| (row.mode, row.fill) == setting);
            assert_eq!(rows.count(), 6, "{setting:?}");
        }
        assert!(
            ROWS.iter()
                .all(|row| row.mode == Mode::Host || row.qemu.is_some())
        );
    }
}
