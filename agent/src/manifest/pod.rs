//! The pod around its containers.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use berth_core::{
    derived::qos,
    id::{PodName, PodUid},
    spec::{
        Container, ContainerKind, DnsConfig, DnsPolicy, Ended, HostAlias, IpcMode, NetworkMode, PidMode, Pod,
        QosClass, ReadinessGate, RestartPolicy, Source, UserMode, Volume,
    },
};
use k8s_openapi::{
    api::core::v1::{Container as ApiContainer, Pod as ApiPod, PodSpec, PodStatus},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{
    container::{self, Surroundings},
    ephemeral, is_dns_label, is_dns_subdomain, is_label_text, is_qualified_name,
    notes::Notes,
    resources, scheduling, security, volume,
};
use crate::{document::BYTES_MAX, ip};

/// Seconds from the first signal to SIGKILL when the pod does not say.
const GRACE_SECONDS: i64 = 30;
/// Most of them: 68 years.
const GRACE_SECONDS_MAX: i64 = i32::MAX as i64;

/// Longest `dnsConfig.searches` and longest list of nameservers (`pkg/apis/core/validation`).
const SEARCHES_MAX: usize = 32;
const NAMESERVERS_MAX: usize = 3;

/// Priorities of the classes that need no object of the API server (`pkg/apis/scheduling/types.go`).
const PRIORITIES: [(&str, i32); 2] =
    [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];

/// Makes the core's pod of one with defaults applied.
pub(super) fn convert(notes: &mut Notes<'_>, written: &ApiPod, source: Source) -> Option<Pod> {
    let Some(spec) = &written.spec else {
        notes.fault("spec", "is missing");
        return None;
    };
    let name = metadata(notes, &written.metadata);
    not_acted_on(notes, spec, source);
    let volumes = spec.volumes.as_deref().unwrap_or_default();
    let volumes = volume::convert(notes, volumes, &name.name, source);
    let [init_containers, containers, ephemeral_containers] = containers(notes, spec, &volumes, source);
    security::app_armor_annotations(notes, written);
    let security = security::of_pod(notes, spec.security_context.as_ref(), source);
    let pod_resources = resources::of_pod(notes, spec.resources.as_ref(), &init_containers, &containers);
    let all = init_containers.iter().chain(&containers).map(|container| &container.resources);
    // Also where it names nothing by them.
    let own = spec.resources.as_ref().map(|_| pod_resources.clone().unwrap_or_default());
    let told = written.status.as_ref().and_then(|status| status.qos_class.as_deref());
    let told = told.filter(|_| source == Source::Api).and_then(QosClass::named);
    let qos = told.unwrap_or_else(|| qos::class(own.as_ref(), all));
    let (network, pid, ipc) = namespaces(notes, spec);
    let users = users(notes, spec);
    let deadline =
        notes.number("spec.activeDeadlineSeconds", spec.active_deadline_seconds, 1, i64::from(i32::MAX));
    Some(Pod {
        uid: PodUid::new(written.metadata.uid.clone().unwrap_or_default()),
        name,
        source,
        labels: written.metadata.labels.clone().unwrap_or_default(),
        annotations: written.metadata.annotations.clone().unwrap_or_default(),
        restart_policy: restart_policy(notes, spec),
        grace: grace(spec),
        active_deadline: deadline.map(Duration::from_secs),
        generation: written.metadata.generation,
        version: written.metadata.resource_version.clone(),
        deletion: deletion(written),
        started_at: None,
        ended: None,
        have_run: BTreeMap::new(),
        told_allocated: None,
        readiness_gates: readiness_gates(written),
        scheduling: scheduling::of_pod(notes, written),
        overhead: resources::of_overhead(notes, spec.overhead.as_ref(), source),
        network,
        pid,
        ipc,
        users,
        hostname: label(notes, "spec.hostname", spec.hostname.as_ref()),
        hostname_override: hostname_override(notes, spec),
        subdomain: label(notes, "spec.subdomain", spec.subdomain.as_ref()),
        hostname_as_fqdn: spec.set_hostname_as_fqdn == Some(true),
        host_aliases: host_aliases(notes, spec),
        dns_policy: dns_policy(notes, spec),
        dns_config: dns_config(notes, spec),
        // As the API server's default.
        service_links: spec.enable_service_links != Some(false),
        pull_secrets: pull_secrets(spec),
        service_account: spec.service_account_name.clone().unwrap_or_default(),
        priority: priority(notes, spec),
        priority_class: spec.priority_class_name.clone().unwrap_or_default(),
        security,
        resources: pod_resources,
        qos,
        runtime: spec.runtime_class_name.clone().filter(|name| !name.is_empty()),
        volumes,
        init_containers,
        containers,
        ephemeral_containers,
        manifest: manifest(notes, written),
        resize: None,
    })
}

/// Any number: validation asks only that there is one, and the kubelet takes the least that it gives (`pod_workers.go`).
fn grace(spec: &PodSpec) -> Duration {
    seconds(spec.termination_grace_period_seconds.unwrap_or(GRACE_SECONDS))
}

fn seconds(grace: i64) -> Duration {
    Duration::from_secs(grace.clamp(0, GRACE_SECONDS_MAX).unsigned_abs())
}

/// The grace period of a deletion that was asked for, as bounded as a pod's own. Without one the pod has its own.
#[must_use]
pub fn deletion(written: &ApiPod) -> Option<Duration> {
    written.metadata.deletion_timestamp.as_ref()?;
    let given = written.metadata.deletion_grace_period_seconds;
    Some(match (given, &written.spec) {
        (None, Some(spec)) => grace(spec),
        (None, None) => seconds(GRACE_SECONDS),
        (Some(given), _) => seconds(given),
    })
}

/// What a pod waits for beside its containers, and what its status says of it.
#[must_use]
pub fn readiness_gates(written: &ApiPod) -> Vec<ReadinessGate> {
    let gates = written.spec.iter().flat_map(|spec| spec.readiness_gates.iter().flatten());
    let conditions = || written.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let gates = gates.map(|gate| {
        let found = conditions().find(|condition| condition.type_ == gate.condition_type);
        let status = found.map(|condition| condition.status.clone());
        ReadinessGate { condition: gate.condition_type.clone(), status }
    });
    gates.collect()
}

/// How a pod has ended, where its status says so.
#[must_use]
pub fn ended(status: Option<&PodStatus>) -> Option<Ended> {
    let status = status?;
    let succeeded = match status.phase.as_deref() {
        Some("Succeeded") => true,
        Some("Failed") => false,
        _ => return None,
    };
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    Some(Ended { succeeded, reason: text(&status.reason), message: text(&status.message) })
}

/// One that cannot be the name of an object is none.
fn pull_secrets(spec: &PodSpec) -> Vec<String> {
    let named = spec.image_pull_secrets.iter().flatten().map(|reference| reference.name.clone());
    named.filter(|name| is_dns_subdomain(name)).collect()
}

/// What goes into the record, and is read back from there as a document: escapes can make it longer than the file it is from.
fn manifest(notes: &mut Notes<'_>, written: &ApiPod) -> Arc<str> {
    let text = serde_json::to_string(written).unwrap_or_default();
    if text.len() > BYTES_MAX {
        notes.fault("", format!("as JSON it is larger than {BYTES_MAX} bytes"));
    }
    text.into()
}

fn metadata(notes: &mut Notes<'_>, metadata: &ObjectMeta) -> PodName {
    let name = metadata.name.clone().unwrap_or_default();
    if !is_dns_subdomain(&name) {
        notes.fault("metadata.name", format!("`{name}` is not a DNS name"));
    }
    let namespace = metadata.namespace.clone().unwrap_or_default();
    if !is_dns_label(&namespace) {
        notes.fault("metadata.namespace", format!("`{namespace}` is not a DNS label"));
    }
    // The UID becomes a part of paths and of cgroup names.
    let uid = metadata.uid.as_deref().unwrap_or_default();
    if !is_dns_label(uid) {
        notes.fault("metadata.uid", format!("`{uid}` is not a UID: at most 63 of a-z, 0-9 and -"));
    }
    for (key, value) in metadata.labels.iter().flatten() {
        if !is_qualified_name(key) || !is_label_text(value) {
            notes.fault(&format!("metadata.labels.{key}"), format!("`{key}: {value}` is not a label"));
        }
    }
    for key in metadata.annotations.iter().flat_map(BTreeMap::keys) {
        if !is_qualified_name(&key.to_lowercase()) {
            notes.fault(
                &format!("metadata.annotations.{key}"),
                format!("`{key}` is not the key of an annotation"),
            );
        }
    }
    PodName { namespace, name }
}

fn not_acted_on(notes: &mut Notes<'_>, spec: &PodSpec, source: Source) {
    // In a cluster they are the scheduler's.
    let of_the_scheduler = [
        ("preemptionPolicy", spec.preemption_policy.is_some()),
        ("schedulingGates", spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty())),
        ("schedulingGroup", spec.scheduling_group.is_some()),
        (
            "topologySpreadConstraints",
            spec.topology_spread_constraints.as_ref().is_some_and(|list| !list.is_empty()),
        ),
    ];
    for (name, there) in of_the_scheduler {
        notes.unsupported_if(there && source != Source::Api, format!("spec.{name}"));
    }
    // They are devices that the pod waits for. Of a static pod they are refused as all that needs an object.
    if source == Source::Api && spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        notes.fault("spec.resourceClaims", "devices by claims are not supported by this version");
    }
    // A pod of the API is refused as the kubelet refuses it.
    if let Some(os) = spec.os.as_ref().filter(|os| os.name != "linux" && source != Source::Api) {
        notes.fault("spec.os.name", format!("this is a Linux node, the pod is for `{}`", os.name));
    }
}

type Containers = Vec<Arc<Container>>;

fn containers(notes: &mut Notes<'_>, spec: &PodSpec, volumes: &[Volume], of: Source) -> [Containers; 3] {
    let volume_names: Vec<&str> = spec.volumes.iter().flatten().map(|volume| volume.name.as_str()).collect();
    let around = Surroundings {
        volumes,
        volume_names: &volume_names,
        host_network: spec.host_network == Some(true),
        has_users: spec.host_users == Some(false),
        grace: grace(spec),
        of,
    };
    let mut convert = |list: &str, written: &[ApiContainer], role: ContainerKind| -> Containers {
        let field = |index: usize| format!("spec.{list}[{index}]");
        let all = written.iter().enumerate();
        all.map(|(index, one)| Arc::new(container::convert(notes, &field(index), one, role, around)))
            .collect()
    };
    let init =
        convert("initContainers", spec.init_containers.as_deref().unwrap_or_default(), ContainerKind::Init);
    let main = convert("containers", &spec.containers, ContainerKind::Main);
    if main.is_empty() {
        notes.fault("spec.containers", "a pod has at least one container");
    }
    check_names(notes, "initContainers", &init, &[]);
    check_names(notes, "containers", &main, &init);
    check_host_ports(notes, &init, &main);
    let ephemeral = ephemeral::convert(notes, spec, around);
    check_names(notes, ephemeral::LIST, &ephemeral, &[init.as_slice(), &main].concat());
    [init, main, ephemeral]
}

fn check_names(notes: &mut Notes<'_>, list: &str, containers: &[Arc<Container>], others: &[Arc<Container>]) {
    for (index, container) in containers.iter().enumerate() {
        if containers[..index].iter().chain(others).any(|known| known.name == container.name) {
            notes
                .fault(&format!("spec.{list}[{index}].name"), format!("`{}` is given twice", container.name));
        }
    }
}

/// Main containers are compared with each other, each init container, sidecars too, with itself alone (`checkHostPortConflicts` of
/// `pkg/apis/core/validation/validation.go`).
fn check_host_ports(notes: &mut Notes<'_>, init: &[Arc<Container>], main: &[Arc<Container>]) {
    for (list, containers) in [("initContainers", init), ("containers", main)] {
        let mut taken = Vec::new();
        for (index, container) in containers.iter().enumerate() {
            if container.kind != ContainerKind::Main {
                taken.clear();
            }
            for (port_index, port) in container.ports.iter().enumerate() {
                let Some(number) = port.host_port else { continue };
                let key = (port.protocol, port.host_ip.clone(), number);
                if taken.contains(&key) {
                    let field = format!("spec.{list}[{index}].ports[{port_index}].hostPort");
                    notes.fault(&field, format!("{number} is given twice"));
                }
                taken.push(key);
            }
        }
    }
}

fn namespaces(notes: &mut Notes<'_>, spec: &PodSpec) -> (NetworkMode, PidMode, IpcMode) {
    let network = if spec.host_network == Some(true) { NetworkMode::Node } else { NetworkMode::Pod };
    let ipc = if spec.host_ipc == Some(true) { IpcMode::Node } else { IpcMode::Pod };
    let pid = match (spec.host_pid == Some(true), spec.share_process_namespace == Some(true)) {
        (true, true) => {
            notes.fault("spec.shareProcessNamespace", "cannot be true together with hostPID");
            PidMode::Node
        }
        (true, false) => PidMode::Node,
        (false, true) => PidMode::Pod,
        (false, false) => PidMode::Container,
    };
    (network, pid, ipc)
}

/// Source: `validateHostUsers` of `pkg/apis/core/validation/validation.go`.
fn users(notes: &mut Notes<'_>, spec: &PodSpec) -> UserMode {
    if spec.host_users != Some(false) {
        return UserMode::Node;
    }
    for (field, of_node) in
        [("hostNetwork", spec.host_network), ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc)]
    {
        if of_node == Some(true) {
            notes.fault(&format!("spec.{field}"), "cannot be true when `hostUsers` is false");
        }
    }
    UserMode::Pod
}

fn restart_policy(notes: &mut Notes<'_>, spec: &PodSpec) -> RestartPolicy {
    notes.one_of(
        "spec.restartPolicy",
        spec.restart_policy.as_deref(),
        &[
            ("Always", RestartPolicy::Always),
            ("OnFailure", RestartPolicy::OnFailure),
            ("Never", RestartPolicy::Never),
        ],
    )
}

fn label(notes: &mut Notes<'_>, field: &str, written: Option<&String>) -> Option<String> {
    let written = written.filter(|name| !name.is_empty())?;
    if !is_dns_label(written) {
        notes.fault(field, format!("`{written}` is not a DNS label"));
    }
    Some(written.clone())
}

fn hostname_override(notes: &mut Notes<'_>, spec: &PodSpec) -> Option<String> {
    let written = spec.hostname_override.clone()?;
    if !is_dns_subdomain(&written) {
        notes.fault("spec.hostnameOverride", format!("`{written}` is not a DNS name"));
    }
    Some(written)
}

fn host_aliases(notes: &mut Notes<'_>, spec: &PodSpec) -> Vec<HostAlias> {
    let mut aliases = Vec::new();
    for (index, alias) in spec.host_aliases.iter().flatten().enumerate() {
        let field = format!("spec.hostAliases[{index}]");
        if ip::sloppy(&alias.ip).is_none() {
            notes.fault(&format!("{field}.ip"), format!("`{}` is not an IP address", alias.ip));
        }
        let hostnames = alias.hostnames.clone().unwrap_or_default();
        for name in hostnames.iter().filter(|name| !is_dns_subdomain(name)) {
            notes.fault(&format!("{field}.hostnames"), format!("`{name}` is not a DNS name"));
        }
        aliases.push(HostAlias { ip: alias.ip.clone(), hostnames });
    }
    aliases
}

fn dns_policy(notes: &mut Notes<'_>, spec: &PodSpec) -> DnsPolicy {
    let policy = notes.one_of(
        "spec.dnsPolicy",
        spec.dns_policy.as_deref(),
        &[
            ("ClusterFirst", DnsPolicy::ClusterFirst),
            ("ClusterFirstWithHostNet", DnsPolicy::ClusterFirstWithHostNet),
            ("Default", DnsPolicy::Default),
            ("None", DnsPolicy::None),
        ],
    );
    let servers = spec.dns_config.as_ref().and_then(|config| config.nameservers.as_ref());
    if policy == DnsPolicy::None && servers.is_none_or(Vec::is_empty) {
        notes.fault("spec.dnsConfig", "must name a nameserver while dnsPolicy is None");
    }
    policy
}

fn dns_config(notes: &mut Notes<'_>, spec: &PodSpec) -> Option<DnsConfig> {
    let written = spec.dns_config.as_ref()?;
    let nameservers = written.nameservers.clone().unwrap_or_default();
    if nameservers.len() > NAMESERVERS_MAX {
        notes.fault("spec.dnsConfig.nameservers", format!("more than {NAMESERVERS_MAX}"));
    }
    for (index, server) in nameservers.iter().enumerate().filter(|(_, server)| ip::sloppy(server).is_none()) {
        notes.fault(
            &format!("spec.dnsConfig.nameservers[{index}]"),
            format!("`{server}` is not an IP address"),
        );
    }
    let searches = written.searches.clone().unwrap_or_default();
    if searches.len() > SEARCHES_MAX {
        notes.fault("spec.dnsConfig.searches", format!("more than {SEARCHES_MAX}"));
    }
    for (index, search) in searches.iter().enumerate() {
        // A single dot, a trailing dot and underscores are allowed in a search path (KEP-4427).
        let plain = search.strip_suffix('.').unwrap_or(search).replace('_', "x");
        if search != "." && !is_dns_subdomain(&plain) {
            notes
                .fault(&format!("spec.dnsConfig.searches[{index}]"), format!("`{search}` is not a DNS name"));
        }
    }
    let mut options = Vec::new();
    for (index, option) in written.options.iter().flatten().enumerate() {
        let name = option.name.clone().unwrap_or_default();
        let line = format!("{name}{}", option.value.as_deref().unwrap_or_default());
        if name.is_empty() || line.contains(char::is_control) {
            notes.fault(
                &format!("spec.dnsConfig.options[{index}]"),
                "must have a name, and no line breaks in name and value",
            );
        }
        options.push((name, option.value.clone()));
    }
    Some(DnsConfig { nameservers, searches, options })
}

fn priority(notes: &mut Notes<'_>, spec: &PodSpec) -> i32 {
    let class = spec.priority_class_name.as_deref().filter(|name| !name.is_empty());
    let known = class.and_then(|class| PRIORITIES.iter().find(|(name, _)| *name == class));
    notes.unsupported_if(
        class.is_some() && known.is_none() && spec.priority.is_none(),
        "spec.priorityClassName",
    );
    spec.priority.or(known.map(|(_, priority)| *priority)).unwrap_or(0)
}
