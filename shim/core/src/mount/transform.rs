//! What the prefixes `mkdir/` and `mkfs/` ask for.

use super::PlanError;
use super::idmap::decimal;
use super::plan::Roots;

/// Prefix of the options that `mkdir/` consumes (`core/mount/manager/transformer.go` of containerd).
const MKDIR: &str = "X-containerd.mkdir.";
/// Prefix of the options that `mkfs/` consumes.
const MKFS: &str = "X-containerd.mkfs.";
/// Mode of a directory for which none is given.
const MODE_DEFAULT: u32 = 0o700;
/// Largest image: that of ext4 with blocks of 4 KiB.
const IMAGE_BYTES_MAX: u64 = 16 << 40;

/// The directories in which something may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    /// The one with the mounts that serve later ones.
    Layers,
    /// The one in which containerd keeps everything.
    Containerd,
}

/// A path beneath a directory of ours, of ordinary components only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beneath {
    /// The directory.
    pub root: Root,
    /// The path from there, not empty.
    pub path: String,
}

/// A directory that is made before its mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    /// Where.
    pub path: Beneath,
    /// Its permissions.
    pub mode: u32,
    /// Its owner, if not root.
    pub owner: Option<Owner>,
}

/// Owner of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// An image that is made before its mount, unless it is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Where.
    pub path: Beneath,
    /// What it is formatted with.
    pub format: Format,
    /// Its size.
    pub size_bytes: u64,
    /// The file system's UUID, or one of mkfs's choice.
    pub uuid: Option<String>,
}

/// File systems that images are made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// ext2.
    Ext2,
    /// ext3.
    Ext3,
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
}

impl Beneath {
    pub(super) fn of(path: &str, roots: &Roots<'_>) -> Result<Self, PlanError> {
        let outside = || PlanError::Outside(path.to_owned());
        let below = |root: &str| path.strip_prefix(root).and_then(|rest| rest.strip_prefix('/'));
        let inside = below(roots.layers).map(|below| (Root::Layers, below));
        let inside = inside.or_else(|| Some((Root::Containerd, below(roots.containerd?)?)));
        let (root, below) = inside.ok_or_else(outside)?;
        let ordinary = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains('\0');
        if below.split('/').all(ordinary) {
            Ok(Self { root, path: below.to_owned() })
        } else {
            Err(outside())
        }
    }
}

/// Takes the directories that are to be made out of options. Form: `X-containerd.mkdir.path=PATH[:MODE[:UID:GID]]`.
pub(super) fn directories(options: &mut Vec<String>, roots: &Roots<'_>) -> Result<Vec<Directory>, PlanError> {
    let (ours, others) = divide(std::mem::take(options), MKDIR);
    *options = others;
    ours.iter().map(|option| directory(option, roots)).collect()
}

fn directory(option: &str, roots: &Roots<'_>) -> Result<Directory, PlanError> {
    let refuse = |why| PlanError::Directory { option: option.to_owned(), why };
    let value = option.strip_prefix(MKDIR).and_then(|rest| rest.strip_prefix("path="));
    let value = value.ok_or_else(|| refuse("it is not of the form path=PATH[:MODE[:UID:GID]]"))?;
    let parts: Vec<&str> = value.split(':').collect();
    let (path, mode, owner) = match parts.as_slice() {
        [path] => (path, None, None),
        [path, mode] => (path, Some(mode), None),
        [path, mode, uid, gid] => (path, Some(mode), Some((uid, gid))),
        _ => return Err(refuse("it has neither one, two nor four parts")),
    };
    let mode = match mode {
        None => MODE_DEFAULT,
        Some(mode) => octal(mode).ok_or_else(|| refuse("the mode is not an octal number up to 0777"))?,
    };
    let owner = match owner {
        None => None,
        Some((uid, gid)) => {
            let id = |text: &str| decimal(text).ok_or_else(|| refuse("an owner is two numbers"));
            Some(Owner { uid: id(uid)?, gid: id(gid)? })
        }
    };
    Ok(Directory { path: Beneath::of(path, roots)?, mode, owner })
}

fn octal(text: &str) -> Option<u32> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777)
}

/// Takes the wish for an image out of options.
pub(super) fn image(source: &str, options: &mut Vec<String>, roots: &Roots<'_>) -> Result<Image, PlanError> {
    let refuse = |why| PlanError::Image { image: source.to_owned(), why };
    let (ours, others) = divide(std::mem::take(options), MKFS);
    *options = others;
    let (mut format, mut size_bytes, mut uuid) = (Format::Ext4, None, None);
    for option in &ours {
        match option.strip_prefix(MKFS).and_then(|rest| rest.split_once('=')) {
            Some(("size", value)) => {
                let size = bytes(value).filter(|size| (1..=IMAGE_BYTES_MAX).contains(size));
                size_bytes = Some(size.ok_or_else(|| refuse("its size is no number of bytes up to 16 TiB"))?);
            }
            Some(("fs", value)) => {
                format =
                    Format::of(value).ok_or_else(|| refuse("only ext2, ext3, ext4 and xfs can be made"))?;
            }
            Some(("uuid", value)) => {
                uuid = Some(value).filter(|value| is_uuid(value)).map(str::to_owned);
                uuid.as_ref().ok_or_else(|| refuse("its UUID is malformed"))?;
            }
            Some(_) | None => return Err(refuse("options of mkfs are size, fs and uuid")),
        }
    }
    let size_bytes = size_bytes.ok_or_else(|| refuse("there is no X-containerd.mkfs.size"))?;
    Ok(Image { path: Beneath::of(source, roots)?, format, size_bytes, uuid })
}

impl Format {
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "ext2" => Self::Ext2,
            "ext3" => Self::Ext3,
            "ext4" => Self::Ext4,
            "xfs" => Self::Xfs,
            _ => return None,
        })
    }
}

fn divide(options: Vec<String>, prefix: &str) -> (Vec<String>, Vec<String>) {
    options.into_iter().partition(|option| option.starts_with(prefix))
}

/// A size as `units.RAMInBytes` of docker/go-units reads it, without fractions: powers of 1024, in either case.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits)?;
    let shift = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn is_uuid(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    let hex = |group: &&str| group.bytes().all(|byte| byte.is_ascii_hexdigit());
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12]) && groups.iter().all(hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOTS: Roots<'_> = Roots { layers: "/b/layers", containerd: Some("/var/lib/containerd") };

    fn made(option: &str) -> Result<Directory, PlanError> {
        let mut options = vec!["ro".to_owned(), option.to_owned()];
        let mut directories = directories(&mut options, &ROOTS)?;
        assert_eq!(options, ["ro"]);
        Ok(directories.remove(0))
    }

    #[test]
    fn directories_have_a_mode_and_an_owner_if_so_asked() {
        let path = |root, path: &str| Beneath { root, path: path.to_owned() };
        let upper = path(Root::Layers, "0/upper");
        for (option, expected) in [
            ("/b/layers/0/upper", (upper.clone(), 0o700, None)),
            ("/b/layers/0/upper:0755", (upper.clone(), 0o755, None)),
            ("/b/layers/0/upper:711:1:2", (upper, 0o711, Some(Owner { uid: 1, gid: 2 }))),
            ("/var/lib/containerd/s/1", (path(Root::Containerd, "s/1"), 0o700, None)),
        ] {
            let (path, mode, owner) = expected;
            let made = made(&format!("X-containerd.mkdir.path={option}"));
            assert_eq!(made, Ok(Directory { path, mode, owner }), "{option}");
        }
    }

    #[test]
    fn malformed_directories_are_refused() {
        for option in [
            "mode=1",
            "path=/b/layers/0/x:8",
            "path=/b/layers/0/x:01777",
            "path=/b/layers/0/x:+7",
            "path=/b/layers/0/x:7:1",
            "path=/b/layers/0/x:7:1:2:3",
            "path=/b/layers/0/x:7:-1:2",
            "path=/b/layers/0/x:",
        ] {
            let refused = made(&format!("X-containerd.mkdir.{option}"));
            assert!(matches!(refused, Err(PlanError::Directory { .. })), "{option}: {refused:?}");
        }
    }

    #[test]
    fn nothing_is_made_outside() {
        for path in [
            "",
            "/",
            "/etc",
            "relative",
            "/b/layers",
            "/b/layers/",
            "/b/layersx/y",
            "/b/layers/../../etc",
            "/b/layers/0/../x",
            "/b/layers//x",
            "/var/lib/containerd/./x",
            "/b/layers/a\0b",
            "{{ mount 0 }}/x",
        ] {
            assert!(
                matches!(made(&format!("X-containerd.mkdir.path={path}")), Err(PlanError::Outside(_))),
                "{path}"
            );
        }
        let alone = Roots { containerd: None, ..ROOTS };
        Beneath::of("/var/lib/containerd/x", &alone).expect_err("no such root");
    }

    fn make(options: &[&str]) -> Result<Image, PlanError> {
        let mut options = options.iter().map(|option| format!("X-containerd.mkfs.{option}")).collect();
        image("/var/lib/containerd/s/1/rw.img", &mut options, &ROOTS)
    }

    #[test]
    fn images_have_a_size_a_format_and_perhaps_a_uuid() {
        let uuid = "550e8400-e29b-41d4-a716-446655440000";
        let image = make(&["size=100MiB", "fs=xfs", &format!("uuid={uuid}")]).unwrap();
        assert_eq!(image.path, Beneath { root: Root::Containerd, path: "s/1/rw.img".to_owned() });
        assert_eq!(
            (image.format, image.size_bytes, image.uuid.as_deref()),
            (Format::Xfs, 100 << 20, Some(uuid))
        );
        assert_eq!(make(&["size=1"]).unwrap().format, Format::Ext4);
    }

    #[test]
    fn malformed_images_are_refused() {
        for options in [
            &["fs=ext4"][..],
            &["size="],
            &["size=0"],
            &["size=-1"],
            &["size=1x"],
            &["size=17t"],
            &["size=99999999999999999999"],
            &["size=1", "fs=btrfs"],
            &["size=1", "uuid=--help"],
            &["size=1", "label=x"],
            &["size"],
        ] {
            assert!(matches!(make(options), Err(PlanError::Image { .. })), "{options:?}");
        }
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, size) in
            [("7", 7), ("7b", 7), ("2k", 2048), ("1 MB", 1 << 20), ("3GiB", 3 << 30), ("1T", 1 << 40)]
        {
            assert_eq!(bytes(text), Some(size), "{text}");
        }
    }
}
