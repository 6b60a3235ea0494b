//! Shims that hang: found before what they run is removed, and killed, so that the pod ends all the same.
//!
//! Containerd's timeout proves nothing, since containerd may be slow itself, and takes minutes. So the shim is asked by the
//! agent, and killed when it does not answer within ten seconds; only by who is about to remove what it runs. Containerd
//! then cleans up after it. How long a pod may take until it comes to that: `SILENT_KILL_MAX` of the core.

use std::{fs, path::Path};

use berth_core::{
    event::{Failure, FailureKind},
    id::SandboxId,
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::host::{Host, blocking};
use crate::runtime::CallError;

/// Name of the shim's program. The kernel cuts names of processes, so it is looked for in the arguments.
const PROGRAM: &str = "containerd-shim-berth-v1";

/// Kills the sandbox's shim if it does not answer, and then fails: the next try finds it gone.
pub(super) async fn refuse(host: &Host, sandbox: &SandboxId) -> Result<(), Failure> {
    if !host.shims.is_silent(sandbox).await {
        return Ok(());
    }
    let killed = kill(sandbox).await.unwrap_or_default();
    tracing::warn!(%sandbox, killed, "the shim does not answer, killed");
    let message = format!("end sandbox {sandbox}: its shim did not answer and was killed");
    Err(Failure { kind: FailureKind::Transient, message })
}

/// Kills a shim that containerd does not know, should one be left: when a shim dies while it is made, or containerd does,
/// containerd's own cleanup may take the bundle of the next one of that name.
pub(super) async fn end_forgotten(sandbox: &SandboxId) -> Result<(), Failure> {
    let killed = kill(sandbox).await?;
    if killed > 0 {
        tracing::warn!(%sandbox, killed, "containerd has forgotten a shim that lives, killed");
    }
    Ok(())
}

/// Makes a failure of a call, and kills the sandbox's shim when it was its silence that failed the call.
pub(super) async fn failure(host: &Host, sandbox: &SandboxId, error: CallError) -> Failure {
    if error.kind() != FailureKind::Unknown {
        return error.into();
    }
    refuse(host, sandbox).await.err().unwrap_or_else(|| error.into())
}

async fn kill(sandbox: &SandboxId) -> Result<usize, Failure> {
    let id = sandbox.to_string();
    blocking(move || Ok(kill_shims(&id))).await
}

/// Kills every process of the sandbox's shim and tells how many there were.
fn kill_shims(id: &str) -> usize {
    let Ok(processes) = fs::read_dir("/proc") else { return 0 };
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| kill_shim(*pid, id).is_some()).count()
}

/// The process is held before it is looked at, so that a successor with its number is never meant.
fn kill_shim(pid: i32, id: &str) -> Option<()> {
    let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    let command = fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline")).ok()?;
    let arguments: Vec<&str> =
        command.split(|byte| *byte == 0).filter_map(|it| str::from_utf8(it).ok()).collect();
    if !is_shim(&arguments, id) || !is_program(pid) {
        return None;
    }
    pidfd_send_signal(&process, Signal::KILL).ok()
}

fn is_shim(arguments: &[&str], id: &str) -> bool {
    arguments.windows(2).any(|pair| pair == ["-id", id])
}

fn is_program(pid: i32) -> bool {
    fs::read_link(format!("/proc/{pid}/exe"))
        .is_ok_and(|exe| exe.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PROGRAM)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_shim_of_that_sandbox_is_meant() {
        let shim = ["shim", "-namespace", "k8s.io", "-id", "abc", "serve"];
        assert!(is_shim(&shim, "abc"));
        assert!(!is_shim(&shim, "ab"));
        assert!(!is_shim(&["grep", "abc"], "abc"));
        assert!(!is_shim(&[], "abc"));
    }
}
