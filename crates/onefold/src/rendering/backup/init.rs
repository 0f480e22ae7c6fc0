//! Renders a new repository.

use std::io::{self, Write};

use onefold_api::backup::BackupInitReply;
use onefold_api::size;

use crate::output::Render;

impl Render for BackupInitReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let how = if self.encrypted {
            "encrypted"
        } else {
            "not encrypted"
        };
        writeln!(out, "repository {} created, {how}", self.id)?;
        if self.one_writer {
            writeln!(out, "only this host may write it")?;
        }
        match self.aside_bytes {
            0 => writeln!(
                out,
                "there is no room to set aside: once it is full, it cannot be pruned"
            )?,
            bytes => writeln!(
                out,
                "{} are set aside, so that it can be pruned when it is full",
                size::display(bytes)
            )?,
        }
        match &self.recovery_key {
            None => Ok(()),
            Some(key) => writeln!(
                out,
                "recovery key, shown only now; in a file it is a --key-file:\n{key}"
            ),
        }
    }
}
