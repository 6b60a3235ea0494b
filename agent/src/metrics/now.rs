//! What is so at the moment of a scrape: counted from the pods that everybody sees.

use std::collections::BTreeMap;

use berth_core::{
    metrics::{CONFIGS, LIFECYCLES, working},
    spec::Source,
    status::{ContainerState, ContainerStatus},
};
use prometheus::{GaugeVec, Registry, Result};

use super::{
    families::{Families, number},
    subject::plugin,
};
use crate::view::PodView;

/// Families that are counted anew.
#[derive(Debug)]
pub(super) struct Present {
    running_pods: GaugeVec,
    containers: GaugeVec,
    desired: GaugeVec,
    active: GaugeVec,
    working: GaugeVec,
    ephemeral: GaugeVec,
    volumes: GaugeVec,
}

impl Present {
    pub(super) fn new(registry: &Registry) -> Result<Self> {
        let families = Families(registry);
        Ok(Self {
            running_pods: families.gauge("kubelet_running_pods", "Pods with a running sandbox.", &[])?,
            containers: families.gauge(
                "kubelet_running_containers",
                "Containers by state.",
                &["container_state"],
            )?,
            desired: families.gauge("kubelet_desired_pods", "Pods that are wanted here.", &["static"])?,
            active: families.gauge("kubelet_active_pods", "Pods that have not ended.", &["static"])?,
            working: families.gauge(
                "kubelet_working_pods",
                "Pods that the node works on, by how far they are and who wants them.",
                &["lifecycle", "config", "static"],
            )?,
            ephemeral: families.gauge(
                "kubelet_managed_ephemeral_containers",
                "Ephemeral containers of the pods that are here.",
                &[],
            )?,
            volumes: families.gauge(
                "volume_manager_total_volumes",
                "Volumes of pods, by plugin.",
                &["plugin_name", "state"],
            )?,
        })
    }

    /// Counts.
    pub(super) fn count(&self, pods: &[PodView]) {
        let with_sandbox = pods.iter().filter(|pod| pod.sandbox.is_some()).count();
        self.running_pods.with_label_values::<&str>(&[]).set(number(with_sandbox));
        for state in ["created", "exited", "running", "unknown"] {
            let words = pods.iter().flat_map(statuses).flat_map(words);
            let count = words.filter(|word| *word == state).count();
            self.containers.with_label_values(&[state]).set(number(count));
        }
        let ephemeral = pods.iter().flat_map(|pod| &pod.status.ephemeral_containers).count();
        self.ephemeral.with_label_values::<&str>(&[]).set(number(ephemeral));
        self.count_wanted(pods);
        self.count_volumes(pods);
    }

    fn count_wanted(&self, pods: &[PodView]) {
        for (label, is_static) in [("", false), ("true", true)] {
            let mut counts = BTreeMap::<_, usize>::new();
            let (mut wanted, mut active) = (0, 0);
            for pod in pods.iter().filter(|pod| (pod.pod.source != Source::Api) == is_static) {
                let (lifecycle, config) = working(&pod.pod, &pod.status, pod.remains);
                *counts.entry((lifecycle, config)).or_default() += 1;
                if config == CONFIGS[0] {
                    wanted += 1;
                    active += usize::from(!pod.status.phase.is_final());
                }
            }
            for (lifecycle, config) in
                LIFECYCLES.into_iter().flat_map(|one| CONFIGS.map(|other| (one, other)))
            {
                let count = counts.get(&(lifecycle, config)).copied().unwrap_or_default();
                self.working.with_label_values(&[lifecycle, config, label]).set(number(count));
            }
            self.desired.with_label_values(&[label]).set(number(wanted));
            self.active.with_label_values(&[label]).set(number(active));
        }
    }

    fn count_volumes(&self, pods: &[PodView]) {
        self.volumes.reset();
        let mut counts = BTreeMap::<_, usize>::new();
        for pod in pods.iter().filter(|pod| !pod.status.phase.is_final()) {
            for volume in &pod.pod.volumes {
                let name = plugin(&volume.source);
                *counts.entry((name, "desired_state_of_world")).or_default() += 1;
                if pod.sandbox.is_some() {
                    *counts.entry((name, "actual_state_of_world")).or_default() += 1;
                }
            }
        }
        for ((name, state), count) in counts {
            self.volumes.with_label_values(&[name, state]).set(number(count));
        }
    }
}

fn statuses(pod: &PodView) -> impl Iterator<Item = &ContainerStatus> {
    pod.status.all_containers()
}

/// The states of a container's runs that there are. One that waits shows the run before it, which has ended. One that runs has the run
/// before beside it: of those that have ended the newest stays. Source: `pkg/kubelet/pleg/generic.go`
/// `updateRunningPodAndContainerMetrics`, `pkg/kubelet/kuberuntime/kuberuntime_gc.go` `evictContainers`.
fn words(container: &ContainerStatus) -> impl Iterator<Item = &'static str> {
    let (now, before) = match &container.state {
        ContainerState::Running { .. } => {
            let before = container.last_state.as_ref().and_then(|last| last.id.as_ref());
            let is_another = before.is_some() && before != container.id.as_ref();
            (Some("running"), is_another.then_some("exited"))
        }
        ContainerState::Terminated(_) | ContainerState::Waiting { .. } => {
            (container.id.as_ref().map(|_| "exited"), None)
        }
    };
    now.into_iter().chain(before)
}
