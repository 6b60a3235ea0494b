//! Exec probes: a command in a container, run by the pod's shim. Containerd is not asked. Source: `pkg/probe/exec/exec.go`,
//! `RunInContainer` of `pkg/kubelet/kuberuntime/kuberuntime_container.go`.

use std::{sync::Arc, time::Duration};

use berth_core::{
    id::ContainerId,
    oci::{ExecTerminal, exec_process},
    pod::{
        go_duration,
        port::probe::{ExecProbe, ProbeAnswer},
    },
};
use berth_proto::{
    EXEC_BY_COMMAND,
    client::CallError,
    shim::{ExecSyncRequest, ExecSyncResponse},
    ttrpc::{Code, Status},
};

use crate::{causes::with_causes, config::BERTH_RUNTIME, effects::host::Host, runtime::recorded_spec};

/// Bytes of output that are kept (`maxReadLength`).
const OUTPUT_BYTES_MAX: usize = 10 << 10;

/// Runs the command.
pub(super) async fn ask(
    host: &Arc<Host>,
    id: &ContainerId,
    probe: &ExecProbe,
    timeout: Duration,
) -> ProbeAnswer {
    if is_of_others(host, probe) {
        return errored(format!("run {:?}: a shim of others cannot be asked by this version", probe.command));
    }
    match run(host, id, probe, Some(timeout)).await {
        Ok(answer) => judged(&answer, &probe.command, timeout),
        Err(error) => errored(format!("failed to exec in container: {}", with_causes(&error))),
    }
}

/// Whether the command would have to be run by a shim of others.
pub(in crate::effects) fn is_of_others(host: &Host, probe: &ExecProbe) -> bool {
    let handler = host.handlers.get(&probe.sandbox);
    handler.is_some_and(|handler| handler.runtime.name() != BERTH_RUNTIME)
}

/// Runs a command to its end, or for so long.
pub(in crate::effects) async fn run(
    host: &Host,
    id: &ContainerId,
    probe: &ExecProbe,
    timeout: Option<Duration>,
) -> Result<ExecSyncResponse, CallError> {
    let request = ExecSyncRequest {
        container_id: id.to_string(),
        command: probe.command.clone(),
        timeout_ms: timeout.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        output_bytes_max: u64::try_from(OUTPUT_BYTES_MAX).unwrap_or_default(),
        ..ExecSyncRequest::default()
    };
    match host.shims.exec_sync(&probe.sandbox, &request).await {
        Err(CallError::Status(status)) if status.code == Code::InvalidArgument => {
            if host.shims.protocol(&probe.sandbox).await? >= EXEC_BY_COMMAND {
                return Err(CallError::Status(status));
            }
            let process =
                process(host, id, probe).await.map_err(|why| Status::new(Code::Unavailable, why))?;
            let request = ExecSyncRequest { process, command: Vec::new(), ..request };
            host.shims.exec_sync(&probe.sandbox, &request).await
        }
        answer => answer,
    }
}

/// The process as JSON, for a shim of an earlier version: containerd is asked how the container's own runs.
async fn process(host: &Host, id: &ContainerId, probe: &ExecProbe) -> Result<Vec<u8>, String> {
    let spec = recorded_spec(&host.containerd, id).await?;
    let process =
        exec_process(&spec, &probe.command, ExecTerminal::None).map_err(|error| with_causes(&error))?;
    serde_json::to_vec(&process).map_err(|error| with_causes(&error))
}

fn errored(message: String) -> ProbeAnswer {
    ProbeAnswer::Errored { state: "unknown", message }
}

/// A container that does not answer in time has failed, and its command was killed.
fn judged(answer: &ExecSyncResponse, command: &[String], timeout: Duration) -> ProbeAnswer {
    if answer.timed_out {
        let (command, timeout) = (command.join(" "), go_duration(timeout));
        return ProbeAnswer::Failure(format!("command timed out: {command:?} timed out after {timeout}"));
    }
    if answer.exit_code == 0 {
        return ProbeAnswer::Success;
    }
    ProbeAnswer::Failure(output(answer))
}

/// What a command wrote, as much as is kept.
pub(in crate::effects) fn output(answer: &ExecSyncResponse) -> String {
    let mut output = [answer.stdout.as_slice(), &answer.stderr].concat();
    output.truncate(OUTPUT_BYTES_MAX);
    String::from_utf8_lossy(&output).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_decides_and_the_output_is_capped() {
        let command = ["cat".to_owned(), "/a b".to_owned()];
        let judged = |answer: ExecSyncResponse| judged(&answer, &command, Duration::from_secs(90));
        let answer =
            ExecSyncResponse { stdout: b"out".to_vec(), stderr: b"err".to_vec(), ..Default::default() };
        assert_eq!(judged(answer.clone()), ProbeAnswer::Success);
        let failed = ExecSyncResponse { exit_code: 3, ..answer.clone() };
        assert_eq!(judged(failed), ProbeAnswer::Failure("outerr".into()));
        let late = ExecSyncResponse { exit_code: 137, timed_out: true, ..answer };
        let text = "command timed out: \"cat /a b\" timed out after 1m30s";
        assert_eq!(judged(late), ProbeAnswer::Failure(text.into()));
        let long = ExecSyncResponse { exit_code: 1, stdout: vec![b'x'; 20_000], ..Default::default() };
        assert_eq!(judged(long), ProbeAnswer::Failure("x".repeat(10 << 10)));
    }
}
