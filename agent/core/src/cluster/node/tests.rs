use super::*;
use crate::{
    config::{CgroupDriver, CgroupSettings, CgroupVersion, DnsSettings, MemoryVolumes, ResolvConf},
    status::Severity,
};

fn settings() -> NodeSettings {
    NodeSettings {
        name: "n".to_owned(),
        labels: BTreeMap::from([("own".to_owned(), "1".to_owned())]),
        taints: vec![Taint { key: "t".to_owned(), value: String::new(), effect: "NoSchedule".to_owned() }],
        provider_id: "kind://x".to_owned(),
        registers: true,
        cloud: Cloud::None,
        attached_by: AttachedBy::Controller,
        ips: NodeIps::Unset,
        pods_max: 110,
        images_max: Some(2),
        port: 10250,
        update_every: Duration::from_secs(10),
        report_every: Duration::from_secs(300),
        lease_seconds: 40,
    }
}

fn facts() -> Facts {
    let capacity = Quantities {
        cpu_milli: Some(2000),
        memory_bytes: Some(24_686_168 << 10),
        ephemeral_storage_bytes: Some(1 << 30),
        hugepages_bytes: [(2 << 20, 6 << 20), (1 << 30, 0)].into(),
        ..Quantities::default()
    };
    let allocatable = Quantities {
        cpu_milli: Some(1900),
        memory_bytes: Some(1 << 30),
        ephemeral_storage_bytes: Some(966_367_642),
        ..capacity.clone()
    };
    Facts {
        machine: Machine {
            machine_id: "m".to_owned(),
            system_uuid: "s".to_owned(),
            boot_id: "b1".to_owned(),
            kernel_version: "6.18".to_owned(),
            os_image: "Debian".to_owned(),
            architecture: "amd64".to_owned(),
            swap_bytes: 0,
            capacity,
            allocatable,
            devices: Devices { has_checkpoint: true, registered: BTreeSet::new() },
        },
        found: Found { routed: vec!["10.0.0.7".parse().unwrap()], ..Found::default() },
        health: Health { version: Some("v2.3.4".to_owned()), silent_since: None },
        network: Some(Ok(())),
        asked_since: at(0).mono,
        network_within: Duration::from_secs(230),
        // Objects of these tests have no UID but where it says so.
        csi_node: CsiNode::There { owner: String::new() },
        pressure: BTreeSet::new(),
        handlers: vec![Handler { name: String::new(), recursive_read_only: false, user_namespaces: false }],
        images: Some(Vec::new()),
        volumes_in_use: None,
    }
}

fn at(seconds: u64) -> Now {
    let wall = "2026-11-23T20:00:00Z".parse::<jiff::Timestamp>().unwrap();
    Now { mono: Mono(Duration::from_secs(1000 + seconds)), wall: wall + Duration::from_secs(seconds) }
}

fn reasons(notes: &[Note]) -> Vec<&str> {
    notes.iter().map(|note| note.reason.as_str()).collect()
}

/// Whoever may write its owners may have the node deleted with them, and whoever may write others' objects is more than a node.
#[test]
fn cve_2025_5187_cve_2025_4563_cve_2021_25735_a_node_writes_no_owners_and_no_name_but_its_own() {
    let made = made(&settings(), &facts(), at(0)).object;
    let mut existing = made.clone();
    existing["metadata"]["ownerReferences"] =
        json!([{ "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u" }]);
    let owners = existing["metadata"]["ownerReferences"].clone();
    let taken_over = taken_over(&settings(), &facts(), &existing, at(1)).object;
    let updated = updated(&settings(), &facts(), &existing, at(2)).object;
    assert_eq!(made["metadata"].get("ownerReferences"), None);
    for written in [taken_over, updated] {
        assert_eq!(written["metadata"]["ownerReferences"], owners);
        assert_eq!(written["metadata"]["name"], "n");
        let patch = patch(&existing, &written);
        assert!(patch.is_none_or(|patch| patch["metadata"].get("ownerReferences").is_none()));
    }
}

#[test]
fn a_new_object_has_all_that_the_kubelets_has() {
    let written = made(&settings(), &facts(), at(0));
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": "2026-11-23T20:00:00Z", "lastTransitionTime": "2026-11-23T20:00:00Z",
        })
    };
    let expected = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": "n",
            "labels": {
                "beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": "n", "kubernetes.io/os": "linux", "own": "1",
            },
            "annotations": { "volumes.kubernetes.io/controller-managed-attach-detach": "true" },
        },
        "spec": { "taints": [{ "key": "t", "effect": "NoSchedule" }], "providerID": "kind://x" },
        "status": {
            "addresses": [{ "type": "InternalIP", "address": "10.0.0.7" }, { "type": "Hostname", "address": "n" }],
            "capacity": {
                "cpu": "2", "memory": "24686168Ki", "ephemeral-storage": "1Gi", "pods": "110",
                "hugepages-2Mi": "6Mi", "hugepages-1Gi": "0",
            },
            "allocatable": {
                "cpu": "1900m", "memory": "1Gi", "ephemeral-storage": "966367642", "pods": "110",
                "hugepages-2Mi": "6Mi", "hugepages-1Gi": "0",
            },
            "nodeInfo": {
                "machineID": "m", "systemUUID": "s", "bootID": "b1", "kernelVersion": "6.18", "osImage": "Debian",
                "containerRuntimeVersion": "containerd://2.3.4", "kubeletVersion": "v1.36.3", "kubeProxyVersion": "",
                "operatingSystem": "linux", "architecture": "amd64",
            },
            "daemonEndpoints": { "kubeletEndpoint": { "Port": 10250 } },
            "declaredFeatures": [
                "ExtendWebSocketsToKubelet",
                "InPlacePodLevelResourcesVerticalScaling",
                "InPlacePodVerticalScalingInitContainers",
                "RestartAllContainersOnContainerExits",
            ],
            "runtimeHandlers": [{ "name": "", "features": { "recursiveReadOnlyMounts": false, "userNamespaces": false } }],
            "features": { "supplementalGroupsPolicy": true },
            "conditions": [
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
                condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
            ],
        },
    });
    assert_eq!(written.object, expected);
    assert_eq!(
        reasons(&written.notes),
        ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"]
    );
    assert_eq!(written.notes[0].message, "Node n status is now: NodeHasSufficientMemory");
    assert!(written.faults.is_empty());
}

#[test]
fn swap_is_told_where_there_is_some() {
    for (swap_bytes, told) in [(0, None), (1 << 30, Some(json!({ "capacity": 1_073_741_824 })))] {
        let facts = Facts { machine: Machine { swap_bytes, ..facts().machine }, ..facts() };
        let object = made(&settings(), &facts, at(0)).object;
        assert_eq!(object.pointer("/status/nodeInfo/swap"), told.as_ref(), "{swap_bytes}");
    }
}

#[test]
fn an_external_cloud_keeps_pods_away_and_its_addresses() {
    let ip = "10.0.0.9".parse().unwrap();
    let with = |ips| NodeSettings { cloud: Cloud::External, ips, taints: Vec::new(), ..settings() };
    let fresh = made(&with(NodeIps::Unset), &facts(), at(0)).object;
    let taint = json!([{ "key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule" }]);
    assert_eq!(fresh["spec"]["taints"], taint);
    assert_eq!(fresh["status"]["addresses"], json!([{ "type": "Hostname", "address": "n" }]));

    let given = with(NodeIps::Given(ip, None));
    let mut object = made(&given, &facts(), at(0)).object;
    let annotation =
        |object: &Value| object["metadata"]["annotations"]["alpha.kubernetes.io/provided-node-ip"].clone();
    assert_eq!(annotation(&object), "10.0.0.9");
    let clouds = json!([{ "type": "ExternalIP", "address": "192.0.2.1" }, { "type": "InternalIP", "address": "10.0.0.9" }]);
    object["status"]["addresses"] = clouds.clone();
    assert_eq!(updated(&given, &facts(), &object, at(1)).object["status"]["addresses"], clouds);
    assert_eq!(annotation(&updated(&settings(), &facts(), &object, at(1)).object), Value::Null);
}

#[test]
fn addresses_are_chosen_as_the_kubelet_does() {
    let ip = |text: &str| text.parse::<std::net::IpAddr>().unwrap();
    let found = |named: &[&str], routed: &[&str]| Found {
        given_faults: Vec::new(),
        named: named.iter().map(|text| ip(text)).collect(),
        routed: routed.iter().map(|text| ip(text)).collect(),
    };
    let v6 = NodeIps::OfFamily(Family::V6);
    for (name, ips, found, expected) in [
        ("n", NodeIps::Unset, found(&[], &["10.0.0.7", "fd00::7"]), vec!["10.0.0.7"]),
        ("n", NodeIps::Unset, found(&["fd00::1", "10.0.0.1"], &["10.0.0.7"]), vec!["10.0.0.1"]),
        ("n", NodeIps::Unset, found(&["fd00::1"], &["10.0.0.7"]), vec!["fd00::1"]),
        ("n", v6, found(&[], &["10.0.0.7", "fd00::7"]), vec!["fd00::7"]),
        ("n", NodeIps::OfFamily(Family::V4), found(&[], &["fd00::7"]), vec!["fd00::7"]),
        ("10.9.9.9", NodeIps::Unset, found(&["10.0.0.1"], &["10.0.0.7"]), vec!["10.9.9.9"]),
        ("n", NodeIps::Given(ip("fd00::2"), None), found(&[], &["10.0.0.7"]), vec!["fd00::2"]),
        (
            "n",
            NodeIps::Given(ip("10.1.1.1"), Some(ip("fd00::2"))),
            found(&[], &[]),
            vec!["10.1.1.1", "fd00::2"],
        ),
    ] {
        let all = addresses::addresses(name, ips, Cloud::None, &found).unwrap();
        let (last, internal) = all.split_last().unwrap();
        assert_eq!(*last, ("Hostname", name.to_owned()));
        let internal: Vec<_> = internal.iter().map(|(kind, ip)| (*kind, ip.as_str())).collect();
        let expected: Vec<_> = expected.into_iter().map(|ip| ("InternalIP", ip)).collect();
        assert_eq!(internal, expected, "{name} {ips:?}");
    }
    addresses::addresses("n", NodeIps::Unset, Cloud::None, &found(&[], &[])).unwrap_err();
    for (given, is_local, usable) in [
        ("10.0.0.7", Some(true), true),
        ("10.0.0.7", Some(false), false),
        ("10.0.0.7", None, false),
        ("127.0.0.1", Some(true), false),
        ("169.254.1.1", Some(true), false),
        ("fe80::1", Some(true), false),
        ("224.0.0.1", Some(true), false),
        ("0.0.0.0", Some(true), false),
        ("fd00::1", Some(true), true),
    ] {
        assert_eq!(given_fault(ip(given), is_local).is_none(), usable, "{given}");
    }
}

#[test]
fn a_given_address_that_is_not_the_machines_leaves_those_of_before() {
    let object = made(&settings(), &facts(), at(0)).object;
    let given = NodeSettings { ips: NodeIps::Given("10.0.0.9".parse().unwrap(), None), ..settings() };
    let mut facts = facts();
    facts.found.given_faults =
        vec!["node IP: \"10.0.0.9\" not found in the host's network interfaces".to_owned()];
    let written = updated(&given, &facts, &object, at(1));
    assert_eq!(written.object["status"]["addresses"], object["status"]["addresses"]);
    assert_eq!(written.faults.len(), 1);
}

/// An object on which others have put what is theirs.
fn shared() -> Value {
    let mut object = made(&settings(), &facts(), at(0)).object;
    object["metadata"]["uid"] = json!("u1");
    object["metadata"]["labels"]["theirs"] = json!("x");
    object["metadata"]["annotations"]["theirs"] = json!("x");
    object["spec"]["taints"] = json!([{ "key": "theirs", "effect": "NoExecute" }]);
    object["spec"]["podCIDR"] = json!("10.244.0.0/24");
    let conditions = object["status"]["conditions"].as_array_mut().unwrap();
    conditions.insert(0, json!({ "type": "NetworkUnavailable", "status": "False", "reason": "FlannelIsUp" }));
    object["status"]["capacity"]["example.com/gpu"] = json!("3");
    object["status"]["allocatable"]["example.com/gone"] = json!("1");
    object["status"]["volumesAttached"] = json!([{ "name": "v", "devicePath": "" }]);
    object
}

#[test]
fn what_others_have_put_on_the_node_stays() {
    let before = shared();
    for write in [updated, taken_over] {
        let after = write(&settings(), &facts(), &before, at(5)).object;
        assert_eq!(after["spec"], before["spec"]);
        assert_eq!(after["metadata"], before["metadata"]);
        assert_eq!(after["status"]["conditions"][0], before["status"]["conditions"][0]);
        assert_eq!(after["status"]["volumesAttached"], before["status"]["volumesAttached"]);
        assert_eq!(after["status"]["allocatable"]["example.com/gpu"], "3");
        assert_eq!(after["status"]["allocatable"].get("example.com/gone"), None);
        let patch = patch(&before, &after).unwrap();
        assert_eq!(patch.get("spec"), None);
        assert_eq!(patch.get("metadata"), None);
        let touched = patch["status"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(touched, ["allocatable", "conditions"]);
        let kinds: Vec<_> =
            patch["status"]["conditions"].as_array().unwrap().iter().map(|one| one["type"].clone()).collect();
        assert_eq!(kinds, ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]);
    }
}

#[test]
fn a_heartbeat_alone_is_no_change_and_patches_nothing_but_times() {
    let before = made(&settings(), &facts(), at(0)).object;
    let after = updated(&settings(), &facts(), &before, at(10));
    assert!(!differs(&before, &after.object));
    assert!(after.notes.is_empty());
    let beat = |kind: &str| json!({ "type": kind, "lastHeartbeatTime": "2026-11-23T20:00:10Z" });
    let beats = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"].map(beat);
    let expected = json!({ "status": { "conditions": beats } });
    assert_eq!(patch(&before, &after.object), Some(expected));
    assert_eq!(patch(&before, &before), None);
}

#[test]
fn taking_over_mends_default_labels_the_annotation_and_huge_pages() {
    let mut before = shared();
    before["metadata"]["labels"]["kubernetes.io/hostname"] = json!("old");
    before["metadata"]["labels"]["own"] = json!("changed by somebody");
    before["status"]["capacity"]["hugepages-32Mi"] = json!("0");
    before["status"]["allocatable"]["hugepages-32Mi"] = json!("0");
    let by_node = NodeSettings { attached_by: AttachedBy::Node, ..settings() };
    let after = taken_over(&by_node, &facts(), &before, at(1)).object;
    let patch = patch(&before, &after).unwrap();
    assert_eq!(
        patch["metadata"],
        json!({
            "labels": { "kubernetes.io/hostname": "n" },
            "annotations": { "volumes.kubernetes.io/controller-managed-attach-detach": null },
        })
    );
    assert_eq!(patch["status"]["capacity"], json!({ "hugepages-32Mi": null }));
    let later = updated(&by_node, &facts(), &before, at(1)).object;
    assert_eq!(later["metadata"], before["metadata"], "labels but those of the machine are looked at once");
}

/// No plugin of an earlier kubelet is there any more; what others count stays where it is known to be theirs.
#[test]
fn taking_over_leaves_no_devices_of_plugins_that_are_gone() {
    let mut before = shared();
    for amounts in ["capacity", "allocatable"] {
        before["status"][amounts]["vendor.com/gpu"] = json!("2");
        before["status"][amounts]["example.com/theirs"] = json!("3");
    }
    let registered: BTreeSet<String> = ["vendor.com/gpu".to_owned(), "vendor.com/other".to_owned()].into();
    for (devices, gpus, theirs) in [
        (Devices::default(), "0", "0"),
        (Devices { has_checkpoint: true, registered: BTreeSet::new() }, "2", "3"),
        (Devices { has_checkpoint: true, registered }, "0", "3"),
    ] {
        let facts = Facts { machine: Machine { devices: devices.clone(), ..facts().machine }, ..facts() };
        let after = taken_over(&settings(), &facts, &before, at(1)).object;
        for amounts in ["capacity", "allocatable"] {
            let shown = &after["status"][amounts];
            let is = (&shown["vendor.com/gpu"], &shown["example.com/theirs"], &shown["vendor.com/other"]);
            assert_eq!(is, (&json!(gpus), &json!(theirs), &Value::Null), "{amounts} {devices:?}");
        }
        assert_eq!(after["status"]["capacity"]["cpu"], json!("2"));
        let later = updated(&settings(), &facts, &before, at(1)).object;
        assert_eq!(later["status"]["capacity"]["vendor.com/gpu"], json!("2"), "it is looked at once");
    }
}

/// Of volumes that a kubelet had told of, the controller would detach none for as long as they are named.
#[test]
fn volumes_in_use_are_those_of_now() {
    let mut before = made(&settings(), &facts(), at(0)).object;
    before["status"]["volumesInUse"] = json!(["kubernetes.io/csi/driver^a"]);
    let none = Facts { volumes_in_use: Some(Vec::new()), ..facts() };
    for write in [updated, taken_over] {
        let after = write(&settings(), &none, &before, at(0)).object;
        assert_eq!(patch(&before, &after), Some(json!({ "status": { "volumesInUse": null } })));
        assert!(differs(&before, &after));
        let unknown = write(&settings(), &facts(), &before, at(0)).object;
        assert_eq!(patch(&before, &unknown), None);
    }
}

#[test]
fn addresses_are_replaced_as_a_whole() {
    let before = made(&settings(), &facts(), at(0)).object;
    let mut facts = facts();
    facts.found.routed = vec!["10.0.0.8".parse().unwrap()];
    let after = updated(&settings(), &facts, &before, at(0)).object;
    let expected = json!({ "status": { "addresses": [
        { "type": "InternalIP", "address": "10.0.0.8" }, { "type": "Hostname", "address": "n" }, { "$patch": "replace" },
    ] } });
    assert_eq!(patch(&before, &after), Some(expected));
}

#[test]
fn ready_follows_the_network_and_keeps_the_time_of_its_transition() {
    let down = Facts { network: Some(Err("cni plugin not initialized".to_owned())), ..facts() };
    let first = made(&settings(), &down, at(0)).object;
    let ready = |object: &Value| object["status"]["conditions"][3].clone();
    assert_eq!(ready(&first)["status"], "False");
    assert_eq!(ready(&first)["reason"], "KubeletNotReady");
    assert_eq!(
        ready(&first)["message"],
        "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady \
         message:Network plugin returns error: cni plugin not initialized"
    );
    let still = updated(&settings(), &down, &first, at(10)).object;
    assert_eq!(ready(&still)["lastTransitionTime"], "2026-11-23T20:00:00Z");
    let up = updated(&settings(), &facts(), &still, at(20));
    assert_eq!(reasons(&up.notes), ["NodeReady"]);
    assert_eq!(ready(&up.object)["lastTransitionTime"], "2026-11-23T20:00:20Z");
    let again = updated(&settings(), &down, &up.object, at(30));
    assert_eq!(reasons(&again.notes), ["NodeNotReady"]);
    assert!(differs(&up.object, &again.object));
}

#[test]
fn a_silent_containerd_is_told_after_30_s_and_in_the_words_of_the_pleg_after_3_min() {
    let since = at(0).mono;
    let health = Health { version: Some("2".to_owned()), silent_since: Some(since) };
    let down = "container runtime is down";
    let pleg =
        |ago: &str| format!("PLEG is not healthy: pleg was last seen active {ago} ago; threshold is 3m0s");
    for (seconds, errors, next) in [
        (0, vec![], 30),
        (29, vec![], 30),
        (30, vec![down.to_owned()], 180),
        (179, vec![down.to_owned()], 180),
        (180, vec![down.to_owned(), pleg("3m0s")], 240),
        (239, vec![down.to_owned(), pleg("3m0s")], 240),
        (3700, vec![down.to_owned(), pleg("1h1m0s")], 3720),
    ] {
        let now = at(seconds).mono;
        assert_eq!(health.errors(now), errors, "{seconds}");
        assert_eq!(health.next_change(now), Some(since + Duration::from_secs(next)), "{seconds}");
    }
    let object = made(&settings(), &Facts { health, ..facts() }, at(200)).object;
    assert_eq!(object["status"]["conditions"][3]["message"], format!("[{down}, {}]", pleg("3m0s")));
    let fine = Health { version: Some("2".to_owned()), silent_since: None };
    assert_eq!((fine.errors(since), fine.next_change(since)), (Vec::new(), None));
    let unasked = Health::default().errors(since);
    assert_eq!(unasked, ["container runtime status check may not have completed yet"]);
}

/// What is said where containerd and where the network have not answered.
const UNASKED: &str = "container runtime status check may not have completed yet";
const UNKNOWN: &str = "network state unknown";

/// Facts of an agent that began at 0, by who has answered it since.
fn heard(from: &str) -> Facts {
    let health = if from.contains("containerd") { facts().health } else { Health::default() };
    Facts { health, network: from.contains("network").then_some(Ok(())), ..facts() }
}

#[test]
fn a_node_that_was_ready_stays_so_while_nothing_but_first_answers_is_missing() {
    let silent = |version: Option<&str>| Health {
        version: version.map(str::to_owned),
        silent_since: Some(at(0).mono),
    };
    let unwired = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady \
                   message:Network plugin returns error: no";
    let [both, down] = [format!("[{UNASKED}, {UNKNOWN}]"), format!("[container runtime is down, {UNKNOWN}]")];
    let before = made(&settings(), &facts(), at(0)).object;
    for (facts, seconds, why) in [
        (heard("containerd"), 0, None),
        (heard("containerd"), 229, None),
        (heard("containerd"), 230, Some(UNKNOWN)),
        (heard("network"), 0, None),
        (heard("network"), 29, None),
        (heard("network"), 30, Some(UNASKED)),
        (heard("nobody"), 29, None),
        (heard("nobody"), 30, Some(both.as_str())),
        (Facts { health: silent(None), ..heard("network") }, 29, None),
        (Facts { health: silent(None), ..heard("network") }, 30, Some(UNASKED)),
        (Facts { health: silent(Some("v2")), ..heard("containerd") }, 29, None),
        (Facts { health: silent(Some("v2")), ..heard("containerd") }, 30, Some(down.as_str())),
        // What is known counts at once.
        (Facts { network: Some(Err("no".to_owned())), ..heard("containerd and network") }, 0, Some(unwired)),
    ] {
        let written = updated(&settings(), &facts, &before, at(seconds));
        let ready = &written.object["status"]["conditions"][3];
        let state = if why.is_none() { "True" } else { "False" };
        let message = why.unwrap_or("kubelet is posting ready status");
        assert_eq!((&ready["status"], &ready["message"]), (&json!(state), &json!(message)), "{seconds}");
        let told = if why.is_none() { vec![] } else { vec!["NodeNotReady"] };
        assert_eq!(reasons(&written.notes), told, "{seconds} {message}");
    }
    let mut bare = before.clone();
    bare["status"]["capacity"] = json!({});
    let machine = Machine { capacity: Quantities::default(), ..facts().machine };
    let unready = updated(&settings(), &Facts { machine, ..heard("containerd") }, &bare, at(0)).object;
    let needs = format!("[{UNKNOWN}, missing node capacity for resources: cpu, memory, ephemeral-storage]");
    assert_eq!(unready["status"]["conditions"][3]["message"], needs);

    let held = updated(&settings(), &heard("containerd"), &before, at(10)).object;
    assert!(!differs(&before, &held), "it is reported when it is time, and lives");
    assert_eq!(held["status"]["conditions"][3]["lastHeartbeatTime"], "2026-11-23T20:00:10Z");
}

#[test]
fn a_node_is_ready_once_its_csi_node_is_there() {
    const AT_FIRST: &str = "CSINode is not yet initialized";
    let asked = |fault: Option<&str>| CsiNode::Asked {
        owner: "u1".to_owned(),
        since: at(0).mono,
        fault: fault.map(str::to_owned),
    };
    let there = |owner: &str| CsiNode::There { owner: owner.to_owned() };
    let refused = "failed to initialize CSINode: error updating CSINode annotation: timed out waiting for the \
                   condition; caused by: no";
    let mut was_ready = made(&settings(), &facts(), at(0)).object;
    was_ready["metadata"]["uid"] = json!("u1");
    let mut was_not = was_ready.clone();
    was_not["status"]["conditions"][3]["status"] = json!("False");
    for (before, csi_node, seconds, why) in [
        (&was_not, CsiNode::Unasked, 0, Some(AT_FIRST)),
        (&was_not, asked(None), 0, Some(AT_FIRST)),
        (&was_not, asked(Some("no")), 0, Some(refused)),
        (&was_not, there("u0"), 0, Some(AT_FIRST)),
        (&was_not, there("u1"), 0, None),
        (&was_ready, CsiNode::Unasked, 99, None),
        (&was_ready, asked(None), 29, None),
        (&was_ready, asked(None), 30, Some(AT_FIRST)),
        (&was_ready, asked(Some("no")), 29, None),
        (&was_ready, asked(Some("no")), 30, Some(refused)),
        (&was_ready, there("u0"), 99, None),
        (&was_ready, there("u1"), 99, None),
    ] {
        let facts = Facts { csi_node, ..facts() };
        let object = updated(&settings(), &facts, before, at(seconds)).object;
        let ready = &object["status"]["conditions"][3];
        let state = if why.is_none() { "True" } else { "False" };
        let message = why.unwrap_or("kubelet is posting ready status");
        assert_eq!((&ready["status"], &ready["message"]), (&json!(state), &json!(message)), "{seconds}");
    }
    // A new object has a UID only once it is made.
    let unready = made(&settings(), &Facts { csi_node: there("u1"), ..facts() }, at(0)).object;
    assert_eq!(unready["status"]["conditions"][3]["message"], AT_FIRST);
    let unwired = Facts { csi_node: asked(None), network: Some(Err("no".to_owned())), ..facts() };
    let unwired = updated(&settings(), &unwired, &was_not, at(0)).object;
    assert_eq!(
        unwired["status"]["conditions"][3]["message"],
        format!(
            "[container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady \
             message:Network plugin returns error: no, {AT_FIRST}]"
        )
    );
}

#[test]
fn no_other_node_is_ready_before_the_first_answers() {
    let ready = |object: &Value| object["status"]["conditions"][3].clone();
    let was_ready = made(&settings(), &facts(), at(0)).object;
    let (mut unknown, mut of_another_boot) = (was_ready.clone(), was_ready.clone());
    unknown["status"]["conditions"][3]["status"] = json!("Unknown");
    of_another_boot["status"]["nodeInfo"]["bootID"] = json!("b0");
    let down = Facts { network: Some(Err("no".to_owned())), ..facts() };
    let was_not = made(&settings(), &down, at(0)).object;
    let heard = heard("containerd");
    for write in [updated, taken_over] {
        for before in [&unknown, &of_another_boot, &was_not] {
            let after = write(&settings(), &heard, before, at(1)).object;
            let told = ready(&after);
            assert_eq!((&told["status"], &told["message"]), (&json!("False"), &json!(UNKNOWN)), "{before}");
            let later = write(&settings(), &heard, &after, at(2)).object;
            assert_eq!(ready(&later)["status"], "False", "in this boot it was not ready: {before}");
        }
        assert_eq!(ready(&write(&settings(), &heard, &was_ready, at(1)).object)["status"], "True");
    }
    assert_eq!(ready(&made(&settings(), &heard, at(0)).object)["message"], UNKNOWN);
}

#[test]
fn the_node_is_looked_at_when_first_answers_are_due() {
    let due = |seconds| Some(at(seconds).mono);
    let csi = |facts: Facts| {
        let asked = CsiNode::Asked { owner: "u1".to_owned(), since: at(0).mono, fault: None };
        Facts { csi_node: asked, ..facts }
    };
    for (facts, seconds, next) in [
        (heard("containerd and network"), 0, None),
        (heard("containerd"), 0, due(230)),
        (heard("containerd"), 230, None),
        (heard("network"), 0, due(30)),
        (heard("nobody"), 0, due(30)),
        (heard("nobody"), 30, due(230)),
        (heard("nobody"), 230, None),
        (csi(heard("containerd and network")), 0, due(30)),
        (csi(heard("containerd and network")), 30, None),
        (csi(heard("containerd")), 29, due(30)),
    ] {
        assert_eq!(next_change(&facts, at(seconds).mono), next, "{seconds} {:?}", facts.network);
    }
    let health = Health { version: Some("v2".to_owned()), silent_since: due(100) };
    let facts = Facts { health, ..heard("containerd") };
    assert_eq!(next_change(&facts, at(101).mono), due(130), "containerd has fallen silent");
}

#[test]
fn another_boot_is_told_once() {
    let before = made(&settings(), &facts(), at(0)).object;
    let mut facts = facts();
    facts.machine.boot_id = "b2".to_owned();
    let after = updated(&settings(), &facts, &before, at(1));
    assert_eq!(reasons(&after.notes), ["Rebooted"]);
    assert_eq!(after.notes[0].message, "Node n has been rebooted, boot id: b2");
    assert_eq!(after.notes[0].severity, Severity::Warning);
    assert!(updated(&settings(), &facts, &after.object, at(2)).notes.is_empty());
}

#[test]
fn the_largest_images_are_told_with_five_names_at_most() {
    let image = |id: &str, bytes, tags: usize| Image {
        id: id.to_owned(),
        digests: vec![format!("{id}@sha256:1")],
        tags: (0..tags).map(|tag| format!("{id}:{tag}")).collect(),
        bytes,
    };
    let facts = Facts { images: Some(vec![image("a", 5, 1), image("b", 9, 9), image("c", 5, 1)]), ..facts() };
    let object = made(&settings(), &facts, at(0)).object;
    let expected = json!([
        { "names": ["b@sha256:1", "b:0", "b:1", "b:2", "b:3"], "sizeBytes": 9 },
        { "names": ["c@sha256:1", "c:0"], "sizeBytes": 5 },
    ]);
    assert_eq!(object["status"]["images"], expected);
    let unknown = Facts { images: None, ..facts.clone() };
    assert_eq!(updated(&settings(), &unknown, &object, at(1)).object["status"]["images"], expected);
    let none = Facts { images: Some(Vec::new()), ..facts };
    assert_eq!(updated(&settings(), &none, &object, at(1)).object["status"].get("images"), None);
}

#[test]
fn reports_come_after_changes_and_then_at_a_time_of_their_own() {
    let every = Duration::from_secs(300);
    let mut report = Report::default();
    let now = |seconds| at(seconds).mono;
    assert_eq!(report.reason(false, now(0)), Some(Reason::Due), "the first after a start");
    report.sent(Reason::Due, every, 0.0, now(0));
    assert_eq!(report.reason(false, now(149)), None);
    assert_eq!(report.reason(true, now(149)), Some(Reason::Changed));
    assert_eq!(report.reason(false, now(150)), Some(Reason::Due));
    report.sent(Reason::Due, every, 0.9, now(150));
    assert_eq!(report.reason(false, now(449)), None, "no more by chance");
    assert_eq!(report.reason(false, now(450)), Some(Reason::Due));
    report.sent(Reason::Changed, every, 1.0, now(450));
    assert_eq!(report.reason(false, now(899)), None);
    assert_eq!(report.reason(false, now(900)), Some(Reason::Due));
    let second = Duration::from_secs(1);
    assert_eq!((jittered(second, 0.0), jittered(second, 1.0)), (second, Duration::from_millis(1040)));
    let period = 10 * second;
    let pauses = [1, 2, 3, 6, 7, 99].map(|failures| backoff(failures, Duration::ZERO, period).as_millis());
    assert_eq!(pauses, [200, 400, 800, 6400, 7000, 7000]);
    let asked = [0, 1, 9, 60].map(|asked| backoff(4, asked * second, period).as_millis());
    assert_eq!(asked, [1600, 1600, 9000, 10_000], "a server may ask for more than a lease lives");
}

#[test]
fn closing_a_node_to_pods_is_told() {
    let closed = json!({ "spec": { "unschedulable": true } });
    let open = json!({ "spec": {} });
    let told = |before, object| {
        let (is_closed, note) = schedulable_note(&settings(), before, object);
        (is_closed, note.map(|note| note.reason))
    };
    assert_eq!(told(None, &open), (false, None));
    assert_eq!(told(None, &closed), (true, Some("NodeNotSchedulable".to_owned())));
    assert_eq!(told(Some(true), &closed), (true, None));
    assert_eq!(told(Some(true), &open), (false, Some("NodeSchedulable".to_owned())));
    let mut cgroups = CgroupSettings::new(CgroupVersion::V1, CgroupDriver::Cgroupfs, "/");
    cgroups.kubepods.pids_max = Some(1);
    let node_resolv_conf = ResolvConf::Unreadable("open /r: gone".to_owned());
    let dns = DnsSettings { node_resolv_conf, ..DnsSettings::default() };
    let told = starting(&cgroups, UNSWAPPED, &dns, "/r");
    assert_eq!(
        reasons(&told),
        ["Starting", "CgroupV1", "NodeAllocatableEnforced", "CheckLimitsForResolvConf"]
    );
    let cgroups = CgroupSettings::new(CgroupVersion::V2, CgroupDriver::Cgroupfs, "/");
    assert_eq!(starting(&cgroups, UNSWAPPED, &DnsSettings::default(), "").len(), 1);
}

/// A machine without swap.
const UNSWAPPED: MemoryVolumes = MemoryVolumes { is_swap_on: false, has_noswap: false };

#[test]
fn volumes_in_memory_that_may_be_swapped_out_are_told() {
    let cgroups = CgroupSettings::new(CgroupVersion::V2, CgroupDriver::Cgroupfs, "/");
    for (is_swap_on, has_noswap, is_told) in
        [(false, false, false), (false, true, false), (true, true, false), (true, false, true)]
    {
        let memory = MemoryVolumes { is_swap_on, has_noswap };
        let told = starting(&cgroups, memory, &DnsSettings::default(), "");
        let expected: &[&str] = if is_told { &["PossibleMemoryBackedVolumesOnDisk"] } else { &[] };
        assert_eq!(reasons(&told)[1..], *expected, "{memory:?}");
        assert!(told[1..].iter().all(|note| note.severity == Severity::Warning), "{told:?}");
    }
}
