//! `onefold backup create`

use super::{At, code};
use crate::backup_source::{CommandDisks, SessionPool};
use crate::context::Context;
use crate::image::reader::ImageOptions;
use onefold_api::Result;
use onefold_api::backup::{
    Answer, BackupCreate, BackupCreateReply, RepositoryRequest, RepositoryService, RepositoryVerb,
};
use onefold_backup::Opened;
use std::process::ExitCode;

pub(super) fn run(context: &Context, at: &At<BackupCreate>) -> Result<ExitCode> {
    let request = &at.request;
    request.check()?;
    // Before slow work such as deriving a key, and before any thread is started: threads inherit the class.
    if !request.hurry
        && let Err(error) = onefold_jobs::enter_idle_class()
    {
        tracing::debug!("the backup runs at ordinary priority: {error}");
    }
    let opened = at.repository.open_for(context, BackupCreate::USE)?;
    let answer = if request.needs_pool() {
        context.with_session(|session| {
            let interrupted = opened.supervision().interrupted();
            let place = context.pool()?;
            let pool = SessionPool::new(session, place, &context.output, interrupted)?;
            create(context, request, &opened, Some(pool))
        })?
    } else {
        create(context, request, &opened, None)?
    };
    context.print(&answer.reply)?;
    Ok(code(answer.outcome))
}

fn create(
    context: &Context,
    request: &BackupCreate,
    opened: &Opened,
    pool: Option<SessionPool<'_>>,
) -> Result<Answer<BackupCreateReply>> {
    let disks = CommandDisks {
        pool,
        images: ImageOptions {
            format: request.image_format,
            allow_backing: request.allow_backing,
            stream_bytes: None,
        },
        output: &context.output,
    };
    RepositoryService::new(opened)
        .with_disks(&disks)
        .call(request)
}
