//! Slices made, changed and stopped by systemd.
//!
//! systemd is asked on the socket that it serves root on itself, as `systemctl` does, so no message bus is in between
//! that could be stopped. Each piece of work has a connection of its own: nothing is kept that a re-execution of
//! systemd could break, and nobody has to read signals while nothing is asked. Every call and every job has a deadline,
//! and everything may be repeated.
//!
//! Source: `systemd/common.go` of opencontainers/cgroups; org.freedesktop.systemd1(5).

mod wire;

use std::{path::PathBuf, time::Duration};

use berth_core::cgroup::{Property, PropertyValue, SLICE_BASICS, Slice};
use tokio::time::{error::Elapsed, timeout};
use zvariant::{DynamicType, OwnedObjectPath, Value};

use self::wire::{Message, MessageType, Method, Peer};
use super::Tree;
use crate::causes::with_causes;

pub use self::wire::WireError;

/// Where systemd serves root without a bus.
const SOCKET: &str = "/run/systemd/private";

const NAME: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const UNIT_EXISTS: &str = "org.freedesktop.systemd1.UnitExists";
const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";

/// A job takes the place of one of the same unit that waits.
const REPLACE: &str = "replace";

/// How long systemd may take to answer. It is silent during a daemon-reload, seconds on a large machine.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

/// How long a job may take, as with the kubelet.
const JOB_WITHIN: Duration = Duration::from_secs(30);

/// Ends of jobs that may come before the answer that says which of them is ours.
const JOBS_MAX: usize = 1024;

/// The end of a job: its path, and systemd's word for how it ended.
type Ended = (OwnedObjectPath, String);

/// systemd of this machine.
#[derive(Debug)]
pub struct Systemd {
    socket: PathBuf,
    answer_within: Duration,
    job_within: Duration,
}

/// Why a slice is not as it was to be.
#[derive(Debug, thiserror::Error)]
pub enum SystemdError {
    /// systemd is not there, or does not let the agent in.
    #[error(
        "connect to systemd at {socket}: with `cgroupDriver: systemd` the machine must be booted with systemd",
        socket = .0.display()
    )]
    Connect(PathBuf, #[source] WireError),
    /// It refused, or the connection broke.
    #[error("call {call} of systemd for {unit}")]
    Call {
        /// The method.
        call: &'static str,
        /// The unit.
        unit: String,
        /// Why not.
        #[source]
        source: WireError,
    },
    /// No answer, or no end of a job. Whether it was done is not known.
    #[error("call {call} of systemd for {unit}: nothing came within {within:?}; is systemd busy or hanging?")]
    Late {
        /// The method.
        call: &'static str,
        /// The unit.
        unit: String,
        /// The deadline.
        within: Duration,
    },
    /// The job did not do it.
    #[error("call {call} of systemd for {unit}: its job ended as `{result}`, see `systemctl status {unit}`")]
    Job {
        /// The method.
        call: &'static str,
        /// The unit.
        unit: String,
        /// systemd's word for how it ended.
        result: String,
    },
}

impl SystemdError {
    /// Whether systemd answered with the error of this name.
    fn is(&self, name: &str) -> bool {
        matches!(self, Self::Call { source: WireError::Answer { name: found, .. }, .. } if found == name)
    }
}

impl Default for Systemd {
    fn default() -> Self {
        Self { socket: PathBuf::from(SOCKET), answer_within: ANSWER_WITHIN, job_within: JOB_WITHIN }
    }
}

impl Systemd {
    /// Connects, for one piece of work.
    ///
    /// # Errors
    /// When systemd is not there, or does not answer in time.
    pub async fn connect(&self) -> Result<Session<'_>, SystemdError> {
        match timeout(self.answer_within, Peer::connect(&self.socket)).await {
            Ok(Ok(peer)) => Ok(Session { systemd: self, peer, ended: Vec::new() }),
            Ok(Err(source)) => Err(SystemdError::Connect(self.socket.clone(), source)),
            Err(_elapsed) => {
                Err(SystemdError::Late { call: "connect", unit: NAME.to_owned(), within: self.answer_within })
            }
        }
    }
}

impl Systemd {
    /// Makes the slices of levels run with their bounds, in the order given, which begins at the top, over one connection:
    /// one call for each slice that is missing or has bounds.
    ///
    /// # Errors
    /// The first slice that systemd refuses or fails, or is late with; those after it are not asked for.
    pub async fn ensure_all(&self, tree: &Tree, levels: &[(&str, &Slice)]) -> Result<(), SystemdError> {
        let mut session = self.connect().await?;
        for (path, slice) in levels {
            if tree.exists(path) {
                session.set(slice).await?;
            } else {
                session.ensure(slice).await?;
            }
        }
        Ok(())
    }
}

/// A connection. It ends with the value.
#[derive(Debug)]
pub struct Session<'a> {
    systemd: &'a Systemd,
    peer: Peer,
    /// Ends of jobs that came before they were waited for.
    ended: Vec<Ended>,
}

impl Session<'_> {
    /// Makes the slice run with its bounds: one call for a new one. Slices above it that do not run are made without
    /// bounds.
    ///
    /// # Errors
    /// When systemd refuses, fails or is late.
    pub async fn ensure(&mut self, slice: &Slice) -> Result<(), SystemdError> {
        let properties: Vec<_> = SLICE_BASICS.iter().chain(&slice.bounds).map(marshalled).collect();
        let others: Vec<(&str, Vec<(&str, Value<'_>)>)> = Vec::new();
        let new = (slice.name.as_str(), REPLACE, properties, others);
        match self.job("StartTransientUnit", &slice.name, &new).await {
            Err(error) if error.is(UNIT_EXISTS) => {}
            ended => return ended,
        }
        // It may be on its way out, as after a pod of the same UID: running, it stays and keeps what is set.
        self.job("StartUnit", &slice.name, &(slice.name.as_str(), REPLACE)).await?;
        self.set(slice).await
    }

    /// Sets the bounds of a slice that runs, until the machine is booted again. One call.
    ///
    /// # Errors
    /// When systemd refuses or is late.
    pub async fn set(&mut self, slice: &Slice) -> Result<(), SystemdError> {
        if slice.bounds.is_empty() {
            return Ok(());
        }
        let bounds: Vec<_> = slice.bounds.iter().map(marshalled).collect();
        let body = (slice.name.as_str(), true, bounds);
        self.call("SetUnitProperties", &slice.name, &body).await.map(drop)
    }

    /// Stops a slice and all units in it. Succeeds when there is none.
    ///
    /// # Errors
    /// When systemd fails or is late.
    pub async fn stop(&mut self, slice: &str) -> Result<(), SystemdError> {
        match self.job("StopUnit", slice, &(slice, REPLACE)).await {
            Err(error) if error.is(NO_SUCH_UNIT) => Ok(()),
            ended => ended,
        }
    }

    /// A call that begins a job, and the job's end.
    async fn job<B>(&mut self, call: &'static str, unit: &str, body: &B) -> Result<(), SystemdError>
    where
        B: serde::Serialize + DynamicType,
    {
        // The end of the job may come before the answer that says which job it is.
        self.ended.clear();
        let answer = self.call(call, unit, body).await?;
        let end = timeout(self.systemd.job_within, self.end_of(&answer)).await;
        let result = in_time(self.systemd.job_within, call, unit, end)?;
        if result == "done" {
            return Ok(());
        }
        // So that systemd forgets the unit if it counts as failed; how the job ended is what is told.
        if let Err(error) = self.call("ResetFailedUnit", unit, &unit).await {
            tracing::debug!(error = with_causes(&error), "a unit is not reset");
        }
        Err(SystemdError::Job { call, unit: unit.to_owned(), result })
    }

    async fn call<B>(&mut self, call: &'static str, unit: &str, body: &B) -> Result<Message, SystemdError>
    where
        B: serde::Serialize + DynamicType,
    {
        let method = Method { destination: NAME, path: PATH, interface: MANAGER, member: call };
        let within = self.systemd.answer_within;
        let answer = timeout(within, async {
            let serial = self.peer.send(method, body).await?;
            self.answer_to(serial).await
        });
        let answer = answer.await;
        in_time(within, call, unit, answer)
    }

    async fn answer_to(&mut self, serial: u32) -> Result<Message, WireError> {
        loop {
            let message = self.peer.receive().await?;
            match &message.kind {
                MessageType::Return { to } if *to == serial => return Ok(message),
                MessageType::Error { to, name } if *to == serial => {
                    let text = message.body().unwrap_or_default();
                    return Err(WireError::Answer { name: name.clone(), message: text });
                }
                MessageType::Signal { .. } => self.ended.extend(ended(&message)?),
                MessageType::Return { .. } | MessageType::Error { .. } | MessageType::Other => {}
            }
            if self.ended.len() > JOBS_MAX {
                return Err(WireError::Flood(JOBS_MAX));
            }
        }
    }

    /// How the job ended that an answer names.
    async fn end_of(&mut self, answer: &Message) -> Result<String, WireError> {
        let job: OwnedObjectPath = answer.body()?;
        loop {
            if let Some((_, result)) = self.ended.drain(..).find(|(path, _)| *path == job) {
                return Ok(result);
            }
            let message = self.peer.receive().await?;
            self.ended.extend(ended(&message)?);
        }
    }
}

/// The end of a job, if that is what a message tells.
fn ended(message: &Message) -> Result<Option<Ended>, WireError> {
    match &message.kind {
        MessageType::Signal { interface, member } if interface == MANAGER && member == "JobRemoved" => {
            let (_, job, _, result): (u32, OwnedObjectPath, String, String) = message.body()?;
            Ok(Some((job, result)))
        }
        MessageType::Signal { .. }
        | MessageType::Return { .. }
        | MessageType::Error { .. }
        | MessageType::Other => Ok(None),
    }
}

fn in_time<T>(
    within: Duration,
    call: &'static str,
    unit: &str,
    done: Result<Result<T, WireError>, Elapsed>,
) -> Result<T, SystemdError> {
    match done {
        Ok(done) => done.map_err(|source| SystemdError::Call { call, unit: unit.to_owned(), source }),
        Err(_elapsed) => Err(SystemdError::Late { call, unit: unit.to_owned(), within }),
    }
}

fn marshalled(property: &Property) -> (&'static str, Value<'static>) {
    let value = match &property.value {
        PropertyValue::Flag(flag) => Value::from(*flag),
        PropertyValue::Amount(amount) => Value::from(*amount),
        PropertyValue::Bits(bits) => Value::from(bits.clone()),
    };
    (property.name, value)
}

#[cfg(test)]
mod tests;
