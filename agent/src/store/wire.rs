//! The JSON form of a record's state. Versioned: whatever becomes of the rest, `version` stays a number in the outermost
//! object, so that an agent tells a record of a later one from a broken one.
//!
//! Version 1 held the manifest too, and neither goal nor ids: those are computed as its agent did.

mod container;
mod volume;

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use berth_core::{
    id::{ContainerName, PodName, PodUid, SandboxId},
    record::{
        ContainerRecord, EndedBy, Goal, PodRecord, Resizing, RestartBackoff, TerminalRecord,
        TerminationRecord, Transition,
    },
    spec::{CpuMemory, Resize, Source, Unallocated},
    status::{ConditionKind, NetworkStatus},
    time::Mono,
    users::HostIds,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use self::volume::WireVolumeImage;

/// The version that is written.
pub(super) const VERSION: u32 = 2;

/// Every condition that a record can hold. One that is missing here would be forgotten, which a test shows.
const CONDITIONS: [ConditionKind; 9] = [
    ConditionKind::PodReadyToStartContainers,
    ConditionKind::Initialized,
    ConditionKind::Ready,
    ConditionKind::ContainersReady,
    ConditionKind::PodScheduled,
    ConditionKind::PodResizePending,
    ConditionKind::PodResizeInProgress,
    ConditionKind::AllContainersRestarting,
    ConditionKind::DisruptionTarget,
];

/// Why a record cannot be understood.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Not the JSON of a record.
    #[error("parse JSON")]
    Json(#[from] serde_json::Error),
    /// Made by a later version of the agent.
    #[error("read version {0}: this agent reads versions up to {VERSION}")]
    Later(u32),
    /// There never was such a version.
    #[error("read version {0}: there is none")]
    Version(u32),
    /// The file that the manifest is in cannot be read.
    #[error("find its manifest")]
    NoManifest,
}

#[derive(Deserialize)]
struct Header {
    version: u32,
}

#[derive(Serialize, Deserialize)]
struct Wire {
    version: u32,
    boot: String,
    uid: String,
    namespace: String,
    name: String,
    source: WireSource,
    /// In version 1 only.
    #[serde(skip_serializing_if = "Option::is_none")]
    manifest: Option<String>,
    /// Earlier agents of version 2 pass over it, and take the resources of the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    resize: Option<WireResize>,
    /// Earlier agents of version 2 pass over it: what runs keeps what it has then, until it starts again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    resizing: Option<WireResizing>,
    started_at: Timestamp,
    /// Since version 2.
    goal: Option<WireGoal>,
    sandbox: u32,
    /// Since version 2.
    sandbox_id: Option<String>,
    /// Since version 2.
    earlier_sandbox: Option<String>,
    /// Absent in records of agents that gave no pod a user namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ids: Option<WireIds>,
    /// Absent on nodes without SELinux.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    level: Option<String>,
    /// Earlier agents of version 2 pass over it: their containers' mounts are not read-only below.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    recursive_read_only: bool,
    network: Option<Vec<IpAddr>>,
    /// Absent in records of pods without such volumes, and of agents that made none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    volume_images: BTreeMap<String, WireVolumeImage>,
    containers: BTreeMap<String, WireContainer>,
    conditions: BTreeMap<String, WireTransition>,
    /// Earlier agents of version 2 pass over it, and start the sandbox's containers again in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replacing: Option<WireTermination>,
    /// Absent in records of agents that never restarted all containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    restarting: Option<WireTermination>,
    termination: Option<WireTermination>,
    terminal: Option<WireTerminal>,
}

#[derive(Serialize, Deserialize)]
struct WireResize {
    allocated: String,
    generation: Option<i64>,
    /// Absent in records of agents that allocated nothing, and until it was judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unallocated: Option<WireUnallocated>,
}

impl WireResize {
    fn record(self) -> Resize {
        let unallocated = self
            .unallocated
            .map(|why| Unallocated { is_infeasible: why.is_infeasible, message: why.message });
        Resize { allocated: self.allocated.into(), generation: self.generation, unallocated }
    }
}

#[derive(Serialize, Deserialize)]
struct WireUnallocated {
    is_infeasible: bool,
    message: String,
}

#[derive(Serialize, Deserialize)]
struct WireResizing {
    generation: Option<i64>,
    error: Option<String>,
    /// Earlier agents of version 2 pass over it: the cgroup goes by what is allocated then, whatever still has more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    whole: Option<WireCpuMemory>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory: Option<u64>,
}

impl WireResizing {
    fn of(resizing: &Resizing) -> Self {
        let Resizing { generation, error, whole, memory } = resizing.clone();
        Self { generation, error, whole: whole.map(WireCpuMemory::from), memory }
    }

    fn record(self) -> Resizing {
        let Self { generation, error, whole, memory } = self;
        Resizing { generation, error, whole: whole.map(CpuMemory::from), memory }
    }
}

#[derive(Serialize, Deserialize)]
struct WireActuated {
    has: WireCpuMemory,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    perhaps: Option<WireCpuMemory>,
    /// Absent where it is the same as `perhaps`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at_least: Option<WireCpuMemory>,
}

/// Thousandths of a core and bytes; 0 is none.
#[derive(Serialize, Deserialize)]
struct WireCpuMemory {
    cpu_request: u64,
    cpu_limit: u64,
    memory_request: u64,
    memory_limit: u64,
}

#[derive(Serialize, Deserialize)]
struct WireIds {
    first: u32,
    count: u32,
}

#[derive(Serialize, Deserialize, Clone, Copy)]
enum WireSource {
    File,
    Http,
    Api,
}

#[derive(Serialize, Deserialize, Clone, Copy)]
enum WireGoal {
    Wanted,
    Removed,
}

#[derive(Serialize, Deserialize)]
struct WireContainer {
    /// Since version 2.
    id: Option<String>,
    attempt: u32,
    begun_at: Duration,
    /// Absent in records of agents that never restarted all containers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    anew: bool,
    started_in: Option<u32>,
    /// Absent in records of earlier agents, which did not keep it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_in: Option<u32>,
    /// Absent unless it runs under a shim of others, and in records of earlier agents.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    has_run: bool,
    image: Option<WireImage>,
    stopping: Option<WireTermination>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    actuated: Option<WireActuated>,
    /// Absent in records of agents that did not probe: what ran had started and was ready.
    #[serde(default)]
    probed: Option<WireProbed>,
    /// Absent in records of agents that ran no hooks: what was started had begun.
    #[serde(default)]
    hooked: Option<WireHooked>,
    exit: Option<WireExit>,
    last_exit: Option<WireExit>,
    backoff_ms: u64,
    /// Absent in records of earlier agents: when the run was begun.
    #[serde(default)]
    backoff_since: Option<Duration>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    other_backoffs: BTreeMap<String, WireBackoff>,
}

#[derive(Serialize, Deserialize)]
struct WireHooked {
    post_start: WirePostStart,
    pre_stop: bool,
    signalled: Option<Duration>,
}

#[derive(Serialize, Deserialize)]
enum WirePostStart {
    Due,
    Over,
    Failed(String),
}

#[derive(Serialize, Deserialize)]
struct WireProbed {
    started: bool,
    ready: bool,
    afterwards: WireAfterwards,
}

#[derive(Serialize, Deserialize, Clone, Copy)]
enum WireAfterwards {
    Again,
    Never,
}

#[derive(Serialize, Deserialize)]
struct WireBackoff {
    delay_ms: u64,
    since: Duration,
}

#[derive(Serialize, Deserialize)]
struct WireExit {
    /// Since version 2.
    id: Option<String>,
    attempt: u32,
    code: u32,
    started_at: Option<Timestamp>,
    finished_at: Timestamp,
    oom_killed: bool,
    at: Duration,
    message: String,
    reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    post_start: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct WireImage {
    name: String,
    id: String,
    stop_signal: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<WireUser>,
}

#[derive(Serialize, Deserialize)]
struct WireUser {
    uid: u32,
    gid: u32,
    supplemental_groups: Vec<u32>,
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
    /// Not admitted.
    #[serde(default, skip_serializing_if = "is_false")]
    rejected: bool,
    /// Ended by the node: what its condition says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    disrupted: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_false(value: &bool) -> bool {
    !value
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
        manifest: None,
        resize: record.resize.as_ref().map(|resize| WireResize {
            allocated: resize.allocated.to_string(),
            generation: resize.generation,
            unallocated: resize.unallocated.as_ref().map(|why| WireUnallocated {
                is_infeasible: why.is_infeasible,
                message: why.message.clone(),
            }),
        }),
        resizing: record.resizing.as_ref().map(WireResizing::of),
        started_at: record.started_at,
        goal: Some(match record.goal {
            Goal::Wanted => WireGoal::Wanted,
            Goal::Removed => WireGoal::Removed,
        }),
        sandbox: record.sandbox,
        sandbox_id: Some(record.sandbox_id.to_string()),
        earlier_sandbox: record.earlier_sandbox.as_ref().map(ToString::to_string),
        level: record.level.clone(),
        ids: record.ids.map(|HostIds { first, count }| WireIds { first, count }),
        recursive_read_only: record.recursive_read_only,
        network: record.network.as_ref().map(|network| network.ips.clone()),
        volume_images: volume::encode(&record.volume_images),
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
        replacing: record.replacing.map(WireTermination::from),
        restarting: record.restarting.map(WireTermination::from),
        termination: record.termination.map(WireTermination::from),
        terminal: record.terminal.as_ref().map(|terminal| WireTerminal {
            succeeded: terminal.succeeded,
            reason: terminal.reason.clone(),
            message: terminal.message.clone(),
            rejected: terminal.by == EndedBy::Admission,
            disrupted: match &terminal.by {
                EndedBy::Node(why) => Some(why.clone()),
                EndedBy::Itself | EndedBy::Admission => None,
            },
        }),
    };
    serde_json::to_string(&wire).unwrap_or_default()
}

/// Which version a text is, as far as it can be understood at all.
fn version(text: &str) -> Result<u32, DecodeError> {
    match serde_json::from_str::<Header>(text)?.version {
        0 => Err(DecodeError::Version(0)),
        version if version > VERSION => Err(DecodeError::Later(version)),
        version => Ok(version),
    }
}

/// Reads a record back; `manifest` is what is in the file beside it. Times since boot mean nothing after a reboot: in a
/// record of another boot they are put at the beginning, so that back-offs and grace periods have passed.
pub(super) fn decode(text: &str, manifest: Option<&str>, boot: &str) -> Result<PodRecord, DecodeError> {
    version(text)?;
    let wire: Wire = serde_json::from_str(text)?;
    let this_boot = wire.boot == boot;
    let mono = |time: Duration| if this_boot { Mono(time) } else { Mono::default() };
    let uid = PodUid::new(wire.uid);
    let containers = wire.containers.into_iter().map(|(name, container)| {
        let name = ContainerName::new(name);
        let record = container.record(&uid, &name, mono);
        if this_boot {
            return (name, record);
        }
        let (backoff, other_backoffs) = (RestartBackoff::default(), BTreeMap::new());
        (name, ContainerRecord { backoff, other_backoffs, ..record })
    });
    let containers = containers.collect();
    let conditions = wire.conditions.into_iter().filter_map(|(kind, it)| {
        let transition = Transition { holds: it.holds, since: it.since };
        Some((CONDITIONS.into_iter().find(|known| known.as_str() == kind)?, transition))
    });
    let goal = match (wire.goal, &wire.termination, &wire.terminal) {
        (Some(WireGoal::Removed), ..) | (None, Some(_), None) => Goal::Removed,
        (Some(WireGoal::Wanted) | None, ..) => Goal::Wanted,
    };
    let (sandbox_id, earlier_sandbox) = match wire.sandbox_id {
        Some(id) => (SandboxId::from_known(id), wire.earlier_sandbox.map(SandboxId::from_known)),
        None => {
            let before = wire.sandbox.checked_sub(1);
            (SandboxId::of(&uid, wire.sandbox), before.map(|before| SandboxId::of(&uid, before)))
        }
    };
    let manifest = wire.manifest.as_deref().or(manifest).ok_or(DecodeError::NoManifest)?;
    Ok(PodRecord {
        uid,
        name: PodName { namespace: wire.namespace, name: wire.name },
        source: match wire.source {
            WireSource::File => Source::File,
            WireSource::Http => Source::Http,
            WireSource::Api => Source::Api,
        },
        manifest: Arc::from(manifest),
        resize: wire.resize.map(WireResize::record),
        resizing: wire.resizing.map(WireResizing::record),
        started_at: wire.started_at,
        goal,
        sandbox: wire.sandbox,
        sandbox_id,
        earlier_sandbox,
        level: wire.level,
        ids: wire.ids.map(|WireIds { first, count }| HostIds { first, count }),
        recursive_read_only: wire.recursive_read_only,
        network: wire.network.filter(|_| this_boot).map(|ips| NetworkStatus { ips }),
        volume_images: volume::decode(wire.volume_images),
        containers,
        conditions: conditions.collect(),
        replacing: wire.replacing.filter(|_| this_boot).map(|replacing| replacing.record(mono)),
        restarting: wire.restarting.filter(|_| this_boot).map(|restarting| restarting.record(mono)),
        termination: wire.termination.map(|termination| termination.record(mono)),
        terminal: wire.terminal.map(|terminal| TerminalRecord {
            succeeded: terminal.succeeded,
            reason: terminal.reason,
            message: terminal.message,
            by: match terminal.disrupted {
                Some(why) => EndedBy::Node(why),
                None if terminal.rejected => EndedBy::Admission,
                None => EndedBy::Itself,
            },
        }),
    })
}

impl From<CpuMemory> for WireCpuMemory {
    fn from(amounts: CpuMemory) -> Self {
        let CpuMemory { cpu_request, cpu_limit, memory_request, memory_limit } = amounts;
        Self { cpu_request, cpu_limit, memory_request, memory_limit }
    }
}

impl From<WireCpuMemory> for CpuMemory {
    fn from(wire: WireCpuMemory) -> Self {
        let WireCpuMemory { cpu_request, cpu_limit, memory_request, memory_limit } = wire;
        Self { cpu_request, cpu_limit, memory_request, memory_limit }
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
