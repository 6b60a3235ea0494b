//! Root file systems that cannot be: an error, and nothing left of what was begun.

use std::fs;

use berth_proto::ttrpc::{Code, Status};
use berth_proto::types::Mount;

use super::images::{base, devices, directory, erofs, ext4, hostile, layer, mount, no_devices, points, text};
use super::managed::containerd_directory;
use crate::harness::{Pod, Spec, Task, World};
use crate::{Case, FAKE};

pub(crate) const CASES: &[Case] = &[
    ("a_failure_half_way_leaves_nothing", FAKE, a_failure_half_way_leaves_nothing),
    ("malformed_lists_are_the_clients_mistake", FAKE, malformed_lists_are_the_clients_mistake),
    ("dm_verity_is_never_passed_over", FAKE, dm_verity_is_never_passed_over),
    ("ids_that_cannot_be_mapped", FAKE, ids_that_cannot_be_mapped),
    ("cve_2021_30465_a_link_in_a_layer_leads_nowhere", FAKE, cve_2021_30465_a_link_in_a_layer_leads_nowhere),
    ("an_image_that_mkfs_cannot_make_is_not_left", FAKE, an_image_that_mkfs_cannot_make_is_not_left),
];

/// Creates a container on mounts that cannot be; nothing of them may be left.
fn refusal(world: &World, pod: &Pod<'_>, id: &str, rootfs: Vec<Mount>) -> Status {
    let before = points(world);
    let created = Task::create_on(&pod.shim, id, Spec::sh("true"), rootfs);
    let status = created.err().expect("such a root file system cannot be");
    assert_eq!(points(world), before);
    no_devices(world);
    assert!(!world.bundle(id).join("layers").exists());
    assert!(!world.bundle(id).join("berth.json").exists(), "no runtime knows the container");
    status
}

fn a_failure_half_way_leaves_nothing(world: &World) {
    let pod = Pod::start(world);
    let image = ext4(world, &base(world));
    let garbage = world.dir().join("garbage");
    fs::write(&garbage, vec![7; 1 << 16]).unwrap();
    let good = || {
        vec![
            mount("ext4", &image, &["loop"]),
            mount("erofs", erofs(world, "base", &base(world)), &["ro"]),
            mount("loop", &image, &["ro"]),
        ]
    };
    let overlay = |options: &[&str]| mount("format/mkdir/overlay", "overlay", options);
    let below = |target: &str| {
        let mut below = mount("bind", base(world), &["rbind"]);
        below.target = target.to_owned();
        below
    };
    let lower = "lowerdir={{ mount 1 }}:/nowhere";
    for (number, (last, reason)) in [
        (vec![mount("erofs", &garbage, &["ro"]), overlay(&["lowerdir={{ mount 1 }}"])], "garbage"),
        (vec![mount("erofs", world.dir().join("absent"), &["ro"]), overlay(&[])], "absent"),
        (vec![overlay(&[lower, "workdir={{ mount 0 }}/tmp", "upperdir={{ mount 0 }}/absent"])], "nowhere"),
        (vec![overlay(&["lowerdir={{ mount 1 }}:{{ mount 0 }}", "no-such-option"])], "no-such-option"),
        (
            vec![overlay(&["X-containerd.mkdir.path={{ mount 1 }}/new", "lowerdir={{ mount 1 }}"])],
            "read-only",
        ),
        (vec![overlay(&["lowerdir={{ mount 1 }}:{{ mount 0 }}"]), below("absent")], "absent"),
        (vec![mount("format/nosuchfs", "none", &[])], "nosuchfs"),
    ]
    .into_iter()
    .enumerate()
    {
        let rootfs = good().into_iter().chain(last).collect();
        let status = refusal(world, &pod, &format!("c{number}"), rootfs);
        assert_eq!(status.code, Code::Internal, "{status:?}");
        assert!(status.message.to_lowercase().contains(reason), "{status:?}");
    }
    assert_eq!(devices(world), Vec::<String>::new());
}

fn malformed_lists_are_the_clients_mistake(world: &World) {
    let pod = Pod::start(world);
    let many = vec![mount("bind", base(world), &[]); 513];
    let upward = || {
        let mut upward = mount("bind", base(world), &[]);
        upward.target = "../../x".to_owned();
        upward
    };
    for (number, rootfs) in [
        vec![mount("format/bind", "{{ mount 0 }}", &[])],
        vec![mount("format/bind", "{{ mount", &[])],
        vec![mount("format/bind", "{{ env 0 }}", &[])],
        vec![mount("nosuch/bind", "/", &[])],
        vec![mount("", "/", &[])],
        vec![mount("loop", "/", &[])],
        vec![mount("mkdir/bind", "/", &["X-containerd.mkdir.path=/etc/berth-test"])],
        vec![mount("mkfs/ext4", "/etc/berth-test", &["X-containerd.mkfs.size=1M"])],
        vec![mount("bind", "/", &["X-containerd.unknown=1"])],
        vec![mount("bind", "/", &["uidmap=0:0:1"])],
        vec![upward()],
        many,
    ]
    .into_iter()
    .enumerate()
    {
        let status = refusal(world, &pod, &format!("c{number}"), rootfs);
        assert_eq!(status.code, Code::InvalidArgument, "{status:?}");
    }
    assert!(!fs::exists("/etc/berth-test").unwrap());
}

fn dm_verity_is_never_passed_over(world: &World) {
    let pod = Pod::start(world);
    let image = erofs(world, "base", &base(world));
    let status = refusal(world, &pod, "c1", vec![mount("erofs", image, &["ro", "X-containerd.dmverity=/m"])]);
    assert_eq!(status.code, Code::FailedPrecondition);
    assert!(status.message.contains("dm-verity"), "{status:?}");
}

/// proc is one of the file systems that will never map ids.
fn ids_that_cannot_be_mapped(world: &World) {
    let pod = Pod::start(world);
    let maps = ["rbind", "uidmap=0:1:1", "gidmap=0:1:1"];
    let status = refusal(world, &pod, "c1", vec![mount("bind", "/proc/sys", &maps)]);
    assert_eq!(status.code, Code::FailedPrecondition, "{status:?}");
    assert!(status.message.contains("cannot"), "{status:?}");
}

/// An image's content is hostile: no link in it leads a mount to the node's own directories.
fn cve_2021_30465_a_link_in_a_layer_leads_nowhere(world: &World) {
    let pod = Pod::start(world);
    let evil = hostile(world, "upper", "/etc");
    let image = erofs(world, "evil", &evil);
    let erofs = || mount("erofs", &image, &["ro"]);
    let mut below = mount("bind", layer(world, "one"), &["rbind"]);
    below.target = "upper/x".to_owned();
    let lower = |path: &str| format!("lowerdir={path}:{}", text(&base(world)));
    for (number, rootfs) in [
        vec![erofs(), mount("format/bind", "{{ mount 0 }}/upper", &["rbind"])],
        vec![erofs(), mount("format/overlay", "overlay", &[&lower("{{ mount 0 }}/upper")])],
        vec![
            erofs(),
            mount("format/mkdir/bind", "/", &["X-containerd.mkdir.path={{ mount 0 }}/upper/berth-test"]),
        ],
        vec![mount("bind", &evil, &["rbind"]), below],
    ]
    .into_iter()
    .enumerate()
    {
        let status = refusal(world, &pod, &format!("c{number}"), rootfs);
        assert_eq!(status.code, Code::InvalidArgument, "{status:?}");
        assert!(status.message.contains("symbolic link"), "{status:?}");
    }
    assert!(!fs::exists("/etc/berth-test").unwrap());
}

fn an_image_that_mkfs_cannot_make_is_not_left(world: &World) {
    let pod = Pod::start(world);
    let snapshot = containerd_directory(world, "snapshots/1");
    // Too small for a journal, or for anything.
    let options = ["X-containerd.mkfs.size=1k", "loop"];
    let status = refusal(world, &pod, "c1", vec![mount("mkfs/ext4", snapshot.join("rw.img"), &options)]);
    assert!(status.message.contains("mkfs.ext4"), "{status:?}");
    assert_eq!(fs::read_dir(&snapshot).unwrap().count(), 0);
    let rest = directory(world, "rest");
    assert!(rest.exists());
}
