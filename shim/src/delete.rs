//! `delete`: cleans up after a shim that is lost, and after one that would not start.
//!
//! Runs in the bundle, within five seconds. For a sandbox it ends the whole pod: the shim if it still lives, every
//! member that it noted, their mounts and the pod's own.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use berth_proto::task::DeleteResponse;
use nix::libc;
use prost::Message;
use thiserror::Error;

use crate::answer::timestamp;
use crate::args::Args;
use crate::runtime::{Delete, Runtime};
use crate::{bundle, cgroup, mount, pod};

/// What a container is said to have exited with when its shim was lost: killed.
const KILLED: u32 = 137;
/// Time for all of the cleaning; containerd allows 5 s (`io.containerd.timeout.shim.cleanup`).
const DELETE_TIME_MAX: Duration = Duration::from_millis(4_500);
/// Time between two looks at what is awaited.
const LOOK_EVERY: Duration = Duration::from_millis(2);

#[derive(Debug, Error)]
pub(crate) enum DeleteError {
    #[error("find the bundle")]
    Bundle(#[source] io::Error),
    #[error("print the result")]
    Print(#[source] io::Error),
}

pub(crate) fn delete(args: &Args) -> Result<(), DeleteError> {
    let deadline = Instant::now() + DELETE_TIME_MAX;
    let own = match &args.bundle {
        Some(bundle) => bundle.clone(),
        None => std::env::current_dir().map_err(DeleteError::Bundle)?,
    };
    end_shim(&own, &args.id, deadline);
    let recorded = bundle::read_exit(&own);
    let pid = crate::runtime::read_pid(&own.join(bundle::INIT_PID)).unwrap_or(0);
    let mut bundles = bundle::members(&own);
    if !bundles.contains(&own) {
        bundles.push(own.clone());
    }
    end_containers(&bundles, deadline);
    for bundle in &bundles {
        mount::unmount_all(&bundle.join("rootfs"));
    }
    mount::unmount_all(&pod::shm_path(&own));
    for socket in bundle::read_sockets(&own) {
        let _absent = fs::remove_file(socket).is_err();
    }
    let (exit_status, exited_at) = match recorded {
        Some(exit) => (exit.code, timestamp(exit.at_ns)),
        None => (KILLED, SystemTime::now().into()),
    };
    let response = DeleteResponse { pid, exit_status, exited_at: Some(exited_at) };
    io::stdout().write_all(&response.encode_to_vec()).map_err(DeleteError::Print)
}

/// Kills the shim that was started in this bundle. The pod's PID 1 dies with it.
fn end_shim(bundle: &Path, id: &str, deadline: Instant) {
    let Some(pid) = bundle::read_shim_pid(bundle).filter(|pid| is_shim(*pid, id)) else { return };
    cgroup::signal_process(pid, libc::SIGKILL);
    wait(deadline, || !is_shim(pid, id));
}

/// Whether the process is still the shim of this id, and not another that has got its number.
fn is_shim(pid: u32, id: &str) -> bool {
    let Ok(line) = fs::read(format!("/proc/{pid}/cmdline")) else { return false };
    let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
    let pair = |pair: &[&[u8]]| matches!(pair, [flag, value] if *flag == b"-id" && *value == id.as_bytes());
    words.windows(2).any(pair) && words.contains(&b"serve".as_slice())
}

/// Has the runtimes forget all containers at once, since each may take a while.
fn end_containers(bundles: &[PathBuf], deadline: Instant) {
    let mut calls: Vec<Child> = bundles.iter().filter_map(|bundle| forget(bundle)).collect();
    wait(deadline, || {
        calls.retain_mut(|call| matches!(call.try_wait(), Ok(None)));
        calls.is_empty()
    });
    for mut call in calls {
        let _gone = call.kill().is_err();
    }
}

fn forget(bundle: &Path) -> Option<Child> {
    let (id, runtime): (_, Runtime) = match bundle::read_record(bundle) {
        Ok(record) => record?,
        Err(error) => {
            crate::log::plain(&format!("failed to {}", crate::chain(&error)));
            return None;
        }
    };
    let mut command = runtime.plain();
    Delete::ByForce.arguments(&mut command, &id);
    match command.spawn() {
        Ok(child) => Some(child),
        Err(error) => {
            crate::log::plain(&format!("failed to start {}: {error}", runtime.binary.display()));
            None
        }
    }
}

/// Looks until something is so, or the time is over.
fn wait(deadline: Instant, mut is_so: impl FnMut() -> bool) {
    while !is_so() && Instant::now() < deadline {
        thread::sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_is_never_taken_for_the_shim() {
        assert!(!is_shim(std::process::id(), "c1"));
        assert!(!is_shim(u32::MAX, "c1"));
    }
}
