//! What is told of a pod is that pod's.

use super::*;

/// Two pods with networks of their own, whose containers have the same names, and everything of the second one is ten times as much.
fn two() -> (Collected, DiskUsage) {
    let (mut read, mut disks) = (read(), disks());
    let fs = FileSystem { capacity: 1000, free: 400, available: 300, inodes: 100, inodes_free: 60 };
    let usage = |bytes| Usage { at: at(5), bytes, inodes: 1, file_system: fs };
    read.levels.retain(|level, _| level == "/");
    read.networks.clear();
    disks.pods.clear();
    read.subjects.pods = ["a", "b"].map(subject).into();
    for (uid, scale) in [("a", 1), ("b", 10)] {
        let pod = subject(uid);
        let own = Interface { received: [scale; 4], sent: [2 * scale; 4], ..interface("eth0") };
        read.networks.insert(pod.uid.clone(), Network { at: at(3), interfaces: vec![own] });
        read.levels.insert(pod.cgroup.clone(), sampled(2, scale));
        read.levels.insert(pod.containers[0].cgroup.clone(), sampled(2, scale));
        let used = PodUsage {
            logs: [("web".to_owned(), usage(3 * scale))].into(),
            layers: [(format!("c-{uid}"), usage(4 * scale))].into(),
            ..PodUsage::default()
        };
        disks.pods.insert(pod.uid, used);
    }
    (read, disks)
}

fn subject(uid: &str) -> PodSubject {
    let network = NetworkOf::Sandbox(SandboxId::from_known(format!("s-{uid}")));
    let own = ContainerSubject {
        cgroup: format!("/kubepods/burstable/pod{uid}/c-{uid}"),
        ..container("web", &format!("c-{uid}"))
    };
    pod(uid, &format!("pod-{uid}"), network, vec![own])
}

#[test]
fn figures_of_two_pods_are_not_mixed_up() {
    let (read, disks) = two();
    let said = summary(&read, &disks).unwrap();
    assert_eq!(said.pods.len(), 2);
    let text = cgroup_metrics(Some(&read), &disks);
    for (pod, (uid, scale)) in said.pods.iter().zip([("a", 1), ("b", 10)]) {
        assert_eq!((pod.pod_ref.uid.as_str(), pod.pod_ref.name.as_str()), (uid, &*format!("pod-{uid}")));
        let network = &pod.network.as_ref().unwrap().default;
        assert_eq!((network.rx_bytes, network.tx_bytes), (Some(scale), Some(2 * scale)), "{uid}");
        let [container] = &*pod.containers else { panic!("{:?}", pod.containers) };
        let used = |fs: &Option<summary::FsStats>| fs.as_ref().and_then(|fs| fs.used_bytes);
        assert_eq!((used(&container.logs), used(&container.rootfs)), (Some(3 * scale), Some(4 * scale)));
        assert_eq!(used(&pod.ephemeral_storage), Some(7 * scale), "{uid}");
        let memory = container.memory.as_ref().unwrap().usage_bytes;
        assert_eq!(memory, Some(scale * 10_000_000), "{uid}");
        let series = |name: &str| text.lines().filter(|line| line.starts_with(name)).collect::<Vec<_>>();
        let received = series("container_network_receive_bytes_total{");
        let own = received.iter().find(|line| line.contains(&format!("pod=\"pod-{uid}\""))).unwrap();
        assert!(own.contains(&format!("}} {scale} ")), "{own}");
    }
}

#[test]
fn logs_are_told_of_pods_that_are_here() {
    let (read, disks) = two();
    let [one, other] = &*read.subjects.pods else { panic!("{:?}", read.subjects.pods) };
    let gone = PodUid::new("gone");
    let here = [(&one.uid, &one.name), (&gone, &other.name)];
    assert_eq!(log_sizes(&disks, here), [(["a", "default", "pod-a", "web"], 3)]);
}

/// Shims of others may have all containers of a pod in one process.
#[test]
fn a_pod_whose_containers_have_no_cgroup_is_shown_with_its_own_figures() {
    let (mut read, disks) = two();
    read.levels.retain(|level, _| !level.ends_with("/c-a"));
    let said = summary(&read, &disks).unwrap();
    let [pod, _] = &*said.pods else { panic!("{:?}", said.pods) };
    let [container] = &*pod.containers else { panic!("{:?}", pod.containers) };
    assert_eq!(container.name, "web");
    assert_eq!((&container.cpu, &container.memory, &container.swap), (&None, &None, &None));
    assert_eq!(container.logs.as_ref().and_then(|logs| logs.used_bytes), Some(3));
    assert_eq!(pod.cpu.as_ref().unwrap().usage_core_nano_seconds, Some(1_500_000_000));
    assert_eq!(pod.ephemeral_storage.as_ref().unwrap().used_bytes, Some(7));
    let text = resource_metrics(Some(&said));
    assert!(text.contains("pod_cpu_usage_seconds_total{namespace=\"default\",pod=\"pod-a\"} 1.5 "), "{text}");
    assert!(!text.contains(
        "container_cpu_usage_seconds_total{container=\"web\",namespace=\"default\",pod=\"pod-a\"}"
    ));
    // Of one that has a cgroup beside one that has none any more, the latter has ended.
    read.subjects.pods[1].containers.push(container_of("ended"));
    assert_eq!(summary(&read, &disks).unwrap().pods[1].containers.len(), 1);
    read.levels.retain(|level, _| level == "/");
    assert!(summary(&read, &disks).unwrap().pods.is_empty(), "nothing of them is there");
}

#[test]
fn a_pod_of_which_nothing_runs_has_the_rows_of_its_cgroup_alone() {
    let (mut read, disks) = two();
    read.subjects.pods[0].containers.clear();
    let said = summary(&read, &disks).unwrap();
    let [pod] = &*said.pods else { panic!("{:?}", said.pods) };
    assert_eq!((pod.pod_ref.uid.as_str(), pod.containers.len()), ("b", 1));
    assert_eq!(pod.network.as_ref().unwrap().default.rx_bytes, Some(10), "what follows is that pod's too");
    assert!(!resource_metrics(Some(&said)).contains("pod-a"));
    let text = cgroup_metrics(Some(&read), &disks);
    let own: Vec<_> = text.lines().filter(|line| line.contains("pod=\"pod-a\"")).collect();
    assert!(!own.is_empty() && own.iter().all(|line| line.contains("container=\"\"")), "{own:?}");
}

fn container_of(name: &str) -> ContainerSubject {
    container(name, "gone")
}
