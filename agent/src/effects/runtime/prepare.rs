//! What must be on the node before a container: files, parts of volumes, the image's volumes, and a complete OCI spec.

use std::{
    fs,
    io::{self, Read},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use berth_core::{
    failure::{Failure, FailureKind},
    oci::{self, ConfigError, ContainerPlan, HostDevice, HostDeviceKind, HostDevices, NodeParts},
    pod::port::{start::StartRequest, volume::not_mounted},
    selinux::Relabel,
};
use oci_spec::runtime::Spec;

use crate::{
    effects::{
        failure::{config, failed, local, unknown},
        files::{
            app_armor::{self, AppArmorParts, Places},
            sub_path::Stage,
            wire::{MountedText, RelabelText},
            work::{Answer, Called, FILES, PATH, TREE, Work},
        },
        host::Host,
        images::rootfs,
    },
    workers::Sort,
};

/// Largest seccomp profile that is read. The runtime's own default is 15 KiB.
const PROFILE_MAX: u64 = 1 << 20;

/// Deepest directory below `/dev` that is searched for devices.
const DEV_DEPTH_MAX: usize = 4;

/// Directories of `/dev` whose content a container has of its own.
/// Source: containerd `pkg/oci/utils_unix.go` `getDevices`.
const DEV_SKIPPED: [&str; 7] = ["pts", "shm", "fd", "mqueue", ".lxc", ".lxd-mounts", ".udev"];

/// Puts everything of the plan in place and returns the spec to run.
pub(super) async fn container(
    host: &Arc<Host>,
    request: &Arc<StartRequest>,
    own_shm: Option<PathBuf>,
) -> Result<Spec, Failure> {
    let spec = without_labels(host, request).await?;
    relabel(host, request, own_shm).await?;
    Ok(spec)
}

/// Labels what of the pod the container mounts, now that all of it is there: with what its runtime has mounted for the pod, where that is
/// not our shim's.
async fn relabel(host: &Host, request: &StartRequest, own_shm: Option<PathBuf>) -> Result<(), Failure> {
    let Some((path, work)) = labels(&request.plan, own_shm) else { return Ok(()) };
    let what = format!("labels of container {}", request.container.name);
    let called = Called { what: &what, path: &path, sort: Sort::Own, within: TREE };
    host.work(request.pod.uid.as_str(), called, &work).await.map(drop)
}

/// The work, and the first path that it looks at.
fn labels(plan: &ContainerPlan, own_shm: Option<PathBuf>) -> Option<(String, Work)> {
    let Relabel { label, places } = plan.relabel.as_ref()?;
    let shm = own_shm.map(|path| RelabelText {
        root: path.display().to_string(),
        part: None,
        mounted: MountedText::Memory,
    });
    let places: Vec<RelabelText> = places.iter().map(Into::into).chain(shm).collect();
    let path = places.first()?.root.clone();
    Some((path, Work::Relabel { label: label.clone(), places }))
}

async fn without_labels(host: &Arc<Host>, request: &Arc<StartRequest>) -> Result<Spec, Failure> {
    let (plan, pod, name) = (&request.plan, request.pod.uid.as_str(), &request.container.name);
    if let Some(first) = plan.image_volumes.first() {
        let layers = rootfs::mounts(host, &request.id).await?.iter().map(Into::into).collect();
        let volumes = plan.image_volumes.iter().map(Into::into).collect();
        let what = format!("image volumes of container {name}");
        let called = Called { what: &what, path: &first.target, sort: Sort::Own, within: TREE };
        let scratch = format!("{}/image", host.node().paths.run);
        host.work(pod, called, &Work::ImageVolumes { layers, scratch, volumes }).await?;
    }
    let what = format!("files of container {name}");
    let (path, sort, within) = match chosen(host, plan) {
        Some(path) => (path, Sort::Chosen, PATH),
        None => (plan.log_path.as_str(), Sort::Own, FILES),
    };
    let work = Work::Container {
        files: plan.files.iter().map(Into::into).collect(),
        sub_paths: plan.sub_paths.iter().map(Into::into).collect(),
        mount_sources: plan.mount_sources.iter().map(Into::into).collect(),
        log_dir: Path::new(&plan.log_path).parent().map(|dir| dir.display().to_string()),
        profile: plan.seccomp_file.clone(),
        app_armor: AppArmorParts::of(plan.app_armor.as_ref()),
        devices: plan.host_devices == HostDevices::All,
        volumes: plan.devices.iter().map(|device| device.host.clone()).collect(),
    };
    match host.work(pod, Called { what: &what, path, sort, within }, &work).await? {
        Answer::Parts { profile, app_armor, devices, volumes } => {
            let [devices, volumes] = [devices, volumes]
                .map(|found| found.into_iter().map(Into::into).collect::<Vec<HostDevice>>());
            let (seccomp, app_armor) = (profile.as_deref(), app_armor.as_deref());
            oci::complete(plan, NodeParts { seccomp, app_armor, devices: &devices, volumes: &volumes })
                .map_err(|error| failed(kind_of(&error), &error))
        }
        Answer::Withheld { mount, stage: Stage::OfImage(part), why } => {
            let why = format!("failed to ensure image subpath {part:?} in volume {mount:?}: {why}");
            Err(Failure { kind: FailureKind::Transient, message: not_mounted(&why) })
        }
        Answer::Withheld { mount, stage, why } => Err(withheld(request, &mount, &stage, &why)),
        Answer::Done
        | Answer::NotThere(_)
        | Answer::Accounts { .. }
        | Answer::TerminationMessage(_)
        | Answer::EnvFiles(_)
        | Answer::Manifests(_)
        | Answer::Missing(_)
        | Answer::Measured(_) => Err(unknown(format!("{what}: an answer to another request"))),
    }
}

/// The first path to be looked at that the pod chose, or that is in a volume of its own.
fn chosen<'a>(host: &Host, plan: &'a ContainerPlan) -> Option<&'a str> {
    let root = Path::new(&host.node().paths.root);
    let sources = plan.mount_sources.iter().map(|source| source.path.as_str());
    let mut outside = sources.filter(|path| !Path::new(path).starts_with(root));
    let device = plan.devices.first().map(|device| device.host.as_str());
    plan.sub_paths.first().map(|bind| bind.volume.as_str()).or_else(|| outside.next()).or(device)
}

/// In a worker: reads what a container's spec needs of the node.
pub(in crate::effects) fn parts(
    profile: Option<&str>,
    app_armor: AppArmorParts,
    with_devices: bool,
    volumes: &[String],
) -> Result<Answer, Failure> {
    let profile = profile.map(read_profile).transpose()?.flatten();
    let app_armor = app_armor::profiles(&Places::of_node(), app_armor)?;
    let found = if with_devices { devices().map_err(local("list devices in", "/dev"))? } else { Vec::new() };
    let volumes = volumes.iter().map(|path| block_device(path)).collect::<Result<Vec<_>, Failure>>()?;
    let [devices, volumes] = [found, volumes].map(|found| found.into_iter().map(Into::into).collect());
    Ok(Answer::Parts { profile, app_armor, devices, volumes })
}

/// What a volume is that is a device. A link leads to it, as for containerd's CRI; nothing is opened.
fn block_device(path: &str) -> Result<HostDevice, Failure> {
    let metadata = fs::metadata(path).map_err(local("look at", path))?;
    match of_metadata(PathBuf::from(path), &metadata) {
        Some(device) if device.kind == HostDeviceKind::Block => Ok(device),
        Some(_) | None => Err(config(format!("{path:?} is not a block device"))),
    }
}

/// The device that a file is.
fn of_metadata(path: PathBuf, metadata: &fs::Metadata) -> Option<HostDevice> {
    let file = metadata.file_type();
    let kind = match (file.is_char_device(), file.is_block_device()) {
        (true, _) => HostDeviceKind::Char,
        (false, true) => HostDeviceKind::Block,
        (false, false) => return None,
    };
    Some(HostDevice {
        path,
        kind,
        major: rustix::fs::major(metadata.rdev()),
        minor: rustix::fs::minor(metadata.rdev()),
        mode: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
    })
}

/// What of a failure the pod's owner sees: details would tell of the node's file system, and are only logged.
/// Source: `makeMounts` of `pkg/kubelet/kubelet_pods.go`.
fn withheld(request: &StartRequest, volume: &str, stage: &Stage, why: &str) -> Failure {
    let container = request.container.name.as_str();
    tracing::warn!(pod = %request.pod.uid, container, volume, why, "a subPath could not be prepared");
    config(told(stage, volume, container))
}

fn told(stage: &Stage, volume: &str, container: &str) -> String {
    let what = match stage {
        Stage::Making => "create subPath directory",
        Stage::Preparing | Stage::OfImage(_) => "prepare subPath",
    };
    format!("failed to {what} for volumeMount {volume:?} of container {container:?}")
}

/// Under a kubelet, the container runtime finds some of what is wrong: that has another reason.
pub(super) fn kind_of(error: &ConfigError) -> FailureKind {
    if error.reason() == "CreateContainerConfigError" { FailureKind::Config } else { FailureKind::Transient }
}

/// `None` when it is not there: the plan tells that. What else keeps it from being read is told in the same words, which are
/// those of the kubelet's runtime.
fn read_profile(path: &str) -> Result<Option<String>, Failure> {
    let mut text = String::new();
    let read = fs::File::open(path).and_then(|file| file.take(PROFILE_MAX).read_to_string(&mut text));
    match read {
        Ok(_) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            let message = format!("cannot load seccomp profile {path:?}: {error}");
            Err(Failure { kind: FailureKind::Transient, message })
        }
    }
}

/// The devices of the node that a privileged container sees.
fn devices() -> io::Result<Vec<HostDevice>> {
    let mut found = Vec::new();
    search(Path::new("/dev"), DEV_DEPTH_MAX, &mut found)?;
    Ok(found)
}

/// A directory that goes while others are looked at has none: devices come and go.
fn search(dir: &Path, depth: usize, found: &mut Vec<HostDevice>) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let Ok(metadata) = entry.metadata() else { continue };
        let kind = metadata.file_type();
        if kind.is_dir() {
            let skipped = DEV_SKIPPED.iter().any(|name| entry.file_name() == *name);
            if depth > 0 && !skipped {
                search(&entry.path(), depth - 1, found)?;
            }
            continue;
        }
        if entry.file_name() != "console" {
            found.extend(of_metadata(entry.path(), &metadata));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use berth_core::selinux::{Mounted, RelabelPlace};

    use super::*;
    use crate::effects::kinds::tests::start;

    #[test]
    fn a_sub_path_that_could_not_be_made_is_told_from_one_that_could_not_be_had() {
        for (stage, expected) in [
            (Stage::Making, "failed to create subPath directory for volumeMount \"v\" of container \"c\""),
            (Stage::Preparing, "failed to prepare subPath for volumeMount \"v\" of container \"c\""),
        ] {
            assert_eq!(told(&stage, "v", "c"), expected);
        }
    }

    #[test]
    fn what_is_labelled_is_what_the_plan_says_and_shared_memory_that_is_held_here() {
        let label = "system_u:object_r:container_file_t:s0:c1,c2".to_owned();
        let mut plan = start().plan;
        assert_eq!(labels(&plan, Some(PathBuf::from("/run/shm"))), None);
        // What may be mounted over a volume is left alone or not by this (CVE-2021-43816).
        let (mut places, mut told) = (Vec::new(), Vec::new());
        for (mounted, text) in [
            (Mounted::Nothing, MountedText::Nothing),
            (Mounted::Memory, MountedText::Memory),
            (Mounted::Bound, MountedText::Bound),
        ] {
            let part = matches!(mounted, Mounted::Nothing).then(|| "a".to_owned());
            told.push(RelabelText { root: "/pod/data".to_owned(), part: part.clone(), mounted: text });
            places.push(RelabelPlace { root: "/pod/data".to_owned(), part, mounted });
        }
        plan.relabel = Some(Relabel { label: label.clone(), places });
        let shm = RelabelText { root: "/run/shm".to_owned(), part: None, mounted: MountedText::Memory };
        for (own_shm, expected) in
            [(None, told.clone()), (Some(PathBuf::from("/run/shm")), [told.clone(), vec![shm]].concat())]
        {
            let work = Work::Relabel { label: label.clone(), places: expected };
            assert_eq!(labels(&plan, own_shm), Some(("/pod/data".to_owned(), work)));
        }
    }

    #[test]
    fn the_devices_of_this_machine_have_null() {
        let devices = devices().unwrap();
        let null = devices.iter().find(|device| device.path == Path::new("/dev/null")).unwrap();
        assert_eq!((null.kind, null.major, null.minor), (HostDeviceKind::Char, 1, 3));
        assert!(devices.iter().all(|device| !device.path.starts_with("/dev/pts")));
    }

    #[test]
    fn the_console_of_the_node_is_no_containers() {
        let dir = tempfile::tempdir().unwrap();
        for (name, minor) in [("console", 1), ("tty", 0)] {
            let (kind, mode) = (nix::sys::stat::SFlag::S_IFCHR, nix::sys::stat::Mode::S_IRUSR);
            nix::sys::stat::mknod(&dir.path().join(name), kind, mode, nix::sys::stat::makedev(5, minor))
                .unwrap();
        }
        let mut found = Vec::new();
        search(dir.path(), DEV_DEPTH_MAX, &mut found).unwrap();
        let found: Vec<_> = found.iter().map(|device| (device.path.clone(), device.minor)).collect();
        assert_eq!(found, [(dir.path().join("tty"), 0)]);
    }

    #[test]
    fn a_directory_of_devices_that_has_gone_is_no_failure() {
        let dir = tempfile::tempdir().unwrap();
        let mut found = Vec::new();
        search(&dir.path().join("gone"), DEV_DEPTH_MAX, &mut found).unwrap();
        assert_eq!(found.len(), 0);
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        search(&file, DEV_DEPTH_MAX, &mut found).unwrap_err();
    }
}
