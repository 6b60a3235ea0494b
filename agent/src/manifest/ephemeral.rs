//! Ephemeral containers. Source: `validateEphemeralContainers` of `pkg/apis/core/validation/validation.go`.

use std::sync::Arc;

use berth_core::{
    id::ContainerName,
    spec::{Container, ContainerKind, Source, SubPath},
};
use k8s_openapi::api::core::v1::{Container as ApiContainer, EphemeralContainer, PodSpec};

use super::{
    container::{self, Surroundings},
    notes::Notes,
};

/// Their field of the spec.
pub(super) const LIST: &str = "ephemeralContainers";

/// Those of a pod, which come to it when it is there: to a static one never.
pub(super) fn convert(
    notes: &mut Notes<'_>,
    spec: &PodSpec,
    around: Surroundings<'_>,
) -> Vec<Arc<Container>> {
    let written = spec.ephemeral_containers.as_deref().unwrap_or_default();
    match around.of {
        Source::Api => {}
        Source::File | Source::Http if written.is_empty() => {}
        Source::File | Source::Http => {
            notes.fault(&format!("spec.{LIST}"), "cannot be given when a pod is made");
            return Vec::new();
        }
    }
    let all = written.iter().enumerate();
    all.map(|(index, one)| Arc::new(of_one(notes, &format!("spec.{LIST}[{index}]"), one, spec, around)))
        .collect()
}

fn of_one(
    notes: &mut Notes<'_>,
    field: &str,
    written: &EphemeralContainer,
    spec: &PodSpec,
    around: Surroundings<'_>,
) -> Container {
    let plain = as_container(written);
    for (name, is_there) in not_allowed(&plain) {
        if is_there {
            notes.fault(&format!("{field}.{name}"), "cannot be set for an ephemeral container");
        }
    }
    let container = container::convert(notes, field, &plain, ContainerKind::Ephemeral, around);
    for (index, mount) in container.mounts.iter().enumerate() {
        let name = match mount.sub_path {
            SubPath::Root => continue,
            SubPath::Fixed(_) => "subPath",
            SubPath::Expression(_) => "subPathExpr",
        };
        let message = "cannot be set for an ephemeral container";
        notes.fault(&format!("{field}.volumeMounts[{index}].{name}"), message);
    }
    let target = written.target_container_name.as_deref().filter(|name| !name.is_empty());
    let mut others = spec.init_containers.iter().flatten().chain(&spec.containers);
    if let Some(name) = target.filter(|name| !others.any(|one| one.name == *name)) {
        notes.fault(&format!("{field}.targetContainerName"), format!("the pod has no container `{name}`"));
    }
    Container { target: target.map(ContainerName::new), ..container }
}

/// Fields that only containers have that a pod was made with, and whether each is there. What is empty says nothing.
fn not_allowed(written: &ApiContainer) -> [(&'static str, bool); 9] {
    fn some<T>(list: Option<&Vec<T>>) -> bool {
        list.is_some_and(|list| !list.is_empty())
    }
    let resources = written.resources.as_ref().is_some_and(|one| {
        let amounts = [&one.limits, &one.requests];
        some(one.claims.as_ref()) || amounts.into_iter().flatten().any(|amounts| !amounts.is_empty())
    });
    [
        ("lifecycle", written.lifecycle.is_some()),
        ("livenessProbe", written.liveness_probe.is_some()),
        ("ports", some(written.ports.as_ref())),
        ("readinessProbe", written.readiness_probe.is_some()),
        ("resizePolicy", some(written.resize_policy.as_ref())),
        ("resources", resources),
        ("restartPolicy", written.restart_policy.as_ref().is_some_and(|policy| !policy.is_empty())),
        ("restartPolicyRules", some(written.restart_policy_rules.as_ref())),
        ("startupProbe", written.startup_probe.is_some()),
    ]
}

/// What it has in common with other containers, which is all but its target.
#[must_use]
pub fn as_container(written: &EphemeralContainer) -> ApiContainer {
    let EphemeralContainer {
        args,
        command,
        env,
        env_from,
        image,
        image_pull_policy,
        lifecycle,
        liveness_probe,
        name,
        ports,
        readiness_probe,
        resize_policy,
        resources,
        restart_policy,
        restart_policy_rules,
        security_context,
        startup_probe,
        stdin,
        stdin_once,
        target_container_name: _,
        termination_message_path,
        termination_message_policy,
        tty,
        volume_devices,
        volume_mounts,
        working_dir,
    } = written.clone();
    ApiContainer {
        args,
        command,
        env,
        env_from,
        image,
        image_pull_policy,
        lifecycle,
        liveness_probe,
        name,
        ports,
        readiness_probe,
        resize_policy,
        resources,
        restart_policy,
        restart_policy_rules,
        security_context,
        startup_probe,
        stdin,
        stdin_once,
        termination_message_path,
        termination_message_policy,
        tty,
        volume_devices,
        volume_mounts,
        working_dir,
    }
}
