//! The control of a check: it must find a server out that forgets everything.

use anyhow::{Result, bail};

/// `checked` is the end of a check of the forgetful server, `finding` what its message must have.
pub(crate) fn must_be_found_out(checked: Result<()>, finding: &str) -> Result<()> {
    match checked {
        Ok(()) => bail!("a server that forgets everything was not found out"),
        Err(error) if format!("{error:#}").contains(finding) => {
            println!("the forgetful server was found out, as it must be");
            Ok(())
        }
        Err(error) => Err(error.context("the forgetful server failed for another reason")),
    }
}
