//! What kubeadm is told; JSON is YAML.

use serde_json::{Value, json};

use super::{AUDIT_DIR, AUDIT_POLICY, Join, NODE};
use crate::cluster::programs::{PODS, SERVICES};
use crate::cluster::{ADDRESS, AUDIT, PORT, TOKEN, VERSION};
use crate::containerd::SOCKET;
use crate::lab::World;

/// What every kubelet of a lab has to be told, whoever it is; outside of labs there is a machine for it alone.
pub(in crate::cluster) fn kubelet_configuration(world: Option<&World>) -> Value {
    let mut told = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "evictionHard": { "memory.available": "1Mi" },
    });
    if let Some(world) = world {
        told["cgroupDriver"] = json!("cgroupfs");
        told["cgroupRoot"] = json!(world.cgroup_root());
        told["enforceNodeAllocatable"] = json!([]);
        told["failCgroupV1"] = json!(false);
    }
    told
}

/// The limit of connections is the machine's, which no network namespace but the first can set.
pub(in crate::cluster) fn kube_proxy_configuration() -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "conntrack": { "maxPerCore": 0, "min": 0 },
    })
}

fn node_registration(node: &str) -> Value {
    json!({ "name": node, "criSocket": format!("unix://{SOCKET}"), "imagePullPolicy": "Never", "taints": [] })
}

pub(super) fn init(world: &World) -> [Value; 4] {
    let init = json!({
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "InitConfiguration",
        "localAPIEndpoint": { "advertiseAddress": ADDRESS, "bindPort": PORT },
        "nodeRegistration": node_registration(NODE),
        "bootstrapTokens": [{ "token": TOKEN }],
        "timeouts": timeouts(),
    });
    let cluster = json!({
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "ClusterConfiguration",
        "kubernetesVersion": VERSION,
        "encryptionAlgorithm": "ECDSA-P256",
        "networking": { "serviceSubnet": SERVICES, "podSubnet": PODS },
        "apiServer": {
            "extraArgs": [
                { "name": "audit-policy-file", "value": AUDIT_POLICY },
                { "name": "audit-log-path", "value": format!("{AUDIT_DIR}/{AUDIT}") },
                { "name": "audit-log-mode", "value": "blocking" },
            ],
            "extraVolumes": [
                volume("audit-policy", AUDIT_POLICY, "File", true),
                volume("audit-log", AUDIT_DIR, "Directory", false),
            ],
        },
    });
    [init, cluster, kubelet_configuration(Some(world)), kube_proxy_configuration()]
}

/// What of the machine the API server sees, at the same place.
fn volume(name: &str, path: &str, kind: &str, is_read_only: bool) -> Value {
    json!({ "name": name, "hostPath": path, "mountPath": path, "pathType": kind, "readOnly": is_read_only })
}

pub(super) fn join(join: &Join, node: &str) -> Value {
    let mut token = json!({ "apiServerEndpoint": join.api_server, "token": join.token });
    match &join.ca_hash {
        Some(hash) => token["caCertHashes"] = json!([hash]),
        None => token["unsafeSkipCAVerification"] = json!(true),
    }
    let mut registration = node_registration(node);
    let args = join.kubelet_args.iter().map(|(name, value)| json!({ "name": name, "value": value }));
    registration["kubeletExtraArgs"] = args.collect();
    json!({
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "JoinConfiguration",
        "nodeRegistration": registration,
        "discovery": { "bootstrapToken": token },
        "timeouts": timeouts(),
    })
}

/// Kubeadm gives the API server a minute for its first answers, which is short beside other tests.
fn timeouts() -> Value {
    json!({ "kubernetesAPICall": "3m", "etcdAPICall": "3m", "kubeletHealthCheck": "3m" })
}
