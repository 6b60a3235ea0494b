//! `delete`: cleans up after a shim that is lost, and after one that would not start.
//!
//! Runs in the bundle, within five seconds. For a sandbox it ends the whole pod: the shim if it still lives, every
//! member that it noted, their mounts and the pod's own. Of a group that annotations made it ends one container alone:
//! containerd cleans up after each, also after one whose connection it closed itself, and the others live on.

use std::fs;
use std::io::Write;
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
use crate::bundle::Record;
use crate::runtime::Delete;
use crate::{bundle, cgroup, io, mount, pod, start, sys};

/// What a container is said to have exited with when its shim was lost: killed.
const KILLED: u32 = 137;
/// Time for all of the cleaning; containerd allows 5 s (`io.containerd.timeout.shim.cleanup`), of which a busy machine may
/// need some until this begins and after it has ended.
const DELETE_TIME_MAX: Duration = Duration::from_millis(4_000);
/// The part of it that is kept for ending containers whose runtime does not.
const WITHOUT_RUNTIME: Duration = Duration::from_millis(1_500);
/// What unmounting gets of it in any case: what is not unmounted now, nobody unmounts.
const UNMOUNT_TIME_MIN: Duration = Duration::from_millis(500);
/// Time that the socket of a shim which was killed may be held by a child that it was about to start, on a busy machine.
const SOCKET_HELD_MAX: Duration = Duration::from_millis(500);
/// Time between two looks at what is awaited.
const LOOK_EVERY: Duration = Duration::from_millis(2);

#[derive(Debug, Error)]
pub(crate) enum DeleteError {
    #[error("find the bundle")]
    Bundle(#[source] std::io::Error),
    #[error("print the result")]
    Print(#[source] std::io::Error),
}

pub(crate) fn delete(args: &Args) -> Result<(), DeleteError> {
    let deadline = Instant::now() + DELETE_TIME_MAX;
    let own = match &args.bundle {
        Some(bundle) => bundle.clone(),
        None => std::env::current_dir().map_err(DeleteError::Bundle)?,
    };
    let in_group = is_in_group(&own, &args.id);
    if !in_group {
        end_shim(&own, &args.id, deadline);
    }
    let recorded = bundle::read_exit(&own);
    let pid = crate::runtime::read_pid(&own.join(bundle::INIT_PID)).unwrap_or(0);
    let mut bundles = if in_group { Vec::new() } else { bundle::members(&own) };
    if !bundles.contains(&own) {
        bundles.push(own.clone());
    }
    end_containers(&bundles, deadline);
    unmount(&bundles, &own, deadline);
    // Of a task that is deleted while its shim dies, containerd may have removed the bundle, which tells of the socket.
    let sockets = bundle::read_sockets(&own).into_iter().chain(start::usual_socket(args));
    // The others of a group may well listen; nobody else does for long.
    let settled = if in_group { Instant::now() } else { deadline.min(Instant::now() + SOCKET_HELD_MAX) };
    sockets.for_each(|socket| wait(settled, || start::remove_unserved(&socket)));
    let (exit_status, exited_at) = match recorded {
        Some(exit) => (exit.code, timestamp(exit.at_ns)),
        None => (KILLED, SystemTime::now().into()),
    };
    let response = DeleteResponse { pid, exit_status, exited_at: Some(exited_at) };
    std::io::stdout().write_all(&response.encode_to_vec()).map_err(DeleteError::Print)
}

/// Whether the container shares its shim with others, in a group that is not named after it.
fn is_in_group(bundle: &Path, id: &str) -> bool {
    // A bundle that cannot be read is cleaned as if it were alone: better one container too many than one left behind.
    bundle::read_config(bundle)
        .ok()
        .and_then(|config| start::group(&config).ok()?)
        .is_some_and(|group| group != id)
}

/// Kills the shim that was started in this bundle. The pod's PID 1 dies with it.
fn end_shim(bundle: &Path, id: &str, deadline: Instant) {
    let Some(pid) = bundle::read_shim_pid(bundle) else { return };
    if is_shim(pid, id) {
        cgroup::signal_process(pid, libc::SIGKILL);
        wait(deadline, || !is_shim(pid, id));
    }
    // Those of another shim that has got its number are its own.
    if !is_any_shim(pid) {
        io::remove_consoles(pid);
    }
}

/// Whether the process is still the shim of this id, and not another that has got its number.
fn is_shim(pid: u32, id: &str) -> bool {
    let arguments = arguments_of(pid);
    let pair = |pair: &[Vec<u8>]| matches!(pair, [flag, value] if *flag == b"-id" && *value == id.as_bytes());
    arguments.windows(2).any(pair) && serves(&arguments)
}

/// Whether the process is some shim.
fn is_any_shim(pid: u32) -> bool {
    serves(&arguments_of(pid))
}

fn serves(arguments: &[Vec<u8>]) -> bool {
    arguments.iter().any(|argument| argument == b"serve")
}

fn arguments_of(pid: u32) -> Vec<Vec<u8>> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect()
}

/// Kills all containers and has the runtimes forget them, all at once, since each may take a while; then ends what is left of them without
/// any runtime: one may be gone, hang, or have lost its state.
fn end_containers(bundles: &[PathBuf], deadline: Instant) {
    let records: Vec<Record> = bundles.iter().filter_map(|bundle| record(bundle)).collect();
    // A runtime looks only now and then whether what it has killed is dead.
    for cgroup in records.iter().filter_map(|record| record.cgroup.as_ref()) {
        cgroup.signal_all(libc::SIGKILL);
    }
    let mut calls: Vec<Child> = records.iter().filter_map(forget).collect();
    wait(deadline - WITHOUT_RUNTIME, || {
        calls.retain_mut(|call| matches!(call.try_wait(), Ok(None)));
        calls.is_empty()
    });
    for mut call in calls {
        let _gone = call.kill().is_err();
        let _reaped = call.wait().is_err();
    }
    for Record { id, cgroup, .. } in &records {
        if cgroup.as_ref().is_some_and(|cgroup| !cgroup.destroy(deadline)) {
            crate::log::plain(&format!("failed to remove the control groups of {id} in time"));
        }
    }
}

fn record(bundle: &Path) -> Option<Record> {
    bundle::read_record(bundle).unwrap_or_else(|error| {
        crate::log::plain(&format!("failed to {}", crate::with_causes(&error)));
        None
    })
}

fn forget(Record { id, runtime, .. }: &Record) -> Option<Child> {
    let mut command = runtime.plain();
    Delete::ByForce.arguments(&mut command, id);
    let spawned = command.spawn();
    if let Err(error) = &spawned {
        crate::log::plain(&format!("failed to start {}: {error}", runtime.binary.display()));
    }
    spawned.ok()
}

/// Unmounts what containers and pod had, each in a copy of this process, since a disk may not answer. A copy that has not
/// ended in time goes on by itself.
fn unmount(bundles: &[PathBuf], own: &Path, deadline: Instant) {
    let unmount_shm = || {
        mount::unmount_all(&pod::shm_path(own));
    };
    let mut copies: Vec<(&Path, sys::Child)> = Vec::new();
    for bundle in bundles {
        copies.extend(in_a_copy(|| mount::unmount_bundle(bundle)).map(|copy| (bundle.as_path(), copy)));
    }
    copies.extend(in_a_copy(unmount_shm).map(|copy| (own, copy)));
    wait(deadline.max(Instant::now() + UNMOUNT_TIME_MIN), || {
        copies.retain_mut(|(_, copy)| !copy.has_ended());
        copies.is_empty()
    });
    for (bundle, copy) in copies {
        let process = copy.into_id();
        crate::log::plain(&format!("process {process} still unmounts what is below {}", bundle.display()));
    }
}

/// Does something in a copy that nobody waits for who waits for this process; here, where there can be none.
fn in_a_copy(work: impl Fn()) -> Option<sys::Child> {
    let copy = sys::fork(|| {
        let is_alone = sys::stand_alone().is_ok();
        work();
        i32::from(!is_alone)
    });
    copy.inspect_err(|_no_copy| work()).ok()
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
