//! What was measured as one page with plots, which needs nothing but a browser.

use super::super::plots::{Lines, Plot, Scale, page};
use super::reply::{IntervalReply, PhaseReply, Reply, time_display};
use crate::error::{Error, Result};
use crate::output::Document;
use std::error::Error as Cause;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Points of a line at most.
const POINTS_MAX: usize = 150;

/// A new file for the page; gone again if the page is not written.
pub(super) struct PageFile {
    path: PathBuf,
    file: Option<File>,
}

/// Makes the file, so that it is known before a long load that it can be made.
pub(super) fn create(path: &Path) -> Result<PageFile> {
    let file = File::create_new(path);
    let file = file.map_err(|e| Error::io(format_args!("cannot make {path:?}"), &e))?;
    Ok(PageFile {
        path: path.to_owned(),
        file: Some(file),
    })
}

impl Drop for PageFile {
    fn drop(&mut self) {
        if self.file.is_some() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

pub(super) fn write(reply: &Reply, mut page: PageFile) -> Result<()> {
    let drawn = draw(reply).map_err(|e| Error::failed(format!("cannot draw the plots: {e}")))?;
    let written = page
        .file
        .as_mut()
        .map(|file| file.write_all(drawn.as_bytes()));
    let path = &page.path;
    let written = written.transpose();
    written.map_err(|e| Error::io(format_args!("cannot write {path:?}"), &e))?;
    page.file = None;
    Ok(())
}

fn draw(reply: &Reply) -> std::result::Result<String, Box<dyn Cause>> {
    let mut text = Vec::new();
    reply.text(&mut text)?;
    let mut plots = vec![latencies(reply).draw()?];
    for phase in &reply.phases {
        plots.push(throughput(phase).draw()?);
    }
    let mut remarks = vec![format!(
        "{}, {} {}",
        reply.target, reply.mode, reply.pattern
    )];
    if !reply.is_complete {
        remarks.push("Stopped: this is of what was done by then.".to_owned());
    }
    let text = String::from_utf8_lossy(&text);
    Ok(page("A load and how it was borne", &remarks, &plots, &text))
}

/// How long it took how many of the requests, for each operation but flushes.
fn latencies(reply: &Reply) -> Plot<'_> {
    let mut lines = Vec::new();
    for phase in &reply.phases {
        for it in phase.operations.iter().filter(|it| it.curve.len() > 1) {
            let name = match phase.operations.len() > 1 && it.operation != phase.phase {
                true => format!("{}: {}", phase.phase, it.operation),
                false => phase.phase.to_owned(),
            };
            let points = it.curve.iter();
            lines.push((
                name,
                points.map(|(part, time)| (-part.log10(), *time)).collect(),
            ));
        }
    }
    Plot {
        title: "Latency by part of the requests".to_owned(),
        below: "percentile",
        beside: "",
        lines: Lines(lines),
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
    // Several intervals to a point, for more points than these cannot be told apart.
    let joined = phase.timeline.len().div_ceil(POINTS_MAX).max(1);
    let line = |bytes: fn(&IntervalReply) -> u64| {
        let points = (0..).zip(phase.timeline.chunks(joined));
        let point = |(n, intervals): (usize, &[IntervalReply])| {
            let seconds = intervals.len() as f64 * phase.interval_seconds;
            let middle = (n * joined) as f64 * phase.interval_seconds + seconds / 2.0;
            let sum: u64 = intervals.iter().map(bytes).sum();
            (middle, sum as f64 / seconds / f64::from(1 << 20))
        };
        points.map(point).collect::<Vec<_>>()
    };
    let both = [
        ("read", line(|it| it.read_bytes)),
        ("written", line(|it| it.written_bytes)),
    ];
    let some = both
        .into_iter()
        .filter(|(_, line)| line.iter().any(|(_, amount)| *amount > 0.0));
    Plot {
        title: format!("Throughput of {} over time", phase.phase),
        below: "seconds",
        beside: "MiB/s",
        lines: Lines(some.map(|(name, line)| (name.to_owned(), line)).collect()),
        x: |seconds| {
            let digits = if seconds < 10.0 { 1 } else { 0 };
            format!("{seconds:.digits$}")
        },
        x_step: 0.0,
        y: |amount| format!("{amount:.0}"),
        scale: Scale::Linear,
    }
}
