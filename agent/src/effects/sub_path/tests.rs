use std::{
    os::unix::fs::{PermissionsExt, symlink},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};

use super::*;

struct Volume {
    dir: tempfile::TempDir,
}

impl Volume {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("volume")).unwrap();
        fs::create_dir_all(dir.path().join("outside")).unwrap();
        fs::write(dir.path().join("outside/secret"), "secret").unwrap();
        Self { dir }
    }

    fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("volume")
    }

    fn outside(&self) -> std::path::PathBuf {
        self.dir.path().join("outside")
    }
}

#[test]
fn missing_directories_are_made_with_the_volumes_mode() {
    let volume = Volume::new();
    fs::set_permissions(volume.path(), fs::Permissions::from_mode(0o750)).unwrap();
    open_beneath(&volume.path(), "a//./b").unwrap();
    let made = fs::metadata(volume.path().join("a/b")).unwrap();
    assert!(made.is_dir());
    assert_eq!(made.permissions().mode() & 0o777, 0o750);
}

#[test]
fn cve_2017_1002101_links_out_of_the_volume_are_refused() {
    let volume = Volume::new();
    symlink(volume.outside(), volume.path().join("absolute")).unwrap();
    symlink("../outside", volume.path().join("relative")).unwrap();
    for path in ["absolute", "relative", "relative/secret", "absolute/new", "../outside", "/etc"] {
        open_beneath(&volume.path(), path).expect_err(path);
    }
    assert!(!volume.outside().join("new").exists());
}

#[test]
fn links_within_the_volume_are_followed() {
    let volume = Volume::new();
    fs::create_dir(volume.path().join("..2026")).unwrap();
    fs::write(volume.path().join("..2026/key"), "value").unwrap();
    symlink("..2026", volume.path().join("..data")).unwrap();
    symlink("..data/key", volume.path().join("key")).unwrap();
    open_beneath(&volume.path(), "key").unwrap();
}

/// The race of CVE-2021-25741: a directory and a link to outside change places while the part is opened.
#[test]
fn cve_2021_25741_an_exchange_never_leads_out() {
    use rustix::fs::{RenameFlags, renameat_with};
    let volume = Volume::new();
    let (one, two) = (volume.path().join("a"), volume.path().join("b"));
    fs::create_dir(&one).unwrap();
    symlink(volume.outside(), &two).unwrap();
    let outside = fs::metadata(volume.outside()).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                renameat_with(CWD, &one, CWD, &two, RenameFlags::EXCHANGE).unwrap();
            }
        });
        for _ in 0..100_000 {
            if let Ok(opened) = open_beneath(&volume.path(), "a") {
                let found = fstat(&opened).unwrap();
                assert_ne!(
                    (found.st_dev, found.st_ino),
                    (
                        std::os::unix::fs::MetadataExt::dev(&outside),
                        std::os::unix::fs::MetadataExt::ino(&outside)
                    )
                );
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_part_is_bound_and_bound_again() {
    let volume = Volume::new();
    fs::create_dir(volume.path().join("etc")).unwrap();
    fs::write(volume.path().join("etc/conf"), "one").unwrap();
    let target = volume.dir.path().join("sub/0");
    let request = |sub_path: &str| SubPathBind {
        volume: volume.path().display().to_string(),
        sub_path: sub_path.to_owned(),
        target: target.display().to_string(),
    };
    // Mounts of this thread alone.
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
                .unwrap();
            bind(&request("etc/conf")).unwrap();
            assert_eq!(fs::read_to_string(&target).unwrap(), "one");
            bind(&request("etc/conf")).unwrap();
            bind(&request("etc")).unwrap();
            assert_eq!(fs::read_to_string(target.join("conf")).unwrap(), "one");
            remove_mounts(&target).unwrap();
            assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
        });
        worker.join().unwrap();
    });
}
