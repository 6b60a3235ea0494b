//! Failures for the core, made from errors.

use std::{error::Error, path::Path};

use berth_core::{
    failure::{Failure, FailureKind},
    id::SandboxId,
};

use crate::causes::with_causes;

/// A failure of this kind, with all its causes in its message.
pub(super) fn failed(kind: FailureKind, error: &dyn Error) -> Failure {
    Failure { kind, message: with_causes(error) }
}

/// The pod asks for what cannot be given.
pub(super) fn config(message: impl Into<String>) -> Failure {
    Failure { kind: FailureKind::Config, message: message.into() }
}

/// What was done is not known.
pub(super) fn unknown(message: impl Into<String>) -> Failure {
    Failure { kind: FailureKind::Unknown, message: message.into() }
}

/// The shim of the sandbox has gone.
pub(super) fn sandbox_gone(sandbox: &SandboxId) -> Failure {
    let message = format!("use sandbox {sandbox}: its shim has gone");
    Failure { kind: FailureKind::SandboxGone, message }
}

/// Something on the node that may work later.
pub(super) fn local(act: &'static str, path: impl AsRef<Path>) -> impl FnOnce(std::io::Error) -> Failure {
    let path = path.as_ref().display().to_string();
    move |error| Failure { kind: FailureKind::Transient, message: format!("{act} {path}: {error}") }
}
