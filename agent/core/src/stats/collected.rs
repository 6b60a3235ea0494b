//! One reading of all that is counted, and of what it is.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;

use super::{Interface, Machine, Sampled, SystemContainers};
use crate::{
    cgroup::names,
    config::CgroupSettings,
    id::{ContainerId, ContainerName, PodName, PodUid, SandboxId},
    spec::{ContentKind, Medium, NetworkMode, Pod, QosClass, Volume, VolumeSource},
    status::{ContainerState, PodStatus},
    time::Mono,
};

/// A sample before is not compared with when it is older. Source: `defaultCachePeriod` of
/// `pkg/kubelet/stats/cri_stats_provider.go`.
const COMPARED_WITHIN: Duration = Duration::from_mins(10);

/// What there is to count.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Subjects {
    /// Levels above the pods: all of them, then those of QoS classes.
    pub above: Vec<String>,
    /// Levels that are shown as system containers.
    pub system: SystemContainers,
    /// Pods with a sandbox, and those of which something runs, by name.
    pub pods: Vec<PodSubject>,
}

/// A pod that is counted.
#[derive(Debug, Clone, PartialEq)]
pub struct PodSubject {
    /// Its UID.
    pub uid: PodUid,
    /// Its name.
    pub name: PodName,
    /// When the agent first saw it.
    pub started_at: Option<Timestamp>,
    /// Its level.
    pub cgroup: String,
    /// Where its network is.
    pub network: NetworkOf,
    /// Its volumes, each with what is told of it.
    pub volumes: Vec<VolumeSubject>,
    /// Its containers that run, init containers first.
    pub containers: Vec<ContainerSubject>,
}

/// Where the network of a pod is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkOf {
    /// It is the node's.
    Node,
    /// In the namespace of a sandbox.
    Sandbox(SandboxId),
    /// Nowhere yet.
    None,
}

/// A volume that is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeSubject {
    /// Which.
    pub volume: Volume,
    /// Whether it counts as ephemeral storage of the pod.
    pub is_local: bool,
}

/// A container that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerSubject {
    /// Its name.
    pub name: ContainerName,
    /// Its current run.
    pub id: ContainerId,
    /// Its image.
    pub image: String,
    /// When it began.
    pub started_at: Timestamp,
    /// Its level.
    pub cgroup: String,
}

impl Subjects {
    /// What there is to count of these pods. One without a sandbox of which nothing runs has no figures.
    #[must_use]
    pub fn of<'a>(
        settings: &CgroupSettings,
        system: SystemContainers,
        pods: impl IntoIterator<Item = (&'a Pod, &'a PodStatus, Option<&'a SandboxId>)>,
    ) -> Self {
        let classes = [QosClass::Burstable, QosClass::BestEffort].map(|class| names::qos(settings, class));
        let mut above = vec![names::kubepods(settings)];
        above.extend(classes);
        let pods =
            pods.into_iter().filter_map(|(pod, status, sandbox)| subject(settings, pod, status, sandbox));
        let mut pods: Vec<PodSubject> = pods.collect();
        pods.sort_by(|one, other| (&one.name, &one.uid).cmp(&(&other.name, &other.uid)));
        Self { above, system, pods }
    }

    /// All levels that are read: the root, those above pods, pods, containers, and those of the system.
    pub fn levels(&self) -> impl Iterator<Item = &str> {
        let pods = self.pods.iter().flat_map(|pod| {
            let containers = pod.containers.iter().map(|container| container.cgroup.as_str());
            std::iter::once(pod.cgroup.as_str()).chain(containers)
        });
        let system = self.system.all().map(|(_, level)| level);
        std::iter::once("/").chain(self.above.iter().map(String::as_str)).chain(pods).chain(system)
    }
}

fn subject(
    settings: &CgroupSettings,
    pod: &Pod,
    status: &PodStatus,
    sandbox: Option<&SandboxId>,
) -> Option<PodSubject> {
    let running = status.all_containers().filter_map(|container| {
        let (Some(id), ContainerState::Running { started_at }) = (&container.id, &container.state) else {
            return None;
        };
        Some(ContainerSubject {
            name: container.name.clone(),
            id: id.clone(),
            image: container.image.clone(),
            started_at: *started_at,
            cgroup: names::container(settings, pod.qos, &pod.uid, id),
        })
    });
    let containers: Vec<ContainerSubject> = running.collect();
    let network = match (pod.network, sandbox) {
        (NetworkMode::Node, _) => NetworkOf::Node,
        (NetworkMode::Pod, Some(sandbox)) => NetworkOf::Sandbox(sandbox.clone()),
        (NetworkMode::Pod, None) => NetworkOf::None,
    };
    (sandbox.is_some() || !containers.is_empty()).then(|| PodSubject {
        uid: pod.uid.clone(),
        name: pod.name.clone(),
        started_at: status.start_time,
        cgroup: names::pod(settings, pod.qos, &pod.uid),
        network,
        volumes: pod.volumes.iter().filter_map(measured).collect(),
        containers,
    })
}

/// A volume that is measured. Paths of the node are not. Source: `IsLocalEphemeralVolume` of `pkg/volume/util/util.go`,
/// `MetricsNil` of `pkg/volume/hostpath`.
fn measured(volume: &Volume) -> Option<VolumeSubject> {
    let is_local = match &volume.source {
        VolumeSource::EmptyDir { medium, .. } => *medium == Medium::Disk,
        VolumeSource::Content(content) => content.kind == ContentKind::ConfigMap,
        VolumeSource::HostPath { .. } | VolumeSource::Claim(_) | VolumeSource::Image { .. } => return None,
    };
    Some(VolumeSubject { volume: volume.clone(), is_local })
}

/// One reading.
#[derive(Debug, Clone, PartialEq)]
pub struct Collected {
    /// When it began.
    pub at: Timestamp,
    /// Of what.
    pub subjects: Subjects,
    /// Levels that were there.
    pub levels: BTreeMap<String, Sampled>,
    /// Interfaces of pods with a network of their own.
    pub networks: BTreeMap<PodUid, Network>,
    /// The node.
    pub node: Node,
}

/// Interfaces, and when they were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// When.
    pub at: Timestamp,
    /// What was found.
    pub interfaces: Vec<Interface>,
}

/// What is read of the node beside levels.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// When it was booted.
    pub booted_at: Option<Timestamp>,
    /// When the agent began.
    pub agent_began: Timestamp,
    /// The machine.
    pub machine: Machine,
    /// Its network.
    pub network: Network,
    /// How many tasks there may be.
    pub tasks_max: Option<i64>,
    /// How many there are.
    pub tasks: Option<i64>,
    /// Devices by number, as they are called below `/dev`.
    pub disks: BTreeMap<(u32, u32), String>,
    /// What was transferred, as [`disk_stats`](super::disk_stats) has it.
    pub disk_stats: BTreeMap<(u32, u32), [u64; 11]>,
}

impl Collected {
    /// The network of a pod.
    pub(super) fn network(&self, pod: &PodSubject) -> Option<&Network> {
        match pod.network {
            NetworkOf::Node => Some(&self.node.network),
            NetworkOf::Sandbox(_) => self.networks.get(&pod.uid),
            NetworkOf::None => None,
        }
    }
}

/// Processor time in each second between two samples: when they were taken, and nanoseconds until then. `None` for a first
/// sample, one that is much later, and where the counter went back. Source: cAdvisor `InstCpuStats` of `info/v2/conversion.go`.
#[must_use]
pub fn nano_cores(before: Option<(Mono, u64)>, now: (Mono, u64)) -> Option<u64> {
    let (at, used) = before?;
    let passed = now.0.since(at);
    let used = now.1.checked_sub(used)?;
    if passed.is_zero() || passed > COMPARED_WITHIN {
        return None;
    }
    u64::try_from(u128::from(used) * 1_000_000_000 / passed.as_nanos()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_needs_two_samples_that_go_forward() {
        let at = |seconds| Mono(Duration::from_secs(seconds));
        let cases = [
            ("first", None, (at(10), 5), None),
            ("half a core", Some((at(0), 0)), (at(10), 5_000_000_000), Some(500_000_000)),
            ("none used", Some((at(0), 7)), (at(10), 7), Some(0)),
            ("counter went back", Some((at(0), 8)), (at(10), 7), None),
            ("no time passed", Some((at(10), 0)), (at(10), 7), None),
            ("clock went back", Some((at(11), 0)), (at(10), 7), None),
            ("too long ago", Some((at(0), 0)), (at(601), 7), None),
            ("long ago", Some((at(0), 0)), (at(600), 600), Some(1)),
            ("as much as there can be", Some((at(0), 0)), (at(1), u64::MAX), Some(u64::MAX)),
        ];
        for (what, before, now, expected) in cases {
            assert_eq!(nano_cores(before, now), expected, "{what}");
        }
        let close = Mono(Duration::from_nanos(1));
        assert_eq!(nano_cores(Some((at(0), 0)), (close, u64::MAX)), None, "no number is that large");
    }
}
