//! The wall clock is set an hour forward or back in the middle of a pod's life.

use std::time::Duration;

use berth_core::{
    id::PodUid,
    spec::{Pod, RestartPolicy},
    status::Phase,
};
use jiff::SignedDuration;

use crate::{pods, run::Run};

/// What a container waits after its second end.
const BACK_OFF: u64 = 10;
/// How long a pod may be active, and how long it was when the clock is set.
const DEADLINE: u64 = 60;
const ACTIVE: u64 = 20;

/// When the clock is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    BeforeItsEndIsHeard,
    BeforeItsMessageIsRead,
    WhileItWaits,
    WhileNoAgentIsThere,
}

fn uid() -> PodUid {
    PodUid::new("uid-web")
}

fn begin(pod: Pod) -> Run {
    let mut run = Run::new();
    run.settle();
    run.want(pod);
    run.settle();
    run
}

fn is_running(run: &Run) -> bool {
    run.world.running(&uid(), "main").is_some()
}

fn exit(run: &mut Run) {
    let (id, now) = (run.world.running(&uid(), "main").expect("it runs"), run.now);
    run.world.exit(&id, 1, now);
}

fn step(run: &mut Run, hours: i64) {
    run.step_clock(SignedDuration::from_hours(hours));
}

/// Seconds until something is so.
fn seconds_until(run: &mut Run, is_so: impl Fn(&Run) -> bool) -> u64 {
    for seconds in 0..200 {
        if is_so(run) {
            return seconds;
        }
        run.advance(Duration::from_secs(1), Run::settle);
    }
    panic!("it never is");
}

#[test]
fn a_back_off_is_what_it_is_whoever_sets_the_clock() {
    use When::{BeforeItsEndIsHeard, BeforeItsMessageIsRead, WhileItWaits, WhileNoAgentIsThere};
    for (when, hours, expected) in [
        // When it ended is told by the wall clock alone.
        (BeforeItsEndIsHeard, 1, 0),
        (BeforeItsEndIsHeard, -1, BACK_OFF),
        (BeforeItsMessageIsRead, 1, BACK_OFF),
        (BeforeItsMessageIsRead, -1, BACK_OFF),
        (WhileItWaits, 1, BACK_OFF),
        (WhileItWaits, -1, BACK_OFF),
        (WhileNoAgentIsThere, 1, BACK_OFF),
        (WhileNoAgentIsThere, -1, BACK_OFF),
    ] {
        let mut run = begin(pods::pod("web", &["main"]));
        exit(&mut run);
        run.settle();
        assert!(is_running(&run), "the first restart is at once");
        run.advance(Duration::from_secs(BACK_OFF), Run::settle);
        exit(&mut run);
        let set = |now, run: &mut Run| {
            if now == when {
                step(run, hours);
            }
        };
        set(BeforeItsEndIsHeard, &mut run);
        run.report();
        set(BeforeItsMessageIsRead, &mut run);
        run.settle();
        set(WhileItWaits, &mut run);
        set(WhileNoAgentIsThere, &mut run);
        if when == WhileNoAgentIsThere {
            run.restart(None);
        }
        run.settle();
        assert_eq!(seconds_until(&mut run, is_running), expected, "{when:?} {hours}");
        assert_eq!(run.world.violations, Vec::<String>::new(), "{when:?} {hours}");
    }
}

/// An agent that begins anew goes by the wall clock, as the kubelet does.
#[test]
fn a_pod_is_active_as_long_as_it_may_be_whoever_sets_the_clock() {
    for (hours, is_agent_killed, expected) in [
        (1, false, DEADLINE - ACTIVE),
        (-1, false, DEADLINE - ACTIVE),
        (0, true, DEADLINE - ACTIVE),
        (1, true, 0),
        (-1, true, DEADLINE),
    ] {
        let what = format!("{hours} hours, killed: {is_agent_killed}");
        let pod = Pod {
            restart_policy: RestartPolicy::Never,
            active_deadline: Some(Duration::from_secs(DEADLINE)),
            ..pods::pod("web", &["main"])
        };
        let mut run = begin(pod);
        run.advance(Duration::from_secs(ACTIVE), Run::settle);
        assert!(is_running(&run), "{what}");
        step(&mut run, hours);
        if is_agent_killed {
            run.restart(None);
        }
        run.settle();
        let has_ended = |run: &Run| run.world.statuses[&uid()].phase == Phase::Failed;
        assert_eq!(seconds_until(&mut run, has_ended), expected, "{what}");
        assert_eq!(run.world.statuses[&uid()].reason, "DeadlineExceeded", "{what}");
        assert_eq!(run.world.violations, Vec::<String>::new(), "{what}");
    }
}
