//! Renders what is forgotten, and what is protected from it.

use std::io::{self, Write};

use onefold_api::backup::{BackupForgetReply, BackupProtectReply, RetentionReason};
use onefold_api::size;

use crate::output::Render;
use crate::rendering::utc;

impl Render for BackupForgetReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let names = self.backups.iter().map(|backup| backup.name.len());
        let width = names.max().unwrap_or(0);
        for backup in &self.backups {
            let fate = match (backup.is_kept, self.is_done) {
                (true, _) => format!("kept: {}", words(&backup.kept_by)),
                (false, true) => "forgotten".to_owned(),
                (false, false) => "would be forgotten".to_owned(),
            };
            writeln!(
                out,
                "{:width$}  {}  {fate}",
                backup.name,
                backup
                    .unix_seconds
                    .map_or_else(|| "unknown".to_owned(), utc)
            )?;
        }
        let forgotten = self.backups.iter().filter(|backup| !backup.is_kept).count();
        let count = size::count(forgotten as u64, "backup");
        match (self.is_done, forgotten) {
            (_, 0) => writeln!(out, "nothing to forget"),
            (true, _) => writeln!(
                out,
                "{count} forgotten; 'onefold backup prune' gives the space back"
            ),
            (false, _) => writeln!(out, "{count} would be forgotten"),
        }
    }
}

fn words(reasons: &[RetentionReason]) -> String {
    let words: Vec<_> = reasons.iter().map(|reason| reason.word()).collect();
    words.join(", ")
}

impl Render for BackupProtectReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let what = if self.is_protected {
            "is protected"
        } else {
            "may be forgotten"
        };
        let mut backups = self.backups.iter();
        backups.try_for_each(|backup| writeln!(out, "{backup} {what}"))
    }
}
