use std::sync::Arc;

use super::*;
use crate::{
    fixtures,
    id::PodUid,
    spec::{
        AppArmorProfile, Container, ContainerKind, NodeTerm, Operator, Port, Protocol, QosClass, Requirement,
        Scheduling,
    },
};

fn node() -> NodeInfo {
    let labels = [("kubernetes.io/os", "linux"), ("zone", "a"), ("cores", "8")];
    NodeInfo {
        name: "node-1".into(),
        labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        ..NodeInfo::default()
    }
}

fn api_pod(name: &str, requests: (u64, u64)) -> Pod {
    let container =
        Container { resources: fixtures::resources(requests, (0, 0)), ..fixtures::container("web") };
    let mut pod = Pod { source: Source::Api, ..fixtures::pod(vec![container]) };
    pod.uid = PodUid::new(name);
    pod.qos = if requests == (0, 0) { QosClass::BestEffort } else { QosClass::Burstable };
    pod
}

fn with_port(pod: Pod, protocol: Protocol, ip: Option<&str>, port: u16) -> Pod {
    let port = Port {
        name: None,
        container_port: 80,
        host_port: Some(port),
        host_ip: ip.map(str::to_owned),
        protocol,
    };
    let container = Container { ports: vec![port], ..Container::clone(&pod.containers[0]) };
    Pod { containers: vec![Arc::new(container)], ..pod }
}

/// Reasons in the order in which they are told.
fn reasons(pod: &Pod, others: &[&Pod], node: &NodeInfo) -> Vec<String> {
    let config = fixtures::node();
    let room = Room {
        node,
        allocatable: &config.allocatable,
        pods_max: 3,
        unsafe_sysctls: &config.unsafe_sysctls,
        app_armor: config.app_armor,
    };
    check(pod, &Occupied::by(others.iter().copied()), room).iter().map(Refusal::reason).collect()
}

#[test]
fn resources_are_those_that_others_leave() {
    let (one, other) = (api_pod("one", (2000, 1 << 30)), api_pod("other", (1000, 4 << 30)));
    for (requests, others, expected) in [
        ((500, 0), &[&one, &other][..], &[][..]),
        ((501, 0), &[&one, &other], &["OutOfcpu"]),
        ((0, (2 << 30) + 1), &[&one, &other], &["OutOfmemory"]),
        ((4000, 8 << 30), &[], &["OutOfcpu", "OutOfmemory"]),
        ((3500, 7 << 30), &[], &[]),
        ((0, 0), &[&one, &other, &one], &["OutOfpods"]),
    ] {
        assert_eq!(reasons(&api_pod("new", requests), others, &node()), expected, "{requests:?}");
    }
    let config = fixtures::node();
    let room = Room {
        node: &node(),
        allocatable: &config.allocatable,
        pods_max: 110,
        unsafe_sysctls: &[],
        app_armor: AppArmor::Absent,
    };
    let refusals = check(&api_pod("new", (1000, 0)), &Occupied::by([&one, &other]), room);
    assert_eq!(
        refusals[0].message(),
        "Node didn't have enough resource: cpu, requested: 1000, used: 3000, capacity: 3500"
    );
}

#[test]
fn what_the_node_does_not_have_at_all_is_not_its_own() {
    let mut pod = api_pod("new", (0, 0));
    let mut container = Container::clone(&pod.containers[0]);
    container.resources.requests.extended.insert("example.com/licence".into(), 1);
    // What is called Kubernetes' own is no vendor's.
    for name in ["kubernetes.io/batch-cpu", "node.kubernetes.io/batch-cpu"] {
        container.resources.requests.extended.insert(name.into(), 1);
    }
    container.resources.requests.hugepages_bytes.insert(2 << 20, 4 << 20);
    pod.containers = vec![Arc::new(container)];
    let missing = ["OutOfhugepages-2Mi", "OutOfkubernetes.io/batch-cpu", "OutOfnode.kubernetes.io/batch-cpu"];
    assert_eq!(reasons(&pod, &[], &node()), missing);
}

#[test]
fn the_node_is_the_one_that_is_asked_for() {
    let requirement = |key: &str, operator, values: &[&str]| Requirement {
        key: key.into(),
        operator,
        values: values.iter().map(|value| (*value).to_owned()).collect(),
    };
    let labels = |requirement| Some(vec![NodeTerm { labels: vec![requirement], fields: Vec::new() }]);
    let fields = |requirement| Some(vec![NodeTerm { labels: Vec::new(), fields: vec![requirement] }]);
    for (affinity, fits) in [
        (None, true),
        (Some(vec![]), false),
        (Some(vec![NodeTerm::default()]), false),
        (labels(requirement("zone", Operator::In, &["b", "a"])), true),
        (labels(requirement("zone", Operator::In, &["b"])), false),
        (labels(requirement("zone", Operator::NotIn, &["b"])), true),
        (labels(requirement("zone", Operator::NotIn, &["a"])), false),
        (labels(requirement("region", Operator::NotIn, &["a"])), true),
        (labels(requirement("zone", Operator::Exists, &[])), true),
        (labels(requirement("region", Operator::Exists, &[])), false),
        (labels(requirement("region", Operator::DoesNotExist, &[])), true),
        (labels(requirement("zone", Operator::DoesNotExist, &[])), false),
        (labels(requirement("cores", Operator::Gt, &["7"])), true),
        (labels(requirement("cores", Operator::Gt, &["8"])), false),
        (labels(requirement("cores", Operator::Lt, &["9"])), true),
        (labels(requirement("zone", Operator::Lt, &["9"])), false),
        (fields(requirement("metadata.name", Operator::In, &["node-1"])), true),
        (fields(requirement("metadata.name", Operator::In, &["node-2"])), false),
    ] {
        let scheduling = Scheduling { affinity: affinity.clone(), ..Scheduling::default() };
        let expected: &[&str] = if fits { &[] } else { &["NodeAffinity"] };
        assert_eq!(
            reasons(&Pod { scheduling, ..api_pod("new", (0, 0)) }, &[], &node()),
            expected,
            "{affinity:?}"
        );
    }
    for (selector, name, expected) in [
        (("zone", "a"), Some("node-1"), &[][..]),
        (("zone", "b"), None, &["NodeAffinity"]),
        (("region", "a"), None, &["NodeAffinity"]),
        (("zone", "a"), Some("node-2"), &["NodeName"]),
    ] {
        let scheduling = Scheduling {
            selector: [(selector.0.to_owned(), selector.1.to_owned())].into(),
            node_name: name.map(str::to_owned),
            ..Scheduling::default()
        };
        assert_eq!(reasons(&Pod { scheduling, ..api_pod("new", (0, 0)) }, &[], &node()), expected);
    }
    let mut windows = api_pod("new", (0, 0));
    windows.labels.insert("kubernetes.io/os".into(), "windows".into());
    assert_eq!(reasons(&windows, &[], &node()), ["PodOSSelectorNodeLabelDoesNotMatch"]);
    let scheduling = Scheduling { os: Some("windows".into()), ..Scheduling::default() };
    let windows = Pod { scheduling, ..api_pod("new", (0, 0)) };
    assert_eq!(reasons(&windows, &[], &node()), ["PodOSNotSupported"]);
}

#[test]
fn a_port_of_the_node_is_one_pods() {
    let there = with_port(api_pod("there", (0, 0)), Protocol::Tcp, Some("192.0.2.1"), 80);
    for (protocol, ip, port, collides) in [
        (Protocol::Tcp, Some("192.0.2.1"), 80, true),
        (Protocol::Tcp, None, 80, true),
        (Protocol::Tcp, Some("0.0.0.0"), 80, true),
        (Protocol::Tcp, Some("192.0.2.2"), 80, false),
        (Protocol::Udp, None, 80, false),
        (Protocol::Tcp, None, 81, false),
    ] {
        let pod = with_port(api_pod("new", (0, 0)), protocol, ip, port);
        let expected: &[&str] = if collides { &["NodePorts"] } else { &[] };
        assert_eq!(reasons(&pod, &[&there], &node()), expected, "{protocol:?} {ip:?} {port}");
    }
}

/// Source: `GetHostPorts` of `pkg/scheduler/util/utils.go`.
#[test]
fn ports_of_containers_that_stay_are_taken_and_those_of_init_containers_are_not() {
    use ContainerKind::{Init, Main, Sidecar};
    let with = |name: &str, kind: ContainerKind| {
        let mut pod = with_port(api_pod(name, (0, 0)), Protocol::Tcp, None, 80);
        if kind != Main {
            let container = Container { kind, ..Container::clone(&pod.containers[0]) };
            pod.init_containers = vec![Arc::new(container)];
            pod.containers = api_pod(name, (0, 0)).containers;
        }
        pod
    };
    for (there, new, collides) in [
        (Main, Main, true),
        (Sidecar, Main, true),
        (Main, Sidecar, true),
        (Sidecar, Sidecar, true),
        (Init, Main, false),
        (Main, Init, false),
    ] {
        let expected: &[&str] = if collides { &["NodePorts"] } else { &[] };
        let found = reasons(&with("new", new), &[&with("there", there)], &node());
        assert_eq!(found, expected, "{there:?} {new:?}");
    }
}

#[test]
fn pods_of_the_api_tolerate_what_executes() {
    let taint = Taint { key: "down".into(), value: "yes".into() };
    let tainted = NodeInfo { taints: vec![taint], ..node() };
    let toleration = |key: &str, operator, value: &str, effect: &str| Toleration {
        key: key.into(),
        operator,
        value: value.into(),
        effect: effect.into(),
    };
    use TolerationOperator::{Equal, Exists, Other};
    for (tolerations, tolerates) in [
        (vec![], false),
        (vec![toleration("", Exists, "", "")], true),
        (vec![toleration("down", Exists, "", "NoExecute")], true),
        (vec![toleration("down", Exists, "", "NoSchedule")], false),
        (vec![toleration("down", Equal, "yes", "")], true),
        (vec![toleration("down", Equal, "no", "")], false),
        (vec![toleration("down", Other, "yes", "")], false),
        (vec![toleration("up", Exists, "", "")], false),
    ] {
        let scheduling = Scheduling { tolerations, ..Scheduling::default() };
        let pod = Pod { scheduling, ..api_pod("new", (0, 0)) };
        let expected: &[&str] = if tolerates { &[] } else { &["TaintToleration"] };
        assert_eq!(reasons(&pod, &[], &tainted), expected, "{:?}", pod.scheduling);
        assert!(reasons(&Pod { source: Source::File, ..pod }, &[], &tainted).is_empty(), "static");
    }
}

/// Source: `GetInsufficientAmount` of `pkg/kubelet/lifecycle/predicate.go`.
#[test]
fn what_is_used_beyond_the_capacity_is_missing_too() {
    for (requested, used, capacity, expected) in
        [(300, 0, 200, 100), (300, 1000, 1000, 300), (300, 1800, 1000, 1100), (1, 100, 50, 51)]
    {
        let insufficient = Insufficient { resource: "cpu".into(), requested, used, capacity };
        assert_eq!(insufficient.missing(), expected, "{insufficient:?}");
    }
}

#[test]
fn a_critical_pod_takes_the_place_of_as_few_as_can_be_of_the_lowest_class() {
    let critical = Pod { priority: 2_000_000_000, ..api_pod("critical", (2000, 0)) };
    let guaranteed = Pod { qos: QosClass::Guaranteed, ..api_pod("guaranteed", (2000, 0)) };
    let small = api_pod("small", (500, 1));
    let large = api_pod("large", (2000, 1));
    let idle = api_pod("idle", (0, 0));
    let static_pod = Pod { source: Source::File, ..api_pod("static", (3000, 0)) };
    let names = |others: &[&Pod], missing: u64| -> Result<Vec<String>, Vec<(String, u64)>> {
        let insufficient =
            [Insufficient { resource: "cpu".into(), requested: missing, used: 0, capacity: 0 }];
        let victims = victims(&critical, others, &insufficient)?;
        Ok(victims.iter().map(|pod| pod.uid.to_string()).collect())
    };
    for (others, missing, expected) in [
        (&[&idle, &small, &large, &guaranteed][..], 400, Ok(&["small"][..])),
        (&[&small, &large, &guaranteed], 600, Ok(&["large"])),
        (&[&small, &large, &guaranteed], 2500, Ok(&["large", "small"])),
        (&[&small, &large, &guaranteed], 2600, Ok(&["large", "guaranteed"])),
        (&[&small, &guaranteed, &static_pod], 3000, Err(500)),
        (&[], 1, Err(1)),
    ] {
        let expected = expected
            .map(|names| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
            .map_err(|still| vec![("cpu".to_owned(), still)]);
        assert_eq!(names(others, missing), expected, "{missing}");
    }
    let same = [&Pod { priority: 5, ..api_pod("same", (2000, 0)) }];
    let insufficient = [Insufficient { resource: "cpu".into(), requested: 1, used: 0, capacity: 0 }];
    let of = |priority| victims(&Pod { priority, ..api_pod("new", (1, 0)) }, &same, &insufficient);
    assert_eq!(of(5), Err(vec![("cpu".to_owned(), 1)]));
    assert_eq!(of(6), Ok(same.to_vec()));
}

/// Source: `AppArmorNotAdmittedReason` of `pkg/kubelet/lifecycle/handlers.go`. The handler comes after all others here.
#[test]
fn a_profile_that_cannot_be_enforced_is_told_after_all_else() {
    let mut pod = api_pod("new", (4000, 0));
    let mut container = Container::clone(&pod.containers[0]);
    container.security.app_armor = Some(AppArmorProfile::RuntimeDefault);
    pod.containers = vec![Arc::new(container)];
    assert_eq!(reasons(&pod, &[], &node()), ["OutOfcpu", "AppArmor"]);
    let config = fixtures::node();
    let room = Room {
        node: &node(),
        allocatable: &config.capacity,
        pods_max: 110,
        unsafe_sysctls: &[],
        app_armor: AppArmor::Enforced,
    };
    assert_eq!(check(&pod, &Occupied::default(), room), []);
}
