use std::collections::BTreeMap;

use jiff::Timestamp;

use super::*;
use crate::{
    fixtures,
    id::ImageRef,
    observation::Exit,
    pod::{
        PodMachine,
        actual::Running,
        port::{hook::Hooking, signal::Stop},
    },
    record::{Hooked, Probed, TerminationRecord},
    spec::{Pod, RestartRule},
    time::Now,
};

const LONGEST: Duration = Duration::from_secs(300);

fn next_backoff_ms(record: &ContainerRecord, exit: &ExitRecord, longest: Duration) -> u64 {
    next_back_off(record, Stopped::No, longest, exit.at).delay_ms
}

#[test]
fn each_image_has_a_back_off_of_its_own_for_ten_minutes_after_its_last_restart() {
    let of = |image: &str| {
        let mut container = fixtures::container("main");
        container.image = ImageRef::new(image);
        container
    };
    // Changes of the image after so many seconds, and the delay in seconds that is in force then.
    type Case = (&'static str, &'static [(u64, &'static str)], u64);
    let cases: [Case; 7] = [
        ("none", &[], 40),
        ("another", &[(1, "b")], 0),
        ("there and back", &[(1, "b"), (2, "a")], 40),
        ("through a third", &[(1, "b"), (2, "c"), (3, "a")], 40),
        ("back within ten minutes", &[(1, "b"), (600, "a")], 40),
        ("back after ten minutes", &[(1, "b"), (601, "a")], 0),
        ("the first change comes too late", &[(601, "b"), (602, "a")], 0),
    ];
    for (what, changes, seconds) in cases {
        let (mut record, _) = ended(0, 1, 40_000);
        let mut image = "a";
        for (at, next) in changes {
            change_back_off(&mut record, &of(image), &of(next), Mono(Duration::from_secs(*at)));
            image = next;
        }
        assert_eq!(record.backoff.delay_ms, seconds * 1000, "{what}");
    }
    let (mut record, _) = ended(0, 1, 40_000);
    let (one, mut other) = (of("a"), of("a"));
    other.resources.limits.cpu_milli = Some(500);
    change_back_off(&mut record, &one, &other, Mono(Duration::from_secs(1)));
    assert_eq!(record.backoff.delay_ms, 0, "other resources");
    let (mut record, _) = ended(0, 1, 40_000);
    for number in 0..100_u64 {
        let (old, new) = (of(&format!("{number}")), of(&format!("{}", number + 1)));
        let since = Mono(Duration::from_millis(number));
        record.backoff = RestartBackoff { delay_ms: 10_000, since };
        change_back_off(&mut record, &old, &new, since);
    }
    assert_eq!(record.other_backoffs.len(), OTHERS_MAX);
    assert!(record.other_backoffs.contains_key(&back_off_key(&of("99"))), "the latest is gone");
}

fn ended(begun_at: u64, at: u64, delay_ms: u64) -> (ContainerRecord, ExitRecord) {
    let exit = Exit { code: 1, started_at: None, finished_at: Timestamp::UNIX_EPOCH, oom_killed: false };
    let at = Mono(Duration::from_secs(at));
    let id = crate::id::ContainerId::from_known("a");
    let exit = ExitRecord {
        id: id.clone(),
        attempt: 0,
        exit,
        at,
        message: String::new(),
        reason: None,
        post_start: None,
    };
    let record = ContainerRecord {
        id,
        attempt: 0,
        begun_at: Mono(Duration::from_secs(begun_at)),
        anew: false,
        actuated: None,
        started_in: Some(0),
        last_in: None,
        has_run: false,
        image: None,
        stopping: None,
        probed: Probed::default(),
        hooked: Hooked::default(),
        exit: Some(exit.clone()),
        last_exit: None,
        backoff: RestartBackoff { delay_ms, since: Mono(Duration::from_secs(begun_at)) },
        other_backoffs: BTreeMap::new(),
    };
    (record, exit)
}

#[test]
fn a_pod_may_start_containers_until_all_have_run_and_none_runs_again() {
    use RestartPolicy::{Always, Never, OnFailure};
    let now = Now { mono: Mono(Duration::from_secs(200)), wall: Timestamp::UNIX_EPOCH };
    let stop = TerminationRecord { began: now.mono, deadline: now.mono };
    let (ran, exit) = ended(100, 101, 0);
    let runs = ContainerRecord { exit: None, ..ran.clone() };
    let stops = ContainerRecord { stopping: Some(stop), ..runs.clone() };
    let discarded = ContainerRecord { started_in: None, ..runs.clone() };
    let well = ExitRecord { exit: Exit { code: 0, ..exit.exit }, ..exit };
    let ran_well = ContainerRecord { exit: Some(well), ..ran.clone() };
    let running = Run::Running(Running {
        pid: None,
        known_at: now.mono,
        started_at: now.wall,
        hash: 0,
        stop: Stop::No,
        hook: Hooking::No,
        is_trusted: false,
    });
    let spec = |policy| Pod { restart_policy: policy, ..fixtures::pod(vec![fixtures::container("main")]) };
    let rule = RestartRule { codes: vec![42], is_in: true, action: RestartAction::Restart };
    let restarts = OwnRestarts { policy: Some(Never), rules: vec![rule] };
    let with_rule = Container { restarts, ..fixtures::container("main") };
    let own = Pod { containers: vec![with_rule.into()], ..spec(Never) };
    let mut with_another = spec(Never);
    with_another.containers.push(fixtures::container("another").into());
    for (what, pod, run, expected) in [
        ("not begun", spec(Never), None, true),
        ("running", spec(Never), Some((&running, &runs)), false),
        ("running", spec(OnFailure), Some((&running, &runs)), true),
        ("running", spec(Always), Some((&running, &runs)), true),
        ("running, with a rule", own, Some((&running, &runs)), true),
        ("running, beside one that has not begun", with_another, Some((&running, &runs)), true),
        ("stopped to follow its spec", spec(Never), Some((&running, &stops)), true),
        ("begun and given up", spec(Never), Some((&Run::Idle, &discarded)), true),
        ("failed", spec(Never), Some((&Run::Idle, &ran)), false),
        ("failed", spec(OnFailure), Some((&Run::BackingOff, &ran)), true),
        ("done", spec(OnFailure), Some((&Run::Idle, &ran_well)), false),
        ("done", spec(Always), Some((&Run::Idle, &ran_well)), true),
    ] {
        let policy = pod.restart_policy;
        let mut pod = PodMachine::new(pod.into(), now);
        if let Some((run, record)) = run {
            let name = pod.life.spec.containers[0].name.clone();
            pod.life.record.containers.insert(name.clone(), record.clone());
            pod.life.actual.containers.insert(name, run.clone());
        }
        assert_eq!(pod.life.may_start(), expected, "{policy:?}: {what}");
        pod.life.record.restarting = Some(stop);
        assert!(pod.life.may_start(), "{policy:?}: {what}, and all begin anew");
        pod.life.record.termination = Some(stop);
        assert!(!pod.life.may_start(), "{policy:?}: {what}, and to stop");
    }
}

#[test]
fn an_ephemeral_container_may_start_until_it_runs() {
    let now = Now { mono: Mono(Duration::from_secs(200)), wall: Timestamp::UNIX_EPOCH };
    let (ran, _) = ended(100, 101, 0);
    let runs = ContainerRecord { exit: None, ..ran.clone() };
    let running = Run::Running(Running {
        pid: Some(7),
        known_at: now.mono,
        started_at: now.wall,
        hash: 0,
        stop: Stop::No,
        hook: Hooking::No,
        is_trusted: false,
    });
    let replaced = TerminationRecord { began: now.mono, deadline: now.mono };
    let stopped = ContainerRecord { stopping: Some(replaced), ..ran.clone() };
    for (what, run, expected) in [
        ("not begun", None, true),
        ("running", Some((&running, &runs)), false),
        ("ended", Some((&Run::Idle, &ran)), false),
        ("stopped", Some((&Run::Idle, &stopped)), false),
    ] {
        let main = fixtures::container("main");
        let debug = Container { kind: ContainerKind::Ephemeral, ..fixtures::container("debug") };
        let spec = Pod {
            restart_policy: RestartPolicy::Never,
            ephemeral_containers: vec![debug.into()],
            ..fixtures::pod(vec![main])
        };
        let mut pod = PodMachine::new(spec.into(), now);
        let name = |name: &str| crate::id::ContainerName::new(name);
        let of_main = (name("main"), running.clone(), runs.clone());
        let of_debug = run.map(|(run, record)| (name("debug"), run.clone(), record.clone()));
        for (name, run, record) in [of_main].into_iter().chain(of_debug) {
            pod.life.record.containers.insert(name.clone(), record);
            pod.life.actual.containers.insert(name, run);
        }
        assert_eq!(pod.life.may_start(), expected, "{what}");
    }
}

#[test]
fn the_first_restart_is_at_once_and_further_ones_wait_twice_as_long_up_to_the_bound() {
    let mut backoff_ms = 0;
    let mut waits = Vec::new();
    for _ in 0..8 {
        let (record, exit) = ended(100, 101, backoff_ms);
        waits.push(due(&record, &exit).since(exit.at).as_secs());
        backoff_ms = next_backoff_ms(&record, &exit, LONGEST);
    }
    assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300]);
}

#[test]
fn a_run_of_more_than_ten_minutes_resets_the_back_off_whatever_its_bound() {
    for longest in [LONGEST, Duration::from_secs(1), Duration::from_secs(20)] {
        let first = next_backoff_ms(&ended(100, 101, 0).0, &ended(100, 101, 0).1, longest);
        let (record, exit) = ended(100, 701, 300_000);
        assert_eq!(due(&record, &exit), exit.at);
        assert_eq!(next_backoff_ms(&record, &exit, longest), first, "{longest:?}");
        let (record, exit) = ended(100, 700, 300_000);
        assert_eq!(u128::from(next_backoff_ms(&record, &exit, longest)), longest.as_millis());
    }
}

#[test]
fn a_back_off_is_forgiven_ten_minutes_after_the_restart_also_while_it_is_waited_for() {
    // Seconds from the restart to the end, the delay, the wait in milliseconds, and whether the next delay is the first.
    for (ran, delay, waits_ms, is_first) in [
        (1, 300, 300_000, false),
        (300, 300, 300_000, false),
        (301, 300, 299_001, true),
        (500, 300, 100_001, true),
        (595, 10, 5_001, true),
        (590, 10, 10_000, false),
        (600, 300, 1, true),
        (601, 300, 0, true),
    ] {
        let (record, exit) = ended(100, 100 + ran, delay * 1000);
        let due = due(&record, &exit);
        assert_eq!(due.since(exit.at).as_millis(), waits_ms, "{ran} {delay}");
        let next = next_back_off(&record, Stopped::No, LONGEST, due);
        assert_eq!(next.delay_ms == 10_000, is_first, "{ran} {delay}: {next:?}");
    }
}

#[test]
fn what_a_run_has_waited_follows_from_the_delay_after_it() {
    // Which run it is, the delay after it, the time since the run before, and how long it has waited.
    for (attempt, delay_s, passed_s, expected) in [
        (0, 0, 0, 0),
        (1, 10, 100, 0),
        (2, 20, 10, 10),
        (2, 20, 9, 0),
        (5, 160, 80, 80),
        (5, 160, 79, 0),
        (6, 300, 160, 160),
        (6, 300, 159, 0),
        (7, 300, 300, 300),
        (9, 10, 100, 0),
        (1, 3, 100, 0),
        (2, 3, 3, 3),
        (2, 3, 2, 0),
        (4, 60, 40, 40),
    ] {
        let (mut record, _) = ended(1000, 1001, delay_s * 1000);
        let (_, exit) = ended(0, 1000 - passed_s, 0);
        record.attempt = attempt;
        let record = ContainerRecord { last_exit: Some(exit), exit: None, ..record };
        assert_eq!(waited(&record), Duration::from_secs(expected), "{attempt} {delay_s} {passed_s}");
    }
}

/// Source: `SyncPod` of `pkg/kubelet/kuberuntime/kuberuntime_manager.go`, which has removed all runs before: `doBackOff` finds none.
#[test]
fn what_is_stopped_after_all_began_anew_waits_for_no_end_of_before() {
    let (mut record, exit) = ended(100, 130, 160_000);
    let (_, before) = ended(0, 99, 0);
    record.last_exit = Some(before);
    assert_eq!(due_after_a_stop(&record, &exit).since(exit.at), Duration::from_secs(160));
    record.anew = true;
    assert_eq!(due_after_a_stop(&record, &exit), exit.at);
    let next = next_back_off(&record, Stopped::Alone, LONGEST, exit.at);
    assert_eq!((next.delay_ms, next.since), (160_000, exit.at), "and is not counted");
}

#[test]
fn what_is_stopped_to_run_again_waits_as_long_as_the_end_before_it_says() {
    // What a container comes to whose liveness probe fails so many seconds after each start: how long it waits each time.
    for (runs_s, waits_s) in
        [(60, [0, 0, 0, 0, 0, 80, 160, 300]), (5, [0, 0, 10, 20, 40, 80, 160, 300]), (400, [0; 8])]
    {
        let mut begun = 0;
        let (mut record, _) = ended(0, 1, 0);
        let mut waits = Vec::new();
        for _ in 0..8 {
            let (_, exit) = ended(begun, begun + runs_s, 0);
            let due = due_after_a_stop(&record, &exit);
            waits.push(due.since(exit.at).as_secs());
            record.backoff = next_back_off(&record, Stopped::Alone, LONGEST, due);
            record.last_exit = Some(exit);
            begun = due.0.as_secs();
        }
        assert_eq!(waits, waits_s, "{runs_s}");
    }
    let (record, exit) = ended(0, 5, 0);
    let next = next_back_off(&record, Stopped::Alone, LONGEST, exit.at);
    assert_eq!((next.delay_ms, next.since), (0, exit.at), "a first run that was stopped counts for nothing");
}

#[test]
fn a_restart_becomes_one_of_another_version_when_the_back_off_in_force_was_not_set_for_it() {
    // The delay in force, when it was set, and when the restart was decided; whether it was begun for another version.
    for (delay, since, begun_at, expected) in
        [(10_000, 100, 100, false), (0, 0, 100, true), (0, 100, 100, false), (10_000, 80, 100, true)]
    {
        let (mut record, exit) = ended(begun_at, begun_at + 1, delay);
        record.backoff.since = Mono(Duration::from_secs(since));
        let what = format!("{delay} {since} {begun_at}");
        assert!(!is_of_another(&record), "{what}: it has ended");
        record.exit = None;
        assert!(!is_of_another(&record), "{what}: it is the first");
        record.last_exit = Some(exit);
        assert_eq!(is_of_another(&record), expected, "{what}");
    }
}

#[test]
fn a_bound_below_ten_seconds_is_the_first_delay_too() {
    let (record, exit) = ended(100, 101, 0);
    assert_eq!(next_backoff_ms(&record, &exit, Duration::from_secs(3)), 3_000);
}

#[test]
fn policy_kind_and_code_decide_whether_a_container_runs_again() {
    use ContainerKind::{Ephemeral, Init, Main, Sidecar};
    use RestartPolicy::{Always, Never, OnFailure};
    let cases = [
        (Main, Always, 0, true),
        (Main, Always, 1, true),
        (Main, OnFailure, 0, false),
        (Main, OnFailure, 1, true),
        (Main, Never, 0, false),
        (Main, Never, 1, false),
        (Init, Always, 0, false),
        (Init, Always, 1, true),
        (Init, OnFailure, 1, true),
        (Init, Never, 1, false),
        (Sidecar, Never, 0, true),
        (Sidecar, Never, 1, true),
        (Ephemeral, Always, 0, false),
        (Ephemeral, Always, 1, false),
        (Ephemeral, OnFailure, 1, false),
    ];
    for (kind, policy, code, again) in cases {
        let container = Container { kind, ..fixtures::container("main") };
        assert_eq!(runs_again(&container, policy, code), again, "{kind:?} {policy:?} {code}");
    }
}

#[test]
fn what_a_container_says_itself_goes_before_its_pods_policy() {
    use ContainerKind::{Init, Main};
    use RestartPolicy::{Always, Never, OnFailure};
    let rule = |codes: &[u32], is_in, action| RestartRule { codes: codes.to_vec(), is_in, action };
    let on = |codes: &[u32]| vec![rule(codes, true, RestartAction::Restart)];
    let all_on = |codes: &[u32]| vec![rule(codes, true, RestartAction::RestartAllContainers)];
    let but_on = |codes: &[u32]| vec![rule(codes, false, RestartAction::Restart)];
    for (kind, pod, own, rules, code, again) in [
        (Main, Never, Some(Always), vec![], 0, true),
        (Main, Always, Some(Never), vec![], 1, false),
        (Main, Always, Some(OnFailure), vec![], 0, false),
        (Main, Never, Some(OnFailure), vec![], 1, true),
        (Main, Never, None, vec![], 1, false),
        (Main, Never, Some(Never), on(&[42]), 42, true),
        (Main, Never, Some(Never), on(&[42]), 1, false),
        (Main, Never, Some(Never), but_on(&[0, 1]), 42, true),
        (Main, Never, Some(Never), but_on(&[0, 1]), 1, false),
        (Main, Never, Some(Never), all_on(&[42]), 42, true),
        (Main, Never, Some(Never), all_on(&[42]), 43, false),
        (Init, Always, Some(Never), vec![], 1, false),
        (Init, Never, Some(OnFailure), vec![], 1, true),
        (Init, Never, Some(Never), on(&[0, 42]), 42, true),
        (Init, Never, Some(Never), on(&[0, 42]), 0, false),
    ] {
        let restarts = OwnRestarts { policy: own, rules };
        let container = Container { kind, restarts, ..fixtures::container("main") };
        assert_eq!(runs_again(&container, pod, code), again, "{pod:?} {code} {:?}", container.restarts);
        let unhealthy = own.unwrap_or(pod) != Never;
        assert_eq!(runs_again_unhealthy(&container, pod), unhealthy, "{pod:?} {:?}", container.restarts);
    }
}
