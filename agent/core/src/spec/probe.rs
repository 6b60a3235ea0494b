//! Probes of a container.

use std::time::Duration;

/// `startupProbe`, `readinessProbe` and `livenessProbe`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Probes {
    /// Until it succeeds the others wait; when it fails the container is restarted.
    pub startup: Option<Probe>,
    /// Whether the container can serve.
    pub readiness: Option<Probe>,
    /// When it fails the container is restarted.
    pub liveness: Option<Probe>,
}

impl Probes {
    /// The probe of a kind, where there is one.
    #[must_use]
    pub fn of(&self, kind: ProbeKind) -> Option<&Probe> {
        match kind {
            ProbeKind::Startup => self.startup.as_ref(),
            ProbeKind::Readiness => self.readiness.as_ref(),
            ProbeKind::Liveness => self.liveness.as_ref(),
        }
    }

    /// Whether there is any.
    #[must_use]
    pub fn is_any(&self) -> bool {
        ProbeKind::ALL.iter().any(|kind| self.of(*kind).is_some())
    }
}

/// What a probe decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProbeKind {
    /// Whether the container has started.
    Startup,
    /// Whether it can serve.
    Readiness,
    /// Whether it is to go on.
    Liveness,
}

impl ProbeKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Startup, Self::Readiness, Self::Liveness];

    /// As events name it. Source: `probeType.String` of `pkg/kubelet/prober/prober_manager.go`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Readiness => "Readiness",
            Self::Liveness => "Liveness",
        }
    }
}

/// One probe, with the defaults already applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// What is asked.
    pub handler: ProbeHandler,
    /// From the start of the container to the first question.
    pub initial_delay: Duration,
    /// How long an answer may take.
    pub timeout: Duration,
    /// From one question to the next; not zero.
    pub period: Duration,
    /// Successes in a row that count as one; not zero.
    pub successes: u32,
    /// Failures in a row that count as one; not zero.
    pub failures: u32,
    /// Grace period of the container when this probe ends it; the pod's when absent.
    pub grace: Option<Duration>,
}

/// What a probe asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeHandler {
    /// A command in the container: 0 is success. `$(NAME)` of the container's written variables is still to be expanded.
    Exec(Vec<String>),
    /// An HTTP GET: 200 to 399 is success.
    Http(HttpGet),
    /// A TCP connection.
    Tcp {
        /// Where; the pod when absent.
        host: Option<String>,
        /// Port.
        port: ProbePort,
    },
    /// `grpc.health.v1.Health/Check` at the pod.
    Grpc {
        /// Port.
        port: u16,
        /// Service that is asked about; may be empty.
        service: String,
    },
}

/// `httpGet`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpGet {
    /// Whether it is HTTPS, whose certificate is not looked at.
    pub tls: bool,
    /// Where; the pod when absent.
    pub host: Option<String>,
    /// Port.
    pub port: ProbePort,
    /// Path, perhaps with a query.
    pub path: String,
    /// `httpHeaders`, in order.
    pub headers: Vec<(String, String)>,
}

/// A port as a probe names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbePort {
    /// This one, written or found by its name.
    Number(u16),
    /// No port of the container has this name: such a probe can never ask.
    Unknown(String),
}
