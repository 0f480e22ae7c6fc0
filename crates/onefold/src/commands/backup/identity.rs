//! Finds the source of a disk in a repository, by the disk's origin and name.

use super::Opened;
use onefold_api::{Error, ErrorKind, Result};
use onefold_format::backup::{Label, Origin, Source};
use onefold_repository::{KnownSource, machine_id};
use serde::Serialize;
use std::path::Path;

/// A disk on this machine.
pub(super) struct FoundDisk<'a> {
    pub(super) name: &'a str,
    pub(super) domain: String,
    pub(super) block_size: u32,
    pub(super) origin: Origin,
}

/// The user's choice of a source.
#[derive(Debug, clap::Args)]
pub(super) struct Choice {
    /// Back the disk up as the source of this name, regardless of the disk's own name. For one disk.
    #[arg(long = "as", value_name = "NAME")]
    name: Option<String>,

    /// Continue the source of this name with a disk of another origin: a volume that was moved to another
    /// pool or recreated, or an image that was moved.
    #[arg(long)]
    adopt: bool,
}

/// The source of a disk.
pub(super) struct Identified {
    pub(super) source: KnownSource,
    /// The new label of the source, if the disk's origin has changed.
    pub(super) label: Option<Label>,
    /// Whether the source was created for this disk just now.
    pub(super) is_new: bool,
}

impl Choice {
    /// Fails if --as is given for several disks or for all volumes.
    pub(super) fn check(&self, is_all: bool, disks: usize) -> Result<()> {
        match &self.name {
            Some(name) if disks == 1 && !is_all => onefold_api::check_name(name),
            Some(_) => Err(Error::usage("--as is for one disk")),
            None => Ok(()),
        }
    }

    /// Finds the source of a disk: the source with the disk's name, if its origin matches; if no source has
    /// this name, the source with the disk's origin; otherwise a new source.
    ///
    /// # Errors
    ///
    /// `Exists` if the source of this name belongs to another disk.
    pub(super) fn identify(&self, opened: &Opened, disk: FoundDisk<'_>) -> Result<Identified> {
        let name = self.name.as_deref().unwrap_or(disk.name);
        let sources = opened.repository().sources()?;
        let named = sources.named(name)?;
        let of_origin: Vec<_> = sources.from_origin(&disk.origin).collect();
        let known = match (named, &of_origin[..]) {
            (Some(named), _) if named.source.origin.as_ref() == Some(&disk.origin) => named,
            (Some(named), _) if self.adopt => {
                disk.check_like(named)?;
                return Ok(Identified {
                    source: named.clone(),
                    label: Some(Label {
                        name: named.source.name.clone(),
                        origin: Some(disk.origin),
                    }),
                    is_new: false,
                });
            }
            (Some(named), _) => return Err(disk.is_another(named, &of_origin)),
            (None, [only]) if self.name.is_none() => only,
            (None, [first, second, ..]) if self.name.is_none() => {
                return Err(Error::usage(format!(
                    "{} is that of {first} and of {second}: say which one with --as",
                    disk.origin
                )));
            }
            (None, _) => {
                let source = Source {
                    name: name.to_owned(),
                    domain: disk.domain,
                    block_size: disk.block_size,
                    origin: Some(disk.origin),
                };
                opened.check_new()?;
                let source = opened.repository().add_source(source);
                return Ok(Identified {
                    source: source?,
                    label: None,
                    is_new: true,
                });
            }
        };
        disk.check_like(known)?;
        Ok(Identified {
            source: known.clone(),
            label: None,
            is_new: false,
        })
    }
}

impl FoundDisk<'_> {
    fn check_like(&self, known: &KnownSource) -> Result<()> {
        let source = &known.source;
        if source.block_size != self.block_size {
            return Err(Error::usage(format!(
                "{known} has blocks of {} bytes in the repository, and of {} here; back it up as another source: --as NAME",
                source.block_size, self.block_size
            )));
        }
        if source.domain != self.domain {
            return Err(Error::usage(format!(
                "{known} is of domain '{}' in the repository, and of '{}' here; back it up as another source: --as NAME",
                source.domain, self.domain
            )));
        }
        Ok(())
    }

    fn is_another(&self, named: &KnownSource, of_origin: &[&KnownSource]) -> Error {
        let origin = named.source.origin.as_ref();
        let of_named =
            origin.map_or_else(|| "a disk of unknown origin".to_owned(), Origin::to_string);
        let own = match of_origin {
            [own, ..] => format!("; its own source is {own}: --as {}", own.source.name),
            [] => String::new(),
        };
        let message = format!(
            "{named} of the repository is {of_named}, and this disk is {}{own}; --as NAME makes another source of it, --adopt \
             continues {named} with it",
            self.origin
        );
        Error::new(ErrorKind::Exists, message)
    }
}

/// The origin of a disk, in JSON.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum OriginReply {
    Volume {
        /// Id of the pool.
        pool: String,
        /// Number of the volume in the pool.
        volume: u64,
    },
    File {
        /// Hash of the machine's id.
        machine: String,
        /// Absolute path on the machine.
        path: String,
    },
}

impl From<&Origin> for OriginReply {
    fn from(origin: &Origin) -> Self {
        match origin {
            Origin::Volume { pool, volume } => Self::Volume {
                pool: pool.to_string(),
                volume: volume.0,
            },
            Origin::File { machine, path } => Self::File {
                machine: machine.to_string(),
                path: path.clone(),
            },
        }
    }
}

/// The origin of a disk image or device. A symlink counts as a path of its own, because names of devices are
/// symlinks that stay the same while their targets change.
pub(super) fn origin_of(file: &Path) -> Result<Origin> {
    let failed = |e| Error::io(format_args!("cannot find {file:?}"), &e);
    std::fs::metadata(file).map_err(failed)?;
    let path = match (file.parent(), file.file_name()) {
        (Some(folder), Some(name)) => {
            let folder = if folder.as_os_str().is_empty() {
                Path::new(".")
            } else {
                folder
            };
            folder.canonicalize().map_err(failed)?.join(name)
        }
        _ => file.canonicalize().map_err(failed)?,
    };
    Ok(Origin::File {
        machine: machine_id(),
        path: path.to_string_lossy().into_owned(),
    })
}
