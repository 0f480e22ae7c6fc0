//! Runs other programs, and shows a program's output only if it failed.
//!
//! Addresses of package registries are cut out of the output: they differ from machine to machine
//! and may name private mirrors.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::cleanup;
use crate::usage::{self, Ticks};

/// The poll interval while a process must end.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// How long a process that was asked to end may take to clean up.
const CLEANUP_LIMIT: Duration = Duration::from_secs(30);

/// The number of lines shown from the end of a failed program's output.
const SHOWN_LINES_MAX: usize = 60;

/// A program with its arguments, and the text that a user would type for it.
pub struct Cmd {
    inner: Command,
    text: String,
    cleans_up: bool,
}

impl Cmd {
    /// A program by its path, or by its name if it is on the search path.
    pub fn new(program: impl AsRef<OsStr>) -> Cmd {
        let text = program.as_ref().to_string_lossy().into_owned();
        let mut inner = Command::new(program);
        // Nothing here is interactive; CI has no standard input at all.
        inner.stdin(Stdio::null());
        // mke2fs and its relatives are not on the path of an ordinary Debian user.
        let path = std::env::var("PATH").unwrap_or_default();
        inner.env("PATH", format!("{path}:/usr/sbin:/sbin"));
        // Output that we parse must not depend on the user's language.
        inner.env("LC_ALL", "C.UTF-8");
        Cmd {
            inner,
            text,
            cleans_up: false,
        }
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Cmd {
        let shown = argument.as_ref().to_string_lossy();
        self.text.push(' ');
        if shown.is_empty() || shown.contains(|c: char| c.is_whitespace() || "'\"?*&;$".contains(c))
        {
            self.text
                .push_str(&format!("'{}'", shown.replace('\'', "'\\''")));
        } else {
            self.text.push_str(&shown);
        }
        self.inner.arg(argument);
        self
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(self, arguments: impl IntoIterator<Item = A>) -> Cmd {
        arguments.into_iter().fold(self, Cmd::arg)
    }

    /// Sets a variable of its environment.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Cmd {
        self.text = format!("{name}={} {}", value.as_ref().to_string_lossy(), self.text);
        self.inner.env(name, value);
        self
    }

    /// Removes a variable from the program's environment.
    pub fn env_remove(mut self, name: &str) -> Cmd {
        self.inner.env_remove(name);
        self
    }

    /// Sets its working directory.
    pub fn dir(mut self, directory: impl AsRef<Path>) -> Cmd {
        self.inner.current_dir(directory);
        self
    }

    /// Marks a program that cleans up when it is asked to end: if a signal ends this process, it is asked. Other
    /// programs are killed.
    pub fn cleans_up(mut self) -> Cmd {
        self.cleans_up = true;
        self
    }

    /// Replaces this process by the program, and returns only if that fails.
    pub fn exec(mut self) -> anyhow::Error {
        let error = self.inner.exec();
        anyhow::Error::new(error).context(format!("cannot start: {}", self.text))
    }

    /// Runs to the end and returns standard output. A failure shows both outputs.
    pub fn read(self) -> Result<String> {
        let text = self.text.clone();
        let output = self.output()?;
        if !output.status.success() {
            bail!("{}", failure(&text, output.status, &said(&output)));
        }
        String::from_utf8(output.stdout)
            .with_context(|| format!("{text} printed something that is not UTF-8"))
    }

    /// Runs to the end, quietly.
    pub fn run(self) -> Result<()> {
        let text = self.text.clone();
        let output = self.output()?;
        if !output.status.success() {
            bail!("{}", failure(&text, output.status, &said(&output)));
        }
        Ok(())
    }

    /// Runs to the end and returns the output and the status.
    pub fn output(mut self) -> Result<Output> {
        self.inner.stdout(Stdio::piped()).stderr(Stdio::piped());
        let text = self.text.clone();
        let mut running = self.spawn()?;
        let child = running.child.as_mut();
        let pipes = child.and_then(|child| child.stdout.take().zip(child.stderr.take()));
        let (mut stdout, mut stderr) = pipes.context("the process has no outputs")?;
        let (stdout, stderr) = std::thread::scope(|scope| {
            // Both at once: a program waits while a pipe that nobody reads is full.
            let stderr = scope.spawn(move || read_all(&mut stderr));
            let stdout = read_all(&mut stdout);
            let stderr = stderr.join();
            // A panic of another thread is one of this call.
            (
                stdout,
                stderr.unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            )
        });
        let status = running.wait()?;
        let cannot_read = || format!("cannot read the output of: {text}");
        Ok(Output {
            status,
            stdout: stdout.with_context(cannot_read)?,
            stderr: stderr.with_context(cannot_read)?,
        })
    }

    /// Runs to the end, with its output going to this process's output.
    pub fn show(self) -> Result<()> {
        let text = self.text.clone();
        let status = self.spawn()?.wait()?;
        if !status.success() {
            bail!("{} ({status})", format_args!("failed: {text}"));
        }
        Ok(())
    }

    /// Like [`show`](Self::show), and passes each line of standard error to `note`. The program must leave no process
    /// that holds standard error open.
    pub fn show_noting(mut self, note: &mut dyn FnMut(&str)) -> Result<()> {
        self.inner.stderr(Stdio::piped());
        let text = self.text.clone();
        let mut running = self.spawn()?;
        let child = running.child.as_mut();
        let stderr = child.and_then(|child| child.stderr.take());
        let mut lines = BufReader::new(stderr.context("the process has no standard error")?);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line)? > 0 {
            // If nobody reads our output, the program runs all the same.
            let _ = std::io::stderr().write_all(&line);
            note(&String::from_utf8_lossy(&line));
            line.clear();
        }
        let status = running.wait()?;
        if !status.success() {
            bail!("failed: {text} ({status})");
        }
        Ok(())
    }

    /// Starts the program with both outputs appended to one file.
    pub fn spawn_logged(mut self, log: &Path) -> Result<Running> {
        let open = || -> Result<File> {
            File::options()
                .create(true)
                .append(true)
                .open(log)
                .with_context(|| format!("cannot write {}", log.display()))
        };
        self.inner.stdout(open()?).stderr(open()?);
        self.spawn()
    }

    /// Starts the program with a pipe as standard input, which the caller writes to; its outputs go to a file.
    pub fn spawn_piped(mut self, log: &Path) -> Result<Running> {
        self.inner.stdin(Stdio::piped());
        self.spawn_logged(log)
    }

    fn spawn(mut self) -> Result<Running> {
        let child = self
            .inner
            .spawn()
            .with_context(|| format!("cannot start: {}", self.text))?;
        let pid = Pid::from_child(&child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty())
            .with_context(|| format!("cannot hold on to: {}", self.text))?;
        let pidfd = Arc::new(pidfd);
        cleanup::remember_process(Arc::clone(&pidfd), self.cleans_up);
        Ok(Running {
            child: Some(child),
            pidfd,
            text: self.text,
            ended: None,
        })
    }
}

/// A started program, which is killed when dropped.
pub struct Running {
    child: Option<Child>,
    pidfd: Arc<OwnedFd>,
    text: String,
    ended: Option<ExitStatus>,
}

impl Running {
    /// The process number, for `/proc`.
    pub fn pid(&self) -> Result<u32> {
        self.child
            .as_ref()
            .map(Child::id)
            .context("the process has ended")
    }

    /// Takes the pipe to its standard input, which works once.
    pub fn take_stdin(&mut self) -> Result<std::process::ChildStdin> {
        self.child
            .as_mut()
            .and_then(|child| child.stdin.take())
            .with_context(|| format!("no standard input to write to: {}", self.text))
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        pidfd_send_signal(&self.pidfd, signal)
            .with_context(|| format!("cannot send {signal:?} to: {}", self.text))
    }

    /// Processor time used so far, in seconds, in user and kernel mode, by all threads.
    pub fn cpu_seconds(&self) -> Result<f64> {
        let path = format!("/proc/{}/stat", self.pid()?);
        let stat = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        Ticks::parse(&stat)
            .map(|ticks| usage::seconds(ticks.own))
            .with_context(|| format!("cannot understand {path}"))
    }

    /// The highest resident memory so far, as the kernel counts it.
    pub fn peak_memory_bytes(&self) -> Result<u64> {
        self.field("status", "VmHWM:").map(|kib| kib << 10)
    }

    /// Bytes read so far that were not in the page cache.
    pub fn device_read_bytes(&self) -> Result<u64> {
        self.field("io", "read_bytes:")
    }

    /// Bytes written so far that the kernel has written to a device, or will write.
    pub fn device_written_bytes(&self) -> Result<u64> {
        self.field("io", "write_bytes:")
    }

    /// A number from a file of the process in `/proc`.
    fn field(&self, file: &str, name: &str) -> Result<u64> {
        let path = format!("/proc/{}/{file}", self.pid()?);
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok())
            .with_context(|| format!("cannot understand {path}"))
    }

    /// The exit status, if the program has ended.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        if let Some(child) = &mut self.child
            && self.ended.is_none()
        {
            usage::add_ended(Pid::from_child(child), false);
            self.ended = child
                .try_wait()
                .with_context(|| format!("cannot wait for: {}", self.text))?;
        }
        Ok(self.ended)
    }

    /// Waits until the program has ended.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        if let Some(status) = self.ended {
            return Ok(status);
        }
        let child = self
            .child
            .as_mut()
            .context("the process was waited for already")?;
        usage::add_ended(Pid::from_child(child), true);
        let status = child
            .wait()
            .with_context(|| format!("cannot wait for: {}", self.text))?;
        self.ended = Some(status);
        Ok(status)
    }

    /// Waits at most `limit`; a process that still runs then is killed, and this is an error.
    pub fn wait_at_most(&mut self, limit: Duration) -> Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            if start.elapsed() > limit {
                self.kill();
                bail!(
                    "did not end within {} s and was killed: {}",
                    limit.as_secs(),
                    self.text
                );
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Waits at most `limit`; a process that still runs then is an error. It is asked to end, so that it can clean up,
    /// and killed if it does not.
    pub fn ask_to_end_after(&mut self, limit: Duration) -> Result<ExitStatus> {
        let start = Instant::now();
        while start.elapsed() <= limit {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        self.signal(Signal::TERM)?;
        // In both cases it has not done its work.
        let _ = self.wait_at_most(CLEANUP_LIMIT);
        bail!("did not end within {} s: {}", limit.as_secs(), self.text)
    }

    /// Sends SIGKILL, and waits until the process is gone.
    pub fn kill(&mut self) {
        // Either call fails only if the process is gone already.
        let _ = self.signal(Signal::KILL);
        let _ = self.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.child.is_some() && self.ended.is_none() {
            self.kill();
        }
        cleanup::forget_process(&self.pidfd);
    }
}

fn read_all(pipe: &mut dyn Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    pipe.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn said(output: &Output) -> String {
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    text
}

fn failure(text: &str, status: ExitStatus, said: &str) -> String {
    format!(
        "failed ({status}): {text}\n{}",
        last_lines(&without_addresses(said))
    )
}

/// The last lines of a long text, with a note about the omitted lines.
pub fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let skipped = lines.len().saturating_sub(SHOWN_LINES_MAX);
    let mut shown = String::new();
    if skipped > 0 {
        shown.push_str(&format!("  ({skipped} lines before these)\n"));
    }
    for line in lines.iter().skip(skipped) {
        shown.push_str("  | ");
        shown.push_str(line);
        shown.push('\n');
    }
    shown
}

/// Replaces the host and path of every web address.
pub fn without_addresses(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = ["http://", "https://"]
        .iter()
        .filter_map(|s| rest.find(s))
        .min()
    {
        let (before, address) = rest.split_at(at);
        cleaned.push_str(before);
        cleaned.push_str("<address>");
        let end = address.find(|c: char| c.is_whitespace() || "'\"`)>,".contains(c));
        rest = end.map_or("", |end| address.split_at(end).1);
    }
    cleaned.push_str(rest);
    cleaned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_returned_and_failure_shows_command_and_output() {
        assert_eq!(Cmd::new("echo").arg("a b").read().unwrap(), "a b\n");
        let error = Cmd::new("sh")
            .args(["-c", "echo out; echo err >&2; exit 3"])
            .run();
        let message = format!("{:#}", error.unwrap_err());
        assert!(message.contains("exit status: 3"), "{message}");
        assert!(
            message.contains("sh -c 'echo out; echo err >&2; exit 3'"),
            "{message}"
        );
        assert!(
            message.contains("| out") && message.contains("| err"),
            "{message}"
        );
    }

    #[test]
    fn lines_of_standard_error_are_noted() {
        let mut noted = Vec::new();
        let mut note = |line: &str| noted.push(line.to_owned());
        let shell = Cmd::new("sh").args(["-c", "echo a >&2; printf b >&2; exit 3"]);
        let error = shell.show_noting(&mut note).unwrap_err();
        assert!(error.to_string().contains("exit status: 3"), "{error}");
        assert_eq!(noted, ["a\n", "b"]);
    }

    #[test]
    fn long_outputs_are_read_at_once() {
        let script = "head -c 300000 /dev/zero >&2; head -c 200000 /dev/zero";
        let output = Cmd::new("sh").args(["-c", script]).output().unwrap();
        assert!(output.status.success());
        assert_eq!(
            (output.stdout.len(), output.stderr.len()),
            (200_000, 300_000)
        );
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = Cmd::new("no-such-program-at-all").run().unwrap_err();
        assert!(format!("{error:#}").contains("no-such-program-at-all"));
    }

    #[test]
    fn a_dropped_process_is_gone() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let running = Cmd::new("sleep")
            .arg("1000")
            .spawn_logged(log.path())
            .unwrap();
        let proc_entry = format!("/proc/{}", running.pid().unwrap());
        assert!(Path::new(&proc_entry).exists());
        drop(running);
        assert!(!Path::new(&proc_entry).exists());
    }

    #[test]
    fn a_process_that_hangs_is_asked_to_end_and_its_output_is_there() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let script = "trap 'echo cleaned; exit 0' TERM; echo begun; while :; do sleep 0.05; done";
        let shell = Cmd::new("sh").args(["-c", script]);
        let mut running = shell.spawn_logged(log.path()).unwrap();
        while std::fs::read_to_string(log.path()).unwrap() != "begun\n" {
            std::thread::sleep(POLL_INTERVAL);
        }
        let error = running.ask_to_end_after(Duration::ZERO).unwrap_err();
        assert!(
            error.to_string().contains("did not end within 0 s: sh"),
            "{error}"
        );
        let said = std::fs::read_to_string(log.path()).unwrap();
        assert_eq!(said, "begun\ncleaned\n");
        let quick = Cmd::new("true").spawn_logged(log.path());
        let status = quick.unwrap().ask_to_end_after(Duration::MAX).unwrap();
        assert!(status.success());
    }

    #[test]
    fn addresses_are_cut_out() {
        assert_eq!(
            without_addresses("Get:1 http://host.example/debian bookworm, see \"https://x/y\"."),
            "Get:1 <address> bookworm, see \"<address>\"."
        );
        assert_eq!(without_addresses("nothing"), "nothing");
        assert_eq!(without_addresses("at https://x"), "at <address>");
    }

    #[test]
    fn only_the_last_lines_are_shown() {
        let text: String = (0..100).map(|n| format!("line{n}\n")).collect();
        let shown = last_lines(&text);
        assert!(
            shown.starts_with("  (40 lines before these)\n  | line40\n"),
            "{shown}"
        );
        assert!(shown.ends_with("  | line99\n"));
    }
}
