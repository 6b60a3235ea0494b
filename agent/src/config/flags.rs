//! The kubelet's flags.
//!
//! A flag that stands for a field of `KubeletConfiguration` becomes a node of the tree, laid over the files, so that it is
//! checked like the rest and its faults name it. Source: `cmd/kubelet/app/options/options.go` of Kubernetes 1.36.

use std::{ffi::OsString, path::PathBuf};

use clap::{
    Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, ValueHint, parser::ValueSource, value_parser,
};

use super::files;
use crate::document::{Entry, Node, Number, Place, Value};

/// How the text of a flag becomes a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FlagType {
    Text,
    Number,
    Switch,
    /// `a,b`
    List,
    /// `key=value,key=value`
    Map,
    /// `signal<value,signal<value`
    Signals,
    /// `gate=true,gate=false`
    Gates,
    /// `key=value:effect,key:effect`
    Taints,
}

use FlagType::{Gates, List, Map, Number as Integer, Signals, Switch, Taints, Text};

/// Flags that stand for a field: flag, field, kind.
const FIELDS: &[(&str, &str, FlagType)] = &[
    ("address", "address", Text),
    ("allowed-unsafe-sysctls", "allowedUnsafeSysctls", List),
    ("anonymous-auth", "authentication.anonymous.enabled", Switch),
    ("authentication-token-webhook", "authentication.webhook.enabled", Switch),
    ("authentication-token-webhook-cache-ttl", "authentication.webhook.cacheTTL", Text),
    ("authorization-mode", "authorization.mode", Text),
    ("authorization-webhook-cache-authorized-ttl", "authorization.webhook.cacheAuthorizedTTL", Text),
    ("authorization-webhook-cache-unauthorized-ttl", "authorization.webhook.cacheUnauthorizedTTL", Text),
    ("cgroup-driver", "cgroupDriver", Text),
    ("cgroup-root", "cgroupRoot", Text),
    ("cgroups-per-qos", "cgroupsPerQOS", Switch),
    ("client-ca-file", "authentication.x509.clientCAFile", Text),
    ("cluster-dns", "clusterDNS", List),
    ("cluster-domain", "clusterDomain", Text),
    ("container-log-max-files", "containerLogMaxFiles", Integer),
    ("container-log-max-size", "containerLogMaxSize", Text),
    ("container-runtime-endpoint", "containerRuntimeEndpoint", Text),
    ("contention-profiling", "enableContentionProfiling", Switch),
    ("cpu-cfs-quota", "cpuCFSQuota", Switch),
    ("cpu-cfs-quota-period", "cpuCFSQuotaPeriod", Text),
    ("cpu-manager-policy", "cpuManagerPolicy", Text),
    ("cpu-manager-policy-options", "cpuManagerPolicyOptions", Map),
    ("cpu-manager-reconcile-period", "cpuManagerReconcilePeriod", Text),
    ("enable-controller-attach-detach", "enableControllerAttachDetach", Switch),
    ("enable-debugging-handlers", "enableDebuggingHandlers", Switch),
    ("enable-server", "enableServer", Switch),
    ("enforce-node-allocatable", "enforceNodeAllocatable", List),
    ("event-burst", "eventBurst", Integer),
    ("event-qps", "eventRecordQPS", Integer),
    ("eviction-hard", "evictionHard", Signals),
    ("eviction-max-pod-grace-period", "evictionMaxPodGracePeriod", Integer),
    ("eviction-minimum-reclaim", "evictionMinimumReclaim", Map),
    ("eviction-pressure-transition-period", "evictionPressureTransitionPeriod", Text),
    ("eviction-soft", "evictionSoft", Signals),
    ("eviction-soft-grace-period", "evictionSoftGracePeriod", Map),
    ("fail-cgroupv1", "failCgroupV1", Switch),
    ("fail-swap-on", "failSwapOn", Switch),
    ("feature-gates", "featureGates", Gates),
    ("file-check-frequency", "fileCheckFrequency", Text),
    ("hairpin-mode", "hairpinMode", Text),
    ("healthz-bind-address", "healthzBindAddress", Text),
    ("healthz-port", "healthzPort", Integer),
    ("http-check-frequency", "httpCheckFrequency", Text),
    ("image-gc-high-threshold", "imageGCHighThresholdPercent", Integer),
    ("image-gc-low-threshold", "imageGCLowThresholdPercent", Integer),
    ("image-service-endpoint", "imageServiceEndpoint", Text),
    ("kernel-memcg-notification", "kernelMemcgNotification", Switch),
    ("kube-api-burst", "kubeAPIBurst", Integer),
    ("kube-api-content-type", "contentType", Text),
    ("kube-api-qps", "kubeAPIQPS", Integer),
    ("kube-reserved", "kubeReserved", Map),
    ("kube-reserved-cgroup", "kubeReservedCgroup", Text),
    ("kubelet-cgroups", "kubeletCgroups", Text),
    ("log-flush-frequency", "logging.flushFrequency", Text),
    ("log-json-info-buffer-size", "logging.options.json.infoBufferSize", Text),
    ("log-json-split-stream", "logging.options.json.splitStream", Switch),
    ("log-text-info-buffer-size", "logging.options.text.infoBufferSize", Text),
    ("log-text-split-stream", "logging.options.text.splitStream", Switch),
    ("local-storage-capacity-isolation", "localStorageCapacityIsolation", Switch),
    ("logging-format", "logging.format", Text),
    ("make-iptables-util-chains", "makeIPTablesUtilChains", Switch),
    ("manifest-url", "staticPodURL", Text),
    ("max-open-files", "maxOpenFiles", Integer),
    ("max-pods", "maxPods", Integer),
    ("memory-manager-policy", "memoryManagerPolicy", Text),
    ("minimum-image-ttl-duration", "imageMinimumGCAge", Text),
    ("node-status-max-images", "nodeStatusMaxImages", Integer),
    ("node-status-update-frequency", "nodeStatusUpdateFrequency", Text),
    ("oom-score-adj", "oomScoreAdj", Integer),
    ("pod-cidr", "podCIDR", Text),
    ("pod-logs-dir", "podLogsDir", Text),
    ("pod-manifest-path", "staticPodPath", Text),
    ("pod-max-pids", "podPidsLimit", Integer),
    ("pods-per-core", "podsPerCore", Integer),
    ("port", "port", Integer),
    ("protect-kernel-defaults", "protectKernelDefaults", Switch),
    ("provider-id", "providerID", Text),
    ("qos-reserved", "qosReserved", Map),
    ("read-only-port", "readOnlyPort", Integer),
    ("register-node", "registerNode", Switch),
    ("register-with-taints", "registerWithTaints", Taints),
    ("registry-burst", "registryBurst", Integer),
    ("registry-qps", "registryPullQPS", Integer),
    ("reserved-cpus", "reservedSystemCPUs", Text),
    ("resolv-conf", "resolvConf", Text),
    ("rotate-certificates", "rotateCertificates", Switch),
    ("rotate-server-certificates", "serverTLSBootstrap", Switch),
    ("runonce", "runOnce", Switch),
    ("runtime-request-timeout", "runtimeRequestTimeout", Text),
    ("seccomp-default", "seccompDefault", Switch),
    ("serialize-image-pulls", "serializeImagePulls", Switch),
    ("static-pod-path", "staticPodPath", Text),
    ("streaming-connection-idle-timeout", "streamingConnectionIdleTimeout", Text),
    ("sync-frequency", "syncFrequency", Text),
    ("system-cgroups", "systemCgroups", Text),
    ("system-reserved", "systemReserved", Map),
    ("system-reserved-cgroup", "systemReservedCgroup", Text),
    ("tls-cert-file", "tlsCertFile", Text),
    ("tls-cipher-suites", "tlsCipherSuites", List),
    ("tls-min-version", "tlsMinVersion", Text),
    ("tls-private-key-file", "tlsPrivateKeyFile", Text),
    ("topology-manager-policy", "topologyManagerPolicy", Text),
    ("topology-manager-policy-options", "topologyManagerPolicyOptions", Map),
    ("topology-manager-scope", "topologyManagerScope", Text),
    ("v", "logging.verbosity", Integer),
    ("volume-plugin-dir", "volumePluginDir", Text),
    ("volume-stats-agg-period", "volumeStatsAggPeriod", Text),
];

/// Flags of the kubelet that stand for no field and that this version takes but does not act on.
const PASSIVE: &[&str] = &[
    "application-metrics-count-limit",
    "boot-id-file",
    "cloud-config",
    "container-hints",
    "containerd",
    "containerd-namespace",
    "event-storage-age-limit",
    "event-storage-event-limit",
    "experimental-mounter-path",
    "global-housekeeping-interval",
    "housekeeping-interval",
    "lock-file",
    "machine-id-file",
    "manifest-url-header",
    "maximum-dead-containers",
    "maximum-dead-containers-per-container",
    "minimum-container-ttl-duration",
    "pod-infra-container-image",
    "reserved-memory",
    "storage-driver-buffer-duration",
    "storage-driver-db",
    "storage-driver-host",
    "storage-driver-password",
    "storage-driver-table",
    "storage-driver-user",
    "vmodule",
];

/// Those of them that may stand without a value.
const PASSIVE_SWITCHES: &[&str] = &[
    "enable-load-reader",
    "exit-on-lock-contention",
    "experimental-allocatable-ignore-eviction",
    "log-cadvisor-usage",
    "storage-driver-secure",
];

/// Flags as given.
#[derive(Debug, Clone, PartialEq)]
pub struct KubeletFlags {
    /// `--config`.
    pub config: Option<PathBuf>,
    /// `--config-dir`.
    pub config_dir: Option<PathBuf>,
    /// `--kubeconfig`: how the API server is reached; without it the agent runs pods of manifests alone.
    pub kubeconfig: Option<PathBuf>,
    /// `--bootstrap-kubeconfig`.
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// `--cert-dir`.
    pub cert_dir: Option<PathBuf>,
    /// `--image-credential-provider-config`.
    pub provider_config: Option<PathBuf>,
    /// `--image-credential-provider-bin-dir`.
    pub provider_bin_dir: Option<PathBuf>,
    /// `--root-dir`.
    pub root_dir: PathBuf,
    /// `--hostname-override`.
    pub hostname_override: Option<String>,
    /// `--node-ip`.
    pub node_ip: Option<String>,
    /// `--node-labels`.
    pub node_labels: Vec<String>,
    /// `--cloud-provider`.
    pub cloud_provider: String,
    /// `--runtime-cgroups`.
    pub runtime_cgroups: Option<String>,
    /// Flags that were given and that nothing is done about.
    pub passive: Vec<String>,
    /// Nodes for fields, in the order of [`FIELDS`].
    fields: Vec<(&'static str, FlagType, Node)>,
}

impl Default for KubeletFlags {
    fn default() -> Self {
        Self {
            config: None,
            config_dir: None,
            kubeconfig: None,
            bootstrap_kubeconfig: None,
            cert_dir: None,
            provider_config: None,
            provider_bin_dir: None,
            root_dir: PathBuf::from(ROOT_DIR),
            hostname_override: None,
            node_ip: None,
            node_labels: Vec::new(),
            cloud_provider: String::new(),
            runtime_cgroups: None,
            passive: Vec::new(),
            fields: Vec::new(),
        }
    }
}

/// `--root-dir` when it is not given.
const ROOT_DIR: &str = "/var/lib/kubelet";

/// Paths that cannot be empty. Of others an empty one is none.
const NEEDED: [&str; 2] = ["cert-dir", "root-dir"];

impl KubeletFlags {
    /// Reads flags without a command around them.
    ///
    /// # Errors
    /// What clap says about unknown flags and missing values.
    pub fn parse(flags: &[&str]) -> Result<Self, clap::Error> {
        let command = Self::augment_args(Command::new("kubelet").no_binary_name(true));
        Self::from_arg_matches(&command.try_get_matches_from(flags)?)
    }

    /// Whether one of them stands for this field.
    pub(super) fn gives(&self, field: &str) -> bool {
        self.fields.iter().any(|(path, ..)| *path == field)
    }

    /// Lays the flags over a tree of `KubeletConfiguration`. A map takes the place of that of files; gates alone are merged.
    pub fn overlay(&self, kubelet: &mut Node) {
        for (path, kind, node) in &self.fields {
            if let (Map | Signals, Value::Map(entries)) = (kind, &mut kubelet.value) {
                entries.retain(|entry| entry.key != *path);
            }
            let place = node.place.clone();
            let nested = path.rsplit('.').fold(node.clone(), |value, key| {
                let entry = Entry { place: place.clone(), key: key.to_owned(), value };
                Node { place: place.clone(), value: Value::Map(vec![entry]) }
            });
            let before = kubelet.place.clone();
            files::merge(kubelet, nested);
            kubelet.place = before;
        }
    }
}

impl Args for KubeletFlags {
    fn augment_args(command: Command) -> Command {
        let paths = [
            ("config", "File with a KubeletConfiguration and, if you like, a BerthConfiguration"),
            ("config-dir", "Directory of drop-ins (*.conf), merged in lexical order"),
            ("kubeconfig", "How the API server is reached; without it, pods of manifests alone run"),
            ("bootstrap-kubeconfig", "How a client certificate is asked for where the kubeconfig is missing"),
            ("cert-dir", "Directory of certificates [default: /var/lib/kubelet/pki]"),
            (
                "image-credential-provider-config",
                "File or directory that says which programs have accounts at registries",
            ),
            ("image-credential-provider-bin-dir", "Directory of these programs"),
            ("root-dir", "Directory of pods' volumes and files [default: /var/lib/kubelet]"),
        ]
        .map(|(name, help)| path_arg(name, help));
        let texts = [
            ("hostname-override", "Name of the node instead of the host name"),
            ("node-ip", "Address of the node, or two of both families with a comma"),
            (
                "cloud-provider",
                "`external`: a cloud provider tells the node's addresses; nothing: nobody does",
            ),
            ("runtime-cgroups", "Cgroup of containerd, for statistics"),
        ]
        .map(|(name, help)| Arg::new(name).long(name).value_name("TEXT").help(help));
        let labels = Arg::new("node-labels").long("node-labels").value_name("LIST").action(ArgAction::Append);
        let labels = labels.help("Labels that the node is registered with: `name=value,name=value`");
        let passive = PASSIVE
            .iter()
            .map(|name| Arg::new(*name).long(*name).value_name("TEXT").action(ArgAction::Append).hide(true));
        let switches = PASSIVE_SWITCHES.iter().map(|name| switch_arg(Arg::new(*name).long(*name).hide(true)));
        // The last one counts, as with the kubelet: an administrator's flags come after kubeadm's.
        command
            .args_override_self(true)
            .args(paths)
            .args(texts)
            .arg(labels)
            .args(FIELDS.iter().map(|(name, field, kind)| field_arg(name, field, *kind)))
            .args(passive)
            .args(switches)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for KubeletFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let text = |name: &str| matches.get_one::<String>(name).cloned();
        let needed = |name: &str| matches.get_one::<PathBuf>(name).cloned();
        let path = |name: &str| {
            let given = matches.get_one::<OsString>(name);
            given.filter(|path| !path.is_empty()).map(PathBuf::from)
        };
        let given = |name: &&&str| matches.value_source(name) == Some(ValueSource::CommandLine);
        let fields = FIELDS.iter().filter_map(|(name, field, kind)| {
            let values: Vec<String> = matches.get_many::<String>(name)?.cloned().collect();
            let place = Place { file: format!("--{name}").into(), line: 0 };
            let value = value(*kind, &values, &place);
            (!says_nothing(name, &value)).then_some((*field, *kind, Node { value, place }))
        });
        Ok(Self {
            config: path("config"),
            config_dir: path("config-dir"),
            kubeconfig: path("kubeconfig"),
            bootstrap_kubeconfig: path("bootstrap-kubeconfig"),
            cert_dir: needed("cert-dir"),
            provider_config: path("image-credential-provider-config"),
            provider_bin_dir: path("image-credential-provider-bin-dir"),
            root_dir: needed("root-dir").unwrap_or_else(|| PathBuf::from(ROOT_DIR)),
            hostname_override: text("hostname-override"),
            node_ip: text("node-ip"),
            node_labels: matches.get_many::<String>("node-labels").into_iter().flatten().cloned().collect(),
            cloud_provider: text("cloud-provider").unwrap_or_default(),
            runtime_cgroups: text("runtime-cgroups"),
            passive: PASSIVE
                .iter()
                .chain(PASSIVE_SWITCHES)
                .filter(given)
                .map(|name| format!("--{name}"))
                .collect(),
            fields: fields.collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn path_arg(name: &'static str, help: &'static str) -> Arg {
    let arg = Arg::new(name).long(name).value_name("PATH").value_hint(ValueHint::AnyPath).help(help);
    if NEEDED.contains(&name) {
        arg.value_parser(value_parser!(PathBuf))
    } else {
        arg.value_parser(value_parser!(OsString))
    }
}

fn field_arg(name: &'static str, field: &'static str, kind: FlagType) -> Arg {
    let arg =
        Arg::new(name).long(name).help(format!("{field} of KubeletConfiguration")).hide_short_help(true);
    let arg = if name == "v" { arg.short('v') } else { arg };
    match kind {
        Switch => switch_arg(arg),
        Integer => arg.value_name("NUMBER").allow_hyphen_values(true),
        Text => arg.value_name("TEXT"),
        List | Map | Signals | Gates | Taints => arg.action(ArgAction::Append).value_name("LIST"),
    }
}

fn switch_arg(arg: Arg) -> Arg {
    arg.num_args(0..=1).require_equals(true).default_missing_value("true").value_name("BOOL")
}

/// Whether a flag leaves its field as it is: an address that is empty, and profiles that are not asked for. Source: `IPVar` of
/// `pkg/util/flag/flags.go`, `RunKubelet` of `cmd/kubelet/app/server.go`.
fn says_nothing(name: &str, value: &Value) -> bool {
    match name {
        "address" | "healthz-bind-address" => *value == text(""),
        "seccomp-default" => *value == Value::Bool(false),
        _ => false,
    }
}

fn value<'a>(kind: FlagType, given: &'a [String], place: &Place) -> Value {
    let split = |text: &'a str| text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let parts = || given.iter().flat_map(|text| split(text));
    let node = |value: Value| Node { place: place.clone(), value };
    let map = |separator: char, read: fn(&str) -> Value| {
        let entries = parts().map(|part| {
            let (key, value) = part.split_once(separator).unwrap_or((part, ""));
            Entry { place: place.clone(), key: key.trim().to_owned(), value: node(read(value.trim())) }
        });
        Value::Map(entries.collect())
    };
    let last = given.last().map(String::as_str).unwrap_or_default();
    match kind {
        Text => text(last),
        Integer => integer(last),
        Switch => switch(last),
        List => Value::List(parts().map(|part| node(text(part))).collect()),
        Map => map('=', text),
        Signals => map('<', text),
        Gates => map('=', switch),
        // One list of them takes the place of another.
        Taints => Value::List(split(last).map(|part| node(taint(part, place))).collect()),
    }
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

/// `key=value:effect` or `key:effect`.
fn taint(written: &str, place: &Place) -> Value {
    let (name, effect) = written.rsplit_once(':').unwrap_or((written, ""));
    let (key, value) = name.split_once('=').unwrap_or((name, ""));
    let fields = [("key", key), ("value", value), ("effect", effect)];
    let entries = fields.into_iter().filter(|(_, value)| !value.is_empty()).map(|(key, value)| Entry {
        place: place.clone(),
        key: key.to_owned(),
        value: Node { place: place.clone(), value: text(value) },
    });
    Value::Map(entries.collect())
}

fn integer(written: &str) -> Value {
    written.parse().map_or_else(
        |_not_one| text(written),
        |value| Value::Number(Number::Integer { value, text: written.to_owned() }),
    )
}

/// As Go's `strconv.ParseBool`.
fn switch(written: &str) -> Value {
    match written {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Value::Bool(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Value::Bool(false),
        _ => text(written),
    }
}
