//! The JSON form of a record. Versioned: a reader refuses a version that it does not know.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use berth_core::{
    event::{Exit, NetworkStatus},
    id::{ContainerName, PodName, PodUid},
    record::{
        ContainerRecord, ExitRecord, PodRecord, RunImage, TerminalRecord, TerminationRecord, Transition,
    },
    spec::Source,
    status::ConditionKind,
    time::Mono,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

const VERSION: u32 = 1;

/// Every condition that a record can hold. One that is missing here would be forgotten, which a test shows.
const CONDITIONS: [ConditionKind; 5] = [
    ConditionKind::PodReadyToStartContainers,
    ConditionKind::Initialized,
    ConditionKind::Ready,
    ConditionKind::ContainersReady,
    ConditionKind::PodScheduled,
];

/// Why a record cannot be understood.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Not the JSON of a record.
    #[error("parse JSON")]
    Json(#[from] serde_json::Error),
    /// Made by another version of the agent.
    #[error("read version {0}: this agent reads version {VERSION}")]
    Version(u32),
}

#[derive(Serialize, Deserialize)]
struct Wire {
    version: u32,
    boot: String,
    uid: String,
    namespace: String,
    name: String,
    source: WireSource,
    manifest: String,
    started_at: Timestamp,
    sandbox: u32,
    network: Option<Vec<IpAddr>>,
    containers: BTreeMap<String, WireContainer>,
    conditions: BTreeMap<String, WireTransition>,
    termination: Option<WireTermination>,
    terminal: Option<WireTerminal>,
}

#[derive(Serialize, Deserialize, Clone, Copy)]
enum WireSource {
    File,
    Http,
    Api,
}

#[derive(Serialize, Deserialize)]
struct WireContainer {
    attempt: u32,
    begun_at: Duration,
    started_in: Option<u32>,
    image: Option<WireImage>,
    stopping: Option<WireTermination>,
    exit: Option<WireExit>,
    last_exit: Option<WireExit>,
    backoff_ms: u64,
    ready: bool,
}

#[derive(Serialize, Deserialize)]
struct WireExit {
    attempt: u32,
    code: u32,
    started_at: Option<Timestamp>,
    finished_at: Timestamp,
    oom_killed: bool,
    at: Duration,
    message: String,
    reason: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct WireImage {
    name: String,
    id: String,
    stop_signal: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct WireTransition {
    holds: bool,
    since: Timestamp,
}

#[derive(Serialize, Deserialize)]
struct WireTermination {
    began: Duration,
    deadline: Duration,
}

#[derive(Serialize, Deserialize)]
struct WireTerminal {
    succeeded: bool,
    reason: String,
    message: String,
}

pub(super) fn encode(record: &PodRecord, boot: &str) -> String {
    let wire = Wire {
        version: VERSION,
        boot: boot.to_owned(),
        uid: record.uid.as_str().to_owned(),
        namespace: record.name.namespace.clone(),
        name: record.name.name.clone(),
        source: match record.source {
            Source::File => WireSource::File,
            Source::Http => WireSource::Http,
            Source::Api => WireSource::Api,
        },
        manifest: record.manifest.to_string(),
        started_at: record.started_at,
        sandbox: record.sandbox,
        network: record.network.as_ref().map(|network| network.ips.clone()),
        containers: record
            .containers
            .iter()
            .map(|(name, container)| (name.as_str().to_owned(), WireContainer::from(container)))
            .collect(),
        conditions: record
            .conditions
            .iter()
            .map(|(kind, it)| (kind.as_str().to_owned(), WireTransition { holds: it.holds, since: it.since }))
            .collect(),
        termination: record.termination.map(WireTermination::from),
        terminal: record.terminal.as_ref().map(|terminal| WireTerminal {
            succeeded: terminal.succeeded,
            reason: terminal.reason.clone(),
            message: terminal.message.clone(),
        }),
    };
    serde_json::to_string(&wire).unwrap_or_default()
}

/// Reads a record back. Times since boot mean nothing after a reboot: in a record of another boot they are put at the
/// beginning, so that back-offs and grace periods have passed, and nothing is ready.
pub(super) fn decode(text: &str, boot: &str) -> Result<PodRecord, DecodeError> {
    let wire: Wire = serde_json::from_str(text)?;
    if wire.version != VERSION {
        return Err(DecodeError::Version(wire.version));
    }
    let this_boot = wire.boot == boot;
    let mono = |time: Duration| if this_boot { Mono(time) } else { Mono::default() };
    let containers = wire.containers.into_iter().map(|(name, container)| {
        let record = ContainerRecord {
            backoff_ms: if this_boot { container.backoff_ms } else { 0 },
            ready: this_boot && container.ready,
            ..container.record(mono)
        };
        (ContainerName::new(name), record)
    });
    let conditions = wire.conditions.into_iter().filter_map(|(kind, it)| {
        let transition = Transition { holds: it.holds, since: it.since };
        Some((CONDITIONS.into_iter().find(|known| known.as_str() == kind)?, transition))
    });
    Ok(PodRecord {
        uid: PodUid::new(wire.uid),
        name: PodName { namespace: wire.namespace, name: wire.name },
        source: match wire.source {
            WireSource::File => Source::File,
            WireSource::Http => Source::Http,
            WireSource::Api => Source::Api,
        },
        manifest: Arc::from(wire.manifest),
        started_at: wire.started_at,
        sandbox: wire.sandbox,
        network: wire.network.filter(|_| this_boot).map(|ips| NetworkStatus { ips }),
        containers: containers.collect(),
        conditions: conditions.collect(),
        termination: wire.termination.map(|termination| termination.record(mono)),
        terminal: wire.terminal.map(|terminal| TerminalRecord {
            succeeded: terminal.succeeded,
            reason: terminal.reason,
            message: terminal.message,
        }),
    })
}

impl From<&ContainerRecord> for WireContainer {
    fn from(record: &ContainerRecord) -> Self {
        Self {
            attempt: record.attempt,
            begun_at: record.begun_at.0,
            started_in: record.started_in,
            image: record.image.as_ref().map(|image| WireImage {
                name: image.name.clone(),
                id: image.id.clone(),
                stop_signal: image.stop_signal.clone(),
            }),
            stopping: record.stopping.map(WireTermination::from),
            exit: record.exit.as_ref().map(WireExit::from),
            last_exit: record.last_exit.as_ref().map(WireExit::from),
            backoff_ms: record.backoff_ms,
            ready: record.ready,
        }
    }
}

impl WireContainer {
    fn record(self, mono: impl Fn(Duration) -> Mono) -> ContainerRecord {
        ContainerRecord {
            attempt: self.attempt,
            begun_at: mono(self.begun_at),
            started_in: self.started_in,
            image: self.image.map(|image| RunImage {
                name: image.name,
                id: image.id,
                stop_signal: image.stop_signal,
            }),
            stopping: self.stopping.map(|stopping| stopping.record(&mono)),
            exit: self.exit.map(|exit| exit.record(&mono)),
            last_exit: self.last_exit.map(|exit| exit.record(&mono)),
            backoff_ms: self.backoff_ms,
            ready: self.ready,
        }
    }
}

impl From<TerminationRecord> for WireTermination {
    fn from(record: TerminationRecord) -> Self {
        Self { began: record.began.0, deadline: record.deadline.0 }
    }
}

impl WireTermination {
    fn record(self, mono: impl Fn(Duration) -> Mono) -> TerminationRecord {
        TerminationRecord { began: mono(self.began), deadline: mono(self.deadline) }
    }
}

impl From<&ExitRecord> for WireExit {
    fn from(record: &ExitRecord) -> Self {
        let ExitRecord { attempt, exit, at, message, reason } = record;
        Self {
            attempt: *attempt,
            code: exit.code,
            started_at: exit.started_at,
            finished_at: exit.finished_at,
            oom_killed: exit.oom_killed,
            at: at.0,
            message: message.clone(),
            reason: reason.clone(),
        }
    }
}

impl WireExit {
    fn record(self, mono: impl Fn(Duration) -> Mono) -> ExitRecord {
        let exit = Exit {
            code: self.code,
            started_at: self.started_at,
            finished_at: self.finished_at,
            oom_killed: self.oom_killed,
        };
        ExitRecord {
            attempt: self.attempt,
            exit,
            at: mono(self.at),
            message: self.message,
            reason: self.reason,
        }
    }
}
