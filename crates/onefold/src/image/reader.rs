//! Reads an image into pieces on a separate thread, so that reading and storing overlap.

use super::ImageFormat;
use super::failed;
use crate::output::Output;
use onefold_api::limits::TRANSFER_CHUNK_BYTES;
use onefold_api::transfer::{ChunkPool, Piece, PieceReceiver, PieceSender, transfer};
use onefold_api::{Error, Result};
use onefold_image::{Backing, Container, HEAD_BYTES, Image, Qcow2Image, RawImage};
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::thread;

/// Alignment of the starts and ends of pieces, except at the image's end. This is the largest block size of a
/// pool, so that no block is written in two parts.
const PIECE_ALIGNMENT: u64 = 64 << 10;

/// The user's options for the image.
#[derive(Debug)]
pub(crate) struct ImageOptions {
    /// The image's format. If it is not given, the image is read as raw, and a file that looks like another
    /// format is refused.
    pub(crate) format: Option<ImageFormat>,
    /// Follow the image's references to other files.
    pub(crate) allow_backing: bool,
    /// The size of an image whose end cannot be determined.
    pub(crate) stream_bytes: Option<u64>,
}

/// Opens the image at `path` for reading its parts in any order.
pub(crate) fn open_image(
    path: &Path,
    options: &ImageOptions,
    output: &Output,
) -> Result<Box<dyn Image>> {
    let shown = shown(path);
    seekable_image(open_file(path, &shown)?, path, shown, options, output)
}

fn seekable_image(
    file: File,
    path: &Path,
    shown: String,
    options: &ImageOptions,
    output: &Output,
) -> Result<Box<dyn Image>> {
    match options.format {
        None | Some(ImageFormat::Raw) => raw_image(file, shown, options, output),
        Some(ImageFormat::Qcow2) => {
            let backing = if options.allow_backing {
                Backing::Follow
            } else {
                Backing::Refuse
            };
            let image = Qcow2Image::open(file, path, shown, backing);
            Ok(Box::new(image.map_err(failed)?))
        }
    }
}

/// An open image of known size.
pub(crate) struct ImageReader {
    image_bytes: u64,
    content: Content,
}

enum Content {
    Seekable(Box<dyn Image>),
    /// The bytes that were read to detect the format, followed by the pipe with the others.
    Stream(io::Chain<io::Cursor<Vec<u8>>, File>),
}

impl ImageReader {
    /// Opens the image at `path`; `-` is stdin.
    pub(crate) fn open(path: &Path, options: &ImageOptions, output: &Output) -> Result<Self> {
        let shown = shown(path);
        let file = open_file(path, &shown)?;
        let is_at_start = (&file)
            .stream_position()
            .is_ok_and(|position| position == 0);
        if !is_at_start {
            return Self::stream(file, &shown, options, output);
        }
        if options.stream_bytes.is_some() {
            return Err(Error::usage(format!(
                "{shown} is a file that knows its size: omit --size"
            )));
        }
        let image = seekable_image(file, path, shown, options, output)?;
        Ok(Self::seekable(image))
    }

    fn seekable(image: Box<dyn Image>) -> Self {
        Self {
            image_bytes: image.size_bytes(),
            content: Content::Seekable(image),
        }
    }

    fn stream(
        mut file: File,
        shown: &str,
        options: &ImageOptions,
        output: &Output,
    ) -> Result<Self> {
        if options.format == Some(ImageFormat::Qcow2) {
            return Err(Error::usage(format!(
                "{shown} is a pipe; a qcow2 image must be a file"
            )));
        }
        let mut head = Vec::with_capacity(HEAD_BYTES);
        (&mut file)
            .take(HEAD_BYTES as u64)
            .read_to_end(&mut head)
            .map_err(|e| Error::io(format_args!("cannot read {shown}"), &e))?;
        if options.format.is_none() {
            refuse_container(Container::of(&head), shown)?;
        }
        let content = io::Cursor::new(head).chain(file);
        if let Some(image_bytes) = options.stream_bytes {
            return Ok(Self {
                image_bytes,
                content: Content::Stream(content),
            });
        }
        output.note(format_args!(
            "the size of {shown} is not known before its end, so it is copied to a temporary \
             file first; --size avoids that"
        ));
        let spooled = spool(content, shown)?;
        let image = raw_image(spooled, shown.to_owned(), options, output)?;
        Ok(Self::seekable(image))
    }

    /// Size of the disk in bytes.
    pub(crate) fn image_bytes(&self) -> u64 {
        self.image_bytes
    }

    /// Starts to read. `report(done, all)` receives the position, including holes.
    pub(crate) fn start(self, report: impl FnMut(u64, u64) + Send + 'static) -> PieceReceiver {
        let (sender, receiver) = transfer();
        thread::spawn(move || self.send_all(&sender, report));
        receiver
    }

    fn send_all(self, pieces: &PieceSender, mut report: impl FnMut(u64, u64)) {
        let image_bytes = self.image_bytes;
        let mut report_position = |position| report(position, image_bytes);
        let sent = match self.content {
            Content::Seekable(image) => {
                send_image(image, image_bytes, pieces, &mut report_position)
            }
            Content::Stream(content) => {
                send_stream(content, image_bytes, pieces, &mut report_position)
            }
        };
        // If the receiver is gone, it reports its own error to the user.
        let _ = pieces.blocking_send(sent.map(|()| Piece::End { image_bytes }));
    }
}

const STDIN: &str = "standard input";

/// The image's name for messages.
fn shown(path: &Path) -> String {
    if path == Path::new("-") {
        STDIN.to_owned()
    } else {
        format!("{path:?}")
    }
}

fn open_file(path: &Path, shown: &str) -> Result<File> {
    let unusable = |e: io::Error| Error::io(format_args!("cannot use {shown}"), &e);
    let cannot_open = |e: io::Error| Error::io(format_args!("cannot open {shown}"), &e);
    if path == Path::new("-") {
        let file = io::stdin().as_fd().try_clone_to_owned();
        let file = File::from(file.map_err(cannot_open)?);
        refuse_kind(&file.metadata().map_err(unusable)?, shown)?;
        return Ok(file);
    }
    // Before opening, because opening has side effects on some devices.
    refuse_kind(&path.metadata().map_err(cannot_open)?, shown)?;
    File::open(path).map_err(cannot_open)
}

/// Refuses kinds of files that cannot hold a disk.
fn refuse_kind(metadata: &Metadata, shown: &str) -> Result<()> {
    let kind = metadata.file_type();
    let what = if kind.is_dir() {
        "a directory"
    } else if kind.is_char_device() {
        "a character device"
    } else {
        return Ok(());
    };
    Err(Error::failed(format!(
        "{shown} is {what}, not a disk image"
    )))
}

/// Detects a file that contains a disk in another format than raw.
fn container_in(file: &File) -> Option<Container> {
    let read = |at: u64| {
        let mut bytes = [0; HEAD_BYTES];
        let mut len = 0;
        while let Ok(count @ 1..) = file.read_at(&mut bytes[len..], at + len as u64) {
            len += count;
        }
        bytes[..len].to_vec()
    };
    Container::of(&read(0)).or_else(|| {
        let len = file.metadata().ok()?.len();
        Container::of_footer(&read(len.checked_sub(HEAD_BYTES as u64)?))
    })
}

/// Refuses to copy a container format byte for byte, unless the user requested it.
fn refuse_container(found: Option<Container>, shown: &str) -> Result<()> {
    let Some(container) = found else {
        return Ok(());
    };
    Err(Error::failed(format!(
        "{shown} looks like a {container}, not like a disk: {}; --image-format raw imports its bytes \
         as they are",
        advice(container, shown)
    )))
}

fn advice(container: Container, shown: &str) -> String {
    container.advice(if shown == STDIN { "FILE" } else { shown })
}

fn raw_image(
    file: File,
    shown: String,
    options: &ImageOptions,
    output: &Output,
) -> Result<Box<dyn Image>> {
    let found = container_in(&file);
    if options.format.is_none() {
        refuse_container(found, &shown)?;
    } else if let Some(container) = found {
        output.warn(format_args!(
            "{shown} looks like a {container} but is imported byte for byte; to get the disk inside \
             it, {}",
            advice(container, &shown)
        ));
    }
    Ok(Box::new(RawImage::new(file, shown).map_err(failed)?))
}

/// Copies a stream of unknown length to an unnamed file, which needs no clean-up.
fn spool(mut from: impl Read, shown: &str) -> Result<File> {
    let directory = std::env::temp_dir();
    let failed = |e: &io::Error| {
        Error::io(
            format_args!("cannot copy {shown} to {directory:?} (see TMPDIR)"),
            e,
        )
    };
    let flags =
        rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    let to = rustix::fs::open(
        &directory,
        flags,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
    )
    .map_err(|e| failed(&e.into()))?;
    let mut to = File::from(to);
    io::copy(&mut from, &mut to).map_err(|e| failed(&e))?;
    Ok(to)
}

fn send_image(
    mut image: Box<dyn Image>,
    image_bytes: u64,
    pieces: &PieceSender,
    report: &mut dyn FnMut(u64),
) -> Result<()> {
    let pool = ChunkPool::default();
    let mut position = 0;
    while let Some(data) = image.next_data(position).map_err(failed)? {
        // Widen to whole pieces; the added bytes are zeros, or data that would be read next anyway.
        position = position.max(data.start - data.start % PIECE_ALIGNMENT);
        let end = data
            .end
            .checked_next_multiple_of(PIECE_ALIGNMENT)
            .unwrap_or(u64::MAX);
        let end = end.min(image_bytes);
        while position < end {
            let mut chunk = pool.take(position);
            chunk.set_len((end - position).min(TRANSFER_CHUNK_BYTES as u64) as usize);
            image.read(position, chunk.as_mut()).map_err(failed)?;
            position += chunk.as_ref().len() as u64;
            report(position);
            if pieces.blocking_send(Ok(Piece::Data(chunk))).is_err() {
                return Ok(());
            }
        }
    }
    report(image_bytes);
    Ok(())
}

fn send_stream(
    mut file: impl Read,
    image_bytes: u64,
    pieces: &PieceSender,
    report: &mut dyn FnMut(u64),
) -> Result<()> {
    let failed = |e: &io::Error| Error::io("cannot read standard input", e);
    let pool = ChunkPool::default();
    let mut position = 0;
    while position < image_bytes {
        let mut chunk = pool.take(position);
        chunk.set_len((image_bytes - position).min(TRANSFER_CHUNK_BYTES as u64) as usize);
        file.read_exact(chunk.as_mut())
            .map_err(|e| match e.kind() {
                io::ErrorKind::UnexpectedEof => Error::failed(format!(
                    "standard input ended before the {image_bytes} bytes that --size promises"
                )),
                _ => failed(&e),
            })?;
        position += chunk.as_ref().len() as u64;
        report(position);
        if pieces.blocking_send(Ok(Piece::Data(chunk))).is_err() {
            return Ok(());
        }
    }
    match file.read(&mut [0]) {
        Ok(0) => Ok(()),
        Ok(_) => Err(Error::failed(format!(
            "standard input continues after the {image_bytes} bytes that --size promises"
        ))),
        Err(error) => Err(failed(&error)),
    }
}
