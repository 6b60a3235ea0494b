//! Root file systems whose owners appear shifted, as a pod with a user namespace of its own needs them.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use super::forms::{flags_of_root, output_on};
use super::images::{base, directory, erofs, ext4, layer, mount, text};
use crate::harness::World;
use crate::{Case, REAL};

pub(crate) const CASES: &[Case] = &[
    ("an_overlay_with_mapped_ids", REAL, an_overlay_with_mapped_ids),
    ("layers_of_images_with_mapped_ids", REAL, layers_of_images_with_mapped_ids),
    ("a_bind_with_mapped_ids", REAL, a_bind_with_mapped_ids),
    ("a_bind_that_is_read_only_with_mapped_ids", REAL, a_bind_that_is_read_only_with_mapped_ids),
    ("an_image_with_mapped_ids", REAL, an_image_with_mapped_ids),
];

const MAPS: [&str; 2] = ["uidmap=0:100000:65536", "gidmap=0:200000:65536"];
/// Owners of a file of root's and of one of user 7's and group 8's.
const OWNERS: &str = "stat -c %u:%g /bin/busybox /seven";
const MAPPED: &str = "100000:200000\n100007:200008\n";

fn seven(world: &World) {
    let file = base(world).join("seven");
    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
    chown(file, Some(7), Some(8)).unwrap();
}

/// The overlayfs snapshotter with the capability `remap-ids`: it hands the directory for writing to the mapped root.
fn an_overlay_with_mapped_ids(world: &World) {
    seven(world);
    let (upper, work) = (directory(world, "upper"), directory(world, "work"));
    chown(&upper, Some(100_000), Some(200_000)).unwrap();
    let options = [
        MAPS[0],
        MAPS[1],
        "index=off",
        &format!("workdir={}", text(&work)),
        &format!("upperdir={}", text(&upper)),
        &format!("lowerdir={}:{}", text(&layer(world, "one")), text(&base(world))),
    ];
    let script = format!("{OWNERS}; stat -c %u:%g /one /; echo x >> /seven");
    let said = output_on(world, vec![mount("overlay", "overlay", &options)], &script);
    assert_eq!(said, format!("{MAPPED}100000:200000\n100000:200000\n"));
    // The copy for writing is the mapped owner's; the layer is as it was.
    let owner = |path| fs::metadata(path).map(|file| (file.uid(), file.gid())).unwrap();
    assert_eq!(owner(upper.join("seven")), (100_007, 200_008));
    assert_eq!(owner(base(world).join("seven")), (7, 8));
    assert_eq!(fs::read(base(world).join("seven")).unwrap(), b"");
}

fn layers_of_images_with_mapped_ids(world: &World) {
    seven(world);
    let mounts = vec![
        mount("erofs", erofs(world, "one", &layer(world, "one")), &["ro", "loop"]),
        mount("erofs", erofs(world, "base", &base(world)), &["ro", "loop"]),
        mount(
            "format/mkdir/overlay",
            "overlay",
            &[
                &format!("workdir={}", text(&directory(world, "work"))),
                &format!("upperdir={}", text(&directory(world, "upper"))),
                MAPS[0],
                MAPS[1],
                "lowerdir={{ overlay 0 1 }}",
            ],
        ),
    ];
    assert_eq!(output_on(world, mounts, OWNERS), MAPPED);
}

fn a_bind_with_mapped_ids(world: &World) {
    seven(world);
    let mounts = vec![mount("bind", base(world), &["rbind", MAPS[0], MAPS[1]])];
    assert_eq!(output_on(world, mounts, OWNERS), MAPPED);
}

/// containerd's own code for this passes the mapping over.
fn a_bind_that_is_read_only_with_mapped_ids(world: &World) {
    let mounts = vec![mount("bind", base(world), &["rbind", "ro", MAPS[0], MAPS[1]])];
    let flags = flags_of_root(world, mounts);
    assert!(flags.contains(&"ro".to_owned()) && flags.contains(&"idmapped".to_owned()), "{flags:?}");
}

fn an_image_with_mapped_ids(world: &World) {
    seven(world);
    let mounts = vec![mount("ext4", ext4(world, &base(world)), &["loop", MAPS[0], MAPS[1]])];
    assert_eq!(output_on(world, mounts, OWNERS), MAPPED);
}
