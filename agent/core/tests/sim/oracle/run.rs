//! One run of a container.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use berth_core::{
    id::{Attempt, ContainerId, SandboxId},
    observation::Exit,
    spec::{Container, Resources},
    time::Mono,
};
use jiff::{SignedDuration, Timestamp};

use super::{KILLS_BEFORE_REMOVAL, hooks::Hooks, probes::Health};

/// What a run is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meant {
    ToRun,
    ToStop,
}

/// One run of a container: what was asked for, and what came of it.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Run {
    pub(super) id: ContainerId,
    pub(super) attempt: Attempt,
    pub(super) sandbox: SandboxId,
    /// How often all containers of the pod had begun anew before it.
    pub(super) round: u32,
    /// What it was made from.
    pub(super) container: Arc<Container>,
    /// What its pod named for itself then.
    pub(super) whole: Option<Resources>,
    /// Its process, if one was ever made.
    pub(super) process: Option<Process>,
    pub(super) answer: Answer,
    /// Whether the agent knows that it ended.
    pub(super) is_told: bool,
    /// Since when another spec is wanted than the one it was made from.
    pub(super) changed: Option<Mono>,
    /// Whether that is so for its resources alone, which it may have to wait for.
    pub(super) waits_for_room: bool,
    /// What its probes said.
    pub(super) health: Health,
    /// What its hooks came to.
    pub(super) hooks: Hooks,
    /// When its stop began, by the record as it was last asked to be written.
    pub(super) stopped: Option<Mono>,
    /// When it was first asked to stop.
    pub(super) term: Option<Mono>,
    /// How far its stop signal is.
    pub(super) termed: Termed,
    /// Whether the agent that is up took it to run.
    pub(super) trust: Trust,
    /// What a record on disk says, or said, of it.
    pub(super) meant: Meant,
    /// When this agent could know that it runs.
    pub(super) learned: Mono,
    /// How often it was asked to be killed.
    pub(super) kills: u32,
    /// Whether it went, alone or with its sandbox, before anybody wrote down how it ended.
    pub(super) is_lost: bool,
    /// When its sandbox was found to be one that cannot go on.
    pub(super) given_up: Option<Mono>,
    /// When it was removed by an old record, with a pod that nobody wanted and whose last record could not be written.
    pub(super) taken_down: Option<Mono>,
    /// The code that it was last shown to have ended with while that could not be written down.
    pub(super) shown_code: Option<u32>,
    /// How far the wall clock was set since it ended, as long as that is not on disk.
    pub(super) stepped: SignedDuration,
    /// How far forward at most.
    pub(super) ahead: Duration,
    /// How often the agent began again since: it may have been away at a deadline.
    pub(super) agents: u32,
}

/// How far a stop signal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Termed {
    /// It was not asked for, as far as the agent that is up knows.
    No,
    /// It was asked for by this agent.
    Asked,
    /// It was sent.
    Sent,
}

/// Whether an agent takes something to run, since its shim did not answer when that agent began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// It does not.
    No,
    /// It does, or did.
    Taken,
    /// It did, and asked for its termination message since, which makes its end whole.
    Ending,
}

/// What the agent knows of a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// That the record says it was to be asked for, by an agent that was killed before it asked.
    Unasked,
    /// Nothing.
    None,
    /// That it came to nothing, as somebody saw who looked: then it is no run yet.
    Nothing,
    /// That there is a process, or was.
    Started,
    /// That the OCI runtime refused it.
    Refused,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Process {
    pub(super) began: Timestamp,
    /// How and when it ended.
    pub(super) end: Option<(Exit, Mono)>,
}

impl Run {
    pub(super) fn new(
        id: ContainerId,
        attempt: Attempt,
        sandbox: SandboxId,
        container: Arc<Container>,
    ) -> Self {
        Self {
            id,
            attempt,
            sandbox,
            round: 0,
            container,
            whole: None,
            process: None,
            answer: Answer::None,
            is_told: false,
            changed: None,
            waits_for_room: false,
            health: Health::default(),
            hooks: Hooks::default(),
            stopped: None,
            term: None,
            termed: Termed::No,
            trust: Trust::No,
            meant: Meant::ToRun,
            learned: Mono::default(),
            kills: 0,
            is_lost: false,
            given_up: None,
            taken_down: None,
            shown_code: None,
            stepped: SignedDuration::ZERO,
            ahead: Duration::ZERO,
            agents: 0,
        }
    }

    /// Whether the agent does not know if there was a process.
    pub(super) fn is_unanswered(&self) -> bool {
        matches!(self.answer, Answer::Unasked | Answer::None | Answer::Nothing)
    }

    /// Takes what is known of a start that nobody has answered.
    pub(super) fn suppose(&mut self, answer: Answer) {
        if matches!(self.answer, Answer::None | Answer::Nothing) {
            self.answer = answer;
        }
    }

    /// The agent hears how it ended, and so that there was a process, unless it had given it up before.
    pub(super) fn hear_end(&mut self, undecided: &BTreeSet<ContainerId>) {
        self.is_told = true;
        if self.is_unanswered() && undecided.contains(&self.id) {
            self.answer = Answer::Started;
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.process.is_some_and(|process| process.end.is_none())
    }

    /// How it ended, by its process.
    pub(super) fn end(&self) -> Option<(Exit, Mono)> {
        self.process.and_then(|process| process.end)
    }

    /// Whether the agent stopped it, and it alone, so that it runs again: its sandbox was not given up before it had ended.
    pub(super) fn is_stopped_alone(&self) -> bool {
        let is_over_by = |moment| self.end().is_some_and(|(_, end)| end <= moment);
        self.stopped.is_some() && self.hooks.failed.is_none() && self.given_up.is_none_or(is_over_by)
    }

    /// Whether nobody could say how it ended, so that it counts as failed.
    pub(super) fn may_be_unknown(&self) -> bool {
        self.is_lost || self.is_unanswered() || self.kills >= KILLS_BEFORE_REMOVAL
    }
}
