//! The agent's view: state, events, and what containerd hears.

use berth_proto::shim::{EventsRequest, EventsResponse, TaskStatus, event::What, shim_service};

use crate::harness::{Conn, Pod, Spec, Task, World};
use crate::{Case, EVERY, FAKE};

pub(crate) const CASES: &[Case] = &[
    ("the_state_is_the_whole_truth", EVERY, the_state_is_the_whole_truth),
    ("events_follow_the_state", EVERY, events_follow_the_state),
    ("a_reader_that_is_lost_is_told", FAKE, a_reader_that_is_lost_is_told),
];

fn events_since(conn: &mut Conn, since: u64) -> EventsResponse {
    conn.call(shim_service::NAME, shim_service::EVENTS, &EventsRequest { since }).unwrap()
}

fn the_state_is_the_whole_truth(world: &World) {
    let pod = Pod::start(world);
    let state = pod.shim.state();
    assert_eq!((state.sandbox_id.as_str(), state.sandbox_state.as_str()), ("pod", "SANDBOX_READY"));
    assert_eq!(state.shim_pid, pod.shim.pid);
    let task = Task::create(&pod.shim, "c1", Spec::sh("exit 3"));
    let created = task.view();
    assert_eq!((created.status(), created.pid, created.started_at), (TaskStatus::Created, task.pid, 0));
    task.begin().unwrap();
    task.wait();
    let view = task.view();
    let exit = view.exit.unwrap();
    assert_eq!((view.status(), exit.code, exit.oom_kills), (TaskStatus::Stopped, 3, 0));
    assert!(
        created.created_at > 0 && view.created_at <= view.started_at && view.started_at <= exit.exited_at
    );
    task.delete().unwrap();
    assert_eq!(pod.shim.state().tasks, []);
    let agent: berth_proto::shim::StateResponse = Conn::open(&pod.agent_socket)
        .call(shim_service::NAME, shim_service::STATE, &berth_proto::shim::StateRequest {})
        .unwrap();
    assert_eq!(agent, pod.shim.state(), "both sockets tell the same");
}

fn events_follow_the_state(world: &World) {
    let pod = Pod::start(world);
    let mut seq = pod.shim.state().seq;
    let mut conn = Conn::open(&pod.agent_socket);
    // The first read waits until something happens.
    let waiting = conn.begin(shim_service::NAME, shim_service::EVENTS, &EventsRequest { since: seq });
    let task = Task::start(&pod.shim, "c1", Spec::sh("exit 3"));
    let first: EventsResponse = conn.end(waiting).unwrap();
    task.wait();
    task.delete().unwrap();
    let mut seen = first.events;
    while !seen.iter().any(|event| matches!(event.what, Some(What::Deleted(_)))) {
        seq = seen.last().unwrap().seq;
        let next = events_since(&mut conn, seq);
        assert!(!next.resync);
        seen.extend(next.events);
    }
    let kinds: Vec<&str> = seen
        .iter()
        .map(|event| match event.what.as_ref().unwrap() {
            What::Created(_) => "created",
            What::Started(_) => "started",
            What::Exited(task) => {
                assert_eq!(task.exit.unwrap().code, 3);
                "exited"
            }
            What::Deleted(id) => {
                assert_eq!(id, "c1");
                "deleted"
            }
            other => panic!("unexpected {other:?}"),
        })
        .collect();
    assert_eq!(kinds, ["created", "started", "exited", "deleted"]);
    assert!(seen.windows(2).all(|pair| pair[1].seq == pair[0].seq + 1));
}

fn a_reader_that_is_lost_is_told(world: &World) {
    let pod = Pod::start(world);
    let mut conn = pod.shim.connect();
    assert!(events_since(&mut conn, u64::MAX).resync, "a number of the future");
    let start = pod.shim.state().seq;
    for number in 0..400 {
        let task = Task::start(&pod.shim, &format!("c{number}"), Spec::sh("exit 0"));
        task.wait();
        task.delete().unwrap();
    }
    // Four events of each, of which the shim keeps a thousand.
    let now = pod.shim.state().seq;
    assert!(now - start > 1500, "{start} to {now}");
    assert!(events_since(&mut conn, start).resync, "nothing is skipped in silence");
    let last = events_since(&mut conn, now - 1);
    assert!(!last.resync, "the last one is there");
    assert_eq!(last.events.first().unwrap().seq, now);
}
