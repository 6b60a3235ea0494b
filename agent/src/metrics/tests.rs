mod changes;
mod missing;
mod resizes;
mod subject;
mod table;

use std::collections::BTreeSet;

use berth_core::{
    failure::FailureKind,
    id::{ContainerId, ContainerName, SandboxId},
    image::{ImageConfig, ImageInfo, collection::Reason},
    pod::port::{
        probe::ProbeAnswer,
        start_failure::{Answer, Call, Sandbox, StartFailure},
        status::Remains,
    },
    spec::{ContainerKind, ProbeKind, QosClass, Source, UserMode},
    status::{ContainerState, ContainerStatus, Phase, PodStatus, Severity, Terminated},
};

use super::*;
use crate::effects::KINDS;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A line of a text of metrics, without its value.
fn value(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.rsplit_once(' ').is_some_and(|(name, _)| name == series))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

fn published(phase: Phase, state: ContainerState) -> Published {
    let manifest = r#"{"metadata": {"name": "web", "namespace": "shop", "uid": "1-a", "creationTimestamp": "1970-01-01T00:01:40Z"},
                       "spec": {"containers": [{"name": "main", "image": "i"}], "volumes": [{"name": "v", "emptyDir": {}}]}}"#;
    let pod = crate::manifest::pod_from_json(manifest, Source::Api).unwrap();
    let container = ContainerStatus {
        name: ContainerName::new("main"),
        kind: ContainerKind::Main,
        image: String::new(),
        image_id: String::new(),
        id: Some(ContainerId::from_known("c1")),
        state,
        last_state: None,
        ready: false,
        started: false,
        restart_count: 0,
        user: None,
        actuated: None,
    };
    let status = PodStatus {
        uid: pod.uid.clone(),
        name: pod.name.clone(),
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
        init_containers: Vec::new(),
        ephemeral_containers: Vec::new(),
        containers: vec![container],
    };
    let sandbox = Some(SandboxId::of(&pod.uid, 0));
    Published { pod, status: Arc::new(status), sandbox, remains: Remains::Something }
}

fn waiting() -> ContainerState {
    ContainerState::Waiting { reason: "ContainerCreating".to_owned(), message: String::new() }
}

fn ended() -> ContainerState {
    ContainerState::Terminated(Terminated {
        exit_code: 3,
        reason: "Error".to_owned(),
        message: String::new(),
        started_at: Some(at(1)),
        finished_at: Some(at(2)),
        id: None,
    })
}

fn event(reason: &'static str) -> PodEvent {
    PodEvent { container: None, severity: Severity::Normal, reason: reason.into(), message: String::new() }
}

fn image() -> ImageInfo {
    ImageInfo {
        name: "i".to_owned(),
        id: "sha256:1".to_owned(),
        tag: None,
        repo_digest: None,
        chain_id: String::new(),
        size_bytes: 1,
        config: ImageConfig::default(),
    }
}

fn failed() -> Result<Outcome, Failure> {
    Err(Failure { kind: FailureKind::Unknown, message: "no".to_owned() })
}

#[test]
fn pods_with_users_of_their_own_are_counted_apart() {
    let metrics = Metrics::new("n", View::default()).unwrap();
    let counts = || {
        let text = metrics.text();
        ["", "_errors"].map(|what| value(&text, &format!("kubelet_started_user_namespaced_pods{what}_total")))
    };
    assert_eq!(counts(), [Some(0.0), Some(0.0)]);
    let main = ContainerKind::Main;
    for (subject, outcome, expected) in [
        (Subject::Sandbox(String::new(), UserMode::Node), Ok(Outcome::Done), [0.0, 0.0]),
        (Subject::Sandbox(String::new(), UserMode::Node), failed(), [0.0, 0.0]),
        (Subject::Sandbox(String::new(), UserMode::Pod), Ok(Outcome::Done), [1.0, 0.0]),
        (Subject::Sandbox(String::new(), UserMode::Pod), failed(), [2.0, 1.0]),
        (Subject::Container(main, UserMode::Pod), Ok(Outcome::Done), [2.0, 1.0]),
        (Subject::Container(main, UserMode::Pod), failed(), [2.0, 2.0]),
        (Subject::Container(main, UserMode::Node), failed(), [2.0, 2.0]),
    ] {
        metrics.ended("x", &subject, &outcome, seconds(1));
        assert_eq!(counts(), expected.map(Some), "{subject:?} {outcome:?}");
    }
}

#[test]
fn a_start_is_counted_from_the_creation_that_the_manifest_tells() {
    let view = View::default();
    let metrics = Metrics::new("n1", view.clone()).unwrap();
    let publish = |published: Published, now| {
        metrics.publishes(&published, now);
        view.publish(published);
    };
    publish(published(Phase::Pending, waiting()), at(102));
    let uid = PodUid::new("1-a");
    metrics.noted(&uid, &event("Pulling"), at(103));
    metrics.noted(&uid, &event("Pulled"), at(108));
    publish(published(Phase::Running, ContainerState::Running { started_at: at(110) }), at(110));
    let text = metrics.text();
    for (series, expected) in [
        ("kubelet_pod_start_total_duration_seconds_sum", 10.0),
        ("kubelet_pod_start_sli_duration_seconds_sum", 5.0),
        ("kubelet_first_network_pod_start_sli_duration_seconds", 5.0),
        ("kubelet_pod_start_duration_seconds_sum", 8.0),
        ("kubelet_pod_worker_duration_seconds_sum{operation_type=\"create\"}", 8.0),
        ("kubelet_pod_start_sli_duration_seconds_bucket{le=\"5\"}", 1.0),
        ("kubelet_pod_start_sli_duration_seconds_bucket{le=\"4\"}", 0.0),
        ("kubelet_node_name{node=\"n1\"}", 1.0),
        ("kubelet_running_pods", 1.0),
        ("kubelet_running_containers{container_state=\"running\"}", 1.0),
        ("kubelet_running_containers{container_state=\"exited\"}", 0.0),
        ("kubelet_desired_pods{static=\"\"}", 1.0),
        ("kubelet_desired_pods{static=\"true\"}", 0.0),
        (
            "volume_manager_total_volumes{plugin_name=\"kubernetes.io/empty-dir\",state=\"actual_state_of_world\"}",
            1.0,
        ),
    ] {
        assert_eq!(value(&text, series), Some(expected), "{series}\n{text}");
    }
}

#[test]
fn a_container_that_waits_for_its_next_run_has_ended() {
    let backing_off =
        ContainerState::Waiting { reason: "CrashLoopBackOff".to_owned(), message: String::new() };
    for (state, expected) in [
        (ContainerState::Running { started_at: at(1) }, "running"),
        (ended(), "exited"),
        (backing_off, "exited"),
    ] {
        let view = View::default();
        view.publish(published(Phase::Running, state));
        let text = Metrics::new("n", view).unwrap().text();
        for word in ["created", "exited", "running", "unknown"] {
            let series = format!("kubelet_running_containers{{container_state=\"{word}\"}}");
            assert_eq!(value(&text, &series), Some(f64::from(u8::from(word == expected))), "{word}");
        }
    }
    // Whether one that runs, or has ended, has a run before it, by the id of that.
    for (state, before, expected) in [
        (ContainerState::Running { started_at: at(1) }, Some("c0"), [1, 1]),
        (ContainerState::Running { started_at: at(1) }, Some("c1"), [1, 0]),
        (ContainerState::Running { started_at: at(1) }, None, [1, 0]),
        (ended(), Some("c0"), [0, 1]),
    ] {
        let mut published = published(Phase::Running, state);
        let ContainerState::Terminated(end) = ended() else { panic!() };
        let last = Terminated { id: before.map(ContainerId::from_known), ..end };
        Arc::make_mut(&mut published.status).containers[0].last_state = Some(last);
        let view = View::default();
        view.publish(published);
        let text = Metrics::new("n", view).unwrap().text();
        for (word, expected) in ["running", "exited"].into_iter().zip(expected) {
            let series = format!("kubelet_running_containers{{container_state=\"{word}\"}}");
            assert_eq!(value(&text, &series), Some(f64::from(expected)), "{before:?}\n{text}");
        }
    }
    // One that was never made, also where its pod has ended.
    for (phase, state) in [(Phase::Pending, waiting()), (Phase::Failed, ended())] {
        let mut never_made = published(phase, state);
        Arc::make_mut(&mut never_made.status).containers[0].id = None;
        let view = View::default();
        view.publish(never_made);
        let text = Metrics::new("n", view).unwrap().text();
        let lines = text.lines().filter(|line| line.starts_with("kubelet_running_containers{"));
        assert!(lines.clone().count() == 4 && lines.clone().all(|line| line.ends_with(" 0")), "{text}");
    }
}

#[test]
fn effects_are_the_operations_that_dashboards_know() {
    let metrics = Metrics::new("n", View::default()).unwrap();
    let well = || Ok(Outcome::Done);
    metrics.ended(
        "ensure-sandbox",
        &Subject::Sandbox("crun".to_owned(), UserMode::Node),
        &well(),
        seconds(1),
    );
    metrics.ended(
        "ensure-sandbox",
        &Subject::Sandbox("crun".to_owned(), UserMode::Node),
        &failed(),
        seconds(2),
    );
    metrics.ended(
        "start-container",
        &Subject::Container(ContainerKind::Sidecar, UserMode::Node),
        &well(),
        seconds(1),
    );
    let (call, answer, sandbox) = (Call::Create, Answer::Failed, Sandbox::Up);
    let (cause, message) = (String::new(), String::new());
    let failure = Box::new(StartFailure { call, answer, sandbox, cause, message });
    let not_started = Ok(Outcome::NotStarted(failure));
    metrics.ended(
        "start-container",
        &Subject::Container(ContainerKind::Main, UserMode::Node),
        &not_started,
        seconds(1),
    );
    metrics.ended("ensure-cgroup", &Subject::Other, &well(), seconds(1));
    metrics.ended("ensure-volume", &Subject::Volume("kubernetes.io/secret"), &failed(), seconds(3));
    metrics.ended("ensure-volume", &Subject::Volume("kubernetes.io/secret"), &well(), seconds(4));
    for outcome in [well(), well(), failed()] {
        metrics.ended("ensure-volume", &Subject::Volume("kubernetes.io/image"), &outcome, seconds(1));
    }
    let text = metrics.text();
    for (series, expected) in [
        ("kubelet_runtime_operations_total{operation_type=\"run_podsandbox\"}", 2.0),
        ("kubelet_runtime_operations_errors_total{operation_type=\"run_podsandbox\"}", 1.0),
        ("kubelet_runtime_operations_duration_seconds_sum{operation_type=\"run_podsandbox\"}", 3.0),
        ("kubelet_run_podsandbox_duration_seconds_sum{runtime_handler=\"crun\"}", 3.0),
        ("kubelet_run_podsandbox_errors_total{runtime_handler=\"crun\"}", 1.0),
        ("kubelet_started_pods_total", 2.0),
        ("kubelet_started_pods_errors_total", 1.0),
        ("kubelet_started_containers_total{container_type=\"init_container\"}", 1.0),
        (
            "kubelet_started_containers_errors_total{code=\"CreateContainerError\",container_type=\"container\"}",
            1.0,
        ),
        ("kubelet_runtime_operations_errors_total{operation_type=\"start_container\"}", 1.0),
        ("kubelet_cgroup_manager_duration_seconds_count{operation_type=\"create\"}", 1.0),
        (
            "storage_operation_duration_seconds_sum{migrated=\"false\",operation_name=\"volume_mount\",\
             status=\"fail-unknown\",volume_plugin=\"kubernetes.io/secret\"}",
            3.0,
        ),
        ("kubelet_image_volume_requested_total", 3.0),
        ("kubelet_image_volume_mounted_succeed_total", 2.0),
        ("kubelet_image_volume_mounted_errors_total", 1.0),
        (
            "volume_operation_total_seconds_sum{operation_name=\"overall_volume_mount\",\
             plugin_name=\"kubernetes.io/secret\"}",
            4.0,
        ),
    ] {
        assert_eq!(value(&text, series), Some(expected), "{series}\n{text}");
    }
}

#[test]
fn images_that_are_gone_are_counted_by_why() {
    let metrics = Metrics::new("n", View::default()).unwrap();
    for (reason, outcome) in [
        (Reason::Space, Ok(Outcome::Done)),
        (Reason::Space, Ok(Outcome::Done)),
        (Reason::Age, Ok(Outcome::Done)),
        (Reason::Age, Ok(Outcome::ImageKept)),
        (Reason::Age, failed()),
    ] {
        metrics.ended("remove-image", &Subject::Collected(reason), &outcome, seconds(1));
    }
    let text = metrics.text();
    let count =
        |reason: &str| value(&text, &format!("kubelet_image_garbage_collected_total{{reason=\"{reason}\"}}"));
    assert_eq!((count("space"), count("age")), (Some(2.0), Some(1.0)), "{text}");
}

#[test]
fn every_effect_is_measured_under_one_name() {
    let metrics = Metrics::new("n", View::default()).unwrap();
    for kind in KINDS {
        metrics.ended(kind, &Subject::Other, &Ok(Outcome::Done), seconds(1));
    }
    let text = metrics.text();
    let count = |name: &str| {
        let of = |line: &&str| line.starts_with(&format!("{name}_count"));
        text.lines()
            .filter(of)
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<usize>().ok())
            .sum::<usize>()
    };
    let measured = count("kubelet_runtime_operations_duration_seconds")
        + count("kubelet_cgroup_manager_duration_seconds")
        + count("berth_effect_duration_seconds");
    assert_eq!(measured, KINDS.len(), "{text}");
}

#[test]
fn answers_of_probes_are_told_by_container_and_go_with_the_pod() {
    let view = View::default();
    let metrics = Metrics::new("n", view.clone()).unwrap();
    let began = metrics.probes_text();
    assert!(value(&began, "process_start_time_seconds").unwrap() > 0.0, "{began}");
    let uid = PodUid::new("1-a");
    let probe = |id: &str| {
        Subject::Probe(uid.clone(), ContainerId::from_known(id), ProbeKind::Liveness, Asks::Command)
    };
    let answered = |answer: ProbeAnswer| Ok(Outcome::Probed(answer));
    metrics.ended("probe", &probe("c1"), &answered(ProbeAnswer::Success), seconds(1));
    assert_eq!(metrics.probes_text(), began, "nobody knows whose it is");
    view.publish(published(Phase::Running, ContainerState::Running { started_at: at(1) }));
    metrics.ended("probe", &probe("another"), &answered(ProbeAnswer::Success), seconds(1));
    metrics.ended("probe", &probe("c1"), &answered(ProbeAnswer::Success), seconds(1));
    metrics.ended("probe", &probe("c1"), &answered(ProbeAnswer::Warning(String::new())), seconds(2));
    metrics.ended("probe", &probe("c1"), &answered(ProbeAnswer::Failure(String::new())), seconds(9));
    metrics.ended("probe", &probe("c1"), &failed(), seconds(9));
    let text = metrics.probes_text();
    let total = |result: &str| {
        value(
            &text,
            &format!(
                "prober_probe_total{{container=\"main\",namespace=\"shop\",pod=\"web\",pod_uid=\"1-a\",probe_type=\"Liveness\",\
                 result=\"{result}\"}}"
            ),
        )
    };
    assert_eq!(
        (total("successful"), total("failed"), total("unknown")),
        (Some(2.0), Some(1.0), None),
        "{text}"
    );
    let took = "prober_probe_duration_seconds_sum{container=\"main\",namespace=\"shop\",pod=\"web\",probe_type=\"Liveness\"}";
    assert_eq!(value(&text, took), Some(3.0), "{text}");
    let by_server =
        Subject::Probe(uid.clone(), ContainerId::from_known("c1"), ProbeKind::Liveness, Asks::Server);
    metrics.ended("probe", &by_server, &answered(ProbeAnswer::Success), seconds(1));
    let text = metrics.text();
    let commands = |family: &str| value(&text, &format!("{family}{{operation_type=\"exec_sync\"}}"));
    assert_eq!(commands("kubelet_runtime_operations_total"), Some(6.0), "{text}");
    assert_eq!(commands("kubelet_runtime_operations_errors_total"), Some(3.0), "{text}");
    view.remove(&uid);
    metrics.unprobed(&uid);
    assert_eq!(metrics.probes_text(), began);
}

#[test]
fn answers_of_probes_go_with_the_end_of_the_pod() {
    for phase in [Phase::Failed, Phase::Succeeded] {
        let view = View::default();
        let metrics = Metrics::new("n", view.clone()).unwrap();
        let began = metrics.probes_text();
        let publish = |published: Published, meanwhile: &dyn Fn()| {
            let (uid, is_over) = (published.pod.uid.clone(), published.status.phase.is_final());
            metrics.publishes(&published, at(2));
            meanwhile();
            view.publish(published);
            if is_over {
                metrics.unprobed(&uid);
            }
        };
        let answered = || {
            let id = ContainerId::from_known("c1");
            let probe = Subject::Probe(PodUid::new("1-a"), id, ProbeKind::Liveness, Asks::Server);
            metrics.ended("probe", &probe, &Ok(Outcome::Probed(ProbeAnswer::Success)), seconds(1));
        };
        publish(published(Phase::Running, ContainerState::Running { started_at: at(1) }), &|| ());
        answered();
        assert!(metrics.probes_text().contains("prober_probe_total"));
        publish(published(phase, ended()), &answered);
        assert_eq!(metrics.probes_text(), began, "{phase:?}");
        answered();
        assert_eq!(metrics.probes_text(), began, "one was still under way");
    }
}

#[test]
fn a_name_is_shown_once() {
    let metrics = Metrics::new("n", View::default()).unwrap();
    let made = metrics.counter("berth_things_total", "Things.", &["sort"]).unwrap();
    made.with_label_values(&["a\"b\n"]).inc();
    metrics.counter("berth_things_total", "Things.", &["sort"]).unwrap_err();
    let text = metrics.text();
    assert_eq!(value(&text, "berth_things_total{sort=\"a\\\"b\\n\"}"), Some(1.0));
    let names: Vec<_> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
}

#[test]
fn health_is_told_as_it_was_judged_last() {
    let metrics = Metrics::new("n", View::default()).unwrap();
    let check = |failure: Option<&str>| Check { name: "syncloop", failure: failure.map(str::to_owned) };
    metrics.checked(&[check(None)]);
    metrics.checked(&[check(Some("late"))]);
    let text = metrics.health_text();
    assert!(value(&text, "process_start_time_seconds").unwrap() > 0.0, "{text}");
    for (series, expected) in [
        ("kubernetes_healthcheck{name=\"syncloop\",type=\"healthz\"}", 0.0),
        ("kubernetes_healthchecks_total{name=\"syncloop\",status=\"success\",type=\"healthz\"}", 1.0),
        ("kubernetes_healthchecks_total{name=\"syncloop\",status=\"error\",type=\"healthz\"}", 1.0),
    ] {
        assert_eq!(value(&text, series), Some(expected), "{series}\n{text}");
    }
    metrics.reset_health();
    assert!(!metrics.health_text().contains("kubernetes_"));
}
