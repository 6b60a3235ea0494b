//! Mounts of containerd's mount manager, which the shim announces to perform by itself.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use berth_proto::types::{Mount, RuntimeInfo};
use prost::Message;

use super::forms::output_on;
use super::images::{base, directory, erofs, layer, mount, text};
use crate::harness::World;
use crate::{Case, FAKE, REAL};

pub(crate) const CASES: &[Case] = &[
    ("the_erofs_snapshotters_container", REAL, the_erofs_snapshotters_container),
    ("the_erofs_snapshotters_container_in_block_mode", REAL, the_erofs_snapshotters_container_in_block_mode),
    ("the_erofs_snapshotters_view_of_one_layer", REAL, the_erofs_snapshotters_view_of_one_layer),
    ("a_loop_device_for_a_later_mount", REAL, a_loop_device_for_a_later_mount),
    ("directories_are_made_as_asked_and_kept", REAL, directories_are_made_as_asked_and_kept),
    ("what_is_performed_is_announced", FAKE, what_is_performed_is_announced),
];

/// A directory below containerd's own, in which mkfs may work; the bundle leads there.
pub(super) fn containerd_directory(world: &World, name: &str) -> PathBuf {
    let work = directory(world, "containerd/io.containerd.runtime.v2.task/ns/c1");
    let bundle = directory(world, "bundles/c1");
    let link = bundle.join("work");
    if !link.exists() {
        symlink(work, link).unwrap();
    }
    directory(world, &format!("containerd/{name}"))
}

/// What `plugins/snapshots/erofs` of containerd 2.3 and 2.4 writes for a container over an image of three layers.
fn the_erofs_snapshotters_container(world: &World) {
    let layers = [layer(world, "one"), layer(world, "two"), base(world)];
    let images =
        ["one", "two", "base"].into_iter().zip(&layers).map(|(name, layer)| erofs(world, name, layer));
    let mut mounts: Vec<Mount> = images.map(|image| mount("erofs", image, &["ro", "loop"])).collect();
    let upper = directory(world, "upper");
    let options = [
        &format!("workdir={}", text(&directory(world, "work"))),
        &format!("upperdir={}", text(&upper)),
        "lowerdir={{ overlay 0 2 }}",
    ];
    mounts.push(mount("format/mkdir/overlay", "overlay", &options));
    assert_eq!(output_on(world, mounts, "cat /one /two; echo new > /file"), "onetwo");
    assert_eq!(fs::read_to_string(upper.join("file")).unwrap(), "new\n");
}

/// The same with `default_size`: what the container writes is in an image, which is made for it.
fn the_erofs_snapshotters_container_in_block_mode(world: &World) {
    let image = containerd_directory(world, "snapshots/9").join("rwlayer.img");
    let mounts = |script: &str| {
        let mounts = vec![
            mount(
                "mkfs/ext4",
                &image,
                &["X-containerd.mkfs.fs=ext4", "X-containerd.mkfs.size=33554432", "rw", "loop"],
            ),
            mount("erofs", erofs(world, "one", &layer(world, "one")), &["ro", "loop"]),
            mount("erofs", erofs(world, "base", &base(world)), &["ro", "loop"]),
            mount(
                "format/mkdir/overlay",
                "overlay",
                &[
                    "X-containerd.mkdir.path={{ mount 0 }}/upper:0755",
                    "X-containerd.mkdir.path={{ mount 0 }}/work:0755",
                    "workdir={{ mount 0 }}/work",
                    "upperdir={{ mount 0 }}/upper",
                    "lowerdir={{ overlay 1 2 }}",
                ],
            ),
        ];
        output_on(world, mounts, script)
    };
    assert_eq!(
        mounts("cat /one; echo kept > /file; chmod 0711 /; df -m / | awk 'END { print ($2 < 33) }'"),
        "one1\n"
    );
    assert_eq!(fs::metadata(&image).unwrap().len(), 33_554_432);
    assert_eq!(fs::read_dir(image.parent().unwrap()).unwrap().count(), 1, "no draft is left");
}

fn the_erofs_snapshotters_view_of_one_layer(world: &World) {
    let image = erofs(world, "base", &base(world));
    let mounts =
        vec![mount("erofs", image, &["ro", "loop"]), mount("format/bind", "{{ mount 0 }}", &["ro", "rbind"])];
    let said = output_on(world, mounts, "grep ' / ' /proc/mounts");
    assert!(said.contains(" / erofs ro"), "{said}");
}

/// The example of containerd's `docs/mounts.md`, with the device where it is mounted.
fn a_loop_device_for_a_later_mount(world: &World) {
    let image = containerd_directory(world, "disks").join("disk.img");
    let uuid = "550e8400-e29b-41d4-a716-446655440000";
    let mounts = vec![
        mount(
            "mkfs/loop",
            image,
            &["X-containerd.mkfs.size=32MiB", &format!("X-containerd.mkfs.uuid={uuid}")],
        ),
        mount("format/ext4", "{{ mount 0 }}", &[]),
        mount(
            "format/mkdir/overlay",
            "overlay",
            &[
                "X-containerd.mkdir.path={{ mount 1 }}/upper:0755",
                "X-containerd.mkdir.path={{ mount 1 }}/work:0755",
                &format!("lowerdir={}", text(&base(world))),
                "upperdir={{ mount 1 }}/upper",
                "workdir={{ mount 1 }}/work",
            ],
        ),
    ];
    assert_eq!(output_on(world, mounts, "echo x > /file; cat /file"), "x\n");
    assert!(!base(world).join("file").exists());
}

fn directories_are_made_as_asked_and_kept(world: &World) {
    let snapshot = containerd_directory(world, "snapshots/7");
    let (upper, work, kept) =
        (snapshot.join("fs"), snapshot.join("work"), directory(world, "containerd/kept"));
    fs::set_permissions(&kept, Permissions::from_mode(0o711)).unwrap();
    let rootfs = vec![mount(
        "mkdir/overlay",
        "overlay",
        &[
            &format!("X-containerd.mkdir.path={}:0757:1000:1001", text(&upper)),
            &format!("X-containerd.mkdir.path={}", text(&work)),
            &format!("X-containerd.mkdir.path={}:0755", text(&kept)),
            &format!("lowerdir={}", text(&base(world))),
            &format!("upperdir={}", text(&upper)),
            &format!("workdir={}", text(&work)),
        ],
    )];
    assert_eq!(output_on(world, rootfs, "stat -c %a:%u:%g /"), "757:1000:1001\n");
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(work), 0o700);
    // A container may have changed the mode of its root, which a restart is not to undo.
    assert_eq!(mode(kept), 0o711);
}

fn what_is_performed_is_announced(_world: &World) {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_containerd-shim-berth-v1"))
        .arg("-info")
        .output()
        .unwrap();
    let info = RuntimeInfo::decode(output.stdout.as_slice()).unwrap();
    let announced = info.annotations.get("containerd.io/runtime-allow-mounts").map(String::as_str);
    // containerd does dm-verity, where it can, only if it mounts all by itself.
    let expected =
        (!fs::exists("/sys/module/dm_verity").unwrap()).then_some("format/*,mkdir/*,mkfs/*,loop,erofs");
    assert_eq!(announced, expected);
}
