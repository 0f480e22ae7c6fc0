//! The target of `bench`, as the user specifies it.

use super::nbd::NbdTarget;
use onefold_api::size;
use onefold_api::{Error, Result};
use onefold_nbd::client::Address;
use onefold_workload::{FileTarget, Load, MemoryTarget, Target};
use std::path::PathBuf;
use std::str::FromStr;

use super::said;

/// The target of a load.
#[derive(Debug, Clone)]
pub(super) enum Place {
    File(PathBuf),
    Nbd(Address),
    Memory(u64),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if let Some(bytes) = text.strip_prefix("memory:") {
            return size::parse(bytes).map(Self::Memory);
        }
        if text.starts_with("nbd://") || text.starts_with("nbd+unix://") {
            text.parse().map(Self::Nbd)
        } else {
            Ok(Self::File(text.into()))
        }
    }
}

impl Place {
    /// The number of bytes to use: the requested size, or the whole target.
    pub(super) fn bytes(&self, wanted: Option<u64>) -> Result<u64> {
        let found = match self {
            Self::Memory(bytes) => Some(*bytes),
            Self::Nbd(address) => Some(NbdTarget::open(address)?.bytes()),
            Self::File(path) => FileTarget::size(path).map_err(said)?,
        };
        match (found, wanted) {
            (None, None) => Err(Error::usage(
                "there is no such file; to make one, say with --size how large",
            )),
            (None, Some(bytes)) | (Some(bytes), None) => Ok(bytes),
            (Some(found), Some(wanted)) if wanted <= found => Ok(wanted),
            (Some(found), Some(wanted)) => Err(Error::usage(format!(
                "--size {wanted}: the target has {found} bytes"
            ))),
        }
    }

    /// Opens or creates the target. Returns whether it is new, and therefore empty.
    pub(super) fn open(
        &self,
        bytes: u64,
        block_bytes: u64,
        load: &Load,
        is_direct: bool,
    ) -> Result<(Box<dyn Target>, bool)> {
        if is_direct && !matches!(self, Self::File(_)) {
            let message = "--direct is for files and block devices";
            return Err(Error::usage(message));
        }
        match self {
            Self::Memory(bytes) => Ok((Box::new(MemoryTarget::new(*bytes).map_err(said)?), true)),
            Self::Nbd(address) => {
                let target = NbdTarget::open(address)?;
                target.check(block_bytes, load)?;
                Ok((Box::new(target), false))
            }
            Self::File(path) => {
                let is_new = FileTarget::size(path).map_err(said)?.is_none();
                let target = FileTarget::open(path, bytes, is_direct).map_err(said)?;
                Ok((Box::new(target), is_new))
            }
        }
    }
}
