//! What a container mounts from the node, as containerd's CRI sees to it before a container is made.
//!
//! The path is an administrator's to choose, not to be kept beneath anything; links in it are followed.
//! Source: containerd, `internal/cri/opts/spec_linux_opts.go` `withMounts`, `ensureShared`, `ensureSharedOrSlave`.

use std::{fs, io, os::unix::fs::DirBuilderExt, path::Path};

use berth_core::{
    failure::{Failure, FailureKind},
    oci::MountSource,
    spec::MountPropagation,
};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use super::failure::local;

/// The mounts of this thread's namespace; see proc(5).
const MOUNTS: &str = "/proc/thread-self/mountinfo";

/// Mode of a directory that nobody made before the container.
const MODE: u32 = 0o755;

/// Makes the directory when nothing is there, and refuses one whose mounts do not travel as the container asks for.
pub(in crate::effects) fn prepare(source: &MountSource) -> Result<(), Failure> {
    let path = Path::new(&source.path);
    match fs::metadata(path) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let made = fs::DirBuilder::new().recursive(true).mode(MODE).create(path);
            made.map_err(local("create directory", path))?;
        }
        Err(error) => return Err(local("look at", path)(error)),
    }
    let (wanted, kind): (&[&str], _) = match source.propagation {
        MountPropagation::Private => return Ok(()),
        MountPropagation::HostToContainer => (&["shared:", "master:"], "shared or slave"),
        MountPropagation::Bidirectional => (&["shared:"], "shared"),
    };
    let mounts = fs::read_to_string(MOUNTS).map_err(local("read", MOUNTS))?;
    let found = statx(CWD, path, AtFlags::NO_AUTOMOUNT, StatxFlags::MNT_ID);
    let id = found.map_err(|errno| local("look at", path)(errno.into()))?.stx_mnt_id;
    let Some((point, travels)) = mount_with(&mounts, id) else {
        let message = format!("find the mount of {}: {MOUNTS} does not have its id {id}", path.display());
        return Err(Failure { kind: FailureKind::Transient, message });
    };
    if travels.iter().any(|tag| wanted.iter().any(|start| tag.starts_with(start))) {
        return Ok(());
    }
    let message = format!("path {:?} is mounted on {point:?} but it is not a {kind} mount", source.path);
    Err(Failure { kind: FailureKind::Transient, message })
}

/// The mount point with this id, as the kernel writes it, and the tags that say how mounts travel.
fn mount_with(mounts: &str, id: u64) -> Option<(&str, Vec<&str>)> {
    let id = id.to_string();
    let line = mounts.lines().find(|line| line.split(' ').next() == Some(&id))?;
    let mut fields = line.split(' ');
    let point = fields.nth(4)?;
    Some((point, fields.skip(1).take_while(|field| *field != "-").collect()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use nix::mount::{MsFlags, mount};

    use super::*;
    use crate::own_mounts::{tmpfs, with_own_mounts};

    fn source(path: &Path, propagation: MountPropagation) -> MountSource {
        MountSource { path: path.display().to_string(), propagation }
    }

    #[test]
    fn a_missing_directory_is_made_and_a_link_to_nothing_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        prepare(&source(&path, MountPropagation::Private)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o755);
        fs::write(dir.path().join("file"), "").unwrap();
        prepare(&source(&dir.path().join("file"), MountPropagation::Private)).unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join("link")).unwrap();
        let refused = prepare(&source(&dir.path().join("link"), MountPropagation::Private)).unwrap_err();
        assert!(refused.message.contains("create directory"), "{refused:?}");
    }

    #[test]
    fn mounts_that_do_not_travel_are_refused_where_they_must() {
        let dir = tempfile::tempdir().unwrap();
        let (point, other) = (dir.path().join("point"), dir.path().join("other"));
        fs::create_dir(&point).unwrap();
        fs::create_dir(&other).unwrap();
        with_own_mounts(|| {
            use MountPropagation::{Bidirectional, HostToContainer, Private};
            let flags = |more: MsFlags| {
                mount(None::<&str>, &point, None::<&str>, more, None::<&str>).unwrap();
            };
            tmpfs(&point);
            let below = point.join("below");
            fs::create_dir(&below).unwrap();
            let allowed = || {
                [Private, HostToContainer, Bidirectional].map(|kind| prepare(&source(&below, kind)).is_ok())
            };
            assert_eq!(allowed(), [true, false, false], "private");
            let told = prepare(&source(&below, Bidirectional)).unwrap_err().message;
            let expected = format!(
                "path {:?} is mounted on {:?} but it is not a shared mount",
                below.display().to_string(),
                point.display().to_string()
            );
            assert_eq!(told, expected);
            flags(MsFlags::MS_SHARED);
            assert_eq!(allowed(), [true, true, true], "shared");
            // A slave needs a master: another mount of the same tmpfs.
            let master = other.as_path();
            mount(Some(&point), master, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
            flags(MsFlags::MS_SLAVE);
            assert_eq!(allowed(), [true, true, false], "slave");
        });
    }
}
