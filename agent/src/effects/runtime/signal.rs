//! Signals to containers: to the pod's shim directly, so that a pod can be stopped while containerd is down.
//!
//! Containerd is asked where no shim of ours listens: the pod runs under another kind of shim, or its own has ended.

use std::sync::Arc;

use berth_core::{
    event::Outcome,
    failure::{Failure, FailureKind},
    pod::port::signal::{SignalRequest, StopSignal},
};
use berth_proto::{client::CallError, task, ttrpc::Code};
use containerd_client::services::v1::KillRequest;

use crate::effects::{failure::failed, host::Host};

const SIGTERM: u32 = 15;
const SIGKILL: u32 = 9;
/// The first and last real-time signals that programs can use (glibc takes 32 and 33 for itself).
const SIGRTMIN: u32 = 34;
const SIGRTMAX: u32 = 64;

/// Sends a signal. A container that has ended takes none, which is fine.
pub(in crate::effects) async fn send(host: &Arc<Host>, request: &SignalRequest) -> Result<Outcome, Failure> {
    let (signal, all) = match &request.signal {
        StopSignal::Stop(name) => (number(name), false),
        StopSignal::Kill => (SIGKILL, true),
    };
    let kill = task::KillRequest { id: request.id.to_string(), signal, all, ..task::KillRequest::default() };
    match host.shims.signal(&request.sandbox, &kill).await {
        Ok(()) => Ok(Outcome::Done),
        Err(CallError::Status(status)) if status.code == Code::NotFound => Ok(Outcome::Done),
        Err(CallError::Connect { .. } | CallError::Lost(_)) => through_containerd(host, kill).await,
        Err(error) => Err(failed(FailureKind::Transient, &error)),
    }
}

async fn through_containerd(host: &Host, kill: task::KillRequest) -> Result<Outcome, Failure> {
    let task::KillRequest { id, exec_id, signal, all } = kill;
    let kill = KillRequest { container_id: id.clone(), exec_id, signal, all };
    let mut client = host.containerd.tasks();
    match host.containerd.call("send a signal to", &id, client.kill(kill)).await {
        Err(error) if !error.is_shim_gone() => Err(error.into()),
        Ok(_) | Err(_) => Ok(Outcome::Done),
    }
}

/// The number of a signal as images name it: `SIGTERM`, `term`, `15`, `SIGRTMIN+3`. An image's mistake is answered with
/// SIGTERM: under containerd's CRI such a container cannot be stopped at all (decision 0028).
fn number(name: &str) -> u32 {
    let name = name.trim().to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let real_time = || {
        let (base, offset) = match (name.strip_prefix("RTMIN"), name.strip_prefix("RTMAX")) {
            (Some(rest), _) => (SIGRTMIN, rest),
            (None, Some(rest)) => (SIGRTMAX, rest),
            (None, None) => return None,
        };
        if offset.is_empty() { Some(base) } else { base.checked_add_signed(offset.parse().ok()?) }
    };
    let numbered = || name.parse().ok();
    let named = || {
        let name = match name {
            "CLD" => "CHLD",
            "IOT" => "ABRT",
            "POLL" => "IO",
            name => name,
        };
        let signal: nix::sys::signal::Signal = format!("SIG{name}").parse().ok()?;
        u32::try_from(signal as i32).ok()
    };
    numbered()
        .or_else(real_time)
        .or_else(named)
        .filter(|signal| (1..=SIGRTMAX).contains(signal))
        .unwrap_or(SIGTERM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_as_images_name_them() {
        let cases = [
            ("SIGTERM", 15),
            ("term", 15),
            ("SIGQUIT", 3),
            ("QUIT", 3),
            ("9", 9),
            ("SIGCLD", 17),
            ("SIGIOT", 6),
            ("SIGPOLL", 29),
            ("SIGRTMIN", 34),
            ("SIGRTMIN+3", 37),
            ("RTMAX-14", 50),
            ("SIGRTMIN+99", 15),
            ("SIGNONSENSE", 15),
            ("0", 15),
            ("-1", 15),
            ("4294967295", 15),
            ("", 15),
        ];
        for (name, expected) in cases {
            assert_eq!(number(name), expected, "{name}");
        }
    }
}
