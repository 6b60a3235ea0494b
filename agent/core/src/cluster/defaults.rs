//! Defaults of pods that the API server has not seen, by which readers see of them what they see of others.
//!
//! Source: `pkg/apis/core/v1/defaults.go` and `zz_generated.defaults.go`, which the kubelet applies to what it reads from files. The node
//! acts by the same defaults; sums of resources for pods as a whole are not among them.

use serde_json::{Map, Value, json};

/// Mode of files of volumes: 0644.
const MODE: u32 = 420;

/// Lists of containers in a spec.
const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// Fills in what a pod does not say. What is of another kind than it should be stays as it is.
pub fn fill_in(pod: &mut Value) {
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else { return };
    let fields = [
        ("dnsPolicy", json!("ClusterFirst")),
        ("restartPolicy", json!("Always")),
        ("securityContext", json!({})),
        ("terminationGracePeriodSeconds", json!(30)),
        ("schedulerName", json!("default-scheduler")),
        ("enableServiceLinks", json!(true)),
    ];
    fields.into_iter().for_each(|(field, value)| default(spec, field, value));
    let is_in_host_network = spec.get("hostNetwork") == Some(&Value::Bool(true));
    for (at, list) in CONTAINERS.into_iter().enumerate() {
        for one in objects(spec.get_mut(list)) {
            container(one, is_in_host_network);
            // Ephemeral containers have no resources of their own.
            if at < 2 {
                requests(one);
            }
        }
    }
    objects(spec.get_mut("volumes")).for_each(volume);
}

fn container(one: &mut Map<String, Value>, is_in_host_network: bool) {
    let image = one.get("image").and_then(Value::as_str).unwrap_or_default();
    let policy = if is_latest(image) { "Always" } else { "IfNotPresent" };
    default(one, "imagePullPolicy", json!(policy));
    default(one, "terminationMessagePath", json!("/dev/termination-log"));
    default(one, "terminationMessagePolicy", json!("File"));
    default(one, "resources", json!({}));
    for port in objects(one.get_mut("ports")) {
        default(port, "protocol", json!("TCP"));
        if is_in_host_network && let Some(number) = port.get("containerPort").cloned() {
            default(port, "hostPort", number);
        }
    }
    for variable in objects(one.get_mut("env")) {
        field_of(variable.get_mut("valueFrom"));
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(probe) = one.get_mut(probe).and_then(Value::as_object_mut) else { continue };
        let numbers =
            [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)];
        numbers.into_iter().for_each(|(field, number)| default(probe, field, json!(number)));
        handler(probe);
    }
    for hook in ["postStart", "preStop"] {
        let hook = one.get_mut("lifecycle").and_then(|lifecycle| lifecycle.get_mut(hook));
        hook.and_then(Value::as_object_mut).into_iter().for_each(handler);
    }
}

/// What a probe or a hook asks.
fn handler(of: &mut Map<String, Value>) {
    if let Some(get) = of.get_mut("httpGet").and_then(Value::as_object_mut) {
        default(get, "path", json!("/"));
        default(get, "scheme", json!("HTTP"));
    }
    if let Some(grpc) = of.get_mut("grpc").and_then(Value::as_object_mut)
        && !grpc.contains_key("service")
    {
        grpc.insert("service".to_owned(), json!(""));
    }
}

/// What is asked for is as much as is allowed, where nothing else is said.
fn requests(container: &mut Map<String, Value>) {
    let Some(resources) = container.get_mut("resources").and_then(Value::as_object_mut) else { return };
    let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned() else { return };
    default(resources, "requests", json!({}));
    let Some(requests) = resources.get_mut("requests").and_then(Value::as_object_mut) else { return };
    limits.into_iter().for_each(|(resource, limit)| default(requests, &resource, limit));
}

fn volume(one: &mut Map<String, Value>) {
    if one.iter().all(|(field, value)| field == "name" || value.is_null()) {
        one.insert("emptyDir".to_owned(), json!({}));
    }
    if let Some(path) = one.get_mut("hostPath").and_then(Value::as_object_mut)
        && !path.contains_key("type")
    {
        path.insert("type".to_owned(), json!(""));
    }
    for kind in ["secret", "configMap", "downwardAPI", "projected"] {
        let Some(source) = one.get_mut(kind).and_then(Value::as_object_mut) else { continue };
        // Mode 0 is a mode.
        if source.get("defaultMode").is_none_or(Value::is_null) {
            source.insert("defaultMode".to_owned(), json!(MODE));
        }
        objects(source.get_mut("items")).for_each(|item| api_version(item.get_mut("fieldRef")));
        for part in objects(source.get_mut("sources")) {
            if let Some(token) = part.get_mut("serviceAccountToken").and_then(Value::as_object_mut) {
                default(token, "expirationSeconds", json!(3600));
            }
            let items = part.get_mut("downwardAPI").and_then(|downward| downward.get_mut("items"));
            objects(items).for_each(|item| api_version(item.get_mut("fieldRef")));
        }
    }
}

fn field_of(source: Option<&mut Value>) {
    api_version(source.and_then(|source| source.get_mut("fieldRef")));
}

fn api_version(reference: Option<&mut Value>) {
    reference
        .and_then(Value::as_object_mut)
        .into_iter()
        .for_each(|field| default(field, "apiVersion", json!("v1")));
}

/// Whether an image has the tag `latest`, by word or for want of another. Source: `ParseImageName` of `pkg/util/parsers/parsers.go`.
fn is_latest(image: &str) -> bool {
    let name = image.rsplit('/').next().unwrap_or_default();
    if name.contains('@') {
        return name.split('@').next().is_some_and(|name| name.ends_with(":latest"));
    }
    name.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}

/// Sets a field that says nothing: what is empty or 0 is as good as not written.
fn default(of: &mut Map<String, Value>, field: &str, value: Value) {
    let says_nothing = of.get(field).is_none_or(|said| match said {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Number(number) => {
            value.is_number() && field != "terminationGracePeriodSeconds" && number.as_i64() == Some(0)
        }
        Value::Bool(_) | Value::Array(_) | Value::Object(_) => false,
    });
    if says_nothing {
        of.insert(field.to_owned(), value);
    }
}

/// The objects of a list.
fn objects(list: Option<&mut Value>) -> impl Iterator<Item = &mut Map<String, Value>> {
    list.and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(spec: Value) -> Value {
        let mut pod = json!({ "spec": spec });
        fill_in(&mut pod);
        pod["spec"].take()
    }

    #[test]
    fn a_pod_that_says_little_is_shown_with_what_it_runs_by() {
        let probe = json!({ "httpGet": { "port": 80 }, "periodSeconds": 5 });
        let spec = filled(json!({
            "hostNetwork": true,
            "containers": [{
                "name": "c", "image": "registry:5000/app", "livenessProbe": probe, "ports": [{ "containerPort": 80 }],
                "resources": { "limits": { "cpu": "1", "memory": "1Gi" }, "requests": { "cpu": "500m" } },
                "env": [{ "name": "A", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }],
                "lifecycle": { "preStop": { "httpGet": { "port": 1, "path": "/x" } } },
            }],
            "volumes": [
                { "name": "none" }, { "name": "dir", "hostPath": { "path": "/" } },
                { "name": "token", "projected": { "defaultMode": 0, "sources": [{ "serviceAccountToken": { "path": "t" } }] } },
            ],
        }));
        let expected = json!({
            "hostNetwork": true, "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "securityContext": {},
            "terminationGracePeriodSeconds": 30, "schedulerName": "default-scheduler", "enableServiceLinks": true,
            "containers": [{
                "name": "c", "image": "registry:5000/app", "imagePullPolicy": "Always",
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                "livenessProbe": {
                    "httpGet": { "port": 80, "path": "/", "scheme": "HTTP" }, "periodSeconds": 5, "timeoutSeconds": 1,
                    "successThreshold": 1, "failureThreshold": 3,
                },
                "ports": [{ "containerPort": 80, "hostPort": 80, "protocol": "TCP" }],
                "resources": {
                    "limits": { "cpu": "1", "memory": "1Gi" }, "requests": { "cpu": "500m", "memory": "1Gi" },
                },
                "env": [{ "name": "A", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name", "apiVersion": "v1" } } }],
                "lifecycle": { "preStop": { "httpGet": { "port": 1, "path": "/x", "scheme": "HTTP" } } },
            }],
            "volumes": [
                { "name": "none", "emptyDir": {} }, { "name": "dir", "hostPath": { "path": "/", "type": "" } },
                {
                    "name": "token",
                    "projected": {
                        "defaultMode": 0, "sources": [{ "serviceAccountToken": { "path": "t", "expirationSeconds": 3600 } }],
                    },
                },
            ],
        });
        assert_eq!(spec, expected);
        assert_eq!(filled(expected.clone()), expected, "what is said stays");
    }

    #[test]
    fn what_is_said_stays_also_where_it_is_nought() {
        let spec = filled(
            json!({ "terminationGracePeriodSeconds": 0, "enableServiceLinks": false, "dnsPolicy": "None" }),
        );
        assert_eq!(
            (&spec["terminationGracePeriodSeconds"], &spec["enableServiceLinks"], &spec["dnsPolicy"]),
            (&json!(0), &json!(false), &json!("None"))
        );
        for (image, policy) in [
            ("app", "Always"),
            ("app:latest", "Always"),
            ("app:1", "IfNotPresent"),
            ("host:5000/app:1", "IfNotPresent"),
            ("app@sha256:00", "IfNotPresent"),
            ("app:latest@sha256:00", "Always"),
        ] {
            let spec = filled(json!({ "containers": [{ "image": image }] }));
            assert_eq!(spec["containers"][0]["imagePullPolicy"], policy, "{image}");
        }
        // Whatever it is, it is shown.
        for odd in [json!({ "containers": 1, "volumes": [1, null] }), json!([]), json!(null)] {
            let mut pod = json!({ "spec": odd });
            fill_in(&mut pod);
            assert!(pod.get("spec").is_some());
        }
    }
}
