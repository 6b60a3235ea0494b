//! The termination message of a container.

use crate::{
    config::NodeConfig,
    effect::Act,
    event::Outcome,
    failure::Failure,
    id::{ContainerId, ContainerName, OpId},
    observation::Exit,
    paths,
    pod::{
        actual::{Life, Run},
        machine::{PodMachine, Shared},
        outcome::Slot,
        resource::Retry,
    },
    spec::{Container, TerminationMessagePolicy},
    time::Now,
};

/// Tries to read a termination message; then the container goes without.
const READ_TRIES_MAX: u32 = 3;

/// Where the termination message of a container is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TerminationMessageRequest {
    /// The container.
    pub id: ContainerId,
    /// The file on the node.
    pub file: Option<String>,
    /// The log to read from instead, when that is asked for and the file is empty.
    pub log: Option<String>,
}

/// How far the reading of a termination message is.
#[derive(Debug, Clone, PartialEq)]
pub enum TerminationMessage {
    /// To be read.
    Unread,
    /// Being read.
    Reading {
        /// The effect.
        op: OpId,
        /// Earlier tries.
        tries: u32,
    },
    /// Could not be read.
    Failed(Retry),
}

impl PodMachine {
    /// Asks for the termination message of a container that ended.
    pub(in crate::pod) fn read_termination_message(&mut self, name: &ContainerName, shared: &mut Shared<'_>) {
        let Some(container) = self.container(name) else { return };
        let Run::Ended(mut ended) = self.life.run(name).clone() else { return };
        let Some(request) = request(&self.life, &container, &ended.exit, shared.config) else {
            return self.conclude(name, ended.exit, String::new(), None, ended.at);
        };
        let tries = match &ended.message {
            TerminationMessage::Unread => 0,
            TerminationMessage::Reading { tries, .. } => *tries,
            TerminationMessage::Failed(retry) => retry.tries,
        };
        let act = Act::ReadTerminationMessage(Box::new(request));
        let op = self.ask(shared, Slot::TerminationMessage(name.clone()), tries, act);
        ended.message = TerminationMessage::Reading { op, tries };
        self.set_run(name, Run::Ended(ended));
    }

    /// Takes the outcome.
    pub(in crate::pod) fn termination_message_read(
        &mut self,
        op: OpId,
        name: &ContainerName,
        tries: u32,
        result: Result<Outcome, Failure>,
        now: Now,
    ) {
        let Some(Run::Ended(ended)) = self.life.actual.containers.get_mut(name) else { return };
        match ended.message {
            TerminationMessage::Reading { op: reading, .. } if reading == op => {}
            TerminationMessage::Reading { .. }
            | TerminationMessage::Unread
            | TerminationMessage::Failed(_) => return,
        }
        let (exit, at) = (ended.exit, ended.at);
        match result {
            Ok(Outcome::TerminationMessage(message)) => self.conclude(name, exit, message, None, at),
            Ok(_) => self.conclude(name, exit, String::new(), None, at),
            Err(_) if tries + 1 >= READ_TRIES_MAX => self.conclude(name, exit, String::new(), None, at),
            Err(failure) => {
                ended.message = TerminationMessage::Failed(Retry::after(failure, tries, now.mono));
            }
        }
    }
}

/// `None` when there is nowhere to read from.
fn request(
    life: &Life,
    container: &Container,
    exit: &Exit,
    config: &NodeConfig,
) -> Option<TerminationMessageRequest> {
    let record = &life.record;
    let id = life.container_id(&container.name);
    let attempt = record.containers.get(&container.name)?.attempt;
    let file = (!container.termination_message.path.is_empty())
        .then(|| paths::termination_log(&config.paths, &record.uid, &container.name, &id));
    let log = match container.termination_message.policy {
        TerminationMessagePolicy::FallbackToLogsOnError if exit.code != 0 => {
            Some(paths::container_log(&config.paths, &record.name, &record.uid, &container.name, attempt))
        }
        TerminationMessagePolicy::FallbackToLogsOnError | TerminationMessagePolicy::File => None,
    };
    (file.is_some() || log.is_some()).then_some(TerminationMessageRequest { id, file, log })
}
