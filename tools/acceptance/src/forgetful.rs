//! The control of a check: it must find out a server that forgets everything.

use anyhow::{Result, bail};

/// Takes the result of a check of the forgetful server. It must be an error whose message contains `finding`.
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
