//! What is known of one resource on the node, and when to try again.

use std::time::Duration;

use crate::{
    failure::{Failure, FailureKind},
    id::OpId,
    time::{Mono, doubled},
};

/// First delay after a failure that may pass; doubled by each further one.
pub const RETRY_FIRST: Duration = Duration::from_secs(1);

/// Longest delay between tries, so that what was repaired is found within a minute.
pub const RETRY_MAX: Duration = Duration::from_secs(60);

/// Delay after a configuration error. Source: `backOffPeriod` of `pkg/kubelet/kubelet.go`.
pub const CONFIG_RETRY: Duration = Duration::from_secs(10);

/// Longest wait for containerd's return before a try: the return itself ends the wait.
pub const RUNTIME_RETRY: Duration = Duration::from_secs(10);

/// One resource that a pod needs on the node.
#[derive(Debug, Clone, PartialEq)]
pub enum Resource<T> {
    /// Nothing was ever done for it, or it was removed.
    Absent,
    /// It may be there, from an earlier run of the agent: made again before use, removed at the end.
    Unknown,
    /// Being made.
    Ensuring(OpId),
    /// There.
    Ready(T),
    /// Making it failed, perhaps half way.
    Failed(Retry),
}

impl<T> Resource<T> {
    /// The resource, when it is there.
    pub fn ready(&self) -> Option<&T> {
        match self {
            Self::Ready(value) => Some(value),
            Self::Absent | Self::Unknown | Self::Ensuring(_) | Self::Failed(_) => None,
        }
    }

    /// Why it is not there, when making it failed.
    pub fn retry(&self) -> Option<&Retry> {
        match self {
            Self::Failed(retry) => Some(retry),
            Self::Absent | Self::Unknown | Self::Ensuring(_) | Self::Ready(_) => None,
        }
    }

    /// How often in a row making it failed.
    pub fn tries(&self) -> u32 {
        self.retry().map_or(0, |retry| retry.tries)
    }

    /// The effect that makes it, while it is being made.
    pub fn op(&self) -> Option<OpId> {
        match self {
            Self::Ensuring(op) => Some(*op),
            Self::Absent | Self::Unknown | Self::Ready(_) | Self::Failed(_) => None,
        }
    }

    /// Takes the outcome of the effect that makes it; that of any other effect says nothing about it.
    pub fn settle(&mut self, ended: EndedEffect, result: Result<T, Failure>) {
        if self.op() == Some(ended.op) {
            *self = match result {
                Ok(value) => Self::Ready(value),
                Err(failure) => Self::Failed(Retry::after(failure, ended.tries, ended.at)),
            };
        }
    }

    /// Lets a try go on now that waits because of this kind of failure.
    pub fn end_wait(&mut self, kind: FailureKind, now: Mono) {
        if let Self::Failed(retry) = self {
            retry.end_wait(kind, now);
        }
    }
}

/// An effect that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedEffect {
    /// Which.
    pub op: OpId,
    /// How often the same failed before, in a row.
    pub tries: u32,
    /// When.
    pub at: Mono,
}

/// A failure and when to try again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    /// What went wrong.
    pub failure: Failure,
    /// When to try again.
    pub at: Mono,
    /// Failures in a row.
    pub tries: u32,
}

impl Retry {
    /// The retry after a failure that followed `tries` others.
    #[must_use]
    pub fn after(failure: Failure, tries: u32, now: Mono) -> Self {
        let delay = match failure.kind {
            FailureKind::Config => CONFIG_RETRY,
            FailureKind::RuntimeDown => RUNTIME_RETRY,
            // The write of the record has its own retry, and ends this wait.
            FailureKind::Unrecorded => RETRY_MAX,
            FailureKind::Transient
            | FailureKind::Unknown
            | FailureKind::InvalidImageName
            | FailureKind::ImagePull
            | FailureKind::LayersGone
            | FailureKind::StartFailed
            | FailureKind::SandboxGone
            | FailureKind::Silent => growing(tries),
        };
        Self { failure, at: now + delay, tries: tries.saturating_add(1) }
    }

    /// Ends the wait when it is because of this kind of failure.
    pub fn end_wait(&mut self, kind: FailureKind, now: Mono) {
        if self.failure.kind == kind {
            self.at = now;
        }
    }
}

/// The delay after `tries` failures: 1 s, 2 s, 4 s … one minute.
#[must_use]
pub fn growing(tries: u32) -> Duration {
    doubled(RETRY_FIRST, tries, RETRY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(kind: FailureKind) -> Failure {
        Failure { kind, message: "x".into() }
    }

    #[test]
    fn delays_grow_to_a_minute() {
        let seconds: Vec<u64> = (0..9).map(|tries| growing(tries).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    }

    #[test]
    fn the_kind_of_failure_decides_the_delay() {
        let now = Mono(Duration::from_secs(100));
        let cases = [
            (FailureKind::Transient, 1),
            (FailureKind::Unknown, 1),
            (FailureKind::Config, 10),
            (FailureKind::RuntimeDown, 10),
        ];
        for (kind, seconds) in cases {
            assert_eq!(
                Retry::after(failure(kind), 0, now).at,
                now + Duration::from_secs(seconds),
                "{kind:?}"
            );
        }
    }

    #[test]
    fn containerds_return_ends_only_waits_for_it() {
        let now = Mono(Duration::from_secs(100));
        for (kind, ended) in [(FailureKind::RuntimeDown, true), (FailureKind::Transient, false)] {
            let mut resource: Resource<()> = Resource::Failed(Retry::after(failure(kind), 0, now));
            resource.end_wait(FailureKind::RuntimeDown, now);
            assert_eq!(resource.retry().map(|retry| retry.at == now), Some(ended), "{kind:?}");
        }
    }
}
