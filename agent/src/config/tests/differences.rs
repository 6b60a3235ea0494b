//! `docs/differences.md` names what is not acted on, all of it and nothing else.

use std::collections::BTreeSet;

use super::*;
use crate::config::kubelet::ACTED_ON;

const PAGE: &str = include_str!("../../../../docs/differences.md");
/// Fields of `KubeletConfiguration` of `k8s.io/kubelet` 0.36.3 (`config/v1beta1/types.go`).
const FIELDS: &str = include_str!("fields.txt");
/// Flags that `kubelet --help` of 1.36.3 shows.
const FLAGS: &str = include_str!("flags.txt");
/// Flags that every program has.
const OF_ALL: [&str; 2] = ["help", "version"];

/// The first cells of the rows below a heading.
fn rows(heading: &str) -> BTreeSet<&'static str> {
    let section = PAGE.split("\n## ").find(|section| section.starts_with(heading)).unwrap();
    let rows: Vec<_> = section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(name, why)| {
            assert!(why.trim_matches([' ', '|']).len() > 10, "{name} has no reason");
            name.trim_start_matches("--")
        })
        .collect();
    let names: BTreeSet<_> = rows.iter().copied().collect();
    assert_eq!(rows, names.iter().copied().collect::<Vec<_>>(), "once each, by name");
    names
}

#[test]
fn every_field_is_acted_on_or_named_with_its_reason() {
    let acted_on: BTreeSet<_> = ACTED_ON.iter().copied().collect();
    let all: BTreeSet<_> = FIELDS.lines().collect();
    let named = rows("Fields of KubeletConfiguration that are not acted on");
    assert_eq!(named, &all - &acted_on);
    assert_eq!(&acted_on - &all, BTreeSet::new(), "the kubelet has them too");
    let otherwise = rows("Fields that are acted on otherwise");
    assert_eq!(&otherwise - &acted_on, BTreeSet::new());
    for field in all {
        // A wrong value is told otherwise than an unknown field.
        let fault = load_text(&format!("{field}: [[]]\n"), &[]).unwrap_err();
        assert!(!fault.contains("unknown field"), "{fault}");
    }
}

#[test]
fn every_flag_of_the_kubelet_is_taken_and_named_where_it_does_nothing() {
    let mut passive = BTreeSet::new();
    for flag in FLAGS.lines().filter(|flag| !OF_ALL.contains(flag)) {
        let flags = KubeletFlags::parse(&[&format!("--{flag}=0")]);
        let flags = flags.unwrap_or_else(|error| panic!("--{flag}: {error}"));
        if flags.passive == [format!("--{flag}")] {
            passive.insert(flag);
        }
    }
    assert_eq!(rows("Flags"), passive);
    let other = KubeletFlags::parse(&["--network-plugin=cni"]);
    assert!(other.is_err(), "the kubelet does not know it either");
}

/// What those pass who start kubelets, each as it is found there.
const LINES: [(&str, &str); 7] = [
    (
        "kubeadm",
        "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf \
             --container-runtime-endpoint=unix:///var/run/containerd/containerd.sock \
             --pod-infra-container-image=registry.k8s.io/pause:3.10 --hostname-override=node-1 \
             --register-with-taints=node-role.kubernetes.io/control-plane=:NoSchedule",
    ),
    (
        "kind",
        "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf \
             --container-runtime-endpoint=unix:///run/containerd/containerd.sock --node-ip=172.18.0.2 --node-labels= \
             --provider-id=kind://docker/kind/kind-control-plane --runtime-cgroups=/system.slice/containerd.service",
    ),
    (
        "k3s",
        "--config-dir=/var/lib/rancher/k3s/agent/etc/kubelet.conf.d --kubeconfig=/var/lib/rancher/k3s/agent/kubelet.kubeconfig \
             --read-only-port=0 --root-dir=/var/lib/kubelet --cert-dir=/var/lib/rancher/k3s/agent/pki \
             --hostname-override=k3s --node-ip=10.0.0.2 --cloud-provider=external --runtime-cgroups=/k3s \
             --node-labels= --image-credential-provider-bin-dir=/var/lib/rancher/credentialprovider/bin \
             --image-credential-provider-config=/var/lib/rancher/credentialprovider/config.yaml",
    ),
    (
        "EKS",
        "--cloud-provider=external --hostname-override=i-0123456789abcdef0 --kubeconfig=/var/lib/kubelet/kubeconfig \
             --image-credential-provider-bin-dir=/etc/eks/image-credential-provider \
             --image-credential-provider-config=/etc/eks/image-credential-provider/config.json --node-ip=192.168.10.20 \
             --node-labels=eks.amazonaws.com/nodegroup=ng,eks.amazonaws.com/nodegroup-image=ami-0123456789abcdef0 --v=2",
    ),
    (
        "AKS",
        "--enable-server --node-labels=agentpool=nodepool1,kubernetes.azure.com/mode=system --v=2 \
             --volume-plugin-dir=/etc/kubernetes/volumeplugins --kubeconfig /var/lib/kubelet/kubeconfig \
             --bootstrap-kubeconfig /var/lib/kubelet/bootstrap-kubeconfig --address=0.0.0.0 --anonymous-auth=false \
             --authentication-token-webhook=true --authorization-mode=Webhook --cgroups-per-qos=true \
             --client-ca-file=/etc/kubernetes/certs/ca.crt --cloud-config= --cloud-provider=external \
             --cluster-dns=10.0.0.10 --cluster-domain=cluster.local --container-log-max-size=50M \
             --enforce-node-allocatable=pods --event-qps=0 \
             --eviction-hard=memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,pid.available<2000 \
             --feature-gates=RotateKubeletServerCertificate=true --image-gc-high-threshold=85 \
             --image-gc-low-threshold=80 --kube-reserved=cpu=140m,memory=1638Mi,pid=1000 --max-pods=110 \
             --node-status-update-frequency=10s --pod-manifest-path=/etc/kubernetes/manifests --pod-max-pids=-1 \
             --protect-kernel-defaults=true --read-only-port=0 --resolv-conf=/run/systemd/resolve/resolv.conf \
             --rotate-certificates=true --rotate-server-certificates=true --serialize-image-pulls=false \
             --streaming-connection-idle-timeout=4h --tls-cert-file=/etc/kubernetes/certs/kubeletserver.crt \
             --tls-private-key-file=/etc/kubernetes/certs/kubeletserver.key \
             --tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_RSA_WITH_AES_128_GCM_SHA256 \
             --container-runtime-endpoint=unix:///run/containerd/containerd.sock \
             --runtime-cgroups=/system.slice/containerd.service --runtime-request-timeout=15m",
    ),
    (
        "GKE",
        "--v=2 --cloud-provider=external --experimental-mounter-path=/home/kubernetes/containerized_mounter/mounter \
             --cert-dir=/var/lib/kubelet/pki/ --kubeconfig=/var/lib/kubelet/kubeconfig --max-pods=110 \
             --volume-plugin-dir=/home/kubernetes/flexvolume --node-status-max-images=25 \
             --container-runtime-endpoint=unix:///run/containerd/containerd.sock \
             --runtime-cgroups=/system.slice/containerd.service --registry-qps=10 --registry-burst=20 \
             --image-credential-provider-config=/srv/cri_auth_config.yaml \
             --image-credential-provider-bin-dir=/home/kubernetes/bin \
             --node-labels=cloud.google.com/gke-nodepool=default-pool,topology.kubernetes.io/zone=a",
    ),
    (
        "kOps",
        "--authentication-token-webhook=true --authorization-mode=Webhook --cgroup-driver=systemd \
             --client-ca-file=/srv/kubernetes/ca.crt --cloud-provider=external --cluster-dns=100.64.0.10 \
             --cluster-domain=cluster.local --container-runtime-endpoint=unix:///run/containerd/containerd.sock \
             --enable-debugging-handlers=true \
             --eviction-hard=memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<10%,imagefs.inodesFree<5% \
             --hostname-override=i-0123456789abcdef0 --image-credential-provider-bin-dir=/opt/kops/bin \
             --image-credential-provider-config=/opt/kops/conf/ecr-credential-provider.yaml \
             --kubeconfig=/var/lib/kubelet/kubeconfig \
             --pod-manifest-path=/etc/kubernetes/manifests --protect-kernel-defaults=true \
             --tls-cert-file=/srv/kubernetes/kubelet-server.crt --tls-private-key-file=/srv/kubernetes/kubelet-server.key \
             --v=2 --volume-plugin-dir=/usr/libexec/kubernetes/kubelet-plugins/volume/exec/",
    ),
];

#[test]
fn what_others_start_kubelets_with_is_taken() {
    for (whose, line) in LINES {
        let parse =
            |words: &[&str]| KubeletFlags::parse(words).unwrap_or_else(|error| panic!("{whose}: {error}"));
        let words: Vec<_> = line.split_whitespace().collect();
        parse(&words);
        // What these name is there on their machines alone.
        let elsewhere = ["--image-credential-provider-", "--config-dir="];
        let is_here = |word: &&str| !elsewhere.iter().any(|flag| word.starts_with(flag));
        let flags = parse(&words.into_iter().filter(is_here).collect::<Vec<_>>());
        let settings = Settings::load(flags).unwrap_or_else(|faults| panic!("{whose}: {faults}"));
        let config = settings.resolve(&facts()).unwrap_or_else(|faults| panic!("{whose}: {faults}"));
        assert!(config.cluster.is_some(), "{whose}");
    }
}
