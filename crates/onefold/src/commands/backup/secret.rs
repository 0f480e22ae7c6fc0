//! Reads passphrases and key files, and checks how well they are kept.

use crate::output::Output;
use onefold_api::{Error, Result};
use onefold_repository::Access;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::fs::File;
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The shortest allowed key file. It is not stretched like a passphrase, so it must be impossible to guess.
const KEY_FILE_BYTES_MIN: usize = 32;

/// Permission bits that let users other than the owner read a file.
const READABLE_BY_OTHERS: u32 = 0o044;

/// Reads the passphrase or key from these files, if one is given.
pub(super) fn access(
    passphrase_file: Option<&Path>,
    key_file: Option<&Path>,
    output: &Output,
) -> Result<Option<Access>> {
    if let Some(file) = passphrase_file {
        let content = read(file, output)?;
        let first = content.split(|byte| *byte == b'\n').next();
        let passphrase = first.unwrap_or_default();
        let passphrase = passphrase.strip_suffix(b"\r").unwrap_or(passphrase);
        if passphrase.is_empty() {
            return Err(Error::usage(format!("the first line of {file:?} is empty")));
        }
        return Ok(Some(Access::Passphrase(passphrase.to_vec())));
    }
    let Some(file) = key_file else {
        return Ok(None);
    };
    let content = read(file, output)?;
    if content.trim_ascii().is_empty() {
        return Err(Error::usage(format!("the key file {file:?} is empty")));
    }
    Ok(Some(Access::KeyFile(content)))
}

/// Reads the passphrase or key that will open a repository in future.
///
/// # Errors
///
/// `Usage` for a key file that is too short.
pub(super) fn new_access(
    passphrase_file: Option<&Path>,
    key_file: Option<&Path>,
    output: &Output,
) -> Result<Option<Access>> {
    let access = access(passphrase_file, key_file, output)?;
    if let (Some(Access::KeyFile(content)), Some(file)) = (&access, key_file) {
        let bytes = content.trim_ascii().len();
        if bytes < KEY_FILE_BYTES_MIN {
            return Err(Error::usage(format!(
                "the key file {file:?} has {bytes} bytes, and {KEY_FILE_BYTES_MIN} are the fewest: whoever has a copy of the \
                 repository can try keys fast; 'openssl rand -base64 48' makes a good one, and words that people remember belong \
                 in a --passphrase-file"
            )));
        }
    }
    Ok(access)
}

fn read(path: &Path, output: &Output) -> Result<Vec<u8>> {
    let failed = |e: io::Error| Error::io(format_args!("cannot read {path:?}"), &e);
    let mut file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    // The permissions of a pipe do not matter.
    if metadata.is_file() && metadata.permissions().mode() & READABLE_BY_OTHERS != 0 {
        output.warn(format_args!(
            "others than its owner may read {path:?}, which opens the repository: chmod go= {path:?}"
        ));
    }
    let mut content = Vec::new();
    file.read_to_end(&mut content).map_err(failed)?;
    Ok(content)
}

/// Prompts for the passphrase, if stdin and stderr are a terminal.
pub(super) fn ask(root: &Path) -> Result<Option<Access>> {
    let (stdin, mut stderr) = (io::stdin(), io::stderr());
    if !stdin.is_terminal() || !stderr.is_terminal() {
        return Ok(None);
    }
    let failed = |e: io::Error| Error::io("cannot ask for the passphrase", &e);
    let mut lines = stdin.lock();
    let mut line = Vec::new();
    // Before the prompt, so that an immediate answer is not echoed either.
    let silent = Silence::new(rustix::stdio::stdin()).map_err(failed)?;
    let asked = write!(stderr, "passphrase of the repository in {root:?}: ");
    let answered = asked
        .and_then(|()| stderr.flush())
        .and_then(|()| lines.read_until(b'\n', &mut line));
    drop(silent);
    let _ = writeln!(stderr);
    answered.map_err(failed)?;
    let passphrase = line.strip_suffix(b"\n").unwrap_or(&line);
    if passphrase.is_empty() {
        Err(Error::usage("no passphrase was given"))
    } else {
        Ok(Some(Access::Passphrase(passphrase.to_vec())))
    }
}

/// Guard that turns off the echo of a terminal.
struct Silence {
    terminal: BorrowedFd<'static>,
    before: Termios,
}

impl Silence {
    fn new(terminal: BorrowedFd<'static>) -> io::Result<Self> {
        let before = tcgetattr(terminal)?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        tcsetattr(terminal, OptionalActions::Now, &silent)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        let _ = tcsetattr(self.terminal, OptionalActions::Now, &self.before);
    }
}
