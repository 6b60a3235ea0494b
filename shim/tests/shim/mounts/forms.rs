//! Mounts of the kernel's own kinds.

use std::fs;
use std::path::Path;

use berth_proto::types::Mount;
use nix::errno::Errno;
use nix::mount::MsFlags;

use super::images::{base, devices, directory, erofs, ext4, layer, mount, no_devices, points, run, text};
use crate::harness::{Pod, Spec, Task, World, until};
use crate::{Case, REAL};

pub(crate) const CASES: &[Case] = &[
    ("an_overlay_of_a_few_layers", REAL, an_overlay_of_a_few_layers),
    ("an_overlay_of_very_many_layers", REAL, an_overlay_of_very_many_layers),
    ("a_bind_that_is_read_only", REAL, a_bind_that_is_read_only),
    ("further_mounts_below_the_root", REAL, further_mounts_below_the_root),
    ("an_ext4_image", REAL, an_ext4_image),
    ("an_ext4_image_that_is_read_only", REAL, an_ext4_image_that_is_read_only),
    ("an_erofs_image_from_its_file", REAL, an_erofs_image_from_its_file),
    ("an_erofs_image_of_a_device", REAL, an_erofs_image_of_a_device),
    ("a_file_system_in_a_process", REAL, a_file_system_in_a_process),
    ("a_lost_shims_image_is_let_go", REAL, a_lost_shims_image_is_let_go),
];

/// Runs a script on a root file system to its end; returns what it said. Nothing may stay mounted after its deletion.
pub(super) fn output_on(world: &World, rootfs: Vec<Mount>, script: &str) -> String {
    let pod = Pod::start(world);
    let task = Task::create_on(&pod.shim, "c1", Spec::sh(script), rootfs).unwrap();
    assert_eq!(layers_left(world), Vec::<String>::new(), "only the root file system stays mounted");
    task.begin().unwrap();
    let code = task.wait();
    let said = task.log.text("stdout");
    assert_eq!(code, 0, "{said}{}", task.log.text("stderr"));
    task.delete().unwrap();
    assert!(!points(world).iter().any(|point| point.contains("/c1/")), "{:?}", points(world));
    no_devices(world);
    said
}

fn layers_left(world: &World) -> Vec<String> {
    points(world).into_iter().filter(|point| point.contains("/c1/layers")).collect()
}

fn an_overlay_of_a_few_layers(world: &World) {
    let (upper, work) = (directory(world, "upper"), directory(world, "work"));
    let (one, two) = (layer(world, "one"), layer(world, "two"));
    fs::write(two.join("one"), "hidden").unwrap();
    let options = [
        "index=off",
        "userxattr",
        "volatile",
        "x-some.comment=1",
        &format!("workdir={}", text(&work)),
        &format!("upperdir={}", text(&upper)),
        &format!("lowerdir={}:{}:{}", text(&one), text(&two), text(&base(world))),
    ];
    let said =
        output_on(world, vec![mount("overlay", "overlay", &options)], "cat /one /two; echo new > /file");
    assert_eq!(said, "onetwo");
    assert_eq!(fs::read_to_string(upper.join("file")).unwrap(), "new\n");
}

/// 300 layers with paths of 200 characters are fifteen pages of options, of which the kernel takes one.
fn an_overlay_of_very_many_layers(world: &World) {
    const LAYERS: usize = 300;
    let long = "x".repeat(170);
    let layers: Vec<_> = (0..LAYERS).map(|number| layer(world, &format!("{long}-{number}"))).collect();
    let lower: Vec<&str> = layers.iter().map(|layer| text(layer)).collect();
    let base = base(world);
    let options = [
        &format!("lowerdir={}:{}", lower.join(":"), text(&base)),
        &format!("upperdir={}", text(&directory(world, "upper"))),
        &format!("workdir={}", text(&directory(world, "work"))),
    ];
    let options: Vec<&str> = options.iter().map(|option| option.as_str()).collect();
    assert!(options[0].len() > 10 * 4096);
    let said =
        output_on(world, vec![mount("overlay", "overlay", &options)], "ls -d /xxx* | wc -l; cat /*-0 /*-299");
    assert_eq!(said, format!("{LAYERS}\n{long}-0{long}-299"));
}

/// Seen from the node: crun takes the flags of what it is given away again, unless its own configuration has them.
fn a_bind_that_is_read_only(world: &World) {
    let rootfs = vec![mount("bind", base(world), &["rbind", "ro", "nosuid", "nodev", "noatime"])];
    assert_eq!(flags_of_root(world, rootfs), ["ro", "nosuid", "nodev", "noatime"]);
}

/// Creates a container and deletes it; returns the flags of its root file system.
pub(super) fn flags_of_root(world: &World, rootfs: Vec<Mount>) -> Vec<String> {
    let pod = Pod::start(world);
    let task = Task::create_on(&pod.shim, "c1", Spec::sh("true"), rootfs).unwrap();
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let point = task.bundle.join("rootfs");
    let mut fields = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let line = fields.find(|fields| fields[4] == text(&point)).unwrap();
    let flags = line[5].split(',').map(str::to_owned).collect();
    fs::write(point.join("file"), "").expect_err("it is read-only");
    task.begin().unwrap();
    task.wait();
    task.delete().unwrap();
    flags
}

fn further_mounts_below_the_root(world: &World) {
    let data = layer(world, "data");
    let mut below = mount("bind", &data, &["rbind", "ro"]);
    below.target = "/shared".to_owned();
    let mounts = vec![mount("bind", base(world), &["bind", "rw"]), below];
    assert_eq!(
        output_on(world, mounts, "cat /shared/data; echo x > /shared/y && exit 1; echo x > /tmp/y"),
        "data"
    );
    assert!(base(world).join("tmp/y").exists());
}

fn an_ext4_image(world: &World) {
    let image = ext4(world, &base(world));
    let said =
        output_on(world, vec![mount("ext4", &image, &["rw", "loop"])], "echo kept > /file; stat -f -c %T /");
    assert_eq!(said, "ext2/ext3\n");
    let point = directory(world, "look");
    run("mount", &["-o", "ro,loop", text(&image), text(&point)]);
    assert_eq!(fs::read_to_string(point.join("file")).unwrap(), "kept\n");
    run("umount", &[text(&point)]);
    no_devices(world);
}

/// The device is read-only as well: the image can be one that root may not write to.
fn an_ext4_image_that_is_read_only(world: &World) {
    let image = ext4(world, &base(world));
    let before = fs::read(&image).unwrap();
    let pod = Pod::start(world);
    let mounts = vec![mount("ext4", &image, &["ro", "loop", "noload", "direct-io"])];
    let task = Task::create_on(&pod.shim, "c1", Spec::sh("echo x > /file || echo refused"), mounts).unwrap();
    assert_eq!(devices(world), [text(&image)]);
    assert_eq!(device_of(world, "ro"), "1");
    task.begin().unwrap();
    task.wait();
    assert_eq!(task.log.text("stdout"), "refused\n");
    task.delete().unwrap();
    no_devices(world);
    assert!(fs::read(&image).unwrap() == before, "the image was written to");
}

/// An attribute of the block device that holds the test's image.
fn device_of(world: &World, attribute: &str) -> String {
    let blocks = fs::read_dir("/sys/block").unwrap().flatten().map(|block| block.path());
    let holds = |file: String| file.trim().starts_with(text(world.dir()));
    let mut ours =
        blocks.filter(|block| fs::read_to_string(block.join("loop/backing_file")).is_ok_and(holds));
    fs::read_to_string(ours.next().unwrap().join(attribute)).unwrap().trim().to_owned()
}

/// Without a device where the kernel can do without, else by one that ends with the mount.
fn an_erofs_image_from_its_file(world: &World) {
    let image = erofs(world, "root", &base(world));
    let needed = if takes_files(world, &image) { Vec::new() } else { vec![text(&image).to_owned()] };
    let pod = Pod::start(world);
    let mounts = vec![mount("erofs", &image, &["ro", "loop"])];
    let task = Task::create_on(&pod.shim, "c1", Spec::sh("grep ' / ' /proc/mounts"), mounts).unwrap();
    assert_eq!(devices(world), needed);
    task.begin().unwrap();
    assert_eq!(task.wait(), 0);
    assert!(task.log.text("stdout").contains(" / erofs ro"), "{}", task.log.text("stdout"));
    task.delete().unwrap();
    no_devices(world);
}

/// Whether the kernel mounts erofs from files (Linux 6.12, if it was built so).
fn takes_files(world: &World, image: &Path) -> bool {
    let point = directory(world, "point");
    match nix::mount::mount(Some(image), &point, Some("erofs"), MsFlags::MS_RDONLY, None::<&str>) {
        Ok(()) => {
            nix::mount::umount(&point).unwrap();
            true
        }
        Err(Errno::ENOTBLK) => false,
        Err(failure) => panic!("mount {}: {failure}", image.display()),
    }
}

fn an_erofs_image_of_a_device(world: &World) {
    let image = erofs(world, "root", &base(world));
    let mounts = || vec![mount("erofs", &image, &["ro", "loop", "direct-io"])];
    let said = output_on(world, mounts(), "grep ' / ' /proc/mounts");
    assert!(said.starts_with("/dev/loop") && said.contains(" / erofs ro"), "{said}");
}

fn a_file_system_in_a_process(world: &World) {
    let (upper, work) = (directory(world, "upper"), directory(world, "work"));
    let options = [
        &format!("lowerdir={}", text(&base(world))),
        &format!("upperdir={},workdir={}", text(&upper), text(&work)),
    ];
    let options: Vec<&str> = options.iter().map(|option| option.as_str()).collect();
    let said = output_on(
        world,
        vec![mount("fuse3.fuse-overlayfs", "overlay", &options)],
        "echo new > /file; grep ' / ' /proc/mounts",
    );
    assert!(said.contains(" / fuse.fuse-overlayfs "), "{said}");
    assert_eq!(fs::read_to_string(upper.join("file")).unwrap(), "new\n");
}

fn a_lost_shims_image_is_let_go(world: &World) {
    let image = ext4(world, &base(world));
    let pod = Pod::start(world);
    let mounts = vec![mount("ext4", &image, &["loop"])];
    let task = Task::create_on(&pod.shim, "c1", Spec::sh("echo ready; sleep 1000"), mounts).unwrap();
    task.begin().unwrap();
    task.log.says("ready");
    // What a shim leaves that dies while it mounts.
    let layers = task.bundle.join("layers");
    fs::create_dir(&layers).unwrap();
    run("mount", &["-t", "tmpfs", "layers", text(&layers)]);
    fs::create_dir(layers.join("0")).unwrap();
    run("mount", &["--bind", text(&base(world)), text(&layers.join("0"))]);
    pod.shim.murder();
    pod.shim.delete();
    until("the end of all mounts", || {
        (!points(world).iter().any(|point| point.contains("/c1/"))).then_some(())
    });
    no_devices(world);
    assert!(!layers.exists() && base(world).join("bin/busybox").exists());
}
