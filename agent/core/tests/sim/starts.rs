//! What becomes of a run by the outcome of its start and by what was heard before it: one table.

use std::time::Duration;

use berth_core::{
    effect::{Act, Effect},
    event::{Event, Outcome},
    failure::{Failure, FailureKind},
    id::{ContainerId, OpId, PodUid, SandboxId},
    observation::{Exit, ObservedTask, SandboxReport},
    oci::ObjectValues,
    pod::port::{
        look::Finding,
        start_failure::{Answer, Call, Sandbox},
    },
    short::FAILURE_BYTES_MAX,
    spec::{EnvSource, EnvVar, Pod, RestartPolicy, Source},
};
use jiff::Timestamp;

use crate::{
    pods,
    run::Run,
    world::{Disk, failure, not_started},
};

/// What a shim tells while a start is under way.
#[derive(Debug, Clone, Copy)]
enum Heard {
    Nothing,
    /// And nobody had answered a try before: what it made would have been found.
    NothingAfterNoAnswer,
    Exited,
    Lost,
    ExitedThenLost,
    /// And nobody had answered a try before.
    LostAfterNoAnswer,
}

#[test]
fn a_run_ends_as_its_start_or_its_shim_tells_whoever_knows_more() {
    use Heard::{Exited, ExitedThenLost, Lost, LostAfterNoAnswer, Nothing, NothingAfterNoAnswer};
    let running = || {
        let started_at = Timestamp::from_second(1_800_000_000).unwrap();
        Ok(Outcome::Started(ObservedTask::Running { pid: 200, started_at }))
    };
    let refused = || Ok(not_started(Call::Start, Answer::Failed, Sandbox::Up));
    let cut_off = || Ok(not_started(Call::Start, Answer::CutOff, Sandbox::Up));
    let went_before = || Ok(not_started(Call::Create, Answer::Failed, Sandbox::Gone));
    let went_meanwhile = || Ok(not_started(Call::Start, Answer::Failed, Sandbox::Gone));
    let unanswered = || Err(failure(FailureKind::Unknown, "timed out"));
    let unrecorded = || Err(failure(FailureKind::Unrecorded, "no space left on device"));
    type Case = (Heard, Result<Outcome, Failure>, Option<(u32, &'static str)>);
    let cases: [Case; 19] = [
        (Nothing, running(), None),
        (Nothing, refused(), Some((128, "StartError"))),
        (Nothing, unanswered(), None),
        (Nothing, cut_off(), None),
        (Nothing, went_before(), None),
        (Lost, went_before(), Some((137, "Error"))),
        (Lost, went_meanwhile(), Some((137, "Error"))),
        (Exited, running(), Some((3, "Error"))),
        (Exited, refused(), Some((3, "Error"))),
        (Exited, unanswered(), Some((3, "Error"))),
        (Lost, running(), Some((137, "Error"))),
        (Lost, refused(), Some((128, "StartError"))),
        (Lost, unanswered(), Some((137, "Error"))),
        (ExitedThenLost, refused(), Some((3, "Error"))),
        (ExitedThenLost, unanswered(), Some((3, "Error"))),
        (NothingAfterNoAnswer, refused(), Some((128, "StartError"))),
        (LostAfterNoAnswer, refused(), Some((137, "Error"))),
        // What has to be on disk before a start was not: it was never asked for.
        (Lost, unrecorded(), None),
        (LostAfterNoAnswer, unrecorded(), Some((137, "Error"))),
    ];
    for (heard, outcome, expected) in cases {
        let what = format!("{heard:?}, then {outcome:?}");
        let mut run = Run::new();
        run.settle();
        let (mut op, sandbox, id) = begin_start(&mut run);
        if let LostAfterNoAnswer | NothingAfterNoAnswer = heard {
            run.handle(Event::Done { op, outcome: unanswered() });
            run.advance(Duration::from_secs(2), |_| {});
            op = next_start(&mut run).0;
        }
        for report in reports(heard, &id) {
            run.handle(Event::Sandbox { id: sandbox.clone(), report });
        }
        run.handle(Event::Done { op, outcome });
        read_termination_message(&mut run);
        let record = &run.world.records[&uid()].containers.values().next().unwrap();
        let told = record.exit.as_ref().map(|end| (end.exit.code, end.reason.as_deref().unwrap_or("Error")));
        assert_eq!(told, expected, "{what}");
    }
}

/// What a pod, an image or a program says may be as long as it likes.
#[test]
fn why_nothing_is_started_is_told_in_as_much_as_a_status_can_carry() {
    let long = || "x".repeat(1 << 20);
    let mut refused = Run::new();
    refused.settle();
    let mut pod = pods::pod("web", &["main"]);
    pods::edit(&mut pod, "main").working_dir = Some(long());
    refused.want(pod);
    refused.settle();

    let mut failed = Run::new();
    failed.settle();
    let (op, ..) = begin_start(&mut failed);
    failed.handle(Event::Done { op, outcome: Err(failure(FailureKind::Config, &long())) });

    for run in [refused, failed] {
        let texts = run.told.iter().filter_map(|effect| {
            if let Effect::Pod { act: Act::Note(note), .. } = effect {
                return Some(note.event.message.clone());
            }
            let Effect::Pod { act: Act::Publish(told), .. } = effect else { return None };
            Some(format!("{:?}", told.status))
        });
        let long: Vec<usize> =
            texts.map(|text| text.len()).filter(|bytes| *bytes >= FAILURE_BYTES_MAX).collect();
        assert_eq!(long.len(), 2, "the event and the status");
        assert!(long.iter().all(|bytes| *bytes < 2 * FAILURE_BYTES_MAX), "{long:?}");
    }
}

/// When an end is heard of a run whose start nobody had answered, and that is prepared again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prepared {
    /// While the next try waits.
    Waiting,
    /// While its layer is made for the next agent; the outcome is heard before the loss.
    LayerMade,
    /// The same, heard after it.
    LayerMadeTooLate,
}

#[test]
fn an_end_that_is_heard_before_its_start_is_asked_for_again_is_not_lost_with_the_sandbox() {
    use Prepared::{LayerMade, LayerMadeTooLate, Waiting};
    for prepared in [Waiting, LayerMade, LayerMadeTooLate] {
        let mut run = Run::new();
        run.settle();
        run.want(Pod { restart_policy: RestartPolicy::Never, ..pods::pod("web", &["main"]) });
        let is_start = |effect: &Effect| matches!(effect, Effect::Pod { act: Act::StartContainer(_), .. });
        while !run.open.iter().any(is_start) {
            assert!(run.settle_one(), "{prepared:?}: it is never started");
        }
        let start = run.open.iter().find(|effect| is_start(effect)).cloned().unwrap();
        let (op, sandbox, id) = next_start(&mut run);
        if prepared == Waiting {
            run.handle(Event::Done { op, outcome: Err(failure(FailureKind::Unknown, "timed out")) });
        } else {
            let now = run.now;
            assert!(run.world.perform_half(&start, now), "{prepared:?}");
            run.world.containers.values_mut().for_each(|one| one.task = ObservedTask::Created);
            run.restart(None);
            while !run.open.iter().any(is_layer) {
                assert!(run.settle_one(), "{prepared:?}: its layer is never made");
            }
        }
        let [exited, lost] = <[_; 2]>::try_from(reports(Heard::ExitedThenLost, &id)).unwrap();
        run.handle(Event::Sandbox { id: sandbox.clone(), report: exited });
        if prepared == LayerMade {
            make_layer(&mut run);
        }
        run.handle(Event::Sandbox { id: sandbox, report: lost });
        if prepared == LayerMadeTooLate {
            make_layer(&mut run);
        }
        read_termination_message(&mut run);
        let record = run.world.records[&uid()].containers.values().next().unwrap();
        assert_eq!(record.exit.as_ref().map(|end| end.exit.code), Some(3), "{prepared:?}");
    }
}

/// What overtakes a start that waits for its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Overtaken {
    /// The pod's manifest goes.
    PodEnds,
    /// The sandbox is found to be without its network namespace.
    Looked,
    /// The sandbox is lost.
    Lost,
    /// The same when it was asked for again, since its record could not be written before.
    LostAtItsNextTry,
}

#[test]
fn a_start_that_was_overtaken_while_its_record_was_written_is_taken_back() {
    use Overtaken::{Looked, Lost, LostAtItsNextTry, PodEnds};
    for overtaken in [PodEnds, Looked, Lost, LostAtItsNextTry] {
        let mut run = Run::new();
        run.settle();
        run.want(pods::pod("web", &["main"]));
        let is_last = |effect: &Effect| matches!(effect, Effect::Pod { act: Act::EnsureRootfs(_), .. });
        while let Some(at) = run.open.iter().position(|effect| !is_last(effect)) {
            run.perform(at);
            run.deliver(0);
        }
        run.advance(Duration::from_secs(60), |_| {});
        assert_eq!((run.open.len(), run.looks.len()), (1, 1), "{overtaken:?}");
        run.are_writes_slow = true;
        run.perform(0);
        run.deliver(0);
        if overtaken == LostAtItsNextTry {
            run.world.disk = Disk::Full;
            run.finish_writes();
            run.world.disk = Disk::Works;
            run.set_clock(run.now.mono + Duration::from_secs(2));
            run.handle(Event::NetworkReady(Ok(())));
        }
        assert_eq!(run.writes.len(), 1, "{overtaken:?}");
        let sandbox = run.world.sandboxes.keys().next().cloned().unwrap();
        let now = run.now;
        match overtaken {
            PodEnds => run.unwant("web"),
            Looked => {
                assert!(run.world.change_behind(&uid(), Finding::Netns));
                assert!(run.look());
            }
            Lost | LostAtItsNextTry => {
                run.world.lose(&sandbox, now);
                run.report();
            }
        }
        run.told.clear();
        run.are_writes_slow = false;
        run.finish_writes();
        let is_here = |effect: &Effect| matches!(effect, Effect::Pod { act: Act::StartContainer(start), .. } if start.sandbox == sandbox);
        assert!(!run.told.iter().any(is_here), "{overtaken:?}: it is started all the same");
        run.settle();
        run.advance(Duration::from_secs(60), Run::settle);
        assert_eq!(run.world.violations, Vec::<String>::new(), "{overtaken:?}");
        if overtaken == PodEnds {
            assert!(run.world.records.is_empty(), "something is left");
            continue;
        }
        let record = run.world.records[&uid()].containers.values().next().unwrap();
        assert_eq!((record.attempt, record.exit.as_ref()), (0, None), "{overtaken:?}: it counts as a run");
        assert!(run.world.running(&uid(), "main").is_some(), "{overtaken:?}");
    }
}

/// A shim that answered nothing tells that what was taken to run, and is to stop for another spec, never began. The run that
/// takes its place is not to stop.
#[test]
fn what_takes_the_place_of_a_run_that_never_began_is_not_stopped_for_it() {
    let mut run = Run::new();
    run.settle();
    run.want(pods::pod("web", &["main"]));
    let is_start = |effect: &Effect| matches!(effect, Effect::Pod { act: Act::StartContainer(_), .. });
    let start = run.take_asked(is_start);
    let now = run.now;
    assert!(run.world.perform_half(&start, now));
    let sandbox = run.world.sandboxes.keys().next().cloned().unwrap();
    run.restart(Some(&sandbox));
    let mut changed = Pod::clone(&run.spec("web").unwrap());
    pods::edit(&mut changed, "main").hash += 1;
    run.want(changed);
    let record = run.world.records[&uid()].containers.values().next().unwrap();
    assert!(record.stopping.is_some(), "it is not stopped");
    run.settle();
    run.told.clear();
    run.advance(Duration::from_secs(60), Run::settle);
    assert!(run.world.running(&uid(), "main").is_some());
    let is_signal = |effect: &Effect| matches!(effect, Effect::Pod { act: Act::Signal(_), .. });
    assert!(!run.told.iter().any(is_signal), "the next run is stopped");
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// Its sandbox is lost before or after the start has failed for sure, and the agent is killed: the next one begins the run in the
/// next sandbox, and does not take it for one that went with the last.
#[test]
fn a_run_that_never_began_is_begun_by_the_next_agent() {
    let unrecorded = || Err(failure(FailureKind::Unrecorded, "no space left on device"));
    let transient = || Err(failure(FailureKind::Transient, "no descriptors"));
    for (is_lost_first, outcome) in [(true, unrecorded()), (false, unrecorded()), (false, transient())] {
        let what = format!("lost first {is_lost_first}, {outcome:?}");
        let mut run = Run::new();
        run.settle();
        let (op, sandbox, _) = begin_start(&mut run);
        let failed = Event::Done { op, outcome };
        if !is_lost_first {
            run.handle(failed.clone());
        }
        let now = run.now;
        run.world.lose(&sandbox, now);
        run.report();
        if is_lost_first {
            run.handle(failed);
        }
        run.restart(None);
        run.settle();
        run.advance(Duration::from_secs(60), Run::settle);
        let record = run.world.records[&uid()].containers.values().next().unwrap();
        assert_eq!(record.exit.as_ref().map(|end| end.exit.code), None, "{what}");
        assert!(run.world.running(&uid(), "main").is_some(), "{what}");
    }
}

/// The agent is killed between the record and the start, and the sandbox goes before the next agent begins.
#[test]
fn a_run_that_was_only_recorded_does_not_go_with_its_sandbox() {
    let mut run = Run::new();
    run.settle();
    run.want(Pod { restart_policy: RestartPolicy::Never, ..pods::pod("web", &["main"]) });
    let is_start = |effect: &Effect| matches!(effect, Effect::Pod { act: Act::StartContainer(_), .. });
    run.until_asked(is_start);
    let (sandbox, now) = (run.world.sandboxes.keys().next().cloned().unwrap(), run.now);
    run.world.lose(&sandbox, now);
    run.restart(None);
    run.settle();
    assert!(run.world.running(&uid(), "main").is_some(), "{:?}", run.world.statuses);
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// What a look at a start that nobody answered comes to.
#[derive(Debug, PartialEq)]
enum Found {
    /// It runs: it gets its stop signal.
    Stopped,
    /// It had ended so, or counts as ended so.
    Ended(u32),
    /// It never began.
    NeverBegan,
    /// Nobody knows yet: it is looked at again.
    LookedAtAgain,
}

#[test]
fn a_look_tells_what_became_of_a_start_that_nobody_answered() {
    use Found::{Ended, LookedAtAgain, NeverBegan, Stopped};
    let at = Timestamp::from_second(1_800_000_000).unwrap();
    let exit = Exit { code: 3, started_at: Some(at), finished_at: at, oom_killed: false };
    let task = |task| Ok(Outcome::Task(task));
    let cases = [
        (task(ObservedTask::Running { pid: 200, started_at: at }), Stopped),
        (task(ObservedTask::Exited(exit)), Ended(3)),
        (task(ObservedTask::Absent), NeverBegan),
        (task(ObservedTask::Created), NeverBegan),
        (task(ObservedTask::Starting), LookedAtAgain),
        (task(ObservedTask::Unknown), LookedAtAgain),
        (Err(failure(FailureKind::SandboxGone, "its shim has gone")), Ended(137)),
        (Err(failure(FailureKind::Unknown, "timed out")), LookedAtAgain),
        (Err(failure(FailureKind::Transient, "no descriptors")), LookedAtAgain),
    ];
    for (outcome, expected) in cases {
        let what = format!("{outcome:?}");
        let mut run = Run::new();
        run.settle();
        let (op, ..) = begin_start(&mut run);
        run.handle(Event::Done { op, outcome: Err(failure(FailureKind::Unknown, "timed out")) });
        run.unwant("web");
        let look = run.open.pop_back().expect("it is looked at");
        assert!(matches!(look, Effect::Pod { act: Act::LookAtTask(_), .. }), "{look:?}");
        run.told.clear();
        run.handle(Event::Done { op: look.op(), outcome });
        run.advance(Duration::from_secs(3), |_| {});
        read_termination_message(&mut run);
        let record = run.world.records[&uid()].containers.values().next().unwrap();
        let is_asked = |is: fn(&Act) -> bool| {
            run.told.iter().any(|effect| matches!(effect, Effect::Pod { act, .. } if is(act)))
        };
        let found = match &record.exit {
            Some(end) => Ended(end.exit.code),
            None if is_asked(|act| matches!(act, Act::Signal(_))) => Stopped,
            None if is_asked(|act| matches!(act, Act::LookAtTask(_))) => LookedAtAgain,
            None => NeverBegan,
        };
        assert_eq!(found, expected, "{what}");
        assert_eq!(record.started_in.is_none(), expected == NeverBegan, "{what}");
    }
}

fn uid() -> PodUid {
    PodUid::new("uid-web")
}

/// A pod whose container is being started, and runs once.
fn begin_start(run: &mut Run) -> (OpId, SandboxId, ContainerId) {
    let mut pod = pods::pod("web", &["main"]);
    pod.restart_policy = RestartPolicy::Never;
    run.want(pod);
    next_start(run)
}

fn next_start(run: &mut Run) -> (OpId, SandboxId, ContainerId) {
    loop {
        for (at, effect) in run.open.iter().enumerate() {
            if let Effect::Pod { op, act: Act::StartContainer(request), .. } = effect {
                let found = (*op, request.sandbox.clone(), request.id.clone());
                run.open.remove(at);
                return found;
            }
        }
        assert!(run.settle_one(), "nothing is started");
    }
}

fn reports(heard: Heard, id: &ContainerId) -> Vec<SandboxReport> {
    let at = Timestamp::from_second(1_800_000_001).unwrap();
    let exit = Exit { code: 3, started_at: None, finished_at: at, oom_killed: false };
    let exited = SandboxReport::Exited { id: id.clone(), exit };
    match heard {
        Heard::Nothing | Heard::NothingAfterNoAnswer => vec![],
        Heard::Exited => vec![exited],
        Heard::Lost | Heard::LostAfterNoAnswer => vec![SandboxReport::Lost { at }],
        Heard::ExitedThenLost => vec![exited, SandboxReport::Lost { at }],
    }
}

fn is_layer(effect: &Effect) -> bool {
    matches!(effect, Effect::Pod { act: Act::EnsureRootfs(_), .. })
}

/// Tells that the layer of a container was made.
fn make_layer(run: &mut Run) {
    let at = run.open.iter().position(is_layer).expect("a layer is made");
    run.perform(at);
    run.deliver(0);
}

fn read_termination_message(run: &mut Run) {
    let is_read = |effect: &Effect| matches!(effect, Effect::Pod { act: Act::ReadTerminationMessage(_), .. });
    while let Some(at) = run.open.iter().position(is_read) {
        run.perform(at);
        run.deliver(0);
    }
}

/// Whatever source a pod has, it is made anew when services are known; until then nothing of it hangs on them.
#[test]
fn a_start_takes_what_services_give() {
    for source in [Source::File, Source::Api] {
        let mut pod = Pod { source, ..pods::pod("web", &["main"]) };
        let main = pods::edit(&mut pod, "main");
        main.args = vec!["$(KUBERNETES_SERVICE_HOST)".into(), "$(AT)".into()];
        let at = EnvSource::Value("https://$(KUBERNETES_SERVICE_HOST)".into());
        main.env = vec![EnvVar { name: "AT".into(), source: at }];
        let mut run = if source == Source::Api { Run::in_a_cluster() } else { Run::new() };
        if let Some(cluster) = &mut run.cluster {
            cluster.server.bind(pod);
            run.settle_cluster();
        } else {
            run.want(pod);
        }
        run.settle();
        let started = run.told.iter().find_map(|effect| match effect {
            Effect::Pod { act: Act::StartContainer(request), .. } => Some(request.clone()),
            _ => None,
        });
        let request = started.expect("it is started");
        let host = ("KUBERNETES_SERVICE_HOST".to_owned(), "10.0.0.1".to_owned());
        let with = ObjectValues { services: [host].into(), ..ObjectValues::default() };
        for (values, host) in [(ObjectValues::default(), None), (with, Some("10.0.0.1"))] {
            let planned = request.with_values(&values).unwrap().plan.spec;
            let process = planned.process().as_ref().unwrap();
            let env = process.env().as_ref().unwrap();
            let shown = host.unwrap_or("$(KUBERNETES_SERVICE_HOST)");
            assert!(env.contains(&format!("AT=https://{shown}")), "{source:?}: {env:?}");
            let variable = env.iter().find_map(|one| one.strip_prefix("KUBERNETES_SERVICE_HOST="));
            assert_eq!(variable, host, "{source:?}");
            let args = process.args().as_ref().unwrap();
            assert!(args.ends_with(&[shown.to_owned(), format!("https://{shown}")]), "{source:?}: {args:?}");
        }
    }
}
