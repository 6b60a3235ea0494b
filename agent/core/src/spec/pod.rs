//! A pod.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;

use super::{
    Container, EnvSource, ObjectKey, ObjectKind, PodSecurity, QosClass, Quantities, RecursiveReadOnly,
    Resources, Scheduling, Volume,
};
use crate::{
    id::{Attempt, ContainerName, ImageRef, PodName, PodUid, VolumeName},
    record::RunImage,
    status::Terminated,
};

/// One desired pod. Immutable: an update is a new value.
#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
    /// Identity; an update keeps it, a pod with another UID is another pod.
    pub uid: PodUid,
    /// Namespace and name.
    pub name: PodName,
    /// Where it came from.
    pub source: Source,
    /// Labels, as given.
    pub labels: BTreeMap<String, String>,
    /// Annotations, with `kubernetes.io/config.*` added by the source.
    pub annotations: BTreeMap<String, String>,
    /// Whether containers that end are started again.
    pub restart_policy: RestartPolicy,
    /// From the first signal to SIGKILL.
    pub grace: Duration,
    /// Longest time the pod may be active, from its start.
    pub active_deadline: Option<Duration>,
    /// `metadata.generation`, which the status tells to have been seen.
    pub generation: Option<i64>,
    /// `metadata.resourceVersion` as this agent saw it first: what happens to the pod is told of that version. A pod that the API server
    /// did not give has none.
    pub version: Option<String>,
    /// Set when the API server wants the pod deleted: `metadata.deletionGracePeriodSeconds`.
    pub deletion: Option<Duration>,
    /// When it began by the word of its source: of another agent, or of one before whose record is gone (`status.startTime`).
    pub started_at: Option<Timestamp>,
    /// How the pod has ended by the word of its source, where the node has not shown so itself. Nothing of it is started then, and what
    /// runs is stopped.
    pub ended: Option<Ended>,
    /// Containers that have run by the word of its source. It counts where nothing is known here: the machine was switched off since.
    pub have_run: BTreeMap<ContainerName, ToldRun>,
    /// The same pod with the resources that it has by the word of its source, while it waits for others, as it is read back from a record.
    /// It counts where nothing is known here.
    pub told_allocated: Option<Arc<Pod>>,
    /// What others say of it, without which it is not ready (`spec.readinessGates`).
    pub readiness_gates: Vec<ReadinessGate>,
    /// Where it may run.
    pub scheduling: Scheduling,
    /// What the pod takes beside its containers (`spec.overhead`).
    pub overhead: Quantities,
    /// Owner of its network namespace.
    pub network: NetworkMode,
    /// Owner of the pid namespace of its containers.
    pub pid: PidMode,
    /// Owner of its ipc namespace.
    pub ipc: IpcMode,
    /// Owner of its user namespace.
    pub users: UserMode,
    /// `spec.hostname`.
    pub hostname: Option<String>,
    /// `spec.hostnameOverride`: a DNS name that takes the place of every other, domain included.
    pub hostname_override: Option<String>,
    /// `spec.subdomain`.
    pub subdomain: Option<String>,
    /// `spec.setHostnameAsFQDN`.
    pub hostname_as_fqdn: bool,
    /// Extra lines of `/etc/hosts`.
    pub host_aliases: Vec<HostAlias>,
    /// How resolv.conf is made.
    pub dns_policy: DnsPolicy,
    /// Additions to resolv.conf.
    pub dns_config: Option<DnsConfig>,
    /// `spec.serviceAccountName`, for the downward API.
    pub service_account: String,
    /// `spec.enableServiceLinks`: whether services of the namespace are variables of its containers.
    pub service_links: bool,
    /// `spec.imagePullSecrets`: Secrets of its namespace with credentials for registries.
    pub pull_secrets: Vec<String>,
    /// `spec.priority`; pods of at least 2 000 000 000 are critical.
    pub priority: i32,
    /// `spec.priorityClassName`.
    pub priority_class: String,
    /// Pod-level security settings.
    pub security: PodSecurity,
    /// Resources of the pod as a whole, where it names them.
    pub resources: Option<Resources>,
    /// QoS class, computed once from the containers' and the pod's resources.
    pub qos: QosClass,
    /// Runtime handler name; `None` is the default.
    pub runtime: Option<String>,
    /// Volumes by position.
    pub volumes: Vec<Volume>,
    /// Init containers and sidecars, in spec order.
    pub init_containers: Vec<Arc<Container>>,
    /// Main containers, in spec order.
    pub containers: Vec<Arc<Container>>,
    /// Ephemeral containers, in spec order: others may come while the pod is there, and none goes.
    pub ephemeral_containers: Vec<Arc<Container>>,
    /// The manifest as JSON, kept so that a record of the pod can be read back after a restart.
    pub manifest: Arc<str>,
    /// Set while its resources are those of an earlier version than its manifest.
    pub resize: Option<Resize>,
}

/// A resize that is asked for and not allocated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resize {
    /// The manifest, as JSON, of the version whose resources the pod has.
    pub allocated: Arc<str>,
    /// The generation that asked for it.
    pub generation: Option<i64>,
    /// Why it is not allocated; absent until that was judged.
    pub unallocated: Option<Unallocated>,
}

/// What the source of a pod says of a container that has run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToldRun {
    /// How often it began again.
    pub restarts: Attempt,
    /// How its last run ended, unless it is told to run.
    pub end: Option<Terminated>,
    /// How the run before that ended.
    pub before: Option<Terminated>,
    /// What its last run tells of its image.
    pub image: Option<RunImage>,
}

/// Why a resize is not allocated: what the condition `PodResizePending` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unallocated {
    /// Whether it is never tried again (`Infeasible`), or when there is more room (`Deferred`).
    pub is_infeasible: bool,
    /// For people.
    pub message: String,
}

impl Pod {
    /// Init containers, then main containers, then ephemeral containers.
    pub fn all_containers(&self) -> impl Iterator<Item = &Arc<Container>> {
        self.fixed_containers().chain(&self.ephemeral_containers)
    }

    /// Init containers, then main containers: those that the pod was made with, which are what it is for.
    pub fn fixed_containers(&self) -> impl Iterator<Item = &Arc<Container>> {
        self.init_containers.iter().chain(&self.containers)
    }

    /// Whether a mount of it may be read-only with all that is mounted below it.
    #[must_use]
    pub fn asks_for_recursive_read_only(&self) -> bool {
        let mut mounts = self.all_containers().flat_map(|container| &container.mounts);
        mounts.any(|mount| mount.recursive_read_only != RecursiveReadOnly::Disabled)
    }

    /// The images that its containers and its volumes name.
    pub fn images(&self) -> impl Iterator<Item = &ImageRef> {
        let of_volumes = self.volumes.iter().filter_map(|volume| Some(volume.image()?.0));
        self.all_containers().map(|container| &container.image).chain(of_volumes)
    }

    /// One of its volumes.
    #[must_use]
    pub fn volume(&self, name: &VolumeName) -> Option<&Volume> {
        self.volumes.iter().find(|volume| volume.name == *name)
    }

    /// The volumes that a container needs, which it mounts or has variables from: nobody waits for the others. Source: `GetPodVolumeNames` of
    /// `pkg/volume/util/util.go`.
    #[must_use]
    pub fn used_volumes(&self) -> BTreeSet<&VolumeName> {
        let mounted = self.all_containers().flat_map(|one| one.mounts.iter().map(|mount| &mount.volume));
        let variables = self.all_containers().flat_map(|one| &one.env);
        let of_files = variables.filter_map(|variable| match &variable.source {
            EnvSource::File(file) => Some(&file.volume),
            EnvSource::Value(_) | EnvSource::Field(_) | EnvSource::Resource(_) | EnvSource::Key(_) => None,
        });
        let devices = self.all_containers().flat_map(|one| one.devices.iter().map(|device| &device.volume));
        mounted.chain(devices).chain(of_files).collect()
    }

    /// An object that it names.
    #[must_use]
    pub fn object_key(&self, kind: ObjectKind, name: &str) -> ObjectKey {
        ObjectKey { kind, namespace: self.name.namespace.clone(), name: name.to_owned() }
    }

    /// Whether the pod is protected from eviction (static, or of system priority).
    /// Source: `pkg/kubelet/types/pod_update.go` `IsCriticalPod`.
    #[must_use]
    pub fn is_critical(&self) -> bool {
        self.source != Source::Api || self.priority >= 2_000_000_000
    }
}

/// A condition that others set, as the API server had it when it was seen last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadinessGate {
    /// Type of the condition.
    pub condition: String,
    /// Its status, once there is one: it has to be `True`.
    pub status: Option<String>,
}

/// How a pod has ended, as its source tells: `status.phase`, `.reason` and `.message`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Whether all containers succeeded.
    pub succeeded: bool,
    /// Such as `Evicted`; mostly empty.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// Where a pod is configured; the value of the annotation `kubernetes.io/config.source`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// A manifest file.
    File,
    /// A manifest URL.
    Http,
    /// The API server.
    Api,
}

impl Source {
    /// As in the annotation.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Http => "http",
            Self::Api => "api",
        }
    }
}

/// `spec.restartPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartPolicy {
    /// Whatever the exit code.
    Always,
    /// After an exit code other than 0.
    OnFailure,
    /// Never.
    Never,
}

/// Owner of a pod's network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkMode {
    /// Its own, wired by CNI.
    Pod,
    /// The node's (`hostNetwork`).
    Node,
}

/// Owner of the pid namespace that a pod's containers are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PidMode {
    /// Each its own.
    Container,
    /// One for the pod (`shareProcessNamespace`).
    Pod,
    /// The node's (`hostPID`).
    Node,
}

/// Owner of a pod's ipc namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpcMode {
    /// Its own.
    Pod,
    /// The node's (`hostIPC`).
    Node,
}

/// Owner of a pod's user namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UserMode {
    /// The node's.
    Node,
    /// Its own (`hostUsers: false`, KEP-127).
    Pod,
}

/// One entry of `spec.hostAliases`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostAlias {
    /// Address, as written.
    pub ip: String,
    /// Names for it.
    pub hostnames: Vec<String>,
}

/// `spec.dnsPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DnsPolicy {
    /// The cluster's DNS; as `Default` for pods in the node's network.
    ClusterFirst,
    /// The cluster's DNS for pods in the node's network too.
    ClusterFirstWithHostNet,
    /// The node's resolv.conf.
    Default,
    /// Only `dnsConfig`.
    None,
}

/// `spec.dnsConfig`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DnsConfig {
    /// `nameservers`.
    pub nameservers: Vec<String>,
    /// `searches`.
    pub searches: Vec<String>,
    /// `options`: name and value.
    pub options: Vec<(String, Option<String>)>,
}

/// One entry of `securityContext.sysctls`, name in dotted form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sysctl {
    /// Name, such as `net.ipv4.tcp_syncookies`.
    pub name: String,
    /// Value, as written.
    pub value: String,
}
