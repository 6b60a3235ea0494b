use super::*;
use crate::{
    id::{PodName, PodUid},
    spec::{ContainerKind, QosClass},
    status::Phase,
};

fn now() -> Timestamp {
    "2026-11-21T07:00:00Z".parse().unwrap()
}

fn parsed(query: &str) -> Result<LogOptions, (u16, String)> {
    LogOptions::parse(&Query::parse(query), now()).map_err(|refusal| (refusal.status, refusal.text))
}

fn plain() -> LogOptions {
    LogOptions {
        which: WhichRun::Current,
        follow: false,
        timestamps: false,
        since: None,
        tail: None,
        limit: None,
        streams: LogStreams::All,
    }
}

#[test]
fn options_are_read_as_the_kubelet_reads_them() {
    let time = |text: &str| Some(text.parse().unwrap());
    for (query, expected) in [
        ("", plain()),
        ("unknown=1&container=x&insecureSkipTLSVerifyBackend=1", plain()),
        ("follow=true", LogOptions { follow: true, ..plain() }),
        ("follow=", LogOptions { follow: true, ..plain() }),
        ("follow=0&previous=FALSE&timestamps=false", plain()),
        ("follow=no&follow=0", LogOptions { follow: true, ..plain() }),
        ("previous=1", LogOptions { which: WhichRun::Previous, ..plain() }),
        ("timestamps=t", LogOptions { timestamps: true, ..plain() }),
        ("tailLines=0", LogOptions { tail: Some(0), ..plain() }),
        ("tailLines=%2B7", LogOptions { tail: Some(7), ..plain() }),
        ("tail=5&tailLines=7", LogOptions { tail: Some(5), ..plain() }),
        ("tail=all&tailLines=7", plain()),
        ("tail=&tailLines=7", LogOptions { tail: Some(7), ..plain() }),
        ("limitBytes=1", LogOptions { limit: Some(1), ..plain() }),
        ("limitBytes=9223372036854775807", LogOptions { limit: Some(9_223_372_036_854_775_807), ..plain() }),
        ("sinceSeconds=60", LogOptions { since: time("2026-11-21T06:59:00Z"), ..plain() }),
        ("sinceSeconds=9223372036854775807", LogOptions { since: Some(Timestamp::MIN), ..plain() }),
        (
            "sinceTime=2026-11-21T06%3A00%3A00.5%2B01%3A00",
            LogOptions { since: time("2026-11-21T05:00:00.5Z"), ..plain() },
        ),
        ("sinceTime=", plain()),
        ("sinceTime=null", plain()),
        ("stream=All&tailLines=1", LogOptions { tail: Some(1), ..plain() }),
        ("stream=Stderr", LogOptions { streams: LogStreams::Stderr, ..plain() }),
    ] {
        assert_eq!(parsed(query), Ok(expected), "{query}");
    }
}

#[test]
fn what_cannot_be_read_is_400_and_what_makes_no_sense_422() {
    let (unreadable, senseless) =
        ((400, r#"{"message": "Unable to decode query."}"#), (422, r#"{"message": "Invalid request."}"#));
    for (query, (code, text)) in [
        ("tailLines=x", unreadable),
        ("tailLines=", unreadable),
        ("tailLines=1_0", unreadable),
        ("tailLines=9223372036854775808", unreadable),
        ("tail=some", unreadable),
        ("limitBytes=1.5", unreadable),
        ("sinceSeconds=1s", unreadable),
        ("sinceTime=yesterday", unreadable),
        // Without the zone a plus is a space.
        ("sinceTime=2026-11-21T06:00:00+01:00", unreadable),
        ("tailLines=-1", senseless),
        ("limitBytes=0", senseless),
        ("limitBytes=-5", senseless),
        ("sinceSeconds=0", senseless),
        ("sinceSeconds=1&sinceTime=2026-11-21T06:00:00Z", senseless),
        ("sinceSeconds=1&sinceTime=null", senseless),
        ("stream=stdout", senseless),
        ("stream=", senseless),
        ("stream=Stdout&tailLines=1", senseless),
        ("stream=Stderr&tail=1", senseless),
    ] {
        assert_eq!(parsed(query), Err((code, text.to_owned())), "{query}");
    }
}

#[test]
fn one_stream_alone_needs_its_gate() {
    let (all, stdout) = (parsed("stream=All").unwrap(), parsed("stream=Stdout").unwrap());
    assert_eq!(
        (all.check_streams(false), all.check_streams(true), stdout.check_streams(true)),
        (Ok(()), Ok(()), Ok(()))
    );
    let refused = stdout.check_streams(false).unwrap_err();
    let text = "unable to return the given log stream: \"Stdout\". Please enable PodLogsQuerySplitStreams feature gate in kubelet";
    assert_eq!((refused.status, refused.text.as_str()), (400, text));
}

fn id(attempt: Attempt) -> ContainerId {
    ContainerId::of(&PodUid::new("1-a"), &ContainerName::new("web"), attempt)
}

fn ended(id: Option<ContainerId>) -> Terminated {
    Terminated {
        exit_code: 1,
        reason: "Error".into(),
        message: String::new(),
        started_at: None,
        finished_at: None,
        id,
    }
}

fn pod(
    state: ContainerState,
    last_state: Option<Terminated>,
    shown: Option<ContainerId>,
    restarts: u32,
) -> PodStatus {
    let web = ContainerStatus {
        name: ContainerName::new("web"),
        kind: ContainerKind::Main,
        image: String::new(),
        image_id: String::new(),
        id: shown,
        state,
        last_state,
        ready: false,
        started: false,
        restart_count: restarts,
        user: None,
        actuated: None,
    };
    PodStatus {
        uid: PodUid::new("1-a"),
        name: PodName { namespace: "shop".into(), name: "front".into() },
        phase: Phase::Running,
        reason: String::new(),
        message: String::new(),
        terminating: false,
        conditions: Vec::new(),
        host_ips: Vec::new(),
        pod_ips: Vec::new(),
        start_time: None,
        qos: QosClass::BestEffort,
        recursive_read_only: false,
        resources: None,
        init_containers: Vec::new(),
        ephemeral_containers: Vec::new(),
        containers: vec![web],
    }
}

#[test]
fn the_run_is_chosen_as_the_kubelet_chooses_it() {
    use ContainerState::{Running, Terminated as Ended, Waiting};
    use WhichRun::{Current, Previous};
    let waiting = |reason: &str| Waiting { reason: reason.into(), message: String::new() };
    let running = || Running { started_at: now() };
    let last = |attempt| Some(ended(Some(id(attempt))));
    let none = "previous terminated container \"web\" in pod \"front\" not found";
    let waits = |why: &str| format!("container \"web\" in pod \"front\" is waiting to start: {why}");
    let terminated = "container \"web\" in pod \"front\" is terminated";
    for (status, which, expected) in [
        (pod(running(), None, Some(id(0)), 0), Current, Ok(0)),
        (pod(running(), None, Some(id(0)), 0), Previous, Err(none.to_owned())),
        (pod(running(), last(2), Some(id(3)), 3), Current, Ok(3)),
        (pod(running(), last(2), Some(id(3)), 3), Previous, Ok(2)),
        (pod(running(), last(1), Some(id(3)), 3), Previous, Ok(1)),
        (pod(running(), Some(ended(None)), Some(id(3)), 3), Previous, Err(none.to_owned())),
        (pod(Ended(ended(Some(id(0)))), None, Some(id(0)), 0), Current, Ok(0)),
        (pod(Ended(ended(Some(id(1)))), last(0), Some(id(1)), 1), Previous, Ok(0)),
        (pod(Ended(ended(None)), last(0), None, 1), Current, Ok(0)),
        (pod(Ended(ended(None)), None, None, 0), Current, Err(terminated.to_owned())),
        (pod(waiting("CrashLoopBackOff"), last(4), Some(id(4)), 4), Current, Ok(4)),
        (pod(waiting("CrashLoopBackOff"), last(4), Some(id(4)), 4), Previous, Ok(4)),
        (pod(waiting("CrashLoopBackOff"), Some(ended(None)), None, 4), Current, Err(terminated.to_owned())),
        (pod(waiting("ContainerCreating"), None, None, 0), Current, Err(waits("ContainerCreating"))),
        (pod(waiting("PodInitializing"), None, None, 0), Current, Err(waits("PodInitializing"))),
        (pod(waiting("ErrImagePull"), None, None, 0), Current, Err(waits("image can't be pulled"))),
        (
            pod(waiting("ImagePullBackOff"), None, None, 0),
            Current,
            Err(waits("trying and failing to pull image")),
        ),
        (pod(waiting("ErrImagePull"), None, None, 0), Previous, Err(none.to_owned())),
        (
            pod(running(), None, Some(ContainerId::from_known("of-another-agent")), 0),
            Current,
            Err("unable to retrieve container logs for containerd://of-another-agent".to_owned()),
        ),
    ] {
        let chosen = run(&status, &ContainerName::new("web"), which);
        let expected = expected
            .map(|attempt| LogRun { id: id(attempt), attempt })
            .map_err(|text| Refusal::new(400, text));
        assert_eq!(chosen, expected, "{which:?} of {:?}", status.containers);
    }
    let unknown = run(&pod(running(), None, None, 0), &ContainerName::new("other"), Current).unwrap_err();
    assert_eq!(unknown.text, "container \"other\" in pod \"front\" is not available");
}

#[test]
fn a_run_goes_on_until_its_status_says_otherwise() {
    let running = || ContainerState::Running { started_at: now() };
    let web = ContainerName::new("web");
    let first = LogRun { id: id(0), attempt: 0 };
    assert!(goes_on(&pod(running(), None, Some(id(0)), 0), &web, &first));
    assert!(!goes_on(&pod(running(), None, Some(id(1)), 1), &web, &first));
    assert!(!goes_on(
        &pod(ContainerState::Terminated(ended(Some(id(0)))), None, Some(id(0)), 0),
        &web,
        &first
    ));
    assert!(!goes_on(&pod(running(), None, Some(id(0)), 0), &ContainerName::new("other"), &first));
}

#[test]
fn what_is_not_there_is_named() {
    assert_eq!(no_pod("a\"b"), Refusal::new(404, "pod \"a\\\"b\" does not exist"));
    assert_eq!(
        no_container(&ContainerName::new("c"), "p"),
        Refusal::new(404, "container \"c\" not found in pod \"p\"")
    );
}
