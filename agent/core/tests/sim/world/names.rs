//! Acts in a word, and which of them containerd performs.

use berth_core::effect::Act;

pub(super) fn needs_runtime(act: &Act) -> bool {
    matches!(
        act,
        Act::EnsureSandbox(_)
            | Act::EnsureRootfs(_)
            | Act::StartContainer(_)
            | Act::RemoveContainer(_)
            | Act::RemoveSandbox(_)
    )
}

/// The act in a word.
pub(crate) fn name_of(act: &Act) -> &'static str {
    match act {
        Act::Persist(_) => "persist",
        Act::Forget => "forget",
        Act::Publish(_) => "publish",
        Act::Withdraw => "withdraw",
        Act::Note(_) => "note",
        Act::EnsureCgroup(_) => "ensure-cgroup",
        Act::EnsureDirs(_) => "ensure-dirs",
        Act::EnsureNetns(_) => "ensure-netns",
        Act::EnsureNetwork(_) => "ensure-network",
        Act::EnsureSandbox(_) => "ensure-sandbox",
        Act::EnsureVolume(_) => "ensure-volume",
        Act::EnsureRootfs(_) => "ensure-rootfs",
        Act::KeepEnd(_) => "keep-end",
        Act::DropEnd => "drop-end",
        Act::StartContainer(_) => "start",
        Act::LookAtTask(_) => "look-at-task",
        Act::Signal(_) => "signal",
        Act::WriteFiles(_) => "write-files",
        Act::Look(_) => "look",
        Act::ReadTerminationMessage(_) => "read-termination-message",
        Act::RemoveContainer(_) => "remove-container",
        Act::RemoveSandbox(_) => "remove-sandbox",
        Act::KillShim(_) => "kill-shim",
        Act::RemoveNetwork(_) => "remove-network",
        Act::RemoveNetns(_) => "remove-netns",
        Act::RemoveVolumes => "remove-volumes",
        Act::RemoveCgroup(_) => "remove-cgroup",
        Act::RemoveDirs(_) => "remove-dirs",
        Act::Sweep => "sweep",
    }
}
