//! The programs of a control plane and how they are called: with kubeadm's arguments, but for what would only cost time here.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::pki::Pki;
use crate::{components, vm};

/// Where etcd listens.
const ETCD: &str = "http://127.0.0.1:2379";
const ETCD_PEERS: &str = "http://127.0.0.1:2380";
/// Services have addresses of this network.
pub(super) const SERVICES: &str = "10.96.0.0/12";
const SERVICES_V6: &str = "fd00:10:96::/112";
/// Nodes have parts of this network for their pods.
pub(super) const PODS: &str = "10.244.0.0/16";
const PODS_V6: &str = "fd00:10:244::/56";

/// The network of services in a cluster whose API server has this address.
pub(super) fn services(address: IpAddr) -> &'static str {
    if address.is_ipv4() { SERVICES } else { SERVICES_V6 }
}

/// The network of pods in a cluster whose API server has this address.
pub(super) fn pods(address: IpAddr) -> &'static str {
    if address.is_ipv4() { PODS } else { PODS_V6 }
}

/// What goes into the audit log, and how much of it. Everything that nodes write is there whole.
pub(super) const AUDIT_POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- {level: None, nonResourceURLs: [/readyz*, /livez*, /healthz*]}
- level: RequestResponse
  verbs: [create, update, patch, delete]
  resources:
  - {group: '', resources: [pods, pods/status, nodes, nodes/status, events]}
  - {group: coordination.k8s.io, resources: [leases]}
  - {group: events.k8s.io, resources: [events]}
- level: Metadata
";

/// A program that lives for as long as a test: it does without the collector of garbage, which takes a fifth of its processor time,
/// until it has this much of it. Guests have less memory.
pub(super) fn of_a_lab(program: PathBuf) -> Command {
    let mut command = Command::new(program);
    if !vm::is_guest() {
        command.env("GOGC", "off").env("GOMEMLIMIT", "1GiB");
    }
    command
}

/// etcd with its data below a directory, which is in memory: it waits for no disk.
pub(super) fn etcd(dir: &Path) -> Result<Command> {
    let mut command = of_a_lab(components::binary("etcd")?);
    command
        .args(["--name", "lab", "--unsafe-no-fsync", "--log-level", "warn", "--data-dir"])
        .arg(dir.join("etcd"))
        .args(["--listen-client-urls", ETCD, "--advertise-client-urls", ETCD])
        .args(["--listen-peer-urls", ETCD_PEERS, "--initial-advertise-peer-urls", ETCD_PEERS])
        .args(["--initial-cluster", &format!("lab={ETCD_PEERS}")]);
    Ok(command)
}

/// Set, it has every cluster have the older API server.
const OLD: &str = "BERTH_TEST_OLD_API_SERVER";

/// The API server, with Node and RBAC authorization.
pub(super) fn api_server(dir: &Path, pki: &Pki, address: IpAddr, port: u16) -> Result<Command> {
    let mut command = of_a_lab(match std::env::var_os(OLD) {
        None => components::binary("kube-apiserver")?,
        Some(_) => components::binary_in(components::OLD_API_SERVER, components::OLD_API_SERVER)?,
    });
    command.args([
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--enable-bootstrap-token-auth=true",
        "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        "--profiling=false",
        // Every event of it is in the file when the answer is out.
        "--audit-log-mode=blocking",
        "--allow-privileged=true",
    ]);
    command.arg(format!("--advertise-address={address}")).arg(format!("--secure-port={port}"));
    command
        .arg(format!("--etcd-servers={ETCD}"))
        .arg(format!("--service-cluster-ip-range={}", services(address)));
    for (flag, file) in [
        ("client-ca-file", "ca.crt"),
        ("kubelet-client-certificate", "apiserver-kubelet-client.crt"),
        ("kubelet-client-key", "apiserver-kubelet-client.key"),
        ("proxy-client-cert-file", "front-proxy-client.crt"),
        ("proxy-client-key-file", "front-proxy-client.key"),
        ("requestheader-client-ca-file", "front-proxy-ca.crt"),
        ("service-account-key-file", "sa.pub"),
        ("service-account-signing-key-file", "sa.key"),
        ("tls-cert-file", "apiserver.crt"),
        ("tls-private-key-file", "apiserver.key"),
    ] {
        command.arg(format!("--{flag}={}", pki.file(file).display()));
    }
    command.arg(format!("--audit-policy-file={}", dir.join("audit-policy.yaml").display()));
    command.arg(format!("--audit-log-path={}", dir.join(super::AUDIT).display()));
    Ok(command)
}

/// All controllers, those that are off by default and that kubeadm turns on among them.
pub(super) fn controllers(pki: &Pki, address: IpAddr) -> Result<Command> {
    let mut command = of_kubeconfig("kube-controller-manager", pki, "controller-manager.conf")?;
    command.args([
        "--controllers=*,bootstrapsigner,tokencleaner",
        "--use-service-account-credentials=true",
        "--allocate-node-cidrs=true",
        // By default it takes five seconds to ask for what it needs to begin.
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
    ]);
    command
        .arg(format!("--cluster-cidr={}", pods(address)))
        .arg(format!("--service-cluster-ip-range={}", services(address)));
    for (flag, file) in [
        ("cluster-signing-cert-file", "ca.crt"),
        ("cluster-signing-key-file", "ca.key"),
        ("root-ca-file", "ca.crt"),
        ("service-account-private-key-file", "sa.key"),
    ] {
        command.arg(format!("--{flag}={}", pki.file(file).display()));
    }
    Ok(command)
}

/// The scheduler.
pub(super) fn scheduler(pki: &Pki) -> Result<Command> {
    of_kubeconfig("kube-scheduler", pki, "scheduler.conf")
}

fn of_kubeconfig(program: &str, pki: &Pki, kubeconfig: &str) -> Result<Command> {
    let mut command = of_a_lab(components::binary(program)?);
    let kubeconfig = pki.kubeconfig(kubeconfig);
    for flag in ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"] {
        command.arg(format!("--{flag}={}", kubeconfig.display()));
    }
    // There is one of each.
    command.args(["--bind-address=127.0.0.1", "--leader-elect=false", "--profiling=false"]);
    Ok(command)
}
