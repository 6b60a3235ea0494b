//! A network that a DaemonSet brings to every node, as flannel and kindnet do: a pod on the host's network installs plugins and a
//! configuration of the addresses that the node was given, and takes the configuration back when it ends.

use serde_json::{Value, json};

use super::images;
use crate::cni::{BRIDGE, NETWORK};

/// Where networks and their plugins are on a machine about which nobody says otherwise.
pub const NETWORKS: &str = "/etc/cni/net.d";
/// The plugins.
pub const PLUGINS: &str = "/opt/cni/bin";
/// The file that it writes, the last thing that it does.
pub const FILE: &str = "/etc/cni/net.d/10-lab.conflist";

/// As long as a file of this name is beside it, it is not written.
pub const HOLD: &str = "/etc/cni/net.d/hold";
/// The plugin of [`gated`], which waits at [`GATE`].
pub const GATED: &str = "/opt/cni/bin/gated";
/// While there is a pipe of this name, an ADD waits until somebody writes to it.
pub const GATE: &str = "/run/lab-gate";
/// A line for each call: the version of the plugin, the verb and the arguments.
pub const CALLS: &str = "/run/lab-calls";

/// Each file appears whole, but for one that is written in place when it has no users, as some installers do. The address of the API server answers once kube-proxy has run. With a flag about its request
/// kubectl would not take itself to be in a cluster.
const INSTALL: &str = r#"set -e
for plugin in /plugins/*; do
    name="${plugin##*/}"
    cp "$plugin" "/host/bin/.$name.part"
    mv -f "/host/bin/.$name.part" "/host/bin/$name"
done
if [ -n "$GATED" ]; then
    echo "$GATED" >/host/bin/.gated.part
    chmod 755 /host/bin/.gated.part
    mv -f /host/bin/.gated.part /host/bin/gated
fi
until cat /plugins/portmap >/host/bin/portmap; do sleep 0.1; done
echo "plugins are installed"
subnet=
until [ -n "$subnet" ]; do
    subnet=`timeout 5 kubectl get node "$NODE" --output jsonpath={.spec.podCIDR} --cache-dir /tmp` || sleep 0.2
done
echo "this node has $subnet"
while [ -e /host/net.d/hold ]; do sleep 0.1; done
echo "$CONFIGURATION" | sed "s|SUBNET|$subnet|" >/host/net.d/.part
mv -f /host/net.d/.part /host/net.d/10-lab.conflist
echo "the network is there"
"#;

/// Ends as soon as it is told to, which has to be before it is killed.
const STAY: &str = r#"trap 'rm -f /host/net.d/10-lab.conflist; exit 0' TERM; sleep infinity & wait"#;

/// A bridge that can be made to take its time. A script that runs goes on when another takes its name.
const SLOW: &str = r#"#!/bin/sh
echo "VERSION $CNI_COMMAND $CNI_ARGS" >>CALLS
[ "$CNI_COMMAND" != ADD ] || [ ! -p GATE ] || read -r _ <GATE
exec "${0%/*}/bridge"
"#;

/// The objects as one list.
#[must_use]
pub fn objects() -> String {
    list(&daemon_set(images::NETWORK, "bridge", ""))
}

/// The same with a plugin that can be made to take its time, of the first version or of the next.
#[must_use]
pub fn gated(is_next: bool) -> String {
    let (image, version) = if is_next { (images::NEXT_NETWORK, "2") } else { (images::NETWORK, "1") };
    let script = SLOW.replace("VERSION", version).replace("CALLS", CALLS).replace("GATE", GATE);
    list(&daemon_set(image, "gated", &script))
}

fn list(daemon_set: &Value) -> String {
    let (account, role, binding) = rights();
    json!({ "apiVersion": "v1", "kind": "List", "items": [account, role, binding, daemon_set] }).to_string()
}

/// A service account that may read nodes.
fn rights() -> (Value, Value, Value) {
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": { "name": "network", "namespace": "kube-system" } });
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": "network" },
        "rules": [{ "apiGroups": [""], "resources": ["nodes"], "verbs": ["get"] }] });
    let binding = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": "network" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "network" },
        "subjects": [{ "kind": "ServiceAccount", "name": "network", "namespace": "kube-system" }] });
    (account, role, binding)
}

fn daemon_set(image: &str, first: &str, gated: &str) -> Value {
    let labels = json!({ "app": "network" });
    let shell = |name: &str, script: &str| json!({ "name": name, "image": image, "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", script] });
    let mut install = shell("install", INSTALL);
    install["env"] = json!([
        { "name": "NODE", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } },
        { "name": "CONFIGURATION", "value": configuration(first).to_string() },
        { "name": "GATED", "value": gated },
    ]);
    install["volumeMounts"] = json!([
        { "name": "plugins", "mountPath": "/host/bin" },
        { "name": "networks", "mountPath": "/host/net.d" },
    ]);
    let mut main = shell("main", STAY);
    main["volumeMounts"] = json!([{ "name": "networks", "mountPath": "/host/net.d" }]);
    let of_host = |name: &str, path: &str| json!({ "name": name, "hostPath": { "path": path, "type": "DirectoryOrCreate" } });
    let spec = json!({
        "hostNetwork": true,
        "priorityClassName": "system-node-critical",
        "serviceAccountName": "network",
        "terminationGracePeriodSeconds": 60,
        "tolerations": [{ "operator": "Exists" }],
        "initContainers": [install],
        "containers": [main],
        "volumes": [of_host("plugins", PLUGINS), of_host("networks", NETWORKS)],
    });
    json!({ "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": { "name": "network", "namespace": "kube-system", "labels": labels },
        "spec": { "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": spec } } })
}

/// `SUBNET` stands for the addresses of a node.
fn configuration(first: &str) -> Value {
    let bridge = json!({ "type": first, "bridge": BRIDGE, "isGateway": true, "ipMasq": true, "hairpinMode": true,
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": "SUBNET" }]], "routes": [{ "dst": "0.0.0.0/0" }] } });
    let ports = json!({ "type": "portmap", "capabilities": { "portMappings": true } });
    json!({ "cniVersion": "1.0.0", "name": NETWORK, "plugins": [bridge, ports] })
}
