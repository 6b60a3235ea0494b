//! Security settings.

use berth_core::{
    derived::app_armor,
    spec::{
        AppArmorProfile, Capabilities, ContainerSecurity, FsGroupChange, PodSecurity, ProcMount,
        SeLinuxOptions, Seccomp, Source, SupplementalGroupsPolicy, Sysctl,
    },
};
use k8s_openapi::api::core::v1::{
    AppArmorProfile as ApiAppArmor, Capabilities as ApiCapabilities, Pod as ApiPod, PodSecurityContext,
    PodSpec, SELinuxOptions as ApiSeLinux, SeccompProfile, SecurityContext,
};

use super::notes::Notes;

/// Largest user and group. Source: `IsValidUserID` in `k8s.io/apimachinery/pkg/util/validation`.
const ID_MAX: i64 = i32::MAX as i64;

/// Longest name of an AppArmor profile (`ValidateAppArmorProfileField` of `pkg/apis/core/validation/validation.go`).
const APP_ARMOR_NAME_MAX: usize = 4095;

/// `spec.securityContext`.
pub(super) fn of_pod(
    notes: &mut Notes<'_>,
    written: Option<&PodSecurityContext>,
    source: Source,
) -> PodSecurity {
    let Some(written) = written else { return PodSecurity::default() };
    let at = |name: &str| format!("spec.securityContext.{name}");
    let change = written.se_linux_change_policy.as_deref();
    // It is of volumes that are mounted with a label, of which there are none: what pods mount is labelled file by file. In manifests one of the
    // two is known as long as `SELinuxMount` is off (`useOnlyRecursiveSELinuxChangePolicy` of `pkg/api/pod/util.go`).
    let known = [("Recursive", ()), ("MountOption", ())];
    let known = if source == Source::Api { &known[..] } else { &known[..1] };
    notes.one_of(&at("seLinuxChangePolicy"), change, known);
    let groups = written.supplemental_groups.iter().flatten().enumerate();
    let groups = groups
        .filter_map(|(index, group)| id(notes, &at(&format!("supplementalGroups[{index}]")), Some(*group)))
        .collect();
    PodSecurity {
        run_as_user: id(notes, &at("runAsUser"), written.run_as_user),
        run_as_group: id(notes, &at("runAsGroup"), written.run_as_group),
        run_as_non_root: written.run_as_non_root,
        supplemental_groups: groups,
        supplemental_groups_policy: notes.one_of(
            &at("supplementalGroupsPolicy"),
            written.supplemental_groups_policy.as_deref(),
            &[("Merge", SupplementalGroupsPolicy::Merge), ("Strict", SupplementalGroupsPolicy::Strict)],
        ),
        fs_group: id(notes, &at("fsGroup"), written.fs_group),
        fs_group_change: notes.one_of(
            &at("fsGroupChangePolicy"),
            written.fs_group_change_policy.as_deref(),
            &[("Always", FsGroupChange::Always), ("OnRootMismatch", FsGroupChange::OnRootMismatch)],
        ),
        sysctls: sysctls(notes, written),
        seccomp: seccomp(notes, &at("seccompProfile"), written.seccomp_profile.as_ref()),
        app_armor: app_armor_profile(notes, &at("appArmorProfile"), written.app_armor_profile.as_ref()),
        se_linux: se_linux(written.se_linux_options.as_ref()),
    }
}

/// `securityContext` of a container.
pub(super) fn of_container(
    notes: &mut Notes<'_>,
    field: &str,
    written: Option<&SecurityContext>,
    has_users: bool,
) -> ContainerSecurity {
    let Some(written) = written else { return ContainerSecurity::default() };
    let at = |name: &str| format!("{field}.{name}");
    let privileged = written.privileged == Some(true);
    let added = written.capabilities.as_ref().and_then(|set| set.add.as_ref());
    if written.allow_privilege_escalation == Some(false) {
        if privileged {
            notes.fault(&at("allowPrivilegeEscalation"), "cannot be false while `privileged` is true");
        }
        // Only by this name: validation upstream does not know the usual one (`ValidateSecurityContext`).
        if added.is_some_and(|names| names.iter().any(|name| name == "CAP_SYS_ADMIN")) {
            notes.fault(&at("allowPrivilegeEscalation"), "cannot be false while CAP_SYS_ADMIN is added");
        }
    }
    // Without a user namespace, /proc unmasked is the node's.
    if written.proc_mount.as_deref() == Some("Unmasked") && !has_users {
        notes.fault(&at("procMount"), "`hostUsers` must be false to use `Unmasked`");
    }
    ContainerSecurity {
        privileged,
        read_only_root: written.read_only_root_filesystem == Some(true),
        allow_privilege_escalation: written.allow_privilege_escalation,
        run_as_user: id(notes, &at("runAsUser"), written.run_as_user),
        run_as_group: id(notes, &at("runAsGroup"), written.run_as_group),
        run_as_non_root: written.run_as_non_root,
        capabilities: capabilities(notes, &at("capabilities"), written.capabilities.as_ref()),
        proc_mount: notes.one_of(
            &at("procMount"),
            written.proc_mount.as_deref(),
            &[("Default", ProcMount::Default), ("Unmasked", ProcMount::Unmasked)],
        ),
        seccomp: seccomp(notes, &at("seccompProfile"), written.seccomp_profile.as_ref()),
        app_armor: app_armor_profile(notes, &at("appArmorProfile"), written.app_armor_profile.as_ref()),
        se_linux: se_linux(written.se_linux_options.as_ref()),
    }
}

fn id(notes: &mut Notes<'_>, field: &str, written: Option<i64>) -> Option<u32> {
    notes.number(field, written, 0, ID_MAX)
}

/// The API takes any text. What makes no label is told when the pod begins.
fn se_linux(written: Option<&ApiSeLinux>) -> SeLinuxOptions {
    let Some(ApiSeLinux { user, role, type_, level }) = written else { return SeLinuxOptions::default() };
    let [user, role, kind, level] = [user, role, type_, level].map(|part| part.clone().unwrap_or_default());
    SeLinuxOptions { user, role, kind, level }
}

/// Source: `ValidateAppArmorProfileField` of `pkg/apis/core/validation/validation.go`.
fn app_armor_profile(
    notes: &mut Notes<'_>,
    field: &str,
    written: Option<&ApiAppArmor>,
) -> Option<AppArmorProfile> {
    let written = written?;
    let local = written.localhost_profile.as_deref();
    let at = format!("{field}.localhostProfile");
    let known = [
        ("Localhost", AppArmorProfile::Localhost(local.unwrap_or_default().to_owned())),
        ("RuntimeDefault", AppArmorProfile::RuntimeDefault),
        ("Unconfined", AppArmorProfile::Unconfined),
    ];
    let index = notes.one_of(
        &format!("{field}.type"),
        Some(&written.type_),
        &[(known[0].0, 0), (known[1].0, 1), (known[2].0, 2)],
    );
    match (index, local) {
        (0, None | Some("")) => notes.fault(&at, "must be set when AppArmor type is Localhost"),
        (0, Some(name)) if name.trim() != name => notes.fault(&at, "must not be padded with whitespace"),
        (0, Some(name)) if name.len() > APP_ARMOR_NAME_MAX => {
            notes.fault(&at, format!("may not be more than {APP_ARMOR_NAME_MAX} bytes"));
        }
        (0, Some(_)) | (_, None) => {}
        (_, Some(_)) => notes.fault(&at, "can only be set when AppArmor type is Localhost"),
    }
    known.into_iter().nth(index).map(|(_, profile)| profile)
}

/// The annotations that profiles were asked for by before there was a field, and still are in manifests: the core goes by them. Source:
/// `ValidateAppArmorPodAnnotations` of `pkg/apis/core/validation/validation.go`.
pub(super) fn app_armor_annotations(notes: &mut Notes<'_>, written: &ApiPod) {
    let containers: Vec<&str> = written.spec.iter().flat_map(names).collect();
    for (key, profile) in written.metadata.annotations.iter().flatten() {
        let Some(container) = key.strip_prefix(app_armor::ANNOTATION) else { continue };
        let field = format!("metadata.annotations.{key}");
        if !containers.contains(&container) {
            notes.fault(&field, "container not found");
        }
        if !profile.is_empty() && app_armor::annotated(profile).is_none() {
            notes.fault(&field, format!("invalid AppArmor profile name: {profile:?}"));
        }
    }
}

/// Names of all containers.
fn names(spec: &PodSpec) -> impl Iterator<Item = &str> {
    let regular = spec.init_containers.iter().flatten().chain(&spec.containers).map(|it| it.name.as_str());
    regular.chain(spec.ephemeral_containers.iter().flatten().map(|it| it.name.as_str()))
}

fn seccomp(notes: &mut Notes<'_>, field: &str, written: Option<&SeccompProfile>) -> Option<Seccomp> {
    let written = written?;
    let local = written.localhost_profile.as_deref();
    match written.type_.as_str() {
        "Localhost" => {
            // CVE-2023-2431: an empty name must never turn into no filter.
            let path = local.unwrap_or_default();
            if path.is_empty() || path.starts_with('/') || path.split('/').any(|part| part == "..") {
                let message = "must name a file below the seccomp directory: relative, without `..`";
                notes.fault(&format!("{field}.localhostProfile"), message);
            }
            Some(Seccomp::Localhost(path.to_owned()))
        }
        kind => {
            if local.is_some() {
                notes.fault(&format!("{field}.localhostProfile"), "goes with `type: Localhost` only");
            }
            let known = [("RuntimeDefault", Seccomp::RuntimeDefault), ("Unconfined", Seccomp::Unconfined)];
            let index = notes.required_one_of(
                &format!("{field}.type"),
                kind,
                &[(known[0].0, 0), (known[1].0, 1), ("Localhost", 0)],
            );
            known.into_iter().nth(index).map(|(_, profile)| profile)
        }
    }
}

fn capabilities(notes: &mut Notes<'_>, field: &str, written: Option<&ApiCapabilities>) -> Capabilities {
    let mut names = |list: &str, written: Option<&Vec<String>>, is_refused: bool| -> Vec<String> {
        let mut names = Vec::new();
        for (index, name) in written.into_iter().flatten().enumerate() {
            let upper = name.to_ascii_uppercase();
            let at = format!("{field}.{list}[{index}]");
            let has_form =
                !upper.is_empty() && upper.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
            // Containerd puts the prefix before every name, and runtimes pass over what is none then.
            let is_none = !has_form || upper.starts_with("CAP_");
            if is_none && is_refused {
                let message =
                    format!("`{name}` is not a capability: write it without CAP_, such as `NET_ADMIN`");
                notes.fault(&at, message);
            } else if is_none {
                notes.unsupported(at);
                continue;
            }
            names.push(upper);
        }
        names
    };
    Capabilities {
        add: names("add", written.and_then(|set| set.add.as_ref()), false),
        drop: names("drop", written.and_then(|set| set.drop.as_ref()), true),
    }
}

fn sysctls(notes: &mut Notes<'_>, written: &PodSecurityContext) -> Vec<Sysctl> {
    let mut sysctls: Vec<Sysctl> = Vec::new();
    for (index, sysctl) in written.sysctls.iter().flatten().enumerate() {
        let field = format!("spec.securityContext.sysctls[{index}].name");
        // With slashes, dots are part of a name: `net/ipv4/conf/eth0.100/forwarding`.
        let slashes = sysctl.name.find(['.', '/']).is_some_and(|at| sysctl.name.as_bytes()[at] == b'/');
        let swap = |letter: char| match letter {
            '/' => '.',
            '.' => '/',
            other => other,
        };
        let name: String =
            if slashes { sysctl.name.chars().map(swap).collect() } else { sysctl.name.clone() };
        let form = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
        if name.is_empty() || name.len() > 253 || !name.bytes().all(form) || name.contains("..") {
            notes.fault(&field, format!("`{}` is not the name of a sysctl", sysctl.name));
        }
        if sysctls.iter().any(|known| known.name == name) {
            notes.fault(&field, format!("`{}` is given twice", sysctl.name));
        }
        sysctls.push(Sysctl { name, value: sysctl.value.clone() });
    }
    sysctls
}
