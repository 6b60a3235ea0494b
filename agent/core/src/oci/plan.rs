//! Everything of a container's start that is data.

use std::{collections::BTreeMap, net::IpAddr};

use oci_spec::runtime::{Root, Spec};

use super::{
    Accounts, AppArmorChoice, ConfigError, ObjectValues, annotations, app_armor, capabilities, linux, mounts,
    process, user,
};
use crate::{
    config::NodeConfig,
    derived::{env::Budget, hostname},
    id::{Attempt, ContainerId, SandboxId, VolumeName},
    image::ImageInfo,
    oci::HostFile,
    paths,
    selinux::{self, Relabel},
    spec::{Container, MountPropagation, NetworkMode, Pod, VolumeDevice},
    status::NetworkStatus,
    users::HostIds,
};

/// Version of the spec that is written: the newest that every runtime of the field takes (crun 1.8.1 refuses more).
pub const OCI_VERSION: &str = "1.1.0";
/// The root file system, below the bundle.
const ROOTFS: &str = "rootfs";

/// What a container's spec depends on.
#[derive(Debug, Clone, Copy)]
pub struct ContainerInputs<'a> {
    /// The node.
    pub node: &'a NodeConfig,
    /// The pod.
    pub pod: &'a Pod,
    /// Its container.
    pub container: &'a Container,
    /// Which run.
    pub attempt: Attempt,
    /// Id of the run.
    pub id: &'a ContainerId,
    /// The sandbox it joins.
    pub sandbox: &'a SandboxId,
    /// Which sandbox of the pod that is.
    pub sandbox_attempt: Attempt,
    /// The image.
    pub image: &'a ImageInfo,
    /// Account files of the root file system.
    pub accounts: &'a Accounts,
    /// Process id of the container whose process namespace it joins in place of one of its own.
    pub target: Option<u32>,
    /// Ids of the node that are the pod's, where it has a user namespace of its own.
    pub ids: Option<HostIds>,
    /// SELinux level of the pod's own, where it has one.
    pub level: Option<&'a str>,
    /// Addresses of the pod, once wired.
    pub network: Option<&'a NetworkStatus>,
    /// Where each volume of the pod is on the node.
    pub volumes: &'a BTreeMap<VolumeName, String>,
    /// Whether the sandbox's runtime makes mounts read-only with all that is mounted below them.
    pub recursive_read_only: bool,
    /// What objects and services give its environment. Without them, what depends on them is left out of the plan.
    pub values: Option<&'a ObjectValues>,
}

/// A container's OCI spec and what must be on the node before it.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerPlan {
    /// The OCI spec, to be completed by [`oci::complete`](crate::oci::complete) before it is used.
    pub spec: Spec,
    /// Absolute path of the seccomp profile to complete the spec with.
    pub seccomp_file: Option<String>,
    /// AppArmor profile to complete the spec with, once it is loaded.
    pub app_armor: Option<AppArmorChoice>,
    /// SELinux label of its process where that runs in a virtual machine.
    pub vm_label: Option<String>,
    /// Files of the pod to label, once all of them are there.
    pub relabel: Option<Relabel>,
    /// Devices of the node to complete the spec with.
    pub host_devices: HostDevices,
    /// Volumes that are devices, to complete the spec with.
    pub devices: Vec<BlockVolume>,
    /// Files to write.
    pub files: Vec<HostFile>,
    /// Directories to make for the image's `VOLUME`s, with what the image has there.
    pub image_volumes: Vec<ImageVolume>,
    /// Parts of volumes to open safely and bind below the pod's directory.
    pub sub_paths: Vec<SubPathBind>,
    /// Sources of mounts to look at, once the parts of volumes are bound.
    pub mount_sources: Vec<MountSource>,
    /// Absolute path of the log file.
    pub log_path: String,
    /// Labels of the containerd container.
    pub labels: BTreeMap<String, String>,
    /// What the pod asks for and does not get, and runs without.
    pub warnings: Vec<String>,
}

/// Which of the node's devices a container sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostDevices {
    /// Only those that every container has.
    None,
    /// All: the container is privileged.
    All,
}

/// A volume that is a block device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockVolume {
    /// The device on the node.
    pub host: String,
    /// Where it is in the container.
    pub path: String,
    /// Whether it is not written.
    pub read_only: bool,
}

/// A `VOLUME` of an image: a directory of its own per run, so that data does not go to the writable layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageVolume {
    /// The directory on the node: the source of the mount in the OCI spec.
    pub target: String,
    /// Path in the root file system, absolute and without `..`, to be opened beneath it: owner, mode and content are
    /// copied when it is there, and no link of the image may lead out (CVE-2022-23648).
    pub image_path: String,
}

/// A subPath, bound by descriptor so that nothing in the volume can lead it astray.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubPathBind {
    /// Name of the volume, for messages that tell nothing of the node.
    pub mount: VolumeName,
    /// Root of the volume on the node.
    pub volume: String,
    /// What it is a part of.
    pub of: PartOf,
    /// Path below it, as the pod gave it.
    pub sub_path: String,
    /// Where to bind it: the source of the mount in the OCI spec.
    pub target: String,
}

/// What a subPath is a part of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartOf {
    /// A volume that may be written: where nothing is, a directory is made.
    Volume,
    /// An image, which has a directory there or is refused, as by containerd (`ensureImageSubPath` of
    /// `internal/cri/server/container_image_mount.go`). With the path as it is written: expanded it may be secret.
    Image(String),
}

/// A path of the node that a container mounts: a directory is made when nothing is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountSource {
    /// Absolute path.
    pub path: String,
    /// How mounts are to travel: the mount that the path is on must let them.
    pub propagation: MountPropagation,
}

/// Addresses of a pod: the node's when it shares the node's network.
pub(super) fn pod_ips<'a>(
    node: &'a NodeConfig,
    pod: &Pod,
    network: Option<&'a NetworkStatus>,
) -> &'a [IpAddr] {
    match pod.network {
        NetworkMode::Node => &node.ips,
        NetworkMode::Pod => network.map_or(&[], |network| &network.ips),
    }
}

impl ContainerInputs<'_> {
    /// Addresses of the pod.
    pub(super) fn pod_ips(&self) -> &[IpAddr] {
        pod_ips(self.node, self.pod, self.network)
    }

    /// The pod as the kubelet's messages show it.
    pub(super) fn pod_text(&self) -> String {
        format!("{}_{}({})", self.pod.name.name, self.pod.name.namespace, self.pod.uid)
    }
}

/// The spec of one run of a container and what it needs on the node.
///
/// # Errors
///
/// When the pod or the image asks for what cannot or must not be given.
pub fn container_plan(inputs: &ContainerInputs<'_>) -> Result<ContainerPlan, ConfigError> {
    let ContainerInputs { node, pod, container, .. } = *inputs;
    let names = hostname::names(pod, node)?;
    let user = user::resolve(inputs)?;
    let mut budget = Budget::whole();
    let env = process::environment(inputs, &mut budget)?;
    let maps = inputs.ids.map(linux::maps).transpose()?;
    let labels = selinux::labels(node.se_linux.as_ref(), pod, container, inputs.level)?;
    let process = process::process(inputs, &env, &mut budget, (user, labels.process))?;
    let mounts = mounts::mounts(inputs, &env, &mut budget, &names, maps.as_deref())?;
    let seccomp = linux::seccomp_choice(inputs);

    let mut root = Root::default();
    root.set_path(ROOTFS.into()).set_readonly(Some(container.security.read_only_root));
    let mut spec = Spec::default();
    spec.set_version(OCI_VERSION.into())
        .set_process(Some(process))
        .set_root(Some(root))
        .set_hostname(None)
        .set_annotations(Some(annotations::annotations(inputs).into_iter().collect()))
        .set_linux(Some(linux::linux(inputs, &seccomp, maps.as_deref(), mounts.root_propagation)?))
        .set_mounts(Some(mounts.mounts));
    if let Some(linux) = spec.linux_mut() {
        linux.set_mount_label(labels.mount.clone());
    }
    Ok(ContainerPlan {
        spec,
        seccomp_file: seccomp.file(),
        app_armor: app_armor::choice(inputs)?,
        vm_label: labels.vm_process,
        relabel: labels.mount.map(|label| Relabel { label, places: mounts.labelled }),
        host_devices: if container.security.privileged { HostDevices::All } else { HostDevices::None },
        devices: devices(inputs)?,
        files: mounts.files,
        image_volumes: mounts.image_volumes,
        sub_paths: mounts.sub_paths,
        mount_sources: mounts.sources,
        log_path: paths::container_log(&node.paths, &pod.name, &pod.uid, &container.name, inputs.attempt),
        labels: annotations::labels(inputs),
        warnings: warnings(inputs),
    })
}

/// Source: `makeBlockVolumes` of `pkg/kubelet/kubelet_pods.go`.
fn devices(inputs: &ContainerInputs<'_>) -> Result<Vec<BlockVolume>, ConfigError> {
    let device = |device: &VolumeDevice| {
        let host = inputs.volumes.get(&device.volume).ok_or_else(|| ConfigError::NoSuchDevice {
            volume: device.volume.to_string(),
            container: inputs.container.name.to_string(),
        })?;
        let source = inputs.pod.volume(&device.volume).map(|volume| &volume.source);
        let read_only = source.is_some_and(mounts::is_to_read);
        Ok(BlockVolume { host: host.clone(), path: mounts::mount_point(&device.path)?, read_only })
    };
    inputs.container.devices.iter().map(device).collect()
}

fn warnings(inputs: &ContainerInputs<'_>) -> Vec<String> {
    let unknown = capabilities::unknown_to_kernel(inputs.node, &inputs.container.security);
    unknown.iter().map(|one| format!("ignoring capability CAP_{one}: the kernel does not have it")).collect()
}
