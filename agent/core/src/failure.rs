//! Why an effect failed, as far as the core acts on it.

use crate::short::{FAILURE_BYTES_MAX, short};

/// Why an effect failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What the core does about it.
    pub kind: FailureKind,
    /// What was tried, on what, why it failed and what to do: shown to people.
    pub message: String,
}

impl Failure {
    /// A failure whose message is as long as it may be: for one that has something of a pod, an image or a program in it.
    #[must_use]
    pub fn new(kind: FailureKind, message: String) -> Self {
        Self { kind, message: short(message, FAILURE_BYTES_MAX) }
    }
}

/// Kinds of failure that the core treats differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// May work later: retried with a growing delay.
    Transient,
    /// Timed out or cut off: what it did is not known; done again (it is idempotent) before anything builds on it.
    Unknown,
    /// Containerd is not there; tried again when it is back.
    RuntimeDown,
    /// The pod asks for what cannot be given here: retried slowly, shown as a configuration error.
    Config,
    /// The image's name cannot be parsed.
    InvalidImageName,
    /// The registry does not have it, refuses it or cannot be reached.
    ImagePull,
    /// The layers of the image that the effect needs have gone; the image is looked for again.
    LayersGone,
    /// The OCI runtime could not start the container (no such command, bad working directory).
    StartFailed,
    /// The sandbox that the effect needs has gone, and the effect did nothing in it.
    SandboxGone,
    /// The pod's shim was asked, on a connection that it did not refuse, and did not answer within
    /// [`SHIM_ANSWER`](crate::pod::port::sandbox::SHIM_ANSWER) while the agent ran on time. Nothing was done.
    Silent,
    /// The record that must come before the effect could not be written, so nothing was begun; done when it is.
    Unrecorded,
}

impl FailureKind {
    /// Whether something that is told for all explains it: containerd's absence, a record that cannot be written.
    #[must_use]
    pub fn is_told_elsewhere(self) -> bool {
        match self {
            Self::RuntimeDown | Self::Unrecorded => true,
            Self::Transient
            | Self::Unknown
            | Self::Config
            | Self::InvalidImageName
            | Self::ImagePull
            | Self::LayersGone
            | Self::StartFailed
            | Self::SandboxGone
            | Self::Silent => false,
        }
    }
}
