use std::{
    fs::{self, File},
    os::unix::fs::{MetadataExt, symlink},
    path::Path,
};

use rustix::fs::mkdirat;
use tempfile::TempDir;

use super::*;
use crate::own_mounts::{tmpfs, with_own_mounts};

fn path(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

fn whole(at: &Path) -> Option<Measured> {
    measure(&[Tree::Whole(path(at))])[0]
}

fn file(at: &Path, bytes: usize) {
    fs::write(at, vec![1; bytes]).unwrap();
}

fn blocks(at: &Path) -> u64 {
    fs::symlink_metadata(at).unwrap().blocks() * BLOCK
}

#[test]
fn a_tree_counts_what_is_in_it_once() {
    let dir = TempDir::new().unwrap();
    let top = dir.path().join("top");
    fs::create_dir_all(top.join("a/b")).unwrap();
    file(&top.join("a/one"), 10_000);
    fs::hard_link(top.join("a/one"), top.join("a/b/same")).unwrap();
    file(&top.join("two"), 1);
    file(&dir.path().join("outside"), 1 << 20);
    symlink(dir.path().join("outside"), top.join("link")).unwrap();
    symlink("/", top.join("root")).unwrap();
    symlink(".", top.join("a/loop")).unwrap();
    let all = ["", "a", "a/b", "a/one", "two", "link", "root", "a/loop"];
    let bytes = all.iter().map(|name| blocks(&top.join(name))).sum::<u64>();
    let found = whole(&top).unwrap();
    assert_eq!((found.inodes, found.bytes), (8, bytes));
    assert!(found.file_system[0] > 0 && found.at > 0);
    // Of a directory of logs its files count.
    let files = measure(&[Tree::Files(path(&top))])[0].unwrap();
    assert_eq!(files.inodes, 3);
    let one = whole(&top.join("two")).unwrap();
    assert_eq!((one.inodes, one.bytes), (1, blocks(&top.join("two"))));
    let system = measure(&[Tree::FileSystem(path(&top))])[0].unwrap();
    assert_eq!((system.inodes, system.bytes, system.file_system[0]), (0, 0, found.file_system[0]));
}

#[test]
fn what_is_not_there_is_none_and_a_link_is_not_followed() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("real")).unwrap();
    file(&dir.path().join("real/large"), 1 << 20);
    symlink("real", dir.path().join("link")).unwrap();
    let trees = ["none", "none/below"].map(|name| Tree::Whole(path(&dir.path().join(name))));
    assert_eq!(measure(&trees), [None, None]);
    assert_eq!(whole(&dir.path().join("link")).unwrap().inodes, 1);
    assert_eq!(measure(&[Tree::Files(path(&dir.path().join("link")))])[0].map(|found| found.inodes), Some(0));
}

/// Deeper than is looked into, and with a path that is longer than a call takes.
#[test]
fn a_deep_tree_counts_as_far_as_it_is_looked_into() {
    let dir = TempDir::new().unwrap();
    let name = "d".repeat(100);
    let mut level: OwnedFd = File::open(dir.path()).unwrap().into();
    for _ in 0..2 * DEPTH_MAX {
        mkdirat(&level, name.as_str(), Mode::RWXU).unwrap();
        level = openat(&level, name.as_str(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let found = whole(dir.path()).unwrap();
    assert_eq!(found.inodes, u64::try_from(DEPTH_MAX + 1).unwrap());
}

#[test]
fn a_tree_with_many_entries_ends_with_its_time() {
    let dir = TempDir::new().unwrap();
    for number in 0..300 {
        File::create(dir.path().join(number.to_string())).unwrap();
    }
    assert_eq!(whole(dir.path()).unwrap().inodes, 301);
    let over = one(&Tree::Whole(path(dir.path())), Instant::now()).unwrap();
    assert_eq!(over.inodes, 1, "the top alone, since there is no time");
    let mut count = Count { entries: ENTRIES_MAX, ..Count::until(Instant::now() + MEASURED_WITHIN) };
    count.tree(&File::open(dir.path()).unwrap().into()).unwrap();
    assert_eq!(count.inodes, 1);
}

#[test]
fn files_that_go_meanwhile_are_no_error() {
    let dir = TempDir::new().unwrap();
    let inner = dir.path().join("inner");
    fs::create_dir(&inner).unwrap();
    for number in 0..500 {
        File::create(inner.join(number.to_string())).unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..500 {
                fs::remove_file(inner.join(number.to_string())).unwrap();
            }
            fs::remove_dir(&inner).unwrap();
        });
        while inner.exists() {
            assert!(whole(dir.path()).unwrap().inodes <= 502);
        }
    });
    assert_eq!(whole(dir.path()).unwrap().inodes, 1);
}

#[test]
fn mounts_below_are_not_looked_into_and_a_tmpfs_of_its_own_is_asked() {
    let dir = TempDir::new().unwrap();
    let (memory, inner) = (dir.path().join("memory"), dir.path().join("tree/inner"));
    fs::create_dir_all(&inner).unwrap();
    fs::create_dir(&memory).unwrap();
    file(&dir.path().join("tree/own"), 1);
    let elsewhere = dir.path().join("elsewhere");
    fs::create_dir_all(elsewhere.join("many")).unwrap();
    let bound = dir.path().join("tree/bound");
    fs::create_dir(&bound).unwrap();
    with_own_mounts(|| {
        tmpfs(&inner);
        tmpfs(&memory);
        file(&inner.join("other"), 1 << 20);
        file(&memory.join("one"), 8192);
        nix::mount::mount(Some(&elsewhere), &bound, None::<&str>, nix::mount::MsFlags::MS_BIND, None::<&str>)
            .unwrap();
        // The tree, its file, and the directory that another is bound at.
        assert_eq!(whole(&dir.path().join("tree")).unwrap().inodes, 3);
        let found = whole(&memory).unwrap();
        assert_eq!((found.bytes, found.inodes), (8192, 2));
    });
}
