//! What pods and the node loop come to.

use super::*;

fn running() -> ContainerState {
    ContainerState::Running { started_at: at(1) }
}

fn stopping(state: ContainerState) -> Published {
    let published = published(Phase::Running, state);
    let status = PodStatus { terminating: true, ..PodStatus::clone(&published.status) };
    Published { status: Arc::new(status), ..published }
}

fn expect(text: &str, all: &[(&str, f64)]) {
    for (series, expected) in all {
        assert_eq!(value(text, series), Some(*expected), "{series}\n{text}");
    }
}

#[test]
fn ends_of_containers_and_pods_are_counted_once() {
    let view = View::default();
    let metrics = Metrics::new("n", view.clone()).unwrap();
    let publish = |published: Published, now| {
        metrics.publishes(&published, at(now));
        view.publish(published);
    };
    publish(published(Phase::Running, running()), 100);
    publish(stopping(running()), 110);
    let text = metrics.text();
    expect(
        &text,
        &[
            ("kubelet_containers_per_pod_count_sum", 1.0),
            ("kubelet_working_pods{config=\"orphan\",lifecycle=\"terminating\",static=\"\"}", 1.0),
            ("kubelet_working_pods{config=\"desired\",lifecycle=\"sync\",static=\"\"}", 0.0),
            ("kubelet_desired_pods{static=\"\"}", 0.0),
            ("kubelet_restarted_pods_total{static=\"\"}", 0.0),
        ],
    );
    publish(stopping(ended()), 114);
    publish(stopping(ended()), 115);
    metrics.withdrawn(&PodUid::new("1-a"), at(117));
    view.remove(&PodUid::new("1-a"));
    // It is wanted again, and begins in the same turn; the next time it comes in another one.
    publish(published(Phase::Pending, waiting()), 117);
    metrics.turn_ended(seconds(1));
    metrics.withdrawn(&PodUid::new("1-a"), at(118));
    view.remove(&PodUid::new("1-a"));
    metrics.turn_ended(seconds(1));
    publish(published(Phase::Pending, waiting()), 119);
    expect(
        &metrics.text(),
        &[
            (
                "kubelet_terminated_containers_total{container_type=\"container\",exit_code=\"3\",reason=\"Error\"}",
                1.0,
            ),
            ("kubelet_pod_worker_duration_seconds_sum{operation_type=\"kill\"}", 4.0),
            ("kubelet_pod_worker_duration_seconds_sum{operation_type=\"terminated\"}", 7.0),
            ("kubelet_restarted_pods_total{static=\"\"}", 1.0),
            ("kubelet_pleg_relist_duration_seconds_sum", 2.0),
        ],
    );
}

#[test]
fn what_keeps_pods_and_containers_from_starting_is_counted_by_reason() {
    let view = View::default();
    let metrics = Metrics::new("n", view.clone()).unwrap();
    for reason in ["OutOfcpu", "OutOfexample.com/gpu", "NodePorts", "NodePorts", "Pulled", "Preempting"] {
        metrics.noted(&PodUid::new("1-a"), &event(reason), at(1));
    }
    let waits = |reason: &str| ContainerState::Waiting { reason: reason.to_owned(), message: String::new() };
    for reason in ["ContainerCreating", "ErrImagePull", "ErrImagePull", "ImagePullBackOff"] {
        let published = published(Phase::Pending, waits(reason));
        metrics.publishes(&published, at(1));
        view.publish(published);
    }
    for (kind, times) in [(FailureKind::Config, 2), (FailureKind::StartFailed, 1), (FailureKind::Unknown, 1)]
    {
        for _ in 0..times {
            let failure = Err(Failure { kind, message: String::new() });
            metrics.ended(
                "start-container",
                &Subject::Container(ContainerKind::Main, UserMode::Node),
                &failure,
                seconds(1),
            );
        }
    }
    let error = |code| {
        format!("kubelet_started_containers_errors_total{{code=\"{code}\",container_type=\"container\"}}")
    };
    expect(
        &metrics.text(),
        &[
            ("kubelet_admission_rejections_total{reason=\"OutOfcpu\"}", 1.0),
            ("kubelet_admission_rejections_total{reason=\"OutOfExtendedResources\"}", 1.0),
            ("kubelet_admission_rejections_total{reason=\"Other\"}", 2.0),
            ("kubelet_preemptions{preemption_signal=\"\"}", 1.0),
            (&error("ErrImagePull"), 1.0),
            (&error("ImagePullBackOff"), 1.0),
            (&error("CreateContainerConfigError"), 2.0),
            (&error("RunContainerError"), 1.0),
            (&error("CreateContainerError"), 1.0),
            ("kubelet_started_containers_total{container_type=\"container\"}", 6.0),
        ],
    );
}

#[test]
fn a_certificate_is_told_in_whole_seconds_and_none_holds_without_end() {
    for (until, least, most) in [(3600, 3590.0, 3600.0), (-60, -70.0, -60.0)] {
        let metrics = Metrics::new("n", View::default()).unwrap();
        let until = Timestamp::now() + jiff::SignedDuration::from_secs(until);
        metrics.ask_until(Certified::Client, move || Some(until)).unwrap();
        metrics.ask_until(Certified::Server, || None).unwrap();
        let text = metrics.text();
        let told = value(&text, "kubelet_certificate_manager_client_ttl_seconds").unwrap();
        assert!((least..=most).contains(&told) && told.fract() == 0.0, "{told}");
        assert_eq!(value(&text, "kubelet_certificate_manager_server_ttl_seconds"), Some(f64::INFINITY));
    }
}

#[test]
fn a_loop_that_waits_was_seen_now_and_one_that_hangs_when_it_began() {
    let seen = |since: Option<Mono>| {
        let metrics = Metrics::new("n", View::default()).unwrap();
        metrics.watch_turns(move || since).unwrap();
        value(&metrics.text(), "kubelet_pleg_last_seen_seconds").unwrap()
    };
    let now = || Timestamp::now().as_duration().as_secs_f64();
    let before = now();
    assert!(seen(None) > before - 1.0);
    let since = Mono(clock::mono().0.saturating_sub(seconds(5)));
    assert!(seen(Some(since)) <= now() - 4.0);
}
