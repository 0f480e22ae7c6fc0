//! Disk images outside the pool: raw and qcow2 files, and pipes.
//!
//! Images are opened by the process of the command line, never by the daemon, so that relative paths,
//! permissions and `-` have their usual meaning. The user states the format: guessing it from the content
//! would let a guest, who writes the content, choose which files are opened.

pub(crate) mod reader;
pub(crate) mod writer;

pub(crate) use onefold_api::backup::ImageFormat;

/// Converts an image's error into one for the user.
fn failed(error: onefold_image::ImageError) -> onefold_api::Error {
    onefold_api::Error::failed(error.to_string())
}
