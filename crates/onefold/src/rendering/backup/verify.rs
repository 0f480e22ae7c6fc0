//! Renders the result of verifying backups.

use std::io::{self, Write};

use onefold_api::backup::BackupVerifyReply;
use onefold_api::size;

use super::InWords;
use crate::output::Render;

impl Render for BackupVerifyReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for finding in &self.verified.findings {
            writeln!(out, "{}", InWords(finding))?;
        }
        writeln!(
            out,
            "{} in {} verified, {} compared with fingerprints: {}",
            size::count(self.verified.backups, "backup"),
            size::count(self.verified.objects, "object"),
            size::display(self.verified.compared_bytes),
            match self.verified.findings.len() {
                0 => "nothing wrong".to_owned(),
                found => size::count(found as u64, "finding"),
            }
        )
    }
}
