//! Where words go: one document on stdout, everything else on stderr.

use onefold_api::{Error, Result, Versioned};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// How a command prints its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people; may change between releases.
    Text,
    /// One JSON document on stdout.
    Json,
}

/// A result that people can read as well as programs.
pub(crate) trait Render: Serialize {
    /// Writes it for people, ending in a line break unless it is empty.
    fn text(&self, out: &mut dyn Write) -> io::Result<()>;
}

/// Whether stdout has a document, or a part of one: there is at most one.
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

    /// Says why the command failed: on stderr, and as JSON on stdout where that is wanted and has no
    /// document yet, such as a plan that was not carried out.
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

    /// Says something that is worth knowing but not the result; silent with `--quiet`.
    pub(crate) fn note(&self, message: impl std::fmt::Display) {
        if !self.quiet {
            say(message);
        }
    }

    /// Says something that the user must not miss, `--quiet` or not.
    pub(crate) fn warn(&self, message: impl std::fmt::Display) {
        say(format_args!("warning: {message}"));
    }

    /// Whether moving progress bars make sense.
    pub(crate) fn shows_progress(&self) -> bool {
        !self.quiet && io::stderr().is_terminal()
    }
}

/// One line on stderr. A closed stderr is no reason to stop working, so failures are ignored.
pub(crate) fn say(message: impl std::fmt::Display) {
    let message = one_line(&message.to_string());
    let _ = writeln!(io::stderr().lock(), "onefold: {message}");
}

/// A text from outside, such as the name of a file, in one line without control characters: a terminal would obey them.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_control() {
            true => line.extend(character.escape_default()),
            false => line.push(character),
        }
    }
    line
}

/// Text without control characters but for line breaks. Names in it come from file systems, repositories and pools that
/// others may have written.
struct Plain<'a>(&'a mut dyn Write);

impl Write for Plain<'_> {
    /// Takes whole texts, as formatting gives them: a character is never divided.
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
