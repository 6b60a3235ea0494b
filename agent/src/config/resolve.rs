//! From documents, flags and facts to one [`Config`].

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use berth_core::{
    cluster::node::{Family, NodeIps},
    config::{
        AppArmor, DnsSettings, ImageCollection, LogSettings, MemoryVolumes, NodeConfig, Paths, PullSettings,
    },
    selinux::SeLinux,
    spec::Quantities,
    users::PodIds,
};

use super::{
    BerthConfiguration, Cni, Config, Documents, Facts, KubeletConfiguration, KubeletFlags, LiveFacts,
    LogRequests, NodeLogAccess, OciRuntime, RuntimeSettings, RuntimeSource, Section, StatsSettings,
    allocatable::units, defaults, facts, gates, runtime_settings::UnknownDefault, validate, verification,
};
use crate::{
    document::{Fault, Faults, Node, Place, read},
    ip,
};

/// How often leftovers of networks are collected.
const GC_PERIOD: Duration = Duration::from_secs(3600);
/// The shortest such period: each one lists a directory.
const GC_PERIOD_MIN: Duration = Duration::from_secs(1);

/// How long a pull waits for a byte: `image_pull_progress_timeout` of containerd's CRI by default.
const PULL_PROGRESS: Duration = Duration::from_secs(300);
/// The shortest such wait: containerd tells of progress every 300 ms.
const PULL_PROGRESS_MIN: Duration = Duration::from_secs(1);

/// `userNamespaces.idsPerPod` by default (`DefaultKubeletUserNamespacesIDsPerPod` of `pkg/kubelet/apis/config/types.go`).
pub(super) const IDS_PER_POD: u32 = 65_536;

/// The agent's own `oom_score_adj` by default: `KubeletOOMScoreAdj` of `pkg/kubelet/qos/policy.go`.
const OOM_SCORE: i32 = -999;

/// Settings of the kernel.
const SYSCTLS: &str = "/proc/sys";

/// The capability that lets a process give less than it has itself (`include/uapi/linux/capability.h`).
const CAP_SYS_RESOURCE: u32 = 24;

/// The least that the kernel knows.
const OOM_SCORE_MIN: i32 = -1000;

/// Both documents in their types, defaults applied, and the trees that know where everything is written.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The kubelet's document.
    pub kubelet: KubeletConfiguration,
    /// Our own.
    pub berth: BerthConfiguration,
    /// What containerd's own configuration says; its defaults until that is read.
    pub containerd: Section,
    /// Both as trees, flags laid over.
    pub documents: Documents,
    /// The flags.
    pub flags: KubeletFlags,
}

impl Settings {
    /// Reads the files that the flags name, lays the flags over them and checks everything that can be checked without
    /// the machine.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn load(flags: KubeletFlags) -> Result<Self, Faults> {
        let documents = super::load(&flags)?;
        let kubelet = read::<KubeletConfiguration>(&documents.kubelet);
        let berth = read::<BerthConfiguration>(&documents.berth);
        let (mut kubelet, berth) = match (kubelet, berth) {
            (Ok(kubelet), Ok(berth)) => (kubelet, berth),
            (kubelet, berth) => {
                let both = [kubelet.err(), berth.err()].into_iter().flatten().flat_map(|faults| faults.0);
                return Err(Faults(both.collect()));
            }
        };
        defaults::apply(&mut kubelet, &flags);
        let mut faults = validate::check(&kubelet, &documents.kubelet);
        faults.extend(berth_faults(&berth, &documents.berth));
        faults.extend(node_ips(&flags).err());
        faults.extend(super::cluster::check(&kubelet, &documents.kubelet, &flags));
        faults.extend(super::server::check(&kubelet, &documents.kubelet, &flags));
        let containerd = Section::default();
        Faults(faults).or(Self { kubelet, berth, containerd, documents, flags })
    }

    /// Reads containerd's own configuration, which holds where the documents say nothing.
    ///
    /// # Errors
    /// It is there and cannot be used, or is named and is not there. Containerd would not begin with it either.
    pub fn read_containerd(mut self) -> Result<Self, Faults> {
        self.containerd = self.runtime_source().read().section?;
        self.runtime().map(drop)?;
        Ok(self)
    }

    fn runtime(&self) -> Result<RuntimeSettings, Fault> {
        let fault =
            |error: UnknownDefault| self.documents.berth.fault("runtime.defaultHandler", error.to_string());
        self.runtime_source().resolve(&self.containerd).map_err(fault)
    }

    /// Who says what may change while the agent runs.
    #[must_use]
    pub fn runtime_source(&self) -> RuntimeSource {
        RuntimeSource::of(&self.berth)
    }

    /// The configuration of this machine.
    ///
    /// # Errors
    /// What of the settings does not fit the machine.
    pub fn resolve(&self, facts: &Facts) -> Result<Config, Faults> {
        let Self { kubelet, berth, .. } = self;
        self.check_cgroups(facts)?;
        let run = berth.state_dir.clone().unwrap_or_else(|| PathBuf::from("/run/berth"));
        let endpoint = kubelet.container_runtime_endpoint.as_deref().unwrap_or_default();
        let runtime = berth.runtime.clone().unwrap_or_default();
        let cni = berth.cni.clone().unwrap_or_default();
        Ok(Config {
            node: self.node(facts, &run)?,
            containerd_socket: PathBuf::from(endpoint.strip_prefix("unix://").unwrap_or(endpoint)),
            containerd_namespace: "k8s.io".to_owned(),
            runtime_timeout: duration(kubelet.runtime_request_timeout),
            cluster: self.cluster(facts)?,
            healthz: self.healthz(),
            serving: self.serving(),
            server: self.server(),
            static_pod_path: self.path("staticPodPath", kubelet.static_pod_path.as_deref()),
            file_check: duration(kubelet.file_check_frequency),
            cni: Cni {
                cache_dir: cni.cache_dir.unwrap_or_else(|| PathBuf::from("/var/lib/cni")),
                gc_period: cni.gc_period.map_or(GC_PERIOD, |period| period.0),
                plugin_gc: cni.plugin_gc == Some(true),
            },
            oci_runtime: oci_runtime(runtime.oci_runtime.as_deref()),
            runtime: self.runtime()?,
            runtime_source: self.runtime_source(),
            stats: self.stats(),
            registry_accounts: self.registry_accounts()?,
            image_verification: verification::read(kubelet, &self.documents.kubelet).map_err(Faults)?,
            pull_progress_timeout: berth.image_pull_progress_timeout.map_or(PULL_PROGRESS, |time| time.0),
            control_socket: run.join("berth.sock"),
            live: LiveFacts {
                resolv_conf: self.path("resolvConf", kubelet.resolv_conf.as_deref()),
                fixed_ips: fixed_ips(&self.flags)?,
            },
            memory_volumes: MemoryVolumes { is_swap_on: facts.swap.is_on, has_noswap: facts.has_noswap },
            log_requests: LogRequests {
                of_node: match (kubelet.enable_system_log_handler, kubelet.enable_system_log_query) {
                    (Some(false), _) => NodeLogAccess::Nothing,
                    (_, Some(true)) => NodeLogAccess::Services,
                    (_, _) => NodeLogAccess::Files,
                },
                may_split_streams: kubelet.has_gate("PodLogsQuerySplitStreams"),
            },
            gates: gates::acted_on(kubelet),
            makes_iptables_chains: kubelet.make_iptables_util_chains != Some(false),
            oom_score_adj: kubelet.oom_score_adj.unwrap_or(OOM_SCORE),
            protect_kernel_defaults: kubelet.protect_kernel_defaults == Some(true),
            sysctl_root: std::env::var_os("BERTH_SYSCTL_ROOT").map_or_else(|| SYSCTLS.into(), PathBuf::from),
            abort_at: std::env::var("BERTH_ABORT_AT").ok().filter(|point| !point.is_empty()),
        })
    }

    fn stats(&self) -> StatsSettings {
        let named = |name: Option<&str>| name.filter(|name| !name.is_empty()).map(str::to_owned);
        let period = duration(self.kubelet.volume_stats_agg_period);
        StatsSettings {
            volume_period: Some(period).filter(|period| !period.is_zero()),
            runtime_cgroup: named(self.flags.runtime_cgroups.as_deref()),
            system_cgroup: named(self.kubelet.system_cgroups.as_deref()),
        }
    }

    fn node(&self, facts: &Facts, run: &Path) -> Result<NodeConfig, Faults> {
        let Self { kubelet, flags, .. } = self;
        let name = self.node_name(&facts.hostname)?;
        let ips = fixed_ips(flags)?;
        let restarts =
            kubelet.crash_loop_back_off.as_ref().and_then(|section| section.max_container_restart_period);
        let root = text(flags.root_dir.as_path());
        Ok(NodeConfig {
            labels: initial_labels(&name, super::cluster::labels(flags)?),
            name,
            pods_max: self.pods_max(&facts.capacity),
            ips: ips.unwrap_or_else(|| facts.ips.clone()),
            hostname: facts.kernel_hostname.clone(),
            capacity: facts.capacity.clone(),
            allocatable: self.allocatable(&facts.capacity),
            unreserved: self.unreserved(&facts.capacity),
            paths: Paths {
                seccomp: format!("{root}/seccomp"),
                root,
                pod_logs: kubelet.pod_logs_dir.clone().unwrap_or_default(),
                container_logs: "/var/log/containers".to_owned(),
                run: text(run),
            },
            dns: self.dns(facts),
            cgroups: self.cgroups(facts),
            pulls: self.pulls(),
            collection: self.collection(),
            logs: self.logs(),
            sync_frequency: duration(kubelet.sync_frequency),
            crash_backoff_max: duration(restarts),
            seccomp_default: kubelet.seccomp_default == Some(true),
            pod_ids: self.pod_ids(facts)?,
            app_armor: self.app_armor(facts),
            se_linux: self.se_linux(facts),
            thermal_counters: facts.thermal_counters.clone(),
            unsafe_sysctls: kubelet.allowed_unsafe_sysctls.clone().unwrap_or_default(),
            oom_score_floor: oom_score_floor(facts),
            capabilities: facts.capabilities,
            kernel_capabilities: facts.kernel_capabilities,
        })
    }

    /// Ids of pods with user namespaces.
    fn pod_ids(&self, facts: &Facts) -> Result<PodIds, Fault> {
        let given = self.kubelet.user_namespaces.as_ref().and_then(|section| section.ids_per_pod);
        let per_pod = given.map_or(Ok(IDS_PER_POD), u32::try_from).unwrap_or(0);
        let pods = self.pods_max(&facts.capacity);
        let made = match facts.sub_ids {
            Some((first, count)) => PodIds::of(first, count, per_pod, pods),
            None => PodIds::all(per_pod, pods),
        };
        made.map_err(|error| self.documents.kubelet.fault("userNamespaces.idsPerPod", error.to_string()))
    }

    fn app_armor(&self, facts: &Facts) -> AppArmor {
        match facts.app_armor {
            AppArmor::Enforced if self.containerd.disable_apparmor => AppArmor::Unused,
            found => found,
        }
    }

    fn se_linux(&self, facts: &Facts) -> Option<SeLinux> {
        let contexts = facts.selinux_contexts.as_ref().filter(|_| self.containerd.enable_selinux)?;
        Some(SeLinux::of(contexts, self.containerd.selinux_categories))
    }

    /// How many pods there may be: `maxPods`, or fewer by `podsPerCore`.
    fn pods_max(&self, capacity: &Quantities) -> u32 {
        let count = |value: Option<i32>| value.and_then(|value| u32::try_from(value).ok()).unwrap_or(0);
        let most = count(self.kubelet.max_pods);
        let processors = u32::try_from(capacity.cpu_milli.unwrap_or(0) / 1000).unwrap_or(u32::MAX);
        match count(self.kubelet.pods_per_core).saturating_mul(processors) {
            0 => most,
            few => few.min(most),
        }
    }

    /// What the node is called, on a machine of this host name.
    ///
    /// # Errors
    /// It is no DNS name.
    pub fn node_name(&self, hostname: &str) -> Result<String, Fault> {
        let named = self.flags.hostname_override.as_deref().map(|name| name.trim().to_lowercase());
        let name = named.filter(|name| !name.is_empty()).unwrap_or_else(|| hostname.to_owned());
        if crate::manifest::is_dns_subdomain(&name) {
            return Ok(name);
        }
        let message =
            format!("the node's name `{name}` is not a DNS name: give another with --hostname-override");
        Err(self.documents.kubelet.fault("", message))
    }

    /// What of `--node-ip` is no address, and left out.
    #[must_use]
    pub fn unread_node_ips(&self) -> Vec<&str> {
        node_ip_parts(&self.flags).filter(|part| ip::sloppy(part).is_none()).collect()
    }

    /// What of `clusterDNS` is no address, and left out (`NewMainKubelet` of `pkg/kubelet/kubelet.go`).
    #[must_use]
    pub fn unread_cluster_dns(&self) -> Vec<&str> {
        self.name_servers().filter(|server| ip::sloppy(server).is_none()).collect()
    }

    fn name_servers(&self) -> impl Iterator<Item = &str> {
        self.kubelet.cluster_dns.iter().flatten().map(String::as_str)
    }

    /// Whether pods may name this runtime handler.
    #[must_use]
    pub fn has_handler(&self, handler: &str) -> bool {
        self.runtime().is_ok_and(|runtime| runtime.handlers.contains_key(handler))
    }

    fn dns(&self, facts: &Facts) -> DnsSettings {
        let kubelet = &self.kubelet;
        let resolv_conf = self.path("resolvConf", kubelet.resolv_conf.as_deref());
        DnsSettings {
            cluster_dns: self.name_servers().filter_map(ip::sloppy).map(|ip| ip.to_string()).collect(),
            cluster_domain: kubelet.cluster_domain.clone().unwrap_or_default(),
            node_resolv_conf: facts::resolv_conf(resolv_conf.as_deref()),
            node_hosts: facts.hosts.clone(),
        }
    }

    fn pulls(&self) -> PullSettings {
        let kubelet = &self.kubelet;
        let count = |value: Option<i32>| value.and_then(|value| u32::try_from(value).ok());
        let parallel_max = if kubelet.serialize_image_pulls == Some(true) {
            Some(1)
        } else {
            count(kubelet.max_parallel_image_pulls)
        };
        PullSettings {
            parallel_max,
            qps: count(kubelet.registry_pull_qps).unwrap_or(0),
            burst: count(kubelet.registry_burst).unwrap_or(0),
        }
    }

    /// Removal of unused images, unless neither threshold could ever be met (`StartGarbageCollection` of `pkg/kubelet/kubelet.go`).
    fn collection(&self) -> Option<ImageCollection> {
        let kubelet = &self.kubelet;
        let percent = |value: Option<i32>| value.and_then(|value| u64::try_from(value).ok()).unwrap_or(100);
        let settings = ImageCollection {
            high_percent: percent(kubelet.image_gc_high_threshold_percent),
            low_percent: percent(kubelet.image_gc_low_threshold_percent),
            age_min: duration(kubelet.image_minimum_gc_age),
            age_max: Some(duration(kubelet.image_maximum_gc_age)).filter(|age| !age.is_zero()),
        };
        (settings.high_percent < 100 || settings.age_max.is_some()).then_some(settings)
    }

    fn logs(&self) -> LogSettings {
        let size = self.kubelet.container_log_max_size.as_deref().and_then(units).unwrap_or(10 << 20);
        let files = self.kubelet.container_log_max_files.and_then(|files| u32::try_from(files).ok());
        LogSettings { max_size_bytes: size, max_files: files.unwrap_or(5) }
    }

    /// A path, relative ones from the directory of the file that names it, as the kubelet reads them.
    pub(super) fn path(&self, field: &str, path: Option<&str>) -> Option<PathBuf> {
        let path = path.filter(|path| !path.is_empty())?;
        let place = &self.documents.kubelet.nearest(field).place;
        if place.file.starts_with("--") {
            return Some(std::path::absolute(path).unwrap_or_else(|_no_directory| PathBuf::from(path)));
        }
        let directory = Path::new(&*place.file).parent().unwrap_or(Path::new("/"));
        let joined = directory.join(path);
        Some(std::path::absolute(&joined).unwrap_or(joined))
    }
}

/// Labels that a node is made with: those of every node, and those that it is given by flag over them (`initialNode` of
/// `pkg/kubelet/kubelet_node_status.go`).
fn initial_labels(hostname: &str, given: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let architecture = facts::architecture();
    let labels = [
        ("kubernetes.io/hostname", hostname),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", architecture),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", architecture),
    ];
    let own = labels.map(|(label, value)| (label.to_owned(), value.to_owned()));
    own.into_iter().chain(given).collect()
}

/// The least `oom_score_adj` that the agent can give: any, unless it lacks the capability for that.
fn oom_score_floor(facts: &Facts) -> i32 {
    let may_lower = facts.capabilities >> CAP_SYS_RESOURCE & 1 == 1;
    if may_lower { OOM_SCORE_MIN } else { facts.oom_score_adj }
}

fn berth_faults(berth: &BerthConfiguration, tree: &Node) -> Vec<Fault> {
    let cni = berth.cni.clone().unwrap_or_default();
    let runtime = berth.runtime.clone().unwrap_or_default();
    let mut faults = Vec::new();
    let mut absolute = |field: &str, path: Option<&PathBuf>| {
        if let Some(path) = path.filter(|path| !path.is_absolute()) {
            faults.push(tree.fault(field, format!("`{}` is not an absolute path", path.display())));
        }
    };
    absolute("stateDir", berth.state_dir.as_ref());
    let containerd_config = berth.containerd_config.as_ref();
    absolute("containerdConfig", containerd_config.filter(|path| !path.as_os_str().is_empty()));
    absolute("registryConfigDir", berth.registry_config_dir.as_ref());
    absolute("cni.confDir", cni.conf_dir.as_ref());
    absolute("cni.cacheDir", cni.cache_dir.as_ref());
    for (index, path) in cni.bin_dirs.iter().flatten().enumerate() {
        absolute(&format!("cni.binDirs[{index}]"), Some(path));
    }
    if cni.gc_period.is_some_and(|period| period.0 < GC_PERIOD_MIN) {
        faults.push(tree.fault("cni.gcPeriod", "must be a second or more".to_owned()));
    }
    if berth.image_pull_progress_timeout.is_some_and(|time| time.0 < PULL_PROGRESS_MIN) {
        faults.push(tree.fault("imagePullProgressTimeout", "must be a second or more".to_owned()));
    }
    let handlers = runtime.handlers.unwrap_or_default();
    for (name, runtime) in &handlers {
        // containerd takes `io.containerd.<name>.v<number>` and looks for `containerd-shim-<name>-v<number>`.
        if !runtime.starts_with("io.containerd.") || runtime.split('.').count() != 4 {
            let message =
                format!("`{runtime}` is not the name of a containerd runtime, such as io.containerd.runc.v2");
            faults.push(tree.fault(&format!("runtime.handlers.{name}"), message));
        }
    }
    let named = runtime.oci_runtime.unwrap_or_else(|| "auto".to_owned());
    if named.is_empty() || (named.contains('/') && !named.starts_with('/')) {
        let message = format!("`{named}` is none of `auto`, a name such as `crun`, or an absolute path");
        faults.push(tree.fault("runtime.ociRuntime", message));
    }
    faults
}

fn oci_runtime(named: Option<&str>) -> OciRuntime {
    match named {
        None | Some("auto") => OciRuntime::Auto,
        Some(path) if path.starts_with('/') => OciRuntime::Path(PathBuf::from(path)),
        Some(name) => OciRuntime::Named(name.to_owned()),
    }
}

/// What `--node-ip` says: one address, or two of both families. What of it is no address is left out. Sources: `RunKubelet` of
/// `cmd/kubelet/app/server.go`, `ParseNodeIPArgument` of `k8s.io/component-helpers/node/util/ips.go`.
pub(super) fn node_ips(flags: &KubeletFlags) -> Result<NodeIps, Fault> {
    let ips: Vec<IpAddr> = node_ip_parts(flags).filter_map(ip::sloppy).collect();
    match ips.as_slice() {
        [] => Ok(NodeIps::Unset),
        [one] if one.is_unspecified() => {
            Ok(NodeIps::OfFamily(if one.is_ipv4() { Family::V4 } else { Family::V6 }))
        }
        [one] => Ok(NodeIps::Given(*one, None)),
        [one, other]
            if one.is_ipv4() != other.is_ipv4() && !one.is_unspecified() && !other.is_unspecified() =>
        {
            Ok(NodeIps::Given(*one, Some(*other)))
        }
        _ => {
            let written = flags.node_ip.as_deref().unwrap_or_default();
            let message = format!("`{written}` is neither one address nor one of each family");
            let place = Some(Place { file: "--node-ip".into(), line: 0 });
            Err(Fault { place, field: String::new(), message })
        }
    }
}

/// The addresses of `--node-ip`; `None` when it is not given, or leaves the choice open.
fn fixed_ips(flags: &KubeletFlags) -> Result<Option<Vec<IpAddr>>, Fault> {
    Ok(match node_ips(flags)? {
        NodeIps::Unset | NodeIps::OfFamily(_) => None,
        NodeIps::Given(first, second) => Some(std::iter::once(first).chain(second).collect()),
    })
}

fn node_ip_parts(flags: &KubeletFlags) -> impl Iterator<Item = &str> {
    let written = flags.node_ip.as_deref().filter(|written| !written.is_empty());
    written.into_iter().flat_map(|written| written.split(',')).map(str::trim)
}

/// A duration that has its default.
pub(super) fn duration(written: Option<super::GoDuration>) -> Duration {
    written.unwrap_or_default().0
}

fn text(path: &Path) -> String {
    path.to_string_lossy().trim_end_matches('/').to_owned()
}
