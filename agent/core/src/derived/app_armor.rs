//! Which AppArmor profile a container is to have, and whether a node can give it.
//!
//! Source: `pkg/security/apparmor/{helpers,validate}.go`, `NewAppArmorAdmitHandler` of `pkg/kubelet/lifecycle/handlers.go`.

use std::borrow::Cow;

use thiserror::Error;

use crate::{
    config::AppArmor,
    spec::{AppArmorProfile, Container, Pod},
};

/// What the name of a container follows in the annotations that profiles were asked for by before there was a field.
pub const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Why a pod may not begin: reason `AppArmor` of the pod's failure, these words its message.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AppArmorError {
    /// The kernel has none.
    #[error("Cannot enforce AppArmor: AppArmor is not enabled on the host")]
    NotEnabled,
    /// A profile of the node without a name.
    #[error(
        "Cannot enforce AppArmor: invalid empty AppArmor profile name: \
         \"&AppArmorProfile{{Type:Localhost,LocalhostProfile:*{name},}}\""
    )]
    Empty {
        /// As written.
        name: String,
    },
}

/// Whether the node can enforce what the pod asks for.
///
/// # Errors
/// Why it cannot.
pub fn check(pod: &Pod, node: AppArmor) -> Result<(), AppArmorError> {
    if !is_required(pod) {
        return Ok(());
    }
    match node {
        AppArmor::Absent => return Err(AppArmorError::NotEnabled),
        AppArmor::Unused | AppArmor::Enforced => {}
    }
    for container in pod.all_containers() {
        if let Some(AppArmorProfile::Localhost(name)) = profile(pod, container).as_deref()
            && name.trim().is_empty()
        {
            return Err(AppArmorError::Empty { name: name.clone() });
        }
    }
    Ok(())
}

/// The profile that a container asks for: by its field, by the pod's annotation of its name, or by the pod's field.
#[must_use]
pub fn profile<'a>(pod: &'a Pod, container: &'a Container) -> Option<Cow<'a, AppArmorProfile>> {
    let own = container.security.app_armor.as_ref().map(Cow::Borrowed);
    own.or_else(|| {
        let written = pod.annotations.get(&format!("{ANNOTATION}{}", container.name))?;
        annotated(written).map(Cow::Owned)
    })
    .or_else(|| pod.security.app_armor.as_ref().map(Cow::Borrowed))
}

/// What the value of an annotation asks for; `None` for a value that is none.
#[must_use]
pub fn annotated(value: &str) -> Option<AppArmorProfile> {
    match value {
        "runtime/default" => Some(AppArmorProfile::RuntimeDefault),
        "unconfined" => Some(AppArmorProfile::Unconfined),
        other => Some(AppArmorProfile::Localhost(other.strip_prefix("localhost/")?.to_owned())),
    }
}

/// Whether anything of the pod asks for a profile, also where something else of it counts before.
fn is_required(pod: &Pod) -> bool {
    let is_one = |profile: &AppArmorProfile| *profile != AppArmorProfile::Unconfined;
    pod.security.app_armor.as_ref().is_some_and(is_one)
        || pod.all_containers().any(|it| it.security.app_armor.as_ref().is_some_and(is_one))
        || pod.annotations.iter().any(|(name, value)| name.starts_with(ANNOTATION) && value != "unconfined")
}

#[cfg(test)]
mod tests {
    use AppArmorProfile::{Localhost, RuntimeDefault, Unconfined};

    use super::*;
    use crate::fixtures;

    fn pod(of_pod: Option<AppArmorProfile>, own: Option<AppArmorProfile>, annotation: Option<&str>) -> Pod {
        let mut container = fixtures::container("web");
        container.security.app_armor = own;
        let mut pod = fixtures::pod(vec![container]);
        pod.security.app_armor = of_pod;
        if let Some(value) = annotation {
            pod.annotations.insert(format!("{ANNOTATION}web"), value.to_owned());
        }
        pod
    }

    fn localhost(name: &str) -> AppArmorProfile {
        Localhost(name.to_owned())
    }

    #[test]
    fn a_containers_field_counts_before_its_annotation_and_that_before_the_pods_field() {
        for (of_pod, own, annotation, expected) in [
            (None, None, None, None),
            (Some(Unconfined), None, None, Some(Unconfined)),
            (Some(Unconfined), Some(RuntimeDefault), None, Some(RuntimeDefault)),
            (Some(Unconfined), Some(RuntimeDefault), Some("localhost/a"), Some(RuntimeDefault)),
            (Some(Unconfined), None, Some("localhost/a"), Some(localhost("a"))),
            (Some(Unconfined), None, Some("runtime/default"), Some(RuntimeDefault)),
            (Some(RuntimeDefault), None, Some("unconfined"), Some(Unconfined)),
            (Some(RuntimeDefault), None, Some("no such"), Some(RuntimeDefault)),
            (None, None, Some(""), None),
        ] {
            let pod = pod(of_pod, own, annotation);
            let found = profile(&pod, &pod.containers[0]).map(Cow::into_owned);
            assert_eq!(found, expected, "{annotation:?}");
        }
    }

    #[test]
    fn a_pod_is_refused_where_its_profile_cannot_be_enforced() {
        let no = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
        let empty = "Cannot enforce AppArmor: invalid empty AppArmor profile name: \
            \"&AppArmorProfile{Type:Localhost,LocalhostProfile:* ,}\"";
        for (of_pod, own, annotation, without, with) in [
            (None, None, None, None, None),
            (Some(Unconfined), Some(Unconfined), Some("unconfined"), None, None),
            (Some(RuntimeDefault), None, None, Some(no), None),
            (Some(RuntimeDefault), Some(Unconfined), None, Some(no), None),
            (None, Some(RuntimeDefault), None, Some(no), None),
            (None, Some(localhost("a")), None, Some(no), None),
            (None, Some(localhost(" ")), None, Some(no), Some(empty)),
            (None, None, Some("localhost/ "), Some(no), Some(empty)),
            (None, None, Some("runtime/default"), Some(no), None),
            (None, None, Some("no such"), Some(no), None),
        ] {
            let pod = pod(of_pod, own, annotation);
            let told = |node| check(&pod, node).err().map(|error| error.to_string());
            assert_eq!(told(AppArmor::Absent).as_deref(), without, "{pod:?}");
            assert_eq!(told(AppArmor::Unused).as_deref(), with, "{pod:?}");
            assert_eq!(told(AppArmor::Enforced).as_deref(), with, "{pod:?}");
        }
    }
}
