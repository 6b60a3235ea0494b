//! What the settings say of the node in its cluster.
//!
//! Sources: `cmd/kubelet/app/options/options.go` `ValidateKubeletFlags`, `k8s.io/kubelet/pkg/apis/well_known_labels.go`,
//! `pkg/kubelet/apis/config/validation/validation.go` (taints).

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use berth_core::cluster::{
    node::{AttachedBy, Cloud, NodeSettings, Taint},
    proxy::Proxies,
    throttle::Rate,
};

use super::{
    Cluster, EventRate, Facts, KubeletConfiguration, KubeletFlags, RegistryAccounts, RequestRate,
    ServingCertificate, Settings, credential_providers,
    resolve::{duration, node_ips},
};
use crate::document::{Fault, Faults, Node, Place};

/// Labels of Kubernetes that a node may give itself, beside those below [`OWN_PREFIXES`].
const OWN_LABELS: [&str; 11] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];
const OWN_PREFIXES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
/// `--cert-dir` when it is not given, whatever the root directory is.
const CERT_DIR: &str = "/var/lib/kubelet/pki";
/// Longest name of a label without its prefix, and longest value.
const LABEL_MAX: usize = 63;

/// What 0 requests in a second, and 0 at once, stand for (`DefaultQPS`, `DefaultBurst` of `staging/src/k8s.io/client-go/rest/config.go`).
const QPS: u32 = 5;
const BURST: u32 = 10;

/// What 0 stands for as the time from one look at the node to the next, which a request about it has as well.
const UPDATE: Duration = Duration::from_secs(1);

/// What is wrong with the settings of the node.
pub(super) fn check(kubelet: &KubeletConfiguration, tree: &Node, flags: &KubeletFlags) -> Vec<Fault> {
    let mut faults: Vec<_> = labels(flags).err().into_iter().collect();
    if !["", "external"].contains(&flags.cloud_provider.as_str()) {
        let message = format!("`{}` is neither `external` nor empty", flags.cloud_provider);
        faults.push(of_flag("--cloud-provider", message));
    }
    let is_given = |file: &Option<String>| file.as_deref().is_some_and(|file| !file.is_empty());
    for (field, given, other, missing) in [
        ("tlsCertFile", &kubelet.tls_cert_file, "tlsPrivateKeyFile", &kubelet.tls_private_key_file),
        ("tlsPrivateKeyFile", &kubelet.tls_private_key_file, "tlsCertFile", &kubelet.tls_cert_file),
    ] {
        if is_given(given) && !is_given(missing) {
            faults.push(tree.fault(field, format!("needs {other}")));
        }
    }
    for (index, taint) in kubelet.register_with_taints.iter().flatten().enumerate() {
        let field = |name: &str| format!("registerWithTaints[{index}].{name}");
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        if let Err(why) = label_name(&text(&taint.key)) {
            faults.push(tree.fault(&field("key"), why));
        }
        if let Err(why) = label_value(&text(&taint.value)) {
            faults.push(tree.fault(&field("value"), why));
        }
        let effect = text(&taint.effect);
        if !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect.as_str()) {
            let message = format!("`{effect}` is not one of `NoSchedule`, `PreferNoSchedule`, `NoExecute`");
            faults.push(tree.fault(&field("effect"), message));
        }
    }
    faults
}

impl Settings {
    /// The cluster that the node is of, if it has one.
    pub(super) fn cluster(&self, facts: &Facts) -> Result<Option<Cluster>, Fault> {
        let Some(kubeconfig) = self.flags.kubeconfig.clone() else { return Ok(None) };
        let (kubelet, flags) = (&self.kubelet, &self.flags);
        let processors = facts.capacity.cpu_milli.unwrap_or(0) / 1000;
        let per_core = u64::from(count(kubelet.pods_per_core)) * processors;
        let pods_max = match u32::try_from(per_core).unwrap_or(u32::MAX) {
            0 => count(kubelet.max_pods),
            few => few.min(count(kubelet.max_pods)),
        };
        let has_server = kubelet.enable_server != Some(false);
        let port = kubelet.port.filter(|_| has_server).and_then(|port| u16::try_from(port).ok());
        let by_controller = kubelet.enable_controller_attach_detach != Some(false);
        let is_external = flags.cloud_provider == "external";
        let node = NodeSettings {
            name: self.node_name(&facts.hostname)?,
            labels: labels(flags)?,
            taints: taints(kubelet),
            provider_id: kubelet.provider_id.clone().unwrap_or_default(),
            registers: kubelet.register_node != Some(false),
            cloud: if is_external { Cloud::External } else { Cloud::None },
            attached_by: if by_controller { AttachedBy::Controller } else { AttachedBy::Node },
            ips: node_ips(flags)?,
            pods_max,
            images_max: kubelet.node_status_max_images.and_then(|max| usize::try_from(max).ok()),
            port: port.unwrap_or(0),
            update_every: update_every(kubelet),
            report_every: duration(kubelet.node_status_report_frequency),
            lease_seconds: count(kubelet.node_lease_duration_seconds),
        };
        Ok(Some(Cluster {
            kubeconfig,
            bootstrap_kubeconfig: flags.bootstrap_kubeconfig.clone(),
            proxies: proxies(),
            cert_dir: self.cert_dir(),
            rotates: kubelet.rotate_certificates == Some(true),
            node,
            events: EventRate(rate(kubelet.event_record_qps, kubelet.event_burst)),
            requests: RequestRate(rate(kubelet.kube_api_qps, kubelet.kube_api_burst)),
        }))
    }
}

impl Settings {
    /// Accounts at registries that the node has (`DefaultDockerConfigJSONPaths` of `pkg/credentialprovider/config.go`).
    pub(super) fn registry_accounts(&self) -> Result<RegistryAccounts, Faults> {
        let KubeletFlags { root_dir, provider_config, provider_bin_dir, .. } = &self.flags;
        let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
        let below = |home: &PathBuf| home.join(".docker");
        let dirs = |home: Option<PathBuf>, last: &str| {
            [Some(root_dir.clone()), home, Some(PathBuf::from(last))].into_iter().flatten().collect()
        };
        let providers = match (provider_config, provider_bin_dir) {
            (Some(config), Some(bin_dir)) => credential_providers::read(config, bin_dir)?,
            (None, None) => Vec::new(),
            (Some(_), None) | (None, Some(_)) => {
                let why = "--image-credential-provider-config and --image-credential-provider-bin-dir need each other";
                return Err(of_flag("--image-credential-provider-config", why.to_owned()).into());
            }
        };
        Ok(RegistryAccounts {
            json_dirs: dirs(home.as_ref().map(below), "/.docker"),
            plain_dirs: dirs(home, "/"),
            providers,
        })
    }

    fn cert_dir(&self) -> PathBuf {
        self.flags.cert_dir.clone().unwrap_or_else(|| PathBuf::from(CERT_DIR))
    }

    /// Where the certificate of the node's server comes from.
    pub(super) fn serving(&self) -> Option<ServingCertificate> {
        let kubelet = &self.kubelet;
        if kubelet.enable_server == Some(false) {
            return None;
        }
        let dir = self.cert_dir();
        if kubelet.server_tls_bootstrap == Some(true) {
            return Some(ServingCertificate::OfCluster { dir });
        }
        let certificate = self.path("tlsCertFile", kubelet.tls_cert_file.as_deref());
        let key = self.path("tlsPrivateKeyFile", kubelet.tls_private_key_file.as_deref());
        Some(match certificate.zip(key) {
            Some((certificate, key)) => ServingCertificate::Files { certificate, key },
            None => ServingCertificate::SelfSigned { dir },
        })
    }

    /// Where the agent says that it lives.
    pub(super) fn healthz(&self) -> Option<SocketAddr> {
        let port =
            self.kubelet.healthz_port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0)?;
        let address = self.kubelet.healthz_bind_address.as_deref()?.parse::<IpAddr>().ok()?;
        Some((address, port).into())
    }
}

/// Proxies of the environment; names in capitals count more.
fn proxies() -> Proxies {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let either = |name: &str| variable(name).or_else(|| variable(&name.to_lowercase())).unwrap_or_default();
    Proxies { https: either("HTTPS_PROXY"), http: either("HTTP_PROXY"), no_proxy: either("NO_PROXY") }
}

fn update_every(kubelet: &KubeletConfiguration) -> Duration {
    let every = duration(kubelet.node_status_update_frequency);
    if every.is_zero() { UPDATE } else { every }
}

fn rate(per_second: Option<i32>, burst: Option<i32>) -> Rate {
    let or = |value, default| match count(value) {
        0 => default,
        given => given,
    };
    Rate { per_second: or(per_second, QPS), burst: or(burst, BURST) }
}

fn count(value: Option<i32>) -> u32 {
    value.and_then(|value| u32::try_from(value).ok()).unwrap_or(0)
}

fn taints(kubelet: &KubeletConfiguration) -> Vec<Taint> {
    let all = kubelet.register_with_taints.iter().flatten();
    all.map(|taint| Taint {
        key: taint.key.clone().unwrap_or_default(),
        value: taint.value.clone().unwrap_or_default(),
        effect: taint.effect.clone().unwrap_or_default(),
    })
    .collect()
}

/// `--node-labels`, checked; a name alone has an empty value (`ConfigurationMap` of `component-base/cli/flag`).
pub(super) fn labels(flags: &KubeletFlags) -> Result<BTreeMap<String, String>, Fault> {
    let written = flags.node_labels.iter().flat_map(|list| list.split(',')).map(str::trim);
    let mut labels = BTreeMap::new();
    for label in written.filter(|label| !label.is_empty()) {
        let fault = |why: String| of_flag("--node-labels", why);
        let (name, value) = label.split_once('=').unwrap_or((label, ""));
        let (name, value) = (name.trim(), value.trim());
        label_name(name).map_err(fault)?;
        label_value(value).map_err(fault)?;
        if !may_be_own(name) {
            return Err(fault(format!(
                "`{name}` is Kubernetes' own, and no node may give it to itself: names with `kubernetes.io` or `k8s.io` \
                 must begin with one of {}, or be one of {}",
                OWN_PREFIXES.join(", "),
                OWN_LABELS.join(", ")
            )));
        }
        labels.insert(name.to_owned(), value.to_owned());
    }
    Ok(labels)
}

/// Whether a node may have it without asking anybody (`isKubernetesLabel`, `IsKubeletLabel`).
fn may_be_own(name: &str) -> bool {
    let prefix = name.split_once('/').map_or("", |(prefix, _)| prefix);
    let is_below = |domain: &str| prefix == domain || prefix.ends_with(&format!(".{domain}"));
    let is_reserved = is_below("kubernetes.io") || is_below("k8s.io");
    !is_reserved || OWN_LABELS.contains(&name) || OWN_PREFIXES.into_iter().any(is_below)
}

/// `IsQualifiedName`.
fn label_name(name: &str) -> Result<(), String> {
    let (prefix, own) = name.split_once('/').map_or((None, name), |(prefix, own)| (Some(prefix), own));
    if prefix.is_some_and(|prefix| !crate::manifest::is_dns_subdomain(prefix)) {
        return Err(format!("`{name}`: what is before the `/` is not a DNS name"));
    }
    if own.is_empty() || !is_label_text(own) {
        return Err(format!(
            "`{name}` is not the name of a label: letters, digits, `-`, `_` and `.`, beginning and ending with a letter or \
             digit, {LABEL_MAX} at most"
        ));
    }
    Ok(())
}

/// `IsValidLabelValue`.
fn label_value(value: &str) -> Result<(), String> {
    if is_label_text(value) {
        return Ok(());
    }
    Err(format!(
        "`{value}` is not the value of a label: letters, digits, `-`, `_` and `.`, beginning and ending with a letter or digit, \
         {LABEL_MAX} at most"
    ))
}

fn is_label_text(text: &str) -> bool {
    let is_end = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= LABEL_MAX
        && is_end(bytes.first())
        && is_end(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

fn of_flag(flag: &str, message: String) -> Fault {
    Fault { place: Some(Place { file: flag.into(), line: 0 }), field: String::new(), message }
}
