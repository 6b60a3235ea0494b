//! Which containers may start: the restart policy, init containers before main ones, sidecars in turn.

use std::{mem, sync::Arc, time::Duration};

use berth_core::{
    id::{ContainerId, ContainerName, PodUid, SandboxId},
    pod::port::start::StartRequest,
    record::{ContainerRecord, PodRecord},
    spec::{Container, ContainerKind, RestartPolicy},
    time::Now,
};

use super::{Account, Answer, KILLS_BEFORE_REMOVAL, Oracle, Run};

/// "The kubelet restarts them with an exponential back-off delay (10s, 20s, 40s, …)", the first time at once.
const BACKOFF_FIRST: Duration = Duration::from_secs(10);

/// "that is capped at 300 seconds (5 minutes)".
const BACKOFF_LONGEST: Duration = Duration::from_secs(300);

/// "Once a container has executed for 10 minutes without any problems, the kubelet resets the restart back-off timer."
const BACKOFF_RESET: Duration = Duration::from_secs(600);

impl Oracle {
    pub(super) fn start_asked(&mut self, pod: &PodUid, request: &StartRequest, now: Now) {
        let name = &request.container.name;
        self.begins_anew(pod, request);
        let account = self.pods.get_mut(pod).expect("looked up by the caller");
        // What the record says was to be asked for had its turn.
        let order = account.order_before(name, &request.sandbox);
        account.take_intended(name, &request.id);
        let account = &self.pods[pod];
        // Asked again for what was asked, it may only look: what it finds may have ended.
        let is_look = account.find(&request.id).is_some_and(|(_, run)| run.process.is_some());
        let goes_on = if is_look { Ok(()) } else { account.is_going_on(name, now) };
        let known = account.find(&request.id).is_some();
        let turn = account.is_before_its_turn(name, &request.sandbox);
        let is_once = request.container.kind == ContainerKind::Ephemeral;
        let again = (!known).then(|| account.may_run_again(name, &request.sandbox)).flatten();
        let waits = !known && !is_once;
        let backoff = waits.then(|| account.backoff_before(&request.container, now)).flatten();
        let is_on_disk = account.is_on_disk(request);
        let is_its_image = request.image.name == crate::world::image_info(&request.container.image).name;
        self.judge("a run is on disk before it starts", is_on_disk.err());
        self.judge(
            "a container is made from its image",
            (!is_its_image).then(|| format!("{pod}/{name}: {}", request.image.name)),
        );
        self.judge("nothing starts in a pod that ends", goes_on.err());
        if is_once {
            let again = (request.attempt > 0).then(|| format!("{pod}/{name}: attempt {}", request.attempt));
            self.judge("an ephemeral container runs once", again);
        }
        self.judge("init containers and sidecars come first, in order", order.err());
        if let Some(turn) = turn {
            self.judge("a container starts when those before it have begun", turn.err());
        }
        if let Some(again) = again {
            self.judge("restart policy", again.err());
        }
        if let Some(backoff) = backoff {
            self.judge("a crashing container waits before it runs again", backoff.err());
        }
        if !known {
            let container = Arc::clone(&request.container);
            let run = Run::new(request.id.clone(), request.attempt, request.sandbox.clone(), container);
            let account = self.pods.get_mut(pod).expect("looked up above");
            let round = account.round;
            let whole = request.pod.resources.clone();
            account.runs.entry(name.clone()).or_default().push(Run { round, whole, ..run });
        } else if let Some(account) = self.pods.get_mut(pod) {
            let round = account.round;
            let Some(run) = account.find_mut(&request.id) else { return };
            run.round = round;
            // What never began in a sandbox that went is not given up with it.
            if mem::replace(&mut run.sandbox, request.sandbox.clone()) != request.sandbox {
                run.given_up = None;
            }
            run.container = Arc::clone(&request.container);
            run.whole.clone_from(&request.pod.resources);
            run.suppose(Answer::None);
            run.health.forget_answers();
        }
    }
}

impl Account {
    /// A pod whose manifest has gone, whose time is up or that has ended starts nothing.
    fn is_going_on(&self, name: &ContainerName, now: Now) -> Result<(), String> {
        let uid = &self.spec.uid;
        if self.unwanted.is_some() {
            return Err(format!("{uid}/{name}: its manifest has gone"));
        }
        if let Some(phase) = self.last_phase {
            return Err(format!("{uid}/{name}: the pod has {phase:?}"));
        }
        match self.over_by_record(now) {
            Some(over) => Err(format!("{uid}/{name}: the pod is over: {over:?}: {:#?}", self.runs)),
            None => Ok(()),
        }
    }

    /// Which run it is and that it is asked for must be known to the next agent.
    fn is_on_disk(&self, request: &StartRequest) -> Result<(), String> {
        let stored = self.stored.as_ref().and_then(|record| record.containers.get(&request.container.name));
        let is_there = stored.is_some_and(|run| {
            run.id == request.id && run.attempt == request.attempt && run.started_in.is_some()
        });
        if is_there {
            Ok(())
        } else {
            Err(format!("{}/{}: {stored:?}", self.spec.uid, request.container.name))
        }
    }

    /// Every init container before it must have completed in this sandbox and every sidecar before it must have started,
    /// unless main containers had their turn: then init containers do not run again, and of sidecars the last one alone has to run.
    fn order_before(&self, name: &ContainerName, sandbox: &SandboxId) -> Result<(), String> {
        let uid = &self.spec.uid;
        let kind = self.kind(name).expect("of this pod");
        if kind == ContainerKind::Ephemeral {
            return Ok(());
        }
        let is_initialized = self.is_initialized(sandbox);
        if kind == ContainerKind::Init && is_initialized {
            return Err(format!("{uid}/{name}: runs again though main containers had their turn"));
        }
        if is_initialized {
            return if kind == ContainerKind::Main { self.goes_on_beside(name, sandbox) } else { Ok(()) };
        }
        let before: Vec<&Container> = match kind {
            ContainerKind::Main => self.spec.init_containers.iter().map(|one| &**one).collect(),
            ContainerKind::Init | ContainerKind::Sidecar | ContainerKind::Ephemeral => {
                let all = self.spec.init_containers.iter().map(|one| &**one);
                all.take_while(|one| one.name != *name).collect()
            }
        };
        for one in before {
            let is_here = |run: &&Run| run.sandbox == *sandbox && run.round == self.round;
            let mut here = self.runs_of(&one.name).iter().filter(is_here);
            let is_done = match one.kind {
                ContainerKind::Sidecar => here.any(|run| {
                    run.process.is_some()
                        && run.health.has_started(&run.container)
                        && run.hooks.has_begun(&run.container)
                }),
                ContainerKind::Init | ContainerKind::Main | ContainerKind::Ephemeral => here
                    .next_back()
                    .is_some_and(|run| self.code_of(&one.name, run) == Some(0) && !run.is_running()),
            };
            if !is_done {
                return Err(format!("{uid}/{name}: started before {} was done", one.name));
            }
        }
        Ok(())
    }

    /// Starts of main containers that are to be written down: what is known of the last sidecar by then counts.
    pub(super) fn decide(&mut self, record: &PodRecord) {
        let is_new = |(_, run): &(&ContainerName, &ContainerRecord)| {
            run.started_in.is_some() && self.find(&run.id).is_none()
        };
        let may_begin = |(name, _): &(&ContainerName, &ContainerRecord)| {
            self.goes_on_beside(name, &record.sandbox_id).is_ok()
        };
        let begun = record.containers.iter().filter(is_new).filter(may_begin);
        let decided: Vec<ContainerId> = begun.map(|(_, run)| run.id.clone()).collect();
        self.decided.extend(decided);
    }

    /// While no main container runs, as far as is known, the last sidecar has to. One that was stopped alone goes on at once.
    fn goes_on_beside(&self, name: &ContainerName, sandbox: &SandboxId) -> Result<(), String> {
        let intended = self.intended.as_ref().and_then(|record| record.containers.get(name));
        let is_decided = intended.is_some_and(|run| self.decided.contains(&run.id));
        if is_decided || self.last_run(name).is_some_and(Run::is_replaced) {
            return Ok(());
        }
        let mut mains = self.spec.containers.iter().flat_map(|one| self.runs_of(&one.name));
        let last = self.spec.init_containers.last().filter(|one| one.kind == ContainerKind::Sidecar);
        let Some(last) = last.filter(|_| !mains.any(|run| run.sandbox == *sandbox && !run.is_told)) else {
            return Ok(());
        };
        let is_up = self.last_run(&last.name).is_some_and(|run| {
            run.sandbox == *sandbox
                && run.process.is_some()
                && !run.is_told
                && run.health.has_started(&run.container)
                && run.hooks.has_begun(&run.container)
        });
        if is_up {
            Ok(())
        } else {
            Err(format!("{}/{name}: runs again beside no {}", self.spec.uid, last.name))
        }
    }

    fn is_initialized(&self, sandbox: &SandboxId) -> bool {
        let mains = self.spec.containers.iter();
        mains
            .flat_map(|one| self.runs_of(&one.name))
            .any(|run| run.sandbox == *sandbox && run.round == self.round)
    }

    /// Whether a run may follow the last one; `None` in place of success when there was none.
    fn may_run_again(&self, name: &ContainerName, sandbox: &SandboxId) -> Option<Result<(), String>> {
        let last = self.last_run(name)?;
        let text = |why: &str| format!("{}/{name} after {last:?}: {why}", self.spec.uid);
        if last.is_running() {
            return Some(Err(text("two at once")));
        }
        if last.round < self.round {
            return (self.kind(name)? != ContainerKind::Ephemeral).then_some(Ok(()));
        }
        let code = self.code_of(name, last).unwrap_or(super::LOST);
        let is_right = match (self.kind(name)?, self.spec.restart_policy) {
            (ContainerKind::Sidecar, _) | (ContainerKind::Main, RestartPolicy::Always) => true,
            (ContainerKind::Main, RestartPolicy::OnFailure) => {
                code != 0 || last.changed.is_some() || last.health.failed.is_some()
            }
            (ContainerKind::Main, RestartPolicy::Never) => last.changed.is_some(),
            // A new sandbox is initialized anew.
            (ContainerKind::Init, _) if code == 0 => last.sandbox != *sandbox,
            (ContainerKind::Init, RestartPolicy::Never) => last.changed.is_some(),
            (ContainerKind::Init, RestartPolicy::Always | RestartPolicy::OnFailure) => true,
            (ContainerKind::Ephemeral, _) => return None,
        };
        Some(if is_right { Ok(()) } else { Err(text(&format!("code {code} is its last"))) })
    }

    /// Whether the wait before a second and later restart was kept, where there is one. What is tied to the wait is the image
    /// and the resources: a container that is wanted with others than it was restarted with lately begins anew.
    fn backoff_before(&self, container: &Container, now: Now) -> Option<Result<(), String>> {
        let name = &container.name;
        let runs = self.runs_of(name);
        let last = runs.last().filter(|last| last.round == self.round)?;
        let (exit, at) = last.end()?;
        let is_same = |made_from: &Container| {
            made_from.image == container.image && made_from.resources == container.resources
        };
        // The first run of all, or since all began anew, is no restart, nor is what follows it when the agent stopped it.
        let is_first = |run: &Run| {
            let first = runs.iter().find(|one| one.round == run.round);
            first.is_some_and(|first| first.attempt == run.attempt)
        };
        let counts = |pair: &[Run]| !is_first(&pair[0]) || !pair[0].is_stopped_alone();
        let is_restart =
            |pair: &&[Run]| is_same(&pair[1].container) && pair[0].round == pair[1].round && counts(pair);
        let before = runs.windows(2).rev().find(is_restart).map(|pair| &pair[0]);
        let (_, began_after) = before?.end()?;
        // What the agent stops runs again at once, unless the run before it ended a moment ago.
        let last_but_one = runs.iter().rev().nth(1).and_then(Run::end);
        if last.is_stopped_alone() && last_but_one.is_none_or(|(_, end)| at.since(end) >= BACKOFF_FIRST) {
            return None;
        }
        let is_fresh = at.since(began_after) > BACKOFF_RESET;
        let is_init_anew = container.kind == ContainerKind::Init && exit.code == 0;
        // It counts as ended when it was given up, and that comes before its removal.
        let is_given_up = last.kills >= KILLS_BEFORE_REMOVAL;
        if is_fresh || is_init_anew || is_given_up {
            return None;
        }
        // What went with a sandbox that was taken for gone ended when it was, and was killed with its shim later.
        let recorded = self.stored.as_ref().and_then(|record| record.containers.get(name));
        let ends = recorded.into_iter().flat_map(|record| [&record.exit, &record.last_exit]).flatten();
        let mut lost = ends.filter(|end| end.attempt == last.attempt && end.exit.code == super::LOST);
        let at = lost.next().map_or(at, |end| at.min(end.at));
        // How long ago it ended is told by the wall clock, as under the kubelet, but once.
        let waited = now.mono.since(at) + last.ahead;
        // It is forgiven that long after the last restart, which came after the end before it.
        let forgiven = (began_after + BACKOFF_RESET).since(at);
        let due = doubled(runs, is_same).min(forgiven).max(BACKOFF_FIRST);
        Some(if waited >= due {
            Ok(())
        } else {
            Err(format!("{}/{name}: attempt {} after {waited:?} of {due:?}", self.spec.uid, last.attempt + 1))
        })
    }
}

/// The wait after the last run, by the restarts just before that nothing else can have come between: the same container in the
/// same sandbox, each with an end that everybody saw, of which none is forgiven.
fn doubled(runs: &[Run], is_same: impl Fn(&Container) -> bool) -> Duration {
    let is_plain = |run: &Run| {
        !run.is_lost
            && !run.may_be_unknown()
            && run.term.is_none()
            && run.changed.is_none()
            && run.given_up.is_none()
    };
    let follows = |pair: &&[Run]| {
        let [before, run] = pair else { return false };
        let ends = before.end().zip(run.end());
        let is_soon = ends.is_some_and(|((_, before), (_, at))| at.since(before) <= BACKOFF_RESET);
        is_soon
            && before.sandbox == run.sandbox
            && before.round == run.round
            && is_plain(before)
            && is_plain(run)
            && is_same(&run.container)
    };
    let restarts = runs.windows(2).rev().take_while(follows).count();
    let doublings = u32::try_from(restarts.saturating_sub(1)).unwrap_or(u32::MAX);
    BACKOFF_FIRST.saturating_mul(2_u32.saturating_pow(doublings)).min(BACKOFF_LONGEST)
}
