//! Files and directories of a pod on the node.
//!
//! Where the kubelet has a place for something it is used (`pkg/kubelet/kubelet_getters.go`,
//! `pkg/kubelet/kuberuntime/helpers.go`): other tools look there. Every name that a pod can choose goes through
//! [`component`], so no path can leave its parent whatever a name contains.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use crate::{
    config::Paths,
    id::{Attempt, ContainerId, ContainerName, PodName, PodUid, SandboxId, VolumeName},
    spec::VolumeSource,
};

/// Longest file name (`NAME_MAX`).
const NAME_BYTES_MAX: usize = 255;
/// Digits of an id in a socket's name: 80 bits, and a path far below the 108 bytes of `sun_path`.
const SOCKET_DIGITS: usize = 20;

/// Name of the mark in a pod's directory, beside what the kubelet has there.
pub const POD_MARK: &str = "berth-run-dir";

/// Directories of a pod's volumes and of plugins' data in its own.
const VOLUMES: &str = "volumes";
const PLUGINS: &str = "plugins";

/// Directory in either of PersistentVolumes that are directories of the node.
const LOCAL: &str = "kubernetes.io~local-volume";

/// `name` as one component of a path. A name that could not be one (empty, `.`, `..`, too long, other characters than
/// letters, digits, `-`, `_` and `.`) is replaced by a digest of it, so that different names stay different.
#[must_use]
pub fn component(name: &str) -> Cow<'_, str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let special = matches!(name, "" | "." | "..") || name.contains("..");
    if special || name.len() > NAME_BYTES_MAX || !name.bytes().all(plain) {
        Cow::Owned(format!("x-{}", digest(name)))
    } else {
        Cow::Borrowed(name)
    }
}

/// A digest of a text, short enough for a part of a name: 128 bits in hexadecimal.
pub(crate) fn digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Everything of a pod: `<root>/pods/<uid>`, 0750.
#[must_use]
pub fn pod_dir(paths: &Paths, uid: &PodUid) -> String {
    format!("{}/{}", pods_dir(paths), component(uid.as_str()))
}

/// The mark in a pod's directory that names the agent which made it (decision 0029).
#[must_use]
pub fn pod_mark(paths: &Paths, uid: &PodUid) -> String {
    format!("{}/{POD_MARK}", pod_dir(paths, uid))
}

/// Volumes of a pod, by plugin.
#[must_use]
pub fn volumes_dir(paths: &Paths, uid: &PodUid) -> String {
    format!("{}/{VOLUMES}", pod_dir(paths, uid))
}

/// Plugins' data of a pod.
#[must_use]
pub fn plugins_dir(paths: &Paths, uid: &PodUid) -> String {
    format!("{}/{PLUGINS}", pod_dir(paths, uid))
}

/// Where a volume is on the node: below the pod's directory, except for a path of the node. `None` where only the claim says it.
#[must_use]
pub fn volume(paths: &Paths, uid: &PodUid, name: &VolumeName, source: &VolumeSource) -> Option<String> {
    Some(match source {
        VolumeSource::Claim(_) => return None,
        VolumeSource::EmptyDir { .. } => {
            format!("{}/kubernetes.io~empty-dir/{}", volumes_dir(paths, uid), component(name.as_str()))
        }
        VolumeSource::HostPath { path, .. } => path.clone(),
        VolumeSource::Content(content) => {
            format!("{}/{}/{}", volumes_dir(paths, uid), content.kind.plugin(), component(name.as_str()))
        }
        VolumeSource::Image { .. } => {
            format!("{}/kubernetes.io~image/{}", volumes_dir(paths, uid), component(name.as_str()))
        }
    })
}

/// Where a directory of the node is bound that is a PersistentVolume, by the name of that.
#[must_use]
pub fn local_volume(paths: &Paths, uid: &PodUid, name: &str) -> String {
    format!("{}/{LOCAL}/{}", volumes_dir(paths, uid), component(name))
}

/// The mark that it was bound whole, beside those of emptyDirs.
#[must_use]
pub fn local_volume_ready(paths: &Paths, uid: &PodUid, name: &str) -> String {
    local_volume_mark(&pod_dir(paths, uid), &component(name))
}

/// The same of whatever pod has its [`local_volume`] at a place, which is below the directory of all pods; `None` where none has.
#[must_use]
pub fn local_volume_ready_at(pods: &str, place: &str) -> Option<String> {
    let mut parts = place.strip_prefix(pods)?.strip_prefix('/')?.split('/');
    let [pod, volumes, plugin, name] = std::array::from_fn(|_| parts.next());
    let is_one = volumes == Some(VOLUMES) && plugin == Some(LOCAL) && parts.next().is_none();
    name.filter(|_| is_one).and_then(|name| Some(local_volume_mark(&format!("{pods}/{}", pod?), name)))
}

fn local_volume_mark(pod_dir: &str, name: &str) -> String {
    format!("{pod_dir}/{PLUGINS}/{LOCAL}/{name}/ready")
}

/// Directories of all pods.
#[must_use]
pub fn pods_dir(paths: &Paths) -> String {
    format!("{}/pods", paths.root)
}

/// The mark that an emptyDir was made. Source: `pkg/volume/emptydir` `getMetaDir`.
#[must_use]
pub fn empty_dir_ready(paths: &Paths, uid: &PodUid, name: &VolumeName) -> String {
    format!("{}/kubernetes.io~empty-dir/{}/ready", plugins_dir(paths, uid), component(name.as_str()))
}

/// The same mark of the directory that a volume with content is in: an emptyDir of the pod, by a name of its own
/// (`NewWrapperMounter` of `pkg/kubelet/volume_host.go`).
#[must_use]
pub fn content_ready(paths: &Paths, uid: &PodUid, name: &VolumeName) -> String {
    let wrapped = format!("wrapped_{name}");
    format!("{}/kubernetes.io~empty-dir/{}/ready", plugins_dir(paths, uid), component(&wrapped))
}

/// The pod's managed hosts file.
#[must_use]
pub fn etc_hosts(paths: &Paths, uid: &PodUid) -> String {
    format!("{}/etc-hosts", pod_dir(paths, uid))
}

/// The resolv.conf of a sandbox of the pod.
#[must_use]
pub fn resolv_conf(paths: &Paths, uid: &PodUid, sandbox: Attempt) -> String {
    of_sandbox(paths, uid, "resolv.conf", sandbox)
}

/// The hostname file of a sandbox of the pod.
#[must_use]
pub fn etc_hostname(paths: &Paths, uid: &PodUid, sandbox: Attempt) -> String {
    of_sandbox(paths, uid, "hostname", sandbox)
}

/// The first sandbox, which few pods outlive, has the plain name.
fn of_sandbox(paths: &Paths, uid: &PodUid, name: &str, sandbox: Attempt) -> String {
    let dir = pod_dir(paths, uid);
    match sandbox {
        0 => format!("{dir}/{name}"),
        later => format!("{dir}/{name}.{later}"),
    }
}

/// A container's own directory: `<pod>/containers/<name>`, 0750.
#[must_use]
pub fn container_dir(paths: &Paths, uid: &PodUid, container: &ContainerName) -> String {
    format!("{}/containers/{}", pod_dir(paths, uid), component(container.as_str()))
}

/// The termination message file of one run: eight digits, as the kubelet's, but of the run's id.
#[must_use]
pub fn termination_log(paths: &Paths, uid: &PodUid, container: &ContainerName, id: &ContainerId) -> String {
    format!("{}/{}", container_dir(paths, uid, container), component(head(id.as_str(), 8)))
}

/// How the name of a directory of `VOLUME`s ends.
const IMAGE_VOLUMES: &str = "-volumes";

/// The `index`-th `VOLUME` of the image, for one run.
#[must_use]
pub fn image_volume(
    paths: &Paths,
    uid: &PodUid,
    container: &ContainerName,
    id: &ContainerId,
    index: usize,
) -> String {
    format!("{}/{}/{index}", container_dir(paths, uid, container), image_volumes(id))
}

/// What the directory of all `VOLUME`s of one run is called, in that of its container.
#[must_use]
pub fn image_volumes(id: &ContainerId) -> String {
    format!("{}{IMAGE_VOLUMES}", component(head(id.as_str(), 8)))
}

/// Whether a name is one of these.
#[must_use]
pub fn is_of_image_volumes(name: &str) -> bool {
    name.ends_with(IMAGE_VOLUMES)
}

/// Where the `index`-th mount of a container, a part of a volume, is bound.
#[must_use]
pub fn volume_subpath(
    paths: &Paths,
    uid: &PodUid,
    volume: &VolumeName,
    container: &ContainerName,
    index: usize,
) -> String {
    let (volume, container) = (component(volume.as_str()), component(container.as_str()));
    format!("{}/volume-subpaths/{volume}/{container}/{index}", pod_dir(paths, uid))
}

/// Logs of a pod: `<pod_logs>/<namespace>_<name>_<uid>`, 0755. Also where that cannot be a name it ends with the UID, by which it is found
/// when nothing else is known of the pod.
#[must_use]
pub fn pod_logs(paths: &Paths, name: &PodName, uid: &PodUid) -> String {
    let dir = format!("{}_{}_{}", name.namespace, name.name, uid);
    match component(&dir) {
        Cow::Borrowed(dir) => format!("{}/{dir}", paths.pod_logs),
        Cow::Owned(dir) => format!("{}/{dir}_{}", paths.pod_logs, component(uid.as_str())),
    }
}

/// Log of one run of a container: `<pod logs>/<container>/<attempt>.log`.
#[must_use]
pub fn container_log(
    paths: &Paths,
    name: &PodName,
    uid: &PodUid,
    container: &ContainerName,
    attempt: Attempt,
) -> String {
    format!("{}/{}/{attempt}.log", pod_logs(paths, name, uid), component(container.as_str()))
}

/// The link to a run's log that log collectors follow: `<pod>_<namespace>_<container>-<id>.log`, cut to fit a file name.
/// Source: `pkg/kubelet/kuberuntime/legacy.go` `legacyLogSymlink`.
#[must_use]
pub fn log_link(paths: &Paths, name: &PodName, container: &ContainerName, id: &ContainerId) -> String {
    const SUFFIX: &str = ".log";
    let full = format!("{}_{}_{container}-{id}", name.name, name.namespace);
    let stem = component(head(&full, NAME_BYTES_MAX - SUFFIX.len()));
    format!("{}/{stem}{SUFFIX}", paths.container_logs)
}

/// The record of a pod.
#[must_use]
pub fn record(run: &str, uid: &PodUid) -> String {
    format!("{run}/pods/{}.json", component(uid.as_str()))
}

/// The socket of a sandbox's shim, short enough for a unix socket address.
#[must_use]
pub fn shim_socket(run: &str, sandbox: &SandboxId) -> String {
    format!("{run}/shim/{}.sock", component(head(sandbox.as_str(), SOCKET_DIGITS)))
}

/// The named network namespace of a sandbox.
#[must_use]
pub fn netns(sandbox: &SandboxId) -> String {
    format!("/run/netns/berth-{}", component(head(sandbox.as_str(), SOCKET_DIGITS)))
}

/// Marks of the network namespaces that this agent made: `<run>/netns/<sandbox id>`. They end with the machine, as the
/// namespaces do.
#[must_use]
pub fn netns_marks(paths: &Paths) -> String {
    format!("{}/netns", paths.run)
}

/// What of this agent outlives the machine and is of no one pod: `<root>/berth`.
#[must_use]
pub fn lasting(paths: &Paths) -> String {
    format!("{}/berth", paths.root)
}

/// Records of the CNI attachments that this agent made. They outlive the machine, as the leases of IPAM plugins do.
#[must_use]
pub fn attachments(paths: &Paths) -> String {
    format!("{}/attachments", lasting(paths))
}

/// At most `length` bytes from the start of `text`, cut between characters.
fn head(text: &str, length: usize) -> &str {
    &text[..text.floor_char_boundary(length)]
}

#[cfg(test)]
mod tests;
