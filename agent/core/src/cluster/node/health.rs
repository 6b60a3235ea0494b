//! Whether containerd answers, and what the node says when it does not.
//!
//! Source: `runtimeState` of `pkg/kubelet/runtime.go` (30 s), `Healthy` of `pkg/kubelet/pleg/generic.go` (3 min). Berth has no
//! PLEG, but who looks for its words finds them.

use std::time::Duration;

use crate::time::Mono;

/// How long containerd may say nothing (`maxWaitForContainerRuntime`).
pub(super) const DOWN_AFTER: Duration = Duration::from_secs(30);
/// How long it may say nothing until the kubelet's PLEG would be unhealthy too (`genericPlegRelistThreshold`).
const UNHEALTHY_AFTER: Duration = Duration::from_secs(180);
/// How often that text changes: the kubelet's does with every status, which makes as many patches.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// Containerd, as it was last heard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// What it calls itself; `None` before its first answer.
    pub version: Option<String>,
    /// When the oldest question was put that it has not answered; `None` while it answers.
    pub silent_since: Option<Mono>,
}

impl Health {
    /// As the kubelet writes it, which reads a version and leaves out what is before its first number.
    pub(super) fn version(&self) -> &str {
        self.version.as_deref().map_or("Unknown", |version| version.trim_start_matches('v'))
    }

    /// Why no containers can be run.
    pub(super) fn errors(&self, now: Mono) -> Vec<String> {
        if self.version.is_none() {
            return vec!["container runtime status check may not have completed yet".to_owned()];
        }
        let silent = self.silent_since.map_or(Duration::ZERO, |since| now.since(since));
        let mut errors = Vec::new();
        if silent >= DOWN_AFTER {
            errors.push("container runtime is down".to_owned());
        }
        if silent >= UNHEALTHY_AFTER {
            let minutes = silent.as_secs() / TOLD_EVERY.as_secs();
            let ago = match (minutes / 60, minutes % 60) {
                (0, minutes) => format!("{minutes}m0s"),
                (hours, minutes) => format!("{hours}h{minutes}m0s"),
            };
            errors
                .push(format!("PLEG is not healthy: pleg was last seen active {ago} ago; threshold is 3m0s"));
        }
        errors
    }

    /// When the node has other words about a containerd that stays silent.
    pub(super) fn next_change(&self, now: Mono) -> Option<Mono> {
        let since = self.silent_since?;
        let silent = now.since(since);
        let next = if silent < DOWN_AFTER {
            DOWN_AFTER
        } else if silent < UNHEALTHY_AFTER {
            UNHEALTHY_AFTER
        } else {
            let minutes = u32::try_from(silent.as_secs() / TOLD_EVERY.as_secs() + 1).unwrap_or(u32::MAX);
            TOLD_EVERY.saturating_mul(minutes)
        };
        Some(since + next)
    }
}
