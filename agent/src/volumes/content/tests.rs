use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use super::*;

fn file(path: &str, mode: u32, text: &str) -> ContentFile {
    ContentFile { path: path.to_owned(), mode, owner: None, bytes: Hidden::new(text.into()) }
}

fn put_all(volume: &Path, files: &[ContentFile]) {
    write(volume, files, &BTreeSet::new(), None).unwrap();
}

/// What `ls -A` shows, links with where they lead.
fn shown(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            match fs::read_link(entry.path()) {
                Ok(_) if name == DATA => name,
                Ok(target) => format!("{name} -> {}", target.display()),
                Err(_) if name.starts_with("..2") => "(moment)".to_owned(),
                Err(_) => name,
            }
        })
        .collect();
    names.sort();
    names
}

fn moment(volume: &Path) -> String {
    fs::read_link(volume.join(DATA)).unwrap().display().to_string()
}

#[test]
fn files_are_seen_through_links_and_change_together() {
    let dir = tempfile::tempdir().unwrap();
    let volume = dir.path();
    put_all(volume, &[file("a", 0o644, "1"), file("b/c", 0o400, "2"), file("b/d", 0o640, "3")]);
    assert_eq!(shown(volume), ["(moment)", "..data", "a -> ..data/a", "b -> ..data/b"]);
    assert_eq!(fs::read_to_string(volume.join("b/c")).unwrap(), "2");
    let mode = |path: &str| fs::metadata(volume.join(path)).unwrap().mode() & 0o7777;
    assert_eq!((mode("a"), mode("b"), mode("b/c"), mode("b/d")), (0o644, 0o755, 0o400, 0o640));

    let before = moment(volume);
    put_all(volume, &[file("a", 0o644, "1"), file("b/c", 0o400, "2"), file("b/d", 0o640, "3")]);
    assert_eq!(moment(volume), before, "nothing has changed");

    put_all(volume, &[file("a", 0o644, "4"), file("e", 0o644, "5")]);
    assert_eq!(shown(volume), ["(moment)", "..data", "a -> ..data/a", "e -> ..data/e"]);
    assert_ne!(moment(volume), before);
    assert_eq!(fs::read_to_string(volume.join("a")).unwrap(), "4");

    put_all(volume, &[]);
    assert_eq!(shown(volume), ["(moment)", "..data"]);
}

/// Readers open one file after another through `..data`: all of one moment, or the next.
#[test]
fn a_reader_never_sees_half_of_an_update() {
    let dir = tempfile::tempdir().unwrap();
    let volume = dir.path();
    let all = |number: usize| -> Vec<ContentFile> {
        (0..5).map(|name| file(&format!("f{name}"), 0o644, &format!("{number:08}"))).collect()
    };
    put_all(volume, &all(0));
    let done = AtomicBool::new(false);
    let seen = thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut seen, mut last) = (0, String::new());
            while !done.load(Ordering::Relaxed) {
                let text = fs::read_to_string(volume.join("f0")).unwrap_or_else(|error| {
                    // What was resolved just before the moment was removed.
                    assert_eq!(error.kind(), ErrorKind::NotFound);
                    last.clone()
                });
                assert!(text.is_empty() || text.len() == 8, "half of it: {text}");
                assert!(text >= last, "back in time");
                let Ok(dir) = open(volume.join(DATA), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
                else {
                    continue;
                };
                let texts: BTreeSet<Vec<u8>> = (0..5)
                    .filter_map(|name| openat(&dir, format!("f{name}"), OFlags::RDONLY, Mode::empty()).ok())
                    .map(|file| {
                        let mut text = Vec::new();
                        File::from(file).read_to_end(&mut text).unwrap();
                        text
                    })
                    .collect();
                assert!(texts.len() <= 1, "of two moments: {texts:?}");
                seen += 1;
                last = text;
            }
            seen
        });
        for number in 1..300 {
            put_all(volume, &all(number));
        }
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap()
    });
    assert!(seen > 0);
    assert_eq!(fs::read_to_string(volume.join("f4")).unwrap(), "00000299");
}

#[test]
fn paths_that_lead_out_are_refused_whoever_wrote_them() {
    let dir = tempfile::tempdir().unwrap();
    let long = "x".repeat(256);
    let longer = "a/".repeat(2048) + "b";
    for (path, words) in [
        ("", "must not be empty"),
        ("/etc/passwd", "must be relative path"),
        ("../x", "must not contain '..'"),
        ("a/../../x", "must not contain '..'"),
        ("..data", "must not start with '..'"),
        ("..data_tmp", "must not start with '..'"),
        ("a/./b", "plain names"),
        ("a//b", "plain names"),
        ("a\0b", "plain names"),
        (&long, "255 characters"),
        (&longer, "4096 characters"),
    ] {
        let error = write(dir.path(), &[file(path, 0o644, "")], &BTreeSet::new(), None).unwrap_err();
        assert!(error.to_string().contains(words), "{path}: {error}");
    }
    assert_eq!(shown(dir.path()), Vec::<String>::new());
    put_all(dir.path(), &[file("..a/b".trim_start_matches('.'), 0o644, ""), file("x..y", 0o644, "")]);
}

/// A pod that could write into its volume makes links before an update and before the end of a file.
#[test]
fn cve_2017_1002102_links_in_the_volume_lead_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let (volume, outside) = (dir.path().join("volume"), dir.path().join("outside"));
    fs::create_dir(&volume).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), "kept").unwrap();
    let content = [file("a", 0o644, "1"), file("sub/b", 0o644, "2")];
    for (link, target) in [
        ("..data", "../outside"),
        ("..data", ".."),
        ("..data", "..evil"),
        ("..data_tmp", "../outside"),
        ("..evil", "../outside"),
        ("sub", "../outside"),
        ("a", "../outside/precious"),
        ("gone", "../outside/precious"),
    ] {
        put_all(&volume, &[file("gone", 0o644, "x")]);
        drop(fs::remove_file(volume.join(link)));
        symlink(target, volume.join(link)).unwrap();
        if target == "..evil" {
            symlink("../outside", volume.join("..evil")).unwrap();
        }
        let nested = BTreeSet::from(["sub/nested".to_owned()]);
        drop(write(&volume, &content, &nested, Some(4242)));
        drop(write(&volume, &[], &nested, Some(4242)));
        assert_eq!(fs::read_to_string(outside.join("precious")).unwrap(), "kept", "{link}");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "{link} -> {target}");
        assert_eq!(fs::metadata(outside.join("precious")).unwrap().gid(), 0, "{link} -> {target}");
        remove_tree(&volume).unwrap();
        fs::create_dir(&volume).unwrap();
    }
}

#[test]
fn what_a_kill_left_is_finished() {
    let dir = tempfile::tempdir().unwrap();
    let volume = dir.path();
    put_all(volume, &[file("a", 0o644, "1"), file("b", 0o644, "2")]);
    // Before the rename: a moment that nothing leads to, with the next link.
    fs::create_dir(volume.join("..2020_01_01_00_00_00.1")).unwrap();
    fs::write(volume.join("..2020_01_01_00_00_00.1/a"), "half").unwrap();
    symlink("..2020_01_01_00_00_00.1", volume.join(NEXT_DATA)).unwrap();
    put_all(volume, &[file("a", 0o644, "1"), file("b", 0o644, "2")]);
    assert_eq!(shown(volume), ["(moment)", "..data", "a -> ..data/a", "b -> ..data/b"]);
    // After it: links to what is no more, and none to what is new.
    symlink("..data/old", volume.join("old")).unwrap();
    fs::remove_file(volume.join("b")).unwrap();
    put_all(volume, &[file("a", 0o644, "1"), file("b", 0o644, "2")]);
    assert_eq!(shown(volume), ["(moment)", "..data", "a -> ..data/a", "b -> ..data/b"]);
    // The directory itself is gone.
    remove_tree(&volume.join(moment(volume))).unwrap();
    put_all(volume, &[file("a", 0o644, "1"), file("b", 0o644, "2")]);
    assert_eq!(fs::read_to_string(volume.join("b")).unwrap(), "2");
}

#[test]
fn what_cannot_be_written_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let volume = dir.path();
    put_all(volume, &[file("a", 0o644, "1")]);
    // The second has no place, as on a full disk.
    let both = [file("a", 0o644, "2"), file("a/b", 0o644, "2")];
    write(volume, &both, &BTreeSet::new(), None).unwrap_err();
    assert_eq!(shown(volume), ["(moment)", "..data", "a -> ..data/a"]);
    assert_eq!(fs::read_to_string(volume.join("a")).unwrap(), "1");

    // What an earlier try left makes room before another one is begun.
    fs::create_dir(volume.join("..2020_01_01_00_00_00.1")).unwrap();
    write(volume, &both, &BTreeSet::new(), None).unwrap_err();
    assert_eq!(shown(volume), ["(moment)", "..data", "a -> ..data/a"]);
}

#[test]
fn a_group_reads_everything_and_a_user_owns_its_token() {
    let dir = tempfile::tempdir().unwrap();
    let volume = dir.path();
    let token = ContentFile { owner: Some(1000), ..file("token", 0o600, "t") };
    write(volume, &[token, file("sub/x", 0o400, "x")], &BTreeSet::new(), Some(4242)).unwrap();
    let of = |path: &str| {
        let found = fs::metadata(volume.join(path)).unwrap();
        (found.mode() & 0o7777, found.uid(), found.gid())
    };
    assert_eq!(of("token"), (0o640, 1000, 4242));
    assert_eq!(of("sub"), (0o2755, 0, 4242));
    assert_eq!(of("sub/x"), (0o440, 0, 4242));
    assert_eq!(fs::symlink_metadata(volume.join("token")).unwrap().uid(), 1000);
}

#[test]
fn what_is_mounted_within_has_its_directory_beside_the_links() {
    let dir = tempfile::tempdir().unwrap();
    let volume = dir.path();
    let nested = BTreeSet::from(["a/b".to_owned(), "in".to_owned()]);
    for _ in 0..2 {
        write(volume, &[file("in/x", 0o644, "x"), file("y", 0o644, "y")], &nested, None).unwrap();
        assert_eq!(shown(volume), ["(moment)", "..data", "a", "in", "y -> ..data/y"]);
        assert!(volume.join("a/b").is_dir());
    }
}
