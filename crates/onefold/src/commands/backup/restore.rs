//! `onefold backup restore`

use super::{At, code};
use crate::context::Context;
use crate::image::writer::TextFile;
use crate::rendering::backup::{losses, map};
use crate::restoring::target;
use onefold_api::Result;
use onefold_api::backup::{
    BackupRestore, BackupRestoreReply, RepositoryRequest, RepositoryService, RepositoryVerb,
};
use std::path::Path;
use std::process::ExitCode;

pub(super) fn run(context: &Context, at: &At<BackupRestore>) -> Result<ExitCode> {
    let request = &at.request;
    request.check()?;
    let opened = at.repository.open_for(context, BackupRestore::USE)?;
    // At the start, so that a failure to create it shows before the restore.
    let map_file = request.map.as_deref().map(TextFile::create).transpose()?;
    let target = target(context, request)?;
    let service = RepositoryService::new(&opened).with_restore_target(&*target);
    let answer = service.call(request)?;
    let reply = &answer.reply;
    if let (Some(file), Some(lost)) = (map_file, &reply.lost) {
        file.write(&map(lost, &reply.name, reply.size_bytes))?;
    }
    if request.file.as_deref() == Some(Path::new("-")) {
        // Standard output carries the disk.
        warn(context, reply);
    } else {
        context.print(reply)?;
    }
    Ok(code(answer.outcome))
}

/// Prints the losses as warnings, because standard output carries the image.
fn warn(context: &Context, reply: &BackupRestoreReply) {
    if reply.lost.as_ref().is_none_or(|lost| lost.bytes == 0) {
        return;
    }
    let mut text = Vec::new();
    // Writing to memory cannot fail.
    let _ = losses(reply, &mut text);
    for line in String::from_utf8_lossy(&text).lines() {
        context.output.warn(line);
    }
}
