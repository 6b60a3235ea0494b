//! Runs the suite, and tells of each spec when it has ended.

use std::fs::File;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use berth_integration::cluster::Cluster;
use berth_integration::components::{self, E2E};
use berth_integration::files;
use berth_integration::lab::World;

use crate::args::Args;
use crate::report::REPORT;

/// Longer than all of it with the slow ones: whatever hangs, it ends.
const LIMIT: &str = "--timeout=8h";
/// The code with which ginkgo ends when specs have failed. The report says which.
const SPECS_FAILED: i32 = 1;

/// Runs it to its end. Specs that fail are no error; a suite that did not begin or was broken off is one.
pub(crate) fn run(cluster: &Cluster, args: &Args, out: &Path) -> Result<()> {
    let mut log = files::create(out.join("ginkgo.log"))?;
    let mut ginkgo = command(cluster, args, out)?;
    let mut child = ginkgo.stderr(log.try_clone()?).spawn().context("start ginkgo")?;
    let said = BufReader::new(child.stdout.take().context("ginkgo has no output")?);
    let told = tell(said, &mut log);
    let status = child.wait().context("wait for ginkgo")?;
    told?;
    let is_whole = status.success() || status.code() == Some(SPECS_FAILED);
    ensure!(
        is_whole && out.join(REPORT).is_file(),
        "ginkgo ended with {status}: see {}/ginkgo.log",
        out.display()
    );
    Ok(())
}

fn command(cluster: &Cluster, args: &Args, out: &Path) -> Result<Command> {
    let home = World::here()?.root().join("suite");
    files::make_dir(&home)?;
    let mut command = Command::new(components::binary_in(E2E, "ginkgo")?);
    command.args(["run", "-v", "--no-color", "--silence-skips", LIMIT]);
    command.arg(format!("--procs={}", args.procs)).arg(format!("--label-filter={}", args.labels));
    command.args(args.focus.iter().map(|focus| format!("--focus={focus}")));
    command
        .arg("--output-dir")
        .arg(out)
        .args(["--junit-report=junit.xml", &format!("--json-report={REPORT}")]);
    command.arg(components::binary_in(E2E, "e2e.test")?).arg("--");
    command.arg("--kubeconfig").arg(cluster.kubeconfig());
    command.arg("--kubectl-path").arg(components::binary("kubectl")?).arg("--provider=skeleton");
    // What kubectl keeps and the suite writes is the lab's.
    command.arg("--e2e-output-dir").arg(&home).env("HOME", &home).env("TMPDIR", &home).current_dir(&home);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    Ok(command)
}

/// Keeps every line, and prints one for each spec.
fn tell(said: impl BufRead, log: &mut File) -> Result<()> {
    let mut progress = Progress::default();
    for line in said.split(b'\n') {
        let line = line.context("read what ginkgo says")?;
        log.write_all(&line).and_then(|()| log.write_all(b"\n")).context("keep what ginkgo says")?;
        if let Some(ended) = progress.hear(&String::from_utf8_lossy(&line)) {
            println!("{ended}");
        }
    }
    Ok(())
}

/// How far it is. A spec that has ended has a line with its state and its time, and its name on the next.
#[derive(Debug, Default)]
struct Progress {
    all: String,
    ended: usize,
    heading: Option<(String, String)>,
}

impl Progress {
    /// What there is to tell after a line.
    fn hear(&mut self, line: &str) -> Option<String> {
        if let Some((state, seconds)) = self.heading.take() {
            self.ended += 1;
            // Its labels come last, and most are in the name.
            let name = line.rsplit_once(" [").map_or(line, |(name, _)| name);
            return Some(format!("{:>4}/{} {state:<8} {seconds:>8} s  {name}", self.ended, self.all));
        }
        if let Some((all, _)) = line.strip_prefix("Will run ").and_then(|rest| rest.split_once(" of ")) {
            all.clone_into(&mut self.all);
        }
        self.heading = heading(line);
        None
    }
}

/// `• [1.234 seconds]` of a spec that has passed, `• [FAILED] [1.234 seconds]` of others.
fn heading(line: &str) -> Option<(String, String)> {
    let mut parts = line.strip_prefix("• [")?.strip_suffix(" seconds]")?.rsplit("] [");
    let seconds = parts.next()?.to_owned();
    let state = parts.next().unwrap_or("passed").to_lowercase();
    Some((state, seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_each_spec() {
        let said = "Will run 2 of 7000 specs\n------\n• [2.031 seconds]\n[sig-node] one [sig-node]\n/a.go:1\n  • [1.0 seconds]\n\
                    • [FAILED] [0.500 seconds]\n[sig-node] two [It] [sig-node]";
        let mut progress = Progress::default();
        let told: Vec<String> = said.lines().filter_map(|line| progress.hear(line)).collect();
        let expected =
            ["   1/2 passed      2.031 s  [sig-node] one", "   2/2 failed      0.500 s  [sig-node] two [It]"];
        assert_eq!(told, expected);
    }
}
