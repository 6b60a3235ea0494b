//! Pods under shims of others, such as `io.containerd.runc.v2`, which have no sandbox of their own (decision 0006).
//!
//! The pod's namespaces are made here and held by files that they are bound to, as its network namespace is; each
//! container joins them by path. Containers tell which pod they belong to by an annotation that such shims group by. That
//! a container has ended is learnt from containerd.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use berth_core::{
    effect::{SandboxRequest, StartRequest},
    event::{Event, Failure, FailureKind, ObservedTask, Outcome, SandboxReport},
    id::{ContainerId, SandboxId},
    paths,
    spec::{IpcMode, NetworkMode, PidMode},
};
use berth_proto::runc::Options;
use containerd_client::services::v1::{GetContainerRequest, GetRequest};
use oci_spec::runtime::{LinuxNamespaceType, Mount, Spec};
use prost_types::Any;
use tokio::sync::mpsc;

use super::{
    failure::{config, failed},
    host::{Host, blocking},
    sandbox,
};
use crate::{
    chain::chain,
    clock,
    holder::{self, Holder},
    runtime::{CallError, Containerd, observed_process},
};

/// The runtime whose options are known here.
const RUNC: &str = "io.containerd.runc.v2";

/// Containers that are not followed by way of their shim. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Grouped(Arc<Mutex<BTreeMap<ContainerId, SandboxId>>>);

impl Grouped {
    /// Adds a container.
    pub fn add(&self, id: &ContainerId, sandbox: &SandboxId) {
        self.table().insert(id.clone(), sandbox.clone());
    }

    /// Forgets a container that is being removed.
    pub fn forget(&self, id: &ContainerId) {
        self.table().remove(id);
    }

    /// Reports each container that has ended.
    pub async fn look_at_all(&self, containerd: &Containerd, events: &mpsc::Sender<Event>) {
        let ids: Vec<ContainerId> = self.table().keys().cloned().collect();
        for id in ids {
            self.look_at(id.as_str(), containerd, events).await;
        }
    }

    /// Reports a container if it has ended and is one of these.
    pub async fn look_at(&self, id: &str, containerd: &Containerd, events: &mpsc::Sender<Event>) {
        let id = ContainerId::from_known(id);
        let Some(sandbox) = self.table().get(&id).cloned() else { return };
        match self.state(containerd, &id).await {
            Ok(ObservedTask::Exited(exit)) => {
                let report = SandboxReport::Exited { id, exit };
                // Fails only when the loop has ended.
                drop(events.send(Event::Sandbox { id: sandbox, report }).await);
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(error = chain(&error), "an ended container could not be looked at"),
        }
    }

    /// What containerd says of a container.
    pub(super) async fn state(
        &self,
        containerd: &Containerd,
        id: &ContainerId,
    ) -> Result<ObservedTask, CallError> {
        let get = GetRequest { container_id: id.to_string(), exec_id: String::new() };
        let mut client = containerd.tasks();
        let process = match containerd.call("look at task", id.as_str(), client.get(get)).await {
            Ok(answer) => answer.process.unwrap_or_default(),
            Err(error) if error.is_not_found() => return Ok(ObservedTask::Absent),
            Err(error) => return Err(error),
        };
        let get = GetContainerRequest { id: id.to_string() };
        let mut client = containerd.containers();
        let record = containerd.call("read container", id.as_str(), client.get(get)).await?.container;
        let created_at = record.and_then(|record| clock::of_proto(&record.created_at?));
        Ok(observed_process(&process, created_at))
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<ContainerId, SandboxId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the pod's namespaces and writes the sandbox's record, by which it is found again.
pub(super) async fn ensure_sandbox(
    host: &Arc<Host>,
    request: &SandboxRequest,
    runtime: &str,
) -> Result<Outcome, Failure> {
    let pod = &request.pod;
    if pod.pid == PidMode::Pod {
        return Err(config(format!(
            "share one process namespace: runtime {runtime} has no sandbox of its own to hold it; use {}",
            sandbox::BERTH
        )));
    }
    sandbox::store(host, &sandbox::record(request, runtime)).await?;
    let holder = Holder {
        dir: holder::dir(&host.node().paths.run, &request.id),
        hostname: (pod.network == NetworkMode::Pod).then(|| request.hostname.clone()),
        has_ipc: pod.ipc == IpcMode::Pod,
        netns: (pod.network == NetworkMode::Pod).then(|| PathBuf::from(paths::netns(&request.id))),
        sysctls: request.sysctls.clone(),
    };
    blocking(move || {
        holder::ensure(&holder).map_err(|error| failed(FailureKind::Transient, &error))?;
        Ok(Outcome::Sandbox { pid: 0 })
    })
    .await
}

/// Lets go of the pod's namespaces.
pub(super) async fn remove_sandbox(host: &Arc<Host>, id: &SandboxId) -> Result<(), Failure> {
    let dir = holder::dir(&host.node().paths.run, id);
    blocking(move || holder::remove(&dir).map_err(|error| failed(FailureKind::Transient, &error))).await
}

/// Puts the pod's own namespaces in the place of those that our shim would put there.
pub(super) fn adapt(host: &Host, request: &StartRequest, mut spec: Spec) -> Spec {
    let dir = holder::dir(&host.node().paths.run, &request.sandbox);
    if let Some(namespaces) = spec.linux_mut().as_mut().and_then(|linux| linux.namespaces_mut().as_mut()) {
        for namespace in namespaces.iter_mut().filter(|namespace| namespace.path().is_some()) {
            let path = match namespace.typ() {
                LinuxNamespaceType::Network => PathBuf::from(paths::netns(&request.sandbox)),
                LinuxNamespaceType::Ipc => dir.join(holder::IPC),
                LinuxNamespaceType::Uts => dir.join(holder::UTS),
                _ => continue,
            };
            namespace.set_path(Some(path));
        }
    }
    if let Some(mounts) = spec.mounts_mut() {
        let is_own_shm =
            |mount: &&mut Mount| mount.destination() == "/dev/shm" && mount.typ().as_deref() != Some("bind");
        for mount in mounts.iter_mut().filter(is_own_shm) {
            mount.set_typ(Some("bind".to_owned())).set_source(Some(dir.join(holder::SHM))).set_options(Some(
                ["rbind", "rprivate", "rw", "nosuid", "nodev", "noexec"].map(str::to_owned).into(),
            ));
        }
    }
    spec
}

/// Options of the runtime, where they are known.
pub(super) fn options(host: &Host, runtime: &str) -> Option<Any> {
    if runtime != RUNC {
        return None;
    }
    let systemd_cgroup = host.node().cgroups.driver == berth_core::config::CgroupDriver::Systemd;
    Some(berth_proto::pack(&Options {
        binary_name: host.oci.binary.clone(),
        systemd_cgroup,
        ..Options::default()
    }))
}

/// Where such a shim sends the output: to this program as a log writer, since those shims write no CRI logs themselves.
pub(super) fn log_uri(host: &Host, request: &StartRequest) -> Result<String, Failure> {
    let exe = std::env::current_exe().map_err(super::failure::local("find", "/proc/self/exe"))?;
    let logs = host.node().logs;
    Ok(format!(
        "binary://{}?log-writer={}&max-size={}&max-files={}",
        exe.display(),
        request.plan.log_path,
        logs.max_size_bytes,
        logs.max_files
    ))
}
