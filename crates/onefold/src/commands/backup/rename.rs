//! `onefold backup rename`

use super::{RepositoryArgs, find_source};
use crate::context::Context;
use crate::output::Render;
use onefold_api::{Result, check_name};
use onefold_format::backup::Label;
use serde::Serialize;
use std::io::{self, Write};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Args {
    /// Name or id of the source.
    source: String,

    /// New name of the source.
    new_name: String,

    #[command(flatten)]
    repository: RepositoryArgs,
}

#[derive(Debug, Serialize)]
struct Reply {
    source_id: String,
    old_name: String,
    new_name: String,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    check_name(&args.new_name)?;
    let (opened, _) = args.repository.open_to_change(context)?;
    let repository = opened.repository();
    let known = find_source(repository, &args.source)?;
    opened.check(known.id)?;
    let writer = repository.writer(known.id, "backup rename");
    let mut writer = writer?;
    let label = Label {
        name: args.new_name.clone(),
        origin: known.source.origin.clone(),
    };
    writer.set_label(label)?;
    context.print(&Reply {
        source_id: known.id.to_string(),
        old_name: known.source.name,
        new_name: args.new_name.clone(),
    })
}

impl Render for Reply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "source '{}' is '{}' now", self.old_name, self.new_name)
    }
}
