//! What is written down and shown is what happened: codes, reasons, times, counts, phases.

use std::collections::BTreeSet;

use berth_core::{
    id::{ContainerId, ContainerName, PodUid, SandboxId},
    observation::Exit,
    record::PodRecord,
    spec::{ContainerKind, Pod, RestartPolicy},
    status::{ContainerState, ContainerStatus, Phase, PodStatus, Terminated},
    time::Now,
};
use jiff::Timestamp;
use serde_json::Value;

use super::{
    Account, Answer, FORGOTTEN, KILLS_BEFORE_REMOVAL, LOST, Oracle, Run, Trust, code_in, resizes::Requests,
    stops::Over,
};

/// An end as it is told.
struct Told<'a> {
    code: u32,
    reason: &'a str,
    started_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
}

impl Oracle {
    /// Ends in a record are those that happened.
    pub(super) fn check_record(&mut self, record: &PodRecord) {
        let account = &self.pods[&record.uid];
        let mut broken = Vec::new();
        for (name, container) in &record.containers {
            for end in [&container.exit, &container.last_exit].into_iter().flatten() {
                let told = Told {
                    code: end.exit.code,
                    reason: end.reason.as_deref().unwrap_or(reason_of(&end.exit)),
                    started_at: end.exit.started_at,
                    finished_at: Some(end.exit.finished_at),
                };
                broken.push(account.check_end(name, Some(&end.id), &told).err());
            }
        }
        for broken in broken {
            self.judge("the record of an end is what happened", broken);
        }
    }

    /// A status is shown.
    pub(crate) fn shown(&mut self, uid: &PodUid, status: &PodStatus, now: Now) {
        let is_refused = self.is_refused(uid, status);
        let Some(account) = self.pods.get_mut(uid) else { return };
        account.remember_shown(status);
        let mut broken: Vec<(&'static str, Option<String>)> = Vec::new();
        for container in status.all_containers() {
            account.check_container(container, &self.silent, &mut broken);
        }
        let is_silent = |id: &SandboxId| self.silent.contains(id);
        broken.push(("readiness is lost for a reason", account.check_ready(status, is_silent, now)));
        broken.push(("a pod that does not fit is rejected, and no other", account.check_fit(status)));
        broken.push(("phases that end a pod stay", account.stays(status.phase)));
        if !account.is_unwritten {
            account.check_on_disk(status, &mut broken);
        }
        let has_ended = matches!(status.phase, Phase::Succeeded | Phase::Failed);
        if has_ended && !is_refused && !account.is_ended_otherwise() {
            broken.push(("a pod that has ended ended so", account.check_last_phase(status, now).err()));
        }
        for (rule, broken) in broken {
            self.judge(rule, broken);
        }
        let account = self.pods.get_mut(uid).expect("looked up above");
        if matches!(status.phase, Phase::Succeeded | Phase::Failed) {
            account.last_phase.get_or_insert(status.phase);
        }
    }

    /// Whether nothing of a pod began and there is perhaps no room for it beside the others. One that had room has none any more where it
    /// begins anew, of which no record is left, and others have grown.
    fn is_refused(&self, uid: &PodUid, status: &PodStatus) -> bool {
        let Some(account) = self.pods.get(uid) else { return false };
        let names_room = status.reason == "UnexpectedAdmissionError" || status.reason.starts_with("OutOf");
        let others = self.pods.keys().filter(|other| *other != uid);
        let others = others.filter_map(|other| self.asked.get(other).copied());
        let all = others.fold(Requests::of(&account.spec), Requests::plus);
        names_room && account.runs.values().all(Vec::is_empty) && !all.fits()
    }
}

impl Account {
    /// While nothing can be written, what was decided is shown all the same, also between two tries to write it.
    fn remember_shown(&mut self, status: &PodStatus) {
        if !self.is_unwritten {
            return;
        }
        for container in status.all_containers() {
            for end in ends_of(container) {
                if let Some(id) = &end.id
                    && let Some(run) = self.find_mut(id)
                {
                    run.shown_code = Some(end.exit_code);
                }
            }
        }
    }

    /// What is shown must be known to the next agent.
    fn check_on_disk(&self, status: &PodStatus, broken: &mut Vec<(&'static str, Option<String>)>) {
        let uid = &self.spec.uid;
        let has_ended = matches!(status.phase, Phase::Succeeded | Phase::Failed);
        if has_ended && self.unwanted.is_none() {
            let is_there = self.stored.as_ref().is_some_and(|record| record.terminal.is_some());
            broken.push(("a verdict is on disk before it is shown", (!is_there).then(|| uid.to_string())));
        }
        for container in status.all_containers() {
            let stored = self.stored.as_ref().and_then(|record| record.containers.get(&container.name));
            let attempt = stored.map_or(0, |run| run.attempt);
            let text =
                || format!("{uid}/{}: {} are shown, {attempt} are", container.name, container.restart_count);
            let is_more = container.restart_count > attempt;
            broken.push(("restarts are on disk before they are shown", is_more.then(text)));
        }
    }

    fn check_container(
        &self,
        container: &ContainerStatus,
        silent: &BTreeSet<SandboxId>,
        broken: &mut Vec<(&'static str, Option<String>)>,
    ) {
        let name = &container.name;
        let who = format!("{}/{name}", self.spec.uid);
        for end in ends_of(container) {
            let told = Told {
                code: end.exit_code,
                reason: &end.reason,
                started_at: end.started_at,
                finished_at: end.finished_at,
            };
            let wrong = self.check_end(name, end.id.as_ref(), &told).err();
            broken.push(("the status of an end is what happened", wrong));
        }
        let current = container.id.as_ref().and_then(|id| self.find(id)).map(|(_, run)| run);
        if matches!(container.state, ContainerState::Running { .. }) {
            // What was taken to run is shown so until its end is whole.
            let is_ending = |run: &Run| run.trust == Trust::Ending && !self.is_end_intended(name, run);
            let is_there = current
                .is_some_and(|run| run.process.is_some() || silent.contains(&run.sandbox) || is_ending(run));
            broken.push(("what is shown to run was started", (!is_there).then(|| who.clone())));
        }
        if let (ContainerState::Running { .. }, Some(run)) = (&container.state, current) {
            self.check_health(container, run, broken);
        }
        let shown = usize::try_from(container.restart_count).expect("small");
        let before = match &container.id {
            Some(id) => self.runs_of(name).iter().take_while(|run| run.id != *id).count(),
            None => 0,
        };
        let text = || format!("{who}: {shown} restarts are shown, {before} were");
        broken.push(("restarts are counted", (shown != before).then(text)));
    }

    fn is_end_intended(&self, name: &ContainerName, run: &Run) -> bool {
        self.intended.as_ref().is_some_and(|record| code_in(record, name, run).is_some())
    }

    fn check_end(
        &self,
        name: &ContainerName,
        id: Option<&ContainerId>,
        told: &Told<'_>,
    ) -> Result<(), String> {
        let is_unknown = matches!(
            (told.code, told.reason),
            (LOST, "Error" | "ContainerStatusUnknown" | "RestartingAllContainers") | (FORGOTTEN, "Unknown")
        );
        let text = |what: &str| {
            let run = id.and_then(|id| self.find(id)).map(|(_, run)| run);
            Err(format!("{}/{name}: {} {} is told: {what}: {run:?}", self.spec.uid, told.code, told.reason))
        };
        let Some((owner, run)) = id.and_then(|id| self.find(id)) else {
            return if is_unknown { Ok(()) } else { text("it was never asked to start") };
        };
        if owner != name {
            return text("it is another container's");
        }
        if is_unknown && run.may_be_unknown() {
            return Ok(());
        }
        let Some(process) = run.process else {
            let is_refusal = run.answer == Answer::Refused && told.code == 128 && told.reason == "StartError";
            return if is_refusal { Ok(()) } else { text("it had no process") };
        };
        let Some((exit, _)) = process.end else { return text("it runs") };
        let is_right = told.code == exit.code
            && (told.reason == reason_of(&exit) || self.may_be_removed(run, told.reason))
            && told.started_at == Some(process.began)
            && told.finished_at == Some(exit.finished_at);
        if is_right { Ok(()) } else { text("it ended otherwise") }
    }

    fn stays(&self, phase: Phase) -> Option<String> {
        let last = self.last_phase?;
        (last != phase).then(|| format!("{}: {last:?} became {phase:?}", self.spec.uid))
    }

    /// "All containers in the Pod have terminated in success, and will not be restarted", or at least one in failure.
    fn check_last_phase(&self, status: &PodStatus, now: Now) -> Result<(), String> {
        let uid = &self.spec.uid;
        let all =
            [ContainerKind::Main, ContainerKind::Init, ContainerKind::Sidecar, ContainerKind::Ephemeral];
        let unlearned = |name: &ContainerName| {
            self.last_run(name).is_some_and(|run| run.is_unanswered() || run.kills >= KILLS_BEFORE_REMOVAL)
        };
        if let Some(name) = self.any_running(&all).filter(|name| !unlearned(name)) {
            return Err(format!("{uid}: {:?} while {name} runs", status.phase));
        }
        let codes = self.spec.containers.iter().map(|one| {
            // The runtime knows nothing of a start that came to nothing, and the run before is shown.
            let last = self.runs_of(&one.name).iter().rev().find(|run| run.answer != Answer::Nothing)?;
            self.code_of(&one.name, last)
        });
        let all_succeeded = codes.into_iter().all(|code| code == Some(0));
        let is_ending = self.unwanted.is_some();
        // One that waited for its next run when the pod was removed is shown as lost, which is no success.
        let is_cut_off = is_ending && status.containers.iter().any(is_shown_as_lost);
        let expected = match self.over(now) {
            Some(Over::Deadline | Over::InitFailed) => Some(Phase::Failed),
            Some(Over::Done { succeeded: true }) => Some(Phase::Succeeded),
            Some(Over::Done { succeeded: false }) => Some(Phase::Failed),
            None if is_ending && all_succeeded => Some(Phase::Succeeded),
            None if is_ending => Some(Phase::Failed),
            None => None,
        };
        let had_ended = self.stored.as_ref().is_some_and(|record| record.terminal.is_some());
        match expected {
            Some(phase) if phase == status.phase => Ok(()),
            // What ended it came first, whatever came after.
            Some(_) if self.last_phase == Some(status.phase) || (had_ended && is_ending) => Ok(()),
            // Its time was up when it had ended already.
            Some(Phase::Failed) if all_succeeded && status.phase == Phase::Succeeded => Ok(()),
            _ if is_cut_off && status.phase == Phase::Failed => Ok(()),
            _ => Err(format!(
                "{uid}: {:?} is shown, {expected:?} is right ({:?}): {:#?}",
                status.phase, self.spec.restart_policy, self.runs
            )),
        }
    }
}

/// The end of the current run and that of the one before, as far as they are shown.
fn ends_of(container: &ContainerStatus) -> impl Iterator<Item = &Terminated> {
    let current = match &container.state {
        ContainerState::Terminated(end) => Some(end),
        ContainerState::Waiting { .. } | ContainerState::Running { .. } => None,
    };
    current.into_iter().chain(&container.last_state)
}

fn is_shown_as_lost(container: &ContainerStatus) -> bool {
    match &container.state {
        ContainerState::Terminated(end) => end.reason == "ContainerStatusUnknown",
        ContainerState::Waiting { .. } | ContainerState::Running { .. } => false,
    }
}

/// "Reason": `OOMKilled`, `Completed` for 0, `Error` for all else.
fn reason_of(exit: &Exit) -> &'static str {
    match (exit.oom_killed, exit.code) {
        (true, _) => "OOMKilled",
        (false, 0) => "Completed",
        (false, _) => "Error",
    }
}

impl Account {
    /// Whether a main container does not run again by its policy.
    pub(super) fn is_over(&self, name: &ContainerName) -> bool {
        let Some(last) = self.last_run(name) else { return false };
        if last.is_replaced() || last.round < self.round || self.calls(name, last) {
            return false;
        }
        match (self.spec.restart_policy, self.code_of(name, last)) {
            (RestartPolicy::Always, _) | (_, None) => false,
            (RestartPolicy::OnFailure, Some(code)) => code == 0,
            (RestartPolicy::Never, Some(_)) => true,
        }
    }
}

/// A main container that has ended for good and is told to be in another state: the API server takes none
/// (`ValidateContainerStateTransition`).
pub(super) fn left_its_end(spec: &Pod, before: &Value, after: &Value) -> Option<String> {
    let state = |status: &Value, name: &str| {
        let mut all = status["containerStatuses"].as_array().into_iter().flatten();
        all.find(|one| one["name"] == name).map(|one| one["state"].clone()).unwrap_or_default()
    };
    let may_leave = |code: &Value| match spec.restart_policy {
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => *code != 0,
        RestartPolicy::Never => false,
    };
    if spec.all_containers().any(|one| !one.restarts.rules.is_empty()) {
        return None;
    }
    spec.containers.iter().filter(|one| one.restarts.policy.is_none()).find_map(|one| {
        let name = one.name.as_str();
        let code = &state(before, name)["terminated"]["exitCode"];
        let has_left = !code.is_null() && !may_leave(code) && state(after, name)["terminated"].is_null();
        has_left.then(|| format!("{name} ended with {code}, and is {}", state(after, name)))
    })
}
