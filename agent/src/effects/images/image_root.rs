//! A look into an image's file system, without leaving anything mounted.
//!
//! The layers are mounted read-only in a mount namespace of a thread that ends with the look, so a crash in between
//! leaves nothing, and whatever the snapshotter is, whiteouts and links mean what they mean in the container. Paths are
//! resolved by the kernel with the image as root: no link leads out.

use std::{
    fs::DirBuilder,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::DirBuilderExt,
    },
    path::Path,
    thread,
};

use containerd_client::types::Mount;
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};
use rustix::fs::{Mode, OFlags, ResolveFlags, open};

use crate::contained::open_within;

/// Longest option text that `mount(2)` takes: one page, with its end.
const OPTIONS_MAX: usize = 4095;

/// Runs `look` on the root of the file system that `mounts` describe, with `scratch` as mount point.
pub(in crate::effects) fn with_root<T: Send>(
    mounts: &[Mount],
    scratch: &Path,
    look: impl FnOnce(BorrowedFd<'_>) -> io::Result<T> + Send,
) -> io::Result<T> {
    in_own_mounts(|| {
        DirBuilder::new().recursive(true).mode(0o700).create(scratch)?;
        for one in mounts {
            mount_read_only(one, scratch)?;
        }
        let root = open(scratch, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        look(root.as_fd())
    })
}

/// Runs in a thread that has its mounts to itself, and its working directory: with its end they are gone.
pub(super) fn in_own_mounts<T: Send>(run: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let inside = || {
        unshare(CloneFlags::CLONE_NEWNS)?;
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
        run()
    };
    thread::scope(|scope| {
        let worker = thread::Builder::new().name("image".to_owned()).spawn_scoped(scope, inside)?;
        worker.join().map_err(|_panic| io::Error::other("the thread panicked"))?
    })
}

/// Opens a path of the image.
pub(in crate::effects) fn open_in(root: BorrowedFd<'_>, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
    open_within(root, path, flags, ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)
}

fn mount_read_only(one: &Mount, target: &Path) -> io::Result<()> {
    let lower = one.options.iter().find_map(|option| option.strip_prefix("lowerdir="));
    match (one.r#type.as_str(), lower) {
        ("overlay", Some(lower)) => mount_layers(&lower.split(':').collect::<Vec<_>>(), target),
        ("bind", _) => bind(&one.source, target),
        (kind, _) => {
            let options: Vec<&str> = one
                .options
                .iter()
                .map(String::as_str)
                .filter(|option| !matches!(*option, "ro" | "rw") && !is_map(option))
                .collect();
            Ok(mount(
                Some(one.source.as_str()),
                target,
                Some(kind),
                MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV,
                Some(options.join(",").as_str()),
            )?)
        }
    }
}

/// For whom owners are shifted: who looks sees them as the image has them.
fn is_map(option: &str) -> bool {
    ["uidmap=", "gidmap="].iter().any(|name| option.starts_with(name))
}

fn bind(source: &str, target: &Path) -> io::Result<()> {
    Ok(mount(Some(source), target, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)?)
}

/// Layers, topmost first. An overlay needs two; one is bound. Paths that are too long together are shortened to what
/// they do not share, from the directory that they do: the thread's own working directory.
fn mount_layers(layers: &[&str], target: &Path) -> io::Result<()> {
    if let [layer] = layers {
        return bind(layer, target);
    }
    let mut options = format!("lowerdir={}", layers.join(":"));
    if options.len() > OPTIONS_MAX {
        let shared = shared_dir(layers);
        std::env::set_current_dir(shared)?;
        let short: Vec<&str> = layers.iter().map(|layer| &layer[shared.len()..]).collect();
        options = format!("lowerdir={}", short.join(":"));
    }
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    Ok(mount(Some("overlay"), target, Some("overlay"), flags, Some(options.as_str()))?)
}

/// The longest directory, with its slash, that all paths begin with.
fn shared_dir<'a>(paths: &[&'a str]) -> &'a str {
    let Some((first, rest)) = paths.split_first() else { return "" };
    let shared = rest.iter().fold(first.len(), |length, path| {
        first.bytes().zip(path.bytes()).take(length).take_while(|(one, other)| one == other).count()
    });
    let end = first.as_bytes()[..shared].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    &first[..end]
}

#[cfg(test)]
mod tests {
    use std::{io::Read, os::unix::fs::symlink};

    use std::fs;

    use super::*;

    #[test]
    fn layers_share_a_directory() {
        assert_eq!(shared_dir(&["/s/snapshots/12/fs", "/s/snapshots/1/fs"]), "/s/snapshots/");
        assert_eq!(shared_dir(&["/a/x", "/b/x"]), "/");
        assert_eq!(shared_dir(&[]), "");
    }

    #[test]
    fn links_of_the_image_stay_in_it_and_upper_layers_win() {
        let dir = tempfile::tempdir().unwrap();
        let (low, high) = (dir.path().join("low"), dir.path().join("high"));
        fs::create_dir_all(low.join("etc")).unwrap();
        fs::create_dir_all(high.join("etc")).unwrap();
        fs::write(low.join("etc/passwd"), "low").unwrap();
        fs::write(high.join("etc/passwd"), "high").unwrap();
        symlink("/../../../etc/passwd", low.join("link")).unwrap();
        let options = vec![format!("lowerdir={}:{}", high.display(), low.display())];
        let overlay = Mount { r#type: "overlay".to_owned(), options, ..Mount::default() };
        let text = with_root(&[overlay], &dir.path().join("scratch"), |root| {
            let mut text = String::new();
            fs::File::from(open_in(root, "link", OFlags::RDONLY)?).read_to_string(&mut text)?;
            Ok(text)
        });
        assert_eq!(text.unwrap(), "high");
        assert_eq!(
            fs::read_dir(dir.path().join("scratch")).unwrap().count(),
            0,
            "something is still mounted"
        );
    }
}
