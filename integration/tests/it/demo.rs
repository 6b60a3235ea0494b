//! `scripts/demo`: what it shows, and that nothing of it stays.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use berth_integration::node::system;
use berth_integration::vm::{self, Feature};
use berth_integration::{binaries, cgroup};

use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![test("demo::up_run_and_down_leave_nothing", up_and_down)]
}

/// What a demo might leave on its host; here the host is a lab.
fn host() -> Result<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    for path in ["/run", "/run/netns", "/tmp", "/var/lib", "/var/log", "/etc/cni", "/opt/cni"] {
        let list = fs::read_dir(path).into_iter().flatten().flatten();
        let ours = list
            .filter(|entry| path != "/tmp" || entry.file_name().to_string_lossy().starts_with("berth-demo"));
        all.extend(ours.map(|entry| format!("file {}", entry.path().display())));
    }
    for hierarchy in cgroup::hierarchies()? {
        // Labs of other tests come and go beside this one; those of nested supervisors have small numbers.
        let groups = fs::read_dir(hierarchy).into_iter().flatten().flatten();
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let nested = |name: &String| {
            name.strip_prefix("berth-test-").is_some_and(|pid| Path::new("/proc").join(pid).exists())
        };
        all.extend(
            groups.map(|group| name(&group.path())).filter(nested).map(|name| format!("cgroup {name}")),
        );
    }
    let lines =
        |what: &str, text: String| text.lines().map(|line| format!("{what} {line}")).collect::<Vec<_>>();
    all.extend(lines("mount", fs::read_to_string("/proc/self/mountinfo")?));
    all.extend(lines("link", system("ip", &["-o", "link"])?));
    if !vm::lacks(Feature::Nat) {
        all.extend(lines("rule", system("iptables", &["-t", "nat", "-S"])?));
    }
    all.extend(
        lines("process", system("ps", &["-e", "-o", "args="])?)
            .into_iter()
            .filter(|line| !line.contains("ps -e")),
    );
    Ok(all)
}

fn demo(args: &[&str]) -> Result<String> {
    let done = Command::new(env!("CARGO_BIN_EXE_demo"))
        .args(args)
        .env("BERTH_BIN_DIR", binaries::dir()?)
        // It is to make a lab of its own.
        .env_remove("BERTH_LAB_ROLE")
        .output()
        .context("start the demo")?;
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    ensure!(
        done.status.success(),
        "demo {args:?} ended with {}: {said}{}",
        done.status,
        String::from_utf8_lossy(&done.stderr)
    );
    Ok(said)
}

fn up_and_down() -> Result<()> {
    // Makes the tables exist, which listing them does once.
    host()?;
    let before = host()?;
    let said = demo(&[])?;
    for part in [
        "web: Ready",
        "once: ran to its end",
        "$ berth pods\n",
        "hello from web-lab",
        "$ ctr -n k8s.io sandboxes ls",
        "io.containerd.berth.v1",
        "kubepods",
        "limit 32 MiB",
    ] {
        ensure!(said.contains(part), "no {part:?} in {said}");
    }
    let pods = demo(&["run", "berth", "pods"])?;
    same("running pods", pods.matches("Running").count(), 4)?;
    ensure!(demo(&["up"])?.contains("is running"), "a second demo was started");
    ensure!(demo(&["down"])?.contains("nothing is left"), "no word about the end");
    let left: Vec<_> = host()?.difference(&before).cloned().collect();
    same("left", left, Vec::new())?;
    ensure!(demo(&["down"])?.contains("not running"), "it is still there");
    Ok(())
}
