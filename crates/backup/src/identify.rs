//! Finds the source of a disk in a repository, by the disk's origin and name.

use std::path::Path;

use onefold_format::backup::{Label, Origin, Source};
use onefold_repository::{KnownSource, RepositoryErrorKind, Sources, machine_id};

use crate::error::{BackupError, Result};
use crate::opening::Opened;

/// A disk on this machine.
pub(crate) struct FoundDisk<'a> {
    pub(crate) name: &'a str,
    pub(crate) domain: String,
    pub(crate) block_size: u32,
    pub(crate) origin: Origin,
}

/// The user's choice of a source.
#[derive(Debug, Clone, Default)]
pub struct SourceChoice {
    /// Back the disk up as the source of this name, regardless of the disk's own name.
    pub name: Option<String>,
    /// Continue the source of this name with a disk of another origin.
    pub adopt: bool,
}

/// The source of a disk.
pub(crate) struct Identified {
    pub(crate) source: KnownSource,
    /// The new label of the source, if the disk's origin has changed.
    pub(crate) label: Option<Label>,
    /// Whether the source was created for this disk just now.
    pub(crate) is_new: bool,
}

/// Which source a disk is.
#[derive(Debug)]
enum Decision {
    Continue(KnownSource),
    /// The source gets the origin of the disk.
    Adopt(KnownSource),
    /// A new source.
    Add,
}

impl SourceChoice {
    /// Finds the source of a disk, or adds a new one.
    ///
    /// # Errors
    ///
    /// `Exists` if the source of this name belongs to another disk. `Damaged` if the new source may be one that the
    /// repository has lost.
    pub(crate) fn identify(&self, opened: &Opened, disk: FoundDisk<'_>) -> Result<Identified> {
        match self.decide(&opened.repository().sources()?, &disk)? {
            Decision::Continue(source) => Ok(Identified {
                source,
                label: None,
                is_new: false,
            }),
            Decision::Adopt(source) => Ok(Identified {
                label: Some(Label {
                    name: source.source.name.clone(),
                    origin: Some(disk.origin),
                }),
                source,
                is_new: false,
            }),
            Decision::Add => {
                opened.check_new()?;
                let source = opened.repository().add_source(Source {
                    name: self.name.as_deref().unwrap_or(disk.name).to_owned(),
                    domain: disk.domain,
                    block_size: disk.block_size,
                    origin: Some(disk.origin),
                })?;
                Ok(Identified {
                    source,
                    label: None,
                    is_new: true,
                })
            }
        }
    }

    /// Decides which source a disk is: the source with the disk's name, if its origin matches; if no source has
    /// this name, the source with the disk's origin; otherwise a new source.
    fn decide(&self, sources: &Sources, disk: &FoundDisk<'_>) -> Result<Decision> {
        let name = self.name.as_deref().unwrap_or(disk.name);
        let of_origin: Vec<_> = sources.from_origin(&disk.origin).collect();
        let decision = match (sources.named(name)?, &of_origin[..]) {
            (Some(named), _) if named.source.origin.as_ref() == Some(&disk.origin) => {
                Decision::Continue(named.clone())
            }
            (Some(named), _) if self.adopt => Decision::Adopt(named.clone()),
            (Some(named), _) => return Err(disk.is_another(named, &of_origin)),
            (None, [only]) if self.name.is_none() => Decision::Continue((*only).clone()),
            (None, [first, second, ..]) if self.name.is_none() => {
                return Err(BackupError::usage(format!(
                    "{} is that of {first} and of {second}: say which one with --as",
                    disk.origin
                )));
            }
            (None, _) => Decision::Add,
        };
        if let Decision::Continue(known) | Decision::Adopt(known) = &decision {
            disk.check_like(known)?;
        }
        Ok(decision)
    }
}

impl FoundDisk<'_> {
    fn check_like(&self, known: &KnownSource) -> Result<()> {
        let source = &known.source;
        if source.block_size != self.block_size {
            return Err(BackupError::usage(format!(
                "{known} has blocks of {} bytes in the repository, and of {} here; back it up as another source: --as NAME",
                source.block_size, self.block_size
            )));
        }
        if source.domain != self.domain {
            return Err(BackupError::usage(format!(
                "{known} is of domain '{}' in the repository, and of '{}' here; back it up as another source: --as NAME",
                source.domain, self.domain
            )));
        }
        Ok(())
    }

    fn is_another(&self, named: &KnownSource, of_origin: &[&KnownSource]) -> BackupError {
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
        BackupError::refused(RepositoryErrorKind::Exists, message)
    }
}

/// The origin of a disk image or device. A symlink counts as a path of its own, because names of devices are
/// symlinks that stay the same while their targets change.
pub(crate) fn origin_of(file: &Path) -> Result<Origin> {
    let failed = |e| BackupError::failed(format!("cannot find {file:?}: {e}"));
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

#[cfg(test)]
mod tests {
    use onefold_format::{PoolId, VolumeId};
    use onefold_repository::{Access, Repository};

    use super::*;

    fn origin(pool: u8, volume: u64) -> Origin {
        Origin::Volume {
            pool: PoolId([pool; 16]),
            volume: VolumeId(volume),
        }
    }

    fn disk(name: &str, origin: Origin) -> FoundDisk<'_> {
        FoundDisk {
            name,
            domain: "default".to_owned(),
            block_size: 4096,
            origin,
        }
    }

    /// A repository with these sources.
    fn sources(named: &[(&str, Origin)]) -> Sources {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("repository");
        let (repository, _) = Repository::init(&root, &Access::Open, 1).unwrap();
        for (name, origin) in named {
            let source = Source {
                name: (*name).to_owned(),
                domain: "default".to_owned(),
                block_size: 4096,
                origin: Some(origin.clone()),
            };
            repository.add_source(source).unwrap();
        }
        repository.sources().unwrap()
    }

    fn decided(choice: &SourceChoice, sources: &Sources, disk: &FoundDisk<'_>) -> String {
        match choice.decide(sources, disk) {
            Ok(Decision::Continue(known)) => format!("continue {}", known.source.name),
            Ok(Decision::Adopt(known)) => format!("adopt {}", known.source.name),
            Ok(Decision::Add) => "add".to_owned(),
            Err(error) => format!("{:?}", error.kind()),
        }
    }

    #[test]
    fn a_disk_is_the_source_of_its_name_if_the_origin_matches() {
        let sources = sources(&[("web", origin(1, 1)), ("db", origin(1, 2))]);
        let usual = SourceChoice::default();
        let adopts = SourceChoice {
            adopt: true,
            ..SourceChoice::default()
        };
        let named = |name: &str| SourceChoice {
            name: Some(name.to_owned()),
            adopt: false,
        };
        for (choice, disk, expected) in [
            (&usual, disk("web", origin(1, 1)), "continue web"),
            // The volume was renamed.
            (&usual, disk("www", origin(1, 1)), "continue web"),
            // Another pool has a volume of this name.
            (&usual, disk("web", origin(2, 1)), "Exists"),
            (&adopts, disk("web", origin(2, 1)), "adopt web"),
            (&usual, disk("new", origin(2, 1)), "add"),
            (&named("other"), disk("web", origin(1, 1)), "add"),
            (&named("db"), disk("web", origin(1, 1)), "Exists"),
        ] {
            assert_eq!(decided(choice, &sources, &disk), expected, "{}", disk.name);
        }
    }

    #[test]
    fn an_origin_of_two_sources_is_refused_until_one_is_named() {
        let sources = sources(&[("one", origin(1, 1)), ("two", origin(1, 1))]);
        let disk = disk("web", origin(1, 1));
        let usual = SourceChoice::default();
        assert_eq!(decided(&usual, &sources, &disk), "Invalid");
        let named = SourceChoice {
            name: Some("two".to_owned()),
            adopt: false,
        };
        assert_eq!(decided(&named, &sources, &disk), "continue two");
    }

    #[test]
    fn a_source_keeps_its_domain_and_block_size() {
        let sources = sources(&[("web", origin(1, 1))]);
        for change in [
            |disk: &mut FoundDisk<'_>| disk.block_size = 8192,
            |disk: &mut FoundDisk<'_>| disk.domain = "other".to_owned(),
        ] {
            let mut disk = disk("web", origin(1, 1));
            change(&mut disk);
            assert_eq!(
                decided(&SourceChoice::default(), &sources, &disk),
                "Invalid"
            );
        }
    }
}
