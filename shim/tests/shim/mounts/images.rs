//! Layers and images that containers stand on, and what is left of them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use berth_proto::types::Mount;

use crate::harness::{World, until};

/// Size of images that are written to.
const IMAGE_SIZE: &str = "64M";

/// A mount of a creation request.
pub(crate) fn mount(kind: &str, source: impl AsRef<Path>, options: &[&str]) -> Mount {
    Mount {
        r#type: kind.to_owned(),
        source: source.as_ref().display().to_string(),
        target: String::new(),
        options: options.iter().map(|option| (*option).to_owned()).collect(),
    }
}

/// A directory of the test.
pub(crate) fn directory(world: &World, name: &str) -> PathBuf {
    let path = world.dir().join(name);
    fs::create_dir_all(&path).unwrap();
    path
}

/// The world's root file system, without what tests write into it.
pub(crate) fn base(world: &World) -> PathBuf {
    world.dir().join("rootfs")
}

/// A directory with one file, whose content is the file's name.
pub(super) fn layer(world: &World, name: &str) -> PathBuf {
    let path = directory(world, &format!("layers/{name}"));
    fs::write(path.join(name), name).unwrap();
    path
}

/// An ext4 image of a directory's content.
pub(super) fn ext4(world: &World, content: &Path) -> PathBuf {
    let image = world.dir().join("image.ext4");
    run("mke2fs", &["-q", "-t", "ext4", "-d", text(content), text(&image), IMAGE_SIZE]);
    image
}

/// An erofs image of a directory's content.
pub(super) fn erofs(world: &World, name: &str, content: &Path) -> PathBuf {
    let image = world.dir().join(format!("{name}.erofs"));
    run("mkfs.erofs", &["--quiet", text(&image), text(content)]);
    image
}

/// A directory whose one entry is a link to a directory of the node.
pub(super) fn hostile(world: &World, link: &str, to: &str) -> PathBuf {
    let path = directory(world, "layers/hostile");
    symlink(to, path.join(link)).unwrap();
    path
}

/// Waits until no loop device holds a file of the test.
pub(super) fn no_devices(world: &World) {
    until("the end of the loop devices", || devices(world).is_empty().then_some(()));
}

/// Files of the test that loop devices hold.
pub(crate) fn devices(world: &World) -> Vec<String> {
    let blocks = fs::read_dir("/sys/block").unwrap().flatten();
    let files = blocks.filter_map(|block| fs::read_to_string(block.path().join("loop/backing_file")).ok());
    files.map(|file| file.trim().to_owned()).filter(|file| Path::new(file).starts_with(world.dir())).collect()
}

/// Mount points of the test.
pub(super) fn points(world: &World) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(str::to_owned);
    points.filter(|point| Path::new(point).starts_with(world.dir()) && !point.ends_with("netns")).collect()
}

/// Runs a program, which must succeed.
pub(crate) fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}: run scripts/setup"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
