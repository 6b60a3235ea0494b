//! Other resources than a pod has are asked for while it runs.

use berth_core::{
    effect::{Act, Effect},
    id::PodUid,
    spec::{Pod, QosClass, Source},
    status::ConditionKind,
};

use crate::{pods, run::Run};

/// A version of a pod whose container may use so much of a core, in thousandths.
fn version(generation: i64, milli: u64) -> Pod {
    let mut pod = pods::pod("web", &["main"]);
    pods::edit(&mut pod, "main").resources.limits.cpu_milli = Some(milli);
    Pod { generation: Some(generation), qos: QosClass::Burstable, ..pod }
}

fn uid() -> PodUid {
    PodUid::new("uid-web")
}

/// Since when the pod says that a resize waits.
fn pending(run: &Run) -> Option<jiff::Timestamp> {
    let conditions = &run.world.statuses[&uid()].conditions;
    let one = conditions.iter().find(|one| one.kind == ConditionKind::PodResizePending)?;
    assert!(one.holds && one.reason == "Infeasible", "{one:?}");
    Some(one.since)
}

/// Limits of the containers that were started, in order.
fn limits(run: &Run) -> Vec<Option<u64>> {
    let start = |effect: &Effect| match effect {
        Effect::Pod { act: Act::StartContainer(request), .. } => {
            Some(request.pod.containers[0].resources.limits.cpu_milli)
        }
        Effect::Pod { .. } | Effect::Node { .. } => None,
    };
    run.told.iter().filter_map(start).collect()
}

fn notes(run: &Run) -> usize {
    run.notes("ResizeInfeasible").count()
}

/// It says so once, restarts nothing for it, and starts what ends with what it has; the next agent goes on so.
#[test]
fn a_pod_goes_on_with_what_it_was_admitted_with() {
    let mut run = Run::new();
    run.settle();
    run.want(version(1, 500));
    run.settle();
    assert_eq!((pending(&run), notes(&run)), (None, 0));
    run.want(version(2, 800));
    run.settle();
    let since = pending(&run).expect("it says that it waits");
    assert_eq!((notes(&run), limits(&run)), (1, vec![Some(500)]));

    for restarts in [false, true] {
        if restarts {
            run.restart(None);
        }
        let running = run.world.running(&uid(), "main").unwrap();
        let now = run.now;
        run.world.exit(&running, 1, now);
        run.report();
        run.advance(std::time::Duration::from_secs(60), Run::settle);
        assert_eq!(pending(&run), Some(since), "restarted: {restarts}");
        assert_eq!((notes(&run), limits(&run).last()), (1, Some(&Some(500))), "restarted: {restarts}");
    }
    assert_eq!(limits(&run).len(), 3, "nothing else was started");
    assert_eq!(run.world.records[&uid()].source, Source::File);

    run.want(version(3, 500));
    run.settle();
    assert_eq!(pending(&run), None, "nobody asks any more");
    assert_eq!(run.world.records[&uid()].resize, None);
    run.want(version(4, 900));
    run.settle();
    assert_eq!(notes(&run), 2);
    assert!(pending(&run).expect("it waits again") > since, "since it was asked again");
    assert_eq!(run.world.violations, Vec::<String>::new());
}
