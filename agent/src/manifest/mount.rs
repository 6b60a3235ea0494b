//! Mounts of volumes in containers.

use berth_core::{
    id::VolumeName,
    spec::{Mount, MountPropagation, RecursiveReadOnly, SubPath, Volume, VolumeDevice, VolumeSource},
};
use k8s_openapi::api::core::v1::{Container as ApiContainer, VolumeMount};

use super::notes::Notes;

/// `volumeMounts`. `volumes` are those of the pod that could be converted, and the names of all.
pub(super) fn convert(
    notes: &mut Notes<'_>,
    field: &str,
    written: &ApiContainer,
    privileged: bool,
    (volumes, volume_names): (&[Volume], &[&str]),
) -> Vec<Mount> {
    let mut mounts: Vec<Mount> = Vec::new();
    for (index, mount) in written.volume_mounts.iter().flatten().enumerate() {
        let field = format!("{field}[{index}]");
        let mount = self::mount(notes, &field, mount, privileged);
        if !volume_names.contains(&mount.volume.as_str()) {
            notes.fault(&format!("{field}.name"), format!("the pod has no volume `{}`", mount.volume));
        }
        if mounts.iter().any(|known| known.path == mount.path) {
            notes.fault(&format!("{field}.mountPath"), format!("`{}` is given twice", mount.path));
        }
        // A volume that could not be converted has its own fault.
        if volumes.iter().any(|volume| volume.name == mount.volume) {
            mounts.push(mount);
        }
    }
    mounts
}

/// `volumeDevices` (`ValidateVolumeDevices` of `pkg/apis/core/validation/validation.go`).
pub(super) fn devices(
    notes: &mut Notes<'_>,
    field: &str,
    written: &ApiContainer,
    (volumes, volume_names): (&[Volume], &[&str]),
) -> Vec<VolumeDevice> {
    let mounts = || written.volume_mounts.iter().flatten();
    let mut devices: Vec<VolumeDevice> = Vec::new();
    for (index, device) in written.volume_devices.iter().flatten().enumerate() {
        let at = |name: &str| format!("{field}[{index}].{name}");
        let (name, path) = (device.name.as_str(), device.device_path.as_str());
        if !volume_names.contains(&name) {
            notes.fault(&at("name"), format!("the pod has no volume `{name}`"));
        }
        let volume = volumes.iter().find(|volume| volume.name.as_str() == name);
        if volume.is_some_and(|volume| !matches!(volume.source, VolumeSource::Claim(_))) {
            notes.fault(&at("name"), "only a volume of a claim can be a device");
        }
        let is_again = devices.iter().any(|known| known.volume.as_str() == name);
        if is_again || mounts().any(|mount| mount.name == name) {
            notes.fault(&at("name"), format!("`{name}` is given twice"));
        }
        if !path.starts_with('/') || path.contains('\0') || path.split('/').any(|part| part == "..") {
            notes.fault(&at("devicePath"), format!("`{path}` is not an absolute path without `..`"));
        }
        let is_again = devices.iter().any(|known| known.path == path);
        if is_again || mounts().any(|mount| mount.mount_path == path) {
            notes.fault(&at("devicePath"), format!("`{path}` is given twice"));
        }
        devices.push(VolumeDevice { volume: VolumeName::new(name), path: path.to_owned() });
    }
    devices
}

fn mount(notes: &mut Notes<'_>, field: &str, written: &VolumeMount, privileged: bool) -> Mount {
    let path = written.mount_path.as_str();
    if path.is_empty() || path.contains('\0') {
        notes.fault(&format!("{field}.mountPath"), "must be a path");
    }
    let read_only = written.read_only == Some(true);
    let propagation = notes.one_of(
        &format!("{field}.mountPropagation"),
        written.mount_propagation.as_deref(),
        &[
            ("None", MountPropagation::Private),
            ("HostToContainer", MountPropagation::HostToContainer),
            ("Bidirectional", MountPropagation::Bidirectional),
        ],
    );
    if propagation == MountPropagation::Bidirectional && !privileged {
        notes
            .fault(&format!("{field}.mountPropagation"), "`Bidirectional` is for privileged containers only");
    }
    let recursive_read_only = recursive_read_only(notes, field, written, read_only, propagation);
    Mount {
        volume: VolumeName::new(&written.name),
        path: absolute(path),
        sub_path: sub_path(notes, field, written),
        read_only,
        recursive_read_only,
        propagation,
    }
}

/// Source: `validateMountRecursiveReadOnly` of `pkg/apis/core/validation/validation.go`.
fn recursive_read_only(
    notes: &mut Notes<'_>,
    field: &str,
    written: &VolumeMount,
    read_only: bool,
    propagation: MountPropagation,
) -> RecursiveReadOnly {
    let field = format!("{field}.recursiveReadOnly");
    let mode = notes.one_of(
        &field,
        written.recursive_read_only.as_deref(),
        &[
            ("Disabled", RecursiveReadOnly::Disabled),
            ("IfPossible", RecursiveReadOnly::IfPossible),
            ("Enabled", RecursiveReadOnly::Enabled),
        ],
    );
    if mode != RecursiveReadOnly::Disabled {
        if !read_only {
            notes.fault(&field, "may only be specified when readOnly is true");
        }
        if propagation != MountPropagation::Private {
            notes.fault(&field, "may only be specified when mountPropagation is None or not specified");
        }
    }
    mode
}

/// A relative path begins at the root. Source: `MakeAbsolutePath` of `pkg/volume/util/util.go`.
pub(super) fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

fn sub_path(notes: &mut Notes<'_>, field: &str, written: &VolumeMount) -> SubPath {
    let fixed = written.sub_path.as_deref().filter(|path| !path.is_empty());
    let expression = written.sub_path_expr.as_deref().filter(|path| !path.is_empty());
    let mut check = |name: &str, path: &str| {
        if path.starts_with('/') || path.split('/').any(|part| part == "..") || path.contains('\0') {
            notes.fault(&format!("{field}.{name}"), format!("`{path}` is not a relative path without `..`"));
        }
    };
    match (fixed, expression) {
        (None, None) => SubPath::Root,
        (Some(path), None) => {
            check("subPath", path);
            SubPath::Fixed(path.to_owned())
        }
        (None, Some(path)) => {
            check("subPathExpr", path);
            SubPath::Expression(path.to_owned())
        }
        (Some(_), Some(_)) => {
            notes.fault(&format!("{field}.subPathExpr"), "goes without `subPath` only");
            SubPath::Root
        }
    }
}
