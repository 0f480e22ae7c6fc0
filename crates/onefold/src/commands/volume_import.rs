//! `onefold volume import`

use crate::context::Context;
use crate::foreground::end_when_interrupted;
use crate::image::ImageFormat;
use crate::image::reader::{ImageOptions, ImageReader};
use crate::progress::Progress;
use onefold_api::NewVolumeOptions;
use onefold_api::Result;
use onefold_api::size;
use onefold_api::transfer::VolumeImport;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Name of the new volume.
    name: String,

    /// Image to import: a file, a device, or - for standard input.
    file: PathBuf,

    /// Format of the image, which is never detected. Without this option the image is read as raw, and a file
    /// that looks like another format or is compressed is refused.
    #[arg(long, value_enum)]
    image_format: Option<ImageFormat>,

    /// Allow a qcow2 image to refer to other files, and read those, too. Only for images that you trust.
    #[arg(long)]
    allow_backing: bool,

    /// Exact size of an image that comes through a pipe.
    #[arg(long, value_parser = size::parse)]
    size: Option<u64>,

    #[command(flatten)]
    options: NewVolumeOptions,

    /// The group of the volume, for a pool that hosts share [default: an open one without volumes, or a new one].
    #[arg(long, value_name = "NUMBER", hide_short_help = true)]
    group: Option<u64>,
}

pub(super) fn run(context: &Context, args: Args) -> Result<ExitCode> {
    let mut import = VolumeImport {
        name: args.name,
        image_bytes: 0,
        options: args.options,
        group: args.group,
    };
    // Refuse an invalid request before opening the image.
    import.check()?;
    end_when_interrupted(
        &context.output,
        "unless 'onefold volume list' shows the volume there is none, and the daemon, or 'onefold \
         pool dedup', releases its blocks",
    )?;
    let image_options = ImageOptions {
        format: args.image_format,
        allow_backing: args.allow_backing,
        stream_bytes: args.size,
    };
    let image = ImageReader::open(&args.file, &image_options, &context.output)?;
    import.image_bytes = image.image_bytes();
    let reply = context.with_session(|session| {
        let progress = Progress::bytes(&context.output, "importing");
        let pieces = image.start(move |done, all| progress.set(done, all));
        session.import(&import, pieces)
    })?;
    if reply.size_bytes != reply.image_bytes {
        context.output.note(format_args!(
            "the image's {} bytes were rounded up to {}, a whole number of sectors",
            reply.image_bytes, reply.size_bytes
        ));
    }
    if let Some(failure) = &reply.sharing_failure {
        context.output.warn(format_args!(
            "not all duplicates were found while importing; the finder will find the rest: \
             {failure}"
        ));
    }
    context.print(&reply)
}
