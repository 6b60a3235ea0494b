//! What a container asks for at its start and its stop.

use std::time::Duration;

use super::HttpGet;

/// `lifecycle`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lifecycle {
    /// Runs beside the container's first process, once that was started. Until it is over the container does not count as running;
    /// when it fails the container is stopped.
    pub post_start: Option<Hook>,
    /// Runs before the stop signal, within the grace period.
    pub pre_stop: Option<Hook>,
    /// `stopSignal` (KEP-4960), which counts before the image's.
    pub stop_signal: Option<String>,
}

impl Lifecycle {
    /// The hook of a moment, where there is one.
    #[must_use]
    pub fn hook(&self, moment: HookMoment) -> Option<&Hook> {
        match moment {
            HookMoment::PostStart => self.post_start.as_ref(),
            HookMoment::PreStop => self.pre_stop.as_ref(),
        }
    }
}

/// When a hook runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HookMoment {
    /// `postStart`.
    PostStart,
    /// `preStop`.
    PreStop,
}

/// What a hook does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hook {
    /// Runs a command in the container, as it is written: 0 is success.
    Exec(Vec<String>),
    /// An HTTP GET: any answer is success.
    Http(HttpGet),
    /// Lets time pass.
    Sleep(Duration),
    /// `tcpSocket`, which the API takes and the kubelet cannot run: it fails.
    Tcp,
}
