//! Fills in what effects need.

use std::sync::Arc;

use super::actual::{ImageUse, Leftover, Life, Preparing};
use crate::{
    cgroup,
    config::NodeConfig,
    effect::{
        Act, CgroupRequest, NetworkRequest, RemoveContainerRequest, SandboxRequest, StartRequest, StopSignal,
        TerminationMessageRequest, VolumeRequest,
    },
    event::{Exit, ImageInfo},
    hostname,
    id::{Attempt, ContainerName, SandboxId, VolumeName},
    oci::{ConfigError, ContainerInputs, container_plan},
    paths,
    record::{PodRecord, RunImage},
    security,
    spec::{Container, Medium, Pod, TerminationMessagePolicy, VolumeSource},
};

/// Sent to containers whose image names no signal.
const STOP_SIGNAL: &str = "SIGTERM";

pub(super) fn cgroup(pod: &Pod, config: &NodeConfig) -> CgroupRequest {
    CgroupRequest { qos: pod.qos, values: cgroup::pod_values(pod, config) }
}

pub(super) fn network(life: &Life, attempt: Attempt) -> NetworkRequest {
    NetworkRequest { sandbox: SandboxId::of(&life.record.uid, attempt), pod: Arc::clone(&life.spec) }
}

pub(super) fn sandbox(life: &Life, config: &NodeConfig) -> Result<SandboxRequest, String> {
    let hostname = hostname::of(&life.spec, config).map_err(|error| error.to_string())?;
    Ok(SandboxRequest {
        id: life.sandbox_id(),
        attempt: life.record.sandbox,
        pod: Arc::clone(&life.spec),
        hostname,
        sysctls: security::check_sysctls(&life.spec, config).map_err(|error| error.to_string())?,
    })
}

/// A memory medium is no larger than the pod's memory limit (KEP-1967).
pub(super) fn volume(pod: &Pod, name: &VolumeName, config: &NodeConfig) -> Option<VolumeRequest> {
    let volume = pod.volumes.iter().find(|volume| volume.name == *name)?.clone();
    let tmpfs_size_bytes = match &volume.source {
        VolumeSource::EmptyDir { medium: Medium::Memory, size_limit_bytes } => {
            let limit = cgroup::pod_values(pod, config).memory_bytes_max;
            size_limit_bytes.iter().copied().chain(limit).filter(|bytes| *bytes > 0).min()
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

pub(super) fn run_image(image: &ImageInfo) -> RunImage {
    RunImage {
        name: image.name.clone(),
        id: image.repo_digest.clone().unwrap_or_else(|| image.id.clone()),
        stop_signal: image.config.stop_signal.clone(),
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
    let uid = &life.record.uid;
    match leftover {
        Leftover::Container(id) => Act::RemoveContainer(RemoveContainerRequest { id: id.clone() }),
        Leftover::Sandbox(attempt) => Act::RemoveSandbox(SandboxId::of(uid, *attempt)),
        Leftover::Network(attempt) => Act::RemoveNetwork(Box::new(network(life, *attempt))),
        Leftover::Netns(attempt) => Act::RemoveNetns(SandboxId::of(uid, *attempt)),
        Leftover::Volumes => Act::RemoveVolumes,
        Leftover::Cgroup => Act::RemoveCgroup(life.spec.qos),
        Leftover::Dirs => Act::RemoveDirs(life.record.name.clone()),
    }
}
