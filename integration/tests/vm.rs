//! `scripts/vm` itself: what a guest is, what comes out of it, and that nothing of it stays.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use berth_integration::components;
use berth_integration::vm::Backend;
use berth_integration::wait::{self, Look};

const SOON: Duration = Duration::from_secs(20);

fn vm(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vm"));
    command.arg("run").args(args).stdin(Stdio::null());
    command
}

/// Runs a script in a guest.
fn script(init: &[&str], script: &str) -> Result<Output> {
    vm(&[init, &["--cmd", "sh", "-c", script]].concat()).output().context("start scripts/vm")
}

#[test]
fn outputs_and_exit_codes_come_out() -> Result<()> {
    let done = script(&[], "echo out; echo err >&2; exit 7")?;
    assert_eq!(done.status.code(), Some(7));
    assert_eq!(String::from_utf8_lossy(&done.stdout), "out\n");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    ensure!(said.starts_with("err\n"), "standard error: {said}");
    let logs = said.lines().find_map(|line| line.strip_prefix("vm: logs of the guest are in "));
    let logs = Path::new(logs.context("it does not say where the logs are")?);
    ensure!(logs.join("console.log").is_file(), "no log of the console");
    fs::remove_dir_all(logs)?;
    assert_eq!(script(&[], "kill -9 $$")?.status.code(), Some(137));
    Ok(())
}

#[test]
fn a_guest_has_version_2_and_is_a_machine_of_its_own() -> Result<()> {
    let workspace = components::workspace();
    let look = format!(
        "stat -fc %T /sys/fs/cgroup; cat /proc/1/comm
        touch /mark; touch {}/mark 2>/dev/null || echo shared files are read-only",
        workspace.display()
    );
    for (init, first) in [(&[][..], "program"), (&["--systemd"], "systemd")] {
        let done = script(init, &look)?;
        let expected = format!("cgroup2fs\n{first}\nshared files are read-only\n");
        assert_eq!(String::from_utf8_lossy(&done.stdout), expected, "{init:?}");
    }
    let done = script(&[], "ls /mark")?;
    ensure!(!done.status.success(), "a guest sees what another one wrote");
    Ok(())
}

/// Whatever its caller dies of, the machine ends with it.
#[test]
fn a_killed_caller_leaves_nothing() -> Result<()> {
    let mounts = || fs::read_to_string("/proc/self/mountinfo").map(|table| table.lines().count());
    for init in [&[][..], &["--systemd"]] {
        let before = mounts()?;
        let mut caller = vm(&[init, &["--cmd", "sh", "-c", "echo up; exec sleep 1000"]].concat())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(caller.stdout.take().context("no output")?).read_line(&mut line)?;
        assert_eq!(line, "up\n");
        let machine = below(caller.id())?;
        ensure!(machine.len() > 3, "only {machine:?} is below the caller");
        if Backend::choose()? == Backend::Uml {
            let others: Vec<_> =
                machine.iter().filter(|pid| is_kept_to_one_processor(**pid) == Some(false)).collect();
            assert_eq!(
                others.len(),
                1,
                "all but the supervisor keep to one processor, not {others:?} of {machine:?}"
            );
        }
        caller.kill()?;
        caller.wait()?;
        wait::until("the end of the machine", SOON, || {
            let left: Vec<_> =
                machine.iter().filter(|pid| Path::new(&format!("/proc/{pid}")).exists()).collect();
            Ok(if left.is_empty() { Look::Ready(()) } else { Look::NotYet(format!("processes {left:?}")) })
        })?;
        assert_eq!(mounts()?, before, "mounts");
    }
    Ok(())
}

/// Nothing of a process that has ended: those of a guest come and go.
fn is_kept_to_one_processor(pid: u32) -> Option<bool> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(allowed.trim().parse::<u32>().is_ok())
}

/// The processes that one has started, and those that they have.
fn below(pid: u32) -> Result<BTreeSet<u32>> {
    let (mut found, mut next) = (BTreeSet::new(), vec![pid]);
    while let Some(pid) = next.pop() {
        let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for thread in threads.flatten() {
            let Ok(children) = fs::read_to_string(thread.path().join("children")) else { continue };
            let children: Vec<u32> = children.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
            next.extend(children.iter().filter(|child| found.insert(**child)));
        }
    }
    Ok(found)
}
