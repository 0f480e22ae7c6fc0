//! Identifies the content of a block device, which a command names before it overwrites the device.

use onefold_api::{Error, size};
use onefold_workload::{MARKS_BYTES, known_content};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// A device that a command overwrites only with `--yes`.
pub(crate) struct Overwritten<'a> {
    device: &'a Path,
    content: String,
}

impl<'a> Overwritten<'a> {
    /// Reads the beginning of the device and identifies its content.
    pub(crate) fn new(device: &'a Path) -> Self {
        let content = match beginning(device) {
            Ok(bytes) => content(&bytes),
            Err(error) => format!("data that cannot be read ({error})"),
        };
        Self { device, content }
    }

    /// The content of the device, in words.
    pub(crate) fn content(&self) -> &str {
        &self.content
    }

    /// The error of a command without `--yes` that would overwrite `bytes` of the device.
    pub(crate) fn refusal(&self, bytes: u64) -> Error {
        Error::usage(format!(
            "this overwrites {} of the device {:?}, which holds {}; nothing was changed, --yes goes on",
            size::display(bytes),
            self.device,
            self.content
        ))
    }
}

fn beginning(device: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(device)?
        .take(MARKS_BYTES)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn content(beginning: &[u8]) -> String {
    known_content(beginning).unwrap_or_else(|| {
        let read = size::display(beginning.len() as u64);
        if beginning.iter().all(|byte| *byte == 0) {
            format!("zeros in its first {read}")
        } else {
            "data of an unknown kind".to_owned()
        }
    })
}
