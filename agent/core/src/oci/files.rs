//! Files of a pod that its containers mount: the names and addresses by which it knows itself and others.

use super::{ConfigError, mounts::mount_point, plan::pod_ips};
use crate::{
    config::NodeConfig,
    derived::{
        hostname::{self, HostNames},
        hosts, resolv,
    },
    id::Attempt,
    paths,
    spec::{NetworkMode, Pod},
    status::NetworkStatus,
};

pub(super) const ETC_HOSTS: &str = "/etc/hosts";

/// A file of the node that a container mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFile {
    /// Absolute path.
    pub path: String,
    /// Permissions.
    pub mode: u32,
    /// Owner and group; root when absent.
    pub owner: Option<(u32, u32)>,
    /// Content.
    pub content: String,
    /// What to do when it is there.
    pub existing: ExistingFile,
}

/// What to do with a file that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExistingFile {
    /// Leave it: a container may have written to it.
    Keep,
    /// Write it again in place: running containers have it mounted and must see the new content.
    Replace,
}

/// All that the containers of a pod have in common: its hosts file, which each start writes, and what is written once for a
/// sandbox, after which containers may change it (containerd, `setupSandboxFiles` of
/// `internal/cri/server/podsandbox/sandbox_run_linux.go`).
///
/// # Errors
///
/// When the pod asks for a name that cannot be given.
pub fn pod_files(
    node: &NodeConfig,
    pod: &Pod,
    sandbox: Attempt,
    network: Option<&NetworkStatus>,
) -> Result<Vec<HostFile>, ConfigError> {
    let names = hostname::names(pod, node)?;
    let hosts = etc_hosts(node, pod, &names, network).filter(|_| needs_hosts(pod));
    // One that cannot be told now was told when it was written.
    let resolv_conf = resolv_conf(node, pod, sandbox).ok();
    Ok(hosts.into_iter().chain([etc_hostname(node, pod, sandbox)?]).chain(resolv_conf).collect())
}

/// Whether a container mounts nothing of its own there.
fn needs_hosts(pod: &Pod) -> bool {
    pod.all_containers().any(|container| {
        !container.mounts.iter().any(|mount| mount_point(&mount.path).is_ok_and(|to| to == ETC_HOSTS))
    })
}

pub(super) fn etc_hosts(
    node: &NodeConfig,
    pod: &Pod,
    names: &HostNames,
    network: Option<&NetworkStatus>,
) -> Option<HostFile> {
    let content = hosts::content(pod, node, names, pod_ips(node, pod, network))?;
    Some(file(paths::etc_hosts(&node.paths, &pod.uid), 0o644, content, ExistingFile::Replace))
}

pub(super) fn etc_hostname(node: &NodeConfig, pod: &Pod, sandbox: Attempt) -> Result<HostFile, ConfigError> {
    let name = match pod.network {
        NetworkMode::Node => node.hostname.clone(),
        NetworkMode::Pod => hostname::of(pod, node)?,
    };
    let path = paths::etc_hostname(&node.paths, &pod.uid, sandbox);
    Ok(file(path, 0o644, format!("{name}\n"), ExistingFile::Keep))
}

pub(super) fn resolv_conf(node: &NodeConfig, pod: &Pod, sandbox: Attempt) -> Result<HostFile, ConfigError> {
    let path = paths::resolv_conf(&node.paths, &pod.uid, sandbox);
    Ok(file(path, 0o644, resolv::of(pod, node)?.content(), ExistingFile::Keep))
}

pub(super) fn file(path: String, mode: u32, content: String, existing: ExistingFile) -> HostFile {
    HostFile { path, mode, owner: None, content, existing }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fixtures,
        id::VolumeName,
        spec::{Mount, MountPropagation, RecursiveReadOnly, SubPath},
    };

    fn names(pod: &Pod, network: Option<&NetworkStatus>) -> Vec<String> {
        let files = pod_files(&fixtures::node(), pod, 0, network).unwrap();
        files.into_iter().filter_map(|file| Some(file.path.rsplit('/').next()?.to_owned())).collect()
    }

    #[test]
    fn only_files_that_a_container_mounts() {
        let wired = NetworkStatus { ips: vec!["10.0.0.1".parse().unwrap()] };
        let own = Mount {
            volume: VolumeName::new("data"),
            path: "/etc//hosts".into(),
            sub_path: SubPath::Root,
            read_only: false,
            recursive_read_only: RecursiveReadOnly::Disabled,
            propagation: MountPropagation::Private,
        };
        let mut container = fixtures::container("main");
        let pod = fixtures::pod(vec![container.clone()]);
        assert_eq!(names(&pod, Some(&wired)), ["etc-hosts", "hostname", "resolv.conf"]);
        assert_eq!(names(&pod, None), ["hostname", "resolv.conf"], "there is no address yet");
        container.mounts = vec![own];
        let covered = fixtures::pod(vec![container.clone()]);
        assert_eq!(names(&covered, Some(&wired)), ["hostname", "resolv.conf"]);
        let mixed = fixtures::pod(vec![container, fixtures::container("other")]);
        assert_eq!(names(&mixed, Some(&wired)), ["etc-hosts", "hostname", "resolv.conf"]);
    }
}
