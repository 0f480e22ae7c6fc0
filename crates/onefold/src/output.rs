//! Writes one document to stdout and everything else to stderr.

use onefold_api::{Error, Result, Versioned};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// The format of a command's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Text for people, which may change between releases.
    Text,
    /// A JSON document on stdout.
    Json,
}

/// A result that can be printed for people and for programs.
pub(crate) trait Render: Serialize {
    /// Writes the result for people, ending in a line break unless it is empty.
    fn text(&self, out: &mut dyn Write) -> io::Result<()>;
}

/// Whether all or part of a document has been written to stdout: there is at most one.
static PRINTED: AtomicBool = AtomicBool::new(false);

/// The two output streams of one command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    format: Format,
    quiet: bool,
}

impl Output {
    pub(crate) fn new(format: Format, quiet: bool) -> Self {
        Self { format, quiet }
    }

    /// Prints the command's only result on stdout.
    pub(crate) fn document(&self, document: &impl Render) -> Result<()> {
        PRINTED.store(true, Relaxed);
        let mut out = io::BufWriter::new(io::stdout().lock());
        let written = match self.format {
            Format::Text => document.text(&mut Plain(&mut out)),
            Format::Json => serde_json::to_writer_pretty(&mut out, &Versioned::new(document))
                .map_err(io::Error::from)
                .and_then(|()| out.write_all(b"\n")),
        };
        written
            .and_then(|()| out.flush())
            .map_err(|e| Error::io("cannot write to stdout", &e))
    }

    /// Reports a failure: on stderr, and as JSON on stdout if that was requested and no document, such as a
    /// plan that was not carried out, has been printed yet.
    pub(crate) fn failure(&self, error: &Error) {
        say(format_args!("error: {error}"));
        if self.format == Format::Json && !PRINTED.load(Relaxed) {
            let mut out = io::stdout().lock();
            // If stdout is closed, only stderr is left.
            let written = serde_json::to_writer_pretty(&mut out, &Versioned::new(error));
            let _ = written
                .map_err(io::Error::from)
                .and_then(|()| out.write_all(b"\n"));
        }
    }

    /// Prints a remark that is not part of the result; silent with `--quiet`.
    pub(crate) fn note(&self, message: impl std::fmt::Display) {
        if !self.quiet {
            say(message);
        }
    }

    /// Prints a warning that the user must not miss, even with `--quiet`.
    pub(crate) fn warn(&self, message: impl std::fmt::Display) {
        say(format_args!("warning: {message}"));
    }

    /// Whether to show moving progress bars.
    pub(crate) fn shows_progress(&self) -> bool {
        !self.quiet && io::stderr().is_terminal()
    }
}

/// Prints one line on stderr. Failures are ignored: a closed stderr is no reason to stop working.
pub(crate) fn say(message: impl std::fmt::Display) {
    let message = one_line(&message.to_string());
    let _ = writeln!(io::stderr().lock(), "onefold: {message}");
}

/// Puts a text from outside, such as a file name, on one line without control characters, which a terminal
/// would obey.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    line
}

/// A writer that removes control characters other than line breaks, because names come from file systems,
/// repositories and pools that others may have written.
struct Plain<'a>(&'a mut dyn Write);

impl Write for Plain<'_> {
    /// Receives whole texts, as formatting produces them, so characters are never split.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let is_harmless = |byte: &u8| (b' '..0x7f).contains(byte) || *byte == b'\n';
        if bytes.iter().all(is_harmless) {
            self.0.write_all(bytes)?;
            return Ok(bytes.len());
        }
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.split_inclusive('\n');
        lines.try_for_each(|line| match line.strip_suffix('\n') {
            Some(line) => writeln!(self.0, "{}", one_line(line)),
            None => write!(self.0, "{}", one_line(line)),
        })?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_nothing_to_obey() {
        let mut written = Vec::new();
        let name = "a\x1b]0;x\x07\u{9b}31m\r\tä";
        write!(Plain(&mut written), "{name}\nplain {}\n", 7).unwrap();
        let written = String::from_utf8(written).unwrap();
        let expected = "a\\u{1b}]0;x\\u{7}\\u{9b}31m\\r\\tä\nplain 7\n";
        assert_eq!(written, expected);
        assert_eq!(one_line("a\nb"), "a\\nb");
    }
}
