//! Finding the network configuration in its directory.
//!
//! As go-cni (what containerd uses): files ending in `.conflist`, `.conf` or `.json`, sorted by name, the first ones
//! win, and a bad file among them is an error that hides nothing: it is not skipped, since the next file would be
//! another network.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::config::{ConfigError, Folder, NetworkList, ParsedList, Plugin};

/// The largest configuration file that is read, in bytes.
pub const FILE_MAX: u64 = 1 << 20;

/// How often a directory is looked at whose files go meanwhile.
const LOOKS_MAX: usize = 10;

/// Why no configuration could be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The directory is missing or has no configuration.
    #[error(
        "no network configuration in {0}: put a .conflist there, for instance by installing the cluster's network add-on"
    )]
    NoConfig(PathBuf),
    /// The directory cannot be listed.
    #[error("cannot list {dir}")]
    Directory {
        /// The directory.
        dir: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file cannot be read.
    #[error("cannot read network configuration {file}")]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file is larger than [`FILE_MAX`].
    #[error("network configuration {0} is larger than {FILE_MAX} bytes")]
    TooLarge(PathBuf),
    /// A file's content is refused.
    #[error("network configuration {file} is not valid")]
    Invalid {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        source: ConfigError,
    },
}

impl LoadError {
    /// Whether nothing has the name of the file any more that it tells of. A link that leads nowhere has it.
    fn is_of_gone(&self) -> bool {
        let file = match self {
            Self::Unreadable { file, .. } | Self::TooLarge(file) | Self::Invalid { file, .. } => file,
            Self::NoConfig(_) | Self::Directory { .. } => return false,
        };
        fs::symlink_metadata(file).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }
}

impl NetworkList {
    /// Loads the default network of a directory: the first file by name.
    ///
    /// # Errors
    /// Names the file and the reason; [`LoadError::NoConfig`] when there is no file.
    pub fn load(dir: &Path) -> Result<Self, LoadError> {
        let mut lists = load_dir(dir, 1)?;
        lists.pop().ok_or_else(|| LoadError::NoConfig(dir.to_owned()))
    }
}

/// Loads the first `max` networks of a directory, in the order of their files; their interfaces are eth0, eth1, …
///
/// # Errors
/// Names the file and the reason; [`LoadError::NoConfig`] when there is no file.
pub fn load_dir(dir: &Path, max: usize) -> Result<Vec<NetworkList>, LoadError> {
    settled(|| {
        let files = files_with(dir, &["conflist", "conf", "json"])?;
        if files.is_empty() {
            return Err(LoadError::NoConfig(dir.to_owned()));
        }
        files.iter().take(max).map(|file| load_file(file)).collect()
    })
}

/// Looks again when a file has gone since it was listed. An add-on may have just given it another name, by which it still comes
/// before the others.
fn settled<T>(mut look: impl FnMut() -> Result<T, LoadError>) -> Result<T, LoadError> {
    for _ in 1..LOOKS_MAX {
        match look() {
            Err(error) if error.is_of_gone() => {}
            result => return result,
        }
    }
    look()
}

/// Loads one file, with the folder of its network beside it.
///
/// # Errors
/// Names the file and the reason.
pub fn load_file(file: &Path) -> Result<NetworkList, LoadError> {
    let bytes = read(file)?;
    if file.extension().is_none_or(|extension| extension != "conflist") {
        return NetworkList::parse_single(&bytes).map_err(|source| invalid(file, source));
    }
    let parsed = ParsedList::parse(&bytes).map_err(|source| invalid(file, source))?;
    let folder = match (parsed.folder(), file.parent()) {
        (Folder::Merged, Some(dir)) => load_folder(&dir.join(parsed.name().as_str()))?,
        (Folder::Merged, None) | (Folder::Ignored, _) => Vec::new(),
    };
    parsed.with(folder).map_err(|source| invalid(file, source))
}

fn load_folder(dir: &Path) -> Result<Vec<Plugin>, LoadError> {
    files_with(dir, &["conf"])?
        .iter()
        .map(|file| Plugin::parse(&read(file)?).map_err(|source| invalid(file, source)))
        .collect()
}

/// The regular files directly in `dir` with one of the extensions, sorted; none when `dir` does not exist.
fn files_with(dir: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, LoadError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(source) => return Err(LoadError::Directory { dir: dir.to_owned(), source }),
    };
    let mut files = Vec::new();
    for entry in entries {
        let file = entry.map_err(|source| LoadError::Directory { dir: dir.to_owned(), source })?.path();
        if !file.extension().is_some_and(|found| extensions.iter().any(|wanted| found == *wanted)) {
            continue;
        }
        // Followed, as add-ons link their file here; a pipe would hang the reader.
        let metadata = fs::metadata(&file).map_err(|source| unreadable(&file, source))?;
        if metadata.is_file() {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

fn read(file: &Path) -> Result<Vec<u8>, LoadError> {
    let mut bytes = Vec::new();
    File::open(file)
        .and_then(|opened| opened.take(FILE_MAX + 1).read_to_end(&mut bytes))
        .map_err(|source| unreadable(file, source))?;
    if u64::try_from(bytes.len()).is_ok_and(|len| len <= FILE_MAX) {
        Ok(bytes)
    } else {
        Err(LoadError::TooLarge(file.to_owned()))
    }
}

fn unreadable(file: &Path, source: io::Error) -> LoadError {
    LoadError::Unreadable { file: file.to_owned(), source }
}

fn invalid(file: &Path, source: ConfigError) -> LoadError {
    LoadError::Invalid { file: file.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r#"{"name":"net","cniVersion":"1.0.0","plugins":[{"type":"a"}]}"#;

    fn dir(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        dir
    }

    fn types(list: &NetworkList) -> Vec<&str> {
        list.plugins().iter().map(|plugin| plugin.kind.as_str()).collect()
    }

    #[test]
    fn the_first_file_by_name_wins() {
        let dir = dir(&[
            ("20-b.conflist", LIST),
            ("10-a.conf", r#"{"name":"single","type":"one"}"#),
            ("05.conflist.bak", "not read"),
            ("00-dir.conf/x", "a directory is not a file"),
            ("30-bad.conflist", "{"),
        ]);
        assert_eq!(NetworkList::load(dir.path()).unwrap().name.as_str(), "single");
        let two = load_dir(dir.path(), 2).unwrap();
        assert_eq!(two.iter().map(|list| list.name.as_str()).collect::<Vec<_>>(), ["single", "net"]);
        let error = load_dir(dir.path(), 3).unwrap_err();
        assert!(matches!(error, LoadError::Invalid { file, .. } if file.ends_with("30-bad.conflist")));
    }

    #[test]
    fn json_is_a_single_configuration() {
        let dir = dir(&[("a.json", r#"{"name":"n","type":"one"}"#)]);
        assert_eq!(types(&NetworkList::load(dir.path()).unwrap()), ["one"]);
    }

    #[test]
    fn a_malformed_first_file_is_an_error_not_skipped() {
        let dir = dir(&[("00-bad.conf", "not json"), ("10.conflist", LIST)]);
        let error = NetworkList::load(dir.path()).unwrap_err();
        assert!(matches!(error, LoadError::Invalid { file, .. } if file.ends_with("00-bad.conf")));
    }

    #[test]
    fn missing_empty_and_nested_directories_have_no_config() {
        let empty = dir(&[("sub/10.conflist", LIST)]);
        for path in [empty.path().to_owned(), empty.path().join("does-not-exist")] {
            let error = NetworkList::load(&path).unwrap_err();
            assert!(matches!(&error, LoadError::NoConfig(named) if *named == path));
            assert!(error.to_string().contains("put a .conflist there"));
        }
    }

    #[test]
    fn a_file_that_goes_while_the_directory_is_read_is_looked_for_again() {
        let other = LIST.replace("net", "other");
        let dir = dir(&[("10-a.conflist", LIST), ("90-b.conflist", &other)]);
        let (listed, renamed) = (dir.path().join("10-a.conflist"), dir.path().join("20-a.conflist"));
        let mut looks = 0;
        let list = settled(|| {
            looks += 1;
            if looks == 1 {
                fs::rename(&listed, &renamed).unwrap();
                load_file(&listed)
            } else {
                NetworkList::load(dir.path())
            }
        });
        assert_eq!((list.unwrap().name.as_str(), looks), ("net", 2));
        let mut looks = 0;
        let error = settled(|| {
            looks += 1;
            load_file(&listed)
        });
        assert!(matches!(error.unwrap_err(), LoadError::Unreadable { file, .. } if file == listed));
        assert_eq!(looks, LOOKS_MAX);
        // A link that leads nowhere is there, and hides no other.
        let mut looks = 0;
        std::os::unix::fs::symlink("nowhere", &listed).unwrap();
        let error = settled(|| {
            looks += 1;
            NetworkList::load(dir.path())
        });
        assert!(matches!(error.unwrap_err(), LoadError::Unreadable { file, .. } if file == listed));
        assert_eq!(looks, 1);
    }

    #[test]
    fn the_folder_of_the_network_adds_plugins() {
        let folder = [
            ("10.conflist", LIST),
            ("net/2.conf", r#"{"type":"c"}"#),
            ("net/1.conf", r#"{"type":"b"}"#),
            ("net/3.json", r#"{"type":"not-read"}"#),
            ("other/1.conf", r#"{"type":"not-read"}"#),
        ];
        assert_eq!(types(&NetworkList::load(dir(&folder).path()).unwrap()), ["a", "b", "c"]);
        let inlined = r#"{"name":"net","loadOnlyInlinedPlugins":"true","plugins":[{"type":"a"}]}"#;
        let only = dir(&[("10.conflist", inlined), ("net/1.conf", r#"{"type":"b"}"#)]);
        assert_eq!(types(&NetworkList::load(only.path()).unwrap()), ["a"]);
        let bare = dir(&[("10.conflist", r#"{"name":"net"}"#), ("net/1.conf", r#"{"type":"b"}"#)]);
        assert_eq!(types(&NetworkList::load(bare.path()).unwrap()), ["b"]);
        let none = dir(&[("10.conflist", r#"{"name":"net"}"#)]);
        assert!(matches!(
            NetworkList::load(none.path()).unwrap_err(),
            LoadError::Invalid { source: ConfigError::NoPlugins, .. }
        ));
    }

    #[test]
    fn an_oversized_file_is_refused() {
        let dir = dir(&[("10.conflist", &" ".repeat(usize::try_from(FILE_MAX).unwrap() + 1))]);
        assert!(matches!(NetworkList::load(dir.path()).unwrap_err(), LoadError::TooLarge(_)));
    }
}
