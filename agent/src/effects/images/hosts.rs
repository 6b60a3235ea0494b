//! Which of several directories has the settings of a registry, since containerd's transfer service takes one; and which hosts
//! these name.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use toml::{Table, Value};

use super::pull_records::read_bounded;
use crate::one_thread::{OneThread, Unanswered};

/// What a registry without settings of its own uses.
const DEFAULT: &str = "_default";
/// The settings of a registry, in its directory.
const FILE: &str = "hosts.toml";
/// Longest look.
const WITHIN: Duration = Duration::from_secs(10);

/// The first directory with settings for the registry of a reference; the first of all where none has any.
pub(super) async fn dir_of(
    reader: &OneThread,
    dirs: &[PathBuf],
    reference: &str,
) -> Result<PathBuf, Unanswered> {
    let first = dirs.first().map_or_else(|| Path::new("").to_owned(), Clone::clone);
    if dirs.len() < 2 {
        return Ok(first);
    }
    let (dirs, names) = (dirs.to_vec(), names(reference));
    let known = move || dirs.into_iter().find(|dir| names.iter().any(|name| dir.join(name).exists()));
    Ok(reader.run(WITHIN, known).await?.unwrap_or(first))
}

/// The hosts that the settings of a reference's registry name, in the directory that containerd is given: they are asked in the
/// registry's place.
pub(super) async fn named(
    reader: &OneThread,
    dir: &Path,
    reference: &str,
) -> Result<Vec<String>, Unanswered> {
    if dir.as_os_str().is_empty() {
        return Ok(Vec::new());
    }
    let (dir, names) = (dir.to_owned(), names(reference));
    let read = move || {
        let own = names.iter().map(|name| dir.join(name)).find(|dir| dir.exists())?;
        let bytes = read_bounded(&own.join(FILE)).ok().flatten()?;
        Some(hosts_in(&String::from_utf8(bytes).ok()?))
    };
    Ok(reader.run(WITHIN, read).await?.unwrap_or_default())
}

/// What cannot be read names none: containerd goes without it, too (`loadHostDir` of `core/remotes/docker/config/hosts.go`).
fn hosts_in(text: &str) -> Vec<String> {
    let Ok(settings) = text.parse::<Table>() else { return Vec::new() };
    let server = settings.get("server").and_then(Value::as_str);
    let tables = settings.get("host").and_then(Value::as_table);
    let others = tables.into_iter().flat_map(Table::keys).map(String::as_str);
    server.into_iter().chain(others).filter_map(host_of).collect()
}

/// The host of an address that may lack its scheme, with its port (`parseHostConfig`).
fn host_of(url: &str) -> Option<String> {
    let rest = if url.starts_with("http") { url.split_once("://")?.1 } else { url };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    (!host.is_empty()).then(|| host.to_owned())
}

/// What containerd looks for, in its order (`hostPaths` of `core/remotes/docker/config/config_unix.go`).
fn names(reference: &str) -> Vec<String> {
    let host = reference.split('/').next().unwrap_or_default();
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

    #[tokio::test]
    async fn the_hosts_that_settings_name() {
        let (root, reader) = (tempfile::tempdir().unwrap(), OneThread::default());
        for (name, text) in [
            (
                "docker.io",
                "server = \"https://alias.test:5000/v2\"\n[host.\"http://mirror.test\"]\nskip_verify = true\n\
                 [host.\"bare.test:81/proxy\"]\n[host.\"https://user@own.test\".header]\na = \"b\"\n",
            ),
            ("registry.test_5000_", "server = \"https://one.test\"\n"),
            ("registry.test:5000", "server = \"https://two.test\"\n"),
            ("broken.test", "server = \"https://alias.test\"\nserver\n"),
            ("unnamed.test", "[host.\"\"]\n[host.httpbin]\n"),
            ("_default", "[host.\"https://cache.test\"]\n"),
        ] {
            std::fs::create_dir_all(root.path().join(name)).unwrap();
            std::fs::write(root.path().join(name).join(FILE), text).unwrap();
        }
        std::fs::create_dir_all(root.path().join("certificates.test")).unwrap();
        for (reference, expected) in [
            ("docker.io/library/app:1", &["alias.test:5000", "bare.test:81", "mirror.test", "own.test"][..]),
            ("registry.test:5000/app:1", &["one.test"]),
            ("broken.test/app:1", &[]),
            ("unnamed.test/app:1", &[]),
            ("certificates.test/app:1", &[]),
            ("quay.test/app:1", &["cache.test"]),
        ] {
            let mut hosts = named(&reader, root.path(), reference).await.unwrap();
            hosts.sort();
            assert_eq!(hosts, expected, "{reference}");
        }
        assert_eq!(named(&reader, Path::new(""), "quay.test/app:1").await, Ok(Vec::new()));
    }
}
