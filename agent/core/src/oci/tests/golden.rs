//! One spec from beginning to end, beside the one in `minimal.json`.

use serde_json::Value;

use super::Bench;

/// Sets have no order of their own.
fn sorted(mut spec: Value) -> Value {
    if let Some(sets) = spec["process"]["capabilities"].as_object_mut() {
        for set in sets.values_mut().filter_map(Value::as_array_mut) {
            set.sort_by_key(ToString::to_string);
        }
    }
    spec
}

#[test]
fn a_minimal_container() {
    let spec = sorted(serde_json::to_value(Bench::new().spec()).unwrap());
    let expected: Value = serde_json::from_str(include_str!("minimal.json")).unwrap();
    assert_eq!(spec, expected, "\n{}", serde_json::to_string_pretty(&spec).unwrap());
}

#[test]
fn labels_and_log_file() {
    let plan = Bench::new().plan().unwrap();
    let labels: Vec<_> = plan.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(
        labels,
        [
            "berth.dev/attempt=2",
            "berth.dev/container-hash=ab12",
            "io.kubernetes.container.name=web",
            "io.kubernetes.pod.name=web-node-1",
            "io.kubernetes.pod.namespace=shop",
            "io.kubernetes.pod.uid=0b1c-2d",
        ]
    );
    assert_eq!(plan.log_path, "/var/log/pods/shop_web-node-1_0b1c-2d/web/2.log");
}

/// Runtimes and containerd act on some names: systemd properties, hooks, log URIs, CDI devices. What a pod or an image
/// writes there stays with the pod and the image.
#[test]
fn cve_2024_3154_cve_2022_0532_and_cve_2026_53488_nothing_foreign_in_labels_and_annotations() {
    let plain = Bench::new().plan().unwrap();
    let hostile = Bench::with(|bench| {
        for name in [
            "org.systemd.property.ExecStartPre",
            "run.oci.hooks.stdout",
            "run.oci.systemd.subgroup",
            "containerd.io/restart.loguri",
            "cdi.k8s.io/x",
            "io.kubernetes.cri.container-type",
        ] {
            bench.pod.annotations.insert(name.into(), "'binary:///bin/sh'".into());
            bench.pod.labels.insert(name.into(), "binary:///bin/sh".into());
        }
    });
    assert_eq!(hostile.plan().unwrap(), plain);
}
