//! Statuses as tables: phases as `getPhase` gives them, conditions as `generate.go` does.

use std::{net::IpAddr, sync::Arc};

use berth_core::{
    config::NodeConfig,
    failure::{Failure, FailureKind},
    id::ContainerName,
    pod::{
        actual::{EndedRun, Life, Refusal, Run},
        port::{image::ImageUse, pull_backoff::PullBackoff, termination::TerminationMessage},
        resource::{Resource, Retry},
        status,
    },
    record::{Actuated, ContainerRecord, EndedBy, Goal, Resizing, TerminalRecord, TerminationRecord},
    spec::{CpuMemory, NetworkMode, ReadinessGate, Resize, RestartPolicy, Source, Unallocated},
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

/// Nothing is told of it but that it was rejected.
#[test]
fn a_rejected_pod_shows_no_addresses() {
    let mut pod = pods::pod("web", &["web"]);
    (pod.network, pod.source) = (NetworkMode::Node, Source::Api);
    let mut life = furnished(pod);
    assert_eq!(shown(&life).host_ips, pods::node().ips);
    life.record.terminal = Some(TerminalRecord {
        succeeded: false,
        reason: "OutOfcpu".into(),
        message: "Pod was rejected: no room".into(),
        by: EndedBy::Admission,
    });
    let status = shown(&life);
    assert_eq!((status.host_ips, status.pod_ips), (Vec::new(), Vec::new()));
}

/// Addresses of a pod in the node's network stay when the node's change; one of the other family is added.
#[test]
fn addresses_of_the_node_are_those_of_now_and_its_pods_keep_theirs() {
    let mut pod = pods::pod("web", &["web"]);
    pod.network = NetworkMode::Node;
    let life = furnished(pod);
    let at = |ips: &[&str]| {
        let ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        NodeConfig { ips, ..pods::node() }
    };
    let mut previous: Option<PodStatus> = None;
    for (node, host, pod) in [
        (&[][..], "", ""),
        (&["192.0.2.1"], "192.0.2.1", "192.0.2.1"),
        (&["192.0.2.7"], "192.0.2.7", "192.0.2.1"),
        (&["192.0.2.7", "2001:db8::7"], "192.0.2.7 2001:db8::7", "192.0.2.1 2001:db8::7"),
        (&["192.0.2.8", "2001:db8::8"], "192.0.2.8 2001:db8::8", "192.0.2.1 2001:db8::7"),
    ] {
        let status = status::of(&life, &at(node), previous.as_ref(), now());
        let text = |ips: &[IpAddr]| ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        assert_eq!((&*text(&status.host_ips), &*text(&status.pod_ips)), (host, pod), "{node:?}");
        previous = Some(status);
    }
}

#[test]
fn phases() {
    use RestartPolicy::{Always, Never, OnFailure};
    type Case = (&'static str, RestartPolicy, fn(&mut Life), Phase);
    let cases: [Case; 20] = [
        ("all run", Always, |_| {}, Phase::Running),
        ("one runs, one ended", Always, |life| exited(life, "web", 1), Phase::Running),
        ("one waits for its first run", Always, |life| prepared(life, "web"), Phase::Pending),
        ("all ended well, they run again", Always, |life| both_exited(life, 0, 0), Phase::Running),
        ("all ended well", OnFailure, |life| both_exited(life, 0, 0), Phase::Succeeded),
        ("one ended badly, it runs again", OnFailure, |life| both_exited(life, 0, 1), Phase::Running),
        ("one ended badly", Never, |life| both_exited(life, 0, 1), Phase::Failed),
        ("one is replaced, the other ended well", Never, one_replaced, Phase::Running),
        ("one runs again after its replacement", Never, one_begun_again, Phase::Running),
        ("an init container runs", Always, |life| runs(life, "init-a"), Phase::Pending),
        ("an init container failed", Always, init_failed, Phase::Pending),
        ("an init container failed for good", Never, init_failed, Phase::Failed),
        ("removed, all ended well", Always, |life| removed(life, Source::Api, 0), Phase::Succeeded),
        ("removed, one ended badly", Always, |life| removed(life, Source::Api, 143), Phase::Failed),
        ("removed while it was initialized", Always, removed_early, Phase::Failed),
        (
            "its manifest removed, all ended well",
            Always,
            |life| removed(life, Source::File, 0),
            Phase::Running,
        ),
        (
            "its manifest removed, one ended badly",
            Always,
            |life| removed(life, Source::File, 143),
            Phase::Running,
        ),
        ("its manifest removed, one is lost", Always, manifest_removed_early, Phase::Pending),
        (
            "its manifest removed, to end well",
            OnFailure,
            |life| removed(life, Source::File, 0),
            Phase::Succeeded,
        ),
        ("its manifest removed, to end badly", Never, |life| removed(life, Source::File, 143), Phase::Failed),
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

fn one_replaced(life: &mut Life) {
    both_exited(life, 143, 0);
    record(life, "web").stopping = Some(TerminationRecord { began: Mono(NOW), deadline: Mono(NOW) });
}

fn one_begun_again(life: &mut Life) {
    both_exited(life, 143, 0);
    begin_again(life);
}

/// The next run of `web`, which has ended, is decided.
fn begin_again(life: &mut Life) {
    let last_exit = record(life, "web").exit.take();
    let id = berth_core::id::ContainerId::of(&life.record.uid, &name("web"), 1);
    *record(life, "web") = ContainerRecord { last_exit, ..ContainerRecord::begun(id, 1, Mono(NOW)) };
    prepared(life, "web");
}

fn init_failed(life: &mut Life) {
    exited(life, "init-a", 1);
    for one in ["web", "log"] {
        life.record.containers.remove(&name(one));
        life.actual.containers.remove(&name(one));
    }
}

fn removed(life: &mut Life, source: Source, code: u32) {
    Arc::make_mut(&mut life.spec).source = source;
    both_exited(life, 0, code);
    life.record.goal = Goal::Removed;
    life.record.termination = Some(TerminationRecord { began: Mono(NOW), deadline: Mono(NOW) });
}

/// Before any container of it ran.
fn removed_early(life: &mut Life) {
    removed(life, Source::Api, 0);
    life.record.containers.clear();
    life.actual.containers.clear();
}

/// Before its second container ran.
fn manifest_removed_early(life: &mut Life) {
    removed(life, Source::File, 0);
    life.record.containers.remove(&name("log"));
    life.actual.containers.remove(&name("log"));
}

#[test]
fn an_end_is_not_shown_while_a_sidecar_runs() {
    let mut life = running(&["side-a", "web"], RestartPolicy::Never);
    let before = shown(&life);
    exited(&mut life, "web", 0);
    life.record.terminal = Some(TerminalRecord {
        succeeded: true,
        reason: String::new(),
        message: String::new(),
        by: EndedBy::Itself,
    });
    let during = status::of(&life, &pods::node(), Some(&before), now());
    assert_eq!(during.phase, Phase::Running);
    exited(&mut life, "side-a", 137);
    assert_eq!(shown(&life).phase, Phase::Succeeded, "a sidecar's exit code does not count");
}

/// Source: `SyncPod` of `pkg/kubelet/kubelet.go`, which tells it before anything is killed.
#[test]
fn an_end_that_is_decided_shows_in_the_conditions_at_once() {
    type Case = (&'static str, fn(&mut Life), &'static str);
    let cases: [Case; 5] = [
        ("its time is up", |life| ends(life, false, "DeadlineExceeded", EndedBy::Itself), "PodFailed"),
        ("others ended it well", |life| ends(life, true, "", EndedBy::Itself), "PodCompleted"),
        ("it makes room", |life| ends(life, false, "Preempting", EndedBy::Node("for others".into())), ""),
        ("its main container has ended", main_ended, "ContainersNotReady"),
        ("an init container failed for good", init_failed, "PodFailed"),
    ];
    for (what, change, reason) in cases {
        let mut life = running(&["init-a", "side-a", "web"], RestartPolicy::Never);
        let before = shown(&life);
        change(&mut life);
        let status = status::of(&life, &pods::node(), Some(&before), now());
        assert_eq!((status.phase, status.reason.as_str()), (Phase::Running, ""), "{what}");
        for kind in [ConditionKind::Ready, ConditionKind::ContainersReady] {
            let condition = condition(&status, kind);
            assert_eq!((condition.holds, condition.reason.as_str()), (reason.is_empty(), reason), "{what}");
        }
    }
}

/// Source: `determinePodResizeStatus` of `pkg/kubelet/kubelet_pods.go`.
#[test]
fn a_pod_that_has_ended_asks_for_nothing_and_is_given_nothing() {
    use ConditionKind::{PodResizeInProgress, PodResizePending};
    let mut life = running(&["web"], RestartPolicy::Never);
    let unallocated = Some(Unallocated { is_infeasible: false, message: "no room".to_owned() });
    let resize = Resize { allocated: Arc::clone(&life.spec.manifest), generation: Some(2), unallocated };
    Arc::make_mut(&mut life.spec).resize = Some(resize);
    life.record.resizing = Some(Resizing { generation: Some(1), error: None, whole: None, memory: None });
    let kinds = |life: &Life| -> Vec<ConditionKind> {
        let kinds = shown(life).conditions.into_iter().map(|one| one.kind);
        kinds.filter(|kind| [PodResizePending, PodResizeInProgress].contains(kind)).collect()
    };
    assert_eq!(kinds(&life), [PodResizePending, PodResizeInProgress]);
    for (code, phase) in [(0, Phase::Succeeded), (1, Phase::Failed)] {
        exited(&mut life, "web", code);
        assert_eq!((shown(&life).phase, kinds(&life)), (phase, vec![]));
    }
}

fn ends(life: &mut Life, succeeded: bool, reason: &str, by: EndedBy) {
    let (reason, message) = (reason.to_owned(), "as it was told".to_owned());
    life.record.terminal = Some(TerminalRecord { succeeded, reason, message, by });
}

fn main_ended(life: &mut Life) {
    exited(life, "web", 3);
    ends(life, false, "", EndedBy::Itself);
}

#[test]
fn an_end_is_shown_with_its_termination_message_or_not_yet() {
    let mut life = running(&["web"], RestartPolicy::Never);
    let before = shown(&life);
    let ended = |shown_since| {
        Run::Ended(EndedRun {
            exit: exit(1),
            at: now().mono,
            shown_since,
            message: TerminationMessage::Unread,
        })
    };
    life.actual.containers.insert(name("web"), ended(Some(Timestamp::UNIX_EPOCH)));
    assert_eq!(shown(&life), before, "it ran");
    life.record.goal = Goal::Removed;
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
        assert_eq!(condition.message, "containers with unready status: [web log]");
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

/// Source: `TestGeneratePodReadyCondition` of `pkg/kubelet/status/generate_test.go`.
#[test]
fn a_pod_is_ready_when_others_say_so_too() {
    let missing = r#"corresponding condition of pod readiness gate "b" does not exist."#;
    let closed = r#"the status of pod readiness gate "a" is not "True", but False"#;
    for (gates, expected) in [
        (&[("a", Some("True"))][..], String::new()),
        (&[("a", Some("True")), ("b", Some("True"))], String::new()),
        (&[("b", None)], missing.to_owned()),
        (&[("a", Some("False"))], closed.to_owned()),
        (&[("a", Some("Unknown"))], closed.replace("False", "Unknown")),
        (&[("a", Some("False")), ("b", None)], format!("{closed}, {missing}")),
        (&[("a", Some("True")), ("b", None)], missing.to_owned()),
    ] {
        let mut life = running(&["web"], RestartPolicy::Always);
        let gate = |(condition, status): &(&str, Option<&str>)| ReadinessGate {
            condition: (*condition).to_owned(),
            status: status.map(str::to_owned),
        };
        Arc::make_mut(&mut life.spec).readiness_gates = gates.iter().map(gate).collect();
        let status = shown(&life);
        let ready = condition(&status, ConditionKind::Ready);
        assert_eq!((ready.holds, &ready.message), (expected.is_empty(), &expected), "{gates:?}");
        assert_eq!(ready.reason.is_empty(), ready.holds);
        assert!(ready.holds || ready.reason == "ReadinessGatesNotReady", "{}", ready.reason);
        assert!(condition(&status, ConditionKind::ContainersReady).holds, "{gates:?}");

        exited(&mut life, "web", 1);
        let status = shown(&life);
        let ready = condition(&status, ConditionKind::Ready);
        assert_eq!(ready.reason, "ContainersNotReady", "{gates:?}: what its containers lack comes first");
    }
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
        (true, told("ImagePullBackOff", "Back-off pulling image \"busybox:1\": ErrImagePull: not found")),
    ] {
        let pull = change(&|life, run| {
            run.image = ImageUse::Missing;
            let image = life.spec.containers[0].image.clone();
            let delay = std::time::Duration::from_secs(10);
            let backoff = PullBackoff {
                error: Some("not found".into()),
                failed_at: Mono(NOW),
                delay,
                ends_at: Mono(NOW) + delay,
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
    record(&mut life, "web").backoff.delay_ms = 80_000;
    life.actual.containers.insert(name("web"), Run::BackingOff);
    let (reason, message) = waiting(&life);
    assert_eq!(reason, "CrashLoopBackOff");
    assert_eq!(message, "back-off 1m20s restarting failed container=web pod=web_default(uid-web)");
    let last = shown(&life).containers[0].last_state.clone().unwrap();
    assert_eq!((last.exit_code, last.reason.as_str()), (3, "Error"));
}

/// A container that waits to run again is still the one before, by its id and by the number of restarts, until it runs.
#[test]
fn restarts_are_counted_when_they_happen() {
    type Case = (&'static str, fn(&mut Life), u32);
    let cases: [Case; 8] = [
        ("it never ran", |life| prepared(life, "web"), 0),
        ("it runs for the first time", |life| runs(life, "web"), 0),
        ("it ended", |life| exited(life, "web", 1), 0),
        ("it backs off", backs_off, 0),
        ("its next run is prepared", begun_again, 0),
        ("its image is not to be had", begun_without_image, 0),
        ("its next run could not be created", refused_again, 0),
        ("its next run runs", runs_again, 1),
    ];
    for (what, change, expected) in cases {
        let mut life = furnished(pods::pod("web", &["web"]));
        change(&mut life);
        let status = &shown(&life).containers[0];
        assert_eq!(status.restart_count, expected, "{what}");
        let id = berth_core::id::ContainerId::of(&life.record.uid, &name("web"), expected);
        assert_eq!(status.id, (what != "it never ran").then_some(id), "{what}");
    }
}

fn backs_off(life: &mut Life) {
    exited(life, "web", 1);
    life.actual.containers.insert(name("web"), Run::BackingOff);
}

fn begun_again(life: &mut Life) {
    exited(life, "web", 1);
    begin_again(life);
}

fn begun_without_image(life: &mut Life) {
    begun_again(life);
    if let Some(Run::Preparing(preparing)) = life.actual.containers.get_mut(&name("web")) {
        preparing.image = ImageUse::Missing;
    }
}

fn refused_again(life: &mut Life) {
    begun_again(life);
    record(life, "web").started_in = Some(0);
    let failure = Failure { kind: FailureKind::Transient, message: "no luck".into() };
    let retry = Retry { failure, at: Mono(NOW), tries: 1 };
    if let Some(Run::Preparing(preparing)) = life.actual.containers.get_mut(&name("web")) {
        preparing.refused = Some(Refusal { reason: "CreateContainerError", retry });
    }
}

fn runs_again(life: &mut Life) {
    begun_again(life);
    runs(life, "web");
}

#[test]
fn what_never_ran_is_not_taken_for_a_success() {
    let mut life = running(&["web", "log"], RestartPolicy::Always);
    exited(&mut life, "web", 0);
    life.record.containers.remove(&name("log"));
    life.actual.containers.remove(&name("log"));
    life.record.goal = Goal::Removed;
    Arc::make_mut(&mut life.spec).source = Source::Api;
    let status = shown(&life);
    assert_eq!(status.phase, Phase::Failed);
    let ContainerState::Terminated(end) = &status.containers[0].state else { panic!("{status:#?}") };
    assert_eq!((end.exit_code, end.reason.as_str()), (137, "ContainerStatusUnknown"));
}

#[test]
fn what_never_ran_ends_without_an_id() {
    let mut life = furnished(pods::pod("web", &["web"]));
    prepared(&mut life, "web");
    life.record.goal = Goal::Removed;
    let web = &shown(&life).containers[0];
    let ContainerState::Terminated(end) = &web.state else { panic!("{web:#?}") };
    assert_eq!((&web.id, &end.id), (&None, &None));
}

/// Source: `hasPodInitialized` and `initializedContainers` of `pkg/kubelet/status/status_manager.go`.
#[test]
fn a_main_container_that_never_ran_is_taken_for_lost_when_its_turn_had_come() {
    type Case = (&'static str, &'static [&'static str], fn(&mut Life), &'static [&'static str]);
    let cases: [Case; 10] = [
        ("the pod never began", &["init-a", "init-b", "web"], |_| {}, &["init-a"]),
        ("an init container failed", &["init-a", "init-b", "web"], |life| exited(life, "init-a", 1), &[]),
        ("all had ended well", &["init-a", "web"], |life| ended_before(life, "init-a", 0), &["web"]),
        (
            "the last ended well when it was stopped",
            &["init-a", "web"],
            |life| exited(life, "init-a", 0),
            &[],
        ),
        ("the last is a sidecar and never ran", &INIT_THEN_SIDECAR, |life| exited(life, "init-a", 0), &[]),
        ("it ran until the end", &INIT_THEN_SIDECAR, sidecar_stopped, &["web"]),
        ("it had ended before", &INIT_THEN_SIDECAR, sidecar_crashed, &[]),
        ("it had not started", &INIT_THEN_SIDECAR, sidecar_not_started, &[]),
        ("there is nothing but a sidecar", &["side-b", "web"], |life| exited(life, "side-b", 143), &["web"]),
        ("a sidecar is not the last", &["side-b", "init-c", "web"], |life| exited(life, "side-b", 143), &[]),
    ];
    let is_lost = |one: &&berth_core::status::ContainerStatus| matches!(&one.state, ContainerState::Terminated(end) if end.reason == "ContainerStatusUnknown");
    for (what, containers, change, expected) in cases {
        let mut life = furnished(pods::pod("web", containers));
        life.record.goal = Goal::Removed;
        life.record.termination = Some(TerminationRecord { began: Mono(NOW), deadline: Mono(NOW) });
        change(&mut life);
        let status = shown(&life);
        let lost = status.init_containers.iter().chain(&status.containers).filter(is_lost);
        assert_eq!(lost.map(|one| one.name.as_str()).collect::<Vec<_>>(), expected, "{what}");
    }
}

const INIT_THEN_SIDECAR: [&str; 3] = ["init-a", "side-b", "web"];

fn sidecar_stopped(life: &mut Life) {
    exited(life, "init-a", 0);
    exited(life, "side-b", 143);
}

fn sidecar_crashed(life: &mut Life) {
    sidecar_stopped(life);
    ended_before(life, "side-b", 143);
}

/// It ended before its pod was stopped.
fn ended_before(life: &mut Life, container: &str, code: u32) {
    exited(life, container, code);
    let exit = record(life, container).exit.as_mut().expect("it has ended");
    exit.at = Mono(NOW - std::time::Duration::from_secs(1));
}

fn sidecar_not_started(life: &mut Life) {
    sidecar_stopped(life);
    pods::edit(Arc::make_mut(&mut life.spec), "side-b").probes.startup = Some(pods::probe());
}

/// What is known of them is that they run again, in another sandbox.
#[test]
fn a_pod_that_was_initialized_stays_so() {
    let mut life = running(&["init-a", "web"], RestartPolicy::Always);
    let first = shown(&life);
    status::remember(&mut life.record, &first);
    for one in ["init-a", "web"] {
        life.record.containers.remove(&name(one));
        life.actual.containers.remove(&name(one));
    }
    assert!(condition(&shown(&life), ConditionKind::Initialized).holds);
    life.record.conditions.clear();
    assert!(!condition(&shown(&life), ConditionKind::Initialized).holds, "it was not known");
}

#[test]
fn a_container_that_runs_has_started_whatever_its_kind() {
    let mut life = running(&["init-a", "side-b", "web"], RestartPolicy::Always);
    runs(&mut life, "init-a");
    let status = shown(&life);
    let all = status.init_containers.iter().chain(&status.containers);
    let shown: Vec<_> = all.map(|one| (one.name.as_str(), one.started, one.ready)).collect();
    assert_eq!(shown, [("init-a", true, false), ("side-b", true, true), ("web", true, true)]);
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

/// Source: `convertContainerStatusResources` of `pkg/kubelet/kubelet_pods.go`, which shows what is read back.
#[test]
fn a_container_that_its_pod_bounds_shows_what_its_cgroup_has() {
    let mut life = running(&["web", "log"], RestartPolicy::Always);
    assert_eq!(shown(&life).containers[0].actuated, None, "it is as its spec says");
    let spec = Arc::make_mut(&mut life.spec);
    spec.resources = Some(pods::resources((100, 64 << 20), (200, 128 << 20)));
    pods::edit(spec, "web").resources.requests.cpu_milli = Some(20);
    exited(&mut life, "log", 1);
    let status = shown(&life);
    let has = status
        .containers
        .iter()
        .map(|one| one.actuated.map(|has| (has.cpu_request, has.cpu_limit, has.memory_limit)));
    assert_eq!(has.collect::<Vec<_>>(), [None, Some((20, 200, 128 << 20))]);
    let spec = Arc::make_mut(&mut life.spec);
    pods::edit(spec, "web").resources.requests.cpu_milli = None;
    let has = shown(&life).containers[1].actuated.map(|has| has.cpu_request);
    assert_eq!(has, Some(200), "its weight is that of its limit");
    let had = CpuMemory { cpu_request: 0, cpu_limit: 300, memory_request: 0, memory_limit: 64 << 20 };
    let web = life.record.containers.get_mut(&ContainerName::new("web")).unwrap();
    web.actuated = Some(Actuated { has: had, perhaps: None });
    let has = shown(&life).containers[1].actuated.map(|has| (has.cpu_request, has.cpu_limit));
    assert_eq!(has, Some((300, 300)), "so it was before");
}
