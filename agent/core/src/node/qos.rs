//! The values of the QoS cgroups follow the requests of the pods.

use crate::{
    cgroup::QosValues,
    effect::{Effect, NodeAct},
    event::Outcome,
    failure::Failure,
    ops::{Ops, Purpose},
    pod::resource::Retry,
    time::Mono,
};

/// What the QoS cgroups are set to.
#[derive(Debug)]
pub(super) enum Qos {
    /// Not set since the agent began, or it is not known whether they are.
    Unset,
    /// Being set.
    Setting(Box<QosValues>),
    /// Set.
    Set(Box<QosValues>),
    /// Could not be set.
    Failed(Retry),
}

impl Qos {
    /// Sets them when they are not as `wanted`.
    pub(super) fn poll_effect(&mut self, wanted: QosValues, ops: &mut Ops, now: Mono) -> Option<Effect> {
        let tries = match self {
            Self::Setting(_) => return None,
            Self::Set(values) if **values == wanted => return None,
            Self::Failed(retry) if retry.at > now => return None,
            Self::Failed(retry) => retry.tries,
            Self::Unset | Self::Set(_) => 0,
        };
        let op = ops.open(Purpose::Qos { tries });
        let values = Box::new(wanted);
        *self = Self::Setting(values.clone());
        Some(Effect::Node { op, act: NodeAct::SetQos(values) })
    }

    pub(super) fn settle(&mut self, tries: u32, result: Result<Outcome, Failure>, now: Mono) {
        let Self::Setting(values) = std::mem::replace(self, Self::Unset) else { return };
        *self = match result {
            Ok(_) => Self::Set(values),
            Err(failure) => {
                tracing::warn!(why = failure.message, "qos cgroups not set");
                Self::Failed(Retry::after(failure, tries, now))
            }
        };
    }

    pub(super) fn poll_timeout(&self) -> Option<Mono> {
        match self {
            Self::Failed(retry) => Some(retry.at),
            Self::Unset | Self::Setting(_) | Self::Set(_) => None,
        }
    }
}
