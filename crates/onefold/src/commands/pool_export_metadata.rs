//! `onefold pool export-metadata`

use super::copy_out::receive;
use crate::context::Context;
use crate::foreground::interruption;
use crate::image::writer::ImageWriter;
use crate::progress::Progress;
use onefold_api::Result;
use onefold_api::transfer::{MetadataExport, MetadataExportReply};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// File to create, readable only by its owner; or - for standard output.
    file: PathBuf,
}

pub(super) fn run(context: &Context, args: Args) -> Result<ExitCode> {
    let bytes = context.with_session(|session| {
        let interrupted = interruption()?;
        let (bytes, mut pieces) = session.export(&MetadataExport {})?;
        let mut file = ImageWriter::create_secret(&args.file)?;
        let progress = Progress::bytes(&context.output, "exporting");
        let written = receive(
            bytes,
            &mut pieces,
            &interrupted,
            &mut |done, all| progress.set(done, all),
            &mut |chunk| file.write(chunk),
        )?;
        file.finish(written)?;
        Ok(written)
    })?;
    if args.file == Path::new("-") {
        return Ok(ExitCode::SUCCESS);
    }
    context.print(&MetadataExportReply {
        file: args.file.display().to_string(),
        bytes,
    })
}
