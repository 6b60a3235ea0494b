//! The Linux part of the spec: namespaces, cgroup, what of the kernel is hidden.

use oci_spec::runtime::{Linux, LinuxIdMapping, LinuxIdMappingBuilder, LinuxNamespace, LinuxNamespaceType};

use super::{ConfigError, ContainerInputs, capabilities, resources, seccomp};
use crate::{
    cgroup::names,
    config::CgroupVersion,
    spec::{IpcMode, NetworkMode, PidMode, ProcMount, Seccomp, UserMode},
    users::HostIds,
};

/// Source: `pkg/securitycontext/util.go` `defaultMaskedPaths`.
const MASKED: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];

/// Source: `pkg/securitycontext/util.go` `defaultReadonlyPaths`.
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Which filter a container gets.
pub(super) enum SeccompChoice {
    None,
    Default,
    /// A file that is read when the container starts.
    File(String),
}

impl SeccompChoice {
    pub(super) fn file(&self) -> Option<String> {
        match self {
            Self::File(path) => Some(path.clone()),
            Self::None | Self::Default => None,
        }
    }
}

/// The container's profile, else the pod's, else the node's default; a privileged container has none.
pub(super) fn seccomp_choice(inputs: &ContainerInputs<'_>) -> SeccompChoice {
    let (own, pod) = (&inputs.container.security, &inputs.pod.security);
    if own.privileged {
        return SeccompChoice::None;
    }
    match own.seccomp.as_ref().or(pod.seccomp.as_ref()) {
        Some(Seccomp::Unconfined) => SeccompChoice::None,
        Some(Seccomp::RuntimeDefault) => SeccompChoice::Default,
        Some(Seccomp::Localhost(file)) => {
            SeccompChoice::File(format!("{}/{file}", inputs.node.paths.seccomp))
        }
        None if inputs.node.seccomp_default => SeccompChoice::Default,
        None => SeccompChoice::None,
    }
}

pub(super) fn linux(
    inputs: &ContainerInputs<'_>,
    seccomp: &SeccompChoice,
    maps: Option<&[LinuxIdMapping]>,
    root_propagation: Option<&'static str>,
) -> Result<Linux, ConfigError> {
    let ContainerInputs { node, pod, container, id, .. } = *inputs;
    let hidden = match (container.security.privileged, container.security.proc_mount) {
        (false, ProcMount::Default) => true,
        (true, _) | (false, ProcMount::Unmasked) => false,
    };
    let (masked, read_only) = if hidden { hidden_paths(inputs) } else { (Vec::new(), Vec::new()) };
    let mut linux = Linux::default();
    linux
        .set_cgroups_path(Some(names::oci_path(&node.cgroups, pod.qos, &pod.uid, id).into()))
        .set_resources(Some(resources::resources(inputs)))
        .set_namespaces(Some(namespaces(inputs)))
        .set_masked_paths(Some(masked))
        .set_readonly_paths(Some(read_only))
        .set_uid_mappings(maps.map(<[LinuxIdMapping]>::to_vec))
        .set_gid_mappings(maps.map(<[LinuxIdMapping]>::to_vec))
        .set_rootfs_propagation(root_propagation.map(str::to_owned))
        .set_seccomp(match seccomp {
            SeccompChoice::None => None,
            SeccompChoice::Default => {
                let held = capabilities::effective(node, &container.security)?;
                Some(seccomp::default_profile(seccomp::Machine::THIS, &held)?)
            }
            SeccompChoice::File(_) => Some(seccomp::deny_all()),
        });
    Ok(linux)
}

/// Ids of the pod and those of the node that they are.
pub(super) fn maps(ids: HostIds) -> Result<Vec<LinuxIdMapping>, ConfigError> {
    let map = LinuxIdMappingBuilder::default().container_id(0_u32).host_id(ids.first).size(ids.count);
    Ok(vec![map.build().map_err(|error| ConfigError::Maps(error.to_string()))?])
}

/// What is masked and what is read-only.
fn hidden_paths(inputs: &ContainerInputs<'_>) -> (Vec<String>, Vec<String>) {
    let owned = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>();
    let mut masked = owned(&MASKED);
    masked.extend_from_slice(&inputs.node.thermal_counters);
    (masked, owned(&READ_ONLY))
}

/// Namespaces of the pod are paths to be replaced by the shim, which holds them; without a path the runtime makes one for
/// the container; no entry is the node's own.
fn namespaces(inputs: &ContainerInputs<'_>) -> Vec<LinuxNamespace> {
    const OF_POD: [(LinuxNamespaceType, &str); 5] = [
        (LinuxNamespaceType::User, "/proc/1/ns/user"),
        (LinuxNamespaceType::Network, "/proc/1/ns/net"),
        (LinuxNamespaceType::Ipc, "/proc/1/ns/ipc"),
        (LinuxNamespaceType::Uts, "/proc/1/ns/uts"),
        (LinuxNamespaceType::Pid, "/proc/1/ns/pid"),
    ];
    let pod = inputs.pod;
    let own_network = matches!(pod.network, NetworkMode::Pod);
    let of_pod = |kind: LinuxNamespaceType| match kind {
        // The node's network goes with the node's host name.
        LinuxNamespaceType::Network | LinuxNamespaceType::Uts => own_network,
        LinuxNamespaceType::Ipc => matches!(pod.ipc, IpcMode::Pod),
        LinuxNamespaceType::Pid => matches!(pod.pid, PidMode::Pod),
        LinuxNamespaceType::User => matches!(pod.users, UserMode::Pod),
        LinuxNamespaceType::Mount | LinuxNamespaceType::Cgroup | LinuxNamespaceType::Time => false,
    };
    let shared = OF_POD.into_iter().filter(|(kind, _)| of_pod(*kind)).map(|(kind, path)| {
        let mut namespace = LinuxNamespace::default();
        namespace.set_typ(kind).set_path(Some(path.into()));
        namespace
    });
    let cgroup = match inputs.node.cgroups.version {
        // A privileged container sees the node's tree; version 1 never had a namespace here.
        CgroupVersion::V2 if !inputs.container.security.privileged => Some(LinuxNamespaceType::Cgroup),
        CgroupVersion::V1 | CgroupVersion::V2 => None,
    };
    let pid = matches!(pod.pid, PidMode::Container).then_some(LinuxNamespaceType::Pid);
    let own = std::iter::once(LinuxNamespaceType::Mount).chain(pid).chain(cgroup).map(|kind| {
        let target = inputs.target.filter(|_| kind == LinuxNamespaceType::Pid);
        let mut namespace = LinuxNamespace::default();
        namespace.set_typ(kind).set_path(target.map(|pid| format!("/proc/{pid}/ns/pid").into()));
        namespace
    });
    shared.chain(own).collect()
}
