//! Fills in what effects need.

use std::sync::Arc;

use oci_spec::runtime::User;

use super::actual::{ImageUse, Leftover, Life, Preparing};
use crate::{
    cgroup,
    config::NodeConfig,
    derived::{hostname, security},
    effect::{
        Act, CgroupRequest, NetworkRequest, RemoveContainerRequest, SandboxRequest, StartRequest, StopSignal,
        TerminationMessageRequest, VolumeRequest,
    },
    id::{ContainerName, SandboxId, VolumeName},
    observation::Exit,
    oci::{ConfigError, ContainerInputs, container_plan},
    paths,
    record::{PodRecord, RunImage},
    spec::{Container, Medium, Pod, TerminationMessagePolicy, VolumeSource},
    status::RunUser,
};

/// Sent to containers whose image names no signal.
const STOP_SIGNAL: &str = "SIGTERM";

pub(super) fn cgroup(pod: &Pod, config: &NodeConfig) -> CgroupRequest {
    CgroupRequest { qos: pod.qos, values: cgroup::pod_values(pod, config) }
}

pub(super) fn network(life: &Life, sandbox: &SandboxId) -> NetworkRequest {
    NetworkRequest { sandbox: sandbox.clone(), pod: Arc::clone(&life.spec) }
}

pub(super) fn sandbox(life: &Life, config: &NodeConfig) -> Result<SandboxRequest, String> {
    let hostname = hostname::of(&life.spec, config).map_err(|error| error.to_string())?;
    Ok(SandboxRequest {
        id: life.sandbox_id(),
        attempt: life.record.sandbox,
        pod: Arc::clone(&life.spec),
        hostname,
        sysctls: security::check_sysctls(&life.spec, &config.unsafe_sysctls)
            .map_err(|error| error.to_string())?,
    })
}

/// A memory medium is no larger than what pods may use of the node, the pod's memory limit and its own (KEP-1967).
/// Source: `calculateEmptyDirMemorySize` of `pkg/volume/emptydir/empty_dir.go`.
pub(super) fn volume(pod: &Pod, name: &VolumeName, config: &NodeConfig) -> Option<VolumeRequest> {
    let volume = pod.volumes.iter().find(|volume| volume.name == *name)?.clone();
    let tmpfs_size_bytes = match &volume.source {
        VolumeSource::EmptyDir { medium: Medium::Memory, size_limit_bytes } => {
            let limit = cgroup::pod_values(pod, config).memory_bytes_max;
            let bounds = [config.allocatable.memory_bytes, limit, *size_limit_bytes];
            bounds.into_iter().flatten().filter(|bytes| *bytes > 0).min()
        }
        VolumeSource::EmptyDir { medium: Medium::Disk, .. } | VolumeSource::HostPath { .. } => None,
    };
    Some(VolumeRequest {
        volume,
        fs_group: pod.security.fs_group,
        fs_group_change: pod.security.fs_group_change,
        tmpfs_size_bytes,
    })
}

/// `None` while something that it is made from is missing.
pub(super) fn start(
    life: &Life,
    container: &Arc<Container>,
    preparing: &Preparing,
    config: &NodeConfig,
) -> Result<Option<StartRequest>, ConfigError> {
    let (ImageUse::Ready(image), Some(accounts), Some(record)) =
        (&preparing.image, preparing.rootfs.ready(), life.record.containers.get(&container.name))
    else {
        return Ok(None);
    };
    let id = life.container_id(&container.name);
    let sandbox = life.sandbox_id();
    let ready = |(name, state): (&VolumeName, &super::resource::Resource<String>)| {
        Some((name.clone(), state.ready()?.clone()))
    };
    let volumes = life.actual.volumes.iter().filter_map(ready).collect();
    let plan = container_plan(&ContainerInputs {
        node: config,
        pod: &life.spec,
        container,
        attempt: record.attempt,
        id: &id,
        sandbox: &sandbox,
        image,
        accounts,
        network: life.record.network.as_ref(),
        volumes: &volumes,
    })?;
    Ok(Some(StartRequest {
        id,
        attempt: record.attempt,
        sandbox,
        pod: Arc::clone(&life.spec),
        container: Arc::clone(container),
        image: Arc::clone(image),
        plan,
    }))
}

pub(super) fn run_image(request: &StartRequest) -> RunImage {
    let image = &request.image;
    RunImage {
        name: image.name.clone(),
        id: image.repo_digest.clone().unwrap_or_else(|| image.id.clone()),
        stop_signal: image.config.stop_signal.clone(),
        user: request.plan.spec.process().as_ref().map(|process| user(process.user())),
    }
}

fn user(user: &User) -> RunUser {
    RunUser {
        uid: user.uid(),
        gid: user.gid(),
        supplemental_groups: user.additional_gids().clone().unwrap_or_default(),
    }
}

pub(super) fn stop_signal(record: &PodRecord, name: &ContainerName) -> StopSignal {
    let image = record.containers.get(name).and_then(|run| run.image.as_ref());
    let signal = image.and_then(|image| image.stop_signal.clone()).filter(|signal| !signal.is_empty());
    StopSignal::Stop(signal.unwrap_or_else(|| STOP_SIGNAL.into()))
}

/// `None` when there is nowhere to read from.
pub(super) fn last_words(
    life: &Life,
    container: &Container,
    exit: &Exit,
    config: &NodeConfig,
) -> Option<TerminationMessageRequest> {
    let record = &life.record;
    let id = life.container_id(&container.name);
    let attempt = record.containers.get(&container.name)?.attempt;
    let file = (!container.termination_message.path.is_empty())
        .then(|| paths::termination_log(&config.paths, &record.uid, &container.name, &id));
    let log = match container.termination_message.policy {
        TerminationMessagePolicy::FallbackToLogsOnError if exit.code != 0 => {
            Some(paths::container_log(&config.paths, &record.name, &record.uid, &container.name, attempt))
        }
        TerminationMessagePolicy::FallbackToLogsOnError | TerminationMessagePolicy::File => None,
    };
    (file.is_some() || log.is_some()).then_some(TerminationMessageRequest { id, file, log })
}

pub(super) fn removal(life: &Life, leftover: &Leftover) -> Act {
    match leftover {
        Leftover::Container(id) => Act::RemoveContainer(RemoveContainerRequest { id: id.clone() }),
        Leftover::Sandbox(id) => Act::RemoveSandbox(id.clone()),
        Leftover::Network(id) => Act::RemoveNetwork(Box::new(network(life, id))),
        Leftover::Netns(id) => Act::RemoveNetns(id.clone()),
        Leftover::Volumes => Act::RemoveVolumes,
        Leftover::Cgroup => Act::RemoveCgroup(life.spec.qos),
        Leftover::Dirs => Act::RemoveDirs(life.record.name.clone()),
        Leftover::End => Act::DropEnd,
        Leftover::Record => Act::Forget,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fixtures,
        spec::{QosClass, Volume},
    };

    #[test]
    fn memory_is_bounded_by_the_node_the_pod_and_the_volume() {
        const GIB: u64 = 1 << 30;
        let node = fixtures::node();
        let allocatable = node.allocatable.memory_bytes;
        for (pod_limit, volume_limit, expected) in [
            (0, None, allocatable),
            (0, Some(100 * GIB), allocatable),
            (0, Some(GIB), Some(GIB)),
            (2 * GIB, None, Some(2 * GIB)),
            (2 * GIB, Some(3 * GIB), Some(2 * GIB)),
            (2 * GIB, Some(GIB), Some(GIB)),
            (100 * GIB, None, allocatable),
        ] {
            let mut container = fixtures::container("main");
            container.resources = fixtures::resources((0, 0), (0, pod_limit));
            let name = VolumeName::new("data");
            let source = VolumeSource::EmptyDir { medium: Medium::Memory, size_limit_bytes: volume_limit };
            let volumes = vec![Volume { name: name.clone(), source }];
            let pod = Pod { volumes, qos: QosClass::Burstable, ..fixtures::pod(vec![container]) };
            let found = volume(&pod, &name, &node).and_then(|request| request.tmpfs_size_bytes);
            assert_eq!(found, expected, "{pod_limit} {volume_limit:?}");
        }
    }
}
