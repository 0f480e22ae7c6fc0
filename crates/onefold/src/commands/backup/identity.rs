//! Which source of a repository a disk is: by its origin first, and by its name.

use super::{Opened, repository_error};
use onefold_api::{Error, ErrorKind, Result};
use onefold_format::backup::{Label, Origin, Source};
use onefold_repository::{KnownSource, machine_id};
use serde::Serialize;
use std::path::Path;

/// A disk, as it is found on this machine.
pub(super) struct FoundDisk<'a> {
    pub(super) name: &'a str,
    pub(super) domain: String,
    pub(super) block_size: u32,
    pub(super) origin: Origin,
}

/// The user's word on which source a disk is.
#[derive(Debug, clap::Args)]
pub(super) struct Choice {
    /// Back the disk up as the source of this name, whatever the disk itself is called. For one disk.
    #[arg(long = "as", value_name = "NAME")]
    name: Option<String>,

    /// Continue the source of this name with a disk that comes from elsewhere: a volume that was moved to another
    /// pool or made again, an image that was moved.
    #[arg(long)]
    adopt: bool,
}

/// The source of a disk.
pub(super) struct Identified {
    pub(super) source: KnownSource,
    /// The label that the source gets, if the disk comes from elsewhere than before.
    pub(super) label: Option<Label>,
    /// It was made for the disk just now.
    pub(super) is_new: bool,
}

impl Choice {
    /// Fails if it cannot be meant for so many disks, or for all volumes.
    pub(super) fn check(&self, is_all: bool, disks: usize) -> Result<()> {
        match &self.name {
            Some(name) if disks == 1 && !is_all => onefold_api::check_name(name),
            Some(_) => Err(Error::usage("--as is for one disk")),
            None => Ok(()),
        }
    }

    /// The source of a disk: the one of its name if it has the disk's origin, the one of its origin if no source has its
    /// name, and otherwise a new one.
    ///
    /// # Errors
    ///
    /// `Exists` if the source of this name is that of another disk.
    pub(super) fn identify(&self, opened: &Opened, disk: FoundDisk<'_>) -> Result<Identified> {
        let name = self.name.as_deref().unwrap_or(disk.name);
        let sources = opened.repository.sources().map_err(repository_error)?;
        let named = sources.named(name).map_err(repository_error)?;
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
                let source = opened.repository.add_source(source);
                return Ok(Identified {
                    source: source.map_err(repository_error)?,
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

/// Where a disk comes from, in JSON.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum OriginReply {
    Volume {
        /// The id of the pool.
        pool: String,
        /// The number of the volume there.
        volume: u64,
    },
    File {
        /// A hash of the machine's id.
        machine: String,
        /// The absolute path there.
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

/// The origin of a disk image or a device. A link to it is another path: names of devices are links that stay while
/// what they lead to changes.
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
