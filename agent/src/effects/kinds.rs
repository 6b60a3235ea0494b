//! Each kind of effect: its name, how many run at once, and how long one may take.

use std::time::Duration;

use berth_core::effect::{Act, Effect, NodeAct, SIGNAL_DEADLINE};

/// What effects compete for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// Files, mounts and cgroups of the node: blocking calls, each on a thread.
    Files,
    /// CNI plugins: processes, most of which queue for the kernel's one lock on links.
    Network,
    /// Shims and OCI runtimes being started: processes that use a core each.
    Start,
    /// Looks at images in containerd.
    Images,
    /// Pulls: bounded by the core, which knows the settings.
    Pulls,
    /// Everything that ends something: never waits behind what starts.
    Stop,
}

/// One kind.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) lane: Lane,
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
    "signal",
    "read-termination-message",
    "remove-container",
    "remove-sandbox",
    "remove-network",
    "remove-netns",
    "remove-volumes",
    "remove-cgroup",
    "remove-dirs",
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
const RUNTIME: Duration = Duration::from_secs(240);
/// For CNI: as long as containerd's CRI gives a whole sandbox.
const PLUGINS: Duration = Duration::from_secs(240);
/// For pulls, which end themselves when nothing moves: only against a bug.
const PULL: Duration = Duration::from_secs(6 * 3600);

impl Kind {
    /// The kind of an effect; `None` for those that the loop performs itself.
    pub(super) fn of(effect: &Effect) -> Option<Self> {
        match effect {
            Effect::Pod { act, .. } => Self::of_act(act),
            Effect::Node { act, .. } => Some(match act {
                NodeAct::InspectImage(_) => Self::new("inspect-image", Lane::Images, RUNTIME),
                NodeAct::PullImage(_) => Self::new("pull-image", Lane::Pulls, PULL),
                NodeAct::SetQos(_) => Self::new("set-qos", Lane::Files, LOCAL),
            }),
        }
    }

    fn of_act(act: &Act) -> Option<Self> {
        Some(match act {
            Act::Persist(_) | Act::Forget | Act::Publish(_) | Act::Note(_) => return None,
            Act::EnsureCgroup(_) => Self::new("ensure-cgroup", Lane::Files, LOCAL),
            Act::EnsureDirs(_) => Self::new("ensure-dirs", Lane::Files, LOCAL),
            Act::EnsureNetns(_) => Self::new("ensure-netns", Lane::Files, LOCAL),
            Act::EnsureNetwork(_) => Self::new("ensure-network", Lane::Network, PLUGINS),
            Act::EnsureSandbox(_) => Self::new("ensure-sandbox", Lane::Start, RUNTIME),
            Act::EnsureVolume(_) => Self::new("ensure-volume", Lane::Files, TREE),
            Act::EnsureRootfs(_) => Self::new("ensure-rootfs", Lane::Files, RUNTIME),
            Act::StartContainer(_) => Self::new("start-container", Lane::Start, RUNTIME),
            Act::Signal(_) => Self::new("signal", Lane::Stop, SIGNAL_DEADLINE),
            Act::ReadTerminationMessage(_) => Self::new("read-termination-message", Lane::Files, LOCAL),
            Act::RemoveContainer(_) => Self::new("remove-container", Lane::Stop, RUNTIME),
            Act::RemoveSandbox(_) => Self::new("remove-sandbox", Lane::Stop, RUNTIME),
            Act::RemoveNetwork(_) => Self::new("remove-network", Lane::Network, PLUGINS),
            Act::RemoveNetns(_) => Self::new("remove-netns", Lane::Stop, LOCAL),
            Act::RemoveVolumes => Self::new("remove-volumes", Lane::Stop, TREE),
            Act::RemoveCgroup(_) => Self::new("remove-cgroup", Lane::Stop, LOCAL),
            Act::RemoveDirs(_) => Self::new("remove-dirs", Lane::Stop, TREE),
            Act::Sweep => Self::new("sweep", Lane::Stop, TREE),
        })
    }

    fn new(name: &'static str, lane: Lane, deadline: Duration) -> Self {
        debug_assert!(KINDS.contains(&name), "{name}");
        Self { name, lane, deadline }
    }
}
