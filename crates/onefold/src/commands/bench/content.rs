//! Distributions of contents: built in, or from a file.

use onefold_analyze::Chunking;
use onefold_api::{Error, Result};
use onefold_workload::{Distribution, shipped_distributions};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The longest text of a distribution, many times the length for a large data set.
const TEXT_BYTES_MAX: u64 = 64 << 20;

/// A distribution, and the name by which the user selected it.
pub(super) struct Content {
    pub(super) name: String,
    pub(super) distribution: Distribution,
}

impl Content {
    /// Loads a distribution. Built-in ones take precedence over files of the same name.
    pub(super) fn load(name: &Path, block_bytes: Option<u64>) -> Result<Self> {
        let mut shipped = shipped_distributions().into_iter();
        let text = match shipped.find(|(known, _)| Path::new(known) == name) {
            Some((_, text)) => text.to_owned(),
            None => read(name)?,
        };
        let distribution = Distribution::parse(&text);
        let distribution =
            distribution.map_err(|e| Error::usage(format!("the distribution {name:?}, {e}")))?;
        let distribution = match block_bytes {
            None => distribution,
            Some(bytes) => {
                let size = usize::try_from(bytes).unwrap_or(usize::MAX);
                Chunking::fixed(size).map_err(|e| Error::usage(e.to_string()))?;
                distribution.with_block_bytes(bytes)
            }
        };
        Ok(Self {
            name: name.to_string_lossy().into_owned(),
            distribution,
        })
    }
}

fn read(path: &Path) -> Result<String> {
    let failed = |e| {
        let known = shipped_distributions().map(|(name, _)| name).join(", ");
        Error::io(
            format_args!("cannot read the distribution {path:?}, which is none of {known}"),
            &e,
        )
    };
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    let read = file.take(TEXT_BYTES_MAX).read_to_string(&mut text);
    read.map_err(failed)?;
    Ok(text)
}
