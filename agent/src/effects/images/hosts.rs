//! Which of several directories has the settings of a registry: containerd's transfer service takes one.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use crate::one_thread::{OneThread, Unanswered};

/// What a registry without settings of its own uses.
const DEFAULT: &str = "_default";
/// Longest look.
const WITHIN: Duration = Duration::from_secs(10);

/// The first directory with settings for the registry of a reference; the first of all where none has any.
pub(super) async fn dir_of(
    reader: &OneThread,
    dirs: &[PathBuf],
    reference: &str,
) -> Result<PathBuf, Unanswered> {
    let host = reference.split('/').next().unwrap_or_default();
    let first = dirs.first().map_or_else(|| Path::new("").to_owned(), Clone::clone);
    if dirs.len() < 2 {
        return Ok(first);
    }
    let (dirs, names) = (dirs.to_vec(), names(host));
    let known = move || dirs.into_iter().find(|dir| names.iter().any(|name| dir.join(name).exists()));
    Ok(reader.run(WITHIN, known).await?.unwrap_or(first))
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
        let (root, reader) = (tempfile::tempdir().unwrap(), OneThread::default());
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
            assert_eq!(dir_of(&reader, dirs, reference).await.as_ref(), Ok(&dirs[expected]), "{reference}");
        }
        assert_eq!(dir_of(&reader, &[], "quay.test/app:1").await, Ok(PathBuf::new()));
    }
}
