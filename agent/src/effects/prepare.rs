//! What must be on the node before a container: files, parts of volumes, the image's volumes, and a complete OCI spec.

use std::{fs, io::Read, os::unix::fs::FileTypeExt, os::unix::fs::MetadataExt, path::Path, sync::Arc};

use berth_core::{
    effect::{HostDevices, StartRequest},
    event::{Failure, FailureKind},
    oci::{self, HostDevice, HostDeviceKind, NodeParts},
};
use oci_spec::runtime::Spec;

use super::{
    failure::{failed, local},
    host::{Host, blocking},
    host_files, image_volumes, rootfs, sub_path,
};

/// Largest seccomp profile that is read. The runtime's own default is 15 KiB.
const PROFILE_MAX: u64 = 1 << 20;

/// Deepest directory below `/dev` that is searched for devices.
const DEV_DEPTH_MAX: usize = 4;

/// Directories of `/dev` whose content a container has of its own.
/// Source: containerd `pkg/oci/utils_unix.go` `getDevices`.
const DEV_SKIPPED: [&str; 6] = ["pts", "shm", "fd", "mqueue", ".lxc", ".lxd-mounts"];

/// Puts everything of the plan in place and returns the spec to run.
pub(super) async fn container(host: &Arc<Host>, request: &Arc<StartRequest>) -> Result<Spec, Failure> {
    if !request.plan.image_volumes.is_empty() {
        let mounts = rootfs::mounts(host, &request.id).await?;
        let (host, request) = (Arc::clone(host), Arc::clone(request));
        blocking(move || image_volumes::make(&host, &mounts, &request.plan.image_volumes)).await?;
    }
    let request = Arc::clone(request);
    blocking(move || {
        let plan = &request.plan;
        for file in &plan.files {
            host_files::write(file)?;
        }
        for bind in &plan.sub_paths {
            sub_path::bind(bind)?;
        }
        if let Some(dir) = Path::new(&plan.log_path).parent() {
            host_files::make_dir(dir, 0o755)?;
        }
        let profile = plan.seccomp_file.as_deref().and_then(read_profile);
        let devices = match plan.host_devices {
            HostDevices::None => Vec::new(),
            HostDevices::All => devices().map_err(local("list devices in", "/dev"))?,
        };
        oci::complete(plan, NodeParts { seccomp: profile.as_deref(), devices: &devices })
            .map_err(|error| failed(FailureKind::Config, &error))
    })
    .await
}

fn read_profile(path: &str) -> Option<String> {
    let mut text = String::new();
    fs::File::open(path).ok()?.take(PROFILE_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The devices of the node that a privileged container sees.
fn devices() -> std::io::Result<Vec<HostDevice>> {
    let mut found = Vec::new();
    search(Path::new("/dev"), DEV_DEPTH_MAX, &mut found)?;
    Ok(found)
}

fn search(dir: &Path, depth: usize, found: &mut Vec<HostDevice>) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
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
        let kind = if kind.is_char_device() {
            HostDeviceKind::Char
        } else if kind.is_block_device() {
            HostDeviceKind::Block
        } else {
            continue;
        };
        if entry.file_name() == "console" {
            continue;
        }
        found.push(HostDevice {
            path: entry.path(),
            kind,
            major: rustix::fs::major(metadata.rdev()),
            minor: rustix::fs::minor(metadata.rdev()),
            mode: metadata.mode() & 0o7777,
            uid: metadata.uid(),
            gid: metadata.gid(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_devices_of_this_machine_have_null() {
        let devices = devices().unwrap();
        let null = devices.iter().find(|device| device.path == Path::new("/dev/null")).unwrap();
        assert_eq!((null.kind, null.major, null.minor), (HostDeviceKind::Char, 1, 3));
        assert!(devices.iter().all(|device| !device.path.starts_with("/dev/pts")));
    }
}
