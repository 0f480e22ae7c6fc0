//! `cargo xtask fuzz`: every fuzz target for a bounded time, each from its kept corpus.
//!
//! Without a sanitizer (`-s none`) cargo-fuzz works on stable Rust. A sanitizer would also find
//! memory errors, which safe code does not have.

use anyhow::{Context, Result, ensure};

use onefold_harness::command::Cmd;
use onefold_harness::packages;
use onefold_harness::workspace::Workspace;

use crate::compiled;

/// Options of `cargo xtask fuzz`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Arguments {
    /// Seconds for each target
    #[arg(long, default_value_t = 12)]
    pub(crate) seconds: u32,
    /// Run only this target
    pub(crate) target: Option<String>,
}

/// `cargo xtask fuzz`
pub(crate) fn run(
    workspace: &Workspace,
    arguments: &Arguments,
    say: &mut dyn FnMut(&str),
) -> Result<()> {
    require_tools(workspace)?;
    let list = workspace
        .cargo()
        .args(["fuzz", "list", "--fuzz-dir"])
        .arg(workspace.root.join("fuzz"))
        .read()?;
    let targets: Vec<&str> = list
        .lines()
        .map(str::trim)
        .filter(|target| {
            arguments
                .target
                .as_ref()
                .is_none_or(|wanted| wanted == target)
        })
        .collect();
    ensure!(
        !targets.is_empty(),
        "there is no such fuzz target; these exist:\n{list}"
    );
    // First all of them, so that code that does not build is not mistaken for a finding.
    build(workspace, arguments.target.as_deref())?;
    for target in &targets {
        say(&format!("fuzz target {target}, {} s", arguments.seconds));
        let command = cargo_fuzz(workspace, "run")
            .arg(target)
            .arg("--")
            .arg(format!("-max_total_time={}", arguments.seconds))
            .arg("-print_final_stats=1");
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        let shown = onefold_harness::command::last_lines(&said);
        ensure!(
            output.status.success(),
            "fuzz target {target} found something\n{shown}"
        );
        let runs = executed(&said).with_context(|| format!("no closing numbers\n{shown}"))?;
        say(&format!("  {runs} inputs, nothing found"));
    }
    Ok(())
}

/// Builds one target, or all of them.
pub(crate) fn build(workspace: &Workspace, target: Option<&str>) -> Result<()> {
    require_tools(workspace)?;
    let output = cargo_fuzz(workspace, "build").args(target).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    compiled::note(&said);
    ensure!(
        output.status.success(),
        "the fuzz targets do not build\n{}",
        onefold_harness::command::last_lines(&said)
    );
    Ok(())
}

fn require_tools(workspace: &Workspace) -> Result<()> {
    packages::require(packages::FUZZING)?;
    packages::require_cargo_fuzz(workspace)
}

fn cargo_fuzz(workspace: &Workspace, verb: &str) -> Cmd {
    workspace
        .cargo()
        .args(["fuzz", verb, "-s", "none", "--fuzz-dir"])
        .arg(workspace.root.join("fuzz"))
        .arg("--target-dir")
        .arg(workspace.target.join("fuzz"))
}

/// libFuzzer's count of executed inputs. Without it nothing was tried, whatever the exit status.
fn executed(said: &str) -> Option<u64> {
    let (_, after) = said.rsplit_once("stat::number_of_executed_units:")?;
    after.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_inputs_is_found() {
        let said = "Done 7 runs\nstat::number_of_executed_units: 1234\nstat::average_exec: 1\n";
        assert_eq!(executed(said), Some(1234));
        assert_eq!(executed("nothing"), None);
    }
}
