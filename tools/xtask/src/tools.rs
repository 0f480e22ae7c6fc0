//! The other tools, built and run with their arguments.

use std::ffi::{OsStr, OsString};

use anyhow::Result;
use onefold_harness::command::Cmd;
use onefold_harness::workspace::Workspace;

/// Checks of the product as its users see it.
pub(crate) fn acceptance(workspace: &Workspace) -> Result<Cmd> {
    tool(workspace, "onefold-acceptance")
}

/// Measurements.
pub(crate) fn bench(workspace: &Workspace) -> Result<Cmd> {
    tool(workspace, "onefold-bench")
}

fn tool(workspace: &Workspace, binary: &str) -> Result<Cmd> {
    Ok(Cmd::new(workspace.build_release(binary)?).cleans_up())
}

/// The words after the name of a command, for its tool.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Forwarded {
    #[arg(
        value_name = "OPTIONS",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) arguments: Vec<OsString>,
}

impl Forwarded {
    /// Becomes the tool, with the command that it has for this.
    pub(crate) fn run(&self, tool: Cmd, command: &[impl AsRef<OsStr>]) -> Result<()> {
        Err(tool.args(command).args(&self.arguments).exec())
    }
}
