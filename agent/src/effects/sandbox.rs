//! Sandboxes: a record in containerd's store, then a shim that is the pod.
//!
//! The record comes first: containerd reaps, when it restarts, a shim whose sandbox it does not know.

use std::{collections::HashMap, sync::Arc};

use berth_core::{
    effect::SandboxRequest,
    event::{Failure, Outcome},
    id::{PodUid, SandboxId},
    paths,
    spec::{IpcMode, NetworkMode, PidMode, Pod},
};
use berth_proto::{
    pack,
    shim::{NamespaceMode, SandboxOptions},
};
use containerd_client::{
    services::v1::{
        ListContainersRequest,
        sandbox::{
            ControllerCreateRequest, ControllerShutdownRequest, ControllerStartRequest,
            ControllerStatusRequest, ControllerStatusResponse, ControllerStopRequest, StoreCreateRequest,
            StoreDeleteRequest,
        },
    },
    types::{Sandbox, sandbox::Runtime},
};
use prost_types::Any;

use super::{container, failure::config, grouped, host::Host, host_files, hung};
use crate::runtime::{CallError, labels};

/// The runtime that is ours.
pub const BERTH: &str = "io.containerd.berth.v1";

/// Which of containerd's sandbox controllers: the one that speaks to shims.
const SANDBOXER: &str = "shim";

/// Type URL of an OCI spec as JSON (containerd, `client/client.go`).
pub(super) const SPEC_URL: &str = "types.containerd.io/opencontainers/runtime-spec/1/Spec";

/// The version of the OCI runtime specification that is written: the newest that Debian's crun 1.8 takes.
const OCI_VERSION: &str = "1.1.0";

/// `oom_score_adj` of a shim: killed after every container of its pod.
const SHIM_OOM_SCORE: i32 = -998;

/// Seconds that a shim gets to stop its containers. They have had their grace period before.
const STOP_SECONDS: u32 = 10;

/// What a ready sandbox calls itself.
const READY: &str = "SANDBOX_READY";

/// The containerd runtime of a pod.
pub(super) fn runtime_of<'a>(host: &'a Host, pod: &Pod) -> Result<&'a str, Failure> {
    let handler = pod.runtime.as_deref().unwrap_or_default();
    match host.config.runtime_handlers.get(handler) {
        Some(runtime) => Ok(runtime),
        None if handler.is_empty() => Ok(BERTH),
        None => Err(config(format!(
            "run the pod with runtime handler {handler:?}: this node has none of that name"
        ))),
    }
}

/// Starts the pod's shim, or finds it.
pub(super) async fn ensure(host: &Arc<Host>, request: &SandboxRequest) -> Result<Outcome, Failure> {
    let runtime = runtime_of(host, &request.pod)?;
    if runtime != BERTH {
        return grouped::ensure_sandbox(host, request, runtime).await;
    }
    let id = &request.id;
    let sandbox = record(request, runtime);
    let is_new = store(host, &sandbox).await?;
    host.failpoint.reach("sandbox.store-created");
    if !is_new {
        let status = status(host, id).await?;
        if status.state == READY {
            return Ok(found(host, id, status.pid));
        }
        // Half made, or stopped by somebody: what is left of its shim goes, and it is made anew.
        shut_down(host, id).await?;
    }
    create(host, request, sandbox).await?;
    host.failpoint.reach("sandbox.created");
    let start = ControllerStartRequest { sandbox_id: id.to_string(), sandboxer: SANDBOXER.to_owned() };
    let mut client = host.containerd.sandboxes();
    let started = host.containerd.call("start sandbox", id.as_str(), client.start(start)).await?;
    host.failpoint.reach("sandbox.started");
    Ok(found(host, id, started.pid))
}

/// Stops the pod's shim with everything in it, and forgets it.
pub(super) async fn remove(host: &Arc<Host>, pod: &PodUid, id: &SandboxId) -> Result<Outcome, Failure> {
    host.shims.forget(id);
    for container in members(host, pod, id).await? {
        container::remove(host, &container).await?;
    }
    grouped::remove_sandbox(host, id).await?;
    hung::refuse(host, id).await?;
    let stop = ControllerStopRequest {
        sandbox_id: id.to_string(),
        timeout_secs: STOP_SECONDS,
        sandboxer: SANDBOXER.to_owned(),
    };
    let mut client = host.containerd.sandboxes();
    match host.containerd.call("stop sandbox", id.as_str(), client.stop(stop)).await {
        Err(error) if !error.is_shim_gone() => return Err(hung::failure(host, id, error).await),
        Ok(_) | Err(_) => {}
    }
    shut_down(host, id).await?;
    // A shim that was killed leaves it.
    host_files::remove_file(host.shims.socket(id))?;
    let delete = StoreDeleteRequest { sandbox_id: id.to_string() };
    let mut client = host.containerd.sandbox_store();
    match host.containerd.call("delete sandbox", id.as_str(), client.delete(delete)).await {
        Err(error) if !error.is_not_found() => Err(error.into()),
        Ok(_) | Err(_) => Ok(Outcome::Done),
    }
}

/// Whether a sandbox can take containers.
pub(super) async fn is_ready(host: &Host, id: &SandboxId) -> Result<bool, CallError> {
    Ok(status(host, id).await?.state == READY)
}

fn found(host: &Host, id: &SandboxId, pid: u32) -> Outcome {
    host.shims.follow(id);
    Outcome::Sandbox { pid }
}

/// Writes the record; tells whether there was none.
pub(super) async fn store(host: &Host, sandbox: &Sandbox) -> Result<bool, Failure> {
    let create = StoreCreateRequest { sandbox: Some(sandbox.clone()) };
    let mut client = host.containerd.sandbox_store();
    match host.containerd.call("record sandbox", &sandbox.sandbox_id, client.create(create)).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_already_exists() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

async fn create(host: &Host, request: &SandboxRequest, sandbox: Sandbox) -> Result<(), Failure> {
    let SandboxRequest { id, pod, .. } = request;
    let netns_path = match pod.network {
        NetworkMode::Pod => paths::netns(id),
        NetworkMode::Node => String::new(),
    };
    let create = ControllerCreateRequest {
        sandbox_id: id.to_string(),
        options: Some(pack(&options(host, request))),
        netns_path,
        sandbox: Some(sandbox),
        sandboxer: SANDBOXER.to_owned(),
        ..ControllerCreateRequest::default()
    };
    let mut client = host.containerd.sandboxes();
    host.containerd.call("create sandbox", id.as_str(), client.create(create)).await?;
    Ok(())
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

/// Ends the shim. One that is gone already, or goes while it is asked, is what is wanted.
async fn shut_down(host: &Host, id: &SandboxId) -> Result<(), Failure> {
    let request = ControllerShutdownRequest { sandbox_id: id.to_string(), sandboxer: SANDBOXER.to_owned() };
    let mut client = host.containerd.sandboxes();
    match host.containerd.call("shut down sandbox", id.as_str(), client.shutdown(request)).await {
        Ok(_) => Ok(()),
        Err(error) if error.is_shim_gone() => hung::end_forgotten(id).await,
        Err(error) => Err(hung::failure(host, id, error).await),
    }
}

/// Containers that containerd has for a sandbox.
async fn members(
    host: &Host,
    pod: &PodUid,
    id: &SandboxId,
) -> Result<Vec<berth_core::id::ContainerId>, Failure> {
    let filter = format!("labels.{:?}=={:?}", labels::POD_UID, pod.as_str());
    let request = ListContainersRequest { filters: vec![filter] };
    let mut client = host.containerd.containers();
    let list = host.containerd.call("list containers of sandbox", id.as_str(), client.list(request)).await?;
    let of_sandbox = |sandbox: &str| sandbox == id.as_str() || sandbox.is_empty();
    let members = list
        .containers
        .into_iter()
        .filter(|it| of_sandbox(&it.sandbox) && it.labels.contains_key(labels::ATTEMPT));
    Ok(members.map(|it| berth_core::id::ContainerId::from_known(it.id)).collect())
}

/// The record of a sandbox: found again by its labels.
pub(super) fn record(request: &SandboxRequest, runtime: &str) -> Sandbox {
    let SandboxRequest { id, attempt, pod, .. } = request;
    let labels = [
        (labels::POD_NAME, pod.name.name.clone()),
        (labels::POD_NAMESPACE, pod.name.namespace.clone()),
        (labels::POD_UID, pod.uid.to_string()),
        (labels::KIND, "sandbox".to_owned()),
        (labels::ATTEMPT, attempt.to_string()),
    ];
    let spec = serde_json::json!({
        "ociVersion": OCI_VERSION,
        "annotations": {
            "io.kubernetes.cri.container-type": "sandbox",
            "io.kubernetes.cri.sandbox-id": id.as_str(),
            "io.kubernetes.cri.sandbox-name": pod.name.name,
            "io.kubernetes.cri.sandbox-namespace": pod.name.namespace,
            "io.kubernetes.cri.sandbox-uid": pod.uid.as_str(),
        },
    });
    Sandbox {
        sandbox_id: id.to_string(),
        runtime: Some(Runtime { name: runtime.to_owned(), options: None }),
        spec: Some(Any { type_url: SPEC_URL.to_owned(), value: spec.to_string().into_bytes() }),
        labels: labels.map(|(name, value)| (name.to_owned(), value)).into_iter().collect::<HashMap<_, _>>(),
        sandboxer: SANDBOXER.to_owned(),
        ..Sandbox::default()
    }
}

fn options(host: &Host, request: &SandboxRequest) -> SandboxOptions {
    let SandboxRequest { id, pod, hostname, sysctls, .. } = request;
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
        runtime_binary: host.oci.binary.clone(),
        runtime_args: host.oci.args.clone(),
        oom_score_adj: Some(SHIM_OOM_SCORE.max(host.node().oom_score_floor)),
        shm_size: 0,
        uid_mappings: Vec::new(),
        gid_mappings: Vec::new(),
    }
}
