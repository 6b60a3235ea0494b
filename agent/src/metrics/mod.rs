//! What the agent tells of itself: metrics by the kubelet's names, which dashboards and alerts read, and a few of its own.
//!
//! Sources: `pkg/kubelet/metrics/metrics.go`, `pkg/kubelet/prober/prober_manager.go`.

mod families;
mod health;
mod now;
mod operations;
mod pods;
mod probes;
mod process;
mod subject;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use berth_core::{
    cluster::node::KUBELET_VERSION,
    event::Outcome,
    failure::Failure,
    id::PodUid,
    metrics::Starts,
    pod::port::status::Published,
    server::Check,
    status::{PodEvent, PodStatus},
};
use jiff::Timestamp;
use prometheus::{IntCounterVec, Opts, Registry, TextEncoder, core::Collector};
use serde::Deserialize;

pub use self::subject::Subject;
use self::{
    health::Health, now::Present, operations::Operations, pods::Pods, probes::Probes, process::Process,
};
use crate::{causes::with_causes, view::View};

/// Everything that is measured. Clones share it.
#[derive(Debug, Clone)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    operations: Operations,
    pods: Pods,
    present: Present,
    process: Process,
    probes: Probes,
    health: Health,
    of_pods: Mutex<OfPods>,
}

/// What is remembered of pods to measure them.
#[derive(Debug, Default)]
struct OfPods {
    starts: Starts,
    shown: BTreeMap<PodUid, Arc<PodStatus>>,
}

impl Metrics {
    /// Nothing was measured yet on the node of this name.
    ///
    /// # Errors
    /// When two families have one name.
    pub fn new(node: &str) -> prometheus::Result<Self> {
        let registry = Registry::new();
        let name = Opts::new("kubelet_node_name", "The node's name.").const_label("node", node);
        let name = prometheus::Gauge::with_opts(name)?;
        name.set(1.0);
        registry.register(Box::new(name))?;
        for (name, version) in
            [("kubernetes_build_info", KUBELET_VERSION), ("berth_build_info", env!("CARGO_PKG_VERSION"))]
        {
            let labels = HashMap::from([("git_version".to_owned(), version.to_owned())]);
            let build = prometheus::Gauge::with_opts(Opts::new(name, "The version.").const_labels(labels))?;
            build.set(1.0);
            registry.register(Box::new(build))?;
        }
        let inner = Inner {
            operations: Operations::new(&registry)?,
            pods: Pods::new(&registry)?,
            present: Present::new(&registry)?,
            process: Process::new(&registry, Timestamp::now())?,
            probes: Probes::new()?,
            health: Health::new()?,
            of_pods: Mutex::default(),
            registry,
        };
        Ok(Self(Arc::new(inner)))
    }

    /// Shows another family.
    ///
    /// # Errors
    /// When there is one of its name.
    pub fn show<C: Collector + Clone + 'static>(&self, family: C) -> prometheus::Result<C> {
        self.0.registry.register(Box::new(family.clone()))?;
        Ok(family)
    }

    /// Shows another counter with labels.
    ///
    /// # Errors
    /// When there is one of its name.
    pub fn counter(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntCounterVec> {
        self.show(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    /// An effect of this name has ended.
    pub fn ended(&self, name: &str, subject: &Subject, outcome: &Result<Outcome, Failure>, took: Duration) {
        let is_well = !matches!(outcome, Err(_) | Ok(Outcome::NotStarted(_)));
        self.0.operations.ended(name, is_well, took);
        self.0.pods.ended(subject, outcome, took);
        if let (Ok(Outcome::Image(Some(image))), "pull-image") = (outcome, name) {
            self.0.pods.pulled(image, took);
        }
        if let Subject::Probe(uid, id, kind) = subject {
            let status = self.of_pods().shown.get(uid).cloned();
            let all = status.iter().flat_map(|status| status.all_containers());
            let of_id = all.into_iter().find(|container| container.id.as_ref() == Some(id));
            if let Some((status, container)) = status.as_ref().zip(of_id) {
                let answer = match outcome {
                    Ok(Outcome::Probed(answer)) => Some(answer),
                    Ok(_) | Err(_) => None,
                };
                let key = (uid.clone(), container.name.clone(), *kind);
                self.0.probes.answered(&status.name, key, answer, took);
            }
        }
    }

    /// Everybody sees this of a pod now.
    pub fn published(&self, published: &Published, now: Timestamp) {
        let Published { pod, status, .. } = published;
        let started = {
            let mut of_pods = self.of_pods();
            of_pods.shown.insert(pod.uid.clone(), Arc::clone(status));
            of_pods.starts.published(pod, status, || created(&pod.manifest), now)
        };
        self.0.pods.start(&started);
    }

    /// This happened to a pod.
    pub fn noted(&self, uid: &PodUid, event: &PodEvent, now: Timestamp) {
        match event.reason.as_ref() {
            "Pulling" => self.of_pods().starts.pulling(uid, now),
            "Pulled" => self.of_pods().starts.pulled(uid, now),
            _ => {}
        }
    }

    /// A pod is no longer here.
    pub fn withdrawn(&self, uid: &PodUid) {
        let mut of_pods = self.of_pods();
        of_pods.shown.remove(uid);
        of_pods.starts.withdrawn(uid);
        drop(of_pods);
        self.0.probes.withdrawn(uid);
    }

    /// What `/metrics` shows, in the text format of Prometheus.
    #[must_use]
    pub fn text(&self, view: &View) -> String {
        self.0.present.count(&view.pods());
        self.0.process.look();
        text_of(&self.0.registry)
    }

    /// What `/metrics/probes` shows.
    #[must_use]
    pub fn probes_text(&self) -> String {
        text_of(self.0.probes.registry())
    }

    /// The agent's health was judged.
    pub fn checked(&self, checks: &[Check]) {
        self.0.health.checked(checks);
    }

    /// What `/metrics/slis` shows, after these.
    #[must_use]
    pub fn health_text(&self, checks: &[Check]) -> String {
        self.checked(checks);
        text_of(self.0.health.registry())
    }

    fn of_pods(&self) -> MutexGuard<'_, OfPods> {
        // No writer can leave a half-made entry behind.
        self.0.of_pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn text_of(registry: &Registry) -> String {
    TextEncoder::new().encode_to_string(&registry.gather()).unwrap_or_else(|error| {
        tracing::warn!(error = with_causes(&error), "metrics have no text");
        String::new()
    })
}

/// When a pod was created, as its manifest says.
fn created(manifest: &str) -> Option<Timestamp> {
    #[derive(Deserialize)]
    struct Manifest {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        creation_timestamp: Option<Timestamp>,
    }
    serde_json::from_str::<Manifest>(manifest).ok()?.metadata.creation_timestamp
}

#[cfg(test)]
mod tests;
