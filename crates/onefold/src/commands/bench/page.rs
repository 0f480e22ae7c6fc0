//! Builds an HTML page of the measurements.

use super::super::html::{Page, Section, Table};
use super::super::plots::{Line, Plot, Scale};
use super::reply::{COLUMNS, IntervalReply, OperationReply, PhaseReply, Reply, time_display};
use onefold_api::{Error, Result};
use std::error::Error as Cause;

/// The most points of a line.
const POINTS_MAX: usize = 150;

pub(super) fn page(reply: &Reply) -> Result<Page> {
    draw(reply).map_err(|e| Error::failed(format!("cannot draw the plots: {e}")))
}

fn draw(reply: &Reply) -> std::result::Result<Page, Box<dyn Cause>> {
    let mut plots = vec![latencies(reply).draw()?];
    for phase in &reply.phases {
        plots.push(throughput(phase).draw()?);
    }
    let stopped =
        (!reply.is_complete).then(|| "Stopped: figures cover the work done so far.".to_owned());
    Ok(Page {
        about: "onefold bench: performance under a load with real duplicates",
        headline: headline(reply),
        remarks: reply.load().to_vec(),
        warnings: stopped.into_iter().collect(),
        sections: vec![Section {
            heading: "Latency and throughput".to_owned(),
            plots,
            tables: vec![Table {
                caption: "Requests, and how long they took".to_owned(),
                columns: COLUMNS.map(Into::into).to_vec(),
                rows: reply.rows().into_iter().map(Vec::from).collect(),
            }],
            notes: vec![reply.verified()],
        }],
    })
}

/// The request rate and 99th percentile of the first phase other than the fill.
fn headline(reply: &Reply) -> String {
    let Some(phase) = reply.phases.iter().find(|phase| phase.phase != "fill") else {
        return "Nothing was measured".to_owned();
    };
    let operations = || phase.operations.iter().filter(|op| op.operation != "flush");
    let per_second: f64 = operations().map(|op| op.requests_per_second).sum();
    let name = match operations().map(|op| op.operation).collect::<Vec<_>>()[..] {
        ["read"] => "reads",
        ["write"] => "writes",
        _ => "requests",
    };
    let p99 = |op: &OperationReply| op.latency_ns.p99;
    let p99 = operations().map(p99).max().unwrap_or(0);
    format!(
        "{per_second:.0} {name} a second, 99 of 100 within {}",
        time_display(p99 as f64)
    )
}

/// The latency distribution of each operation except flushes.
fn latencies(reply: &Reply) -> Plot<'_> {
    let mut lines = Vec::new();
    for phase in &reply.phases {
        for op in phase.operations.iter().filter(|op| op.curve.len() > 1) {
            let name = if phase.operations.len() > 1 && op.operation != phase.phase {
                format!("{}: {}", phase.phase, op.operation)
            } else {
                phase.phase.to_owned()
            };
            let points = op.curve.iter();
            let points = points.map(|(part, time)| (-part.log10(), *time));
            lines.push(Line {
                name,
                points: points.collect(),
            });
        }
    }
    Plot {
        title: "Latency by part of the requests".to_owned(),
        below: "percentile",
        beside: "",
        lines,
        x: |power| match power {
            power if power <= 0.0 => "0 %".to_owned(),
            power => {
                let digits = (power - 2.0).max(0.0) as usize;
                format!("{:.digits$} %", 100.0 * (1.0 - 10_f64.powf(-power)))
            }
        },
        x_step: 1.0,
        y: time_display,
        scale: Scale::Logarithmic,
    }
}

fn throughput(phase: &PhaseReply) -> Plot<'_> {
    // Combine intervals into one point where more points could not be distinguished.
    let joined = phase.timeline.len().div_ceil(POINTS_MAX).max(1);
    let line = |name: &str, bytes: fn(&IntervalReply) -> u64| {
        let points = (0..).zip(phase.timeline.chunks(joined));
        let point = |(n, intervals): (usize, &[IntervalReply])| {
            let seconds = intervals.len() as f64 * phase.interval_seconds;
            let middle = (n * joined) as f64 * phase.interval_seconds + seconds / 2.0;
            let sum: u64 = intervals.iter().map(bytes).sum();
            (middle, sum as f64 / seconds / f64::from(1 << 20))
        };
        Line {
            name: name.to_owned(),
            points: points.map(point).collect(),
        }
    };
    let mut lines = vec![
        line("read", |interval| interval.read_bytes),
        line("written", |interval| interval.written_bytes),
    ];
    lines.retain(|line| line.points.iter().any(|(_, amount)| *amount > 0.0));
    Plot {
        title: format!("Throughput of {} over time", phase.phase),
        below: "seconds",
        beside: "MiB/s",
        lines,
        x: |seconds| {
            let digits = match seconds {
                0.0 => 0,
                ..0.1 => 3,
                ..1.0 => 2,
                ..10.0 => 1,
                _ => 0,
            };
            format!("{seconds:.digits$}")
        },
        x_step: 0.0,
        y: |amount| format!("{amount:.0}"),
        scale: Scale::Linear,
    }
}
