//! The other tools, built and run with their arguments, where the user is.

use std::ffi::OsStr;

use anyhow::Result;
use onefold_harness::command::Cmd;
use onefold_harness::workspace::Workspace;

/// Checks of the product as its users see it.
pub(crate) fn acceptance(workspace: &Workspace) -> Result<Cmd> {
    tool(workspace, "onefold-acceptance", &[])
}

/// Measurements. Built in release mode, as the pass-through server is that belongs to them.
pub(crate) fn bench(workspace: &Workspace) -> Result<Cmd> {
    tool(workspace, "onefold-bench", &["--release"])
}

fn tool(workspace: &Workspace, package: &str, options: &[&str]) -> Result<Cmd> {
    let run = workspace
        .cargo()
        .dir(std::env::current_dir()?)
        .args(["run", "--quiet", "--locked", "--manifest-path"])
        .arg(workspace.root.join("Cargo.toml"))
        .args(["--package", package])
        .args(options);
    Ok(run.arg("--").cleans_up())
}

/// What the user typed behind the name of a command, for the tool that has it.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Forwarded {
    #[arg(
        value_name = "OPTIONS",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    arguments: Vec<std::ffi::OsString>,
}

impl Forwarded {
    #[cfg(test)]
    pub(crate) fn arguments(&self) -> &[std::ffi::OsString] {
        &self.arguments
    }

    /// Becomes the tool, with the command that it has for this.
    pub(crate) fn run(&self, tool: Cmd, command: &[impl AsRef<OsStr>]) -> Result<()> {
        Err(tool.args(command).args(&self.arguments).exec())
    }
}
