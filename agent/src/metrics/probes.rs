//! Answers of probes, by container. They go with their pod, so that what is shown is bounded by the pods that there are.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use berth_core::{
    id::{ContainerName, PodName, PodUid},
    pod::port::probe::ProbeAnswer,
    spec::ProbeKind,
};
use prometheus::{Gauge, HistogramVec, IntCounterVec, Registry, Result};

use super::families::Families;

/// Seconds that a probe may take.
const SECONDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// How a probe was answered, as its metric says. Source: `pkg/kubelet/prober/{prober,worker}.go`.
const RESULTS: [&str; 2] = ["successful", "failed"];

/// What is known of one probe.
type Key = (PodUid, ContainerName, ProbeKind);

/// Families of probes.
#[derive(Debug)]
pub(super) struct Probes {
    registry: Registry,
    total: IntCounterVec,
    seconds: HistogramVec,
    /// Those that are shown, and of which pod.
    shown: Mutex<BTreeMap<Key, PodName>>,
}

impl Probes {
    /// None was answered yet. When the agent began is shown beside them, by which a reader sees why counts begin anew (`InstallAuthRequiredHandlers`
    /// of `pkg/kubelet/server/server.go`).
    pub(super) fn new(agent_began: &Gauge) -> Result<Self> {
        let registry = Registry::new();
        registry.register(Box::new(agent_began.clone()))?;
        let families = Families(&registry);
        let total = families.counter(
            "prober_probe_total",
            "Answers of probes, by result.",
            &["probe_type", "result", "container", "pod", "namespace", "pod_uid"],
        )?;
        let seconds = families.histogram(
            "prober_probe_duration_seconds",
            "Seconds that probes take.",
            &["probe_type", "container", "pod", "namespace"],
            &SECONDS,
        )?;
        Ok(Self { registry, total, seconds, shown: Mutex::default() })
    }

    pub(super) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// A probe of a pod of this name was answered, which counts where somebody still wants it. One that could not be asked does not. Source:
    /// `doProbe` of `pkg/kubelet/prober/worker.go`.
    pub(super) fn answered(
        &self,
        pod: &PodName,
        key: Key,
        answer: &ProbeAnswer,
        took: Duration,
        is_wanted: impl FnOnce() -> bool,
    ) {
        let [successful, failed] = RESULTS;
        let (result, is_timed) = match answer {
            ProbeAnswer::Success | ProbeAnswer::Warning(_) => (successful, true),
            ProbeAnswer::Failure(_) => (failed, false),
            ProbeAnswer::Errored { .. } => return,
        };
        // Whoever withdraws them shows the end before.
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_wanted() {
            return;
        }
        let (uid, container, kind) = &key;
        let [kind, container, uid] = [kind.as_str(), container.as_str(), uid.as_str()];
        self.total.with_label_values(&[kind, result, container, &pod.name, &pod.namespace, uid]).inc();
        if is_timed {
            let labels = [kind, container, &pod.name, &pod.namespace];
            self.seconds.with_label_values(&labels).observe(took.as_secs_f64());
        }
        shown.insert(key, pod.clone());
    }

    /// A pod has ended, or is no longer here. Source: `doProbe` and `run` of `pkg/kubelet/prober/worker.go`.
    pub(super) fn withdrawn(&self, uid: &PodUid) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        for ((uid, container, kind), pod) in shown.extract_if(.., |(of, ..), _| of == uid) {
            let [kind, container, uid] = [kind.as_str(), container.as_str(), uid.as_str()];
            for result in RESULTS {
                // What was never counted is not there.
                drop(self.total.remove_label_values(&[
                    kind,
                    result,
                    container,
                    &pod.name,
                    &pod.namespace,
                    uid,
                ]));
            }
            drop(self.seconds.remove_label_values(&[kind, container, &pod.name, &pod.namespace]));
        }
    }
}
