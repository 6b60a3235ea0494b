//! Volumes.

use std::collections::BTreeSet;

use berth_core::{
    id::{ImageRef, VolumeName},
    spec::{ClaimVolume, HostPathType, Medium, Source, Volume, VolumeSource},
};
use k8s_openapi::api::core::v1::{
    EmptyDirVolumeSource, HostPathVolumeSource, ImageVolumeSource, Volume as ApiVolume,
};

use super::{
    container::pull_policy,
    content, is_dns_label, is_dns_subdomain,
    notes::Notes,
    resources::{amount, page_size},
};

/// Volumes that need an object of the API server, which a static pod may not use (`pkg/api/pod` `HasAPIObjectReference`).
const OF_THE_API: [&str; 5] = ["configMap", "secret", "projected", "persistentVolumeClaim", "ephemeral"];

/// `type` of a `hostPath`.
pub(crate) const HOST_PATH_TYPES: [(&str, HostPathType); 8] = [
    ("", HostPathType::Unset),
    ("DirectoryOrCreate", HostPathType::DirectoryOrCreate),
    ("Directory", HostPathType::Directory),
    ("FileOrCreate", HostPathType::FileOrCreate),
    ("File", HostPathType::File),
    ("Socket", HostPathType::Socket),
    ("CharDevice", HostPathType::CharDevice),
    ("BlockDevice", HostPathType::BlockDevice),
];

/// `spec.volumes`.
pub(super) fn convert(notes: &mut Notes<'_>, written: &[ApiVolume], pod: &str, of: Source) -> Vec<Volume> {
    let mut names = BTreeSet::new();
    let mut volumes = Vec::new();
    for (index, volume) in written.iter().enumerate() {
        let field = format!("spec.volumes[{index}]");
        if !is_dns_label(&volume.name) {
            notes.fault(&format!("{field}.name"), format!("`{}` is not a DNS label", volume.name));
        }
        if !names.insert(&volume.name) {
            notes.fault(&format!("{field}.name"), format!("`{}` is given twice", volume.name));
        }
        if let Some(source) = source(notes, &field, volume, pod, of) {
            volumes.push(Volume { name: VolumeName::new(&volume.name), source });
        }
    }
    volumes
}

fn source(
    notes: &mut Notes<'_>,
    field: &str,
    volume: &ApiVolume,
    pod: &str,
    of: Source,
) -> Option<VolumeSource> {
    let kinds = kinds(volume);
    let may_use_objects = match of {
        Source::Api => true,
        Source::File | Source::Http => content::is_of_pod(volume),
    };
    match (kinds.as_slice(), &volume.empty_dir, &volume.host_path) {
        // Nothing at all is an emptyDir (`pkg/apis/core/v1/defaults.go` `SetDefaults_Volume`).
        ([], ..) => Some(VolumeSource::EmptyDir { medium: Medium::Disk, size_limit_bytes: None }),
        ([_], Some(written), _) => Some(empty_dir(notes, &format!("{field}.emptyDir"), written)),
        ([_], _, Some(written)) => host_path(notes, &format!("{field}.hostPath"), written),
        ([kind], ..) if OF_THE_API.contains(&kind.as_str()) && !may_use_objects => {
            notes.fault(
                &format!("{field}.{kind}"),
                "needs an object of the API server, which a static pod may not use",
            );
            None
        }
        ([kind], ..) => of_objects(notes, field, volume, pod).or_else(|| {
            if volume.image.is_none() {
                let message =
                    "volumes of this kind are not supported by this version: use `emptyDir` or `hostPath`";
                notes.fault(&format!("{field}.{kind}"), message);
            }
            None
        }),
        (several, ..) => {
            notes.fault(field, format!("a volume is of one kind, this one of {}", several.join(" and ")));
            None
        }
    }
}

/// One that shows an object, or is made of one.
fn of_objects(notes: &mut Notes<'_>, field: &str, volume: &ApiVolume, pod: &str) -> Option<VolumeSource> {
    if let Some(written) = &volume.image {
        return image(notes, &format!("{field}.image"), written);
    }
    if let Some(written) = &volume.persistent_volume_claim {
        let name = written.claim_name.clone();
        if !is_dns_subdomain(&name) {
            let message = format!("`{name}` is not the name of an object");
            notes.fault(&format!("{field}.persistentVolumeClaim.claimName"), message);
        }
        let read_only = written.read_only == Some(true);
        return Some(VolumeSource::Claim(ClaimVolume { name, read_only, is_of_pod: false }));
    }
    if volume.ephemeral.is_some() {
        // Source: `VolumeClaimName` of `k8s.io/component-helpers/storage/ephemeral`.
        let name = format!("{pod}-{}", volume.name);
        return Some(VolumeSource::Claim(ClaimVolume { name, read_only: false, is_of_pod: true }));
    }
    content::convert(notes, field, volume).map(VolumeSource::Content)
}

/// Every kind that is written, by its name.
fn kinds(volume: &ApiVolume) -> Vec<String> {
    let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(volume) else { return Vec::new() };
    fields.into_iter().map(|(name, _)| name).filter(|name| name != "name").collect()
}

fn empty_dir(notes: &mut Notes<'_>, field: &str, written: &EmptyDirVolumeSource) -> VolumeSource {
    let medium = medium(notes, &format!("{field}.medium"), written.medium.as_deref());
    let limit =
        written.size_limit.as_ref().and_then(|limit| amount(notes, &format!("{field}.sizeLimit"), &limit.0));
    // A limit of zero is no limit (`pkg/volume/emptydir`).
    let size_limit_bytes = limit.map(|limit| limit.units().unsigned_abs()).filter(|bytes| *bytes > 0);
    VolumeSource::EmptyDir { medium, size_limit_bytes }
}

fn medium(notes: &mut Notes<'_>, field: &str, written: Option<&str>) -> Medium {
    let pages = written.and_then(|medium| medium.strip_prefix("HugePages-"));
    if let Some(size) = pages {
        let size = page_size(size);
        if size.is_none() {
            notes.fault(field, "must be `HugePages-` and a page size, such as `2Mi`");
        }
        return Medium::HugePages(size);
    }
    let mediums = [("", Medium::Disk), ("Memory", Medium::Memory), ("HugePages", Medium::HugePages(None))];
    notes.one_of(field, written, &mediums)
}

/// What is no name of an image is told when it is looked for, as by the kubelet.
fn image(notes: &mut Notes<'_>, field: &str, written: &ImageVolumeSource) -> Option<VolumeSource> {
    let reference = written.reference.as_deref().unwrap_or_default();
    if reference.is_empty() {
        notes.fault(&format!("{field}.reference"), "must be the name of an image");
    }
    let field = format!("{field}.pullPolicy");
    let pull_policy = pull_policy(notes, &field, reference, written.pull_policy.as_deref());
    (!reference.is_empty()).then(|| VolumeSource::Image { image: ImageRef::new(reference), pull_policy })
}

fn host_path(notes: &mut Notes<'_>, field: &str, written: &HostPathVolumeSource) -> Option<VolumeSource> {
    let path = written.path.as_str();
    let good = path.starts_with('/') && path.split('/').all(|part| part != "..") && !path.contains('\0');
    if !good {
        notes.fault(&format!("{field}.path"), format!("`{path}` is not an absolute path without `..`"));
    }
    let kind = notes.one_of(&format!("{field}.type"), written.type_.as_deref(), &HOST_PATH_TYPES);
    good.then(|| VolumeSource::HostPath { path: path.to_owned(), kind })
}
