//! Containers.

use std::time::Duration;

use berth_core::{
    id::{ContainerName, ImageRef, VolumeName},
    image::name,
    spec::{
        Container, ContainerKind, EnvFrom, EnvSource, EnvVar, FileKeyRef, ImagePullPolicy, ObjectKeyRef,
        ObjectKind, Port, Protocol, ResizePolicy, ResourceField, ResourceSelector, Source, Stdin, Stdio,
        TerminationMessage, TerminationMessagePolicy, Volume, VolumeSource,
    },
};
use k8s_openapi::api::core::v1::{
    Container as ApiContainer, ContainerPort, EnvVar as ApiEnvVar, EnvVarSource, FileKeySelector,
    ResourceFieldSelector,
};

use super::{
    hash, is_dns_label, is_dns_subdomain, is_env_name, is_port_name, lifecycle, mount, notes::Notes, probe,
    resources, restarts, security,
};
use crate::quantity::Quantity;

/// Where the termination message is left when the pod does not say (`pkg/apis/core/v1/defaults.go`).
const TERMINATION_MESSAGE_PATH: &str = "/dev/termination-log";

/// Fields of the pod that a variable can show (`pkg/apis/core/validation`); `spec.host` is an old name of `spec.nodeName`
/// (`ConvertDownwardAPIFieldLabel` of `pkg/apis/core/pods/helpers.go`).
const ENV_FIELDS: [&str; 10] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.host",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// What a container may refer to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Surroundings<'a> {
    pub(super) volumes: &'a [Volume],
    pub(super) volume_names: &'a [&'a str],
    pub(super) host_network: bool,
    /// Whether the pod has a user namespace of its own.
    pub(super) has_users: bool,
    /// The pod's grace period.
    pub(super) grace: Duration,
    /// Where the pod is from: static ones name no objects.
    pub(super) of: Source,
}

/// One container; `init` tells `spec.initContainers` from `spec.containers`.
pub(super) fn convert(
    notes: &mut Notes<'_>,
    field: &str,
    written: &ApiContainer,
    role: ContainerKind,
    around: Surroundings<'_>,
) -> Container {
    let at = |name: &str| format!("{field}.{name}");
    if !is_dns_label(&written.name) {
        notes.fault(&at("name"), format!("`{}` is not a DNS label", written.name));
    }
    let image = written.image.as_deref().unwrap_or_default();
    if image.is_empty() || image.trim() != image {
        notes.fault(&at("image"), "must be the name of an image, without blanks around it");
    }
    let of = written.security_context.as_ref();
    let security = security::of_container(notes, &at("securityContext"), of, around.has_users);
    let env = written.env.iter().flatten().enumerate();
    let of = around.of;
    let env =
        env.filter_map(|(index, var)| variable(notes, &at(&format!("env[{index}]")), var, around)).collect();
    let (kind, restarts) = restarts::convert(notes, field, written, role);
    let ports = ports(notes, &at("ports"), written, around.host_network, role);
    Container {
        name: ContainerName::new(&written.name),
        kind,
        target: None,
        restarts,
        image: ImageRef::new(image),
        pull_policy: pull_policy(notes, &at("imagePullPolicy"), image, written.image_pull_policy.as_deref()),
        command: written.command.clone().unwrap_or_default(),
        args: written.args.clone().unwrap_or_default(),
        env_from: env_from(notes, &at("envFrom"), written, around.of),
        env,
        working_dir: written.working_dir.clone().filter(|path| !path.is_empty()),
        probes: probe::convert(notes, field, written, kind, &ports),
        lifecycle: lifecycle::convert(
            notes,
            &at("lifecycle"),
            written.lifecycle.as_ref(),
            kind,
            (&ports, around.grace),
        ),
        ports,
        resources: resources::of_container(notes, &at("resources"), written.resources.as_ref(), of),
        resize_policy: resize_policy(written),
        devices: mount::devices(notes, &at("volumeDevices"), written, (around.volumes, around.volume_names)),
        mounts: mount::convert(
            notes,
            &at("volumeMounts"),
            written,
            security.privileged,
            (around.volumes, around.volume_names),
        ),
        stdio: stdio(written),
        security,
        termination_message: termination_message(notes, field, written),
        hash: hash::of_container(written),
    }
}

/// What is not named needs no restart (`computePodResizeAction` of `pkg/kubelet/kuberuntime/kuberuntime_manager.go`).
fn resize_policy(written: &ApiContainer) -> ResizePolicy {
    let restarts = |resource: &str| {
        let mut policies = written.resize_policy.iter().flatten();
        let policy = policies.find(|policy| policy.resource_name == resource);
        policy.is_some_and(|policy| policy.restart_policy == "RestartContainer")
    };
    ResizePolicy { cpu_restarts: restarts("cpu"), memory_restarts: restarts("memory") }
}

/// `envFrom`.
fn env_from(notes: &mut Notes<'_>, field: &str, written: &ApiContainer, of: Source) -> Vec<EnvFrom> {
    let mut all = Vec::new();
    for (index, source) in written.env_from.iter().flatten().enumerate() {
        let field = format!("{field}[{index}]");
        let prefix = source.prefix.clone().unwrap_or_default();
        if prefix.contains(['=', '\0']) {
            notes.fault(&format!("{field}.prefix"), "must be printable ASCII without `=`");
        }
        let (kind, name, optional) = match (&source.config_map_ref, &source.secret_ref) {
            (Some(map), None) => (ObjectKind::ConfigMap, map.name.clone(), map.optional),
            (None, Some(secret)) => (ObjectKind::Secret, secret.name.clone(), secret.optional),
            (None, None) => continue,
            (Some(_), Some(_)) => {
                notes.fault(&field, "must have exactly one of `configMapRef` and `secretRef`");
                continue;
            }
        };
        if names_object(notes, &field, &name, of) {
            all.push(EnvFrom { prefix, kind, name, optional: optional == Some(true) });
        }
    }
    all
}

/// Whether the pod may name an object, and the name is one.
fn names_object(notes: &mut Notes<'_>, field: &str, name: &str, of: Source) -> bool {
    let message = match of {
        Source::File | Source::Http => {
            "needs an object of the API server, which a static pod may not use".to_owned()
        }
        Source::Api if is_dns_subdomain(name) => return true,
        Source::Api => format!("`{name}` is not the name of an object"),
    };
    notes.fault(field, message);
    false
}

/// When an image is pulled, of a container or of a volume (`SetDefaults_Container` and `SetDefaults_Volume` of
/// `pkg/apis/core/v1/defaults.go`).
pub(super) fn pull_policy(
    notes: &mut Notes<'_>,
    field: &str,
    image: &str,
    written: Option<&str>,
) -> ImagePullPolicy {
    let default = if is_latest(image) { ImagePullPolicy::Always } else { ImagePullPolicy::IfNotPresent };
    let known = [
        ("", default),
        ("Always", ImagePullPolicy::Always),
        ("IfNotPresent", ImagePullPolicy::IfNotPresent),
        ("Never", ImagePullPolicy::Never),
    ];
    notes.one_of(field, written, &known)
}

/// Whether an image is the latest of its tag: without a digest, that is what no tag means. What is no name is not.
fn is_latest(image: &str) -> bool {
    name::parse(image).is_ok_and(|name| match name.tag {
        Some(tag) => tag == "latest",
        None => name.digest.is_none(),
    })
}

fn variable(
    notes: &mut Notes<'_>,
    field: &str,
    written: &ApiEnvVar,
    around: Surroundings<'_>,
) -> Option<EnvVar> {
    if !is_env_name(&written.name) {
        notes.fault(&format!("{field}.name"), "must be printable ASCII without `=`");
    }
    let source = match (&written.value, &written.value_from) {
        (value, None) => Some(EnvSource::Value(value.clone().unwrap_or_default())),
        (None, Some(from)) => value_from(notes, &format!("{field}.valueFrom"), from, around),
        (Some(value), Some(from)) => {
            if !value.is_empty() {
                notes.fault(field, "has both `value` and `valueFrom`");
            }
            value_from(notes, &format!("{field}.valueFrom"), from, around)
        }
    }?;
    Some(EnvVar { name: written.name.clone(), source })
}

fn value_from(
    notes: &mut Notes<'_>,
    field: &str,
    from: &EnvVarSource,
    around: Surroundings<'_>,
) -> Option<EnvSource> {
    let map = from.config_map_key_ref.as_ref();
    let map = map.map(|one| (ObjectKind::ConfigMap, &one.name, &one.key, one.optional));
    let secret = from.secret_key_ref.as_ref();
    let secret = secret.map(|one| (ObjectKind::Secret, &one.name, &one.key, one.optional));
    if let Some((kind, name, key, optional)) = map.or(secret) {
        let is_one = names_object(notes, field, name, around.of);
        let (name, key, optional) = (name.clone(), key.clone(), optional == Some(true));
        return is_one.then_some(EnvSource::Key(ObjectKeyRef { kind, name, key, optional }));
    }
    match (&from.field_ref, &from.resource_field_ref, &from.file_key_ref) {
        (Some(selector), None, None) => {
            let path = selector.field_path.as_str();
            let subscript = ["metadata.labels['", "metadata.annotations['"].iter().any(|start| {
                path.strip_prefix(start).is_some_and(|rest| rest.ends_with("']") && rest.len() > 2)
            });
            if !subscript && !ENV_FIELDS.contains(&path) {
                notes.fault(
                    &format!("{field}.fieldRef.fieldPath"),
                    format!("`{path}` is not a field that a variable can show"),
                );
            }
            Some(EnvSource::Field(path.to_owned()))
        }
        (None, Some(selector), None) => {
            Some(EnvSource::Resource(resource_field(notes, &format!("{field}.resourceFieldRef"), selector)))
        }
        (None, None, Some(selector)) => {
            Some(EnvSource::File(file_key(notes, &format!("{field}.fileKeyRef"), selector, around)))
        }
        _ => {
            notes.fault(field, "must have exactly one of `fieldRef`, `resourceFieldRef` and `fileKeyRef`");
            None
        }
    }
}

/// Source: `validateFileKeySelector` and `validateEnvVarValueFrom` of `pkg/apis/core/validation/validation.go`.
fn file_key(
    notes: &mut Notes<'_>,
    field: &str,
    written: &FileKeySelector,
    around: Surroundings<'_>,
) -> FileKeyRef {
    let FileKeySelector { key, optional, path, volume_name } = written;
    if !is_env_name(key) {
        notes.fault(&format!("{field}.key"), "must be printable ASCII without `=`");
    }
    if path.is_empty() || path.contains('\0') || path.split('/').any(|part| part == "..") {
        notes.fault(&format!("{field}.path"), format!("`{path}` is not a path without `..`"));
    }
    let volume = around.volumes.iter().find(|volume| volume.name.as_str() == volume_name);
    if !volume.is_some_and(|volume| matches!(volume.source, VolumeSource::EmptyDir { .. })) {
        notes.fault(&format!("{field}.volumeName"), format!("the pod has no emptyDir `{volume_name}`"));
    }
    FileKeyRef {
        volume: VolumeName::new(volume_name),
        path: path.clone(),
        key: key.clone(),
        optional: *optional == Some(true),
    }
}

fn resource_name(notes: &mut Notes<'_>, field: &str, name: &str) -> ResourceField {
    let pages = |kind: &str| name.strip_prefix(kind).and_then(resources::page_size);
    if let Some(size) = pages("limits.hugepages-") {
        return ResourceField::LimitsHugePages(size);
    }
    if let Some(size) = pages("requests.hugepages-") {
        return ResourceField::RequestsHugePages(size);
    }
    notes.one_of(
        field,
        Some(name),
        &[
            ("limits.cpu", ResourceField::LimitsCpu),
            ("limits.memory", ResourceField::LimitsMemory),
            ("limits.ephemeral-storage", ResourceField::LimitsEphemeralStorage),
            ("requests.cpu", ResourceField::RequestsCpu),
            ("requests.memory", ResourceField::RequestsMemory),
            ("requests.ephemeral-storage", ResourceField::RequestsEphemeralStorage),
        ],
    )
}

pub(super) fn resource_field(
    notes: &mut Notes<'_>,
    field: &str,
    selector: &ResourceFieldSelector,
) -> ResourceSelector {
    let resource = resource_name(notes, &format!("{field}.resource"), &selector.resource);
    let cpu = matches!(resource, ResourceField::LimitsCpu | ResourceField::RequestsCpu);
    let divisor = selector.divisor.as_ref().map(|divisor| divisor.0.parse::<Quantity>());
    let divisor = match divisor {
        Some(Ok(divisor)) if cpu => divisor.milli(),
        Some(Ok(divisor)) => divisor.units(),
        Some(Err(error)) => {
            notes.fault(&format!("{field}.divisor"), error.to_string());
            0
        }
        None => 0,
    };
    // Zero is the default: one core, one byte (`pkg/api/v1/resource` `ExtractContainerResourceValue`).
    let divisor = match u64::try_from(divisor) {
        Ok(0) if cpu => 1000,
        Ok(0) => 1,
        Ok(divisor) => divisor,
        Err(_negative) => {
            notes.fault(&format!("{field}.divisor"), "must not be negative");
            1
        }
    };
    let container =
        selector.container_name.as_deref().filter(|name| !name.is_empty()).map(ContainerName::new);
    ResourceSelector { container, field: resource, divisor }
}

fn ports(
    notes: &mut Notes<'_>,
    field: &str,
    written: &ApiContainer,
    host_network: bool,
    role: ContainerKind,
) -> Vec<Port> {
    let mut ports: Vec<Port> = Vec::new();
    for (index, port) in written.ports.iter().flatten().enumerate() {
        let field = format!("{field}[{index}]");
        let Some(port) = self::port(notes, &field, port, host_network) else { continue };
        // Of those before the main ones nobody asks (`validatePodHostNetworkDeps` of `pkg/apis/core/validation/validation.go`).
        if host_network && role == ContainerKind::Main && port.host_port != Some(port.container_port) {
            notes.fault(&format!("{field}.hostPort"), "must equal containerPort in the node's network");
        }
        if port.name.is_some() && ports.iter().any(|known| known.name == port.name) {
            notes.fault(&format!("{field}.name"), "is given twice in this container");
        }
        ports.push(port);
    }
    ports
}

fn port(notes: &mut Notes<'_>, field: &str, written: &ContainerPort, host_network: bool) -> Option<Port> {
    let name = written.name.clone().filter(|name| !name.is_empty());
    if let Some(name) = name.as_ref().filter(|name| !is_port_name(name)) {
        let message =
            format!("`{name}` is not the name of a port: at most 15 of a-z, 0-9 and -, with a letter");
        notes.fault(&format!("{field}.name"), message);
    }
    let host_ip = written.host_ip.clone().filter(|ip| !ip.is_empty());
    // Without a port of the node, or in its network, nobody asks which address that is.
    let is_mapped = !host_network && written.host_port.is_some_and(|port| port != 0);
    let is_none = |ip: &&String| is_mapped && ip.parse::<std::net::IpAddr>().is_err();
    if let Some(ip) = host_ip.as_ref().filter(is_none) {
        notes.fault(&format!("{field}.hostIP"), format!("`{ip}` is not an IP address"));
    }
    let number = |notes: &mut Notes<'_>, name: &str, value: i32| {
        notes.number::<u16>(&format!("{field}.{name}"), Some(i64::from(value)), 1, 65535)
    };
    let container_port = number(notes, "containerPort", written.container_port)?;
    let host_port = match written.host_port.filter(|port| *port != 0) {
        Some(port) => Some(number(notes, "hostPort", port)?),
        None => host_network.then_some(container_port),
    };
    let protocol = notes.one_of(
        &format!("{field}.protocol"),
        written.protocol.as_deref(),
        &[("TCP", Protocol::Tcp), ("UDP", Protocol::Udp), ("SCTP", Protocol::Sctp)],
    );
    Some(Port { name, container_port, host_port, host_ip, protocol })
}

fn stdio(written: &ApiContainer) -> Stdio {
    let stdin = match (written.stdin == Some(true), written.stdin_once == Some(true)) {
        (false, _) => Stdin::Closed,
        (true, false) => Stdin::Open,
        (true, true) => Stdin::Once,
    };
    Stdio { stdin, tty: written.tty == Some(true) }
}

fn termination_message(notes: &mut Notes<'_>, field: &str, written: &ApiContainer) -> TerminationMessage {
    let path = written.termination_message_path.as_deref().filter(|path| !path.is_empty());
    let path = mount::absolute(path.unwrap_or(TERMINATION_MESSAGE_PATH));
    let policy = notes.one_of(
        &format!("{field}.terminationMessagePolicy"),
        written.termination_message_policy.as_deref(),
        &[
            ("File", TerminationMessagePolicy::File),
            ("FallbackToLogsOnError", TerminationMessagePolicy::FallbackToLogsOnError),
        ],
    );
    TerminationMessage { path, policy }
}

#[cfg(test)]
mod tests {
    use super::is_latest;

    #[test]
    fn the_tag_decides_the_pull_policy() {
        let with_digest = |name: &str| format!("{name}@sha256:{}", "0".repeat(64));
        for (image, expected) in [
            ("busybox".to_owned(), true),
            ("busybox:latest".to_owned(), true),
            ("busybox:1.36".to_owned(), false),
            ("registry:5000/busybox".to_owned(), true),
            ("registry:5000/a/busybox:1".to_owned(), false),
            (with_digest("busybox"), false),
            (with_digest("busybox:1"), false),
            (with_digest("busybox:latest"), true),
            ("UPPER".to_owned(), false),
        ] {
            assert_eq!(is_latest(&image), expected, "{image}");
        }
    }
}
