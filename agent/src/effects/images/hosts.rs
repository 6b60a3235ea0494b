//! Which of several directories has the settings of a registry: containerd's transfer service takes one.

use std::path::{Path, PathBuf};

/// What a registry without settings of its own uses.
const DEFAULT: &str = "_default";

/// The first directory with settings for the registry of a reference; the first of all where none has any.
pub(super) async fn dir_of(dirs: &[PathBuf], reference: &str) -> PathBuf {
    let host = reference.split('/').next().unwrap_or_default();
    for dir in dirs.iter().filter(|_| dirs.len() > 1) {
        for name in names(host) {
            if tokio::fs::try_exists(dir.join(name)).await.unwrap_or(false) {
                return dir.clone();
            }
        }
    }
    dirs.first().map_or_else(|| Path::new("").to_owned(), Clone::clone)
}

/// What containerd looks for, in its order (`hostPaths` of `core/remotes/docker/config/config_unix.go`).
fn names(host: &str) -> Vec<String> {
    let with_port = host.rsplit_once(':').map(|(name, port)| format!("{name}_{port}_"));
    with_port.into_iter().chain([host.to_owned(), DEFAULT.to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_that_knows_the_registry() {
        let root = tempfile::tempdir().unwrap();
        let dirs = ["a", "b", "c"].map(|name| root.path().join(name));
        for made in ["b/registry.test_5000_", "b/quay.test", "c/_default", "c/quay.test"] {
            std::fs::create_dir_all(root.path().join(made)).unwrap();
        }
        for (dirs, reference, expected) in [
            (&dirs[..], "registry.test:5000/app:1", 1),
            (&dirs[..], "quay.test/app@sha256:00", 1),
            (&dirs[..], "docker.io/library/app:1", 2),
            (&dirs[..2], "docker.io/library/app:1", 0),
            (&dirs[..1], "quay.test/app:1", 0),
        ] {
            assert_eq!(dir_of(dirs, reference).await, dirs[expected], "{reference}");
        }
        assert_eq!(dir_of(&[], "quay.test/app:1").await, PathBuf::new());
    }
}
