//! A machine that is killed, switched off and switched on.

use std::fs;
use std::path::Path;

use anyhow::Result;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{LIMIT, Machine};
use crate::cluster::Client;
use crate::files;
use crate::node::system;
use crate::wait::{self, Look};

/// What of a machine is in memory.
const IN_MEMORY: [&str; 3] = ["/run/berth", "/run/containerd", "/run/netns"];

impl Machine {
    /// SIGKILL for everything at once: the kubelet, containerd, shims, every process of every pod. Those of the test stay.
    ///
    /// # Errors
    /// Something does not end.
    pub fn kill_everything(&mut self, client: &Client) -> Result<()> {
        let stay = [1, std::process::id(), client.pid()];
        wait::until("everything to have ended", LIMIT, || {
            let mut left = self.world.processes()?;
            left.retain(|pid| !stay.contains(pid) && !has_ended(*pid));
            for pid in &left {
                let _may_have_ended = kill(Pid::from_raw(i32::try_from(*pid)?), Signal::SIGKILL);
            }
            Ok(if left.is_empty() { Look::Ready(()) } else { Look::NotYet(format!("{left:?}")) })
        })?;
        self.containerd.kill()
    }

    /// The machine is switched off: everything has ended, and what is in memory is gone.
    ///
    /// # Errors
    /// Something could not be removed.
    pub fn switch_off(&mut self, client: &Client) -> Result<()> {
        self.kill_everything(client)?;
        let in_memory = |at: &String| {
            at.starts_with("/var/lib/kubelet/")
                || IN_MEMORY.iter().any(|dir| at.starts_with(&format!("{dir}/")))
        };
        for at in files::mount_points()?.iter().rev().filter(|at| in_memory(at)) {
            system("umount", &["--lazy", at])?;
        }
        for dir in IN_MEMORY.into_iter().filter(|dir| Path::new(dir).exists()) {
            files::remove_dir(dir)?;
        }
        for what in ["--flush", "--delete-chain"] {
            system("iptables", &["--table", "nat", what])?;
        }
        self.remove_bridge()?;
        for group in self.world.cgroups()? {
            // Those with processes of the lab stay.
            drop(fs::remove_dir(group));
        }
        Ok(())
    }

    /// Starts what a machine starts: containerd and the kubelet.
    ///
    /// # Errors
    /// One does not start.
    pub fn switch_on(&mut self) -> Result<()> {
        self.containerd.start_again()?;
        self.start_kubelet()
    }

    /// Starts again what has ended by itself, as a service manager does; tells what.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn keep(&mut self) -> Result<Option<&'static str>> {
        if self.containerd.ended()? {
            self.containerd.start_again()?;
            return Ok(Some("containerd"));
        }
        if has_ended(self.kubelet_pid()?) {
            self.start_kubelet()?;
            return Ok(Some("the kubelet"));
        }
        Ok(None)
    }
}

/// Whether there is no such process, or nobody has waited for it yet.
fn has_ended(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |stat| stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')))
}
