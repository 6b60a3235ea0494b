//! Pods that follow from a seed: fields put together by chance, such that an API server takes them.

use serde_json::{Map, Value, json};

use super::case::{Case, STAY, TELL, shell, with};

/// Numbers that follow from a seed (splitmix64).
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One of so many.
    fn below(&mut self, count: usize) -> usize {
        let count = u64::try_from(count.max(1)).unwrap_or(1);
        usize::try_from(self.number() % count).unwrap_or(0)
    }

    /// True in one of so many cases.
    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }
}

/// The pod of a seed.
#[must_use]
pub fn pod(seed: u64) -> Case {
    let mut dice = Dice(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
    let volumes = volumes(&mut dice);
    let policy = dice.of(&["Always", "Always", "OnFailure", "Never"]);
    let host_network = dice.one_in(12);
    let mut spec = json!({ "restartPolicy": policy, "volumes": volumes });
    let is_sized_as_a_whole = dice.one_in(10);
    let mut containers = Vec::new();
    for number in 0..=dice.below(3) {
        let name = ["main", "other", "third"][number];
        containers.push(main(&mut dice, name, &volumes, policy, number == 0));
    }
    let mut inits = Vec::new();
    for number in 0..dice.below(3) {
        inits.push(init(&mut dice, ["first", "second"][number], &volumes));
    }
    spec = with(spec, json!({ "containers": containers }));
    if !inits.is_empty() {
        spec["initContainers"] = json!(inits);
    }
    if is_sized_as_a_whole {
        spec["resources"] = json!({ "requests": { "cpu": "150m", "memory": "256Mi" }, "limits": { "cpu": "1", "memory": "512Mi" } });
    }
    if volumes.iter().any(has_token) {
        spec["serviceAccountName"] = json!("default");
        spec["automountServiceAccountToken"] = json!(false);
    }
    names(&mut dice, &mut spec, host_network);
    context(&mut dice, &mut spec, host_network);
    let is_alive = |one: &Value| one["command"][2].as_str().is_some_and(|script| script.ends_with(STAY));
    let dies =
        spec["containers"][0]["lifecycle"].is_null() && is_alive(&spec["containers"][0]) && dice.one_in(4);
    let case = Case::of(&format!("seed-{seed}"), spec);
    if dies { case.dies() } else { case }
}

fn volumes(dice: &mut Dice) -> Vec<Value> {
    let map = json!({ "name": "map", "items": [{ "key": "a", "path": "x/a" }, { "key": "b", "path": "b", "mode": 0o440 }] });
    let name = json!([{ "path": "name", "fieldRef": { "fieldPath": "metadata.name" } },
        { "path": "labels", "fieldRef": { "fieldPath": "metadata.labels" }, "mode": 0o400 }]);
    let kinds = [
        json!({ "emptyDir": {} }),
        json!({ "emptyDir": { "medium": "Memory", "sizeLimit": "4Mi" } }),
        json!({ "configMap": { "name": "map" } }),
        json!({ "configMap": map }),
        json!({ "configMap": { "name": "fixed", "defaultMode": 0o400 } }),
        json!({ "configMap": { "name": "none", "optional": true } }),
        json!({ "secret": { "secretName": "secret", "defaultMode": 0o440 } }),
        json!({ "downwardAPI": { "items": name } }),
        json!({ "hostPath": { "path": format!("{}/dir", super::case::HOST_DIR), "type": "Directory" } }),
        json!({ "projected": { "sources": [{ "configMap": { "name": "map" } }, { "secret": { "name": "secret" } }, { "downwardAPI": { "items": name } }] } }),
        json!({ "projected": { "sources": [{ "serviceAccountToken": { "path": "token" } }] } }),
    ];
    let count = dice.below(4);
    (0..count).map(|number| with(json!({ "name": format!("v{number}") }), dice.of(&kinds))).collect()
}

fn has_token(volume: &Value) -> bool {
    volume["projected"]["sources"][0]["serviceAccountToken"].is_object()
}

fn mounts(dice: &mut Dice, volumes: &[Value]) -> Vec<Value> {
    let mut mounts = Vec::new();
    for volume in volumes {
        if dice.one_in(4) {
            continue;
        }
        let Some(name) = volume["name"].as_str() else { continue };
        let mut mount = json!({ "name": name, "mountPath": format!("/v/{name}") });
        if dice.one_in(4) {
            mount["readOnly"] = json!(true);
        }
        // What another container has of the whole volume would hang on which is made first.
        if volume["emptyDir"].is_object() && name != "v0" {
            mount["subPath"] = json!("a/b");
        }
        if volume["hostPath"].is_object() && dice.one_in(3) {
            mount["mountPropagation"] = json!("HostToContainer");
        }
        mounts.push(mount);
    }
    mounts
}

fn env(dice: &mut Dice) -> Vec<Value> {
    let field =
        |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    let all = [
        json!({ "name": "A", "value": "one" }),
        json!({ "name": "B", "value": "$(A)/$(C)" }),
        json!({ "name": "C", "value": "$$(A)" }),
        json!({ "name": "EMPTY", "value": "" }),
        json!({ "name": "HOSTNAME", "value": "own" }),
        field("NAME", "metadata.name"),
        field("IP", "status.podIP"),
        field("NODE", "spec.nodeName"),
        field("TIER", "metadata.labels['tier']"),
        json!({ "name": "MAP", "valueFrom": { "configMapKeyRef": { "name": "map", "key": "a" } } }),
        json!({ "name": "SECRET", "valueFrom": { "secretKeyRef": { "name": "secret", "key": "password" } } }),
        json!({ "name": "NONE", "valueFrom": { "configMapKeyRef": { "name": "none", "key": "a", "optional": true } } }),
        json!({ "name": "CPU", "valueFrom": { "resourceFieldRef": { "resource": "limits.cpu", "divisor": "1m" } } }),
        json!({ "name": "MEMORY", "valueFrom": { "resourceFieldRef": { "resource": "requests.memory", "divisor": "1Ki" } } }),
    ];
    let mut env = Vec::new();
    for _ in 0..dice.below(6) {
        let one = dice.of(&all);
        // A name that is there twice is lawful, and warned of.
        if !env.contains(&one) {
            env.push(one);
        }
    }
    env
}

fn resources(dice: &mut Dice) -> Value {
    dice.of(&[
        json!({}),
        json!({}),
        json!({ "limits": { "cpu": "50m", "memory": "64Mi" } }),
        json!({ "requests": { "cpu": "30m" }, "limits": { "memory": "64Mi" } }),
        json!({ "requests": { "cpu": "10m", "memory": "16Mi" }, "limits": { "cpu": "200m", "memory": "96Mi" } }),
        json!({ "requests": { "memory": "20M", "ephemeral-storage": "1Mi" } }),
    ])
}

fn security(dice: &mut Dice) -> Value {
    let mut context = Map::new();
    let mut maybe = |dice: &mut Dice, name: &str, all: &[Value]| {
        if dice.one_in(4) {
            context.insert(name.to_owned(), dice.of(all));
        }
    };
    maybe(dice, "runAsUser", &[json!(0), json!(1000), json!(4321)]);
    maybe(dice, "readOnlyRootFilesystem", &[json!(true)]);
    maybe(dice, "allowPrivilegeEscalation", &[json!(false), json!(true)]);
    maybe(
        dice,
        "capabilities",
        &[
            json!({ "drop": ["ALL"] }),
            json!({ "add": ["NET_ADMIN"] }),
            json!({ "add": ["NET_BIND_SERVICE", "CHOWN"], "drop": ["ALL"] }),
            json!({ "drop": ["MKNOD", "SETUID"] }),
        ],
    );
    maybe(
        dice,
        "seccompProfile",
        &[
            json!({ "type": "RuntimeDefault" }),
            json!({ "type": "Unconfined" }),
            json!({ "type": "Localhost", "localhostProfile": "profiles/no-chmod.json" }),
        ],
    );
    // A group without a user is refused by runtimes.
    if context.contains_key("runAsUser") && dice.one_in(2) {
        context.insert("runAsGroup".to_owned(), json!(dice.of(&[0, 2000, 3000])));
    }
    Value::Object(context)
}

/// What all containers have alike.
fn common(dice: &mut Dice, volumes: &[Value]) -> Value {
    let mut fields = json!({
        "env": env(dice), "resources": resources(dice), "securityContext": security(dice), "volumeMounts": mounts(dice, volumes),
    });
    if dice.one_in(5) {
        fields["workingDir"] = json!(dice.of(&["/tmp", "/etc", "/new/dir"]));
    }
    if dice.one_in(5) {
        fields["envFrom"] = dice.of(&[
            json!([{ "configMapRef": { "name": "map" } }]),
            json!([{ "prefix": "P_", "secretRef": { "name": "secret" } }]),
            json!([{ "configMapRef": { "name": "none", "optional": true } }]),
        ]);
    }
    // Tokens of both nodes have another length, and messages a longest.
    if dice.one_in(6) && !volumes.iter().any(has_token) {
        fields["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    }
    if dice.one_in(10) {
        fields["tty"] = json!(true);
    }
    fields
}

/// Those that end badly would run again and again where the policy has it: they are left to pods that do not.
fn main(dice: &mut Dice, name: &str, volumes: &[Value], policy: &str, is_first: bool) -> Value {
    let fields = common(dice, volumes);
    let ends = match policy {
        "Never" => dice.of(&["exit 0", "exit 3", "echo why >/dev/termination-log; exit 1", STAY]),
        "OnFailure" => dice.of(&["exit 0", STAY]),
        _ => STAY,
    };
    let mut container = shell(name, &format!("{TELL}\n{ends}"), fields);
    if ends == STAY && dice.one_in(4) {
        let probe = dice.of(&[
            json!({ "exec": { "command": ["true"] }, "periodSeconds": 1, "timeoutSeconds": 30 }),
            json!({ "exec": { "command": ["sh", "-c", "exit 1"] }, "periodSeconds": 1, "timeoutSeconds": 30 }),
            json!({ "tcpSocket": { "port": 9 }, "periodSeconds": 1 }),
        ]);
        container["readinessProbe"] = probe;
    }
    if ends == STAY && !is_first && dice.one_in(5) {
        container["lifecycle"] = dice.of(&[
            json!({ "preStop": { "sleep": { "seconds": 1 } } }),
            json!({ "preStop": { "exec": { "command": ["true"] } } }),
            json!({ "postStart": { "exec": { "command": ["true"] } } }),
        ]);
    }
    container
}

fn init(dice: &mut Dice, name: &str, volumes: &[Value]) -> Value {
    let fields = common(dice, volumes);
    if dice.one_in(3) {
        return with(shell(name, &format!("{TELL}\n{STAY}"), fields), json!({ "restartPolicy": "Always" }));
    }
    shell(name, TELL, fields)
}

fn names(dice: &mut Dice, spec: &mut Value, host_network: bool) {
    if dice.one_in(5) {
        spec["hostname"] = json!("given");
    }
    if dice.one_in(6) {
        spec["subdomain"] = json!("sub");
        if dice.one_in(2) && !host_network {
            spec["setHostnameAsFQDN"] = json!(true);
        }
    }
    if dice.one_in(6) {
        spec["hostAliases"] = json!([{ "ip": "192.0.2.1", "hostnames": ["one", "uno"] }]);
    }
    if dice.one_in(4) {
        spec["dnsPolicy"] = json!(dice.of(&["Default", "ClusterFirst", "ClusterFirstWithHostNet"]));
    }
    if dice.one_in(5) {
        spec["dnsConfig"] = json!({ "nameservers": ["192.0.2.7"], "searches": ["a.example"], "options": [{ "name": "ndots", "value": "2" }] });
    }
    if dice.one_in(5) {
        spec["enableServiceLinks"] = json!(false);
    }
}

fn context(dice: &mut Dice, spec: &mut Value, host_network: bool) {
    if host_network {
        spec["hostNetwork"] = json!(true);
    }
    if dice.one_in(10) {
        spec["hostIPC"] = json!(true);
    }
    match dice.below(12) {
        0 => spec["hostPID"] = json!(true),
        1 => spec["shareProcessNamespace"] = json!(true),
        _ => {}
    }
    let mut context = Map::new();
    for (name, all) in [
        ("runAsUser", vec![json!(0), json!(1000)]),
        ("fsGroup", vec![json!(7000), json!(2000)]),
        ("supplementalGroups", vec![json!([4000, 5000]), json!([2000])]),
        ("seccompProfile", vec![json!({ "type": "RuntimeDefault" })]),
    ] {
        if dice.one_in(5) {
            context.insert(name.to_owned(), dice.of(&all));
        }
    }
    if context.contains_key("supplementalGroups") && dice.one_in(2) {
        context.insert("supplementalGroupsPolicy".to_owned(), json!("Strict"));
    }
    if !host_network && spec["hostIPC"].is_null() && dice.one_in(8) {
        context.insert("sysctls".to_owned(), json!([{ "name": "kernel.shm_rmid_forced", "value": "1" }]));
    }
    if !context.is_empty() {
        spec["securityContext"] = Value::Object(context);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_seed_gives_the_same_pod_and_others_give_others() {
        let all: BTreeSet<String> = (0..200).map(|seed| pod(seed).spec.to_string()).collect();
        assert!(all.len() > 195, "{}", all.len());
        assert_eq!(pod(7).spec, pod(7).spec);
    }

    #[test]
    fn every_field_occurs() {
        let all: String = (0..500).map(|seed| pod(seed).spec.to_string()).collect();
        for field in [
            "runAsUser",
            "runAsGroup",
            "fsGroup",
            "supplementalGroupsPolicy",
            "sysctls",
            "hostNetwork",
            "hostPID",
            "hostIPC",
            "shareProcessNamespace",
            "capabilities",
            "seccompProfile",
            "emptyDir",
            "configMap",
            "secret",
            "downwardAPI",
            "projected",
            "hostPath",
            "subPath",
            "envFrom",
            "readinessProbe",
            "preStop",
            "postStart",
            "initContainers",
            "dnsConfig",
            "hostAliases",
            "setHostnameAsFQDN",
            "\"restartPolicy\":\"Always\"",
            "tty",
            "workingDir",
            "terminationMessagePolicy",
        ] {
            assert!(all.contains(field), "{field}");
        }
    }
}
