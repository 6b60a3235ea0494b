//! One bench for all: a pod with one container, to be changed before it is planned.

mod app_armor;
mod complete;
mod exec;
mod golden;
mod handler;
mod linux;
mod memory;
mod mounts;
mod oom;
mod process;
mod properties;
mod selinux;
mod user;

use std::collections::BTreeMap;

use oci_spec::runtime::{Process, Spec};

use super::{Accounts, ConfigError, ContainerInputs, ContainerPlan, ObjectValues, container_plan};
use crate::{
    config::NodeConfig,
    fixtures,
    id::{Attempt, ContainerId, SandboxId, VolumeName},
    image::ImageInfo,
    spec::{Container, Pod},
    status::NetworkStatus,
    users::HostIds,
};

struct Bench {
    node: NodeConfig,
    pod: Pod,
    container: Container,
    attempt: Attempt,
    target: Option<u32>,
    image: ImageInfo,
    accounts: Accounts,
    ids: Option<HostIds>,
    level: Option<&'static str>,
    network: Option<NetworkStatus>,
    volumes: BTreeMap<VolumeName, String>,
    recursive_read_only: bool,
    values: Option<ObjectValues>,
}

impl Bench {
    fn new() -> Self {
        let container = fixtures::container("web");
        Self {
            node: fixtures::node(),
            pod: fixtures::pod(vec![container.clone()]),
            container,
            attempt: 2,
            target: None,
            image: fixtures::image(),
            accounts: fixtures::accounts(),
            ids: None,
            level: None,
            network: Some(NetworkStatus { ips: vec!["10.1.2.3".parse().unwrap()] }),
            volumes: BTreeMap::new(),
            recursive_read_only: false,
            values: None,
        }
    }

    /// A bench after some change.
    fn with(change: impl FnOnce(&mut Self)) -> Self {
        let mut bench = Self::new();
        change(&mut bench);
        bench
    }

    fn id(&self) -> ContainerId {
        ContainerId::of(&self.pod.uid, &self.container.name, self.attempt)
    }

    fn plan(&self) -> Result<ContainerPlan, ConfigError> {
        container_plan(&ContainerInputs {
            target: self.target,
            node: &self.node,
            pod: &self.pod,
            container: &self.container,
            attempt: self.attempt,
            id: &self.id(),
            sandbox: &SandboxId::of(&self.pod.uid, 0),
            sandbox_attempt: 0,
            image: &self.image,
            accounts: &self.accounts,
            ids: self.ids,
            level: self.level,
            network: self.network.as_ref(),
            volumes: &self.volumes,
            recursive_read_only: self.recursive_read_only,
            values: self.values.as_ref(),
        })
    }

    fn error(&self) -> ConfigError {
        self.plan().map(|_| "a plan").unwrap_err()
    }

    fn spec(&self) -> Spec {
        self.plan().unwrap().spec
    }

    fn process(&self) -> Process {
        self.spec().process().clone().unwrap()
    }

    fn env(&self) -> Vec<String> {
        self.process().env().clone().unwrap()
    }
}
