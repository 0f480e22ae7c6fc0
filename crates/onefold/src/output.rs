//! Where words go: one document on stdout, everything else on stderr.

use crate::error::{Error, Result};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};

/// How a command prints its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people; may change between releases.
    Text,
    /// One JSON document on stdout.
    Json,
}

/// A result that people can read as well as programs.
pub(crate) trait Document: Serialize {
    /// Writes it for people, ending in a line break unless it is empty.
    fn text(&self, out: &mut dyn Write) -> io::Result<()>;
}

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
    pub(crate) fn document(&self, document: &impl Document) -> Result<()> {
        let mut out = io::BufWriter::new(io::stdout().lock());
        let written = match self.format {
            Format::Text => document.text(&mut out),
            Format::Json => serde_json::to_writer_pretty(&mut out, document)
                .map_err(io::Error::from)
                .and_then(|()| out.write_all(b"\n")),
        };
        written
            .and_then(|()| out.flush())
            .map_err(|e| Error::io("cannot write to stdout", &e))
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
