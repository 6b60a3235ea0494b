use super::*;
use crate::{
    fixtures::{container, pod},
    id::{ContainerName, ImageRef, VolumeName},
    spec::{HostPathType, ImagePullPolicy, QosClass, Volume},
    status::Terminated,
};

pub(in crate::metrics) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

pub(in crate::metrics) fn waiting() -> ContainerState {
    ContainerState::Waiting { reason: "ContainerCreating".to_owned(), message: String::new() }
}

pub(in crate::metrics) fn running(since: i64) -> ContainerState {
    ContainerState::Running { started_at: at(since) }
}

pub(in crate::metrics) fn ended(from: i64, to: i64) -> ContainerState {
    ContainerState::Terminated(Terminated {
        exit_code: 0,
        reason: "Completed".to_owned(),
        message: String::new(),
        started_at: Some(at(from)),
        finished_at: Some(at(to)),
        id: None,
    })
}

fn of(name: &str, kind: ContainerKind, state: ContainerState) -> ContainerStatus {
    ContainerStatus {
        name: ContainerName::new(name),
        kind,
        image: String::new(),
        image_id: String::new(),
        id: None,
        state,
        last_state: None,
        ready: false,
        started: false,
        restart_count: 0,
        user: None,
        actuated: None,
    }
}

pub(in crate::metrics) fn status(
    phase: Phase,
    init: Vec<ContainerState>,
    main: Vec<ContainerState>,
) -> PodStatus {
    let of = |kind, states: Vec<ContainerState>| {
        states.into_iter().map(|state| of("c", kind, state)).collect::<Vec<_>>()
    };
    let pod = pod(Vec::new());
    PodStatus {
        uid: pod.uid,
        name: pod.name,
        phase,
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
        init_containers: of(ContainerKind::Init, init),
        ephemeral_containers: Vec::new(),
        containers: of(ContainerKind::Main, main),
    }
}

fn of_api() -> Pod {
    Pod { source: Source::Api, ..pod(vec![container("c")]) }
}

fn seconds(duration: Option<Duration>) -> Option<u64> {
    duration.map(|duration| duration.as_secs())
}

#[test]
fn a_start_is_measured_from_its_creation_without_pulls_and_init_containers() {
    let (mut starts, pod) = (Starts::default(), of_api());
    let created = || Some(at(100));
    let pending = |init, main| status(Phase::Pending, init, main);
    let mut published = |status: PodStatus, now| starts.published(&pod, &status, created, at(now));

    let seen = published(pending(vec![waiting()], vec![waiting()]), 102);
    assert_eq!(seen, Started::default());
    let first = published(pending(vec![running(110)], vec![waiting()]), 110);
    assert_eq!((seconds(first.first_container), seconds(first.running)), (Some(8), None));
    let next = published(pending(vec![ended(110, 115)], vec![waiting()]), 115);
    assert_eq!(next, Started::default(), "its first container began before");
    let all = published(status(Phase::Running, vec![ended(110, 115)], vec![running(116)]), 117);
    assert_eq!((seconds(all.first_container), seconds(all.running)), (None, Some(15)));
    assert_eq!((seconds(all.total), seconds(all.service_level)), (Some(17), Some(12)));
    assert!(all.is_first_network);
    let later = published(status(Phase::Running, vec![ended(110, 115)], vec![running(130)]), 130);
    assert_eq!(later, Started::default(), "once for each pod");
}

#[test]
fn what_runs_already_or_never_runs_is_not_measured() {
    let (mut starts, pod) = (Starts::default(), of_api());
    let created = || panic!("nobody has to know");
    for found in [
        status(Phase::Running, vec![], vec![running(1)]),
        status(Phase::Pending, vec![running(1)], vec![waiting()]),
        status(Phase::Failed, vec![], vec![ended(1, 2)]),
        PodStatus { terminating: true, ..status(Phase::Pending, vec![], vec![waiting()]) },
    ] {
        assert_eq!(starts.published(&pod, &found, created, at(5)), Started::default());
        assert!(starts.pods.is_empty(), "{found:?}");
    }
    starts.published(&pod, &status(Phase::Pending, vec![], vec![waiting()]), created, at(5));
    starts.withdrawn(&pod.uid);
    assert!(starts.pods.is_empty());
}

#[test]
fn pulls_that_overlap_count_once() {
    let (mut starts, pod) = (Starts::default(), of_api());
    starts.pulling(&pod.uid, at(0));
    starts.published(&pod, &status(Phase::Pending, vec![], vec![waiting()]), || None, at(0));
    for (began, ended) in [(10, None), (12, None), (0, Some(20)), (0, Some(22)), (30, None), (0, Some(33))] {
        match ended {
            None => starts.pulling(&pod.uid, at(began)),
            Some(ended) => starts.pulled(&pod.uid, at(ended)),
        }
    }
    starts.pulled(&pod.uid, at(99));
    let all = status(Phase::Running, vec![], vec![running(40)]);
    let started = starts.published(&pod, &all, || Some(at(0)), at(40));
    assert_eq!((seconds(started.total), seconds(started.service_level)), (Some(40), Some(25)));
}

#[test]
fn pods_that_need_others_or_were_never_created_have_no_service_level() {
    let host_path = VolumeSource::HostPath { path: "/data".to_owned(), kind: HostPathType::Unset };
    let image =
        VolumeSource::Image { image: ImageRef::new("data"), pull_policy: ImagePullPolicy::IfNotPresent };
    let cases = [
        (Source::Api, None, Some(at(0)), (Some(9), Some(9))),
        (Source::Api, Some(host_path), Some(at(0)), (Some(9), None)),
        (Source::Api, Some(image), Some(at(0)), (Some(9), None)),
        (Source::Api, None, None, (None, None)),
        (Source::File, None, Some(at(0)), (None, None)),
        // A clock that was set back.
        (Source::Api, None, Some(at(50)), (Some(0), Some(0))),
    ];
    for (source, volume, created, expected) in cases {
        let volumes = volume.clone().map(|source| Volume { name: VolumeName::new("v"), source });
        let pod = Pod { source, volumes: volumes.into_iter().collect(), ..of_api() };
        let mut starts = Starts::default();
        starts.published(&pod, &status(Phase::Pending, vec![], vec![waiting()]), || None, at(1));
        let all = status(Phase::Running, vec![], vec![running(9)]);
        let started = starts.published(&pod, &all, || created, at(9));
        assert_eq!(
            (seconds(started.total), seconds(started.service_level)),
            expected,
            "{source:?} {volume:?}"
        );
        assert_eq!(seconds(started.running), Some(8));
    }
}
