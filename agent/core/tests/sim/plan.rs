//! Plans as tables: a pod in some state, and the steps that follow. Mirrors the cases of the kubelet's
//! `TestComputePodActions` and `TestComputePodActionsWithInitContainers` (`kuberuntime_manager_test.go`).

use std::{sync::Arc, time::Duration};

use berth_core::{
    config::ResolvConf,
    failure::{Failure, FailureKind},
    id::{OpId, VolumeName},
    pod::{
        actual::{Actual, EndedRun, Follows, Life, Preparing, Refusal, Run},
        plan::{Network, World, plan},
        port::{
            image::{ImageFor, ImageUse},
            pull_backoff::PullBackoff,
            removal::{Leftover, Removal},
            start::{Asked, Starting},
            termination::TerminationMessage,
            volume::Refresh,
        },
        resource::{Resource, Retry},
        step::{Plan, PodResource, Step},
    },
    record::{EndedBy, Goal, RestartBackoff, TerminalRecord, TerminationRecord},
    spec::{Hook, HookMoment, ImagePullPolicy, Pod, RestartPolicy, Source, Sysctl},
    time::Mono,
};

use crate::{
    lives::{NOW, exit, exited, furnished, name, now, prepared, record, running, runs},
    pods,
};

fn planned(life: &Life) -> Plan {
    planned_with(life, &Network::Ready)
}

fn planned_with(life: &Life, network: &Network) -> Plan {
    plan(life, World { config: &pods::node(), network }, now())
}

fn ended(succeeded: bool) -> Vec<Step> {
    vec![Step::End(TerminalRecord {
        succeeded,
        reason: String::new(),
        message: String::new(),
        by: EndedBy::Itself,
    })]
}

fn failed(kind: FailureKind, after: Duration) -> Retry {
    Retry { failure: Failure { kind, message: String::new() }, at: Mono(NOW) + after, tries: 1 }
}

/// A case: what is done to a life in which all is well, and the steps that follow.
type Case = (&'static str, fn(&mut Life), Vec<Step>);

fn check(base: &dyn Fn() -> Life, cases: &[Case]) {
    for (what, change, steps) in cases {
        let mut life = base();
        change(&mut life);
        assert_eq!(planned(&life).steps, *steps, "{what}");
    }
}

#[test]
fn a_new_pod_begins_everything_that_data_allows_at_once() {
    let mut life = furnished(pods::pod("web", &["init-a", "web"]));
    life.actual = Actual::fresh();
    let begun = [
        Step::Ensure(PodResource::Dirs),
        Step::Ensure(PodResource::Cgroup),
        Step::Ensure(PodResource::Netns),
        Step::Begin(name("init-a")),
        Step::Begin(name("web")),
    ];
    assert_eq!(planned(&life).steps, begun);
    life.actual.netns = Resource::Ready("/run/netns/x".into());
    let steps = planned(&life).steps;
    assert!(
        steps.contains(&Step::Ensure(PodResource::Network))
            && steps.contains(&Step::Ensure(PodResource::Sandbox))
    );
}

/// Source: `RunPodSandbox` of containerd `internal/cri/server/sandbox_run.go`, which sets sysctls after ADD.
#[test]
fn what_a_pod_sets_in_its_network_is_set_after_cni() {
    for (sysctl, waits) in [
        ("net.ipv4.tcp_keepalive_time", true),
        ("net.ipv4.conf.eth0.rp_filter", true),
        ("kernel.shm_rmid_forced", false),
        ("netfilter.x", false),
    ] {
        let mut pod = Pod::clone(&pods::pod("web", &["web"]));
        pod.security.sysctls = vec![Sysctl { name: sysctl.to_owned(), value: "1".to_owned() }];
        let mut life = furnished(pod);
        life.actual = Actual::fresh();
        life.actual.netns = Resource::Ready("/run/netns/x".into());
        let sandbox = Step::Ensure(PodResource::Sandbox);
        assert_eq!(planned(&life).steps.contains(&sandbox), !waits, "{sysctl}");
        // Without DNS there is no network; the sandbox tells why.
        let unreadable = ResolvConf::Unreadable("gone".to_owned());
        let mut config = pods::node();
        config.dns.node_resolv_conf = unreadable;
        let world = World { config: &config, network: &Network::Ready };
        assert!(plan(&life, world, now()).steps.contains(&sandbox), "{sysctl}");
        life.actual.network = Resource::Ready(());
        assert!(planned(&life).steps.contains(&sandbox), "{sysctl}");
    }
}

#[test]
fn of_many_ephemeral_containers_two_begin_at_once() {
    let all = ["debug-a", "debug-b", "debug-c"];
    let mut pod = pods::pod("web", &["web"]);
    all.into_iter().for_each(|one| pods::debug(&mut pod, one, None));
    let mut life = furnished(pod);
    runs(&mut life, "web");
    all.into_iter().for_each(|one| prepared(&mut life, one));
    let starts = |names: &[&str]| names.iter().map(|one| Step::Start(name(one))).collect::<Vec<_>>();
    assert_eq!(planned(&life).steps, starts(&["debug-a", "debug-b"]));
    let Some(Run::Preparing(prepared)) = life.actual.containers.remove(&name("debug-a")) else {
        panic!("it is prepared")
    };
    let (op, asked, end) = (OpId(1), Asked::Start, None);
    let starting = Starting { op, asked, prepared, end, may_have_run: false };
    life.actual.containers.insert(name("debug-a"), Run::Starting(starting));
    assert_eq!(planned(&life).steps, starts(&["debug-b"]));
    runs(&mut life, "debug-a");
    assert_eq!(planned(&life).steps, starts(&["debug-b", "debug-c"]));

    // Those that were tried least come first, however long the others hang.
    for (one, tries) in [("debug-a", 3), ("debug-b", 2), ("debug-c", 0)] {
        self::prepared(&mut life, one);
        let retry = Retry { at: Mono(NOW), tries, ..failed(FailureKind::Unknown, Duration::ZERO) };
        preparing(&mut life, one).refused =
            (tries > 0).then_some(Refusal { reason: "RunContainerError", retry });
    }
    assert_eq!(planned(&life).steps, starts(&["debug-c", "debug-b"]));
}

#[test]
fn that_their_targets_do_not_run_is_told_of_all_ephemeral_containers_at_once() {
    let all = ["debug-a", "debug-b", "debug-c", "debug-d"];
    let mut pod = pods::pod("web", &["web"]);
    all.into_iter().for_each(|one| pods::debug(&mut pod, one, Some("web")));
    let mut life = furnished(pod);
    prepared(&mut life, "web");
    all.into_iter().for_each(|one| prepared(&mut life, one));
    let started = planned(&life).steps;
    assert!(all.into_iter().all(|one| started.contains(&Step::Start(name(one)))), "{started:?}");
}

#[test]
fn containers_restart_by_policy() {
    let always = || running(&["web", "log"], RestartPolicy::Always);
    let on_failure = || running(&["web", "log"], RestartPolicy::OnFailure);
    let never = || running(&["web", "log"], RestartPolicy::Never);
    let begin = || vec![Step::Begin(name("web"))];
    check(
        &always,
        &[
            ("all is well", |_| {}, vec![]),
            ("an exit with 0", |life| exited(life, "web", 0), begin()),
            ("an exit with 1", |life| exited(life, "web", 1), begin()),
        ],
    );
    check(
        &on_failure,
        &[
            ("an exit with 0", |life| exited(life, "web", 0), vec![]),
            ("an exit with 1", |life| exited(life, "web", 1), begin()),
            (
                "all ended well",
                |life| ["web", "log"].into_iter().for_each(|one| exited(life, one, 0)),
                ended(true),
            ),
        ],
    );
    check(
        &never,
        &[
            ("an exit with 1", |life| exited(life, "web", 1), vec![]),
            (
                "all ended, one badly",
                |life| [("web", 1), ("log", 0)].into_iter().for_each(|(one, code)| exited(life, one, code)),
                ended(false),
            ),
        ],
    );
}

#[test]
fn a_back_off_is_told_once_and_waited_for() {
    let mut life = running(&["web", "log"], RestartPolicy::Always);
    exited(&mut life, "web", 1);
    record(&mut life, "web").backoff = RestartBackoff { delay_ms: 20_000, since: Mono(NOW) };
    let told = planned(&life);
    assert_eq!(told.steps, [Step::BackOff(name("web"))]);
    assert_eq!(told.wake_at, Some(Mono(NOW) + Duration::from_secs(20)));
    life.actual.containers.insert(name("web"), Run::BackingOff);
    let waits = planned(&life);
    assert_eq!((waits.steps, waits.wake_at), (vec![], told.wake_at));
}

#[test]
fn an_ended_run_is_removed_before_the_next_is_begun() {
    let mut life = running(&["web"], RestartPolicy::Always);
    exited(&mut life, "web", 1);
    let leftover = Leftover::Container(life.container_id(&name("web")));
    life.actual.removals.insert(leftover.clone(), Removal::Due);
    assert_eq!(planned(&life).steps, [Step::Remove(leftover.clone())]);
    life.actual.removals.insert(leftover, Removal::Removing { op: OpId(1), tries: 0 });
    assert_eq!(planned(&life).steps, []);
}

#[test]
fn a_changed_spec_stops_that_container_alone() {
    let base = || running(&["side-a", "web", "log"], RestartPolicy::Never);
    let changed = |life: &mut Life, one: &str| pods::edit(Arc::make_mut(&mut life.spec), one).hash = 2;
    let mut life = base();
    changed(&mut life, "web");
    assert_eq!(planned(&life).steps, [Step::Stop(name("web"))]);
    let mut life = base();
    changed(&mut life, "side-a");
    assert_eq!(planned(&life).steps, [Step::Stop(name("side-a"))]);
    let mut life = base();
    exited(&mut life, "web", 0);
    let began = TerminationRecord { began: Mono(NOW), deadline: Mono(NOW) };
    record(&mut life, "web").stopping = Some(began);
    assert_eq!(planned(&life).steps, [Step::Begin(name("web"))], "it runs again whatever the policy");
}

#[test]
fn init_containers_run_one_after_the_other() {
    let all = ["init-a", "init-b", "web"];
    let base = || {
        let mut life = furnished(pods::pod("web", &all));
        all.into_iter().for_each(|one| prepared(&mut life, one));
        life
    };
    let start = |one: &str| vec![Step::Start(name(one))];
    check(
        &base,
        &[
            ("none was started", |_| {}, start("init-a")),
            ("the first runs", |life| runs(life, "init-a"), vec![]),
            ("the first ended well", |life| exited(life, "init-a", 0), start("init-b")),
            (
                "both ended well",
                |life| ["init-a", "init-b"].into_iter().for_each(|one| exited(life, one, 0)),
                start("web"),
            ),
            ("the first failed", |life| exited(life, "init-a", 1), vec![Step::Begin(name("init-a"))]),
            (
                "the first failed for good",
                |life| {
                    Arc::make_mut(&mut life.spec).restart_policy = RestartPolicy::Never;
                    exited(life, "init-a", 1);
                },
                ended(false),
            ),
            (
                "a main container runs: init containers are history",
                |life| {
                    runs(life, "web");
                    ["init-a", "init-b"].into_iter().for_each(|one| exited(life, one, 1));
                },
                vec![],
            ),
            (
                "it ended well, but in an earlier sandbox",
                |life| {
                    exited(life, "init-a", 0);
                    life.record.sandbox = 1;
                },
                vec![Step::Begin(name("init-a"))],
            ),
        ],
    );
}

#[test]
fn sidecars_start_in_order_and_restart_by_themselves() {
    let all = ["side-a", "init-b", "web"];
    let base = || {
        let mut life = furnished(pods::pod("web", &all));
        all.into_iter().for_each(|one| prepared(&mut life, one));
        Arc::make_mut(&mut life.spec).restart_policy = RestartPolicy::Never;
        life
    };
    check(
        &base,
        &[
            ("none was started", |_| {}, vec![Step::Start(name("side-a"))]),
            ("the sidecar runs", |life| runs(life, "side-a"), vec![Step::Start(name("init-b"))]),
            (
                "the sidecar ended before the main container",
                |life| exited(life, "side-a", 1),
                vec![Step::Begin(name("side-a"))],
            ),
            (
                "the sidecar ended while the init container behind it runs",
                |life| {
                    exited(life, "side-a", 1);
                    runs(life, "init-b");
                },
                vec![Step::Begin(name("side-a"))],
            ),
            (
                "the sidecar ended, and the init container behind it has ended",
                |life| {
                    exited(life, "side-a", 1);
                    exited(life, "init-b", 0);
                },
                vec![Step::Begin(name("side-a")), Step::Start(name("web"))],
            ),
            (
                "the sidecar ended while the main container runs",
                |life| {
                    exited(life, "init-b", 0);
                    runs(life, "web");
                    exited(life, "side-a", 0);
                },
                vec![Step::Begin(name("side-a"))],
            ),
            (
                "only the sidecar is left",
                |life| {
                    exited(life, "init-b", 0);
                    exited(life, "web", 0);
                    runs(life, "side-a");
                },
                ended(true),
            ),
        ],
    );
}

#[test]
fn main_containers_start_in_order_and_do_not_wait_for_those_that_wait() {
    let base = || {
        let mut life = furnished(pods::pod("web", &["web", "log"]));
        ["web", "log"].into_iter().for_each(|one| prepared(&mut life, one));
        life
    };
    let image = |life: &mut Life, state: ImageUse| {
        if let Some(Run::Preparing(preparing)) = life.actual.containers.get_mut(&name("web")) {
            preparing.image = state;
        }
    };
    assert_eq!(planned(&base()).steps, [Step::Start(name("web"))]);
    let mut life = base();
    image(&mut life, ImageUse::Pulling { is_early: false, secret_changed: false });
    assert_eq!(planned(&life).steps, [], "the first is on its way");
    let mut life = base();
    let retry = failed(FailureKind::Config, Duration::from_secs(10));
    image(&mut life, ImageUse::Refused { reason: "ErrImageNeverPull".into(), retry });
    assert_eq!(planned(&life).steps, [Step::Start(name("log"))], "the first waits");
}

/// What a pod does about the image of its main container, while its init container runs and when that has ended well.
#[test]
fn an_image_is_looked_for_early_and_once_more_in_its_containers_turn() {
    use ImagePullPolicy::{Always, IfNotPresent, Never};
    let of = || ImageFor::Container(name("web"));
    let inspect = || vec![Step::Inspect(of())];
    let pull = || vec![Step::Pull(of())];
    let announce = || vec![Step::BackOffPull(pods::container("web").image)];
    let pulling = || ImageUse::Pulling { is_early: true, secret_changed: false };
    let cases = [
        (IfNotPresent, ImageUse::Wanted, None, inspect(), inspect()),
        (Never, ImageUse::Wanted, None, inspect(), inspect()),
        (Always, ImageUse::Wanted, None, vec![], pull()),
        (IfNotPresent, ImageUse::Postponed, None, vec![], inspect()),
        (Never, ImageUse::Postponed, None, vec![], inspect()),
        (Always, ImageUse::Postponed, None, vec![], pull()),
        (IfNotPresent, pulling(), None, vec![], vec![]),
        (IfNotPresent, ImageUse::Missing, None, pull(), pull()),
        // Another container of the pod could not have it so many seconds ago.
        (IfNotPresent, ImageUse::Missing, Some(2), vec![], announce()),
        (IfNotPresent, ImageUse::Missing, Some(10), pull(), pull()),
    ];
    for (policy, image, failed_ago, early, in_turn) in cases {
        let mut life = furnished(pods::pod("web", &["init-a", "web"]));
        pods::edit(Arc::make_mut(&mut life.spec), "web").pull_policy = policy;
        prepared(&mut life, "web");
        if let Some(Run::Preparing(preparing)) = life.actual.containers.get_mut(&name("web")) {
            preparing.image = image.clone();
        }
        if let Some(ago) = failed_ago {
            let (failed_at, delay) = (Mono(NOW - Duration::from_secs(ago)), Duration::from_secs(10));
            let backoff = PullBackoff {
                error: Some("not found".into()),
                failed_at,
                delay,
                ends_at: failed_at + delay,
                announced: false,
            };
            life.actual.pull_backoffs.insert(pods::container("web").image, backoff);
        }
        let what = format!("{policy:?} {image:?} {failed_ago:?}");
        runs(&mut life, "init-a");
        assert_eq!(planned(&life).steps, early, "{what}");
        exited(&mut life, "init-a", 0);
        assert_eq!(planned(&life).steps, in_turn, "{what}");
    }
}

#[test]
fn nothing_starts_before_all_that_is_shared_is_there() {
    let mut pod = pods::pod("web", &["web"]);
    pod.volumes = vec![pods::empty_dir("data")];
    pods::mount_all(&mut pod, "web");
    pod.volumes.push(pods::empty_dir("unused"));
    let base = || {
        let mut life = furnished(pod.clone());
        prepared(&mut life, "web");
        life.actual.volumes.insert(VolumeName::new("data"), Resource::Ready("/v".into()));
        life
    };
    assert_eq!(planned(&base()).steps, [Step::Start(name("web"))]);
    type Taking = fn(&mut Actual);
    let takings: [(&str, Taking); 5] = [
        ("dirs", |actual| actual.dirs = Resource::Ensuring(OpId(1))),
        ("cgroup", |actual| actual.cgroup = Resource::Ensuring(OpId(1))),
        ("network", |actual| actual.network = Resource::Ensuring(OpId(1))),
        ("sandbox", |actual| actual.sandbox = Resource::Ensuring(OpId(1))),
        ("volume", |actual| {
            actual.volumes.values_mut().for_each(|state| *state = Resource::Ensuring(OpId(1)));
        }),
    ];
    for (what, take) in takings {
        let mut life = base();
        take(&mut life.actual);
        assert_eq!(planned(&life).steps, [], "{what}");
    }
}

#[test]
fn without_a_network_only_wired_pods_wait() {
    let down = Network::NotReady("no config".into());
    let mut life = furnished(pods::pod("web", &[]));
    life.actual = Actual::fresh();
    Arc::make_mut(&mut life.spec).containers = vec![Arc::new(pods::container("web"))];
    let waits = planned_with(&life, &down);
    assert!(!waits.steps.contains(&Step::Ensure(PodResource::Netns)));
    assert_eq!(waits.unwired, Some("no config".into()));
    Arc::make_mut(&mut life.spec).network = berth_core::spec::NetworkMode::Node;
    let goes = planned_with(&life, &down);
    assert!(goes.steps.contains(&Step::Ensure(PodResource::Sandbox)));
    assert_eq!(goes.unwired, None);
    let wired = running(&["web"], RestartPolicy::Always);
    assert_eq!(planned_with(&wired, &down), Plan::default(), "what is wired stays wired");
}

#[test]
fn a_pod_waits_to_be_wired_until_the_network_is_not_heard_for_too_long() {
    let mut life = furnished(pods::pod("web", &["web"]));
    life.actual = Actual::fresh();
    for (network, is_begun) in [(Network::Unknown, false), (Network::Unheard, true)] {
        let plan = planned_with(&life, &network);
        assert_eq!(plan.steps.contains(&Step::Ensure(PodResource::Netns)), is_begun, "{network:?}");
        assert_eq!(plan.unwired, None, "{network:?}");
    }
}

/// The sandbox is what tells why. One that has containers has its resolv.conf.
#[test]
fn without_a_resolv_conf_of_the_node_only_new_sandboxes_are_not_wired() {
    let mut config = pods::node();
    config.dns.node_resolv_conf = ResolvConf::Unreadable("open /etc/resolv.conf: gone".into());
    let steps = |mut life: Life| {
        life.actual.network = Resource::Unknown;
        life.actual.sandbox = Resource::Unknown;
        plan(&life, World { config: &config, network: &Network::Ready }, now()).steps
    };
    let (network, sandbox) = (Step::Ensure(PodResource::Network), Step::Ensure(PodResource::Sandbox));
    let new = steps(furnished(pods::pod("web", &["web"])));
    assert!(!new.contains(&network) && new.contains(&sandbox), "{new:?}");
    let old = steps(running(&["web"], RestartPolicy::Always));
    assert!(old.contains(&network) && old.contains(&sandbox), "{old:?}");
}

#[test]
fn failures_are_retried_when_their_time_has_come() {
    let mut life = running(&["web"], RestartPolicy::Always);
    life.actual.cgroup = Resource::Failed(failed(FailureKind::Transient, Duration::from_secs(4)));
    let waits = planned(&life);
    assert_eq!((waits.steps, waits.wake_at), (vec![], Some(Mono(NOW) + Duration::from_secs(4))));
    life.actual.cgroup = Resource::Failed(failed(FailureKind::Transient, Duration::ZERO));
    assert_eq!(planned(&life).steps, [Step::Ensure(PodResource::Cgroup)]);
}

fn stopping(life: &mut Life) {
    life.record.goal = Goal::Removed;
    let deadline = Mono(NOW) + Duration::from_secs(30);
    life.record.termination = Some(TerminationRecord { began: Mono(NOW), deadline });
}

#[test]
fn a_pod_stops_its_main_containers_first_and_sidecars_in_reverse() {
    let base = || {
        let mut life = running(&["side-a", "side-b", "web", "log"], RestartPolicy::Always);
        stopping(&mut life);
        life
    };
    let gone = |life: &mut Life, all: &[&str]| all.iter().for_each(|one| exited(life, one, 0));
    let all = ["web", "log", "side-b", "side-a"];
    assert_eq!(planned(&base()).steps, all.map(|one| Step::Stop(name(one))), "all begin to stop at once");
    let base = || {
        let mut life = base();
        let stop = life.record.termination;
        all.iter().for_each(|one| record(&mut life, one).stopping = stop);
        life
    };
    assert_eq!(planned(&base()).steps, [Step::Term(name("web")), Step::Term(name("log"))]);
    let mut life = base();
    gone(&mut life, &["web"]);
    assert_eq!(planned(&life).steps, [Step::Term(name("log"))]);
    gone(&mut life, &["log"]);
    assert_eq!(planned(&life).steps, [Step::Term(name("side-b"))]);
    gone(&mut life, &["side-b"]);
    assert_eq!(planned(&life).steps, [Step::Term(name("side-a"))]);
    let mut late = base();
    late.record.termination = Some(TerminationRecord { began: Mono(NOW), deadline: Mono(NOW) });
    assert_eq!(planned(&late).steps.len(), 4, "at the deadline nobody waits for a turn");
}

#[test]
fn a_stopping_container_gets_its_signal_and_at_the_deadline_sigkill() {
    let mut life = running(&["web"], RestartPolicy::Always);
    stopping(&mut life);
    let until =
        |seconds| TerminationRecord { began: Mono(NOW), deadline: Mono(NOW) + Duration::from_secs(seconds) };
    record(&mut life, "web").stopping = Some(until(30));
    let first = planned(&life);
    assert_eq!(first.steps, [Step::Term(name("web"))]);
    assert_eq!(first.wake_at, Some(Mono(NOW) + Duration::from_secs(30)));
    life.record.termination = Some(until(10));
    assert_eq!(planned(&life).wake_at, Some(Mono(NOW) + Duration::from_secs(10)), "a shorter grace counts");
    let long_ago = Mono(NOW - Duration::from_secs(2));
    record(&mut life, "web").stopping = Some(TerminationRecord { began: long_ago, ..until(0) });
    assert_eq!(planned(&life).steps, [Step::Kill(name("web"))]);
}

#[test]
fn a_pod_is_taken_down_in_order() {
    let mut life = running(&["web"], RestartPolicy::Always);
    stopping(&mut life);
    life.actual.volumes.insert(VolumeName::new("data"), Resource::Ready("/v".into()));
    let ended_now = Run::Ended(EndedRun {
        exit: exit(0),
        at: now().mono,
        shown_since: None,
        message: TerminationMessage::Unread,
    });
    life.actual.containers.insert(name("web"), ended_now);
    assert_eq!(planned(&life).steps, [Step::ReadTerminationMessage(name("web"))]);
    exited(&mut life, "web", 0);
    let sandbox = life.sandbox_id();
    let first = [Leftover::Sandbox(sandbox.clone()), Leftover::Network(sandbox.clone()), Leftover::Volumes];
    let refresh = Refresh::Asked { op: OpId(1), again: false };
    life.actual.refreshes.insert(VolumeName::new("data"), refresh);
    assert_eq!(planned(&life).steps, first[..2].iter().cloned().map(Step::Remove).collect::<Vec<_>>());
    life.actual.refreshes.clear();
    assert_eq!(planned(&life).steps, first.map(Step::Remove));
    life.actual.sandbox = Resource::Absent;
    life.actual.network = Resource::Absent;
    life.actual.volumes.clear();
    assert_eq!(planned(&life).steps, [Step::Remove(Leftover::Netns(sandbox))]);
    life.actual.netns = Resource::Absent;
    assert_eq!(planned(&life).steps, [Step::Remove(Leftover::Cgroup)]);
    life.actual.cgroup = Resource::Absent;
    life.actual.files = Resource::Ensuring(OpId(1));
    assert_eq!(planned(&life).steps, [], "a file that is written makes its directory");
    life.actual.files = Resource::Ready(());
    assert_eq!(planned(&life).steps, [Step::Remove(Leftover::Dirs)]);
    life.actual.dirs = Resource::Absent;
    assert_eq!(planned(&life).steps, [Step::Remove(Leftover::Record)]);
}

#[test]
fn a_pod_that_has_ended_keeps_its_directories_and_its_record() {
    let mut life = running(&["web"], RestartPolicy::Never);
    exited(&mut life, "web", 0);
    life.record.terminal = Some(TerminalRecord {
        succeeded: true,
        reason: String::new(),
        message: String::new(),
        by: EndedBy::Itself,
    });
    life.actual = Actual { dirs: Resource::Ready(()), ..Actual::fresh() };
    assert_eq!(planned(&life).steps, [Step::Ensure(PodResource::End)]);
    life.actual.end = Resource::Ready(());
    assert_eq!(planned(&life).steps, []);
    life.actual.end = Resource::Absent;
    life.record.source = Source::Api;
    assert_eq!(planned(&life).steps, [], "the API knows how it has ended");
    life.record.goal = Goal::Removed;
    assert_eq!(planned(&life).steps, [Step::Remove(Leftover::Dirs)]);
}

/// What may run gets its stop signal: whether it does is looked at while there is time.
#[test]
fn a_start_that_nobody_answered_is_looked_at_before_it_is_given_up() {
    type Case = (&'static str, Option<(FailureKind, u64)>, Option<u32>, u64, Step);
    let look = || Step::Look(name("web"));
    let discard = || Step::Discard(name("web"));
    let unknown = |after| Some((FailureKind::Unknown, after));
    let cases: [Case; 7] = [
        ("asked by an earlier agent", None, Some(0), 30, look()),
        ("no answer", unknown(0), Some(0), 30, look()),
        ("containerd went", Some((FailureKind::RuntimeDown, 0)), Some(0), 30, look()),
        ("time is up", unknown(0), Some(0), 0, discard()),
        ("refused for sure", Some((FailureKind::Transient, 0)), Some(0), 30, discard()),
        ("asked in another sandbox", unknown(0), Some(7), 30, discard()),
        ("never asked", None, None, 30, discard()),
    ];
    let case = |refused: Option<(FailureKind, u64)>, started_in| {
        let mut life = furnished(pods::pod("web", &["web"]));
        prepared(&mut life, "web");
        record(&mut life, "web").started_in = started_in;
        if let Some(Run::Preparing(preparing)) = life.actual.containers.get_mut(&name("web")) {
            preparing.refused = refused.map(|(kind, after)| Refusal {
                reason: "CreateContainerError",
                retry: failed(kind, Duration::from_secs(after)),
            });
        }
        life
    };
    for (what, refused, started_in, grace, step) in cases {
        let mut life = case(refused, started_in);
        let deadline = Mono(NOW) + Duration::from_secs(grace);
        life.record.termination = Some(TerminationRecord { began: Mono(NOW), deadline });
        assert_eq!(planned(&life).steps, std::slice::from_ref(&step), "removed: {what}");
        if grace > 0 {
            let mut life = case(refused, started_in);
            pods::edit(Arc::make_mut(&mut life.spec), "web").hash = 2;
            assert_eq!(planned(&life).steps, [step], "changed: {what}");
        }
    }
    let mut life = case(unknown(5), Some(0));
    let deadline = Mono(NOW) + Duration::from_secs(30);
    life.record.termination = Some(TerminationRecord { began: Mono(NOW), deadline });
    assert_eq!(planned(&life), Plan { wake_at: Some(Mono(NOW) + Duration::from_secs(5)), ..Plan::default() });
}

fn preparing<'a>(life: &'a mut Life, one: &str) -> &'a mut Preparing {
    let Some(Run::Preparing(preparing)) = life.actual.containers.get_mut(&name(one)) else {
        panic!("it is prepared")
    };
    preparing
}

/// The next run is prepared of a container that has failed.
fn again(life: &mut Life, one: &str) {
    exited(life, one, 1);
    let record = record(life, one);
    record.last_exit = record.exit.take();
    record.last_in = record.started_in.take();
    prepared(life, one);
}

/// It waits for its next run.
fn backs_off(life: &mut Life, one: &str) {
    again(life, one);
    life.actual.containers.insert(name(one), Run::BackingOff);
}

/// A pod whose container `web` is prepared again.
fn with_web_again(all: &[&str]) -> Life {
    let mut life = furnished(pods::pod("web", all));
    all.iter().filter(|one| one.starts_with("init-")).for_each(|one| exited(&mut life, one, 0));
    again(&mut life, "web");
    life
}

/// The same, while its sidecar `side-a` waits.
fn without_sidecar(all: &[&str]) -> Life {
    let mut life = with_web_again(all);
    backs_off(&mut life, "side-a");
    life
}

/// What is started.
fn starts(life: &Life) -> Vec<Step> {
    planned(life).steps.into_iter().filter(|step| matches!(step, Step::Start(_))).collect()
}

/// Others were being stopped to begin anew together when the pod came to its end.
#[test]
fn what_stops_with_its_pod_has_the_pods_time_and_its_hook() {
    let stop = |began: u64, deadline: u64| TerminationRecord {
        began: Mono(Duration::from_secs(began)),
        deadline: Mono(Duration::from_secs(deadline)),
    };
    let (together, with_pod) = (stop(997, 999), stop(998, 1028));
    for (stopping, expected) in
        [(together, Step::Term(name("web"))), (with_pod, Step::RunHook(name("web"), HookMoment::PreStop))]
    {
        let mut life = running(&["web"], RestartPolicy::Always);
        let hook = Hook::Exec(vec!["do".into()]);
        pods::edit(Arc::make_mut(&mut life.spec), "web").lifecycle.pre_stop = Some(hook);
        (life.record.restarting, life.record.termination) = (Some(together), Some(with_pod));
        record(&mut life, "web").stopping = Some(stopping);
        assert_eq!(planned(&life).steps, [expected], "{stopping:?}");
    }
}

/// Source: `computeInitContainerActions` of `pkg/kubelet/kuberuntime/kuberuntime_container.go`, which counts main containers that are
/// created or running, and then goes by the last init container.
#[test]
fn main_containers_that_run_again_wait_for_the_last_sidecar() {
    let web = || vec![Step::Start(name("web"))];
    let mut life = without_sidecar(&["side-a", "web"]);
    assert_eq!(starts(&life), [], "the sidecar waits");
    again(&mut life, "side-a");
    assert_eq!(starts(&life), [Step::Start(name("side-a"))], "the sidecar comes first");
    runs(&mut life, "side-a");
    assert_eq!(starts(&life), web(), "the sidecar runs");
    pods::edit(Arc::make_mut(&mut life.spec), "side-a").probes.startup = Some(pods::probe());
    assert_eq!(starts(&life), [], "it runs, and has not started");

    let mut life = without_sidecar(&["side-a", "web", "log"]);
    let (exit, message) = (exit(0), TerminationMessage::Unread);
    let ended = EndedRun { exit, message, shown_since: None, at: Mono(NOW) };
    life.actual.containers.insert(name("log"), Run::Ended(ended));
    assert_eq!(starts(&life), [], "another main container has ended");
    runs(&mut life, "log");
    assert_eq!(starts(&life), web(), "it runs");
    backs_off(&mut life, "log");
    assert_eq!(starts(&life), [], "it waits, too");

    let mut life = without_sidecar(&["side-a", "side-b", "web"]);
    runs(&mut life, "side-b");
    assert_eq!(starts(&life), web(), "the last sidecar runs");
    assert_eq!(starts(&without_sidecar(&["side-a", "init-b", "web"])), web(), "an init container is last");
}

/// They run, as far as a kubelet knows that sees them begun, or decides to stop and to begin them in one go.
#[test]
fn main_containers_that_may_run_or_are_replaced_wait_for_no_sidecar() {
    let refused = |kind| {
        let retry = Retry { at: Mono(NOW), ..failed(kind, Duration::ZERO) };
        Some(Refusal { reason: "RunContainerError", retry })
    };
    let web = vec![Step::Start(name("web"))];
    for (kind, expected) in [(FailureKind::Unknown, web.clone()), (FailureKind::Transient, vec![])] {
        let mut life = without_sidecar(&["side-a", "web"]);
        record(&mut life, "web").started_in = Some(0);
        preparing(&mut life, "web").refused = refused(kind);
        assert_eq!(starts(&life), expected, "{kind:?}");
    }
    let mut life = without_sidecar(&["side-a", "web"]);
    preparing(&mut life, "web").follows = Follows::AStop;
    assert_eq!(starts(&life), web, "it goes on at once");
    preparing(&mut life, "web").refused = refused(FailureKind::Transient);
    assert_eq!(starts(&life), [], "it could not");
}
