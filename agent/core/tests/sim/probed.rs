//! Answers of probes that come when they are not waited for any more.

use std::time::Duration;

use berth_core::{
    event::Outcome,
    id::{ContainerName, PodUid},
    pod::port::{look::Finding, probe::ProbeAnswer},
    spec::{Pod, Probe, Probes},
    status::ContainerState,
};

use crate::{pods, run::Run};

fn uid() -> PodUid {
    PodUid::new("uid-web")
}

fn with_a_startup_probe() -> Pod {
    let mut pod = pods::pod("web", &["main"]);
    pods::edit(&mut pod, "main").probes.startup = Some(pods::probe());
    pod
}

fn changed(mut pod: Pod, hash: u64) -> Pod {
    pods::edit(&mut pod, "main").hash = hash;
    pod
}

fn settle_but_probes(run: &mut Run) {
    while run.settle_one_but_probes() {}
}

fn until(run: &mut Run, is_so: impl Fn(&Run) -> bool) {
    for _ in 0..1000 {
        settle_but_probes(run);
        if is_so(run) {
            return;
        }
        run.advance(Duration::from_millis(100), settle_but_probes);
    }
    panic!("it never comes to that");
}

/// A container that ignores its stop signal, and was asked whether it has started.
fn asked() -> Run {
    let mut run = Run::new();
    run.settle();
    run.world.deaf.insert(ContainerName::new("main"));
    run.want(with_a_startup_probe());
    until(&mut run, |run| !run.probes.is_empty());
    run
}

/// No time passes, so no timer has woken the node.
#[test]
fn what_is_due_with_the_start_of_a_container_is_asked_at_once() {
    let probe = || Some(pods::probe());
    let late = Some(Probe { initial_delay: Duration::from_secs(5), ..pods::probe() });
    let none = Probes::default;
    for (what, probes, asked) in [
        ("whether it has started", Probes { startup: probe(), readiness: probe(), ..none() }, 1),
        ("whether it is ready", Probes { readiness: probe(), ..none() }, 1),
        ("whether it is well, in its rhythm", Probes { liveness: probe(), ..none() }, 0),
        ("after a delay", Probes { startup: late, ..none() }, 0),
    ] {
        let mut run = Run::new();
        run.settle();
        let mut pod = pods::pod("web", &["main", "other"]);
        for name in ["main", "other"] {
            pods::edit(&mut pod, name).probes = probes.clone();
        }
        run.want(pod);
        settle_but_probes(&mut run);
        assert_eq!(run.probes.len(), 2 * asked, "{what}");
        assert_eq!(run.world.violations, Vec::<String>::new(), "{what}");
    }
}

#[test]
fn that_a_container_has_started_is_shown_also_when_it_is_to_stop_by_then() {
    type Change = fn(&mut Run);
    let is_to_stop: [(&str, Change); 3] = [
        ("its definition changed", |run| run.want(changed(with_a_startup_probe(), 2))),
        ("its network namespace is gone", |run| {
            assert!(run.world.change_behind(&uid(), Finding::Netns));
            until(run, |run| run.world.records[&uid()].replacing.is_some());
        }),
        ("its pod goes", |run| run.unwant("web")),
    ];
    let failed = || ProbeAnswer::Failure("not yet".into());
    for (what, stop) in is_to_stop {
        for (answer, expected) in
            [(ProbeAnswer::Success, true), (ProbeAnswer::Warning("moved".into()), true), (failed(), false)]
        {
            let case = format!("{what}: {answer:?}");
            let mut run = asked();
            stop(&mut run);
            settle_but_probes(&mut run);
            assert!(
                run.world.records[&uid()].containers.values().all(|one| one.stopping.is_some()),
                "{case}"
            );
            run.answer_probe(0, Ok(Outcome::Probed(answer)));
            settle_but_probes(&mut run);
            let shown = &run.world.statuses[&uid()].containers[0];
            assert!(matches!(shown.state, ContainerState::Running { .. }), "{case}");
            assert_eq!(shown.started, expected, "{case}");
            assert_eq!(run.world.violations, Vec::<String>::new(), "{case}");
        }
    }
}

#[test]
fn that_a_run_has_started_tells_nothing_of_the_next() {
    let mut run = asked();
    run.want(changed(with_a_startup_probe(), 2));
    until(&mut run, |run| run.world.statuses[&uid()].containers[0].restart_count == 1);
    until(&mut run, |run| run.world.running(&uid(), "main").is_some());
    run.answer_probe(0, Ok(Outcome::Probed(ProbeAnswer::Success)));
    settle_but_probes(&mut run);
    assert!(!run.world.statuses[&uid()].containers[0].started);
    run.settle();
    assert!(run.world.statuses[&uid()].containers[0].started, "it is asked itself");
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// The definition that has no probe is there when the answer comes. What is shown of the run then is by that definition, which the
/// oracle does not judge.
#[test]
fn a_probe_that_was_taken_away_while_it_asked_may_come_back() {
    let mut run = asked();
    run.want(changed(pods::pod("web", &["main"]), 2));
    settle_but_probes(&mut run);
    run.answer_probe(0, Ok(Outcome::Probed(ProbeAnswer::Success)));
    run.want(changed(with_a_startup_probe(), 3));
    until(&mut run, |run| !run.probes.is_empty());
    run.settle();
    assert!(run.world.statuses[&uid()].containers[0].started);
}
