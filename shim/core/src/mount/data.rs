//! Options of a file system that name paths, which may have to be named otherwise.

use super::plan::Roots;

/// Where a source or a layer is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// Some path of the node, or a name that is none.
    Node(String),
    /// A path beneath the directory of mounts that serve later ones. What is there may be an image's content, so no
    /// link on the way may be followed.
    Layer(String),
    /// The loop device of the mount with this number.
    Device(usize),
}

/// One option of a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Datum {
    /// For the file system to read.
    Plain(String),
    /// A name and paths, between colons where the option takes a list. An empty path stands for a doubled colon, after
    /// which an overlay has layers of data only.
    Paths {
        /// As it is written.
        text: String,
        /// The name with its `=`.
        name: String,
        /// The paths. `None` is an empty one.
        paths: Vec<Option<Location>>,
    },
}

impl Datum {
    /// The option as it was written.
    pub fn text(&self) -> &str {
        match self {
            Self::Plain(text) | Self::Paths { text, .. } => text,
        }
    }
}

/// How an option lists its paths.
#[derive(Debug, Clone, Copy)]
enum List {
    /// One path.
    Single,
    /// Several, with `\` before what belongs to a path (`ovl_unescape` of the kernel).
    Colons,
}

/// The options of a file system type that name paths.
pub(super) fn of_overlay(text: &str, locate: impl Fn(&str) -> Location) -> Datum {
    paths(
        text,
        &[("lowerdir=", List::Colons), ("upperdir=", List::Single), ("workdir=", List::Single)],
        locate,
    )
}

/// The same for erofs, which takes its further images as devices.
pub(super) fn of_erofs(text: &str, locate: impl Fn(&str) -> Location) -> Datum {
    paths(text, &[("device=", List::Single)], locate)
}

fn paths(text: &str, known: &[(&str, List)], locate: impl Fn(&str) -> Location) -> Datum {
    let found = known.iter().find_map(|(name, list)| Some((*name, *list, text.strip_prefix(*name)?)));
    let Some((name, list, value)) = found else { return Datum::Plain(text.to_owned()) };
    let values = match list {
        List::Single => vec![value.to_owned()],
        List::Colons => split(value),
    };
    let locate = |path: String| (!path.is_empty()).then(|| locate(&path));
    let paths = values.into_iter().map(locate).collect();
    Datum::Paths { text: text.to_owned(), name: name.to_owned(), paths }
}

/// Divides a list at its colons.
fn split(list: &str) -> Vec<String> {
    let mut paths = vec![String::new()];
    let mut is_escaped = false;
    for character in list.chars() {
        match (character, paths.last_mut()) {
            ('\\', _) if !is_escaped => is_escaped = true,
            (':', _) if !is_escaped => paths.push(String::new()),
            (_, Some(path)) => {
                path.push(character);
                is_escaped = false;
            }
            (_, None) => {}
        }
    }
    paths
}

/// Finds where a path is. `devices` tells the mounts that are loop devices.
pub(super) fn locate(path: &str, roots: &Roots<'_>, is_device: impl Fn(usize) -> bool) -> Location {
    let below = path.strip_prefix(roots.layers).and_then(|rest| rest.strip_prefix('/'));
    let Some(below) = below else { return Location::Node(path.to_owned()) };
    match below.parse() {
        Ok(index) if is_device(index) => Location::Device(index),
        Ok(_) | Err(_) => Location::Layer(below.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOTS: Roots<'_> = Roots { layers: "/b/layers", containerd: None };

    fn at(path: &str) -> Location {
        locate(path, &ROOTS, |index| index == 7)
    }

    #[test]
    fn layers_devices_and_other_paths_are_told_apart() {
        assert_eq!(at("/b/layers/0/upper"), Location::Layer("0/upper".to_owned()));
        assert_eq!(at("/b/layers/7"), Location::Device(7));
        assert_eq!(at("/b/layers/7/x"), Location::Layer("7/x".to_owned()));
        for other in ["overlay", "/b/layersx", "/b/layers", "/x/b/layers/0"] {
            assert_eq!(at(other), Location::Node(other.to_owned()));
        }
    }

    #[test]
    fn options_with_paths_are_taken_apart() {
        let node = |path: &str| Some(Location::Node(path.to_owned()));
        let Datum::Paths { paths, name, .. } = of_overlay("lowerdir=/a:/b\\:c::/data", at) else { panic!() };
        assert_eq!(
            (name.as_str(), paths),
            ("lowerdir=", vec![node("/a"), node("/b:c"), None, node("/data")])
        );
        let Datum::Paths { paths, .. } = of_overlay("upperdir=/a:b", at) else { panic!() };
        assert_eq!(paths, [node("/a:b")]);
        assert_eq!(of_overlay("index=off", at), Datum::Plain("index=off".to_owned()));
        assert_eq!(of_erofs("device=/x", at).text(), "device=/x");
        assert!(matches!(of_erofs("device=/x", at), Datum::Paths { .. }));
        assert_eq!(split("a\\\\b\\"), ["a\\b"]);
    }
}
