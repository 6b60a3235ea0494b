//! The runtime port: what differs between a pod in our own shim and one under a shim of others.
//!
//! A closed set of two, so an enum: each has a file of its own, and nothing else asks which it is.

use std::{path::PathBuf, sync::Arc};

use berth_core::{
    failure::Failure,
    id::{ContainerId, SandboxId},
    observation::ObservedTask,
    pod::port::{sandbox::SandboxRequest, start::StartRequest},
};
use oci_spec::runtime::Spec;
use prost_types::Any;

use super::{berth::Berth, grouped::Grouped, records::Recorded};
use crate::{
    config::{BERTH_RUNTIME, Handler, PodRuntime},
    effects::host::Host,
    runtime::CallError,
};

/// The runtime of a pod.
#[derive(Debug, Clone, Copy)]
pub(super) enum Runtime<'a> {
    Berth(Berth<'a>),
    Grouped(Grouped<'a>),
}

/// Where the streams of a container go, as URIs that its shim understands; empty for nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stdio {
    pub(super) input: String,
    /// Both outputs.
    pub(super) output: String,
}

impl<'a> Runtime<'a> {
    /// The one that runs the pods of a handler.
    pub(super) fn of(host: &'a Arc<Host>, handler: &'a Handler) -> Self {
        match &handler.runtime {
            PodRuntime::Berth { binary } => Self::Berth(Berth { host, binary: binary.as_deref() }),
            PodRuntime::Grouped { name, path, options } => {
                Self::Grouped(Grouped { host, name, path: path.as_deref(), options })
            }
        }
    }

    /// What containerd calls it.
    pub(super) fn name(self) -> &'a str {
        match self {
            Self::Berth(_) => BERTH_RUNTIME,
            Self::Grouped(grouped) => grouped.name,
        }
    }

    /// The shim itself, where containerd is not to look for it; else empty.
    pub(super) fn shim_path(self) -> String {
        match self {
            Self::Berth(_) => String::new(),
            Self::Grouped(grouped) => {
                grouped.path.map_or_else(String::new, |path| path.display().to_string())
            }
        }
    }

    /// Whether it can run the pod at all.
    pub(super) fn accepts(self, request: &SandboxRequest) -> Result<(), Failure> {
        match self {
            Self::Berth(_) => Ok(()),
            Self::Grouped(grouped) => grouped.accepts(request),
        }
    }

    /// Makes the sandbox of a record, or finds it: the process id of its shim, 0 when it has none.
    pub(super) async fn ensure_sandbox(
        self,
        request: &SandboxRequest,
        recorded: Recorded,
    ) -> Result<u32, Failure> {
        match self {
            Self::Berth(berth) => berth.ensure_sandbox(request, recorded).await,
            Self::Grouped(grouped) => grouped.ensure_sandbox(request).await.map(|()| 0),
        }
    }

    /// The OCI spec as the shim takes it.
    pub(super) fn adapt(self, request: &StartRequest, spec: Spec) -> Spec {
        match self {
            Self::Berth(_) => spec,
            Self::Grouped(grouped) => grouped.adapt(request, spec),
        }
    }

    /// Where the pod's `/dev/shm` is that this agent holds for a container; our shim labels its own.
    pub(super) fn own_shm(self, request: &StartRequest) -> Option<PathBuf> {
        match self {
            Self::Berth(_) => None,
            Self::Grouped(grouped) => grouped.own_shm(request),
        }
    }

    /// Options of the runtime, as containers are recorded with.
    pub(super) fn options(self) -> Result<Option<Any>, Failure> {
        match self {
            // Those of the sandbox hold for all that is in it.
            Self::Berth(_) => Ok(None),
            Self::Grouped(grouped) => grouped.options(),
        }
    }

    /// Where the streams of a container go.
    pub(super) fn stdio(self, request: &StartRequest) -> Stdio {
        match self {
            Self::Berth(berth) => berth.stdio(request),
            Self::Grouped(grouped) => grouped.stdio(request),
        }
    }

    /// What became of a container. `None` when its sandbox has gone and tells nothing of it.
    pub(super) async fn task(
        self,
        sandbox: &SandboxId,
        container: &ContainerId,
    ) -> Result<Option<ObservedTask>, Failure> {
        match self {
            Self::Berth(berth) => Ok(berth.task(sandbox, container).await),
            Self::Grouped(grouped) => grouped.task(container).await.map(Some),
        }
    }

    /// The end of a container that was started is to be reported.
    pub(super) fn follow(self, sandbox: &SandboxId, container: &ContainerId) {
        match self {
            // Its sandbox is followed.
            Self::Berth(_) => {}
            Self::Grouped(grouped) => grouped.follow(sandbox, container),
        }
    }

    /// Before a task is created: nothing of an earlier one of that name is to be taken for it.
    pub(super) fn forget_exit(self, request: &StartRequest) -> Result<(), Failure> {
        match self {
            Self::Berth(berth) => berth.forget_exit(request),
            // Containerd keeps it with the task.
            Self::Grouped(_) => Ok(()),
        }
    }

    /// Has the shim delete a task that containerd does not know of.
    pub(super) async fn forget_task(self, request: &StartRequest) {
        match self {
            Self::Berth(berth) => berth.forget_task(request).await,
            // Such a shim has none but those that containerd knows of.
            Self::Grouped(_) => {}
        }
    }

    /// Whether the sandbox has gone, as far as can be told.
    pub(super) async fn has_lost_sandbox(self, sandbox: &SandboxId) -> Result<bool, CallError> {
        match self {
            Self::Berth(berth) => berth.has_lost_sandbox(sandbox).await,
            // Files hold it.
            Self::Grouped(_) => Ok(false),
        }
    }
}
