//! `onefold volume export`

use super::copy_out::receive;
use crate::context::Context;
use crate::foreground::interruption;
use crate::image::ImageFormat;
use crate::image::writer::{ImageWriter, check_device, is_block_device};
use crate::overwriting::Overwritten;
use crate::progress::Progress;
use onefold_api::VolumeStat;
use onefold_api::transfer::{VolumeExport, VolumeExportReply};
use onefold_api::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Name of the volume, or VOLUME@SNAPSHOT.
    name: String,

    /// Image to create: a new file, a block device, or - for standard output (the last two raw only).
    file: PathBuf,

    /// Format of the image.
    #[arg(long, value_enum, default_value = "raw")]
    image_format: ImageFormat,

    /// Overwrite a block device.
    #[arg(long)]
    yes: bool,
}

pub(super) fn run(context: &Context, args: Args) -> Result<ExitCode> {
    let to_stdout = args.file == Path::new("-");
    if to_stdout && args.image_format != ImageFormat::Raw {
        return Err(Error::usage(
            "only a raw image can be written to standard output",
        ));
    }
    let to_device = is_block_device(&args.file);
    if to_device && args.image_format != ImageFormat::Raw {
        return Err(Error::usage(
            "only a raw image can be written to a block device",
        ));
    }
    let reply = context.with_session(|session| {
        let volume = session.call(
            &VolumeStat {
                name: args.name.clone(),
                exact: false,
            },
            &mut |_, _| {},
        )?;
        if to_device && !args.yes {
            check_device(&args.file, volume.stat.size_bytes)?;
            return Err(Overwritten::new(&args.file).refusal(volume.stat.size_bytes));
        }
        if !volume.clients.is_empty() {
            context.output.warn(format_args!(
                "volume '{}' is attached to {}; data written while it is exported may be \
                 in the image in part",
                args.name,
                volume.clients.join(", ")
            ));
        }
        let export = VolumeExport {
            name: args.name.clone(),
        };
        let interrupted = interruption()?;
        let (size_bytes, mut pieces) = session.export(&export)?;
        let mut image = ImageWriter::create(&args.file, args.image_format, size_bytes)?;
        let progress = Progress::bytes(&context.output, "exporting");
        let written_bytes = receive(
            size_bytes,
            &mut pieces,
            &interrupted,
            &mut |done, all| progress.set(done, all),
            &mut |chunk| image.write(chunk),
        )?;
        image.finish(size_bytes)?;
        Ok(VolumeExportReply {
            name: args.name,
            size_bytes,
            written_bytes,
        })
    })?;
    // Standard output carries the image, so no document is printed.
    if to_stdout {
        Ok(ExitCode::SUCCESS)
    } else {
        context.print(&reply)
    }
}
