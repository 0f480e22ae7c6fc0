//! The output of `bench`.

use super::content::Content;
use crate::output::Render;
use onefold_api::size;
use onefold_workload::{
    Load, LoadReport, Measured, Operation, PhaseReport, Region, Scaled, Target,
};
use serde::Serialize;
use std::io::{self, Write};

/// Percentiles of the latencies that are reported for each operation.
const PERCENTILES: [f64; 4] = [50.0, 90.0, 99.0, 99.9];

/// The JSON document of `bench`. Field names are stable.
#[derive(Debug, Serialize)]
pub(super) struct Reply {
    pub(super) is_complete: bool,
    pub(super) target: String,
    pub(super) region_bytes: u64,
    pub(super) block_bytes: u64,
    pub(super) request_bytes: u64,
    pub(super) mode: String,
    pub(super) pattern: String,
    pub(super) jobs: u64,
    /// The requested number of requests per second; `None` if unlimited.
    pub(super) rate: Option<f64>,
    pub(super) seed: u64,
    /// Number of this instance, from 1.
    pub(super) instance: u64,
    pub(super) instances: u64,
    pub(super) compressible_percent: u8,
    pub(super) content: ContentReply,
    /// Blocks that were read and compared with the written data. All were equal; otherwise the run fails.
    pub(super) verified_blocks: u64,
    pub(super) phases: Vec<PhaseReply>,
}

/// The distribution, scaled to the blocks of all instances' regions.
#[derive(Debug, Serialize)]
pub(super) struct ContentReply {
    pub(super) distribution: String,
    pub(super) blocks: u64,
    pub(super) distinct_blocks: u64,
    /// Share of the blocks that deduplication saves.
    pub(super) saved_ratio: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct PhaseReply {
    pub(super) phase: &'static str,
    pub(super) seconds: f64,
    pub(super) operations: Vec<OperationReply>,
    pub(super) interval_seconds: f64,
    /// Bytes that were read and written in each interval.
    pub(super) timeline: Vec<IntervalReply>,
}

#[derive(Debug, Serialize)]
pub(super) struct OperationReply {
    pub(super) operation: &'static str,
    pub(super) requests: u64,
    pub(super) bytes: u64,
    pub(super) requests_per_second: f64,
    pub(super) bytes_per_second: f64,
    pub(super) latency_ns: LatencyReply,
    /// The latency curve for the plot: shares of the slowest requests, with latencies in nanoseconds.
    #[serde(skip)]
    pub(super) curve: Vec<(f64, f64)>,
}

#[derive(Debug, Serialize)]
pub(super) struct LatencyReply {
    pub(super) mean: f64,
    pub(super) p50: u64,
    pub(super) p90: u64,
    pub(super) p99: u64,
    pub(super) p99_9: u64,
    pub(super) max: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct IntervalReply {
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
}

impl Reply {
    pub(super) fn of(
        report: &LoadReport,
        content: &Content,
        scaled: &Scaled,
        region: Region,
        load: &Load,
        target: &dyn Target,
    ) -> Self {
        let block_bytes = region.bytes / region.blocks;
        let read = |phase: &PhaseReport| phase.measurement.of(Operation::Read).bytes;
        let distinct_blocks = scaled.contents();
        Self {
            is_complete: report.is_complete,
            target: target.name(),
            region_bytes: region.bytes,
            block_bytes,
            request_bytes: load.request_bytes,
            mode: load.mode.to_string(),
            pattern: load.pattern.to_string(),
            jobs: load.jobs,
            rate: load.rate,
            seed: load.seed,
            instance: load.share.index + 1,
            instances: load.share.count,
            compressible_percent: load.compressible_percent,
            content: ContentReply {
                distribution: content.name.clone(),
                blocks: scaled.blocks,
                distinct_blocks,
                saved_ratio: (scaled.blocks - distinct_blocks) as f64 / scaled.blocks as f64,
            },
            verified_blocks: report.phases.iter().map(read).sum::<u64>() / block_bytes,
            phases: report.phases.iter().map(PhaseReply::of).collect(),
        }
    }
}

impl PhaseReply {
    fn of(phase: &PhaseReport) -> Self {
        let seconds = phase.elapsed.as_secs_f64();
        let timeline = &phase.measurement.timeline;
        let all = [
            ("read", Operation::Read),
            ("write", Operation::Write),
            ("flush", Operation::Flush),
        ];
        let done = all.map(|(name, operation)| (name, phase.measurement.of(operation)));
        let done = done
            .into_iter()
            .filter(|(_, measured)| !measured.latency.is_empty());
        Self {
            phase: phase.name,
            seconds,
            operations: done
                .map(|(name, measured)| OperationReply::of(name, measured, seconds))
                .collect(),
            interval_seconds: timeline.interval.as_secs_f64(),
            timeline: timeline
                .bytes
                .iter()
                .map(|[read_bytes, written_bytes]| IntervalReply {
                    read_bytes: *read_bytes,
                    written_bytes: *written_bytes,
                })
                .collect(),
        }
    }
}

impl OperationReply {
    fn of(operation: &'static str, measured: &Measured, seconds: f64) -> Self {
        let latency = &measured.latency;
        let [p50, p90, p99, p99_9] =
            PERCENTILES.map(|percentile| latency.value_at_percentile(percentile));
        let per_second = |number: u64| number as f64 / seconds.max(1e-9);
        Self {
            operation,
            requests: latency.len(),
            bytes: measured.bytes,
            requests_per_second: per_second(latency.len()),
            bytes_per_second: per_second(measured.bytes),
            latency_ns: LatencyReply {
                mean: latency.mean(),
                p50,
                p90,
                p99,
                p99_9,
                max: latency.max(),
            },
            curve: curve(measured),
        }
    }
}

/// The latency curve: for shares of the slowest requests, from all requests down to a single one, the share
/// and the latency in nanoseconds that these requests exceed.
fn curve(measured: &Measured) -> Vec<(f64, f64)> {
    let latency = &measured.latency;
    // Twenty points per power of ten.
    let parts = (0..).map(|n| 10_f64.powf(-f64::from(n) / 20.0));
    let parts = parts.take_while(|part| part * latency.len() as f64 >= 1.0);
    let point = |part: f64| (part, latency.value_at_quantile(1.0 - part) as f64);
    parts.map(point).collect()
}

/// The columns of [`Reply::rows`].
pub(super) const COLUMNS: [&str; 11] = [
    "phase",
    "requests",
    "bytes",
    "seconds",
    "requests/s",
    "bytes/s",
    "p50",
    "p90",
    "p99",
    "p99.9",
    "max",
];

impl Reply {
    /// A row for each operation in each phase.
    pub(super) fn rows(&self) -> Vec<[String; COLUMNS.len()]> {
        let of_phase = |phase: &'_ PhaseReply| {
            let rows = phase
                .operations
                .iter()
                .map(|operation| operation.row(phase));
            rows.collect::<Vec<_>>()
        };
        self.phases.iter().flat_map(of_phase).collect()
    }

    fn phases_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out)?;
        for row in [COLUMNS.map(str::to_owned)].into_iter().chain(self.rows()) {
            let [
                phase,
                requests,
                bytes,
                seconds,
                rate,
                throughput,
                latencies @ ..,
            ] = row;
            write!(
                out,
                "{phase:16} {requests:>11} {bytes:>10} {seconds:>9} {rate:>11} {throughput:>13}"
            )?;
            for latency in latencies {
                write!(out, " {latency:>9}")?;
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

impl OperationReply {
    fn row(&self, phase: &PhaseReply) -> [String; COLUMNS.len()] {
        let name = if phase.phase == self.operation {
            phase.phase.to_owned()
        } else {
            format!("{} {}", phase.phase, self.operation)
        };
        // A flush has no size, and no other requests run concurrently.
        let unless_flush = |text: String| match self.operation {
            "flush" => String::new(),
            _ => text,
        };
        let latency = &self.latency_ns;
        let time = |nanoseconds: u64| time_display(nanoseconds as f64);
        let throughput = size::display(self.bytes_per_second as u64);
        [
            name,
            self.requests.to_string(),
            unless_flush(size::display(self.bytes).to_string()),
            unless_flush(format!("{:.3}", phase.seconds)),
            unless_flush(format!("{:.0}", self.requests_per_second)),
            unless_flush(format!("{throughput}/s")),
            time(latency.p50),
            time(latency.p90),
            time(latency.p99),
            time(latency.p99_9),
            time(latency.max),
        ]
    }
}

impl Render for Reply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for line in self.load() {
            writeln!(out, "{line}")?;
        }
        self.phases_text(out)?;
        writeln!(out, "\n{}", self.verified())
    }
}

impl Reply {
    /// The operations and contents of the load, in words.
    pub(super) fn load(&self) -> [String; 2] {
        let rate = match self.rate {
            Some(rate) => format!(", {rate} a second"),
            None => String::new(),
        };
        let content = &self.content;
        [
            format!(
                "{}: {} of it, {} {}, requests of {}{rate}, jobs: {}",
                self.target,
                size::display(self.region_bytes),
                self.mode,
                self.pattern,
                size::display(self.request_bytes),
                self.jobs
            ),
            format!(
                "content: {} in {} blocks of {}, {} of them different, {:.2} % would not be stored; \
                 seed {}, instance {} of {}",
                content.distribution,
                content.blocks,
                size::display(self.block_bytes),
                content.distinct_blocks,
                100.0 * content.saved_ratio,
                self.seed,
                self.instance,
                self.instances
            ),
        ]
    }

    pub(super) fn verified(&self) -> String {
        match self.verified_blocks {
            0 => "nothing was read back".to_owned(),
            blocks => format!(
                "{blocks} blocks were read and compared with the written data: all are equal"
            ),
        }
    }
}

/// Formats nanoseconds with about three digits and a unit.
pub(super) fn time_display(nanoseconds: f64) -> String {
    let units = [(1e9, "s"), (1e6, "ms"), (1e3, "µs")];
    let unit = units.into_iter().find(|(least, _)| nanoseconds >= *least);
    let (least, unit) = unit.unwrap_or((1.0, "ns"));
    let number = nanoseconds / least;
    if number < 10.0 && least > 1.0 {
        format!("{number:.1} {unit}")
    } else {
        format!("{number:.0} {unit}")
    }
}
