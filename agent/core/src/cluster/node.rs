//! The Node object: what it says when it is made, and what of an existing one is changed.
//!
//! Only what is the node's own is set: labels, annotations, conditions, addresses of a cloud's controller and resources that
//! others have put there stay. Sources: `pkg/kubelet/kubelet_node_status.go`, `pkg/kubelet/nodestatus/setters.go` of
//! Kubernetes 1.36.

mod addresses;
mod conditions;
mod events;
mod health;
mod images;
mod oom;
mod patch;
mod ready;
mod report;
mod resources;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::{Map, Value, json};

pub use self::{
    addresses::{Family, Found, NodeIps, given_fault},
    conditions::Pressure,
    events::{
        Note, image_disk_has_no_size, image_disk_stays_full, images_not_removed, runtime_fault, starting,
    },
    health::Health,
    images::Image,
    oom::OomLog,
    patch::{differs, patch},
    ready::{is_ready, next_change},
    report::{Reason, Report, backoff, jittered},
};
use super::{
    csi_node::CsiNode,
    fields::{child, root},
};
use crate::{
    spec::Quantities,
    time::{Mono, Now},
};

/// The kubelet whose place this is.
pub const KUBELET_VERSION: &str = "v1.36.3";

/// Features that a node may declare and this one has: the API server passes WebSockets of exec, attach and port-forward through to it, and lets
/// resources of its pods as a whole and of init containers be changed. Source: `component-helpers/nodedeclaredfeatures/features`.
const DECLARED_FEATURES: [&str; 4] = [
    "ExtendWebSocketsToKubelet",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
];

/// Labels that an existing node is given again when the agent starts (`updateDefaultLabels`).
const DEFAULT_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];
/// Says that a controller attaches volumes to the node.
const ATTACHED_BY_CONTROLLER: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// Tells an external cloud provider which address was asked for.
const PROVIDED_IP: &str = "alpha.kubernetes.io/provided-node-ip";
/// Keeps pods away until the external cloud provider has seen the node.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// What the configuration says of the Node object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSettings {
    /// Name of the node: its `metadata.name` and its host name.
    pub name: String,
    /// `--node-labels`.
    pub labels: BTreeMap<String, String>,
    /// `registerWithTaints`.
    pub taints: Vec<Taint>,
    /// `providerID`; empty is none.
    pub provider_id: String,
    /// Whether the agent makes the object (`registerNode`).
    pub registers: bool,
    /// `--cloud-provider=external`.
    pub cloud: Cloud,
    /// Whether volumes are attached by a controller (`enableControllerAttachDetach`).
    pub attached_by: AttachedBy,
    /// `--node-ip`.
    pub ips: NodeIps,
    /// `maxPods`, or less by `podsPerCore`.
    pub pods_max: u32,
    /// `nodeStatusMaxImages`; `None` is without bound.
    pub images_max: Option<usize>,
    /// Port of the kubelet's server; 0 without one.
    pub port: u16,
    /// How often the object is computed (`nodeStatusUpdateFrequency`).
    pub update_every: Duration,
    /// How often it is reported where nothing has changed (`nodeStatusReportFrequency`).
    pub report_every: Duration,
    /// How long the lease lasts (`nodeLeaseDurationSeconds`).
    pub lease_seconds: u32,
}

/// Who knows the machine's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cloud {
    /// Nobody else.
    None,
    /// An external cloud provider.
    External,
}

/// Who attaches volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachedBy {
    /// The controller of the control plane.
    Controller,
    /// The node.
    Node,
}

/// A taint that the node is registered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taint {
    /// Which.
    pub key: String,
    /// May be empty.
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule`, `NoExecute`.
    pub effect: String,
}

/// What hardly ever changes on a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// `/etc/machine-id`.
    pub machine_id: String,
    /// What the firmware says.
    pub system_uuid: String,
    /// Other after each boot.
    pub boot_id: String,
    /// `uname -r`.
    pub kernel_version: String,
    /// `PRETTY_NAME` of `/etc/os-release`.
    pub os_image: String,
    /// As Go calls it: `amd64`.
    pub architecture: String,
    /// Swap of the machine; 0 is none.
    pub swap_bytes: u64,
    /// What it has.
    pub capacity: Quantities,
    /// What pods may use of it.
    pub allocatable: Quantities,
    /// What a kubelet left of device plugins.
    pub devices: Devices,
}

/// What the checkpoint of a kubelet's device manager says (`pkg/kubelet/cm/devicemanager/checkpoint`). Berth has no such manager, so
/// no plugin of it is there any more.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Devices {
    /// Whether there is one.
    pub has_checkpoint: bool,
    /// Resources that plugins had registered.
    pub registered: BTreeSet<String>,
}

/// A handler that RuntimeClasses can name; the empty name is the default.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Handler {
    /// Its name.
    pub name: String,
    /// Whether read-only mounts can be so all the way down.
    pub recursive_read_only: bool,
    /// Whether pods can have user namespaces.
    pub user_namespaces: bool,
}

/// What is now.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// The machine.
    pub machine: Machine,
    /// Its addresses.
    pub found: Found,
    /// Containerd.
    pub health: Health,
    /// Whether pods can be wired; `None` before the first answer to this agent.
    pub network: Option<Result<(), String>>,
    /// Since when this agent has asked both.
    pub asked_since: Mono,
    /// How long the network may take to answer.
    pub network_within: Duration,
    /// The node's CSINode.
    pub csi_node: CsiNode,
    /// What runs short.
    pub pressure: BTreeSet<Pressure>,
    /// Handlers, by name.
    pub handlers: Vec<Handler>,
    /// Images of the node; `None` as long as nobody knows: what is said of them stays.
    pub images: Option<Vec<Image>>,
    /// Volumes that must not be detached; `None` as long as nobody knows.
    pub volumes_in_use: Option<Vec<String>>,
}

/// The object as it is to be, and what is worth an event.
#[derive(Debug, Clone, PartialEq)]
pub struct Written {
    /// All of it.
    pub object: Value,
    /// Events, in order. To be sent once the object has been.
    pub notes: Vec<Note>,
    /// What could not be said, for the log.
    pub faults: Vec<String>,
}

/// The object of a node that has none yet (`initialNode`).
#[must_use]
pub fn made(settings: &NodeSettings, facts: &Facts, now: Now) -> Written {
    let mut metadata = Map::new();
    metadata.insert("name".to_owned(), json!(settings.name));
    metadata.insert("labels".to_owned(), json!(labels(settings, facts)));
    if settings.attached_by == AttachedBy::Controller {
        metadata.insert("annotations".to_owned(), json!({ ATTACHED_BY_CONTROLLER: "true" }));
    }
    let mut spec = Map::new();
    let taints = taints(settings);
    if !taints.is_empty() {
        spec.insert("taints".to_owned(), Value::Array(taints));
    }
    if !settings.provider_id.is_empty() {
        spec.insert("providerID".to_owned(), json!(settings.provider_id));
    }
    let object =
        json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": {} });
    updated(settings, facts, &object, now)
}

/// An existing object as the agent wants it when it starts, or when somebody else has made it: what a new one would say of
/// labels, volumes, devices and huge pages, and everything of [`updated`] (`tryRegisterWithAPIServer`).
#[must_use]
pub fn taken_over(settings: &NodeSettings, facts: &Facts, existing: &Value, now: Now) -> Written {
    let mut object = existing.clone();
    let own = labels(settings, facts);
    for label in DEFAULT_LABELS {
        match own.get(label) {
            Some(value) if value.is_empty() => _ = map(&mut object, "metadata", "labels").remove(label),
            Some(value) => {
                map(&mut object, "metadata", "labels").insert(label.to_owned(), json!(value));
            }
            None => {}
        }
    }
    match settings.attached_by {
        AttachedBy::Controller => {
            let annotations = map(&mut object, "metadata", "annotations");
            annotations.insert(ATTACHED_BY_CONTROLLER.to_owned(), json!("true"));
        }
        AttachedBy::Node => remove(&mut object, "metadata", "annotations", ATTACHED_BY_CONTROLLER),
    }
    resources::forget_huge_pages(&mut object, &facts.machine.capacity);
    resources::forget_devices(&mut object, &facts.machine.devices);
    updated(settings, facts, &object, now)
}

/// The existing object with everything that is the node's own as it is now (`updateNode`).
#[must_use]
pub fn updated(settings: &NodeSettings, facts: &Facts, existing: &Value, now: Now) -> Written {
    let mut written = Written { object: existing.clone(), notes: Vec::new(), faults: Vec::new() };
    let object = &mut written.object;
    let own = map(object, "metadata", "labels");
    own.insert("kubernetes.io/os".to_owned(), json!("linux"));
    own.insert("kubernetes.io/arch".to_owned(), json!(facts.machine.architecture));
    if let Err(why) = set_addresses(settings, facts, object) {
        written.faults.push(why);
    }
    resources::set(object, &facts.machine, settings.pods_max);
    if let Some(boot) = previous_boot(object).filter(|boot| *boot != facts.machine.boot_id) {
        tracing::debug!(boot, "the node was last reported in another boot");
        written.notes.push(events::rebooted(&settings.name, &facts.machine.boot_id));
    }
    set_info(object, facts);
    let port = json!({ "kubeletEndpoint": { "Port": settings.port } });
    status(object).insert("daemonEndpoints".to_owned(), port);
    if let Some(known) = &facts.images {
        set_list(status(object), "images", images::listed(known, settings.images_max));
    }
    set_list(status(object), "runtimeHandlers", facts.handlers.iter().map(handler).collect());
    status(object).insert("features".to_owned(), json!({ "supplementalGroupsPolicy": true }));
    set_list(status(object), "declaredFeatures", DECLARED_FEATURES.map(|name| json!(name)).to_vec());
    conditions::set(&mut written, settings, facts, existing, now);
    if let Some(volumes) = &facts.volumes_in_use {
        let volumes = volumes.iter().map(|name| json!(name)).collect();
        set_list(status(&mut written.object), "volumesInUse", volumes);
    }
    written
}

/// What [`starting`] has to tell beside: a node that can be used again, or no more (`recordNodeSchedulableEvent`).
#[must_use]
pub fn schedulable_note(
    settings: &NodeSettings,
    before: Option<bool>,
    object: &Value,
) -> (bool, Option<Note>) {
    let closed = object.pointer("/spec/unschedulable").and_then(Value::as_bool).unwrap_or(false);
    let note = (before.unwrap_or(false) != closed).then(|| {
        events::status_is(&settings.name, if closed { "NodeNotSchedulable" } else { "NodeSchedulable" })
    });
    (closed, note)
}

fn labels(settings: &NodeSettings, facts: &Facts) -> BTreeMap<String, String> {
    let arch = facts.machine.architecture.as_str();
    let mut labels: BTreeMap<String, String> = [
        ("kubernetes.io/hostname", settings.name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", arch),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", arch),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .collect();
    labels.extend(settings.labels.clone());
    labels
}

fn taints(settings: &NodeSettings) -> Vec<Value> {
    let taint = |key: &str, value: &str, effect: &str| {
        let mut taint = json!({ "key": key, "effect": effect });
        if !value.is_empty() {
            taint["value"] = json!(value);
        }
        taint
    };
    let mut taints: Vec<_> =
        settings.taints.iter().map(|one| taint(&one.key, &one.value, &one.effect)).collect();
    if settings.cloud == Cloud::External {
        taints.push(taint(UNINITIALIZED, "true", "NoSchedule"));
    }
    taints
}

fn set_addresses(settings: &NodeSettings, facts: &Facts, object: &mut Value) -> Result<(), String> {
    let (ips, found) = (settings.ips, &facts.found);
    addresses::check(ips, found)?;
    match addresses::provided(ips, settings.cloud) {
        Some(ip) => {
            map(object, "metadata", "annotations").insert(PROVIDED_IP.to_owned(), json!(ip));
        }
        None => remove(object, "metadata", "annotations", PROVIDED_IP),
    }
    let has_some =
        object.pointer("/status/addresses").and_then(Value::as_array).is_some_and(|all| !all.is_empty());
    if settings.cloud == Cloud::External && has_some {
        return Ok(());
    }
    let all = addresses::addresses(&settings.name, ips, settings.cloud, found)?;
    let all = all.into_iter().map(|(kind, address)| json!({ "type": kind, "address": address }));
    set_list(status(object), "addresses", all.collect());
    Ok(())
}

fn previous_boot(object: &Value) -> Option<&str> {
    object.pointer("/status/nodeInfo/bootID").and_then(Value::as_str).filter(|boot| !boot.is_empty())
}

fn set_info(object: &mut Value, facts: &Facts) {
    let Machine { machine_id, system_uuid, boot_id, kernel_version, os_image, architecture, .. } =
        &facts.machine;
    let info = map(object, "status", "nodeInfo");
    for (name, value) in [
        ("machineID", machine_id.as_str()),
        ("systemUUID", system_uuid),
        ("bootID", boot_id),
        ("kernelVersion", kernel_version),
        ("osImage", os_image),
        ("containerRuntimeVersion", &format!("containerd://{}", facts.health.version())),
        ("kubeletVersion", KUBELET_VERSION),
        // No longer said, and removed where it was (KEP-4004).
        ("kubeProxyVersion", ""),
        ("operatingSystem", "linux"),
        ("architecture", architecture),
    ] {
        info.insert(name.to_owned(), json!(value));
    }
    if facts.machine.swap_bytes > 0 {
        info.insert("swap".to_owned(), json!({ "capacity": facts.machine.swap_bytes }));
    }
}

fn handler(handler: &Handler) -> Value {
    let features = json!({
        "recursiveReadOnlyMounts": handler.recursive_read_only,
        "userNamespaces": handler.user_namespaces,
    });
    json!({ "name": handler.name, "features": features })
}

/// An empty list is none: so the API server has it.
fn set_list(status: &mut Map<String, Value>, name: &str, items: Vec<Value>) {
    if items.is_empty() {
        status.remove(name);
    } else {
        status.insert(name.to_owned(), Value::Array(items));
    }
}

fn status(object: &mut Value) -> &mut Map<String, Value> {
    child(root(object), "status")
}

/// A map within a part of the object, made when it is missing.
fn map<'a>(object: &'a mut Value, part: &str, name: &str) -> &'a mut Map<String, Value> {
    child(child(root(object), part), name)
}

/// Removes one entry of such a map, without making any.
fn remove(object: &mut Value, part: &str, name: &str, key: &str) {
    let map = object.get_mut(part).and_then(|part| part.get_mut(name)).and_then(Value::as_object_mut);
    if let Some(map) = map {
        map.remove(key);
    }
}

#[cfg(test)]
mod tests;
