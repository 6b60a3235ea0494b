//! What the configuration of a runtime handler changes of its containers.
//!
//! Source: containerd `internal/cri/server/container_create.go` `runtimeSpec`, `internal/cri/server/helpers_linux.go`
//! `modifyProcessLabel`, `internal/cri/util/util.go` `GetPassthroughAnnotations`.

use std::collections::BTreeMap;

use oci_spec::runtime::Spec;

use super::ContainerPlan;
use crate::glob;

/// The part of a handler that the OCI spec shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandlerTerms<'a> {
    /// Patterns of annotations of the pod that the runtime sees (`pod_annotations`).
    pub pod_annotations: &'a [String],
    /// What privileged containers get of the node's devices.
    pub devices: PrivilegedDevices,
    /// Whether it runs them in virtual machines.
    pub is_vm: bool,
}

/// What a privileged container gets of the node's devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PrivilegedDevices {
    /// All of them.
    #[default]
    All,
    /// None, and it may use all (`privileged_without_host_devices_all_devices_allowed`): a virtual machine has its own.
    Allowed,
    /// None (`privileged_without_host_devices`).
    None,
}

/// The complete spec of a plan as the handler wants it, with the plan's SELinux label for virtual machines where it runs such. What Berth itself
/// annotates stays, and so do volumes that are devices.
#[must_use]
pub fn with_terms(
    mut spec: Spec,
    plan: &ContainerPlan,
    annotations: &BTreeMap<String, String>,
    is_privileged: bool,
    terms: HandlerTerms<'_>,
) -> Spec {
    let passed = annotations
        .iter()
        .filter(|(name, _)| terms.pod_annotations.iter().any(|pattern| glob::matches(pattern, name)));
    let own = spec.annotations_mut().get_or_insert_default();
    for (name, value) in passed {
        own.entry(name.clone()).or_insert_with(|| value.clone());
    }
    if let Some(process) = spec.process_mut().as_mut().filter(|_| terms.is_vm) {
        process.set_selinux_label(plan.vm_label.clone());
    }
    let Some(linux) = spec.linux_mut().as_mut().filter(|_| is_privileged) else { return spec };
    if terms.devices == PrivilegedDevices::All {
        return spec;
    }
    let mut devices = linux.devices().clone().unwrap_or_default();
    devices.retain(|device| plan.devices.iter().any(|volume| *device.path() == *volume.path));
    linux.set_devices(Some(devices));
    if terms.devices == PrivilegedDevices::None
        && let Some(rules) =
            linux.resources_mut().as_mut().and_then(|resources| resources.devices_mut().as_mut())
    {
        // That of a volume names its device.
        rules.iter_mut().filter(|rule| rule.major().is_none()).for_each(|rule| {
            rule.set_allow(false);
        });
    }
    spec
}
