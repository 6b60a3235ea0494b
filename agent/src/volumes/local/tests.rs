use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use nix::mount::{MsFlags, mount};

use super::*;
use crate::{
    own_mounts::{tmpfs, with_own_mounts},
    volumes::{remove_tree, unmount_below},
};

/// A root directory with what is local on the node, and pods.
struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("disk/sub")).unwrap();
        fs::write(dir.path().join("disk/precious"), "kept").unwrap();
        fs::create_dir(dir.path().join("pods")).unwrap();
        Self { dir }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn of(&self, pod: &str) -> LocalDir {
        LocalDir {
            source: self.at("disk"),
            target: self.at(&format!("pods/{pod}/volumes/kubernetes.io~local-volume/pv")),
            mark: self.at(&format!("pods/{pod}/plugins/kubernetes.io~local-volume/pv/ready")),
            pods: self.at("pods"),
            read_only: false,
            options: Vec::new(),
            is_of_one_pod: false,
            group: None,
        }
    }

    fn mode_and_group(&self, path: &str) -> (u32, u32) {
        let found = fs::metadata(self.at(path)).unwrap();
        (found.mode() & 0o7777, found.gid())
    }

    /// As an earlier agent left it, killed before the group had all.
    fn unmark(&self, pod: &str) {
        fs::remove_file(self.of(pod).mark).unwrap();
    }

    fn count(&self, wanted: &LocalDir) -> usize {
        mounts().unwrap().iter().filter(|mount| mount.point == wanted.target).count()
    }

    /// As when the pod goes.
    fn end(&self, pod: &str) {
        let dir = self.at(&format!("pods/{pod}"));
        unmount_below(&dir).unwrap();
        remove_tree(&dir).unwrap();
        assert!(!dir.exists());
        assert_eq!(fs::read_to_string(self.at("disk/precious")).unwrap(), "kept");
    }
}

const GROUP: ForGroup = ForGroup { id: 4242, on_root_mismatch: false };

#[test]
fn a_directory_is_bound_once_and_what_is_in_it_outlives_the_pod() {
    let bench = Bench::new();
    with_own_mounts(|| {
        let wanted = bench.of("a");
        for _ in 0..2 {
            ensure(&wanted).unwrap();
            assert_eq!(bench.count(&wanted), 1);
        }
        fs::write(wanted.target.join("written"), "").unwrap();
        assert!(bench.at("disk/written").exists());
        // As a kill between the bind and the mark leaves it.
        fs::remove_file(&wanted.mark).unwrap();
        ensure(&LocalDir { group: Some(GROUP), ..wanted.clone() }).unwrap();
        assert_eq!((bench.count(&wanted), bench.mode_and_group("disk").1), (1, 4242));
        // As a reboot leaves it: the mark without the mount.
        unmount_below(&bench.at("pods/a")).unwrap();
        ensure(&wanted).unwrap();
        assert_eq!(bench.count(&wanted), 1);
        bench.end("a");
    });
}

#[test]
fn what_is_mounted_in_it_stays_with_the_node() {
    let bench = Bench::new();
    with_own_mounts(|| {
        tmpfs(&bench.at("disk/sub"));
        fs::write(bench.at("disk/sub/inner"), "").unwrap();
        let wanted = bench.of("a");
        ensure(&wanted).unwrap();
        assert!(!wanted.target.join("sub/inner").exists(), "bound without what is mounted below");
        bench.end("a");
        assert!(bench.at("disk/sub/inner").exists());
    });
}

#[test]
fn options_are_those_of_the_mount_and_others_are_passed_over() {
    let bench = Bench::new();
    with_own_mounts(|| {
        let options = ["nodev,noexec", "discard", "uid=4"].map(str::to_owned).to_vec();
        let wanted = LocalDir { read_only: true, options, group: Some(GROUP), ..bench.of("a") };
        ensure(&wanted).unwrap();
        let error = fs::write(wanted.target.join("new"), "").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
        let has = fstatvfs(open_root(&wanted.target).unwrap()).unwrap().f_flag;
        assert!(
            has.contains(StatVfsMountFlags::RDONLY | StatVfsMountFlags::NOEXEC | StatVfsMountFlags::NODEV)
        );
        fs::write(bench.at("disk/of-the-node"), "").unwrap();
        assert_eq!(bench.mode_and_group("disk").1, 0, "what nobody writes is given to nobody");
        bench.end("a");
    });
}

/// A disk that the node mounts in it while it is given, and a directory that is no pod's any more.
#[test]
fn what_the_node_mounts_in_it_meanwhile_stays_when_it_cannot_be_given() {
    let bench = Bench::new();
    with_own_mounts(|| {
        tmpfs(&bench.at("disk"));
        let shared = MsFlags::MS_REC | MsFlags::MS_SHARED;
        mount(None::<&str>, &bench.at("disk"), None::<&str>, shared, None::<&str>).unwrap();
        fs::create_dir(bench.at("disk/sub")).unwrap();
        let deep: PathBuf = std::iter::repeat_n("d", 300).collect();
        fs::create_dir_all(bench.at("disk").join(deep)).unwrap();
        let wanted = LocalDir { group: Some(GROUP), ..bench.of("a") };
        // As a worker that was killed leaves it: bound, and not given.
        ensure(&wanted).unwrap_err();
        ensure(&LocalDir { group: None, ..wanted.clone() }).unwrap();
        fs::remove_file(&wanted.mark).unwrap();
        tmpfs(&bench.at("disk/sub"));
        assert!(is_mount_point(&wanted.target.join("sub")).unwrap());
        ensure(&wanted).unwrap_err();
        assert_eq!(bench.count(&wanted), 0);
        assert!(is_mount_point(&bench.at("disk/sub")).unwrap());
    });
}

#[test]
fn the_last_of_opposite_options_counts() {
    let nosuid = MountFlags::NOSUID;
    for (options, expected) in [
        (&["ro", "rw"][..], nosuid),
        (&["rw", "ro"], nosuid | MountFlags::RDONLY),
        (&["suid"], MountFlags::empty()),
        (&["defaults", "_netdev"], nosuid),
        (&["nosymfollow"], nosuid | MountFlags::NOSYMFOLLOW),
        (&["noatime", "noexec"], nosuid | MountFlags::NOATIME | MountFlags::NOEXEC),
    ] {
        assert_eq!(flags(nosuid, options), expected, "{options:?}");
    }
}

#[test]
fn a_group_gets_it_with_the_first_pod_and_by_its_policy() {
    let bench = Bench::new();
    with_own_mounts(|| {
        let of = |pod: &str, id, on_root_mismatch| LocalDir {
            group: Some(ForGroup { id, on_root_mismatch }),
            ..bench.of(pod)
        };
        ensure(&of("a", 4242, false)).unwrap();
        assert_eq!(bench.mode_and_group("disk"), (0o2775, 4242));
        assert_eq!(bench.mode_and_group("disk/precious"), (0o664, 4242));
        bench.unmark("a");
        let error = ensure(&of("b", 5000, false)).unwrap_err();
        assert!(matches!(error, VolumeError::BeingGiven { .. }), "{error}");
        assert_eq!(bench.count(&bench.of("b")), 0);
        ensure(&bench.of("c")).unwrap();
        ensure(&of("a", 4242, false)).unwrap();
        ensure(&of("b", 5000, false)).unwrap();
        assert_eq!(bench.mode_and_group("disk").1, 4242, "another pod has it");
        bench.end("c");
        bench.end("a");
        bench.end("b");

        // The directory is as it is to be: nothing else is looked at.
        fs::set_permissions(bench.at("disk/precious"), fs::Permissions::from_mode(0o600)).unwrap();
        ensure(&of("c", 4242, true)).unwrap();
        assert_eq!(bench.mode_and_group("disk/precious").0, 0o600);
        bench.end("c");
        fs::set_permissions(bench.at("disk"), fs::Permissions::from_mode(0o2750)).unwrap();
        ensure(&of("d", 4242, true)).unwrap();
        assert_eq!(bench.mode_and_group("disk/precious").0, 0o660);
        bench.end("d");
    });
}

/// Volumes are directories of one disk, or disks of their own.
#[test]
fn what_others_have_of_its_disk_and_what_the_node_has_is_not_shared() {
    let bench = Bench::new();
    fs::create_dir(bench.at("disk2")).unwrap();
    with_own_mounts(|| {
        let of = |pod: &str, disk: &str, id| LocalDir {
            source: bench.at(disk),
            group: Some(ForGroup { id, on_root_mismatch: false }),
            ..bench.of(pod)
        };
        ensure(&of("a", "disk", 4242)).unwrap();
        ensure(&of("b", "disk2", 5000)).unwrap();
        assert_eq!(["disk", "disk2"].map(|disk| bench.mode_and_group(disk).1), [4242, 5000]);
        bench.end("a");
        bench.end("b");
        tmpfs(&bench.at("disk2"));
        ensure(&of("c", "disk2", 6000)).unwrap();
        assert_eq!(bench.mode_and_group("disk2").1, 6000, "mounted on the node");
        bench.end("c");
    });
}

#[test]
fn one_of_one_pod_is_refused_to_another_until_that_has_gone() {
    let bench = Bench::new();
    with_own_mounts(|| {
        let of = |pod: &str| LocalDir { is_of_one_pod: true, ..bench.of(pod) };
        ensure(&of("a")).unwrap();
        ensure(&of("a")).unwrap();
        let error = ensure(&of("b")).unwrap_err();
        assert!(matches!(error, VolumeError::InUse), "{error}");
        assert_eq!((bench.count(&of("b")), bench.count(&of("a"))), (0, 1));
        // Another volume with the same directory is another volume.
        let other = bench.at("pods/c/volumes/kubernetes.io~local-volume/other");
        ensure(&LocalDir { target: other, ..of("c") }).unwrap();
        bench.end("a");
        ensure(&of("b")).unwrap();
        bench.end("b");
        bench.end("c");
    });
}

#[test]
fn what_is_no_directory_is_told() {
    let bench = Bench::new();
    symlink("disk", bench.at("link")).unwrap();
    with_own_mounts(|| {
        let from = |path: PathBuf| ensure(&LocalDir { source: path, ..bench.of("a") });
        let none = bench.at("none");
        let told = from(none.clone()).unwrap_err().to_string();
        assert_eq!(told, format!("path {:?} does not exist", none.display().to_string()));
        for path in [bench.at("disk/precious"), PathBuf::from("/dev/null")] {
            assert_eq!(from(path).unwrap_err().to_string(), "only directory and block device are supported");
        }
        assert_eq!(bench.count(&bench.of("a")), 0);
        from(bench.at("link")).unwrap();
        bench.end("a");
    });
}

#[test]
fn a_device_is_a_block_device() {
    let dir = tempfile::tempdir().unwrap();
    for path in [dir.path(), Path::new("/dev/null"), &dir.path().join("none")] {
        check_block_device(path).unwrap_err();
    }
}
