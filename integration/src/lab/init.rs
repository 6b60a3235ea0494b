//! Process 1 of the lab, or the one that orphans come to: makes the world, reaps, and counts what is left.

use std::env;
use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::{set_child_subreaper, set_pdeathsig};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::{WaitStatus, wait};
use nix::unistd::Pid;

use super::{OWNER, ROLE, ROOT, World, leaks, pid_of, slice_of};
use crate::files;

/// Gives the node an address and a way out, which leads nowhere.
const UPLINK: &str = "link set lo up
link add uplink type veth peer name upstream
link set upstream up
address add 192.0.2.10/24 dev uplink
link set uplink up
route add default via 192.0.2.1
";

/// Where systemd and the bus are spoken to. As directories: sockets in them are made anew.
const OF_SYSTEMD: [&str; 2] = ["/run/systemd", "/run/dbus"];

/// Makes the private world, runs the body in it and fails when it leaves something behind.
pub(super) fn run() -> Result<ExitCode> {
    let root = env::var(ROOT)?;
    let owner = env::var(OWNER)?;
    set_pdeathsig(Signal::SIGKILL)?;
    // The supervisor blocks signals to wait for them, and children inherit that.
    SigSet::empty().thread_set_mask()?;
    // /proc still shows the world outside here: an owner that ended before the line above left us.
    ensure!(Path::new("/proc").join(pid_of(&owner)).exists(), "the supervisor ended before the lab was made");
    match slice_of(&owner) {
        Some(slice) => {
            set_child_subreaper(true).context("take over orphans")?;
            slice.enter()?;
            make_world(Path::new(&root), &OF_SYSTEMD)?;
        }
        None => make_world(Path::new(&root), &[])?,
    }
    let world = World::here()?;
    let before = leaks::Baseline::take()?;
    let body = Command::new(env::current_exe()?)
        .args(env::args_os().skip(1))
        .env(ROLE, "body")
        .spawn()
        .context("start the lab's body")?;
    let code = reap_until(Pid::from_raw(i32::try_from(body.id())?))?;
    if code == 0 {
        let left = before.check(&world);
        if left.is_err() {
            world.show_logs()?;
        }
        left?;
    }
    Ok(ExitCode::from(code))
}

/// `from_outside` stays of what is in `/run`.
fn make_world(root: &Path, from_outside: &[&str]) -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWIPC)
        .context("make mount and network namespaces")?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .context("make mounts private")?;
    let plain = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("proc"), "/proc", Some("proc"), plain | MsFlags::MS_NOEXEC, None::<&str>)
        .context("mount /proc")?;
    // On a mixed cgroup v1 host crun takes this mount for a v2 host; it has no controllers. Something of the lab's own
    // is put over it, since crun then writes plain files there.
    let unified = Path::new("/sys/fs/cgroup/unified");
    let mixed = unified.join("cgroup.controllers").exists();
    if mixed {
        umount2(unified, MntFlags::MNT_DETACH).context("unmount cgroup/unified")?;
    }
    // What a node keeps in its usual places is the lab's own.
    let mut kept = Vec::new();
    for dir in from_outside {
        kept.push((dir, File::open(dir).with_context(|| format!("open {dir}"))?));
    }
    let usual = [Path::new("/run"), Path::new("/var/lib"), Path::new("/var/log"), root];
    for dir in usual.into_iter().chain(mixed.then_some(unified)) {
        mount(Some("tmpfs"), dir, Some("tmpfs"), MsFlags::empty(), Some("mode=755"))
            .with_context(|| format!("mount {}", dir.display()))?;
    }
    for (dir, outside) in kept {
        fs::create_dir(dir).with_context(|| format!("make {dir}"))?;
        let from = format!("/proc/self/fd/{}", outside.as_raw_fd());
        mount(Some(from.as_str()), *dir, None::<&str>, MsFlags::MS_BIND, None::<&str>)
            .with_context(|| format!("bind {dir}"))?;
    }
    files::make_dir("/run/netns")?;
    let steps = root.join("uplink");
    files::write(&steps, UPLINK)?;
    let done = Command::new("ip").arg("-batch").arg(&steps).status().context("start ip")?;
    ensure!(done.success(), "ip -batch of {UPLINK:?} ended with {done}");
    files::remove(steps)?;
    files::write("/proc/sys/net/ipv4/ip_forward", "1").context("turn forwarding on")
}

/// Reaps orphans until `body` ended, and gives its exit code (128 + n for signal n).
fn reap_until(body: Pid) -> Result<u8> {
    loop {
        match wait()? {
            WaitStatus::Exited(pid, code) if pid == body => return Ok(u8::try_from(code)?),
            WaitStatus::Signaled(pid, signal, _) if pid == body => {
                return Ok(u8::try_from(128 + signal as i32)?);
            }
            _ => {}
        }
    }
}
