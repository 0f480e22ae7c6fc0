//! fio over NBD: writes job files, and parses the results.
//!
//! Each job is one connection to one export. Verification schemes that a test relies on are
//! described where they are used; see `kill_loop`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde_json::Value;

use crate::command::{Cmd, Running, last_lines};

/// How long fio may take to write its logs after it was interrupted.
const INTERRUPTED_LIMIT: Duration = Duration::from_secs(60);

/// fio's exit code after an interrupt.
const INTERRUPTED: i32 = 128;

/// The fio job sections that run concurrently in one fio process.
pub struct Fio {
    directory: PathBuf,
    name: String,
    sections: Vec<Section>,
    pinned_to: Option<usize>,
}

/// A job: its operations on one export.
pub struct Section {
    name: String,
    options: Vec<(String, String)>,
}

impl Section {
    /// A job on an NBD export.
    pub fn new(name: &str, uri: &str) -> Section {
        Section {
            name: name.to_owned(),
            options: Vec::new(),
        }
        .set("uri", uri)
    }

    /// Sets one of fio's options.
    pub fn set(mut self, key: &str, value: impl ToString) -> Section {
        self.options.push((key.to_owned(), value.to_string()));
        self
    }

    /// Has each request's latency logged, for [`read_latencies`].
    pub fn log_latencies(self, name: &str) -> Section {
        self.set("write_lat_log", name)
            .set("log_unix_epoch", 1)
            .set("disable_slat", 1)
            .set("disable_lat", 1)
    }
}

impl Fio {
    /// A run whose files are named after `name`, in `directory`.
    pub fn new(directory: &Path, name: &str) -> Fio {
        Fio {
            directory: directory.to_path_buf(),
            name: name.to_owned(),
            sections: Vec::new(),
            pinned_to: None,
        }
    }

    /// Adds a job.
    pub fn job(mut self, section: Section) -> Fio {
        self.sections.push(section);
        self
    }

    /// Keeps fio on one processor.
    pub fn pin(mut self, processor: Option<usize>) -> Fio {
        self.pinned_to = processor;
        self
    }

    /// Runs to the end. A failed job, or a difference found by verification, is an error.
    pub fn run(self) -> Result<Vec<JobResult>> {
        let (command, report) = self.command()?;
        command.run()?;
        read_report(&report)
    }

    /// Starts fio and returns at once. The output goes to `NAME.log`.
    pub fn spawn(self) -> Result<Background> {
        let log = self.directory.join(format!("{}.log", self.name));
        let (command, report) = self.command()?;
        Ok(Background {
            running: command.spawn_logged(&log)?,
            report,
            log,
        })
    }

    fn command(&self) -> Result<(Cmd, PathBuf)> {
        let job_file = self.directory.join(format!("{}.fio", self.name));
        let report = self.directory.join(format!("{}.json", self.name));
        std::fs::write(&job_file, self.text())
            .with_context(|| format!("cannot write {}", job_file.display()))?;
        let command = match self.pinned_to {
            Some(processor) => Cmd::new("taskset")
                .arg("-c")
                .arg(processor.to_string())
                .arg("fio"),
            None => Cmd::new("fio"),
        };
        let command = command
            .arg("--output-format=json")
            .arg(format!("--output={}", report.display()))
            .arg(&job_file)
            .dir(&self.directory);
        Ok((command, report))
    }

    fn text(&self) -> String {
        // Without `thread`, fio forks for each job and keeps its numbers in System V shared
        // memory, which a killed fio would leave behind.
        let mut text = String::from("[global]\nioengine=nbd\nthread\nverify_state_save=0\n");
        for section in &self.sections {
            text.push_str(&format!("[{}]\n", section.name));
            for (key, value) in &section.options {
                text.push_str(&format!("{key}={value}\n"));
            }
        }
        text
    }
}

/// A running fio.
pub struct Background {
    running: Running,
    report: PathBuf,
    log: PathBuf,
}

impl Background {
    /// Whether fio still runs.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.running.try_wait()?.is_none())
    }

    /// fio's output so far, for messages.
    pub fn said(&self) -> String {
        last_lines(&std::fs::read_to_string(&self.log).unwrap_or_default())
    }

    /// Processor time that fio has used so far, in seconds.
    pub fn cpu_seconds(&self) -> Result<f64> {
        self.running.cpu_seconds()
    }

    /// Waits until fio ends, which must be a success.
    pub fn wait_for_success(&mut self) -> Result<Vec<JobResult>> {
        let status = self.running.wait()?;
        if !status.success() {
            bail!("fio failed ({status})\n{}", self.said());
        }
        read_report(&self.report)
    }

    /// Ends a load before its time. Its logs are complete.
    pub fn interrupt(&mut self) -> Result<()> {
        self.running.signal(Signal::INT)?;
        let status = self.running.wait_at_most(INTERRUPTED_LIMIT)?;
        if status.code() != Some(INTERRUPTED) {
            bail!("fio failed ({status})\n{}", self.said());
        }
        Ok(())
    }

    /// Waits at most `limit` until fio ends, which must be a success.
    pub fn wait_for_success_within(&mut self, limit: Duration) -> Result<Vec<JobResult>> {
        let said = |fio: &Background| format!("fio did not end well\n{}", fio.said());
        let ended = self.running.wait_at_most(limit);
        ended.with_context(|| said(self))?;
        self.wait_for_success()
    }

    /// Waits until fio ends, which must be a failure, because its server is gone.
    pub fn wait_for_failure(&mut self, limit: Duration) -> Result<JobResult> {
        if self.running.wait_at_most(limit)?.success() {
            bail!("fio went on without an error although its server was killed");
        }
        let results = read_report(&self.report)?;
        results
            .into_iter()
            .reduce(JobResult::plus)
            .context("fio reported no job")
    }
}

/// The result of one job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobResult {
    /// The job's reads.
    pub read: Direction,
    /// The job's writes.
    pub write: Direction,
}

/// The reads or the writes of a job.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Direction {
    /// Requests that were answered.
    pub requests: u64,
    /// Bytes of these requests.
    pub bytes: u64,
    /// Requests per second.
    pub iops: f64,
    /// Mean latency.
    pub mean_us: f64,
    /// The latency that one request in a hundred exceeds.
    pub p99_us: f64,
}

impl JobResult {
    fn plus(self, other: JobResult) -> JobResult {
        let add = |a: Direction, b: Direction| Direction {
            requests: a.requests + b.requests,
            bytes: a.bytes + b.bytes,
            iops: a.iops + b.iops,
            mean_us: a.mean_us.max(b.mean_us),
            p99_us: a.p99_us.max(b.p99_us),
        };
        JobResult {
            read: add(self.read, other.read),
            write: add(self.write, other.write),
        }
    }

    /// Requests in both directions.
    pub fn requests(&self) -> u64 {
        self.read.requests + self.write.requests
    }
}

/// A request in a log of latencies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Request {
    /// When it was answered, in milliseconds of the Unix epoch.
    pub at_ms: f64,
    /// The time from the request to its answer.
    pub latency_us: f64,
    /// Whether the request is not a read.
    pub is_write: bool,
}

/// Reads the log of a job with the options of [`Section::log_latencies`] for this name.
pub fn read_latencies(directory: &Path, name: &str) -> Result<Vec<Request>> {
    let path = directory.join(format!("{name}_clat.1.log"));
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read fio's log {}", path.display()))?;
    text.lines().map(parse_request).collect()
}

/// Parses a line: time in ms, latency in ns, direction, and fields that are not used here.
fn parse_request(line: &str) -> Result<Request> {
    let mut fields = line.split(',').map(str::trim);
    let mut number = || -> Option<f64> { fields.next()?.parse().ok() };
    let (at_ms, ns, direction) = (number(), number(), number());
    let (Some(at_ms), Some(ns), Some(direction)) = (at_ms, ns, direction) else {
        bail!("fio's log has a line without time, latency and direction: {line}");
    };
    Ok(Request {
        at_ms,
        latency_us: ns / 1000.0,
        is_write: direction == 1.0,
    })
}

fn read_report(path: &Path) -> Result<Vec<JobResult>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read fio's report {}", path.display()))?;
    parse_report(&text)
}

fn parse_report(text: &str) -> Result<Vec<JobResult>> {
    // fio prints notes before the document when a job fails.
    let start = text.find("\n{").map_or(0, |at| at + 1);
    let document = text.get(start..).unwrap_or_default();
    let report: Value = serde_json::from_str(document).context("fio's report is not JSON")?;
    let jobs = report
        .get("jobs")
        .and_then(Value::as_array)
        .context("fio reports no jobs")?;
    jobs.iter()
        .map(|job| {
            Ok(JobResult {
                read: direction(job, "read")?,
                write: direction(job, "write")?,
            })
        })
        .collect()
}

fn direction(job: &Value, name: &str) -> Result<Direction> {
    let number = |pointer: &str| {
        job.pointer(&format!("/{name}/{pointer}"))
            .and_then(Value::as_f64)
    };
    let needed = |pointer: &str| {
        number(pointer).with_context(|| format!("fio's report lacks {name}/{pointer}"))
    };
    Ok(Direction {
        requests: needed("total_ios")? as u64,
        bytes: needed("io_bytes")? as u64,
        iops: needed("iops")?,
        mean_us: needed("clat_ns/mean")? / 1000.0,
        // Absent if there was no request.
        p99_us: number("clat_ns/percentile/99.000000").unwrap_or(0.0) / 1000.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"fio: io_u error on file a.0.0
{ "jobs": [ { "jobname": "a", "error": 0,
  "read": {"total_ios": 10, "io_bytes": 40960, "iops": 5.5,
    "clat_ns": {"mean": 2000.0, "percentile": {"99.000000": 9000}}},
  "write": {"total_ios": 0, "io_bytes": 0, "iops": 0.0, "clat_ns": {"mean": 0.0}} } ] }"#;

    #[test]
    fn a_report_is_read_past_fios_notes() {
        let results = parse_report(REPORT).unwrap();
        let expected = Direction {
            requests: 10,
            bytes: 40960,
            iops: 5.5,
            mean_us: 2.0,
            p99_us: 9.0,
        };
        assert_eq!(
            results,
            [JobResult {
                read: expected,
                write: Direction::default()
            }]
        );
    }

    #[test]
    fn a_report_that_lacks_a_number_is_refused() {
        let error = parse_report(&REPORT.replace("total_ios", "other")).unwrap_err();
        assert!(format!("{error:#}").contains("read/total_ios"));
        assert!(parse_report("").is_err());
    }

    #[test]
    fn a_log_line_is_a_request() {
        let request = parse_request("1795308952123, 45600, 1, 4096, 0, 0").unwrap();
        let expected = Request {
            at_ms: 1_795_308_952_123.0,
            latency_us: 45.6,
            is_write: true,
        };
        assert_eq!(request, expected);
        for line in ["", "1, 2", "1, 2, x"] {
            assert!(parse_request(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_job_file_has_one_section_per_job() {
        let fio = Fio::new(Path::new("/"), "n")
            .job(Section::new("a", "nbd+unix:///v?socket=s").set("iodepth", 16))
            .job(Section::new("b", "u"));
        assert!(
            fio.text()
                .ends_with("[a]\nuri=nbd+unix:///v?socket=s\niodepth=16\n[b]\nuri=u\n")
        );
    }
}
