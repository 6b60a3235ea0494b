use std::sync::Arc;

use super::*;
use crate::{
    fixtures,
    id::ContainerName,
    spec::{ContainerKind, Resources},
};

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn fields() {
    let mut pod = fixtures::pod(vec![]);
    pod.labels.insert("example.com/tier".into(), "front".into());
    pod.annotations.insert("a[b]'c".into(), "odd".into());
    pod.annotations.insert("lines".into(), "one\ntwo\t\u{1}é\\".into());
    let mut node = fixtures::node();
    node.ips = ips(&["192.0.2.10", "2001:db8::1"]);
    let pod_ips = ips(&["10.1.2.3", "fd00::3"]);
    for (path, expected) in [
        ("metadata.name", "web-node-1"),
        ("metadata.namespace", "shop"),
        ("metadata.uid", "0b1c-2d"),
        ("metadata.labels['app']", "web"),
        ("metadata.labels['example.com/tier']", "front"),
        ("metadata.labels['none']", ""),
        ("metadata.labels['']", ""),
        ("metadata.annotations['note']", "a \"b\""),
        ("metadata.annotations['a[b]'c']", "odd"),
        ("metadata.labels", "app=\"web\"\nexample.com/tier=\"front\""),
        ("metadata.annotations", "a[b]'c=\"odd\"\nlines=\"one\\ntwo\\t\\x01é\\\\\"\nnote=\"a \\\"b\\\"\""),
        ("spec.nodeName", "node-1"),
        ("spec.host", "node-1"),
        ("spec.serviceAccountName", "default"),
        ("status.hostIP", "192.0.2.10"),
        ("status.hostIPs", "192.0.2.10,2001:db8::1"),
        ("status.podIP", "10.1.2.3"),
        ("status.podIPs", "10.1.2.3,fd00::3"),
    ] {
        assert_eq!(field(path, &pod, &node, &pod_ips).as_deref(), Ok(expected), "{path}");
    }
    assert_eq!(field("status.podIP", &pod, &node, &[]).as_deref(), Ok(""));
}

/// As Go 1.26 prints them with `%q`.
#[test]
fn what_is_not_printed_is_escaped_as_by_go() {
    for (value, expected) in [
        (" !'~é漢😀", " !'~é漢😀"),
        ("\0\u{1b}\u{7f}", r"\x00\x1b\x7f"),
        ("\u{85}\u{9f}", r"\u0085\u009f"),
        ("\u{a0}\u{2003}\u{3000}", r"\u00a0\u2003\u3000"),
        ("\u{2028}\u{2029}", r"\u2028\u2029"),
        ("\u{ad}\u{200b}\u{200c}\u{200d}\u{feff}", r"\u00ad\u200b\u200c\u200d\ufeff"),
        ("\u{e000}\u{f8ff}\u{378}\u{ffff}", r"\ue000\uf8ff\u0378\uffff"),
        ("\u{e0001}\u{10ffff}", r"\U000e0001\U0010ffff"),
        ("\u{301}", "\u{301}"),
        ("e\u{301}\u{20dd}\u{fe0f}", "e\u{301}\u{20dd}\u{fe0f}"),
        ("\u{ff9e}\u{fffd}", "\u{ff9e}\u{fffd}"),
    ] {
        assert_eq!(go_quote(value), format!("\"{expected}\""), "{expected}");
    }
}

#[test]
fn other_fields_are_errors() {
    let (pod, node) = (fixtures::pod(vec![]), fixtures::node());
    for path in [
        "",
        "metadata",
        "metadata.generation",
        "spec.hostname",
        "status.phase",
        "metadata.name['x']",
        "['x']",
        "metadata.labels['x'",
        "metadata.labels[\"x\"]",
        "status.podIP ",
    ] {
        let error = field(path, &pod, &node, &[]).unwrap_err();
        assert_eq!(error.to_string(), format!("unsupported fieldPath: {path}"));
    }
}

fn select(field: ResourceField, divisor: u64) -> ResourceSelector {
    ResourceSelector { container: None, field, divisor }
}

#[test]
fn resources_in_divisors_rounded_up() {
    use ResourceField::{LimitsCpu, LimitsEphemeralStorage, LimitsMemory, RequestsCpu, RequestsMemory};
    let mut own = fixtures::container("web");
    own.resources = fixtures::resources((250, 3 << 20), (1500, 64 << 20));
    own.resources.limits.hugepages_bytes = [(2 << 20, 8 << 20)].into();
    let (pod, node) = (fixtures::pod(vec![own.clone()]), fixtures::node());
    for (field, divisor, expected) in [
        (LimitsCpu, 1000, "2"),
        (LimitsCpu, 1, "1500"),
        (LimitsCpu, 1500, "1"),
        (RequestsCpu, 1000, "1"),
        (RequestsCpu, 1, "250"),
        (LimitsMemory, 1, "67108864"),
        (LimitsMemory, 1 << 20, "64"),
        (RequestsMemory, 2 << 20, "2"),
        (LimitsMemory, 1 << 30, "1"),
        (LimitsEphemeralStorage, 1 << 30, "90"),
        (ResourceField::RequestsEphemeralStorage, 1, "0"),
        (ResourceField::LimitsHugePages(2 << 20), 1 << 20, "8"),
        (ResourceField::RequestsHugePages(2 << 20), 1 << 20, "0"),
        (ResourceField::LimitsHugePages(1 << 30), 1, "0"),
    ] {
        let value = resource(&select(field, divisor), &pod, &own, &node);
        assert_eq!(value.as_deref(), Ok(expected), "{field:?} / {divisor}");
    }
}

#[test]
fn a_limit_that_is_not_named_is_what_the_node_can_give() {
    let own = fixtures::container("web");
    let (pod, node) = (fixtures::pod(vec![own.clone()]), fixtures::node());
    for (field, divisor, expected) in [
        (ResourceField::LimitsCpu, 1, "3500"),
        (ResourceField::LimitsCpu, 1000, "4"),
        (ResourceField::LimitsMemory, 1 << 30, "7"),
        (ResourceField::RequestsCpu, 1, "0"),
        (ResourceField::RequestsMemory, 1, "0"),
    ] {
        let value = resource(&select(field, divisor), &pod, &own, &node);
        assert_eq!(value.as_deref(), Ok(expected), "{field:?}");
    }
}

#[test]
fn a_limit_of_the_pod_comes_before_the_nodes() {
    let own = fixtures::container("web");
    let mut pod = fixtures::pod(vec![own.clone()]);
    pod.resources = Some(fixtures::resources((0, 0), (1200, 0)));
    for (field, expected) in [(ResourceField::LimitsCpu, "1200"), (ResourceField::LimitsMemory, "7516192768")]
    {
        let value = resource(&select(field, 1), &pod, &own, &fixtures::node());
        assert_eq!(value.as_deref(), Ok(expected), "{field:?}");
    }
}

#[test]
fn what_stands_in_for_a_limit_is_of_the_place_that_shows_it() {
    let own = fixtures::container("web");
    let of_init = |name: &str, kind| {
        let mut container = fixtures::container(name);
        container.kind = kind;
        Arc::new(container)
    };
    let mut pod = fixtures::pod(vec![own.clone()]);
    pod.init_containers = vec![of_init("setup", ContainerKind::Init), of_init("log", ContainerKind::Sidecar)];
    pod.resources = Some(fixtures::resources((0, 0), (1200, 0)));
    let node = fixtures::node();
    for (name, in_environment, in_file) in [
        (None, "1200", "3500"),
        (Some("web"), "1200", "3500"),
        (Some("setup"), "0", "3500"),
        (Some("log"), "0", "3500"),
    ] {
        let selector = ResourceSelector {
            container: name.map(ContainerName::new),
            ..select(ResourceField::LimitsCpu, 1)
        };
        assert_eq!(resource(&selector, &pod, &own, &node).as_deref(), Ok(in_environment), "{name:?}");
        assert_eq!(resource_in_file(&selector, &pod, &own, &node).as_deref(), Ok(in_file), "{name:?}");
    }
    // Its own environment, in which it is not named.
    let setup = Arc::clone(&pod.init_containers[0]);
    let unnamed = select(ResourceField::LimitsCpu, 1);
    assert_eq!(resource(&unnamed, &pod, &setup, &node).as_deref(), Ok("1200"));
}

#[test]
fn resources_of_another_container() {
    let own = fixtures::container("web");
    let mut init = fixtures::container("setup");
    init.kind = ContainerKind::Init;
    init.resources = Resources { ..fixtures::resources((0, 0), (700, 0)) };
    let mut pod = fixtures::pod(vec![own.clone()]);
    pod.init_containers = vec![Arc::new(init)];
    let other = |name: &str| ResourceSelector {
        container: Some(ContainerName::new(name)),
        ..select(ResourceField::LimitsCpu, 1)
    };
    assert_eq!(resource(&other("setup"), &pod, &own, &fixtures::node()).as_deref(), Ok("700"));
    let error = resource(&other("gone"), &pod, &own, &fixtures::node()).unwrap_err();
    assert_eq!(error.to_string(), "container gone not found");
}

#[test]
fn a_divisor_of_zero_divides_by_one() {
    let own = fixtures::container("web");
    let value =
        resource(&select(ResourceField::LimitsCpu, 0), &fixtures::pod(vec![]), &own, &fixtures::node());
    assert_eq!(value.as_deref(), Ok("3500"));
}
