//! Renders snapshots.

use std::io::{self, Write};

use onefold_api::{DeletionReply, SnapshotListReply, size};

use super::volume::freed;
use super::{short, utc};
use crate::output::Render;

impl Render for SnapshotListReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let names = self
            .snapshots
            .iter()
            .map(|snapshot| snapshot.stat.name.len());
        let width = names.max().unwrap_or(0).max(4);
        if !self.snapshots.is_empty() {
            writeln!(
                out,
                "{:width$}  {:>10}  {:>10}  {:>10}  {:>10}  {:20}  CLIENTS",
                "NAME", "SIZE", "DATA", "NEW", "FREEABLE", "CREATED"
            )?;
        }
        for snapshot in &self.snapshots {
            writeln!(
                out,
                "{:width$}  {:>10}  {:>10}  {:>10}  {:>10}  {:20}  {}",
                snapshot.stat.name,
                size::display(snapshot.stat.size_bytes),
                short(snapshot.data),
                size::display(snapshot.own_bytes),
                freed(&snapshot.usage),
                utc(snapshot.stat.created_unix_seconds),
                snapshot.clients.len()
            )?;
        }
        self.being_deleted
            .iter()
            .try_for_each(|deletion| write_deletion(deletion, out))
    }
}

/// Writes a line about an unfinished deletion.
pub(super) fn write_deletion(deletion: &DeletionReply, out: &mut dyn Write) -> io::Result<()> {
    let (name, own) = (&deletion.stat.name, size::display(deletion.own_bytes));
    if let Some(failure) = &deletion.stat.failure {
        return writeln!(out, "{name} was deleted; {own} of it stuck: {failure}");
    }
    if deletion.stat.needed_by.is_empty() {
        writeln!(out, "{name} was deleted; {own} of it still to be released")
    } else {
        let needed_by = deletion.stat.needed_by.join(", ");
        writeln!(out, "{name} was deleted; {own} of it needed by {needed_by}")
    }
}
