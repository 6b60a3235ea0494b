//! Fills in what effects need.

use std::sync::Arc;

use oci_spec::runtime::User;

use super::{
    actual::{ImageUse, Leftover, Life, Preparing},
    port::network::{self},
};
use crate::{
    config::NodeConfig,
    effect::{Act, RemoveContainerRequest, StartRequest, StopSignal, TerminationMessageRequest},
    id::{ContainerName, VolumeName},
    observation::Exit,
    oci::{ConfigError, ContainerInputs, container_plan},
    paths,
    record::{PodRecord, RunImage},
    spec::{Container, TerminationMessagePolicy},
    status::RunUser,
};

/// Sent to containers whose image names no signal.
const STOP_SIGNAL: &str = "SIGTERM";

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
        Leftover::Network(id) => Act::RemoveNetwork(Box::new(network::request(life, id))),
        Leftover::Netns(id) => Act::RemoveNetns(id.clone()),
        Leftover::Volumes => Act::RemoveVolumes,
        Leftover::Cgroup => Act::RemoveCgroup(life.spec.qos),
        Leftover::Dirs => Act::RemoveDirs(life.record.name.clone()),
        Leftover::End => Act::DropEnd,
        Leftover::Record => Act::Forget,
    }
}
