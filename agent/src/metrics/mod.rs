//! What the agent tells of itself: metrics by the kubelet's names, which dashboards and alerts read, and a few of its own.
//!
//! Sources: `pkg/kubelet/metrics/metrics.go`, `pkg/kubelet/prober/prober_manager.go`.

mod asked;
mod changes;
mod families;
mod health;
mod image_volumes;
mod in_cluster;
mod now;
mod operations;
mod pods;
mod probes;
mod process;
mod resizes;
mod subject;
mod turns;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use berth_core::{
    cluster::node::KUBELET_VERSION,
    event::Outcome,
    failure::Failure,
    id::PodUid,
    metrics::{Ends, NodeStart, ResizeMeasure, Starts, changes, rejection},
    pod::port::{probe::ProbeAnswer, status::Published},
    server::Check,
    status::PodEvent,
    time::Mono,
};
use jiff::Timestamp;
use prometheus::{GaugeVec, IntCounterVec, Opts, Registry, TextEncoder, core::Collector};
use serde::Deserialize;

use self::{
    asked::Asked, changes::Changed, health::Health, now::Present, operations::Operations, pods::Pods,
    probes::Probes, process::Process, resizes::Resizes, turns::Turns,
};
pub use self::{
    in_cluster::{Certified, InCluster},
    subject::{Asks, Subject},
};
use crate::{causes::with_causes, clock, config::FeatureGate, view::View};

/// Everything that is measured. Clones share it.
#[derive(Debug, Clone)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    view: View,
    operations: Operations,
    pods: Pods,
    changed: Changed,
    turns: Turns,
    in_cluster: InCluster,
    present: Present,
    resizes: Resizes,
    process: Process,
    probes: Probes,
    health: Health,
    of_pods: Mutex<OfPods>,
    /// Whoever counts anew what there is, and shows it.
    looking: Mutex<()>,
}

/// What is remembered of pods to measure them.
#[derive(Debug, Default)]
struct OfPods {
    starts: Starts,
    ends: Ends,
    /// Pods that went in this turn of the node loop: one that begins anew under its UID does so in the same turn.
    gone: BTreeSet<PodUid>,
}

impl Metrics {
    /// Nothing was measured yet on the node of this name, whose pods a view shows.
    ///
    /// # Errors
    /// When two families have one name.
    pub fn new(node: &str, view: View) -> prometheus::Result<Self> {
        let registry = Registry::new();
        let began = Timestamp::now();
        // A clock that tells a time before 1970 leaves it open when the machine was booted.
        let booted = began.checked_sub(clock::mono().0).ok();
        let name = Opts::new("kubelet_node_name", "Name of the node, as a label.").const_label("node", node);
        let name = prometheus::Gauge::with_opts(name)?;
        name.set(1.0);
        registry.register(Box::new(name))?;
        for (name, version) in
            [("kubernetes_build_info", KUBELET_VERSION), ("berth_build_info", env!("CARGO_PKG_VERSION"))]
        {
            let labels = HashMap::from([("git_version".to_owned(), version.to_owned())]);
            let build = prometheus::Gauge::with_opts(
                Opts::new(name, "Version of the program.").const_labels(labels),
            )?;
            build.set(1.0);
            registry.register(Box::new(build))?;
        }
        let process = Process::new(&registry, began)?;
        let inner = Inner {
            view,
            operations: Operations::new(&registry)?,
            pods: Pods::new(&registry)?,
            changed: Changed::new(&registry)?,
            turns: Turns::new(&registry)?,
            in_cluster: InCluster::new(&registry, NodeStart::new(booted, began))?,
            present: Present::new(&registry)?,
            resizes: Resizes::new(&registry)?,
            probes: Probes::new(process.started())?,
            health: Health::new(process.started())?,
            process,
            of_pods: Mutex::default(),
            looking: Mutex::default(),
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

    /// Shows another value, asked for whenever somebody reads it.
    ///
    /// # Errors
    /// When there is a family of its name.
    pub fn ask(
        &self,
        name: &str,
        help: &str,
        value: impl Fn() -> f64 + Send + Sync + 'static,
    ) -> prometheus::Result<()> {
        self.show(Asked::new(name, help, value)?).map(drop)
    }

    /// Shows how long a certificate holds, in whole seconds: below 0 when it has ended, and without end where there is none. Source:
    /// `NewKubeletServerCertificateManager` of `pkg/kubelet/certificate/kubelet.go`.
    ///
    /// # Errors
    /// When that is shown already.
    pub fn ask_until(
        &self,
        whose: Certified,
        until: impl Fn() -> Option<Timestamp> + Send + Sync + 'static,
    ) -> prometheus::Result<()> {
        let (name, help) = match whose {
            Certified::Client => (
                "kubelet_certificate_manager_client_ttl_seconds",
                "Seconds until the client certificate ends.",
            ),
            Certified::Server => (
                "kubelet_certificate_manager_server_ttl_seconds",
                "Seconds until the certificate of the server ends.",
            ),
        };
        let left = move |until: Timestamp| until.duration_since(Timestamp::now()).as_secs_f64().trunc();
        self.ask(name, help, move || until().map_or(f64::INFINITY, left))
    }

    /// Shows when the node loop had last looked at everything, which is since when it is busy, or now.
    ///
    /// # Errors
    /// When that is shown already.
    pub fn watch_turns(
        &self,
        busy_since: impl Fn() -> Option<Mono> + Send + Sync + 'static,
    ) -> prometheus::Result<()> {
        self.show(turns::last_seen(busy_since)?).map(drop)
    }

    /// Shows which feature gates are on. Source: `k8s.io/component-base/metrics/prometheus/feature`.
    ///
    /// # Errors
    /// When that is shown already.
    pub fn gates(&self, gates: &[FeatureGate]) -> prometheus::Result<()> {
        let options = Opts::new("kubernetes_feature_enabled", "Whether a feature gate is on.");
        let family = self.show(GaugeVec::new(options, &["name", "stage"])?)?;
        for FeatureGate { name, stage, is_on } in gates {
            family.with_label_values(&[name, stage]).set(f64::from(u8::from(*is_on)));
        }
        Ok(())
    }

    /// These pods were found in the runtime, and there is no record of them.
    pub fn unrecorded(&self, pods: BTreeSet<PodUid>) {
        self.0.changed.unrecorded(pods.len());
    }

    /// What is measured of the node in its cluster.
    #[must_use]
    pub fn in_cluster(&self) -> InCluster {
        self.0.in_cluster.clone()
    }

    /// A turn of the node loop begins.
    pub fn turn_begins(&self, now: Mono) {
        self.0.turns.begins(now);
    }

    /// One has ended.
    pub fn turn_ended(&self, took: Duration) {
        self.0.turns.ended(took);
        self.of_pods().gone.clear();
    }

    /// An effect of this name has ended.
    pub fn ended(&self, name: &str, subject: &Subject, outcome: &Result<Outcome, Failure>, took: Duration) {
        let is_well = !matches!(outcome, Err(_) | Ok(Outcome::NotStarted(_)));
        self.0.operations.ended(name, is_well, took);
        self.0.pods.ended(subject, outcome, took);
        if let (Ok(Outcome::Image(Some(image))), "pull-image") = (outcome, name) {
            self.0.pods.pulled(image, took);
        }
        if let (Subject::Collected(reason), Ok(Outcome::Done)) = (subject, outcome) {
            self.0.operations.collected(reason.as_str());
        }
        if let Subject::Probe(uid, id, kind, asks) = subject {
            if *asks == Asks::Command {
                let is_well = matches!(outcome, Ok(Outcome::Probed(ProbeAnswer::Success)));
                self.runtime_operation("exec_sync", is_well, took);
            }
            let status = self.0.view.status(uid);
            let all = status.iter().flat_map(|status| status.all_containers());
            let of_id = all.into_iter().find(|container| container.id.as_ref() == Some(id));
            if let (Some((status, container)), Ok(Outcome::Probed(answer))) =
                (status.as_ref().zip(of_id), outcome)
            {
                let key = (uid.clone(), container.name.clone(), *kind);
                // What is still told of a pod that has ended is for nobody.
                let is_wanted = || self.0.view.status(uid).is_some_and(|status| !status.phase.is_final());
                self.0.probes.answered(&status.name, key, answer, took, is_wanted);
            }
        }
    }

    /// An operation on the runtime that no effect stands for has ended, by the CRI's word. A command that fails is not well. Source:
    /// `pkg/kubelet/kuberuntime/instrumented_services.go`.
    pub fn runtime_operation(&self, operation: &'static str, is_well: bool, took: Duration) {
        self.0.operations.runtime(operation, is_well, took.as_secs_f64());
    }

    /// A session over WebSocket was asked for, by version 5 of the protocol or in a tunnel; older ones do not count. Source:
    /// `IncWebSocketStreamingRequest` of `pkg/kubelet/server/metrics/metrics.go`.
    pub fn web_socket(&self, subresource: &'static str) {
        self.0.operations.web_socket(subresource);
    }

    /// Everybody is to see this of a pod; the view still shows what was before.
    pub fn publishes(&self, published: &Published, now: Timestamp) {
        let Published { pod, status, remains, .. } = published;
        let before = self.0.view.status(&pod.uid);
        let before = before.as_deref();
        let (started, over, is_restarted) = {
            let mut of_pods = self.of_pods();
            let started = of_pods.starts.published(pod, status, || created(&pod.manifest), now);
            let over = of_pods.ends.published(before, status, *remains, now);
            (started, over, of_pods.gone.remove(&pod.uid))
        };
        self.0.pods.start(&started);
        let changed = &self.0.changed;
        changed.started(started.running);
        changed.over(over);
        if is_restarted {
            changed.restarted(pod.source);
        }
        let Some(before) = before else {
            if !status.phase.is_final() {
                changed.begins(pod.containers.len());
            }
            return;
        };
        let changes = changes(before, status);
        changed.ended(&changes);
        for (kind, code) in changes.without_image {
            self.0.pods.without_image(kind, code);
        }
    }

    /// This happened to a pod.
    pub fn noted(&self, uid: &PodUid, event: &PodEvent, now: Timestamp) {
        match event.reason.as_ref() {
            "Pulling" => self.of_pods().starts.pulling(uid, now),
            "Pulled" => self.of_pods().starts.pulled(uid, now),
            "Preempting" => self.0.changed.preempted(),
            reason => {
                if let Some(label) = rejection(reason) {
                    self.0.changed.rejected(label);
                }
            }
        }
    }

    /// This was measured of resizes.
    pub fn resizes(&self, measured: &[ResizeMeasure]) {
        measured.iter().for_each(|one| self.0.resizes.measured(one));
    }

    /// A pod is no longer here.
    pub fn withdrawn(&self, uid: &PodUid, now: Timestamp) {
        let mut of_pods = self.of_pods();
        of_pods.starts.withdrawn(uid);
        let over = of_pods.ends.withdrawn(uid, now);
        of_pods.gone.insert(uid.clone());
        drop(of_pods);
        self.0.changed.over(over);
    }

    /// The view shows that a pod has ended, or shows it no more.
    pub fn unprobed(&self, uid: &PodUid) {
        self.0.probes.withdrawn(uid);
    }

    /// What `/metrics` shows, in the text format of Prometheus.
    #[must_use]
    pub fn text(&self) -> String {
        // What is counted anew is shown as a whole.
        let _alone = self.0.looking.lock().unwrap_or_else(PoisonError::into_inner);
        let pods = self.0.view.pods();
        self.0.present.count(&pods);
        self.0.resizes.count(pods.iter().map(|pod| &*pod.status));
        self.0.process.look();
        text_of(&self.0.registry)
    }

    /// What `/metrics/probes` shows.
    #[must_use]
    pub fn probes_text(&self) -> String {
        text_of(self.0.probes.registry())
    }

    /// The agent's health was judged by these.
    pub fn checked<'a>(&self, checks: impl IntoIterator<Item = &'a Check>) {
        self.0.health.checked(checks);
    }

    /// What `/metrics/slis` shows.
    #[must_use]
    pub fn health_text(&self) -> String {
        text_of(self.0.health.registry())
    }

    /// What `/metrics/slis` shows begins anew. Source: `HandlerWithReset` of `k8s.io/component-base/metrics/http.go`.
    pub fn reset_health(&self) {
        self.0.health.reset();
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
