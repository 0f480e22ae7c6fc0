//! Disk images outside the pool: raw and qcow2 files, and pipes.
//!
//! The command line's process opens them, never the daemon: relative paths, permissions and `-`
//! then mean what the user expects. The user states the format. Guessing it from content would let
//! a guest, who writes the content, choose which files are opened.

pub(crate) mod reader;
pub(crate) mod writer;

/// How an image's bytes are laid out in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ImageFormat {
    /// The disk's bytes as they are.
    Raw,
    /// QEMU's format, versions 2 and 3.
    Qcow2,
}

/// An image's failure as the user's.
fn failed(error: onefold_image::ImageError) -> onefold_api::Error {
    onefold_api::Error::failed(error.to_string())
}
