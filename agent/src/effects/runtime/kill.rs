//! Shims that do not answer, and shims that containerd does not know: what can be told of them, and their end.
//!
//! Containerd's timeout proves nothing, since containerd may be slow itself, and takes minutes. So the shim is asked by the
//! agent before anything that needs its answer is asked of containerd. What follows from its silence is the core's to
//! decide (`berth_core::pod::silence`).

use berth_core::{
    event::Outcome,
    failure::{Failure, FailureKind},
    id::SandboxId,
    pod::port::sandbox::SHIM_ANSWER,
};

use crate::{
    effects::{
        failure::failed,
        host::{Host, blocking},
    },
    runtime::{Answer, CallError},
};

/// Fails when the sandbox's shim is there and does not answer. One that is gone needs no asking.
pub(super) async fn must_answer(host: &Host, sandbox: &SandboxId) -> Result<(), Failure> {
    ask(host, sandbox).await.map(drop)
}

/// Fails unless nobody serves the sandbox. A shim that does has containers that may run, whatever containerd knows.
pub(super) async fn must_not_serve(host: &Host, sandbox: &SandboxId) -> Result<(), Failure> {
    match ask(host, sandbox).await? {
        Serving::No => Ok(()),
        Serving::Yes => {
            let message = format!("use sandbox {sandbox}: its shim runs, but containerd does not know it");
            Err(Failure { kind: FailureKind::SandboxGone, message })
        }
    }
}

enum Serving {
    Yes,
    No,
}

async fn ask(host: &Host, sandbox: &SandboxId) -> Result<Serving, Failure> {
    match host.shims.ask(sandbox).await {
        Answer::Given => Ok(Serving::Yes),
        Answer::Gone => Ok(Serving::No),
        Answer::None => {
            let message = format!(
                "ask the shim of sandbox {sandbox}: it did not answer within {} s; a stalled disk may hold it up",
                SHIM_ANSWER.as_secs()
            );
            Err(Failure { kind: FailureKind::Silent, message })
        }
        Answer::NotAsked(error) => Err(failed(FailureKind::Transient, &error)),
    }
}

/// Makes a failure of a call that the shim may have left unanswered.
pub(super) async fn failure(host: &Host, sandbox: &SandboxId, error: CallError) -> Failure {
    if error.kind() != FailureKind::Unknown {
        return error.into();
    }
    must_answer(host, sandbox).await.err().unwrap_or_else(|| error.into())
}

/// Kills the shim of a sandbox. Containerd cleans up after it.
pub(in crate::effects) async fn shim(host: &Host, sandbox: &SandboxId) -> Result<Outcome, Failure> {
    let killed = kill(host, sandbox).await?;
    tracing::warn!(%sandbox, killed, "the shim of a sandbox that is removed does not answer, killed");
    Ok(Outcome::Done)
}

/// Kills a shim that containerd does not know, should one be left: when a shim dies while it is made, or containerd does,
/// containerd's own cleanup may take the bundle of the next one of that name. Only for a sandbox that is removed, or
/// whose shim does not serve.
pub(super) async fn end_forgotten(host: &Host, sandbox: &SandboxId) -> Result<(), Failure> {
    let killed = kill(host, sandbox).await?;
    if killed > 0 {
        tracing::warn!(%sandbox, killed, "containerd has forgotten a shim that lives, killed");
    }
    Ok(())
}

async fn kill(host: &Host, sandbox: &SandboxId) -> Result<usize, Failure> {
    let meant = host.shims.meant(sandbox);
    blocking(move || Ok(meant.kill())).await
}
