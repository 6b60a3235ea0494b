use std::{
    fs::File,
    os::unix::fs::{PermissionsExt, symlink},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use super::*;
use crate::own_mounts::with_own_mounts;

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

/// A container of the pod exchanges what was just made.
#[test]
fn cve_2021_25741_a_link_in_place_of_what_was_made_gets_no_mode() {
    let volume = Volume::new();
    fs::set_permissions(volume.outside(), fs::Permissions::from_mode(0o700)).unwrap();
    symlink(volume.outside(), volume.path().join("a")).unwrap();
    let root = OwnedFd::from(File::open(volume.path()).unwrap());
    set_mode(&root, "a", Mode::from_raw_mode(0o2777)).unwrap_err();
    assert_eq!(fs::metadata(volume.outside()).unwrap().permissions().mode() & 0o7777, 0o700);
}

/// Else a container with another user and `fsGroup` could not write below an emptyDir that it owns: the umask takes the
/// group's bit away.
#[test]
fn missing_directories_are_open_to_whom_the_volume_is_open_whatever_the_umask() {
    let volume = Volume::new();
    std::os::unix::fs::chown(volume.path(), None, Some(1000)).unwrap();
    fs::set_permissions(volume.path(), fs::Permissions::from_mode(0o2777)).unwrap();
    fs::create_dir(volume.path().join("there")).unwrap();
    fs::set_permissions(volume.path().join("there"), fs::Permissions::from_mode(0o700)).unwrap();
    open_beneath(&volume.path(), "a/b").unwrap();
    open_beneath(&volume.path(), "there/c").unwrap();
    for (path, mode) in [("a", 0o2777), ("a/b", 0o2777), ("there", 0o700), ("there/c", 0o2777)] {
        let made = fs::metadata(volume.path().join(path)).unwrap();
        assert_eq!(made.permissions().mode() & 0o7777, mode, "{path}");
        let gid = std::os::unix::fs::MetadataExt::gid(&made);
        assert!(gid == 1000 || path == "there/c", "{path} is of group {gid}");
    }
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
fn what_could_not_be_made_is_told_from_what_could_not_be_opened() {
    let volume = Volume::new();
    symlink(volume.outside(), volume.path().join("out")).unwrap();
    symlink("nowhere", volume.path().join("dangling")).unwrap();
    fs::write(volume.path().join("file"), "").unwrap();
    let deep = "d/".repeat(PARTS_MAX + 1);
    for (path, stage) in [
        ("out", Stage::Preparing),
        ("file/below", Stage::Preparing),
        ("dangling", Stage::Making),
        ("dangling/below", Stage::Making),
        (deep.as_str(), Stage::Making),
    ] {
        assert_eq!(open_beneath(&volume.path(), path).map(drop).unwrap_err().0, stage, "{path}");
    }
    let none = volume.dir.path().join("none");
    assert_eq!(open_beneath(&none, "a").map(drop).unwrap_err().0, Stage::Preparing, "no volume");
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

/// As deployments leave them that link their newest release: the node follows such links.
#[test]
fn absolute_links_are_followed_that_stay_in_the_volume() {
    let volume = Volume::new();
    let at = |name: &str| volume.path().join(name);
    fs::create_dir_all(at("releases/5")).unwrap();
    fs::write(at("releases/5/file"), "").unwrap();
    symlink(at("releases/5"), at("current")).unwrap();
    symlink(volume.path(), at("root")).unwrap();
    symlink("../volume/releases", at("around")).unwrap();
    symlink(volume.outside(), at("out")).unwrap();
    symlink(at("out"), at("through")).unwrap();
    symlink(at("nowhere"), at("dangling")).unwrap();
    // The volume is named by a link too.
    let other = volume.dir.path().join("other");
    symlink(volume.path(), &other).unwrap();
    for root in [volume.path(), other] {
        for (path, expected) in [
            ("current", "releases/5"),
            ("current/file", "releases/5/file"),
            ("root/current/./file", "releases/5/file"),
            ("root", "."),
            ("around/5", "releases/5"),
        ] {
            let opened = open_beneath(&root, path).unwrap();
            assert_eq!(identity(&opened), identity(&File::open(at(expected)).unwrap()), "{path}");
        }
        for path in ["out", "out/secret", "through/secret", "root/out", "dangling/new", "out/new"] {
            open_beneath(&root, path).unwrap_err();
        }
    }
    open_beneath(&volume.path(), "current/new/deeper").unwrap();
    assert!(at("releases/5/new/deeper").is_dir() && !volume.outside().join("new").exists());
}

fn identity(opened: &impl AsFd) -> (u64, u64) {
    let found = fstat(opened).unwrap();
    (found.st_dev, found.st_ino)
}

/// How often the directory and the link must each be met.
const RACES_MIN: usize = 100;

/// Tries at least so often what `a` of the volume is for, while that is exchanged with a link out of it: how often that succeeded, and how often it
/// was refused.
fn amid_exchanges(volume: &Volume, enough: usize, mut attempt: impl FnMut(usize) -> bool) -> (usize, usize) {
    use rustix::fs::{RenameFlags, renameat_with};
    let (one, two) = (volume.path().join("a"), volume.path().join("b"));
    fs::create_dir(&one).unwrap();
    symlink(volume.outside(), &two).unwrap();
    let done = AtomicBool::new(false);
    // Judged when the exchanges are over: a panic before that would wait for them for ever.
    let (succeeded, refused) = thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                renameat_with(CWD, &one, CWD, &two, RenameFlags::EXCHANGE).unwrap();
            }
        });
        let (mut succeeded, mut refused) = (0, 0);
        // Both sides of the race are seen, or it was none. Never endless: an exchange takes a microsecond.
        while succeeded + refused < enough
            || (succeeded.min(refused) < RACES_MIN && succeeded + refused < 1_000_000)
        {
            let side = if attempt(succeeded + refused) { &mut succeeded } else { &mut refused };
            *side += 1;
        }
        done.store(true, Ordering::Relaxed);
        (succeeded, refused)
    });
    assert!(succeeded >= RACES_MIN && refused >= RACES_MIN, "{succeeded} succeeded, {refused} were refused");
    (succeeded, refused)
}

/// The race of CVE-2021-25741: a directory and a link to outside change places while the part is opened.
#[test]
fn cve_2021_25741_an_exchange_never_leads_out() {
    let volume = Volume::new();
    let outside = identity(&File::open(volume.outside()).unwrap());
    let mut led_out = 0;
    let (opened, _) = amid_exchanges(&volume, 100_000, |_| {
        let found = open_beneath(&volume.path(), "a");
        led_out += usize::from(found.as_ref().is_ok_and(|found| identity(found) == outside));
        found.is_ok()
    });
    assert_eq!(led_out, 0, "of {opened} opened");
}

/// What is not there is made, with the mode of what it is made in.
#[test]
fn cve_2017_1002101_what_is_made_amid_exchanges_is_made_in_the_volume() {
    let volume = Volume::new();
    let seen = || {
        let names = fs::read_dir(volume.outside()).unwrap().map(|entry| entry.unwrap().file_name());
        (names.collect::<Vec<_>>(), fs::metadata(volume.outside()).unwrap().permissions())
    };
    let before = seen();
    let (made, _) = amid_exchanges(&volume, 10_000, |number| {
        open_beneath(&volume.path(), &format!("a/{number}")).is_ok()
    });
    assert_eq!(seen(), before);
    let there = ["a", "b"].map(|name| volume.path().join(name));
    let there = there.iter().find(|path| fs::symlink_metadata(path).unwrap().is_dir()).unwrap();
    assert!(fs::read_dir(there).unwrap().count() >= made);
}

#[test]
fn a_part_is_bound_and_bound_again() {
    let volume = Volume::new();
    fs::create_dir(volume.path().join("etc")).unwrap();
    fs::write(volume.path().join("etc/conf"), "one").unwrap();
    let target = volume.dir.path().join("sub/0");
    let request = |sub_path: &str| SubPathBind {
        mount: berth_core::id::VolumeName::new("data"),
        volume: volume.path().display().to_string(),
        of: PartOf::Volume,
        sub_path: sub_path.to_owned(),
        target: target.display().to_string(),
    };
    with_own_mounts(|| {
        bind(&request("etc/conf")).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "one");
        bind(&request("etc/conf")).unwrap();
        bind(&request("etc")).unwrap();
        assert_eq!(fs::read_to_string(target.join("conf")).unwrap(), "one");
        remove_mounts(&target).unwrap();
        assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
    });
}

/// What an image does not have is not made, and what is in it leads nowhere else.
#[test]
fn a_part_of_an_image_is_a_directory_that_is_there() {
    let volume = Volume::new();
    fs::create_dir_all(volume.path().join("etc/conf.d")).unwrap();
    fs::write(volume.path().join("etc/passwd"), "").unwrap();
    let links = [
        ("near", "etc/conf.d"),
        ("back", "etc/../etc"),
        ("up", "../outside"),
        ("far", "etc/../../outside"),
        ("root", "/"),
        ("inner", "/etc"),
        ("file", "etc/passwd"),
        ("dead", "etc/none"),
    ];
    for (name, to) in links {
        symlink(to, volume.path().join(name)).unwrap();
    }
    let (escapes, missing) = ("path escapes from parent", "no such file or directory");
    let long = "n".repeat(300);
    for (path, expected) in [
        ("etc", Ok(())),
        ("etc//./conf.d/", Ok(())),
        ("near", Ok(())),
        ("back", Ok(())),
        ("up", Err(escapes)),
        ("far", Err(escapes)),
        ("up/secret", Err(escapes)),
        ("root", Err(escapes)),
        ("inner", Err(escapes)),
        ("none", Err(missing)),
        ("etc/none/deeper", Err(missing)),
        ("dead", Err(missing)),
        ("new\nline", Err(missing)),
        ("etc/passwd/none", Err("not a directory")),
        (&long, Err("file name too long")),
    ] {
        let opened =
            open_directory(&volume.path(), path, "$(DIR)").map(drop).map_err(|error| error.to_string());
        assert_eq!(opened, expected.map_err(|why| format!("openat $(DIR): {why}")), "{path}");
    }
    for path in ["etc/passwd", "file"] {
        let why = open_directory(&volume.path(), path, path).unwrap_err().to_string();
        assert_eq!(why, format!("only directory subpath is supported, subpath: {path:?}"));
    }
    assert!(!volume.path().join("none").exists());
    let target = volume.dir.path().join("sub/0").display().to_string();
    let request = SubPathBind {
        mount: berth_core::id::VolumeName::new("data"),
        volume: volume.path().display().to_string(),
        of: PartOf::Image("$(DIR)".to_owned()),
        sub_path: "none".to_owned(),
        target,
    };
    let (stage, failure) = bind(&request).unwrap_err();
    assert_eq!(stage, Stage::OfImage("$(DIR)".to_owned()));
    assert_eq!(failure.message, "openat $(DIR): no such file or directory");
}
