//! What is measured of the node in its cluster.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use berth_core::metrics::{Made, NodeStart, Ready};
use jiff::Timestamp;
use prometheus::{Gauge, GaugeVec, HistogramVec, IntCounterVec, Registry, Result};

use super::families::{Families, number};

/// Seconds that a status may take until the API has it. Source: `pkg/kubelet/metrics/metrics.go`.
const TOLD_SECONDS: [f64; 11] = [0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];
/// Seconds that a certificate may have been in use, from a minute to four years. Source: `pkg/kubelet/certificate/kubelet.go`.
const ROTATION_SECONDS: [f64; 10] = [
    60.0,
    3600.0,
    14_400.0,
    86_400.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
    124_416_000.0,
];

/// Whose certificate one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certified {
    /// The node as a client of the API server.
    Client,
    /// The node's server.
    Server,
}

/// Families of the node in its cluster. Clones share them.
#[derive(Debug, Clone)]
pub struct InCluster {
    told: HistogramVec,
    mirrors: Gauge,
    client_failures: IntCounterVec,
    server_failures: IntCounterVec,
    rotated: HistogramVec,
    start: Arc<Mutex<NodeStart>>,
    /// Before the agent, before the making, the making, after it, and all.
    parts: [GaugeVec; 5],
}

impl InCluster {
    pub(super) fn new(registry: &Registry, start: NodeStart) -> Result<Self> {
        let families = Families(registry);
        let name = "kubelet_pod_status_sync_duration_seconds";
        let help = "Seconds from a change of a pod's status until the API has it.";
        let told = families.histogram(name, help, &[], &TOLD_SECONDS)?;
        let help = "Mirrors that the API has of pods of this node.";
        let mirrors = families.gauge("kubelet_mirror_pods", help, &[])?.with_label_values::<&str>(&[]);
        let failures = |name, help| families.counter(name, help, &[]);
        let client_failures = failures(
            "kubelet_certificate_manager_client_expiration_renew_errors",
            "Tries to replace the client certificate that failed.",
        )?;
        let server_failures = failures(
            "kubelet_server_expiration_renew_errors",
            "Tries to get a certificate for the server that failed.",
        )?;
        let name = "kubelet_certificate_manager_server_rotation_seconds";
        let help = "How old certificates of the server were when others took their place, in seconds.";
        let rotated = families.histogram(name, help, &[], &ROTATION_SECONDS)?;
        let part = |name, help| families.gauge(name, help, &[]);
        let parts = [
            part(
                "kubelet_node_startup_pre_kubelet_duration_seconds",
                "Seconds from the machine's boot to the agent.",
            )?,
            part(
                "kubelet_node_startup_pre_registration_duration_seconds",
                "Seconds from the agent's start until the Node object was to be made.",
            )?,
            part(
                "kubelet_node_startup_registration_duration_seconds",
                "Seconds that the making of the Node object took.",
            )?,
            part(
                "kubelet_node_startup_post_registration_duration_seconds",
                "Seconds from the Node object's making until it was ready.",
            )?,
            part("kubelet_node_startup_duration_seconds", "Seconds from the machine's boot until ready.")?,
        ];
        let start = Arc::new(Mutex::new(start));
        Ok(Self { told, mirrors, client_failures, server_failures, rotated, start, parts })
    }

    /// The API has a status, so long after its change.
    pub fn told(&self, took: Duration) {
        self.told.with_label_values::<&str>(&[]).observe(took.as_secs_f64());
    }

    /// The API has so many mirrors.
    pub fn mirrors(&self, count: usize) {
        self.mirrors.set(number(count));
    }

    /// A certificate could not be replaced.
    pub fn not_renewed(&self, whose: Certified) {
        let failures = match whose {
            Certified::Client => &self.client_failures,
            Certified::Server => &self.server_failures,
        };
        failures.with_label_values::<&str>(&[]).inc();
    }

    /// Another certificate has taken the place of the server's, which was so old.
    pub fn rotated(&self, age: Duration) {
        self.rotated.with_label_values::<&str>(&[]).observe(age.as_secs_f64());
    }

    /// The Node object is to be made.
    pub fn node_is_to_be_made(&self) {
        self.start(|start| start.tried(Timestamp::now()));
    }

    /// It was made.
    pub fn node_was_made(&self) {
        let Some(made) = self.start(|start| start.made(Timestamp::now())) else { return };
        let Made { before_agent, before_making, making } = made;
        self.set(0, before_agent);
        self.set(1, Some(before_making));
        self.set(2, Some(making));
    }

    /// It says that the node is ready.
    pub fn node_is_ready(&self) {
        let Some(Ready { after_making, total }) = self.start(|start| start.ready(Timestamp::now())) else {
            return;
        };
        self.set(3, Some(after_making));
        self.set(4, total);
    }

    fn start<T>(&self, happened: impl FnOnce(&mut NodeStart) -> T) -> T {
        happened(&mut self.start.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, part: usize, took: Option<Duration>) {
        if let (Some(part), Some(took)) = (self.parts.get(part), took) {
            part.with_label_values::<&str>(&[]).set(took.as_secs_f64());
        }
    }
}
