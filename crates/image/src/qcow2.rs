//! The qcow2 format, by way of the `imago` crate.
//!
//! imago reads and writes the format; this file decides which files it may touch. It never opens a
//! file by itself: backing files and external data files are opened here, and only if the user
//! allowed that. And because imago reads zeros beyond a file's end, which would turn a truncated
//! image into one with holes, [`ImageFile`] refuses such reads.

use std::fmt;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use imago::io_buffers::{IoVector, IoVectorMut};
use imago::qcow2::{Qcow2, Qcow2CreateBuilder, Qcow2OpenBuilder};
use imago::raw::Raw;
use imago::storage::PreallocateMode;
use imago::storage::drivers::CommonStorageHelper;
use imago::{
    DenyImplicitOpenGate, FormatAccess, FormatCreateBuilder, FormatDriverBuilder, Mapping, Storage,
};

use crate::{Image, ImageError, QCOW2_MAGIC};

type Result<T> = std::result::Result<T, ImageError>;

/// The most images in a chain of backing files; ends a chain that contains itself.
const BACKING_DEPTH_MAX: usize = 64;

/// The unit of an image's size and of compressed data, whose last sector may be incomplete in the file.
const SECTOR_BYTES: u64 = 512;

/// Incompatible features that QEMU writes on request, by their bits in the header.
const UNREAD_FEATURES: [(u64, &str); 2] = [
    (1 << 3, "clusters compressed with zstd"),
    (1 << 4, "extended L2 entries"),
];

/// The treatment of an image's backing files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// An image with a backing file is refused.
    Refuse,
    /// Backing files are opened and read where the image itself has no data. Only for trusted
    /// images, because they choose the files.
    Follow,
    /// Backing files are not opened, and parts that the image itself does not have are holes.
    Leave,
}

/// A qcow2 image for reading.
pub struct Qcow2Image {
    access: FormatAccess<ImageFile>,
    shown: String,
}

impl Qcow2Image {
    /// Opens the image in `file`, which was found at `path` and which messages call `shown`.
    ///
    /// # Errors
    ///
    /// For a file that is not a qcow2 image or an encrypted one, for one that is damaged, and for
    /// one that refers to other files which `backing` does not allow or which cannot be opened.
    pub fn open(
        file: File,
        path: &Path,
        shown: impl Into<String>,
        backing: Backing,
    ) -> Result<Self> {
        let shown = shown.into();
        let storage = ImageFile::existing(file, path).map_err(|e| unusable(&shown, &e))?;
        let access = open_layer(storage, &shown, backing, 0)?;
        Ok(Self { access, shown })
    }
}

fn unusable(shown: &str, error: &io::Error) -> ImageError {
    ImageError::new(format!("{shown} is not a usable qcow2 image: {error}"))
}

fn cut(shown: &str) -> ImageError {
    ImageError::new(format!(
        "{shown} is cut: its tables refer to data beyond the end of the file"
    ))
}

/// Opens an image of a chain, and recursively its backing files.
fn open_layer(
    storage: ImageFile,
    shown: &str,
    backing: Backing,
    depth: usize,
) -> Result<FormatAccess<ImageFile>> {
    refuse_what_imago_accepts(&storage, shown)?;
    let directory = storage.directory.clone();
    let mut image: Qcow2<ImageFile> =
        Qcow2::open_image(storage, false).map_err(|e| unusable(shown, &e))?;

    let data_name = image.requires_external_data_file().then(|| {
        image
            .implicit_external_data_file()
            .cloned()
            .unwrap_or_else(|| "no name".to_owned())
    });
    let backing_name = image
        .implicit_backing_file()
        .filter(|_| backing != Backing::Leave)
        .cloned();
    for (role, name) in [("data", &data_name), ("backing", &backing_name)] {
        if let Some(name) = name
            && backing != Backing::Follow
        {
            return Err(ImageError::new(format!(
                "{shown} refers to another file as its {role} file, {name:?}; if you trust the \
                 image, --allow-backing reads that file too"
            )));
        }
    }
    let data_file = data_name
        .map(|name| open_beside(&directory, &name, shown))
        .transpose()?;
    image.set_data_file(data_file);
    let beneath = match backing_name {
        None => None,
        Some(_) if depth >= BACKING_DEPTH_MAX => {
            return Err(ImageError::new(format!(
                "{shown} has more than {BACKING_DEPTH_MAX} images beneath it"
            )));
        }
        Some(name) => {
            let storage = open_beside(&directory, &name, shown)?;
            let format = image.implicit_backing_format().map(String::as_str);
            Some(open_backing(storage, &name, format, shown, depth)?)
        }
    };
    image.set_backing(beneath);
    Ok(FormatAccess::new(image))
}

fn open_backing(
    storage: ImageFile,
    name: &str,
    format: Option<&str>,
    shown_above: &str,
    depth: usize,
) -> Result<FormatAccess<ImageFile>> {
    let shown = format!("{name:?} (beneath {shown_above})");
    match format {
        Some("qcow2") => open_layer(storage, &shown, Backing::Follow, depth + 1),
        Some("raw" | "file") => {
            let raw = Raw::open_image(storage, false)
                .map_err(|e| ImageError::io(format_args!("cannot use {shown}"), &e))?;
            Ok(FormatAccess::new(raw))
        }
        Some(other) => Err(ImageError::new(format!(
            "{shown} has the unknown format '{other}'"
        ))),
        None => Err(ImageError::new(format!(
            "{shown_above} does not say which format its backing file {name:?} has; \
             state it with 'qemu-img rebase -u -b FILE -F FORMAT'"
        ))),
    }
}

fn open_beside(directory: &Path, name: &str, shown: &str) -> Result<ImageFile> {
    let path = directory.join(name);
    open_seekable(&path)
        .and_then(|file| ImageFile::existing(file, &path))
        .map_err(|e| {
            ImageError::io(
                format_args!("cannot open {path:?}, which {shown} needs"),
                &e,
            )
        })
}

/// Opens a file or a block device. Opening a FIFO would wait for a writer, for ever if there is
/// none, and a character device has no disk in it.
fn open_seekable(path: &Path) -> io::Result<File> {
    let kind = path.metadata()?.file_type();
    if kind.is_file() || kind.is_block_device() {
        return File::open(path);
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "it is neither a file nor a block device",
    ))
}

/// The start of the header, up to and including the size of the first table.
const HEADER_BYTES: usize = 80;

/// Refuses features that imago does not check: encryption, where it would take ciphertext for the
/// disk's content, and tables too small for the disk, whose missing part it would take for zeros.
fn refuse_what_imago_accepts(storage: &ImageFile, shown: &str) -> Result<()> {
    let mut header = [0; HEADER_BYTES];
    if storage.file.read_exact_at(&mut header, 0).is_err() || !header.starts_with(&QCOW2_MAGIC) {
        // imago reports a file that is too short, or of another kind.
        return Ok(());
    }
    let field = |range: Range<usize>| {
        let bytes = header.get(range).unwrap_or_default();
        bytes
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte))
    };
    // The version comes first: it determines the places of all other fields.
    if field(4..8) == 1 {
        return Err(ImageError::new(format!(
            "{shown} is a qcow image of version 1; convert it with 'qemu-img convert -f qcow -O raw {shown} \
             DISK.raw' and import that"
        )));
    }
    if field(4..8) >= 3 {
        refuse_unread_features(field(72..80), shown)?;
    }
    let (cluster_bits, size_bytes) = (field(20..24), field(24..32));
    let (encryption, table_entries) = (field(32..36), field(36..40));
    if encryption != 0 {
        return Err(ImageError::new(format!(
            "{shown} is encrypted; decrypt it with 'qemu-img convert' first"
        )));
    }
    // An entry refers to a cluster full of 8-byte entries, each of which refers to a cluster.
    let entry_bytes_log2 = u32::try_from(2 * cluster_bits)
        .unwrap_or(u32::MAX)
        .saturating_sub(3);
    let needed = 1_u64
        .checked_shl(entry_bytes_log2)
        .map_or(1, |entry_bytes| size_bytes.div_ceil(entry_bytes));
    if table_entries < needed {
        return Err(ImageError::new(format!(
            "{shown} is not a usable qcow2 image: its table has {table_entries} entries, but a \
             disk of {size_bytes} bytes needs {needed}"
        )));
    }
    Ok(())
}

/// Refuses features that imago does not read, with the command that makes an image without them.
fn refuse_unread_features(incompatible: u64, shown: &str) -> Result<()> {
    let found = UNREAD_FEATURES
        .iter()
        .find(|(bit, _)| incompatible & bit != 0);
    let Some((_, name)) = found else {
        return Ok(());
    };
    Err(ImageError::new(format!(
        "{shown} has {name}, which cannot be read; convert it with 'qemu-img convert -f qcow2 -O qcow2 {shown} \
         DISK.qcow2' and import that"
    )))
}

impl Image for Qcow2Image {
    fn size_bytes(&self) -> u64 {
        self.access.size()
    }

    fn next_data(&mut self, start: u64) -> Result<Option<Range<u64>>> {
        let size = self.access.size();
        let mut position = start;
        while position < size {
            let (mapping, length) = self.mapping(position, size)?;
            if let Mapping::Raw {
                storage, offset, ..
            } = &mapping
            {
                let end = offset.checked_add(length).ok_or_else(|| cut(&self.shown))?;
                if end > storage.size().map_err(|e| unusable(&self.shown, &e))? {
                    return Err(cut(&self.shown));
                }
            }
            if !matches!(mapping, Mapping::Zero { .. }) {
                return Ok(Some(position..position + length));
            }
            position += length;
        }
        Ok(None)
    }

    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.access.read(buf, offset).map_err(|e| {
            ImageError::io(
                format_args!("cannot read {} at byte {offset} of its disk", self.shown),
                &e,
            )
        })
    }
}

impl Qcow2Image {
    /// The kind of the disk's bytes from `position` on; at least one byte, none beyond `end`.
    fn mapping(&self, position: u64, end: u64) -> Result<(Mapping<'_, ImageFile>, u64)> {
        let found = self.access.get_mapping(position, end - position);
        let (mapping, length) = found.map_err(|e| unusable(&self.shown, &e))?;
        if length == 0 || length > end - position {
            return Err(ImageError::new(format!(
                "{} does not say what lies at byte {position} of its disk",
                self.shown
            )));
        }
        Ok((mapping, length))
    }
}

/// A qcow2 image for writing.
#[derive(Debug)]
pub struct Qcow2Writer {
    access: FormatAccess<ImageFile>,
}

impl Qcow2Writer {
    /// Formats the empty `file` as an image of a disk of `size_bytes`, rounded up to whole sectors of 512 bytes,
    /// because QEMU leaves out a partial sector.
    ///
    /// # Errors
    ///
    /// If the file cannot be written, or the disk is larger than the format allows.
    pub fn create(file: File, size_bytes: u64) -> io::Result<Self> {
        let builder: Qcow2CreateBuilder<ImageFile> = Qcow2CreateBuilder::new(ImageFile::new(file));
        let image = builder
            .size(size_bytes.next_multiple_of(SECTOR_BYTES))
            .create_open(DenyImplicitOpenGate::default(), |file| {
                Ok(Qcow2OpenBuilder::new(file).write(true))
            })?;
        Ok(Self {
            access: FormatAccess::new(image),
        })
    }

    /// Writes `data` at byte `offset` of the disk.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.access.write(data, offset)
    }

    /// Writes the data that is still in memory. The file is not synced.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn finish(self) -> io::Result<()> {
        self.access.flush()
    }
}

/// A file as imago accesses it.
#[derive(Debug)]
struct ImageFile {
    file: File,
    /// The base of the image's relative references.
    directory: PathBuf,
    /// Whether reads beyond the end are refused; a file that is being written has no fixed end.
    whole: bool,
    helper: CommonStorageHelper,
}

impl ImageFile {
    fn new(file: File) -> Self {
        let (directory, helper) = (PathBuf::new(), CommonStorageHelper::default());
        Self {
            file,
            directory,
            whole: false,
            helper,
        }
    }

    fn existing(file: File, path: &Path) -> io::Result<Self> {
        let directory = std::path::absolute(path)?
            .parent()
            .map(Path::to_owned)
            .unwrap_or_default();
        Ok(Self {
            directory,
            whole: true,
            ..Self::new(file)
        })
    }
}

impl ImageFile {
    /// Fills `buf`. In a file that is read, only the rest of its last sector may be missing; in one
    /// that is written, any part that has not been written yet.
    fn read_or_zeros(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.saturating_add(buf.len() as u64);
        let file_bytes = self.size()?;
        if self.whole && end > file_bytes.next_multiple_of(SECTOR_BYTES) {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("it is cut: it refers to byte {end}, but ends at {file_bytes}"),
            ));
        }
        let present = file_bytes.saturating_sub(offset).min(buf.len() as u64) as usize;
        let (stored, missing) = buf.split_at_mut(present);
        missing.fill(0);
        self.file.read_exact_at(stored, offset)
    }
}

impl fmt::Display for ImageFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("image file")
    }
}

// `Storage` has methods that its callers must wrap in locks, and marks them unsafe for that reason;
// implementing them puts no memory at risk.
impl Storage for ImageFile {
    fn size(&self) -> io::Result<u64> {
        // Unlike metadata, this works for devices too; nothing here uses the file's position.
        (&self.file).seek(SeekFrom::End(0))
    }

    unsafe fn pure_readv(&self, bufv: IoVectorMut<'_>, offset: u64) -> io::Result<()> {
        let mut position = offset;
        for mut buffer in bufv.into_inner() {
            self.read_or_zeros(&mut buffer, position)?;
            position += buffer.len() as u64;
        }
        Ok(())
    }

    unsafe fn pure_writev(&self, bufv: IoVector<'_>, offset: u64) -> io::Result<()> {
        let mut position = offset;
        for buffer in bufv.into_inner() {
            self.file.write_all_at(&buffer, position)?;
            position += buffer.len() as u64;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    unsafe fn invalidate_cache(&self) -> io::Result<()> {
        Ok(())
    }

    fn get_storage_helper(&self) -> &CommonStorageHelper {
        &self.helper
    }

    fn resize(&self, new_size: u64, _preallocate: PreallocateMode) -> io::Result<()> {
        self.file.set_len(new_size)
    }
}
