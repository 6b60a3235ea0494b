//! `scripts/demo`: what it shows, and that nothing of it stays.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_integration::lab::World;
use berth_integration::node::system;
use berth_integration::vm::{self, Feature};
use berth_integration::wait::{self, Look};
use berth_integration::{binaries, cgroup, files};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::kit::eventually;
use crate::suite::{Test, same, test};

/// How long what was killed may take to be there again.
const SHOWN_LIMIT: Duration = Duration::from_secs(60);
/// Where the demo tells its supervisor's process.
const PID_FILE: &str = "/run/berth-demo/pid";

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("demo::up_run_and_down_leave_nothing", up_and_down),
        test("demo::a_cluster_up_and_down_leaves_nothing", cluster),
        test("demo::it_survives_what_a_reader_tries_first", curious),
        test("demo::down_while_it_starts_leaves_nothing", down_while_it_starts),
        test("demo::down_after_its_supervisor_was_killed_leaves_nothing", killed_supervisor),
    ]
}

/// What a demo might leave on its host; here the host is a lab.
fn host() -> Result<BTreeSet<String>> {
    let world = World::here()?;
    let nested = |name: &str| format!("{name}_");
    let dir = nested(&world.root().file_name().unwrap_or_default().to_string_lossy());
    let group = nested(world.cgroup().trim_start_matches('/'));
    let mut all = BTreeSet::new();
    for path in ["/run", "/run/netns", "/tmp", "/var/lib", "/var/log", "/etc/cni", "/opt/cni"] {
        let list = fs::read_dir(path).into_iter().flatten().flatten();
        // Labs of other tests come and go beside this one.
        let ours =
            list.filter(|entry| path != "/tmp" || entry.file_name().to_string_lossy().starts_with(&dir));
        all.extend(ours.map(|entry| format!("file {}", entry.path().display())));
    }
    for hierarchy in cgroup::hierarchies()? {
        let groups = fs::read_dir(hierarchy).into_iter().flatten().flatten();
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let names = groups.map(|group| name(&group.path()));
        all.extend(names.filter(|name| name.starts_with(&group)).map(|name| format!("cgroup {name}")));
    }
    let lines =
        |what: &str, text: String| text.lines().map(|line| format!("{what} {line}")).collect::<Vec<_>>();
    all.extend(lines("mount", files::mounts()?));
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

/// A process that has ended is shown until somebody has waited for it.
fn nothing_is_left(before: &BTreeSet<String>) -> Result<()> {
    let nothing: Vec<String> = Vec::new();
    eventually("nothing to be left", &nothing, || Ok(host()?.difference(before).cloned().collect()))
}

fn command(args: &[&str]) -> Result<Command> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_demo"));
    // It is to make a lab of its own.
    command.args(args).env("BERTH_BIN_DIR", binaries::dir()?).env_remove("BERTH_LAB_ROLE");
    Ok(command)
}

fn demo(args: &[&str]) -> Result<String> {
    let done = command(args)?.output().context("start the demo")?;
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    ensure!(
        done.status.success(),
        "demo {args:?} ended with {}: {said}{}",
        done.status,
        String::from_utf8_lossy(&done.stderr)
    );
    Ok(said)
}

fn cluster() -> Result<()> {
    // Makes the tables exist, which listing them does once.
    host()?;
    let before = host()?;
    let said = demo(&["--cluster"])?;
    for word in ["lab    Ready", "kube-apiserver-lab", "coredns-", "hello from two"] {
        ensure!(said.contains(word), "{word} is not in {said}");
    }
    let nodes = demo(&["run", "kubectl", "get", "nodes"])?;
    ensure!(nodes.contains("Ready"), "{nodes}");
    demo(&["down"])?;
    eventually("the host to be as it was", &before, host)
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
        "$ ctr -n k8s.io containers ls",
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
    nothing_is_left(&before)?;
    ensure!(demo(&["down"])?.contains("not running"), "it is still there");
    Ok(())
}

/// Runs a line of shell in the demo.
fn inside(line: &str) -> Result<String> {
    demo(&["run", "sh", "-c", line])
}

/// Waits until the demo's agent shows these in one look.
fn shows(parts: &[&str]) -> Result<()> {
    wait::until(&format!("`berth pods` to show {parts:?}"), SHOWN_LIMIT, || {
        // It does not answer while it is started again.
        let said = demo(&["run", "berth", "pods"]).unwrap_or_else(|failure| format!("{failure:#}"));
        // Columns are apart by any number of spaces.
        let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
        Ok(if parts.iter().all(|part| words.contains(part)) { Look::Ready(()) } else { Look::NotYet(said) })
    })
}

fn curious() -> Result<()> {
    host()?;
    let before = host()?;
    let said = demo(&[])?;
    let manifests = said
        .lines()
        .find_map(|line| line.strip_prefix("The manifests are in "))
        .with_context(|| format!("no word about manifests in {said}"))?;
    let all = ["guaranteed-lab 1/1 Running 0", "init-and-sidecar-lab 2/2 Running 0", "web-lab 1/1 Running 0"];
    shows(&all)?;

    let agent = inside("pgrep -x berth")?;
    inside("pkill -KILL -x berth")?;
    shows(&all)?;
    ensure!(inside("pgrep -x berth")? != agent, "the agent was not killed");

    inside("pkill -KILL -x containerd")?;
    wait::until("containerd to answer", SHOWN_LIMIT, || {
        Ok(match demo(&["run", "ctr", "version"]) {
            Ok(_answer) => Look::Ready(()),
            Err(failure) => Look::NotYet(format!("{failure:#}")),
        })
    })?;
    shows(&all)?;

    let sandbox = inside("ctr -n k8s.io containers ls | grep -c busybox")?;
    ensure!(sandbox.trim() != "0", "no containers are shown");
    inside("pkill -KILL -f [c]ontainerd-shim-berth-v1")?;
    shows(&["guaranteed-lab 1/1 Running 1", "web-lab 1/1 Running 1"])?;

    inside(&format!("echo 'kind: Nonsense' >{manifests}/web.yaml"))?;
    shows(&["web-lab 1/1 Running 1", "web.yaml"])?;

    // At once after another kill: what clears up is started again for it.
    inside("pkill -KILL -x berth")?;
    ensure!(demo(&["down"])?.contains("nothing is left"), "no word about the end");
    nothing_is_left(&before)
}

/// Starts a demo that nobody waits for, until its lab is there.
fn begun() -> Result<Child> {
    let child =
        command(&["up"])?.stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("start the demo")?;
    wait::until("the demo to begin", SHOWN_LIMIT, || {
        let pid = fs::read_to_string(PID_FILE).unwrap_or_default();
        let lab = format!("/proc/{pid}/task/{pid}/children");
        let init = fs::read_to_string(lab).unwrap_or_default();
        Ok(if init.trim().is_empty() { Look::NotYet("no lab".to_owned()) } else { Look::Ready(()) })
    })?;
    Ok(child)
}

fn down_while_it_starts() -> Result<()> {
    host()?;
    let before = host()?;
    let mut up = begun()?;
    ensure!(demo(&["down"])?.contains("nothing is left"), "no word about the end");
    ensure!(!up.wait()?.success(), "a demo that was ended meanwhile came up");
    nothing_is_left(&before)
}

fn killed_supervisor() -> Result<()> {
    host()?;
    let before = host()?;
    demo(&[])?;
    let supervisor: i32 = files::read(PID_FILE)?.parse()?;
    kill(Pid::from_raw(supervisor), Signal::SIGKILL)?;
    wait::until("the lab to end with its supervisor", SHOWN_LIMIT, || {
        let all = system("ps", &["-e", "-o", "args="])?;
        let ours: Vec<&str> =
            all.lines().filter(|it| it.contains("shim-berth") || it.contains("demo]")).collect();
        Ok(if ours.is_empty() { Look::Ready(()) } else { Look::NotYet(ours.join("\n")) })
    })?;
    ensure!(demo(&["down"])?.contains("nothing is left"), "no word about the end");
    nothing_is_left(&before)
}
