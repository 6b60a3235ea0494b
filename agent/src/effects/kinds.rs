//! Each kind of effect: its name, what it competes for, how long it may take, and what it may not share.

use std::time::Duration;

use berth_core::{
    effect::{Act, Effect, NodeAct},
    id::{PodUid, SandboxId},
    oci::ContainerPlan,
    pod::port::{probe::ProbeCall, signal::SIGNAL_DEADLINE},
};

/// What effects compete for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// Namespaces and cgroups being made: blocking calls on the kernel, each on a thread.
    Kernel,
    /// The same being removed: never waits behind what starts.
    KernelEnds,
    /// What is kept below the root directory: blocking calls on its disk, which may hang.
    Disk,
    /// CNI plugins: processes, most of which queue for the kernel's one lock on links.
    Network,
    /// Writable layers.
    Layers,
    /// Shims and OCI runtimes being started: processes that use a core each.
    Start,
    /// Containers being given other resources: OCI runtimes too, each of which may hang.
    Resizes,
    /// Looks at images in containerd.
    Images,
    /// Layers of imported images being unpacked.
    Unpacks,
    /// Pulls: bounded by the core, which knows the settings.
    Pulls,
    /// Everything that ends something: never waits behind what starts.
    Stop,
    /// Signals: never wait behind anything.
    Signals,
    /// Looks: in no hurry.
    Looks,
    /// Questions to containers, which may take as long as a pod says.
    Probes,
    /// Hooks of containers, which may take as long as they like.
    Hooks,
}

/// One kind, for one effect.
#[derive(Debug, Clone)]
pub(super) struct EffectKind {
    pub(super) name: &'static str,
    /// `None` when it competes for nothing, or enters a lane only with a part of its work.
    pub(super) lane: Option<Lane>,
    /// From the moment it is asked for: the wait for a place counts.
    pub(super) deadline: Duration,
    /// What it works on by calls that block, where another effect on the same would race with it: a call that is stuck goes on
    /// after its effect was given up.
    pub(super) target: Option<Target>,
}

/// Something on the node that only one effect may work on at a time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    /// What it is, for people: `cgroup`, `network namespace`.
    pub(super) what: &'static str,
    /// Of which pod or sandbox; empty for the node's own.
    pub(super) of: String,
}

/// Names of the effects that are performed in tasks, for [`crate::failpoint`].
pub const KINDS: &[&str] = &[
    "ensure-cgroup",
    "ensure-dirs",
    "ensure-netns",
    "ensure-network",
    "ensure-sandbox",
    "ensure-volume",
    "ensure-rootfs",
    "start-container",
    "write-files",
    "look",
    "probe",
    "run-hook",
    "keep-end",
    "look-at-task",
    "resize-container",
    "check-memory",
    "signal",
    "read-termination-message",
    "remove-container",
    "remove-sandbox",
    "kill-shim",
    "remove-network",
    "remove-netns",
    "remove-volumes",
    "remove-cgroup",
    "remove-dirs",
    "drop-end",
    "sweep",
    "inspect-image",
    "pull-image",
    "measure-images",
    "list-images",
    "remove-image",
    "set-qos",
    "read-node-object",
];

/// For effects that only touch memory and local files.
const LOCAL: Duration = Duration::from_secs(60);
/// For effects that copy or remove trees of unknown size.
const TREE: Duration = Duration::from_secs(300);
/// For effects on containerd: several calls, each with the configured timeout (2 min by default) of its own.
pub(super) const RUNTIME: Duration = Duration::from_secs(240);
/// For CNI: as long as containerd's CRI gives a whole sandbox.
const PLUGINS: Duration = Duration::from_secs(240);
/// For pulls, which end themselves when nothing moves, and for unpacking, which takes as long as the disk needs: only against
/// a bug.
pub(super) const PULL: Duration = Duration::from_secs(6 * 3600);

/// For a probe beyond its own time, which ends it: only against a bug, and a shim that hangs.
const PROBE: Duration = Duration::from_secs(15);
/// For a command beyond that, whose own time begins with its start (`ExecSync` of `cri-client/pkg/remote_runtime.go`).
const COMMAND: Duration = Duration::from_secs(120);

/// For hooks, which end with their container: only against a bug.
const HOOK: Duration = Duration::from_secs(7 * 24 * 3600);

/// Targets of more than one kind.
const CGROUP: &str = "cgroup";
const NETNS: &str = "network namespace";
const KEPT_END: &str = "kept end";

impl EffectKind {
    /// The kind of an effect; `None` for those that the loop performs itself.
    pub(super) fn of(effect: &Effect) -> Option<Self> {
        match effect {
            Effect::Pod { pod, act, .. } => Self::of_act(pod, act),
            Effect::Node { act, .. } => {
                let of = |lane, deadline| Self::new(act.name(), lane, deadline);
                Some(match act {
                    NodeAct::GiveUpPull(_) | NodeAct::Note(_) => return None,
                    NodeAct::InspectImage(_) => of(None, PULL),
                    NodeAct::PullImage(_) => of(Some(Lane::Pulls), PULL),
                    NodeAct::MeasureImages => of(None, LOCAL),
                    NodeAct::ListImages => of(Some(Lane::Images), RUNTIME),
                    NodeAct::RemoveImage(_) => of(Some(Lane::Stop), RUNTIME),
                    NodeAct::ReadNodeObject => of(None, LOCAL),
                    NodeAct::SetQos(_) => {
                        of(Some(Lane::Kernel), LOCAL).alone("cgroups of the QoS classes", &"")
                    }
                })
            }
        }
    }

    /// Those without a lane work on files, which workers bound by pod, start something, which enters its lane when its files are
    /// there, or look at an image, which enters another one when it has to be unpacked.
    fn of_act(pod: &PodUid, act: &Act) -> Option<Self> {
        let on = |lane, deadline| Self::new(act.name(), Some(lane), deadline);
        let without_lane = |deadline| Self::new(act.name(), None, deadline);
        Some(match act {
            Act::Persist(_)
            | Act::Forget
            | Act::Publish(_)
            | Act::Withdraw
            | Act::Note(_)
            | Act::GiveUpHook(_) => return None,
            Act::EnsureCgroup(_) => on(Lane::Kernel, LOCAL).alone(CGROUP, pod),
            Act::EnsureDirs(_) => without_lane(LOCAL),
            Act::EnsureNetns(request) => on(Lane::Kernel, LOCAL).alone(NETNS, &request.sandbox),
            Act::EnsureNetwork(_) => on(Lane::Network, PLUGINS),
            Act::EnsureSandbox(_) => on(Lane::Start, RUNTIME),
            Act::EnsureVolume(_) => without_lane(TREE),
            Act::EnsureRootfs(_) => on(Lane::Layers, RUNTIME),
            Act::StartContainer(request) => without_lane(RUNTIME + TREE * trees(&request.plan)),
            Act::WriteFiles(_) => without_lane(LOCAL),
            Act::Look(_) => on(Lane::Looks, LOCAL).alone("look", pod),
            Act::Probe(request) => {
                let start = if matches!(request.call, ProbeCall::Exec(_)) { COMMAND } else { Duration::ZERO };
                on(Lane::Probes, request.timeout.saturating_add(start + PROBE))
            }
            Act::RunHook(_) => on(Lane::Hooks, HOOK),
            Act::KeepEnd(_) => on(Lane::Disk, LOCAL).alone(KEPT_END, pod),
            Act::LookAtTask(_) => on(Lane::Signals, SIGNAL_DEADLINE),
            Act::ResizeContainer(request) => {
                on(Lane::Resizes, RUNTIME).alone("resources of container", &request.id)
            }
            Act::CheckMemory(_) => on(Lane::Kernel, LOCAL),
            Act::Signal(_) => on(Lane::Signals, SIGNAL_DEADLINE),
            Act::ReadTerminationMessage(_) => without_lane(LOCAL),
            Act::RemoveContainer(_) => on(Lane::Stop, RUNTIME),
            Act::RemoveSandbox(_) => on(Lane::Stop, RUNTIME),
            Act::KillShim(_) => on(Lane::Stop, LOCAL),
            Act::RemoveNetwork(_) => on(Lane::Network, PLUGINS),
            Act::RemoveNetns(sandbox) => on(Lane::KernelEnds, LOCAL).alone(NETNS, sandbox),
            Act::RemoveVolumes { .. } => without_lane(TREE),
            Act::RemoveCgroup(_) => on(Lane::KernelEnds, LOCAL).alone(CGROUP, pod),
            Act::RemoveDirs(_) => without_lane(TREE),
            Act::DropEnd => on(Lane::Disk, LOCAL).alone(KEPT_END, pod),
            Act::Sweep => on(Lane::Stop, TREE).alone(CGROUP, pod),
        })
    }

    fn new(name: &'static str, lane: Option<Lane>, deadline: Duration) -> Self {
        debug_assert!(KINDS.contains(&name), "{name}");
        Self { name, lane, deadline, target: None }
    }

    /// No two at once on the same.
    fn alone(self, what: &'static str, of: &impl ToString) -> Self {
        Self { target: Some(Target { what, of: of.to_string() }), ..self }
    }
}

/// The sandbox whose loss an effect may be answered with.
pub(super) fn sandbox_of(act: &Act) -> Option<&SandboxId> {
    match act {
        Act::EnsureSandbox(request) => Some(&request.id),
        Act::StartContainer(request) => Some(&request.sandbox),
        Act::LookAtTask(request) => Some(&request.sandbox),
        _ => None,
    }
}

/// How many trees of unknown size are walked before a container begins, each with a bound of its own.
fn trees(plan: &ContainerPlan) -> u32 {
    u32::from(!plan.image_volumes.is_empty()) + u32::from(plan.relabel.is_some())
}

#[cfg(test)]
pub(super) mod tests;
