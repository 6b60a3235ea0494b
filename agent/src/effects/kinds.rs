//! Each kind of effect: its name, how many run at once, and how long one may take.

use std::time::Duration;

use berth_core::{
    effect::{Act, Effect, NodeAct},
    id::SandboxId,
    pod::port::signal::SIGNAL_DEADLINE,
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
}

/// One kind.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    /// `None` when it competes for nothing, or enters a lane only with a part of its work.
    pub(super) lane: Option<Lane>,
    /// From the moment it is asked for: the wait for a place counts.
    pub(super) deadline: Duration,
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
    "keep-end",
    "look-at-task",
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
    "set-qos",
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

impl Kind {
    /// The kind of an effect; `None` for those that the loop performs itself.
    pub(super) fn of(effect: &Effect) -> Option<Self> {
        match effect {
            Effect::Pod { act, .. } => Self::of_act(act),
            Effect::Node { act, .. } => Some(match act {
                NodeAct::InspectImage(_) => Self::without_lane("inspect-image", PULL),
                NodeAct::PullImage(_) => Self::new("pull-image", Lane::Pulls, PULL),
                NodeAct::SetQos(_) => Self::new("set-qos", Lane::Kernel, LOCAL),
            }),
        }
    }

    fn of_act(act: &Act) -> Option<Self> {
        Some(match act {
            Act::Persist(_) | Act::Forget | Act::Publish(_) | Act::Withdraw | Act::Note(_) => return None,
            Act::EnsureCgroup(_) => Self::new("ensure-cgroup", Lane::Kernel, LOCAL),
            Act::EnsureDirs(_) => Self::without_lane("ensure-dirs", LOCAL),
            Act::EnsureNetns(_) => Self::new("ensure-netns", Lane::Kernel, LOCAL),
            Act::EnsureNetwork(_) => Self::new("ensure-network", Lane::Network, PLUGINS),
            Act::EnsureSandbox(_) => Self::new("ensure-sandbox", Lane::Start, RUNTIME),
            Act::EnsureVolume(_) => Self::without_lane("ensure-volume", TREE),
            Act::EnsureRootfs(_) => Self::new("ensure-rootfs", Lane::Layers, RUNTIME),
            Act::StartContainer(_) => Self::without_lane("start-container", RUNTIME),
            Act::WriteFiles(_) => Self::without_lane("write-files", LOCAL),
            Act::Look(_) => Self::new("look", Lane::Looks, LOCAL),
            Act::KeepEnd(_) => Self::new("keep-end", Lane::Disk, LOCAL),
            Act::LookAtTask(_) => Self::new("look-at-task", Lane::Signals, SIGNAL_DEADLINE),
            Act::Signal(_) => Self::new("signal", Lane::Signals, SIGNAL_DEADLINE),
            Act::ReadTerminationMessage(_) => Self::without_lane("read-termination-message", LOCAL),
            Act::RemoveContainer(_) => Self::new("remove-container", Lane::Stop, RUNTIME),
            Act::RemoveSandbox(_) => Self::new("remove-sandbox", Lane::Stop, RUNTIME),
            Act::KillShim(_) => Self::new("kill-shim", Lane::Stop, LOCAL),
            Act::RemoveNetwork(_) => Self::new("remove-network", Lane::Network, PLUGINS),
            Act::RemoveNetns(_) => Self::new("remove-netns", Lane::KernelEnds, LOCAL),
            Act::RemoveVolumes => Self::without_lane("remove-volumes", TREE),
            Act::RemoveCgroup(_) => Self::new("remove-cgroup", Lane::KernelEnds, LOCAL),
            Act::RemoveDirs(_) => Self::without_lane("remove-dirs", TREE),
            Act::DropEnd => Self::new("drop-end", Lane::Disk, LOCAL),
            Act::Sweep => Self::new("sweep", Lane::Stop, TREE),
        })
    }

    /// For work on files, which workers bound by pod, for a start, which enters its lane when its files are there, and for a look
    /// at an image, which enters another one when it has to unpack it.
    fn without_lane(name: &'static str, deadline: Duration) -> Self {
        Self { lane: None, ..Self::new(name, Lane::Stop, deadline) }
    }

    fn new(name: &'static str, lane: Lane, deadline: Duration) -> Self {
        debug_assert!(KINDS.contains(&name), "{name}");
        Self { name, lane: Some(lane), deadline }
    }
}

/// Something on the node that only one effect may work on at a time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    /// What it is, for people: `cgroup`, `network namespace`.
    pub(super) what: &'static str,
    /// Of which pod or sandbox; empty for the node's own.
    pub(super) of: String,
}

/// What an effect works on by calls that block, where another effect on the same would race with it: a call that is stuck
/// goes on after its effect was given up.
pub(super) fn target(effect: &Effect) -> Option<Target> {
    let (what, of) = match effect {
        Effect::Node { act: NodeAct::SetQos(_), .. } => ("cgroups of the QoS classes", String::new()),
        Effect::Node { act: NodeAct::InspectImage(_) | NodeAct::PullImage(_), .. } => return None,
        Effect::Pod { pod, act, .. } => match act {
            Act::EnsureCgroup(_) | Act::RemoveCgroup(_) | Act::Sweep => ("cgroup", pod.to_string()),
            Act::EnsureNetns(sandbox) | Act::RemoveNetns(sandbox) => {
                ("network namespace", sandbox.to_string())
            }
            Act::Look(_) => ("look", pod.to_string()),
            Act::KeepEnd(_) | Act::DropEnd => ("kept end", pod.to_string()),
            Act::Persist(_)
            | Act::Forget
            | Act::Publish(_)
            | Act::Withdraw
            | Act::Note(_)
            | Act::EnsureDirs(_)
            | Act::EnsureNetwork(_)
            | Act::EnsureSandbox(_)
            | Act::EnsureVolume(_)
            | Act::EnsureRootfs(_)
            | Act::WriteFiles(_)
            | Act::StartContainer(_)
            | Act::LookAtTask(_)
            | Act::Signal(_)
            | Act::ReadTerminationMessage(_)
            | Act::RemoveContainer(_)
            | Act::RemoveSandbox(_)
            | Act::KillShim(_)
            | Act::RemoveNetwork(_)
            | Act::RemoveVolumes
            | Act::RemoveDirs(_) => return None,
        },
    };
    Some(Target { what, of })
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

#[cfg(test)]
mod tests;
