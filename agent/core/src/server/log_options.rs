//! Which log of a container is asked for, and what of it.
//!
//! Source: `getContainerLogs` of `pkg/kubelet/server/server.go`, `PodLogOptions` of `k8s.io/api/core/v1`, `ValidatePodLogOptions` of
//! `pkg/apis/core/v1/validation`, `validateContainerLogStatus` of `pkg/kubelet/kubelet_pods.go`.

use std::{str::FromStr, time::Duration};

use jiff::Timestamp;

use super::{
    Refusal,
    query::{Query, rfc3339},
};
use crate::{
    id::{Attempt, ContainerId, ContainerName},
    status::{ContainerState, ContainerStatus, PodStatus, Terminated},
};

/// How many runs back one is looked for by its id: statuses tell of the newest and the one before, and between these are only runs
/// that never came to be.
const RUNS_MAX: usize = 64;

/// What of a log is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogOptions {
    /// Of which run (`previous`).
    pub which: WhichRun,
    /// Whether what is written later is wanted too (`follow`).
    pub follow: bool,
    /// Whether lines begin with their time (`timestamps`).
    pub timestamps: bool,
    /// Nothing that was written before (`sinceTime`, `sinceSeconds`).
    pub since: Option<Timestamp>,
    /// Only so many lines from the end (`tailLines`).
    pub tail: Option<u64>,
    /// Only so many bytes (`limitBytes`); at least one.
    pub limit: Option<u64>,
    /// What of its output (`stream`).
    pub streams: LogStreams,
}

/// A run of a container, as a request names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhichRun {
    /// The one that runs, else the last.
    Current,
    /// The one before.
    Previous,
}

/// What of a container's output is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogStreams {
    /// Both, in the order in which they were written.
    All,
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A run whose log may be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRun {
    /// Its id.
    pub id: ContainerId,
    /// Its number, after which its log is named.
    pub attempt: Attempt,
}

impl LogOptions {
    /// Reads the options of a request that came at `now`.
    ///
    /// # Errors
    /// 400 for what cannot be read, 422 for what makes no sense.
    pub fn parse(query: &Query, now: Timestamp) -> Result<Self, Refusal> {
        let unreadable = || Refusal::new(400, r#"{"message": "Unable to decode query."}"#);
        let number = |name| optional(query.first(name)).map_err(|_not_a_number| unreadable());
        let tail = match query.first("tail").filter(|tail| !tail.is_empty()) {
            None => number("tailLines")?,
            Some("all") => None,
            Some(tail) => optional(Some(tail)).map_err(|_not_a_number| unreadable())?,
        };
        let (limit, since_seconds) = (number("limitBytes")?, number("sinceSeconds")?);
        let since_time = query.first("sinceTime").map(since_time).transpose().map_err(|()| unreadable())?;
        let streams = query.first("stream").map_or(Some(LogStreams::All), LogStreams::of);
        let makes_sense = tail.is_none_or(|tail| tail >= 0)
            && limit.is_none_or(|limit| limit > 0)
            && since_seconds.is_none_or(|seconds| seconds > 0 && since_time.is_none())
            && (tail.is_none() || streams == Some(LogStreams::All));
        let Some(streams) = streams.filter(|_| makes_sense) else {
            return Err(Refusal::new(422, r#"{"message": "Invalid request."}"#));
        };
        let ago = |seconds| now.checked_sub(Duration::from_secs(seconds)).unwrap_or(Timestamp::MIN);
        let unsigned = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
        Ok(Self {
            which: if switch(query, "previous") { WhichRun::Previous } else { WhichRun::Current },
            follow: switch(query, "follow"),
            timestamps: switch(query, "timestamps"),
            since: since_time.flatten().or_else(|| unsigned(since_seconds).map(ago)),
            tail: unsigned(tail),
            limit: unsigned(limit),
            streams,
        })
    }

    /// Whether the node gives what is wanted of the output: one stream alone only with the feature gate `PodLogsQuerySplitStreams`.
    ///
    /// # Errors
    /// 400 otherwise.
    pub fn check_streams(&self, may_split: bool) -> Result<(), Refusal> {
        if may_split || self.streams == LogStreams::All {
            return Ok(());
        }
        let stream = self.streams;
        Err(Refusal::new(
            400,
            format!(
                "unable to return the given log stream: \"{stream:?}\". Please enable PodLogsQuerySplitStreams feature gate in kubelet"
            ),
        ))
    }
}

impl LogStreams {
    fn of(name: &str) -> Option<Self> {
        match name {
            "All" => Some(Self::All),
            "Stdout" => Some(Self::Stdout),
            "Stderr" => Some(Self::Stderr),
            _ => None,
        }
    }
}

/// There is no such pod.
#[must_use]
pub fn no_pod(name: &str) -> Refusal {
    Refusal::new(404, format!("pod {name:?} does not exist"))
}

/// The pod has no such container.
#[must_use]
pub fn no_container(container: &ContainerName, pod: &str) -> Refusal {
    Refusal::new(404, format!("container {:?} not found in pod {pod:?}", container.as_str()))
}

/// The run that is meant.
///
/// # Errors
/// 400: it has no log, or none yet.
pub fn run(status: &PodStatus, container: &ContainerName, which: WhichRun) -> Result<LogRun, Refusal> {
    let pod = &status.name.name;
    let words = |what: &str, is: &str| {
        Refusal::new(400, format!("{what} {:?} in pod {pod:?} {is}", container.as_str()))
    };
    let is = |how: &str| words("container", &format!("is {how}"));
    let Some(found) = of(status, container) else { return Err(is("not available")) };
    let last = found.last_state.as_ref().and_then(|last| last.id.as_ref());
    let id = match (which, &found.state) {
        (WhichRun::Previous, _) => last.ok_or_else(|| words("previous terminated container", "not found")),
        (WhichRun::Current, ContainerState::Running { .. }) => {
            found.id.as_ref().ok_or_else(|| is("not available"))
        }
        (WhichRun::Current, ContainerState::Terminated(Terminated { id, .. })) => {
            id.as_ref().or(last).ok_or_else(|| is("terminated"))
        }
        (WhichRun::Current, ContainerState::Waiting { .. }) if found.last_state.is_some() => {
            last.ok_or_else(|| is("terminated"))
        }
        (WhichRun::Current, ContainerState::Waiting { reason, .. }) => {
            Err(is(&format!("waiting to start: {}", waits_for(reason))))
        }
    }?;
    let runs = (0..=found.restart_count).rev().take(RUNS_MAX);
    let attempt = runs.into_iter().find(|attempt| ContainerId::of(&status.uid, container, *attempt) == *id);
    attempt.map(|attempt| LogRun { id: id.clone(), attempt }).ok_or_else(|| Refusal::new(400, no_log(id)))
}

/// What clients are told of a run whose log is gone. Source: `GetContainerLogs` of `pkg/kubelet/kuberuntime/kuberuntime_container.go`.
#[must_use]
pub fn no_log(id: &ContainerId) -> String {
    format!("unable to retrieve container logs for containerd://{id}")
}

/// Whether a run goes on, by a status of its pod: only then something may still be written.
#[must_use]
pub fn goes_on(status: &PodStatus, container: &ContainerName, run: &LogRun) -> bool {
    of(status, container).is_some_and(|found| {
        found.id.as_ref() == Some(&run.id) && matches!(found.state, ContainerState::Running { .. })
    })
}

fn of<'a>(status: &'a PodStatus, container: &ContainerName) -> Option<&'a ContainerStatus> {
    status.all_containers().find(|found| found.name == *container)
}

fn waits_for(reason: &str) -> &str {
    match reason {
        "ErrImagePull" => "image can't be pulled",
        "ImagePullBackOff" => "trying and failing to pull image",
        other => other,
    }
}

/// Only `0` and `false` are no. Source: `Convert_Slice_string_To_bool` of `k8s.io/apimachinery/pkg/runtime`.
fn switch(query: &Query, name: &str) -> bool {
    query.first(name).is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
}

fn optional(value: Option<&str>) -> Result<Option<i64>, std::num::ParseIntError> {
    value.map(i64::from_str).transpose()
}

/// Older clients say nothing by `null`, which is a time from which everything is.
fn since_time(text: &str) -> Result<Option<Timestamp>, ()> {
    match text {
        "" | "null" => Ok(None),
        text => rfc3339(text).map(Some).ok_or(()),
    }
}

#[cfg(test)]
mod tests;
