//! The runtime port on our own shim: the shim is the sandbox.
//!
//! The record comes first, so that whatever follows is found again. containerd's store of sandboxes has none of ours
//! (decision 0018): it keeps the shim when it restarts because that names a process of its sandbox, and a container joins
//! by the annotation that shims group by. The task of a container is asked of the shim itself, which knows best.

use std::sync::Arc;

use berth_core::{
    failure::Failure,
    id::{ContainerId, SandboxId},
    observation::ObservedTask,
    paths,
    pod::port::{sandbox::SandboxRequest, start::StartRequest},
    spec::{IpcMode, NetworkMode, PidMode, Stdin},
    users::HostIds,
};
use berth_proto::{
    pack,
    shim::{IdMapping, NamespaceMode, SandboxOptions},
};
use containerd_client::{
    services::v1::{
        Container,
        sandbox::{
            ControllerCreateRequest, ControllerShutdownRequest, ControllerStartRequest,
            ControllerStatusRequest, ControllerStatusResponse,
        },
    },
    types::{Sandbox, sandbox::Runtime},
};

use super::{kill, port::Stdio, records::Recorded};
use crate::{
    causes::with_causes,
    effects::{
        failure::{config, local},
        host::{Host, blocking},
    },
    runtime::{
        CallError,
        probe::{self, OciCommand},
    },
};

/// Which of containerd's sandbox controllers: the one that speaks to shims.
const SANDBOXER: &str = "shim";

/// `oom_score_adj` of a shim: killed after every container of its pod.
const SHIM_OOM_SCORE: i32 = -998;

/// What a ready sandbox calls itself.
const READY: &str = "SANDBOX_READY";

/// Bytes of a log line before it is split (`max_container_log_line_size` of containerd's CRI).
const LOG_LINE_MAX: u32 = 16384;

/// Pods in shims of our own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Berth<'a> {
    pub(super) host: &'a Arc<Host>,
    /// The OCI runtime that the handler names.
    pub(super) binary: Option<&'a str>,
}

impl Berth<'_> {
    /// Starts the pod's shim, or finds it: its process id.
    pub(super) async fn ensure_sandbox(
        self,
        request: &SandboxRequest,
        Recorded { record, is_new }: Recorded,
    ) -> Result<u32, Failure> {
        let Self { host, .. } = self;
        let id = &request.id;
        host.failpoint.reach("sandbox.record-created");
        let create = async || create(host, request, &record, self.oci().await?).await;
        if is_new && create().await? {
            host.members.begin(id);
        } else {
            let status = status(host, id).await?;
            if status.state == READY {
                return Ok(found(host, id, status.pid));
            }
            // Half made, or stopped by somebody: what is left of its shim goes, and it is made anew. One that serves has
            // containers that may run, and was forgotten by containerd: what follows from that is not decided here.
            kill::must_not_serve(host, id).await?;
            shut_down(host, id).await?;
            create().await?;
        }
        host.failpoint.reach("sandbox.created");
        let start = ControllerStartRequest { sandbox_id: id.to_string(), sandboxer: SANDBOXER.to_owned() };
        let mut client = host.containerd.sandboxes();
        let started = host.containerd.call("start sandbox", id.as_str(), client.start(start)).await?;
        host.failpoint.reach("sandbox.started");
        Ok(found(host, id, started.pid))
    }

    /// What the shim runs containers with.
    async fn oci(self) -> Result<OciCommand, Failure> {
        let Some(binary) = self.binary else { return Ok(self.host.oci.clone()) };
        let (binary, driver) = (binary.to_owned(), self.host.node().cgroups.driver);
        // A directory of `PATH` may not answer.
        blocking(move || probe::named(&binary, driver).map_err(|error| config(with_causes(&error)))).await
    }

    /// The shim writes the log itself, and takes input from whoever attaches.
    pub(super) fn stdio(self, request: &StartRequest) -> Stdio {
        let logs = self.host.node().logs;
        let (path, size, files) = (&request.plan.log_path, logs.max_size_bytes, logs.max_files);
        let input = match request.container.stdio.stdin {
            Stdin::Closed => "",
            Stdin::Open => "attach:",
            Stdin::Once => "attach:?once=true",
        };
        let output = format!("cri-log://{path}?max_size={size}&max_files={files}&max_line={LOG_LINE_MAX}");
        Stdio { input: input.to_owned(), output }
    }

    pub(super) async fn task(self, sandbox: &SandboxId, container: &ContainerId) -> Option<ObservedTask> {
        self.host.shims.task(sandbox, container).await
    }

    /// An earlier task of the same name may have ended.
    pub(super) fn forget_exit(self, request: &StartRequest) -> Result<(), Failure> {
        let (sandbox, id) = (&request.sandbox, &request.id);
        self.host.shims.forget_exit(sandbox, id).map_err(local("forget the end of", id.as_str()))
    }

    /// Has the shim delete a task that containerd does not know of.
    pub(super) async fn forget_task(self, request: &StartRequest) {
        if let Err(error) = self.host.shims.delete(&request.sandbox, &request.id).await {
            tracing::debug!(container = %request.id, error = with_causes(&error), "nothing deleted in the shim");
        }
    }

    pub(super) async fn has_lost_sandbox(self, sandbox: &SandboxId) -> Result<bool, CallError> {
        Ok(status(self.host, sandbox).await?.state != READY)
    }
}

/// Ends the pod's shim with everything in it, and removes its files. One that is gone already, or goes while it is asked, is
/// what is wanted.
pub(super) async fn remove_sandbox(host: &Arc<Host>, id: &SandboxId) -> Result<(), Failure> {
    shut_down(host, id).await?;
    host.failpoint.reach("sandbox.shut-down");
    host.shims.remove_files(id).map_err(local("remove the files of a shim at", host.shims.socket(id)))
}

fn found(host: &Host, id: &SandboxId, pid: u32) -> u32 {
    host.shims.follow(id);
    pid
}

/// Has containerd start the shim; tells whether there was none. One may be there though its record was gone.
async fn create(
    host: &Host,
    request: &SandboxRequest,
    record: &Container,
    oci: OciCommand,
) -> Result<bool, Failure> {
    let SandboxRequest { id, pod, .. } = request;
    let netns_path = match pod.network {
        NetworkMode::Pod => paths::netns(id),
        NetworkMode::Node => String::new(),
    };
    let create = ControllerCreateRequest {
        sandbox_id: id.to_string(),
        options: Some(pack(&options(host, request, oci))),
        netns_path,
        sandbox: Some(Sandbox {
            sandbox_id: id.to_string(),
            runtime: record.runtime.clone().map(|it| Runtime { name: it.name, options: it.options }),
            spec: record.spec.clone(),
            sandboxer: SANDBOXER.to_owned(),
            ..Sandbox::default()
        }),
        sandboxer: SANDBOXER.to_owned(),
        ..ControllerCreateRequest::default()
    };
    let mut client = host.containerd.sandboxes();
    match host.containerd.call("create sandbox", id.as_str(), client.create(create)).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_already_exists() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

async fn status(host: &Host, id: &SandboxId) -> Result<ControllerStatusResponse, CallError> {
    let request = ControllerStatusRequest {
        sandbox_id: id.to_string(),
        verbose: false,
        sandboxer: SANDBOXER.to_owned(),
    };
    let mut client = host.containerd.sandboxes();
    match host.containerd.call("look at sandbox", id.as_str(), client.status(request)).await {
        // A shim that has just died: containerd has not noticed yet.
        Err(error) if error.is_shim_gone() => Ok(ControllerStatusResponse::default()),
        result => result,
    }
}

/// Ends the shim. It kills what still runs in it: nothing has to be stopped before.
async fn shut_down(host: &Host, id: &SandboxId) -> Result<(), Failure> {
    let request = ControllerShutdownRequest { sandbox_id: id.to_string(), sandboxer: SANDBOXER.to_owned() };
    let mut client = host.containerd.sandboxes();
    match host.containerd.call("shut down sandbox", id.as_str(), client.shutdown(request)).await {
        Ok(_) => Ok(()),
        Err(error) if error.is_shim_gone() => kill::end_forgotten(host, id).await,
        Err(error) => Err(kill::failure(host, id, error).await),
    }
}

fn options(host: &Host, request: &SandboxRequest, oci: OciCommand) -> SandboxOptions {
    let SandboxRequest { id, pod, hostname, sysctls, ids, .. } = request;
    let map = |ids: HostIds| IdMapping { container_id: 0, host_id: ids.first, size: ids.count };
    let maps: Vec<IdMapping> = ids.map(map).into_iter().collect();
    let ipc = match pod.ipc {
        IpcMode::Pod => NamespaceMode::Pod,
        IpcMode::Node => NamespaceMode::Node,
    };
    let uts = match pod.network {
        NetworkMode::Pod => NamespaceMode::Pod,
        NetworkMode::Node => NamespaceMode::Node,
    };
    let pid = match pod.pid {
        PidMode::Container => NamespaceMode::Container,
        PidMode::Pod => NamespaceMode::Pod,
        PidMode::Node => NamespaceMode::Node,
    };
    SandboxOptions {
        agent_socket: host.shims.socket(id).display().to_string(),
        hostname: hostname.clone(),
        ipc: ipc.into(),
        uts: uts.into(),
        pid: pid.into(),
        sysctls: sysctls.iter().map(|sysctl| (sysctl.name.clone(), sysctl.value.clone())).collect(),
        runtime_binary: oci.binary,
        runtime_args: oci.args,
        oom_score_adj: Some(SHIM_OOM_SCORE.max(host.node().oom_score_floor)),
        shm_size: 0,
        uid_mappings: maps.clone(),
        gid_mappings: maps,
    }
}
