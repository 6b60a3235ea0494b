//! On real file systems: the attribute is kept by them whether the kernel has SELinux or not.

use std::{
    fs,
    os::unix::{
        fs::{FileTypeExt, symlink},
        net::UnixListener,
    },
    path::PathBuf,
};

use nix::{
    mount::{MsFlags, mount},
    sys::stat::Mode as Bits,
    unistd::mkfifo,
};
use rustix::fs::{lgetxattr, lsetxattr};
use tempfile::TempDir;

use super::*;
use crate::{
    limits::raise_open_files,
    own_mounts::{tmpfs, with_own_mounts},
};

const LABEL: &str = "system_u:object_r:container_file_t:s0:c1,c2";

/// A volume within a directory that is not its pod's.
struct Bed {
    dir: TempDir,
    volume: PathBuf,
}

impl Bed {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        fs::create_dir_all(volume.join("a/b")).unwrap();
        fs::write(dir.path().join("nodes"), "").unwrap();
        Self { dir, volume }
    }

    fn relabel(&self, part: Option<&str>) -> Result<(), String> {
        let root = self.volume.display().to_string();
        let place = RelabelText { root, part: part.map(str::to_owned), mounted: MountedText::Nothing };
        relabel(LABEL, &place).map_err(|failure| failure.message)
    }

    fn has_label(&self, name: &str) -> bool {
        has_label(&self.volume.join(name))
    }
}

/// Whether a file, not what it leads to, has the label.
fn has_label(path: &Path) -> bool {
    let mut found = [0; 256];
    lgetxattr(path, ATTRIBUTE, &mut found).is_ok_and(|length| found[..length] == *LABEL.as_bytes())
}

#[test]
fn all_of_a_volume_is_labelled_and_what_its_links_lead_to_is_not() {
    let bed = Bed::new();
    let nodes = bed.dir.path().join("nodes");
    fs::write(bed.volume.join("a/b/file"), "").unwrap();
    symlink(&nodes, bed.volume.join("link")).unwrap();
    symlink("..", bed.volume.join("a/up")).unwrap();
    mkfifo(&bed.volume.join("pipe"), Bits::S_IRWXU).unwrap();
    let _listener = UnixListener::bind(bed.volume.join("socket")).unwrap();
    bed.relabel(None).unwrap();
    for name in ["", "a", "a/b", "a/b/file", "a/up", "link", "pipe", "socket"] {
        assert!(bed.has_label(name), "{name:?}");
    }
    assert!(!has_label(&nodes) && !has_label(bed.dir.path()));
    assert!(fs::metadata(bed.volume.join("pipe")).unwrap().file_type().is_fifo());
}

#[test]
fn another_label_is_replaced_and_the_same_one_is_not_written_again() {
    let bed = Bed::new();
    let file = bed.volume.join("a/file");
    fs::write(&file, "").unwrap();
    lsetxattr(&file, ATTRIBUTE, b"system_u:object_r:container_file_t:s0:c7,c8\0", XattrFlags::empty())
        .unwrap();
    bed.relabel(None).unwrap();
    assert!(bed.has_label("a/file"));
    with_own_mounts(|| {
        // Nothing can be written any more.
        let disk = bed.dir.path();
        mount(Some(disk), disk, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
        mount(None::<&str>, disk, None::<&str>, flags, None::<&str>).unwrap();
        bed.relabel(None).unwrap();
    });
}

#[test]
fn a_file_is_labelled_alone() {
    let bed = Bed::new();
    let nodes = bed.dir.path().join("nodes");
    let place = RelabelText { root: nodes.display().to_string(), part: None, mounted: MountedText::Nothing };
    relabel(LABEL, &place).unwrap();
    assert!(has_label(&nodes) && !has_label(bed.dir.path()) && !bed.has_label(""));
    // A link in its place is not followed.
    let link = bed.dir.path().join("link");
    symlink(&bed.volume, &link).unwrap();
    relabel(
        LABEL,
        &RelabelText { root: link.display().to_string(), part: None, mounted: MountedText::Nothing },
    )
    .unwrap();
    assert!(has_label(&link) && !bed.has_label(""));
}

#[test]
fn a_part_is_labelled_alone_and_leads_nowhere_else() {
    let bed = Bed::new();
    fs::write(bed.volume.join("a/file"), "").unwrap();
    symlink("a/file", bed.volume.join("key")).unwrap();
    bed.relabel(Some("key")).unwrap();
    assert!(bed.has_label("a/file") && !bed.has_label("key") && !bed.has_label("a") && !bed.has_label(""));
    bed.relabel(Some("a")).unwrap();
    assert!(bed.has_label("a/b") && bed.has_label("a") && !bed.has_label(""));

    symlink("../nodes", bed.volume.join("out")).unwrap();
    symlink(bed.dir.path().join("nodes"), bed.volume.join("away")).unwrap();
    for part in ["out", "away", "../nodes", "a/gone"] {
        bed.relabel(Some(part)).unwrap();
        assert!(!has_label(&bed.dir.path().join("nodes")), "{part}");
    }
}

/// As a privileged container of the pod may leave them there.
#[test]
fn cve_2021_43816_what_is_mounted_in_a_volume_is_not_labelled() {
    let bed = Bed::new();
    let (nodes, inner) = (bed.dir.path().join("of-node"), bed.volume.join("a/b"));
    fs::create_dir(&nodes).unwrap();
    fs::write(nodes.join("file"), "").unwrap();
    with_own_mounts(|| {
        // Of the same file system, and of another.
        mount(Some(&nodes), &inner, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        fs::create_dir(bed.volume.join("memory")).unwrap();
        tmpfs(&bed.volume.join("memory"));
        bed.relabel(None).unwrap();
        bed.relabel(Some("a/b")).unwrap();
        bed.relabel(Some("a/b/file")).unwrap();
        assert!(bed.has_label("") && bed.has_label("a") && !bed.has_label("memory"));
        assert!(!has_label(&nodes) && !has_label(&nodes.join("file")));
    });
}

/// As FUSE drivers do, over the volume itself.
#[test]
fn cve_2021_43816_what_is_mounted_over_a_volume_is_not_labelled() {
    let bed = Bed::new();
    let nodes = bed.dir.path().join("of-node");
    fs::create_dir_all(nodes.join("a")).unwrap();
    let place = |part: Option<&str>, mounted| {
        let root = bed.volume.display().to_string();
        relabel(LABEL, &RelabelText { root, part: part.map(str::to_owned), mounted }).unwrap();
    };
    with_own_mounts(|| {
        tmpfs(&bed.volume);
        fs::write(bed.volume.join("file"), "").unwrap();
        place(None, MountedText::Nothing);
        place(Some("file"), MountedText::Nothing);
        assert!(!bed.has_label("") && !bed.has_label("file"));
        // A volume may be a file system of its own.
        place(None, MountedText::Memory);
        assert!(bed.has_label("") && bed.has_label("file"));

        mount(Some(&nodes), &bed.volume, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        for mounted in [MountedText::Nothing, MountedText::Memory] {
            place(None, mounted);
            place(Some("a"), mounted);
        }
        assert!(!has_label(&nodes) && !has_label(&nodes.join("a")));
        place(Some("a"), MountedText::Bound);
        assert!(!has_label(&nodes) && has_label(&nodes.join("a")));
    });
}

#[test]
fn a_file_system_without_labels_stays_as_it_is_and_other_failures_are_told() {
    let bed = Bed::new();
    let path = bed.volume.display().to_string();
    with_own_mounts(|| {
        let disk = bed.dir.path();
        let made = || {
            fs::create_dir(&bed.volume).unwrap();
            fs::write(bed.volume.join("file"), "").unwrap();
        };
        mount(Some("ramfs"), disk, Some("ramfs"), MsFlags::empty(), None::<&str>).unwrap();
        made();
        assert_eq!(bed.relabel(None), Ok(()));
        assert!(!bed.has_label("file"));
        tmpfs(disk);
        made();
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
        mount(None::<&str>, disk, None::<&str>, flags, None::<&str>).unwrap();
        let told = bed.relabel(None).unwrap_err();
        assert_eq!(
            told,
            format!("relabel {path:?} with {LABEL:?} failed: Read-only file system (os error 30)")
        );
    });
    let place = RelabelText { root: format!("{path}/gone"), part: None, mounted: MountedText::Nothing };
    assert!(relabel(LABEL, &place).unwrap_err().message.ends_with("(os error 2)"));
}

#[test]
fn a_tree_that_is_too_deep_is_told_and_one_that_is_not_is_labelled_to_its_end() {
    raise_open_files().unwrap();
    let bed = Bed::new();
    let mut dir = open(&bed.volume, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
    for depth in 1..=DEPTH_MAX {
        if depth == DEPTH_MAX {
            bed.relabel(None).unwrap();
            let deepest = format!("/proc/self/fd/{}/.", dir.as_raw_fd());
            assert!(has_label(Path::new(&deepest)));
        }
        rustix::fs::mkdirat(&dir, c"d", Mode::RWXU).unwrap();
        dir = openat(&dir, c"d", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let told = bed.relabel(None).unwrap_err();
    assert!(told.ends_with("failed: directories are more than 2048 deep"), "{told}");
}
