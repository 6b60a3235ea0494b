//! The runtime port on shims of others, such as `io.containerd.runc.v2`, which have no sandbox of their own (decision
//! 0006).
//!
//! The pod's namespaces are made here and held by files that they are bound to, as its network namespace is; each
//! container joins them by path. Containers tell which pod they belong to by an annotation that such shims group by. That
//! a container has ended is learnt from containerd.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use berth_core::{
    config::CgroupDriver,
    failure::{Failure, FailureKind},
    id::{ContainerId, SandboxId},
    observation::ObservedTask,
    paths,
    pod::port::{sandbox::SandboxRequest, start::StartRequest},
    spec::{IpcMode, NetworkMode, PidMode},
};
use berth_proto::{runc::Options, runtimeoptions};
use oci_spec::runtime::{LinuxNamespaceType, Mount, Spec};
use prost_types::Any;

use super::port::Stdio;
use crate::{
    causes::with_causes,
    config::{BERTH_RUNTIME, RuntimeOptions},
    effects::{
        failure::{config, failed},
        host::{Host, blocking},
    },
    holder::{self, Holder},
    runtime::probe,
};

/// Pods under a shim of others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grouped<'a> {
    pub(super) host: &'a Arc<Host>,
    pub(super) name: &'a str,
    /// The shim, where it is not found by that name.
    pub(super) path: Option<&'a Path>,
    pub(super) options: &'a RuntimeOptions,
}

impl Grouped<'_> {
    /// Whether there is a way to give the pod what it asks for.
    pub(super) fn accepts(self, request: &SandboxRequest) -> Result<(), Failure> {
        if request.pod.pid == PidMode::Pod {
            return Err(config(format!(
                "share one process namespace: runtime {} has no sandbox of its own to hold it; use {BERTH_RUNTIME}",
                self.name
            )));
        }
        // Source: `GetOrCreateUserNamespaceMappings` of `pkg/kubelet/userns/userns_manager.go`.
        if request.ids.is_some() {
            let handler = request.pod.runtime.as_ref();
            let who = handler.map_or("runtime".to_owned(), |name| format!("RuntimeClass handler {name:?}"));
            return Err(config(format!(
                "can't set `spec.hostUsers: false`, {who} does not support user namespaces"
            )));
        }
        Ok(())
    }

    /// Makes the pod's namespaces, which the sandbox's record is there to find again.
    pub(super) async fn ensure_sandbox(self, request: &SandboxRequest) -> Result<(), Failure> {
        let pod = &request.pod;
        self.host.failpoint.reach("grouped.recorded");
        let holder = Holder {
            dir: self.dir(&request.id),
            hostname: (pod.network == NetworkMode::Pod).then(|| request.hostname.clone()),
            has_ipc: pod.ipc == IpcMode::Pod,
            netns: (pod.network == NetworkMode::Pod).then(|| PathBuf::from(paths::netns(&request.id))),
            sysctls: request.sysctls.clone(),
        };
        let held =
            blocking(move || holder::ensure(&holder).map_err(|error| failed(FailureKind::Transient, &error)))
                .await;
        self.host.failpoint.reach("grouped.held");
        held
    }

    /// Puts the pod's own namespaces in the place of those that our shim would put there.
    pub(super) fn adapt(self, request: &StartRequest, mut spec: Spec) -> Spec {
        let dir = self.dir(&request.sandbox);
        let linux = spec.linux_mut().as_mut();
        if let Some(namespaces) = linux.and_then(|linux| linux.namespaces_mut().as_mut()) {
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
            for mount in mounts.iter_mut().filter(|mount| is_own_shm(mount)) {
                let options = ["rbind", "rprivate", "rw", "nosuid", "nodev", "noexec"].map(str::to_owned);
                mount
                    .set_typ(Some("bind".to_owned()))
                    .set_source(Some(dir.join(holder::SHM)))
                    .set_options(Some(options.into()));
            }
        }
        spec
    }

    /// Where the pod's `/dev/shm` is held for a container that mounts it.
    pub(super) fn own_shm(self, request: &StartRequest) -> Option<PathBuf> {
        let has_it = request.plan.spec.mounts().iter().flatten().any(is_own_shm);
        has_it.then(|| self.dir(&request.sandbox).join(holder::SHM))
    }

    /// By a label, since containerd refuses containers in sandboxes that have no controller.
    pub(super) fn options(self) -> Result<Option<Any>, Failure> {
        let driver = self.host.node().cgroups.driver;
        Ok(match self.options {
            RuntimeOptions::None => None,
            RuntimeOptions::Runc { binary } => {
                let oci = match binary {
                    None => self.host.oci.clone(),
                    Some(binary) => {
                        probe::named(binary, driver).map_err(|error| config(with_causes(&error)))?
                    }
                };
                Some(berth_proto::pack(&Options {
                    binary_name: oci.binary,
                    systemd_cgroup: driver == CgroupDriver::Systemd,
                    ..Options::default()
                }))
            }
            RuntimeOptions::Generic { type_url, config_path, config_body } => {
                Some(berth_proto::pack(&runtimeoptions::Options {
                    type_url: type_url.clone(),
                    config_path: config_path.clone(),
                    config_body: config_body.clone().into_bytes(),
                }))
            }
        })
    }

    /// The output goes to this program as a log writer, since such shims write no CRI logs themselves. Nobody could attach
    /// to the input.
    pub(super) fn stdio(self, request: &StartRequest) -> Stdio {
        let logs = self.host.node().logs;
        let output = format!(
            "binary://{}?log-writer={}&max-size={}&max-files={}",
            self.host.program.display(),
            request.plan.log_path,
            logs.max_size_bytes,
            logs.max_files
        );
        Stdio { input: String::new(), output }
    }

    /// What containerd says of the container.
    pub(super) async fn task(self, container: &ContainerId) -> Result<ObservedTask, Failure> {
        Ok(self.host.grouped.task(&self.host.containerd, container).await?)
    }

    /// Its end is looked for from now on.
    pub(super) fn follow(self, sandbox: &SandboxId, container: &ContainerId) {
        self.host.grouped.begun(container, sandbox);
    }

    fn dir(self, sandbox: &SandboxId) -> PathBuf {
        holder::dir(&self.host.node().paths.run, sandbox)
    }
}

fn is_own_shm(mount: &Mount) -> bool {
    mount.destination() == "/dev/shm" && mount.typ().as_deref() != Some("bind")
}

/// Lets go of the pod's namespaces, if it has any that are held here.
pub(super) async fn remove_sandbox(host: &Arc<Host>, id: &SandboxId) -> Result<(), Failure> {
    let dir = holder::dir(&host.node().paths.run, id);
    blocking(move || holder::remove(&dir).map_err(|error| failed(FailureKind::Transient, &error))).await
}
