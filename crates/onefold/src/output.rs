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
            Format::Text => document.text(&mut out),
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
    let _ = writeln!(io::stderr().lock(), "onefold: {message}");
}
