//! Statuses as tables: phases as `getPhase` gives them, conditions as `generate.go` does.

use berth_core::{
    event::{Failure, FailureKind},
    pod::{
        actual::{Ended, Goal, ImageUse, Life, PullBackoff, Refusal, Run, Words},
        resource::{Resource, Retry},
        status,
    },
    record::{TerminalRecord, TerminationRecord},
    spec::RestartPolicy,
    status::{Condition, ConditionKind, ContainerState, Phase, PodStatus},
    time::Mono,
};

use jiff::Timestamp;

use crate::{
    lives::{NOW, exit, exited, furnished, name, now, prepared, record, running, runs},
    pods,
};

fn shown(life: &Life) -> PodStatus {
    status::of(life, &pods::node(), None, now())
}

fn condition(status: &PodStatus, kind: ConditionKind) -> &Condition {
    status.conditions.iter().find(|one| one.kind == kind).unwrap()
}

fn waiting(life: &Life) -> (String, String) {
    match &shown(life).containers[0].state {
        ContainerState::Waiting { reason, message } => (reason.clone(), message.clone()),
        other @ (ContainerState::Running { .. } | ContainerState::Terminated(_)) => panic!("{other:?}"),
    }
}

#[test]
fn phases() {
    use RestartPolicy::{Always, Never, OnFailure};
    type Case = (&'static str, RestartPolicy, fn(&mut Life), Phase);
    let cases: [Case; 12] = [
        ("all run", Always, |_| {}, Phase::Running),
        ("one runs, one ended", Always, |life| exited(life, "web", 1), Phase::Running),
        ("one waits for its first run", Always, |life| prepared(life, "web"), Phase::Pending),
        ("all ended well, they run again", Always, |life| both_exited(life, 0, 0), Phase::Running),
        ("all ended well", OnFailure, |life| both_exited(life, 0, 0), Phase::Succeeded),
        ("one ended badly, it runs again", OnFailure, |life| both_exited(life, 0, 1), Phase::Running),
        ("one ended badly", Never, |life| both_exited(life, 0, 1), Phase::Failed),
        ("an init container runs", Always, |life| runs(life, "init-a"), Phase::Pending),
        ("an init container failed", Always, init_failed, Phase::Pending),
        ("an init container failed for good", Never, init_failed, Phase::Failed),
        ("removed, all ended well", Always, |life| removed(life, 0), Phase::Succeeded),
        ("removed, one ended badly", Always, |life| removed(life, 143), Phase::Failed),
    ];
    for (what, policy, change, phase) in cases {
        let mut life = running(&["init-a", "web", "log"], policy);
        change(&mut life);
        assert_eq!(shown(&life).phase, phase, "{what}");
    }
}

fn both_exited(life: &mut Life, web: u32, log: u32) {
    exited(life, "web", web);
    exited(life, "log", log);
}

fn init_failed(life: &mut Life) {
    exited(life, "init-a", 1);
    for one in ["web", "log"] {
        life.record.containers.remove(&name(one));
        life.actual.containers.remove(&name(one));
    }
}

fn removed(life: &mut Life, code: u32) {
    both_exited(life, 0, code);
    life.goal = Goal::Removed;
    life.record.termination = Some(TerminationRecord { began: Mono(NOW), deadline: Mono(NOW) });
}

#[test]
fn an_end_is_not_shown_while_a_sidecar_runs() {
    let mut life = running(&["side-a", "web"], RestartPolicy::Never);
    let before = shown(&life);
    exited(&mut life, "web", 0);
    life.record.terminal =
        Some(TerminalRecord { succeeded: true, reason: String::new(), message: String::new() });
    let during = status::of(&life, &pods::node(), Some(&before), now());
    assert_eq!(during.phase, Phase::Running);
    exited(&mut life, "side-a", 137);
    assert_eq!(shown(&life).phase, Phase::Succeeded, "a sidecar's exit code does not count");
}

#[test]
fn an_end_is_shown_with_its_last_words_or_not_yet() {
    let mut life = running(&["web"], RestartPolicy::Never);
    let before = shown(&life);
    let ended = |shown_since| Run::Ended(Ended { exit: exit(1), shown_since, words: Words::Unread });
    life.actual.containers.insert(name("web"), ended(Some(Timestamp::UNIX_EPOCH)));
    assert_eq!(shown(&life), before, "it ran");
    life.goal = Goal::Removed;
    assert_eq!(shown(&life).containers, before.containers, "it is not taken for lost");
    assert_eq!(shown(&life).phase, Phase::Running);
    life.actual.containers.insert(name("web"), ended(None));
    assert_eq!(waiting(&life).0, "ContainerCreating", "nobody saw it run");
}

#[test]
fn conditions_tell_what_is_missing() {
    let all_well = shown(&running(&["init-a", "web"], RestartPolicy::Always));
    assert!(all_well.conditions.iter().all(|one| one.holds && one.reason.is_empty()), "{all_well:#?}");

    let mut life = running(&["side-s", "web", "log"], RestartPolicy::Always);
    both_exited(&mut life, 1, 1);
    let status = shown(&life);
    for kind in [ConditionKind::Ready, ConditionKind::ContainersReady] {
        let condition = condition(&status, kind);
        assert_eq!(condition.reason, "ContainersNotReady");
        assert_eq!(condition.message, "containers with unready status: [log web]");
    }
    assert!(condition(&status, ConditionKind::Initialized).holds, "main containers have started");

    let status = shown(&furnished(pods::pod("web", &["init-a", "init-b", "web"])));
    let initialized = condition(&status, ConditionKind::Initialized);
    assert_eq!(initialized.reason, "ContainersNotInitialized");
    assert_eq!(initialized.message, "containers with incomplete status: [init-a init-b]");

    let mut life = running(&["web"], RestartPolicy::Never);
    exited(&mut life, "web", 0);
    let status = shown(&life);
    assert_eq!(condition(&status, ConditionKind::Ready).reason, "PodCompleted");
    assert_eq!(condition(&status, ConditionKind::Initialized).reason, "PodCompleted");
    exited(&mut life, "web", 1);
    assert_eq!(condition(&shown(&life), ConditionKind::Ready).reason, "PodFailed");
}

#[test]
fn a_condition_moves_only_when_it_changes() {
    let mut life = running(&["web"], RestartPolicy::Always);
    let first = shown(&life);
    status::remember(&mut life.record, &first);
    let mut later = now();
    later.wall += std::time::Duration::from_secs(60);
    assert_eq!(status::of(&life, &pods::node(), None, later).conditions, first.conditions);
    exited(&mut life, "web", 1);
    let changed = status::of(&life, &pods::node(), None, later);
    assert_eq!(condition(&changed, ConditionKind::Ready).since, later.wall);
    assert_eq!(condition(&changed, ConditionKind::Initialized).since, now().wall);
}

#[test]
fn waiting_containers_tell_why() {
    let retry = |message: &str| Retry {
        failure: Failure { kind: FailureKind::Transient, message: message.into() },
        at: Mono(NOW),
        tries: 1,
    };
    let change = |change: &dyn Fn(&mut Life, &mut berth_core::pod::actual::Preparing)| {
        let mut life = furnished(pods::pod("web", &["web"]));
        prepared(&mut life, "web");
        let Some(Run::Preparing(mut preparing)) = life.actual.containers.remove(&name("web")) else {
            panic!("it is being prepared")
        };
        change(&mut life, &mut preparing);
        life.actual.containers.insert(name("web"), Run::Preparing(preparing));
        waiting(&life)
    };
    let told = |reason: &str, message: &str| (reason.to_owned(), message.to_owned());
    assert_eq!(change(&|_, _| {}), told("ContainerCreating", ""));
    let refused = change(&|_, run| {
        run.refused = Some(Refusal { reason: "CreateContainerConfigError", retry: retry("no user") });
    });
    assert_eq!(refused, told("CreateContainerConfigError", "no user"));
    let rootfs = change(&|_, run| run.rootfs = Resource::Failed(retry("disk full")));
    assert_eq!(rootfs, told("CreateContainerError", "disk full"));
    for (announced, expected) in [
        (false, told("ErrImagePull", "not found")),
        (true, told("ImagePullBackOff", "Back-off pulling image \"busybox:1\": not found")),
    ] {
        let pull = change(&|life, run| {
            run.image = ImageUse::Missing;
            let image = life.spec.containers[0].image.clone();
            let backoff = PullBackoff {
                error: "not found".into(),
                failed_at: Mono(NOW),
                delay: std::time::Duration::from_secs(10),
                announced,
            };
            life.actual.pull_backoffs.insert(image, backoff);
        });
        assert_eq!(pull, expected);
    }
}

#[test]
fn a_back_off_shows_the_run_before() {
    let mut life = running(&["web"], RestartPolicy::Always);
    exited(&mut life, "web", 3);
    record(&mut life, "web").backoff_ms = 80_000;
    life.actual.containers.insert(name("web"), Run::BackingOff);
    let (reason, message) = waiting(&life);
    assert_eq!(reason, "CrashLoopBackOff");
    assert_eq!(message, "back-off 1m20s restarting failed container=web pod=web_default(uid-web)");
    let last = shown(&life).containers[0].last_state.clone().unwrap();
    assert_eq!((last.exit_code, last.reason.as_str()), (3, "Error"));
}

#[test]
fn what_never_ran_is_not_taken_for_a_success() {
    let mut life = running(&["web", "log"], RestartPolicy::Always);
    exited(&mut life, "web", 0);
    life.record.containers.remove(&name("log"));
    life.actual.containers.remove(&name("log"));
    life.goal = Goal::Removed;
    let status = shown(&life);
    assert_eq!(status.phase, Phase::Failed);
    let ContainerState::Terminated(end) = &status.containers[0].state else { panic!("{status:#?}") };
    assert_eq!((end.exit_code, end.reason.as_str()), (137, "ContainerStatusUnknown"));
}

#[test]
fn main_containers_are_shown_by_name_and_init_containers_in_order() {
    let status = shown(&running(&["init-z", "init-a", "web", "log"], RestartPolicy::Always));
    let names = |all: &[berth_core::status::ContainerStatus]| -> Vec<String> {
        all.iter().map(|one| one.name.to_string()).collect()
    };
    assert_eq!(names(&status.init_containers), ["init-z", "init-a"]);
    assert_eq!(names(&status.containers), ["log", "web"]);
}
